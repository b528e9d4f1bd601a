//! What every byte buys: the predicted time of a step under lower and lower budgets.

use super::choose::plan_run;
use super::{Request, RunPlan};
use crate::error::{Error, Result};
use plimsoll_core::{Budget, Bytes};

/// The budgets of a sweep, in hundredths of what a run takes that nothing is asked of.
const SHARES: [u64; 14] = [100, 90, 80, 70, 60, 50, 45, 40, 35, 30, 25, 20, 15, 10];

/// A line, and the fastest plan that stays under it.
#[derive(Clone, Debug)]
pub struct SweepPoint {
    /// The line.
    pub line: Bytes,
    /// The plan.
    pub plan: RunPlan,
}

/// Budgets from what a run takes freely down to the least that works.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Whether the device's own memory was made scarce; else it was the host's.
    pub on_device: bool,
    /// The budgets that work, highest first.
    pub points: Vec<SweepPoint>,
    /// The first line that did not, and the least the planner then found to work.
    pub refused: Option<(Bytes, Bytes)>,
}

/// Plans the run again under lower and lower budgets, until one is refused.
pub(super) fn sweep(request: &Request<'_>) -> Result<Sweep> {
    let free = plan_run(request)?;
    let on_device = free.device_memory.is_some();
    let all = free.device_memory.as_ref().map_or_else(|| free.total(), |device| device.total());
    let mut sweep = Sweep { on_device, points: Vec::new(), refused: None };
    for share in SHARES {
        match planned(request, on_device, Bytes(all.0 / 100 * share + all.0 % 100)) {
            Ok(point) => sweep.points.push(point),
            Err(Error::Infeasible(refusal)) => {
                sweep.refused = Some((refusal.budget, refusal.minimum));
                // The end of the curve: the least that works, if the line that was refused asked for less than that.
                match planned(request, on_device, refusal.minimum) {
                    Ok(point) if sweep.points.last().is_some_and(|last| point.line < last.line) => sweep.points.push(point),
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

fn planned(request: &Request<'_>, on_device: bool, line: Bytes) -> Result<SweepPoint> {
    let budget = match on_device {
        true => Budget { device: Some(line), ..request.budget },
        false => Budget { host: Some(line), ..request.budget },
    };
    Ok(SweepPoint { line, plan: plan_run(&Request { budget, ..request.clone() })? })
}
