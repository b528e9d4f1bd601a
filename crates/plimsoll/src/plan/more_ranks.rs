//! What a run that does not fit on some ranks fits on: more of them, or as many with shards.

use super::Machine;
use super::data::DataSummary;
use super::least::minimum_of;
use crate::error::Result;
use crate::infeasible::{FittingRanks, Infeasible};
use crate::ranks::{MAX_RANKS, Shard};
use crate::spec::RunSpec;
use plimsoll_core::budget::Owner;

/// How many numbers of ranks are planned for, at most. The first is an estimate, which is most often right to a few
/// ranks.
const MAX_PROBES: usize = 24;

/// The fewest ranks that a refused run fits on, as far as they were found; and what has to be sharded for as many as it
/// has. Each was planned exactly: its minimum is within the budget.
pub(crate) fn fitting_ranks(spec: &RunSpec, machine: &Machine, refused: &Infeasible) -> Vec<FittingRanks> {
    let now = spec.parallel.shard;
    let fits = |ranks: usize, shard: Shard| fits(spec, machine, FittingRanks { ranks, shard }).unwrap_or(false);
    let more = fewest(spec, refused, &|ranks| fits(ranks, now));
    let stages = [Shard::Optimizer, Shard::Gradients].into_iter().filter(|shard| match now {
        Shard::None => true,
        Shard::Optimizer => *shard == Shard::Gradients,
        Shard::Gradients => false,
    });
    let sharded = stages.map(|shard| FittingRanks { ranks: spec.ranks, shard }).find(|of| fits(of.ranks, of.shard));
    more.map(|ranks| FittingRanks { ranks, shard: now }).into_iter().chain(sharded).collect()
}

/// Whether the minimum of a run on other ranks is within its budgets.
fn fits(spec: &RunSpec, machine: &Machine, of: FittingRanks) -> Result<bool> {
    let mut spec = RunSpec { ranks: of.ranks, ..spec.clone() };
    spec.parallel.shard = of.shard;
    spec.search(machine, &DataSummary::read(&spec)?, |request| {
        let budgets = machine.budgets(request.budget);
        Ok(minimum_of(request, budgets)?.fits(budgets))
    })
}

/// The fewest ranks from those of the run on for which `fits` says so. Memory does not grow with the ranks: each has
/// fewer rows, and smaller shards.
fn fewest(spec: &RunSpec, refused: &Infeasible, fits: &dyn Fn(usize) -> bool) -> Option<usize> {
    let sharded = |owner: &Owner| match spec.parallel.shard {
        Shard::None => false,
        Shard::Optimizer => *owner == Owner::Optimizer,
        Shard::Gradients => matches!(owner, Owner::Optimizer | Owner::GradientSums),
    };
    let shards: u64 = refused.owners.iter().filter(|(owner, _)| sharded(owner)).map(|(_, size)| size.0).sum();
    let (over, ranks) = (refused.minimum.0.saturating_sub(refused.budget.0), spec.ranks);
    // With one row, only shards become smaller.
    let rows = spec.data.batch_size().unwrap_or(1);
    let most = if over < shards { MAX_RANKS } else { rows };
    let estimate = (shards > over).then(|| (ranks as f64 / (1.0 - over as f64 / shards as f64)).ceil());
    let estimate = estimate.map_or(2 * ranks, |ranks| ranks.min(MAX_RANKS as f64) as usize);
    smallest_from(ranks, estimate, most, fits)
}

/// The smallest number above `bad` and up to `most` that is good, from an estimate; each number above a good one is
/// good.
fn smallest_from(mut bad: usize, estimate: usize, most: usize, is_good: &dyn Fn(usize) -> bool) -> Option<usize> {
    if bad >= most {
        return None;
    }
    let (mut good, mut probe, mut stride) = (None, estimate.clamp(bad + 1, most), 1);
    for _ in 0..MAX_PROBES {
        match is_good(probe) {
            true => good = Some(probe),
            false => bad = probe,
        }
        probe = match good {
            None if bad == most => return None,
            None => (2 * bad).min(most),
            Some(good) if good - bad == 1 => return Some(good),
            // Near the estimate first.
            Some(good) => (good - stride.min(good - bad - 1)).max(bad + (good - bad) / 2),
        };
        stride *= 4;
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_smallest_good_number_is_found_from_any_estimate() {
        for (least, bad) in (2..40).flat_map(|least| (1..least).map(move |bad| (least, bad))) {
            for estimate in [0, bad, bad + 1, least - 1, least, least + 1, least + 7, 100, 1000] {
                let probes = Cell::new(0);
                let is_good = |number: usize| {
                    probes.set(probes.get() + 1);
                    number >= least
                };
                assert_eq!(smallest_from(bad, estimate, 1 << 20, &is_good), Some(least), "{estimate} for {least} above {bad}");
                let near = estimate == least && least > bad + 1;
                assert!(!near || probes.get() == 2, "{} probes for an exact estimate", probes.get());
                assert_eq!(smallest_from(bad, estimate, least - 1, &|number| number >= least), None);
            }
        }
    }
}
