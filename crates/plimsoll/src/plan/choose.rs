//! The search for the fastest plan that fits: whole batches if possible, else micro-batches, splitting, recomputation and offloading,
//! whichever has the shortest predicted step.

use super::candidate::{Candidate, candidate, compared, finish, needs_no_search, planning};
use super::economy::economical;
use super::least::{infeasible, minimum, recalled, smallest_plan};
use super::offload;
use super::pipelines::{Pipelines, pipelines};
use super::split::{described, planned_graphs};
use super::{AppliedStrategy, Budgets, DeviceBudget, Request, RunPlan};
use crate::allow::{Allow, Permission};
use crate::error::{Error, Result};
use crate::graphs::{Variant, nodes};
use crate::infeasible::PlanningInfeasible;
use crate::numerics::Numerics;
use crate::spec::Count;
use plimsoll_core::budget::Owner;
use plimsoll_core::plan::recompute::{self, Effort, FitError};
use plimsoll_core::plan::{self, Certificate, CheckedPlan};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Graph};
use std::borrow::Cow;
use std::sync::Arc;

/// What planning may take whatever the budget is, so that the answer to a budget that is too small is the minimum; and its heap, for programs
/// that are larger themselves.
const SMALL_PLANNING: Bytes = Bytes::mib(32);
const SMALL_PLANNING_HEAP: Bytes = Bytes::mib(20);

/// How many micro-batch sizes are tried with recomputation.
const MAX_RECOMPUTED: usize = 2;

/// How often the arena limit is lowered because recomputed nodes take heap themselves.
const ADJUSTMENTS: usize = 4;

/// Whole batches are bit-identical, and times of small micro-batches are the hardest to predict: they are preferred up to this slowdown.
const WHOLE_BATCH_PREFERENCE: f64 = 1.1;

/// A variant that changes results must be faster than this fraction of the best without.
const VARIANT_THRESHOLD: f64 = 0.98;

/// Finds the fastest plan within the budgets; budgets below the minimum are refused before the search.
pub(crate) fn plan_run(request: &Request<'_>) -> Result<RunPlan> {
    let budgets = request.machine.budgets(request.budget);
    refuse_planning_beyond_memory(request)?;
    let minimum = minimum_of(request, budgets)?;
    if !minimum.fits(budgets) {
        return Err(Error::Infeasible(Box::new(infeasible(request, budgets, minimum)?)));
    }
    let mut chosen: Option<(Request<'_>, Candidate, Vec<Candidate>)> = None;
    let mut asked: Option<Candidate> = None;
    for variant in variants(request, request.allow) {
        let request = varied(request, variant)?;
        let (whole, found) = fastest(&request, budgets)?;
        let asked = &*asked.get_or_insert_with(|| whole.clone());
        // A run that fits as specified is not changed.
        let done = variant == Variant::default() && found.as_ref().is_some_and(|found| found.untouched(&whole));
        if let Some(found) = found {
            let faster = |(known, best, _): &(Request<'_>, Candidate, _)| found.seconds(&request) < VARIANT_THRESHOLD * best.seconds(known);
            if chosen.as_ref().is_none_or(faster) {
                let on_the_way = if variant == Variant::default() { vec![whole] } else { vec![asked.clone(), whole] };
                chosen = Some((request, found, on_the_way));
            }
        }
        if done {
            break;
        }
    }
    let Some((request, candidate, on_the_way)) = chosen else {
        // The search for the fastest plan found none: the minimum is one.
        let request = varied(request, minimum.variant)?;
        return described(&request, run_plan(&request, budgets, minimum.clone())?);
    };
    let candidate = if on_the_way.iter().any(|whole| candidate.untouched(whole)) { economical(&request, candidate)? } else { candidate };
    // The plan states their exact sizes.
    let tightened = |whole: Candidate| {
        let variant = whole.variant;
        whole.tightened(&varied(&request, variant)?)
    };
    let on_the_way = on_the_way.into_iter().map(tightened).collect::<Result<Vec<_>>>()?;
    let strategies = strategies(&request, &candidate, on_the_way)?;
    described(&request, RunPlan { strategies, ..run_plan(&request, budgets, candidate)? })
}

/// The plan of the minimum budget, whatever the budgets of the run are. A minimum that a refusal found is not searched again.
pub(crate) fn smallest(request: &Request<'_>, known: Option<&(Numerics, CheckedPlan)>) -> Result<RunPlan> {
    let budgets = request.machine.budgets(request.budget);
    refuse_planning_beyond_memory(request)?;
    if let Some((choices, memory)) = known {
        let _ = request.minimum.set(recalled(request, choices, memory)?);
    }
    smallest_plan(request, budgets, minimum_of(request, budgets)?)
}

/// The host and device memory of micro-batches without recomputation, splitting or offload, and the predicted seconds per batch.
pub(crate) fn plain(request: &Request<'_>, micro_batch: usize) -> Result<(Bytes, Bytes, f64)> {
    refuse_planning_beyond_memory(request)?;
    let plain = candidate(request, micro_batch, None)?;
    Ok((plain.least, plain.device_total(), plain.seconds(request)))
}

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

/// Refuses to plan a run whose planning would not fit into the free memory or the budget. No run fits where its planning does not. A run that
/// fits as it is specified needs no search for strategies.
fn refuse_planning_beyond_memory(request: &Request<'_>) -> Result<()> {
    let (free, process, limit) = (request.machine.free_host, request.machine.process, planning_limit(request));
    let refuse = |planning: Bytes| {
        let budget = (planning <= free).then(|| request.machine.budgets(request.budget).host);
        Err(Error::PlanningInfeasible(PlanningInfeasible { free, budget, planning }))
    };
    let as_specified = process + request.programs.planning_heap_as_specified();
    if as_specified > limit {
        return refuse(as_specified);
    }
    if process + request.programs.search_heap_at_most(compared(request)) <= limit {
        return Ok(());
    }
    let whole = ways(request, request.allow)[0];
    if needs_no_search(request, &candidate(request, whole, Some(Budgets::NONE))?) {
        return Ok(());
    }
    let planning = planning(request, 0, request.batch)?;
    if planning > limit { refuse(planning) } else { Ok(()) }
}

/// The minimum of the run, computed once.
fn minimum_of<'a>(request: &Request<'a>, budgets: Budgets) -> Result<&'a Candidate> {
    if request.minimum.get().is_none() {
        let _ = request.minimum.set(minimum(request, budgets, request.allow)?);
    }
    Ok(request.minimum.get().expect("set above"))
}

/// What each strategy saved and cost, in order: fewer bits, micro-batches, then splitting, recomputation and offloading.
fn strategies(request: &Request<'_>, chosen: &Candidate, on_the_way: Vec<Candidate>) -> Result<Vec<AppliedStrategy>> {
    let mut way: Vec<(Vec<Permission>, Candidate)> =
        on_the_way.into_iter().map(|whole| (whole.variant.permissions().collect(), whole)).collect();
    let last = &way[way.len() - 1].1;
    let again = (!chosen.recomputation().nodes.is_empty()).then_some(Permission::Recompute);
    let elsewhere = (chosen.memory.backing > Bytes::ZERO).then_some(Permission::Offload);
    let cut = chosen.is_cut().then_some(Permission::Split);
    let more: Vec<Permission> = cut.into_iter().chain(again).chain(elsewhere).collect();
    if chosen.micro_batch != last.micro_batch {
        let pieces = if more.is_empty() { chosen.clone() } else { candidate(request, chosen.micro_batch, None)? };
        way.push((vec![Permission::Microbatch], pieces));
    }
    if !more.is_empty() {
        way.push((more, chosen.clone()));
    }
    let weigh = |candidate: &Candidate| -> Result<(Bytes, f64)> {
        let bytes = if candidate.on_device.is_some() { candidate.device_total() } else { candidate.least };
        Ok((bytes, candidate.seconds(&varied(request, candidate.variant)?)))
    };
    let weighed = way.iter().map(|(permissions, candidate)| Ok((permissions, weigh(candidate)?))).collect::<Result<Vec<_>>>()?;
    let step = |pair: &[(&Vec<Permission>, (Bytes, f64))]| {
        let ((_, before), (permissions, after)) = (&pair[0], &pair[1]);
        AppliedStrategy { permissions: permissions.to_vec(), before: *before, after: *after }
    };
    Ok(weighed.windows(2).map(step).collect())
}

/// The variants that some permissions allow; the one of a resumed run.
pub(super) fn variants(request: &Request<'_>, allow: Allow) -> Vec<Variant> {
    match &request.spec.numerics {
        Some(fixed) => {
            let activations = fixed.precision != request.spec.optimization.precision;
            vec![Variant { activations, state: fixed.eight_bit_state }]
        }
        None => request.variants.allowed(allow).collect(),
    }
}

/// The same run in another variant.
pub(super) fn varied<'a>(request: &Request<'a>, variant: Variant) -> Result<Request<'a>> {
    Ok(Request { programs: request.variants.programs(variant)?, variant, ..request.clone() })
}

/// The largest micro-batch of one variant without other strategies, and its fastest plan within the budgets: with its largest layers split, or
/// with tensors offloaded, where that is allowed and faster.
fn fastest(request: &Request<'_>, budgets: Budgets) -> Result<(Candidate, Option<Candidate>)> {
    let (whole, plain, too_large) = fastest_as_written(request, budgets)?;
    if plain.as_ref().is_some_and(|found| found.untouched(&whole)) {
        return Ok((whole, plain));
    }
    let in_pieces = Request { split: true, ..request.clone() };
    let can_be_cut = || -> Result<bool> {
        let Cow::Owned(graphs) = planned_graphs(&in_pieces, request.batch)? else { return Ok(false) };
        // Planning them has to stay within the budget too.
        Ok(planning(request, nodes(graphs.iter().map(|(_, graph)| graph)), request.batch)? <= budgets.host)
    };
    let (cut, too_large_cut) = if request.allow.has(Permission::Split) && can_be_cut()? {
        let (_, cut, too_large) = fastest_as_written(&in_pieces, budgets)?;
        (cut, too_large)
    } else {
        (None, Vec::new())
    };
    let faster = |a: Option<Candidate>, b: Option<Candidate>| match (a, b) {
        (Some(a), Some(b)) => Some(if b.seconds(request) < a.seconds(request) { b } else { a }),
        (a, b) => a.or(b),
    };
    let mut found = faster(plain, cut);
    if offload::considered(request, found.is_some()) {
        let mut elsewhere = offload::fastest(request, &too_large, budgets)?;
        if elsewhere.is_none() && !too_large_cut.is_empty() {
            elsewhere = offload::fastest(&in_pieces, &too_large_cut, budgets)?;
        }
        // On a device with memory of its own, sums and small updates of a step with copies take a launch each.
        let share = if whole.on_device.is_some() { OFFLOAD_PREFERENCE } else { 1.0 };
        found = match (found, elsewhere) {
            (Some(here), Some(elsewhere)) if elsewhere.seconds(request) < share * here.seconds(request) => Some(elsewhere),
            (here, elsewhere) => here.or(elsewhere),
        };
    }
    Ok((whole, found))
}

/// The largest micro-batch without other strategies; the fastest plan without offloading, with layers split as the request says; and the
/// micro-batches that do not fit as they are. Only their sizes are returned: planning itself has to stay within the budget.
fn fastest_as_written(request: &Request<'_>, budgets: Budgets) -> Result<(Candidate, Option<Candidate>, Vec<usize>)> {
    let mut too_large: Vec<usize> = Vec::new();
    let mut whole: Option<Candidate> = None;
    let mut chosen: Option<Candidate> = None;
    for micro_batch in ways(request, request.allow) {
        let candidate = candidate(request, micro_batch, Some(budgets))?;
        let fits = candidate.fits(budgets);
        let whole = whole.get_or_insert_with(|| candidate.clone());
        if fits {
            chosen = Some(if candidate.micro_batch == whole.micro_batch { whole.clone() } else { candidate });
            break;
        }
        too_large.push(micro_batch);
    }
    let whole = whole.expect("there is always a way to try");
    if request.allow.has(Permission::Recompute) {
        let mut compared = 0;
        for micro_batch in &too_large {
            let large = if *micro_batch == whole.micro_batch { whole.clone() } else { candidate(request, *micro_batch, Some(budgets))? };
            if let Ok(again) = with_recomputation(request, &large, budgets, request.effort, None)? {
                let faster = chosen.as_ref().is_none_or(|chosen| {
                    let worth = if again.micro_batch == request.batch { WHOLE_BATCH_PREFERENCE } else { 1.0 };
                    again.seconds(request) < worth * chosen.seconds(request)
                });
                chosen = if faster { Some(again) } else { chosen };
                compared += 1;
            }
            if compared == MAX_RECOMPUTED {
                break;
            }
        }
    }
    Ok((whole, chosen, too_large))
}

/// Offloading from a device with memory of its own must be predicted to take at most this part of the time without it.
const OFFLOAD_PREFERENCE: f64 = 0.92;

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
    match recompute::refit(&large.memory, graphs, request.device(), limit, request.cost_model, effort, from.map(|from| &*from.memory)) {
        Ok(plan) => Ok(Ok(finish(request, large.micro_batch, plan)?.from(large.written.clone()))),
        Err(FitError::TooSmall { least, .. }) => Ok(Err(Some(least))),
        Err(FitError::Graph(error)) => Err(error.into()),
    }
}

/// Proves a certificate against the graphs of the run.
pub(crate) fn prove(request: &Request<'_>, certificate: &Certificate) -> Result<()> {
    let wrong = |what: String| Err(Error::Config(what));
    if certificate.rows == 0 || certificate.rows > request.batch {
        return wrong(format!("the plan does not hold: it is for {} rows of a batch of {}", certificate.rows, request.batch));
    }
    // Try the allowed variants; report the error of the run as specified.
    let mut first = None;
    for variant in variants(request, request.allow) {
        let request = varied(request, variant)?;
        match plan::prove(certificate, graphs(&request, certificate.rows)?, request.device()) {
            Ok(_) => return Ok(()),
            Err(error) => first = first.or(Some(error.to_string())),
        }
    }
    // An error about the file, not about the planner.
    wrong(first.unwrap_or_default())
}

pub(super) fn graphs<'a>(request: &'a Request<'_>, micro_batch: usize) -> Result<&'a [(Role, Graph)]> {
    if micro_batch == request.batch { Ok(&request.programs.whole) } else { Ok(request.programs.accumulating()?) }
}

pub(super) fn run_plan(request: &Request<'_>, budgets: Budgets, candidate: Candidate) -> Result<RunPlan> {
    let minimum = minimum_of(request, budgets)?;
    let fixed: Bytes = candidate.fixed.iter().map(|(_, size)| *size).sum();
    let left = match request.spec.count {
        Count::Everything => Some(budgets.host - fixed),
        Count::WeightsAndActivations => None,
    };
    let pipeline = pipelines(request.data, candidate.feed_rows, left)?;
    let again = candidate.recomputation();
    let step = &candidate.memory.programs[0];
    let flops = step.recomputation.flops / candidate.micro_batch as u64 * request.batch as u64;
    let pieces = request.batch.div_ceil(candidate.micro_batch);
    let mut used = Vec::new();
    if !again.nodes.is_empty() {
        used.push(Permission::Recompute);
    }
    if candidate.memory.backing > Bytes::ZERO {
        used.push(Permission::Offload);
    }
    if candidate.is_cut() {
        used.push(Permission::Split);
    }
    if pieces > 1 {
        used.push(Permission::Microbatch);
        if request.programs.batch_statistics {
            used.push(Permission::MicrobatchBatchnorm);
        }
    }
    used.extend(candidate.variant.permissions());
    let sums_reordered = pieces > 1 && !request.programs.batch_statistics && !request.programs.accumulates_exactly()?;
    Ok(RunPlan {
        model: request.spec.model.title().to_string(),
        device: (request.device().name(), request.device().description()),
        batch: request.batch,
        micro_batch: candidate.micro_batch,
        micro_batch_given: request.micro_batch.is_some() && request.spec.numerics.is_none(),
        host_budget: budgets.host,
        host_budget_given: request.budget.host.is_some(),
        requested_host_budget: None,
        owners: owners(request, &candidate, &pipeline),
        minimum: minimum.least,
        may_micro_batch: ways(request, request.allow).len() > 1,
        device_memory: candidate.on_device.as_ref().map(|owners| DeviceBudget {
            budget: budgets.device,
            given: request.budget.device.is_some(),
            requested: None,
            owners: sorted(owners),
            minimum: minimum.device_total(),
        }),
        flops,
        predicted_s: candidate.seconds(request),
        measured_costs: request.machine.measured,
        split: None,
        recomputation: again,
        precision: request.programs.optimization.precision,
        allow: request.allow,
        strategies: Vec::new(),
        eight_bit_state: candidate.variant.state,
        results_unchanged: !sums_reordered && !used.iter().any(|permission| permission.changes_results()),
        sums_reordered,
        used,
        count: request.spec.count,
        plan_ms: 0.0,
        assumptions: request.machine.assumptions(request.budget, request.device().footprint(&candidate.memory).runtime),
        memory: candidate.memory,
        pipeline_stages: pipeline.stages,
        pipeline: pipeline.training,
        validation: pipeline.validation,
        feed_rows: candidate.feed_rows,
        interface: Arc::clone(&request.programs.interface),
        optimization: request.programs.optimization.clone(),
    })
}

/// The micro-batches to try, largest first. They divide the batch, so that the pipeline can deliver them one by one.
pub(super) fn ways(request: &Request<'_>, allow: Allow) -> Vec<usize> {
    let cut = allow.has(Permission::Microbatch)
        && (!request.programs.batch_statistics || allow.has(Permission::MicrobatchBatchnorm))
        && request.programs.worth_dividing(request.batch);
    match request.micro_batch {
        Some(rows) => vec![rows.clamp(1, request.batch)],
        None if cut => divisors(request.batch),
        None => vec![request.batch],
    }
}

/// The divisors of a number, largest first.
fn divisors(number: usize) -> Vec<usize> {
    let small: Vec<usize> = (1..).take_while(|n| n * n <= number).filter(|n| number.is_multiple_of(*n)).collect();
    let mut all: Vec<usize> = small.iter().map(|n| number / n).chain(small.iter().rev().copied()).collect();
    all.dedup();
    all
}

pub(super) fn owners(request: &Request<'_>, candidate: &Candidate, pipeline: &Pipelines) -> Vec<(Owner, Bytes)> {
    let mut owners = candidate.fixed.clone();
    if request.spec.count == Count::Everything {
        owners.push((Owner::Pipeline, pipeline.total()));
    }
    sorted(&owners)
}

/// Owners that hold something, largest first.
pub(super) fn sorted(owners: &[(Owner, Bytes)]) -> Vec<(Owner, Bytes)> {
    let mut owners = owners.to_vec();
    owners.retain(|(_, size)| *size > Bytes::ZERO);
    owners.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    owners
}
