//! Recomputation that costs next to nothing, on devices with memory of their own: normalizations and activations that follow from
//! stored results in one pass over memory are recomputed where the backward pass reads them, also if the budget would hold them.

use super::Request;
use super::candidate::Candidate;
use super::recomputation::within;
use crate::allow::Permission;
use crate::error::Result;
use plimsoll_core::Bytes;
use plimsoll_core::plan::recompute::Effort;

/// Smaller arenas are left as they are: the search would take longer than the memory is worth.
const WORTHWHILE: Bytes = Bytes::gib(1);

/// The smallest share of the arena that is tried, and the number of bisections above it.
const LEAST_SHARE: f64 = 0.5;
const BISECTIONS: usize = 4;

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
    let (mut below, mut best) = (LEAST_SHARE, plain.clone());
    let share_of = |candidate: &Candidate| candidate.memory.arena.0 as f64 / plain.memory.arena.0 as f64;
    for _ in 0..BISECTIONS {
        let share = 0.5 * (below + share_of(&best));
        let limit = Bytes((plain.memory.arena.0 as f64 * share) as u64 / alignment * alignment);
        match within(request, &plain, limit, EFFORT, None)? {
            // Recomputed nodes take host memory.
            Ok(again) if again.seconds(request) <= SLOWDOWN * seconds && again.least <= host => best = again,
            _ => below = share,
        }
    }
    Ok(best)
}
