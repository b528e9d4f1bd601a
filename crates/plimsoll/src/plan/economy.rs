//! Recomputation that costs next to nothing, on devices with memory of their own: normalizations and activations that
//! follow from stored results in one pass over memory are recomputed where the backward pass reads them, also if the
//! budget would hold them.

use super::Request;
use super::candidate::Candidate;
use super::parallel::{in_parallel, parts_at_once};
use super::recomputation::within;
use crate::allow::Permission;
use crate::error::Result;
use plimsoll_core::Bytes;
use plimsoll_core::plan::recompute::Effort;
use std::collections::BTreeMap;

/// Smaller arenas are left as they are: the search would take longer than the memory is worth.
const WORTHWHILE: Bytes = Bytes::gib(1);

/// The smallest share of the arena is half of it; sizes above are tried in this many steps, a power of two.
const LEAST_SHARE: f64 = 0.5;
const STEPS: usize = 16;

/// Maximum predicted slowdown of a step.
const SLOWDOWN: f64 = 1.025;

/// About half a second for networks of a thousand nodes.
const EFFORT: Effort = Effort(6_000_000);

/// The same plan in the smallest of some arenas in which a step is predicted to be hardly slower.
pub(super) fn economical(request: &Request<'_>, plain: Candidate) -> Result<Candidate> {
    let applies = plain.on_device.is_some() && request.allow.has(Permission::Recompute) && plain.memory.arena >= WORTHWHILE;
    if !applies {
        return Ok(plain);
    }
    let (seconds, alignment, host) = (plain.seconds(request), plain.memory.alignment.0, request.machine.budgets(request.budget).host);
    let smaller = |step: &usize| -> Result<Option<Candidate>> {
        let share = LEAST_SHARE + (1.0 - LEAST_SHARE) * *step as f64 / STEPS as f64;
        let limit = Bytes((plain.memory.arena.0 as f64 * share) as u64 / alignment * alignment);
        let found = within(request, &plain, limit, EFFORT, None)?;
        // Recomputed nodes take host memory.
        Ok(found.ok().filter(|again| again.seconds(request) <= SLOWDOWN * seconds && again.least <= host))
    };
    let levels = (parts_at_once(request) + 1).ilog2();
    let (mut below, mut at, mut best) = (0, STEPS, None);
    while at - below > 1 {
        // Several levels of the bisection at once; those it does not come to are in vain.
        let mut tried = Vec::new();
        midpoints(below, at, levels, &mut tried);
        let mut found: BTreeMap<usize, Result<Option<Candidate>>> = tried.iter().copied().zip(in_parallel(&tried, smaller)).collect();
        while let Some(result) = found.remove(&((below + at) / 2)).filter(|_| at - below > 1) {
            match result? {
                Some(again) => (at, best) = ((below + at) / 2, Some(again)),
                None => below = (below + at) / 2,
            }
        }
    }
    Ok(best.unwrap_or(plain))
}

/// The steps that a bisection between two may come to within some levels.
fn midpoints(below: usize, above: usize, levels: u32, into: &mut Vec<usize>) {
    if levels > 0 && above - below > 1 {
        let middle = (below + above) / 2;
        into.push(middle);
        midpoints(below, middle, levels - 1, into);
        midpoints(middle, above, levels - 1, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_a_bisection_are_tried_at_once() {
        let of = |levels: u32| {
            let mut into = Vec::new();
            midpoints(0, STEPS, levels, &mut into);
            into.sort_unstable();
            into
        };
        assert_eq!((of(1), of(2)), (vec![8], vec![4, 8, 12]));
        assert_eq!((of(4), of(9)), ((1..STEPS).collect(), (1..STEPS).collect()));
    }
}
