//! The largest batch that fits, answered by the planner instead of by a crash.

use super::candidate::{Candidate, candidate};
use super::choose::{computed_again, run_plan, within};
use super::{Budgets, Request, RunPlan};
use crate::allow::Permission;
use crate::error::Result;
use plimsoll_core::Bytes;
use plimsoll_core::graph::Phase;
use plimsoll_core::plan::recompute::Effort;

/// No batch is larger than this.
const MOST: usize = 1 << 24;

/// The search of one probe. Each has the whole question to answer, but only whether, not how well.
const PROBE: Effort = Effort(16_000_000);

/// Probes end when the answer is known to one part in this many: a search that finds a little more or less is as far off.
const FINENESS: usize = 150;

/// In how many strides to come down to what fits without computing anything again.
const DESCENT: usize = 10;

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
pub(super) fn largest_batch(request: &Request<'_>) -> Result<Option<LargestBatch>> {
    let budgets = request.machine.budgets(request.budget);
    let split = request.allow.has(Permission::Split);
    // The answer is the same on every machine: what was measured of this one only predicts the time.
    let built_in = request.device().cost_model();
    let whole = |batch: usize| Request { batch, micro_batch: Some(batch), split, cost_model: &*built_in, ..request.clone() };
    let plain = |batch: usize| -> Result<Option<Candidate>> {
        let found = candidate(&whole(batch), batch, Some(budgets))?;
        Ok(found.fits(budgets).then_some(found))
    };
    let Some(mut best) = grow(1, MOST, &plain)? else {
        return Ok(None);
    };
    if request.allow.has(Permission::Recompute)
        && let Some(more) = largest_again(&best, budgets, &whole)?
    {
        best = more;
    }
    let batch = best.micro_batch;
    let measured = Request { cost_model: request.cost_model, ..whole(batch) };
    Ok(Some(LargestBatch { batch, plan: run_plan(&measured, budgets, best)? }))
}

/// The largest batch above one that fits as it is, if values are computed again. Every probe is a search of its own, so where to look comes
/// from one more: the smallest arena of a known batch says how many rows the limit has room for at most, since buffers grow with the rows.
fn largest_again<'a>(plain: &Candidate, budgets: Budgets, whole: &dyn Fn(usize) -> Request<'a>) -> Result<Option<Candidate>> {
    let again = |batch: usize, from: Option<&Candidate>| -> Result<Option<Candidate>> {
        let request = whole(batch);
        let large = candidate(&request, batch, Some(budgets))?;
        Ok(computed_again(&request, &large, budgets, PROBE, from)?.ok().filter(one_more_forward))
    };
    let known = plain.micro_batch;
    let room = match (plain.arena_limit(budgets), within(&whole(known), plain, Bytes::ZERO, PROBE, None)?) {
        (Some(limit), Err(Some(least))) => limit.0 as f64 / least.0.max(1) as f64,
        _ => return Ok(None),
    };
    let most = ((known as f64 * room * 1.02) as usize + 1).min(MOST);
    let (mut good, mut bad, mut best, mut failed): (_, _, Option<Candidate>, _) = (known, most + 1, None, false);
    // From above: the answer is rarely far below, and one batch whose buffers pack badly must not hide larger ones that pack well.
    let above = |bad: usize| (bad + bad / 16 + 1).min(MOST);
    let stride = ((most - known.min(most)) / DESCENT).max(1);
    let mut at = most;
    while at > known && best.is_none() {
        match again(at, None)? {
            Some(found) => (best, good) = (Some(found), at),
            None => (bad, failed) = (at, true),
        }
        at = at.saturating_sub(stride);
    }
    if !failed {
        bad = above(bad);
    }
    let near = |good: usize, bad: usize| bad - good <= 1 + good / FINENESS;
    while best.is_some() && !near(good, bad) {
        let middle = good + (bad - good) / 2;
        match again(middle, best.as_ref())? {
            Some(found) => (best, good) = (Some(found), middle),
            None => (bad, failed) = (middle, true),
        }
        // A search with a goal may beat one without: where everything worked, go on a little higher.
        if near(good, bad) && !failed && bad < MOST {
            bad = above(bad);
        }
    }
    Ok(best)
}

/// Whether what is computed again is at most the forward pass once more.
fn one_more_forward(candidate: &Candidate) -> bool {
    candidate.memory.programs.iter().all(|program| {
        let graph = &program.graph;
        let forward: u64 = graph
            .nodes()
            .filter(|(id, node)| node.phase == Phase::Forward && !program.recomputation.nodes.contains(id))
            .map(|(_, node)| graph.node_flops(node, candidate.micro_batch))
            .sum();
        program.recomputation.extra_flops <= forward
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
