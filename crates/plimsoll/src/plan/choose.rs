//! The search for the fastest plan that fits: whole batches if possible, else micro-batches, splitting, recomputation
//! and offloading, whichever has the shortest predicted step.

use super::alternatives::{graphs, variants, varied, ways};
use super::candidate::{Candidate, candidate, planning};
use super::economy::economical;
use super::least::{infeasible, minimum_of, recalled, smallest_plan};
use super::offload;
use super::parallel::searches_at_once;
use super::planning_memory::refuse_planning_beyond_memory;
use super::recomputation::with_recomputation;
use super::split::{described, planned_graphs};
use super::statement::run_plan;
use super::{AppliedStrategy, Budgets, Request, RunPlan};
use crate::allow::Permission;
use crate::error::{Error, Result};
use crate::graphs::{Variant, nodes};
use crate::numerics::Numerics;
use plimsoll_core::Bytes;
use plimsoll_core::budget::{KeepFreedMemory, give_back_memory_of_phase};
use plimsoll_core::plan::{self, Certificate, CheckedPlan};
use std::borrow::Cow;

/// How many micro-batch sizes are tried with recomputation.
const MAX_RECOMPUTED: usize = 2;

/// Whole batches are bit-identical, and times of small micro-batches are the hardest to predict: they are preferred up
/// to this slowdown.
const WHOLE_BATCH_PREFERENCE: f64 = 1.1;

/// A variant that changes results must be faster than this fraction of the best without.
const VARIANT_THRESHOLD: f64 = 0.98;

/// Finds the fastest plan within the budgets; budgets below the minimum are refused before the search. The minimum of a
/// run that keeps the choices of its checkpoint is an estimate from above: its plan may have been found by the search
/// for the fastest.
pub(crate) fn plan_run(request: &Request<'_>) -> Result<RunPlan> {
    let budgets = request.machine.budgets(request.budget);
    refuse_planning_beyond_memory(request)?;
    if searches_at_once(request) == 1 {
        fitting_minimum(request, budgets)?;
        return fastest_plan(request, budgets, || Ok(()));
    }
    let _kept = KeepFreedMemory::new();
    std::thread::scope(|scope| {
        let minimum = std::thread::Builder::new().spawn_scoped(scope, || fitting_minimum(request, budgets));
        let wait = move || match minimum {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => fitting_minimum(request, budgets),
        };
        // Where the run fits as it is, its minimum does, and the search for the fastest plan is not in vain.
        if candidate(request, ways(request, request.allow)[0], Some(budgets))?.fits(budgets) {
            return fastest_plan(request, budgets, wait);
        }
        wait()?;
        fastest_plan(request, budgets, || Ok(()))
    })
}

/// Searches for the minimum of the run; an error if it does not fit the budgets.
fn fitting_minimum(request: &Request<'_>, budgets: Budgets) -> Result<()> {
    let minimum = minimum_of(request, budgets)?;
    give_back_memory_of_phase();
    // A resumed run may fit all the same.
    if minimum.fits(budgets) || request.spec.numerics.is_some() {
        return Ok(());
    }
    Err(Error::Infeasible(Box::new(infeasible(request, budgets, minimum)?)))
}

/// The fastest plan within the budgets. The minimum is known after `wait`.
fn fastest_plan(request: &Request<'_>, budgets: Budgets, wait: impl FnOnce() -> Result<()>) -> Result<RunPlan> {
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
        wait()?;
        let minimum = minimum_of(request, budgets)?;
        if !minimum.fits(budgets) {
            return Err(Error::Infeasible(Box::new(infeasible(request, budgets, minimum)?)));
        }
        // The search for the fastest plan found none: the minimum is one.
        let request = varied(request, minimum.variant)?;
        return described(&request, run_plan(&request, budgets, minimum.clone(), minimum)?);
    };
    let candidate = if on_the_way.iter().any(|whole| candidate.untouched(whole)) { economical(&request, candidate)? } else { candidate };
    // The plan states their exact sizes.
    let tightened = |whole: Candidate| {
        let variant = whole.variant;
        whole.tightened(&varied(&request, variant)?)
    };
    let on_the_way = on_the_way.into_iter().map(tightened).collect::<Result<Vec<_>>>()?;
    give_back_memory_of_phase();
    let strategies = strategies(&request, &candidate, on_the_way)?;
    wait()?;
    let minimum = minimum_of(&request, budgets)?;
    let found = (!minimum.fits(budgets)).then(|| candidate.clone());
    described(&request, RunPlan { strategies, ..run_plan(&request, budgets, candidate, found.as_ref().unwrap_or(minimum))? })
}

/// The plan of the minimum budget, whatever the budgets of the run are. A minimum that a refusal found is not searched
/// again.
pub(crate) fn smallest(request: &Request<'_>, known: Option<&(Numerics, CheckedPlan)>) -> Result<RunPlan> {
    let budgets = request.machine.budgets(request.budget);
    refuse_planning_beyond_memory(request)?;
    if let Some((choices, memory)) = known {
        let _ = request.minimum.set(recalled(request, choices, memory)?);
    }
    smallest_plan(request, budgets, minimum_of(request, budgets)?)
}

/// The host and device memory of micro-batches without recomputation, splitting or offload, and the predicted seconds
/// per batch.
pub(crate) fn plain(request: &Request<'_>, micro_batch: usize) -> Result<(Bytes, Bytes, f64)> {
    refuse_planning_beyond_memory(request)?;
    let plain = candidate(request, micro_batch, None)?;
    Ok((plain.least, plain.device_total(), plain.seconds(request)))
}

/// What each strategy saved and cost, in order: fewer bits, micro-batches, then splitting, recomputation and
/// offloading.
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

/// The largest micro-batch of one variant without other strategies, and its fastest plan within the budgets: with its
/// largest layers split, or with tensors offloaded, where that is allowed and faster.
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
    let without = found.as_ref().map(|found| found.seconds(request) / whole.seconds(request));
    if offload::considered(request, without) {
        let mut elsewhere = offload::fastest(request, &too_large, budgets)?;
        if elsewhere.is_none() && !too_large_cut.is_empty() {
            elsewhere = offload::fastest(&in_pieces, &too_large_cut, budgets)?;
        }
        found = match (found, elsewhere) {
            (Some(here), Some(elsewhere)) if elsewhere.seconds(request) < OFFLOAD_PREFERENCE * here.seconds(request) => Some(elsewhere),
            (here, elsewhere) => here.or(elsewhere),
        };
    }
    Ok((whole, found))
}

/// The largest micro-batch without other strategies; the fastest plan without offloading, with layers split as the
/// request says; and the micro-batches that do not fit as they are. Only their sizes are returned: planning itself has
/// to stay within the budget.
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

/// Offloading must be predicted to take at most this part of the time without it: on a device with memory of its own,
/// sums and small updates of a step with copies take a launch each; a disk may be busy.
const OFFLOAD_PREFERENCE: f64 = 0.92;

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
