//! Memory of planning itself: what it may take, and runs whose planning would take more.

use super::Request;
use super::candidate::{compared, needs_no_search, planning, specified};
use crate::error::{Error, Result};
use crate::infeasible::PlanningInfeasible;
use crate::spec::Count;
use plimsoll_core::Bytes;

/// What planning may take whatever the budget is, so that the answer to a budget that is too small is the minimum; and
/// its heap, for programs that are larger themselves.
const SMALL_PLANNING: Bytes = Bytes::mib(32);
const SMALL_PLANNING_HEAP: Bytes = Bytes::mib(20);

/// Host memory that planning may take, the process included: what is free, but no more than the budget or a little.
pub(super) fn planning_limit(request: &Request<'_>) -> Bytes {
    let free = request.machine.free_host;
    match request.spec.count {
        Count::Everything => {
            let small = SMALL_PLANNING.max(request.machine.process + SMALL_PLANNING_HEAP);
            request.machine.budgets(request.budget).host.max(small).min(free)
        }
        Count::WeightsAndActivations => free,
    }
}

/// Refuses to plan a run whose planning would not fit into the free memory or the budget. No run fits where its
/// planning does not. A run that fits as it is specified needs no search for strategies.
pub(super) fn refuse_planning_beyond_memory(request: &Request<'_>) -> Result<()> {
    let (free, process, limit) = (request.machine.free_host, request.machine.process, planning_limit(request));
    let refuse = |planning: Bytes| {
        let budget = (planning <= free).then(|| request.machine.budgets(request.budget).host);
        Err(Error::PlanningInfeasible(PlanningInfeasible { free, budget, planning }))
    };
    let as_specified = process + request.programs.planning_heap_as_specified(compared(request));
    if as_specified > limit {
        return refuse(as_specified);
    }
    if process + request.programs.search_heap_at_most(compared(request)) <= limit {
        return Ok(());
    }
    if needs_no_search(request, &specified(request)?) {
        return Ok(());
    }
    let planning = planning(request, 0, request.batch)?;
    if planning > limit { refuse(planning) } else { Ok(()) }
}
