//! Refusals: a run or a pipeline that does not fit its memory budget, with the minimum that works.

use crate::allow::Allow;
use crate::numerics::Numerics;
use crate::ranks::Shard;
use plimsoll_core::Bytes;
use plimsoll_core::budget::Owner;
use plimsoll_core::plan::CheckedPlan;
use serde_json::{Map, Value, json};
use std::fmt;

/// The name of the host's memory in refusals.
pub(crate) const HOST: &str = "host memory";

/// A run that does not fit its memory budget: the minimum it needs, its largest owners, and what would help.
#[derive(Clone, Debug)]
pub struct Infeasible {
    /// Which memory: `host memory`, or `memory of cuda:0`.
    pub space: String,
    /// The budget.
    pub budget: Bytes,
    /// The smallest budget that works.
    pub minimum: Bytes,
    /// Bytes by owner at the minimum, largest first.
    pub owners: Vec<(Owner, Bytes)>,
    /// The micro-batch of the smallest plan.
    pub micro_batch: usize,
    /// The batch.
    pub batch: usize,
    /// Whether the user chose the micro-batch.
    pub micro_batch_asked: bool,
    /// Ranks that train together, each with this budget.
    pub ranks: usize,
    /// Other ranks that the run fits on within it, where they are planned for without being there.
    pub fits_on: Vec<FittingRanks>,
    /// What was allowed.
    pub allow: Allow,
    /// The minimum with more permissions, where that is smaller.
    pub minimum_with: Vec<(Allow, Bytes)>,
    /// Milliseconds planning took.
    pub plan_ms: f64,
    /// The choices of a checkpoint that a resumed run keeps, so that its results do not change.
    pub resumed_with: Option<Numerics>,
    /// The smallest plan itself: its choices and its memory.
    pub smallest: Option<(Numerics, CheckedPlan)>,
}

/// Ranks that a run fits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FittingRanks {
    /// Their number.
    pub ranks: usize,
    /// What is sharded over them.
    pub shard: Shard,
}

impl std::error::Error for Infeasible {}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owners: Vec<String> = self.owners.iter().take(4).map(|(owner, size)| format!("{owner} {size}")).collect();
        let resumed = match &self.resumed_with {
            Some(kept) => format!("; the checkpoint was trained with {kept}, which a resumed run keeps"),
            None => String::new(),
        };
        let relax = match self.minimum_with.iter().min_by_key(|(_, minimum)| *minimum) {
            // Rounded to the same number as a budget that is too small, it would mislead.
            Some((allow, minimum)) if minimum.to_string() == self.budget.to_string() => {
                format!("; {minimum} ({} bytes) is enough with --allow {allow}", minimum.0)
            }
            Some((allow, minimum)) => format!("; {minimum} is enough with --allow {allow}"),
            None if self.micro_batch_asked && self.micro_batch > 1 && self.resumed_with.is_none() => {
                "; a smaller micro-batch may need less".to_string()
            }
            None => String::new(),
        };
        let runtime = self.owners.iter().find_map(|(owner, size)| match owner {
            Owner::DeviceRuntime(runtime) if *size > self.budget => Some((runtime.parts, size)),
            _ => None,
        });
        let runtime = match runtime {
            Some((parts, size)) if self.space == HOST => {
                format!(
                    "; {parts} alone take {size} of the host's memory for any run: \
                     give it --host-memory {} or more, or compute with --device cpu",
                    self.minimum.0
                )
            }
            _ => String::new(),
        };
        let on_ranks = if self.ranks > 1 { format!(" on each of {} ranks", self.ranks) } else { String::new() };
        let others: Vec<String> = self.fits_on.iter().map(|of| of.beside(self.ranks)).collect();
        let others = if others.is_empty() { String::new() } else { format!(", but does on {}", others.join(", or on ")) };
        // The exact number of bytes works as a budget; the rounded one may fall just short.
        write!(
            f,
            "this run does not fit into {} of {}{on_ranks}{others}; the minimum budget is {} ({} bytes), with micro-batches of {}: {}{relax}{runtime}{resumed}",
            self.budget,
            self.space,
            self.minimum,
            self.minimum.0,
            self.micro_batch,
            owners.join(", ")
        )
    }
}

impl FittingRanks {
    /// In words, beside a number of ranks that the run does not fit on.
    fn beside(self, ranks: usize) -> String {
        match self.ranks == ranks {
            true => format!("{ranks} with `parallel.shard = \"{}\"`", self.shard.name()),
            false => format!("{} ranks", self.ranks),
        }
    }
}

impl Infeasible {
    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        let on_host = self.space == HOST;
        json!({
            "feasible": false,
            "error": self.to_string(),
            "batch": self.batch,
            "space": self.space,
            "host_budget_bytes": on_host.then_some(self.budget.0),
            "device_budget_bytes": (!on_host).then_some(self.budget.0),
            "min_bytes": self.minimum.0,
            "micro_batch": self.micro_batch,
            "accumulation_steps": self.batch.div_ceil(self.micro_batch),
            "ranks": self.ranks,
            "fits_on": self.fits_on.iter().map(|of| json!({ "ranks": of.ranks, "shard": of.shard.name() })).collect::<Vec<_>>(),
            "allow": self.allow.to_string(),
            "min_bytes_with": Value::Object(self.minimum_with.iter().map(|(allow, minimum)| (allow.to_string(), json!(minimum.0))).collect()),
            "peak_bytes": { "host": on_host.then_some(self.minimum.0), "device": if on_host { 0 } else { self.minimum.0 } },
            "by_owner": bytes_by_owner(&self.owners),
            "plan_ms": self.plan_ms,
        })
    }
}

/// A run that cannot even be planned in the free memory, or in the budget. Reported before planning takes it.
#[derive(Clone, Debug)]
pub struct PlanningInfeasible {
    /// Free host memory.
    pub free: Bytes,
    /// The host memory budget, if planning would exceed it; otherwise it exceeds the free memory.
    pub budget: Option<Bytes>,
    /// Host memory of planning, the process included.
    pub planning: Bytes,
}

impl std::error::Error for PlanningInfeasible {}

impl fmt::Display for PlanningInfeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (planning, bytes) = (self.planning, self.planning.0);
        write!(f, "planning this run takes {planning} of host memory ({bytes} bytes), ")?;
        match self.budget {
            Some(budget) => write!(
                f,
                "more than the budget of {budget}; the run itself needs at least as much. \
                 Set a larger budget: from {planning} on, `plimsoll plan` states the minimum"
            ),
            None => write!(
                f,
                "and only {} is free; the run itself may need more. \
                 Plan it where more memory is free: `plimsoll plan` states the minimum budget",
                self.free
            ),
        }
    }
}

impl PlanningInfeasible {
    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "feasible": false,
            "error": self.to_string(),
            "free_host_bytes": self.free.0,
            "host_budget_bytes": self.budget.map(|budget| budget.0),
            "planning_bytes": self.planning.0,
        })
    }
}

/// A pipeline that does not fit its memory budget, with what runs beside it.
#[derive(Clone, Debug)]
pub struct PipelineInfeasible {
    /// What does not fit: `this pipeline`, or what reads it.
    pub what: String,
    /// The budget.
    pub budget: Bytes,
    /// The smallest budget that works.
    pub minimum: Bytes,
    /// Bytes by owner at the minimum.
    pub owners: Vec<(Owner, Bytes)>,
}

impl std::error::Error for PipelineInfeasible {}

impl fmt::Display for PipelineInfeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owners: Vec<String> = self.owners.iter().map(|(owner, size)| format!("{owner} {size}")).collect();
        write!(
            f,
            "{} does not fit into {} of host memory; the minimum budget is {} ({} bytes): {}",
            self.what,
            self.budget,
            self.minimum,
            self.minimum.0,
            owners.join(", ")
        )
    }
}

impl PipelineInfeasible {
    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "feasible": false,
            "error": self.to_string(),
            "host_budget_bytes": self.budget.0,
            "min_bytes": self.minimum.0,
            "by_owner": bytes_by_owner(&self.owners),
        })
    }
}

fn bytes_by_owner(owners: &[(Owner, Bytes)]) -> Value {
    Value::Object(owners.iter().map(|(name, size)| (name.to_string(), json!(size.0))).collect::<Map<_, _>>())
}
