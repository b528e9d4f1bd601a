//! A micro-batch with recomputation, in an arena of a given size or within the budgets.

use super::candidate::{Candidate, finish};
use super::{Budgets, Request};
use crate::error::Result;
use plimsoll_core::Bytes;
use plimsoll_core::budget::give_back_memory_of_phase;
use plimsoll_core::plan::recompute::{self, Effort, FitError};

/// How often the arena limit is lowered because recomputed nodes take heap themselves.
const ADJUSTMENTS: usize = 4;

/// The same micro-batch with recomputation, if that is enough; else the smallest arena that was found.
pub(super) fn with_recomputation(
    request: &Request<'_>,
    large: &Candidate,
    budgets: Budgets,
    effort: Effort,
    from: Option<&Candidate>,
) -> Result<Result<Candidate, Option<Bytes>>> {
    let Some(mut limit) = large.arena_limit(budgets) else { return Ok(Err(None)) };
    for _ in 0..ADJUSTMENTS {
        let found = within(request, large, limit, effort, from)?;
        match &found {
            // Recomputed nodes take heap too: lower the arena limit by that.
            Ok(again) if !again.fits(budgets) => match again.arena_limit(budgets) {
                Some(less) if less < limit => limit = less,
                _ => return Ok(Err(None)),
            },
            _ => return Ok(found),
        }
    }
    Ok(Err(None))
}

/// The same micro-batch in an arena of this size, or the smallest one that was found.
pub(super) fn within(
    request: &Request<'_>,
    large: &Candidate,
    limit: Bytes,
    effort: Effort,
    from: Option<&Candidate>,
) -> Result<Result<Candidate, Option<Bytes>>> {
    let graphs = large.graphs(request)?;
    // The code that planned without recomputation.
    give_back_memory_of_phase();
    match recompute::refit(&large.memory, graphs, request.device(), limit, request.cost_model, effort, from.map(|from| &*from.memory)) {
        Ok(plan) => Ok(Ok(finish(request, large.micro_batch, plan)?.from(large.written.clone()))),
        Err(FitError::TooSmall { least, .. }) => Ok(Err(Some(least))),
        Err(FitError::Graph(error)) => Err(error.into()),
    }
}
