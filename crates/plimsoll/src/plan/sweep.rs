//! Step time against memory: the run planned for smaller and smaller budgets.

use super::choose::plan_run;
use super::{Request, RunPlan};
use crate::error::Result;
use plimsoll_core::plan::recompute::Effort;
use plimsoll_core::{Budget, Bytes};
use serde_json::{Value, json};

/// The budgets of a sweep, in percent of the peak without a budget.
const SHARES: [u64; 14] = [100, 90, 80, 70, 60, 50, 45, 40, 35, 30, 25, 20, 15, 10];

/// A budget, and the fastest plan within it.
#[derive(Clone, Debug)]
pub struct SweepPoint {
    /// The budget.
    pub budget: Bytes,
    /// The plan.
    pub plan: RunPlan,
}

/// Budgets from the peak without one down to the minimum.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Whether the device budget was varied; else it was the host's.
    pub on_device: bool,
    /// The budgets that work, largest first.
    pub points: Vec<SweepPoint>,
    /// The first budget that does not work, and the minimum that the planner found.
    pub infeasible: Option<(Bytes, Bytes)>,
}

impl Sweep {
    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        let point = |point: &SweepPoint| {
            json!({
                "budget_bytes": point.budget.0,
                "predicted_step_s": point.plan.predicted_s,
                "recompute_flops_ratio": point.plan.recomputation.flops_ratio(),
                "micro_batch": point.plan.micro_batch,
                "arena_bytes": point.plan.memory.arena.0,
                "used": point.plan.used.iter().map(|permission| permission.name()).collect::<Vec<_>>(),
            })
        };
        let refused = self.infeasible.map(|(budget, least)| json!({ "budget_bytes": budget.0, "least_bytes": least.0 }));
        let space = if self.on_device { "device" } else { "host" };
        json!({ "space": space, "points": self.points.iter().map(point).collect::<Vec<_>>(), "refused": refused })
    }
}

/// The search effort for one budget of a sweep.
const EFFORT: Effort = Effort(4_000_000);

/// Plans for smaller and smaller budgets, down to the minimum.
pub(super) fn sweep(request: &Request<'_>, progress: &mut dyn FnMut(usize, usize)) -> Result<Sweep> {
    let request = &Request { effort: EFFORT, ..request.clone() };
    let free = plan_run(request)?;
    let on_device = free.device_memory.is_some();
    let all = free.device_memory.as_ref().map_or_else(|| free.total(), |device| device.total());
    let minimum = free.device_memory.as_ref().map_or(free.minimum, |device| device.minimum);
    let shares = SHARES.map(|share| Bytes(all.0 / 100 * share + all.0 % 100));
    // The end of the curve is the minimum.
    let budgets: Vec<Bytes> = shares.into_iter().filter(|budget| *budget > minimum).chain([minimum]).collect();
    let infeasible = shares.into_iter().find(|budget| *budget < minimum).map(|budget| (budget, minimum));
    let mut points = Vec::new();
    for (done, budget) in budgets.iter().enumerate() {
        progress(done, budgets.len());
        points.push(planned(request, on_device, *budget)?);
    }
    progress(budgets.len(), budgets.len());
    Ok(Sweep { on_device, points, infeasible })
}

fn planned(request: &Request<'_>, on_device: bool, bytes: Bytes) -> Result<SweepPoint> {
    let budget = match on_device {
        true => Budget { device: Some(bytes), ..request.budget },
        false => Budget { host: Some(bytes), ..request.budget },
    };
    Ok(SweepPoint { budget: bytes, plan: plan_run(&Request { budget, ..request.clone() })? })
}
