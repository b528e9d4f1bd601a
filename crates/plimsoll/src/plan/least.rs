//! The minimum budget, and the error for a budget below it.

use super::candidate::{Candidate, candidate};
use super::choose::{owners, sorted, variants, varied, ways, within};
use super::pipelines::pipelines;
use super::{Budgets, Request, offload};
use crate::allow::{Allow, Permission};
use crate::error::Result;
use crate::infeasible::{HOST, Infeasible};
use plimsoll_core::Bytes;
use plimsoll_core::plan::recompute::Effort;

/// The search effort for hints.
const HINT_EFFORT: Effort = Effort(2_000_000);

/// The search effort for the minimum.
pub(super) const MINIMUM_EFFORT: Effort = Effort(20_000_000);

/// Steps of the bisection between the smallest arena found and half of it.
const HALVINGS: usize = 3;

/// The smallest plan with some permissions. Of the allowed variants, the one with the fewest bits is the smallest; of the micro-batches, the
/// smallest or the whole batch, which needs no accumulated gradients.
pub(super) fn smallest(request: &Request<'_>, budgets: Budgets, allow: Allow) -> Result<Candidate> {
    let mut ways = ways(request, allow);
    ways.drain(1..ways.len().max(2) - 1);
    let fewest = variants(request, allow).pop().unwrap_or_default();
    let request = &Request { allow, ..varied(request, fewest)? };
    let mut best: Option<Candidate> = None;
    // Offloaded tensors are on the host: as long as they fit there, only the device counts.
    let size = |candidate: &Candidate| match candidate.on_device {
        Some(_) => (candidate.least.saturating_sub(budgets.host), candidate.device_total(), candidate.least),
        None => (Bytes::ZERO, Bytes::ZERO, candidate.least),
    };
    let keep = |found: Candidate, best: &mut Option<Candidate>| {
        if best.as_ref().is_none_or(|best| size(&found) < size(best)) {
            *best = Some(found);
        }
    };
    for rows in &ways {
        let plain = candidate(request, *rows, Some(Budgets::NONE))?;
        keep(if allow.has(Permission::Recompute) { least_again(request, plain)? } else { plain.tightened(request)? }, &mut best);
    }
    if offload::considered(request, false) {
        let mut ends: Vec<usize> = best.iter().map(|best| best.micro_batch).chain(ways.last().copied()).collect();
        ends.dedup();
        for rows in ends {
            offload::smallest(request, allow, &candidate(request, rows, Some(Budgets::NONE))?)?
                .into_iter()
                .for_each(|found| keep(found, &mut best));
        }
    }
    Ok(best.expect("there is always the whole batch to try"))
}

/// The same micro-batch in the smallest arena that recomputation allows.
pub(super) fn least_again(request: &Request<'_>, plain: Candidate) -> Result<Candidate> {
    // With an impossible limit the search reports the smallest arena it found; with that as limit it finds the plan.
    let mut limit = match within(request, &plain, Bytes::ZERO, request.effort, None)? {
        Err(Some(least)) => least,
        _ => return plain.tightened(request),
    };
    for _ in 0..8 {
        match within(request, &plain, limit, request.effort, None)? {
            Ok(found) if found.least + found.device_total() < plain.least + plain.device_total() => {
                return if found.memory.backing > Bytes::ZERO { with_less_loaded(request, &plain, found) } else { Ok(found) };
            }
            Err(Some(least)) if least < plain.memory.arena => limit = least.max(Bytes(limit.0 + limit.0 / 64)),
            _ => break,
        }
    }
    plain.tightened(request)
}

/// The same in a smaller arena, found by bisection: tensors that are loaded late are rarely found by small steps.
fn with_less_loaded(request: &Request<'_>, plain: &Candidate, mut found: Candidate) -> Result<Candidate> {
    let mut low = Bytes(found.memory.arena.0 / 2);
    for _ in 0..HALVINGS {
        let middle = Bytes(low.0 + (found.memory.arena.0 - low.0) / 2);
        match within(request, plain, middle, request.effort, None)? {
            Ok(better) if better.least + better.device_total() < found.least + found.device_total() => found = better,
            _ => low = middle,
        }
    }
    Ok(found)
}

/// Why there is no plan, and what would work.
pub(super) fn infeasible(request: &Request<'_>, budgets: Budgets, least: Candidate) -> Result<Infeasible> {
    let pipeline = pipelines(request.data, least.feed_rows, None)?;
    let on_host = least.least > budgets.host || least.on_device.is_none();
    let own = |candidate: &Candidate| if on_host { candidate.least } else { candidate.device_total() };
    let mut minimum_with = Vec::new();
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
    for allow in more {
        // Skip permissions that open no new plan.
        let opens =
            variants(request, allow).len() > variants(request, request.allow).len() || ways(request, allow) != ways(request, request.allow);
        let newly = |permission: Permission| allow.has(permission) && !request.allow.has(permission);
        let opens = opens || newly(Permission::Recompute) || newly(Permission::Offload) || newly(Permission::Split);
        // Skip 8-bit state where mixed precision alone opens as many variants.
        let mixed = request.allow.with(Permission::MixedPrecision);
        let opens = opens && (!newly(Permission::State8bit) || variants(request, allow).len() > variants(request, mixed).len());
        if opens && !minimum_with.iter().any(|(known, _)| *known == allow) {
            // A hint need not be the exact minimum.
            let request = Request { split: allow.has(Permission::Split), effort: HINT_EFFORT, ..request.clone() };
            let with = own(&smallest(&request, budgets, allow)?);
            if with < own(&least) {
                minimum_with.push((allow, with));
            }
        }
    }
    let (space, line, owners) = match &least.on_device {
        Some(owners) if !on_host => (format!("memory of {}", request.device().name()), budgets.device, sorted(owners)),
        _ => (HOST.to_string(), budgets.host, owners(request, &least, &pipeline)),
    };
    Ok(Infeasible {
        space,
        budget: line,
        minimum: own(&least),
        owners,
        micro_batch: least.micro_batch,
        batch: request.batch,
        micro_batch_asked: request.micro_batch.is_some(),
        allow: request.allow,
        minimum_with,
        plan_ms: 0.0,
    })
}
