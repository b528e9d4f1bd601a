//! The minimum budget, and the error for a budget below it.

use super::alternatives::{variants, varied, ways};
use super::candidate::{Candidate, candidate, compared, finish, needs_no_search, planning, specified};
use super::offload::{Extent, sketches};
use super::parallel::{in_parallel, parts_at_once};
use super::pipelines::pipelines;
use super::planning_memory::planning_limit;
use super::split::planned_graphs;
use super::statement::{owners, run_plan, sorted};
use super::{Budgets, Request, RunPlan};
use crate::allow::{Allow, Permission};
use crate::error::Result;
use crate::graphs::{Programs, Variant, nodes};
use crate::infeasible::{HOST, Infeasible};
use crate::numerics::Numerics;
use crate::spec::Count;
use plimsoll_core::Bytes;
use plimsoll_core::budget::{Owner, give_back_memory_of_phase};
use plimsoll_core::plan::recompute::{self, Effort, FitError};
use plimsoll_core::plan::{CheckedPlan, is_tight};
use std::borrow::Cow;

/// The search effort for the smallest arena of a plan: per node of its largest graph, and at most.
const EFFORT_PER_NODE: u64 = 4_000;
const MAX_EFFORT: u64 = 1_500_000;

/// How often the arena of the minimum is tried to be lowered by a fraction, and the search effort for that.
const LOWERINGS: usize = 2;
const LOWERING: u64 = 64;
const LOWERING_EFFORT: Effort = Effort(2_000_000);

/// The minimum of a run with some permissions: the smallest plan that planning finds. It depends on the run and, on a
/// device with memory of its own, on the host budget, but not on the budget that it is the minimum of, nor on measured
/// costs. Every statement of a minimum comes from here: a budget below it is refused, and this plan itself runs in it.
///
/// Compared are the run as specified and, with the fewest bits that are allowed, the whole batch (which needs no
/// accumulated gradients) and the smallest micro-batch.
fn minimum(request: &Request<'_>, budgets: Budgets, allow: Allow) -> Result<Candidate> {
    let allowed_for_run = allow == request.allow;
    let request = &Request { allow, split: false, ..request.clone() };
    let mut ways = ways(request, allow);
    let best = specified(request)?;
    if needs_no_search(request, &best) {
        if allowed_for_run && is_tight(&best.memory) {
            let _ = request.as_specified.set(best.clone());
        }
        return Ok(best);
    }
    ways.drain(1..ways.len().max(2) - 1);
    let fewest = variants(request, allow).pop().unwrap_or_default();
    let request = &varied(request, fewest)?;
    let splits: &[bool] = if allow.has(Permission::Split) { &[false, true] } else { &[false] };
    let best = smallest_of(request, budgets, best, &ways, splits, Extent::allowed(request))?;
    let planned = best.fixed.iter().any(|(owner, _)| *owner == Owner::Planning);
    if allow.has(Permission::Recompute) && !planned { lowered(request, best, budgets) } else { Ok(best) }
}

/// The minimum of the run, computed once.
pub(super) fn minimum_of<'a>(request: &Request<'a>, budgets: Budgets) -> Result<&'a Candidate> {
    if request.minimum.get().is_none() {
        let _ = request.minimum.set(minimum(request, budgets, request.allow)?);
    }
    Ok(request.minimum.get().expect("set above"))
}

/// A plan with more permissions than the minimum: divided, split and offloaded like the minimum or as they newly allow.
/// At least as large as the minimum with these permissions, found in a fraction of the time.
fn with_more(request: &Request<'_>, budgets: Budgets, allow: Allow, minimum: &Candidate) -> Result<Candidate> {
    let newly = |permission: Permission| allow.has(permission) && !request.allow.has(permission);
    let divided = ways(request, allow);
    let rows = if divided == ways(request, request.allow) { minimum.micro_batch } else { divided[divided.len() - 1] };
    let splits: &[bool] = match (newly(Permission::Split), minimum.is_cut()) {
        (true, _) => &[false, true],
        (false, true) => &[true],
        (false, false) => &[false],
    };
    let extents: &[Extent] = match (newly(Permission::Offload), minimum.memory.backing > Bytes::ZERO) {
        (true, _) => &[Extent::StatesAndValues, Extent::Nothing],
        (false, true) => &[Extent::StatesAndValues],
        (false, false) => &[Extent::Nothing],
    };
    let request = &Request { allow, split: false, ..request.clone() };
    let request = &varied(request, variants(request, allow).pop().unwrap_or_default())?;
    smallest_of(request, budgets, minimum.clone(), &[rows], splits, extents)
}

/// The smallest plan of these micro-batches, each as it is and split, with these extents of offloading; or `best`, if
/// none is smaller.
fn smallest_of(
    request: &Request<'_>,
    budgets: Budgets,
    mut best: Candidate,
    ways: &[usize],
    splits: &[bool],
    extents: &[Extent],
) -> Result<Candidate> {
    // No plan needs less memory than planning it.
    let counted = best.on_device.is_none() && request.spec.count == Count::Everything;
    let floor = if counted { planning(request, 0, request.batch)? } else { Bytes::ZERO };
    let tried: Vec<(usize, bool)> = ways.iter().flat_map(|rows| splits.iter().map(|split| (*rows, *split))).collect();
    let at_once = if counted { 1 } else { parts_at_once(request) };
    if at_once > 1 {
        for tried in tried.chunks(at_once) {
            // A plan that is not smaller than an earlier one is no answer, whether it is found or not looked for.
            for found in in_parallel(tried, |(rows, split)| smaller(request, budgets, &best, *rows, *split, extents)) {
                if let Some(found) = found?.filter(|found| size(found, budgets, Bytes::ZERO) < size(&best, budgets, Bytes::ZERO)) {
                    best = found;
                }
            }
        }
        return Ok(best);
    }
    for (rows, split) in tried {
        if best.least <= floor {
            return Ok(best);
        }
        if let Some(found) = smaller(request, budgets, &best, rows, split, extents)? {
            best = found;
        }
    }
    Ok(best)
}

/// The smallest plan of a micro-batch, split or not, with these extents of offloading, if it is smaller than `best`.
fn smaller(
    request: &Request<'_>,
    budgets: Budgets,
    best: &Candidate,
    rows: usize,
    split: bool,
    extents: &[Extent],
) -> Result<Option<Candidate>> {
    let counted = best.on_device.is_none() && request.spec.count == Count::Everything;
    let request = &Request { split, ..request.clone() };
    // The code of the search before.
    give_back_memory_of_phase();
    if split {
        let Cow::Owned(graphs) = planned_graphs(request, rows)? else { return Ok(None) };
        // Not laid out if planning them alone takes more memory than the best plan in all.
        let planned = nodes(graphs.iter().map(|(_, graph)| graph));
        if counted && planning(request, planned, rows)? >= best.least {
            return Ok(None);
        }
    }
    let mut found: Option<Candidate> = None;
    let plain = candidate(request, rows, Some(Budgets::NONE))?;
    sketches(request, plain, extents, |sketch| {
        if let Some(smaller) = smallest(request, sketch, budgets, found.as_ref().unwrap_or(best))? {
            found = Some(smaller);
        }
        Ok(())
    })?;
    Ok(found)
}

/// The order of plans by size, if an arena were smaller by some bytes. Offloaded tensors are on the host: as long as
/// they fit there, only the device counts.
fn size(candidate: &Candidate, budgets: Budgets, saved: Bytes) -> (Bytes, Bytes, Bytes) {
    match candidate.on_device {
        Some(_) => (candidate.least.saturating_sub(budgets.host), candidate.device_total() - saved, candidate.least),
        None => (Bytes::ZERO, Bytes::ZERO, candidate.least - saved),
    }
}

/// The smallest layout of a sketched plan, with recomputation if that is allowed; none if it is not smaller than the
/// best.
fn smallest(request: &Request<'_>, sketch: Candidate, budgets: Budgets, best: &Candidate) -> Result<Option<Candidate>> {
    let recompute = request.allow.has(Permission::Recompute);
    let floor = if recompute { recompute::floor(&sketch.memory, request.device()) } else { sketch.memory.lower_bound };
    let saved = sketch.memory.arena.saturating_sub(floor);
    if size(&sketch, budgets, saved) >= size(best, budgets, Bytes::ZERO) {
        return Ok(None);
    }
    let found = if recompute {
        // On a device with memory of its own, graphs take other memory than the arena.
        let per_node = if sketch.on_device.is_some() { Bytes::ZERO } else { Programs::heap_per_node(sketch.micro_batch < request.batch) };
        let nodes = sketch.memory.programs.iter().map(|program| program.graph.nodes().len() as u64).max().unwrap_or(0);
        let search = (request.cost_model, Effort((EFFORT_PER_NODE * nodes).min(MAX_EFFORT)));
        // The code that made the sketch.
        give_back_memory_of_phase();
        let memory = recompute::smallest(&sketch.memory, sketch.graphs(request)?, request.device(), per_node, search)?;
        finish(request, sketch.micro_batch, memory)?.from(sketch.written.clone())
    } else {
        sketch.tightened(request)?
    };
    Ok((size(&found, budgets, Bytes::ZERO) < size(best, budgets, Bytes::ZERO)).then_some(found))
}

/// The same in a smaller arena, where a search for given limits finds one.
fn lowered(request: &Request<'_>, mut best: Candidate, budgets: Budgets) -> Result<Candidate> {
    let request = &varied(request, best.variant)?;
    // The minimum is the same on every machine, so no measured costs.
    let cost_model = request.device().cost_model();
    for _ in 0..LOWERINGS {
        let (arena, alignment) = (best.memory.arena.0, best.memory.alignment.0);
        let limit = Bytes((arena - arena / LOWERING) / alignment * alignment);
        let less = recompute::refit(&best.memory, best.graphs(request)?, request.device(), limit, &*cost_model, LOWERING_EFFORT, None);
        let found = match less {
            Ok(memory) => finish(request, best.micro_batch, memory)?.from(best.written.clone()),
            Err(FitError::TooSmall { .. }) => break,
            Err(FitError::Graph(error)) => return Err(error.into()),
        };
        if size(&found, budgets, Bytes::ZERO) >= size(&best, budgets, Bytes::ZERO) {
            break;
        }
        best = found;
    }
    Ok(best)
}

/// The plan of the minimum, within budgets that are large enough for it.
pub(super) fn smallest_plan(request: &Request<'_>, budgets: Budgets, least: &Candidate) -> Result<RunPlan> {
    let enough = Budgets { host: budgets.host.max(least.least), device: budgets.device.max(least.device_total()) };
    run_plan(&varied(request, least.variant)?, enough, least.clone(), least)
}

/// The choices of a candidate that result bits depend on.
fn choices(request: &Request<'_>, candidate: &Candidate) -> Result<Numerics> {
    let precision = varied(request, candidate.variant)?.programs.optimization.precision;
    Ok(Numerics {
        micro_batch: candidate.micro_batch,
        precision,
        eight_bit_state: candidate.variant.state,
        convolutions: None,
        algorithms: None,
    })
}

/// The candidate that [`choices`] and its memory describe.
pub(super) fn recalled(request: &Request<'_>, choices: &Numerics, memory: &CheckedPlan) -> Result<Candidate> {
    let activations = choices.precision != request.spec.optimization.precision;
    let request = varied(request, Variant { activations, state: choices.eight_bit_state })?;
    finish(&request, choices.micro_batch, memory.clone().into_plan())
}

/// Why there is no plan, and what would work.
pub(super) fn infeasible(request: &Request<'_>, budgets: Budgets, least: &Candidate) -> Result<Infeasible> {
    let pipeline = pipelines(request.data, least.feed_rows, None)?;
    let on_host = least.least > budgets.host || least.on_device.is_none();
    let own = |candidate: &Candidate| if on_host { candidate.least } else { candidate.device_total() };
    let (mut tried, mut minimum_with) = (Vec::new(), Vec::new());
    let more = [
        request.allow.with(Permission::Split),
        request.allow.with(Permission::Recompute),
        request.allow.with(Permission::Microbatch),
        request.allow.with(Permission::Microbatch).with(Permission::MicrobatchBatchnorm),
        request.allow.with(Permission::Recompute).with(Permission::Microbatch).with(Permission::MicrobatchBatchnorm),
        request.allow.with(Permission::MixedPrecision),
        request.allow.with(Permission::MixedPrecision).with(Permission::State8bit),
        request.allow.with(Permission::Offload),
        request.allow.with(Permission::Recompute).with(Permission::Microbatch).with(Permission::Offload),
    ];
    // Other permissions are planned only where there is memory to search with them.
    let limit = planning_limit(request);
    let search = |allow: Allow| {
        let compared = compared(&Request { allow, ..request.clone() });
        request.machine.process + request.programs.search_heap_at_most(compared)
    };
    for allow in more.into_iter().filter(|allow| search(*allow) <= limit) {
        // Skip permissions that open no new plan.
        let opens =
            variants(request, allow).len() > variants(request, request.allow).len() || ways(request, allow) != ways(request, request.allow);
        let newly = |permission: Permission| allow.has(permission) && !request.allow.has(permission);
        let opens = opens || newly(Permission::Recompute) || newly(Permission::Offload) || newly(Permission::Split);
        // Skip 8-bit state where mixed precision alone opens as many variants.
        let mixed = request.allow.with(Permission::MixedPrecision);
        let opens = opens && (!newly(Permission::State8bit) || variants(request, allow).len() > variants(request, mixed).len());
        if opens && !tried.contains(&allow) {
            tried.push(allow);
            let with = own(&with_more(request, budgets, allow, least)?);
            if with < own(least) {
                minimum_with.push((allow, with));
            }
        }
    }
    let (space, line, owners) = match &least.on_device {
        Some(owners) if !on_host => (format!("memory of {}", request.device().name()), budgets.device, sorted(owners)),
        _ => (HOST.to_string(), budgets.host, owners(request, least, &pipeline)),
    };
    Ok(Infeasible {
        space,
        budget: line,
        minimum: own(least),
        owners,
        micro_batch: least.micro_batch,
        batch: request.batch,
        micro_batch_asked: request.micro_batch.is_some(),
        ranks: request.spec.ranks,
        fits_on: Vec::new(),
        allow: request.allow,
        minimum_with,
        plan_ms: 0.0,
        resumed_with: None,
        smallest: Some((choices(request, least)?, least.memory.clone())),
    })
}
