//! What a plan states of a candidate: owners, minimum, strategies in use, predicted time.

use super::alternatives::ways;
use super::candidate::{Candidate, loads};
use super::page_tables::{beside_page_tables, state_page_tables};
use super::pipelines::{Pipelines, pipelines};
use super::{Budgets, DeviceBudget, Request, RunPlan};
use crate::allow::Permission;
use crate::error::Result;
use crate::ranks::Shard;
use crate::spec::Count;
use plimsoll_core::Bytes;
use plimsoll_core::budget::Owner;
use std::sync::Arc;

/// The plan of a candidate within the budgets, with the minimum of the run.
pub(super) fn run_plan(request: &Request<'_>, budgets: Budgets, candidate: Candidate, minimum: &Candidate) -> Result<RunPlan> {
    let fixed: Bytes = candidate.fixed.iter().map(|(_, size)| *size).sum();
    let left = match request.spec.count {
        Count::Everything => {
            let least = pipelines(request.data, candidate.feed_rows, None)?.minimum;
            Some(least + beside_page_tables(budgets.host - fixed - least))
        }
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
    }
    let local = pieces > 1 || (request.spec.ranks > 1 && !request.programs.synchronized);
    if local && request.programs.batch_statistics {
        used.push(Permission::MicrobatchBatchnorm);
    }
    used.extend(candidate.variant.permissions());
    let sums_reordered = pieces > 1 && !request.programs.batch_statistics && !request.programs.accumulates_exactly()?;
    Ok(RunPlan {
        model: request.spec.model.title().to_string(),
        device: (request.device().name(), request.device().description()),
        batch: match request.spec.ranks {
            1 => request.batch,
            ranks => (request.batch * ranks).min(request.data.training.batch_rows()?),
        },
        ranks: request.spec.ranks,
        shard: if request.programs.sharding.is_some() { request.spec.parallel.shard } else { Shard::None },
        rank_batch: request.batch,
        micro_batch: candidate.micro_batch,
        programs_per_role: loads(request, candidate.micro_batch).most(),
        synchronized: request.programs.synchronized,
        reproducible: request.spec.fixed_micro_batches().is_some(),
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

/// Everything of a run on the host, by owner.
pub(super) fn owners(request: &Request<'_>, candidate: &Candidate, pipeline: &Pipelines) -> Vec<(Owner, Bytes)> {
    let mut owners = candidate.fixed.clone();
    if request.spec.count == Count::Everything {
        owners.push((Owner::Pipeline, pipeline.total()));
        state_page_tables(&mut owners);
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
