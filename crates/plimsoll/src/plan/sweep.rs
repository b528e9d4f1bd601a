//! Step time against memory: the run planned for smaller and smaller budgets.

use super::choose::plan_run;
use super::{Request, RunPlan};
use crate::error::{Error, Result};
use plimsoll_core::{Budget, Bytes};

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

/// Plans for smaller and smaller budgets, until one is infeasible.
pub(super) fn sweep(request: &Request<'_>) -> Result<Sweep> {
    let free = plan_run(request)?;
    let on_device = free.device_memory.is_some();
    let all = free.device_memory.as_ref().map_or_else(|| free.total(), |device| device.total());
    let mut sweep = Sweep { on_device, points: Vec::new(), infeasible: None };
    for share in SHARES {
        match planned(request, on_device, Bytes(all.0 / 100 * share + all.0 % 100)) {
            Ok(point) => sweep.points.push(point),
            Err(Error::Infeasible(refusal)) => {
                sweep.infeasible = Some((refusal.budget, refusal.minimum));
                // The end of the curve is the minimum, if it is below the last budget that works.
                match planned(request, on_device, refusal.minimum) {
                    Ok(point) if sweep.points.last().is_some_and(|last| point.budget < last.budget) => sweep.points.push(point),
                    Ok(_) | Err(Error::Infeasible(_)) => {}
                    Err(error) => return Err(error),
                }
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(sweep)
}

fn planned(request: &Request<'_>, on_device: bool, bytes: Bytes) -> Result<SweepPoint> {
    let budget = match on_device {
        true => Budget { device: Some(bytes), ..request.budget },
        false => Budget { host: Some(bytes), ..request.budget },
    };
    Ok(SweepPoint { budget: bytes, plan: plan_run(&Request { budget, ..request.clone() })? })
}
