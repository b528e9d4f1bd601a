//! What a plan says about the choice and the time of its steps.

use super::RunPlan;
use crate::allow::Permission;
use crate::cost::{CostTable, STEP, StepCosts};
use plimsoll_core::Bytes;
use plimsoll_core::step::Role;
use std::collections::BTreeMap;

impl RunPlan {
    /// Whether other rates could have led to another plan: strategies were needed to fit the budget, and the one with
    /// the shortest predicted step was chosen. A run that fits as specified is not changed, and micro-batches alone are
    /// no choice: the largest that fit, or those that were given.
    pub fn depends_on_rates(&self) -> bool {
        let micro_batches = |used: &Permission| matches!(used, Permission::Microbatch | Permission::MicrobatchBatchnorm);
        let compared = [Permission::Recompute, Permission::Split, Permission::Offload, Permission::MixedPrecision, Permission::State8bit];
        let settled = self.micro_batch_given || !compared.iter().any(|other| self.allow.has(*other));
        !(self.used.is_empty() || settled && self.used.iter().all(micro_batches))
    }

    /// Predicted seconds of a whole batch by class of nodes, to compare with what is measured; none if tensors are
    /// offloaded, since copies overlap with the computation.
    pub fn step_costs(&self, costs: &CostTable) -> Option<StepCosts> {
        if self.memory.backing > Bytes::ZERO {
            return None;
        }
        let mut classes: BTreeMap<String, f64> = BTreeMap::new();
        let mut add = |role: Role, times: usize| {
            let Some(program) = self.memory.program(role).filter(|_| times > 0) else { return };
            for id in &program.order {
                let (class, seconds) = costs.uncorrected(&program.graph, program.graph.node(*id), self.micro_batch);
                *classes.entry(class).or_default() += times as f64 * seconds;
            }
            if costs.uncorrected_start() > 0.0 {
                *classes.entry(STEP.to_string()).or_default() += times as f64 * costs.uncorrected_start();
            }
        };
        match self.accumulation_steps() {
            1 => add(Role::Step, 1),
            pieces => {
                add(Role::First, 1);
                add(Role::Middle, pieces - 2);
                add(Role::Last, 1);
            }
        }
        let name = format!("{} · batch {} · {}", self.model, self.batch, self.precision.name());
        let classes = classes.into_iter().map(|(class, seconds)| (class, seconds as f32)).collect();
        Some(StepCosts { name, classes, predicted_s: self.predicted_s })
    }
}
