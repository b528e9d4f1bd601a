//! The largest batch that fits, found by planning instead of by running out of memory.

use super::candidate::{Candidate, candidate};
use super::least::minimum_of;
use super::recomputation::{with_recomputation, within};
use super::statement::run_plan;
use super::{Budgets, Request, RunPlan};
use crate::allow::Permission;
use crate::error::Result;
use plimsoll_core::Bytes;
use plimsoll_core::graph::Phase;
use plimsoll_core::plan::recompute::Effort;
use std::sync::OnceLock;

/// The largest batch that is tried.
const MAX_BATCH: usize = 1 << 24;

/// The search effort of one probe, which only has to find out whether a batch fits.
const PROBE: Effort = Effort(16_000_000);

/// The bisection ends at this relative precision: the search itself is no more precise.
const PRECISION: usize = 150;

/// Steps from the upper bound down to the batch that fits without recomputation.
const DESCENT_STEPS: usize = 10;

/// The largest batch that fits.
#[derive(Clone, Debug)]
pub struct LargestBatch {
    /// Rows of the largest batch that runs without micro-batches.
    pub batch: usize,
    /// Its plan.
    pub plan: RunPlan,
}

/// Finds the largest batch that fits without micro-batches, recomputing at most one forward pass if that is allowed.
/// None if not even one row fits.
pub(super) fn largest_batch(request: &Request<'_>) -> Result<Option<LargestBatch>> {
    let budgets = request.machine.budgets(request.budget);
    let split = request.allow.has(Permission::Split);
    // The answer is the same on every machine: measured costs only predict the step time.
    let built_in = request.device().cost_model();
    let whole = |batch: usize| Request { batch, micro_batch: Some(batch), split, cost_model: &*built_in, ..request.clone() };
    let plain = |batch: usize| -> Result<Option<Candidate>> {
        let found = candidate(&whole(batch), batch, Some(budgets))?;
        Ok(found.fits(budgets).then_some(found))
    };
    let Some(mut best) = grow(1, MAX_BATCH, &plain)? else {
        return Ok(None);
    };
    if request.allow.has(Permission::Recompute)
        && let Some(more) = largest_again(&best, budgets, &whole)?
    {
        best = more;
    }
    let batch = best.micro_batch;
    let minimum = OnceLock::new();
    let measured = Request { cost_model: request.cost_model, minimum: &minimum, ..whole(batch) };
    let minimum = minimum_of(&measured, budgets)?;
    Ok(Some(LargestBatch { batch, plan: run_plan(&measured, budgets, best, minimum)? }))
}

/// The largest batch with recomputation, above one that fits without. Every probe is an expensive search; the smallest
/// arena of a known batch bounds the rows, since buffers grow with the rows.
fn largest_again<'a>(plain: &Candidate, budgets: Budgets, whole: &dyn Fn(usize) -> Request<'a>) -> Result<Option<Candidate>> {
    let again = |batch: usize, from: Option<&Candidate>| -> Result<Option<Candidate>> {
        let request = whole(batch);
        let large = candidate(&request, batch, Some(budgets))?;
        Ok(with_recomputation(&request, &large, budgets, PROBE, from)?.ok().filter(one_more_forward))
    };
    let known = plain.micro_batch;
    let room = match (plain.arena_limit(budgets), within(&whole(known), plain, Bytes::ZERO, PROBE, None)?) {
        (Some(limit), Err(Some(least))) => limit.0 as f64 / least.0.max(1) as f64,
        _ => return Ok(None),
    };
    let most = ((known as f64 * room * 1.02) as usize + 1).min(MAX_BATCH);
    let (mut good, mut bad, mut best, mut failed): (_, _, Option<Candidate>, _) = (known, most + 1, None, false);
    // Search from above: the answer is rarely far below the bound, and one batch that packs badly must not hide larger
    // ones.
    let above = |bad: usize| (bad + bad / 16 + 1).min(MAX_BATCH);
    let stride = ((most - known.min(most)) / DESCENT_STEPS).max(1);
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
    let near = |good: usize, bad: usize| bad - good <= 1 + good / PRECISION;
    while best.is_some() && !near(good, bad) {
        let middle = good + (bad - good) / 2;
        match again(middle, best.as_ref())? {
            Some(found) => (best, good) = (Some(found), middle),
            None => (bad, failed) = (middle, true),
        }
        // A search that starts from a known plan may find more: continue upwards while every probe succeeds.
        if near(good, bad) && !failed && bad < MAX_BATCH {
            bad = above(bad);
        }
    }
    Ok(best)
}

/// Whether at most one forward pass is recomputed.
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

/// The largest number from `least` for which something is found, supposing monotonicity: doubling, then bisection.
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
