//! The largest batch that fits, answered by the planner instead of by a crash.

use super::choose::{Candidate, Lines, candidate, computed_again, run_plan};
use super::{Request, RunPlan};
use crate::allow::Permission;
use crate::error::Result;
use plimsoll_core::graph::Phase;
use std::time::Instant;

/// No batch is larger than this.
const MOST: usize = 1 << 24;

/// The answer to how many rows a batch may have.
#[derive(Clone, Debug)]
pub struct LargestBatch {
    /// Rows of the largest batch that runs in one piece.
    pub batch: usize,
    /// Its plan.
    pub plan: RunPlan,
}

/// Finds the largest batch that fits in one piece. Values may be computed again, if that is allowed, as long as it takes at most one more
/// forward pass. None if not even one row fits.
pub(in crate::trainer) fn largest_batch(request: &Request<'_>) -> Result<Option<LargestBatch>> {
    let (start, lines) = (Instant::now(), Lines::of(request));
    let whole = |batch: usize| Request { batch, micro_batch: Some(batch), ..request.clone() };
    let plain = |batch: usize| -> Result<Option<Candidate>> {
        let found = candidate(&whole(batch), batch)?;
        Ok(found.fits(lines).then_some(found))
    };
    let Some(mut best) = grow(1, MOST, &plain)? else {
        return Ok(None);
    };
    if request.allow.has(Permission::Recompute) {
        let again = |batch: usize| -> Result<Option<Candidate>> {
            let request = whole(batch);
            let large = candidate(&request, batch)?;
            Ok(computed_again(&request, &large, lines)?.ok().filter(one_more_forward))
        };
        if let Some(more) = grow(best.micro_batch + 1, MOST, &again)? {
            best = more;
        }
    }
    let batch = best.micro_batch;
    Ok(Some(LargestBatch { batch, plan: run_plan(&whole(batch), lines, best, start)? }))
}

/// Whether what is computed again is at most the forward pass once more.
fn one_more_forward(candidate: &Candidate) -> bool {
    candidate.memory.programs.iter().all(|program| {
        let graph = &program.graph;
        let forward: u64 = graph
            .nodes()
            .filter(|(id, node)| node.phase == Phase::Forward && !program.again.nodes.contains(id))
            .map(|(_, node)| graph.node_flops(node, candidate.micro_batch))
            .sum();
        program.again.extra_flops <= forward
    })
}

/// The largest number from `least` for which something is found, supposing that it is found for all smaller ones: doubles, then halves the gap.
fn grow(least: usize, most: usize, find: &dyn Fn(usize) -> Result<Option<Candidate>>) -> Result<Option<Candidate>> {
    let mut best = find(least)?;
    let (mut good, mut bad) = match &best {
        None => return Ok(None),
        Some(_) => (least, None),
    };
    let mut stride = least.max(2) / 2;
    while bad.is_none() && good < most {
        let next = (good + stride).min(most);
        match find(next)? {
            Some(found) => (best, good) = (Some(found), next),
            None => bad = Some(next),
        }
        stride *= 2;
    }
    while let Some(low) = bad.filter(|bad| bad - good > 1) {
        let middle = good + (low - good) / 2;
        match find(middle)? {
            Some(found) => (best, good) = (Some(found), middle),
            None => bad = Some(middle),
        }
    }
    Ok(best)
}
