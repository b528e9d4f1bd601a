//! Replanning: for less memory than was planned for, and for a fit that continues in allocated memory.

use super::candidate::{checkpoint_owner, history_owner, model_file_owner};
use super::page_tables::{beside_page_tables, page_tables, state_page_tables};
use super::pipelines::pipelines;
use super::statement::sorted;
use super::{DataSummary, Machine, RunPlan};
use crate::error::{Error, Result};
use crate::infeasible::{HOST, Infeasible};
use crate::spec::{Count, RunSpec};
use plimsoll_core::budget::Owner;
use plimsoll_core::{Budget, Bytes};

impl RunPlan {
    /// If less memory is free than this plan takes, or the machine takes more of it than the plan assumes: the budget
    /// to replan for, and the reason as text.
    pub(crate) fn shortage(&self, spec: &RunSpec, machine: &Machine) -> Option<(Budget, String)> {
        let host = (self.total() > machine.free_host).then_some(machine.free_host);
        let planned = self.device_memory.as_ref().map(|device| device.total());
        let device = planned.zip(machine.free_device).filter(|(planned, free)| planned > free);
        let reason = |planned: Bytes, space: &str, free: Bytes| format!("the plan takes {planned} of {space}, but only {free} is free now");
        let reasons: Vec<String> = host
            .map(|free| reason(self.total(), HOST, free))
            .into_iter()
            .chain(device.map(|(planned, free)| reason(planned, &format!("memory of {}", self.device.0), free)))
            .chain(self.broken_assumptions(machine))
            .collect();
        if reasons.is_empty() {
            return None;
        }
        let budget = Budget { host: host.or(spec.budget.host), device: device.map(|(_, free)| free).or(spec.budget.device) };
        Some((budget, reasons.join("; ")))
    }

    /// The assumptions of the plan that this machine exceeds.
    fn broken_assumptions(&self, machine: &Machine) -> impl Iterator<Item = String> {
        let (assumed, runtime) = (&self.assumptions, machine.device.footprint(&self.memory).runtime);
        let name = machine.device.capabilities().runtime.map_or("device runtime", |runtime| runtime.name);
        let exceeds = |what: &str, now: Bytes, assumed: Bytes| {
            (now > assumed).then(|| format!("the plan assumes {assumed} for the {what}, which takes {now} now"))
        };
        [
            exceeds("process", machine.process, assumed.process),
            exceeds("stacks of the threads", machine.thread_stacks, assumed.thread_stacks),
            exceeds("communication between ranks", machine.communication, assumed.communication),
            exceeds("communication between ranks on the device", machine.communication_on_device, assumed.communication_on_device),
            exceeds(&format!("{name} on the host"), runtime.host, assumed.runtime.host),
            exceeds(&format!("{name} on the device"), runtime.device, assumed.runtime.device),
        ]
        .into_iter()
        .flatten()
    }

    /// The same run planned for a smaller budget; records the previous budget.
    pub(crate) fn replanned(&self, spec: &RunSpec, budget: Budget, machine: &Machine, data: &DataSummary) -> Result<RunPlan> {
        let mut plan = RunSpec { budget, ..spec.clone() }.plan(machine, data)?;
        plan.requested_host_budget = (budget.host != spec.budget.host).then_some(self.host_budget);
        if let (true, Some(now), Some(before)) = (budget.device != spec.budget.device, &mut plan.device_memory, &self.device_memory) {
            now.requested = Some(before.budget);
        }
        Ok(plan)
    }

    /// Checks that the plan covers a run. A plan is for one fit: validation and checkpoints take memory too.
    pub(crate) fn check_covers(&self, spec: &RunSpec) -> Result<()> {
        let wrong = |what: &str| Err(Error::Config(format!("this plan {what}; plan with the same `Fit` that runs: `trainer.plan(&fit)`")));
        if self.count != Count::Everything {
            return wrong("counts weights and activations only, and cannot run");
        }
        if self.validation.is_some() != spec.fit.validation.is_some() {
            return wrong(if self.validation.is_some() {
                "includes validation, which the fit has not"
            } else {
                "does not cover the fit's validation"
            });
        }
        if self.owned_by(&Owner::Checkpoint) != checkpoint_owner(spec, self.memory.states.len()).map_or(Bytes::ZERO, |(_, size)| size) {
            return wrong("does not cover the checkpoints or initial weights of the fit");
        }
        if self.owned_by(&Owner::ModelFile) != model_file_owner(spec).map_or(Bytes::ZERO, |(_, size)| size) {
            return wrong("does not cover the file of the fit's initial weights");
        }
        if self.owned_by(&Owner::History) < history_owner(spec, &self.interface).map_or(Bytes::ZERO, |(_, size)| size) {
            return wrong("does not cover the epochs of the fit");
        }
        if self.model != spec.model.title() {
            return wrong(&format!("is one of `{}`, and this is `{}`", self.model, spec.model.title()));
        }
        Ok(())
    }

    /// Host memory of one owner.
    pub(crate) fn owned_by(&self, wanted: &Owner) -> Bytes {
        self.owners.iter().filter(|(owner, _)| owner == wanted).map(|(_, size)| *size).sum()
    }

    /// Checks that another plan runs in the memory of this one.
    pub(crate) fn check_same_memory(&self, other: &RunPlan) -> Result<()> {
        if self.digest() == other.digest() && self.feed_rows == other.feed_rows {
            return Ok(());
        }
        Err(Error::Config("the trainer has allocated the memory of another plan; replan with `trainer.plan(&fit)`".to_string()))
    }

    /// The plan of a fit that continues in the memory of this plan: programs and arena are unchanged, the pipelines
    /// share the rest.
    pub(crate) fn continued(&self, spec: &RunSpec, data: &DataSummary) -> Result<RunPlan> {
        let planned_again = [Owner::Pipeline, Owner::Checkpoint, Owner::ModelFile, Owner::History, Owner::Planning, Owner::PageTables];
        let stays = |(owner, _): &&(Owner, Bytes)| !planned_again.contains(owner);
        let mut owners: Vec<(Owner, Bytes)> = self.owners.iter().filter(stays).cloned().collect();
        owners.extend(checkpoint_owner(spec, self.memory.states.len()));
        owners.extend(model_file_owner(spec));
        owners.extend(history_owner(spec, &self.interface));
        let fixed: Bytes = owners.iter().map(|(_, size)| *size).sum();
        let least = pipelines(data, self.feed_rows, None)?.minimum;
        let minimum = fixed + least + page_tables(fixed + least);
        if minimum > self.host_budget {
            return Err(Error::Infeasible(Box::new(Infeasible {
                space: HOST.to_string(),
                budget: self.host_budget,
                minimum,
                owners: sorted(&owners),
                micro_batch: self.micro_batch,
                batch: self.rank_batch,
                micro_batch_asked: true,
                ranks: self.ranks,
                fits_on: Vec::new(),
                allow: self.allow,
                minimum_with: Vec::new(),
                plan_ms: 0.0,
                resumed_with: None,
                smallest: None,
            })));
        }
        let left = least + beside_page_tables(self.host_budget - minimum);
        let pipelines = pipelines(data, self.feed_rows, Some(left))?;
        owners.push((Owner::Pipeline, pipelines.total()));
        state_page_tables(&mut owners);
        Ok(RunPlan {
            owners: sorted(&owners),
            pipeline_stages: pipelines.stages,
            pipeline: pipelines.training,
            validation: pipelines.validation,
            minimum: self.minimum.max(minimum),
            ..self.clone()
        })
    }
}
