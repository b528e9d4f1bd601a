//! A refused budget: what holds the peak, and the cheapest changes that lower it, each planned to the byte.

use crate::allow::Permission;
use crate::error::{Error, Result};
use crate::infeasible::Infeasible;
use crate::plan::RunPlan;
use crate::spec::RunSpec;
use crate::trainer::Trainer;
use plimsoll_core::{Budget, Bytes};
use serde_json::{Value, json};

/// A change that lowers the peak, and what it leads to.
#[derive(Clone, Debug)]
pub struct Change {
    /// What to change, in words.
    pub what: String,
    /// The flag that does it.
    pub flag: String,
    /// The new peak: the smallest budget that works with it.
    pub peak: Bytes,
    /// Whether the budget that was refused is enough then.
    pub fits: bool,
    /// Whether results stay those of the run as it is described.
    pub same_results: bool,
    /// Predicted seconds per row with it, where it was planned.
    pub seconds_per_row: f64,
}

/// A refused budget with its smallest plan and the changes that help.
pub struct Refusal {
    /// The refusal.
    pub infeasible: Infeasible,
    /// The cheapest changes.
    pub changes: Vec<Change>,
}

impl Refusal {
    pub(crate) fn to_json(&self) -> Value {
        let changes = self.changes.iter().map(|change| {
            let Change { what, flag, peak, fits, same_results, seconds_per_row } = change;
            json!({ "what": what, "flag": flag, "peak_bytes": peak.0, "fits": fits, "same_results": same_results,
                    "seconds_per_row": seconds_per_row })
        });
        let mut document = self.infeasible.to_json();
        document["changes"] = changes.collect();
        document
    }
}

/// How many changes are named.
const CHANGES: usize = 3;

/// The plan of the smallest budget that works, and the three cheapest changes with their exact peaks. Changes that fit the refused budget come
/// first: those that leave results as they are, then the fastest. If fewer fit, the budget that would, and the changes that save most.
///
/// # Errors
/// If even the smallest budget cannot be planned.
pub fn cheapest_changes(trainer: Trainer, infeasible: &Infeasible) -> Result<(RunPlan, Refusal)> {
    let on_host = infeasible.space == crate::infeasible::HOST;
    let spec = trainer.spec().clone();
    let smallest = plan_at(&spec, on_host, infeasible.minimum)?;
    let mut changes = Vec::new();
    let raise = if on_host { "--host-memory" } else { "--device-memory" };
    changes.push(Change {
        what: format!("raise the budget by {}", infeasible.minimum - infeasible.budget),
        flag: format!("{raise} {}", infeasible.minimum.0),
        peak: infeasible.minimum,
        fits: false,
        same_results: true,
        seconds_per_row: smallest.predicted_s / smallest.batch as f64,
    });
    for permission in Permission::NAMES.map(|(_, permission)| permission).into_iter().filter(|permission| !spec.allow.has(*permission)) {
        let allow = spec.allow.with(permission);
        let what = format!("allow {}", permission.name());
        let changed = RunSpec { allow, ..spec.clone() };
        changes.extend(change(&changed, infeasible, on_host, what, format!("--allow {allow}"), !permission.changes_results()));
    }
    for batch in halves(infeasible.batch) {
        let changed = RunSpec { data: spec.data.clone().rebatch(batch), micro_batch: None, ..spec.clone() };
        let what = format!("halve the batch to {batch} rows");
        let what = if batch * 2 == infeasible.batch { what } else { format!("reduce the batch to {batch} rows") };
        changes.extend(change(&changed, infeasible, on_host, what, format!("--batch {batch}"), false));
    }
    changes.retain(|change| change.peak < infeasible.minimum || change.flag.starts_with(raise));
    // Of those that do not fit, a larger budget changes least; the others are worth as much as they save.
    let raises = |change: &Change| change.flag.starts_with(raise);
    changes.sort_by(|a, b| match (a.fits, b.fits) {
        (true, true) => (!a.same_results).cmp(&!b.same_results).then(a.seconds_per_row.total_cmp(&b.seconds_per_row)),
        (false, false) => (!raises(a)).cmp(&!raises(b)).then(a.peak.cmp(&b.peak)),
        (a, b) => b.cmp(&a),
    });
    changes.truncate(CHANGES);
    Ok((smallest, Refusal { infeasible: infeasible.clone(), changes }))
}

/// Half the batch, a quarter, an eighth, and one row.
fn halves(batch: usize) -> impl Iterator<Item = usize> {
    let mut sizes: Vec<usize> = [2, 4, 8].iter().map(|part| batch / part).chain([1]).filter(|rows| (1..batch).contains(rows)).collect();
    sizes.dedup();
    sizes.into_iter()
}

/// A changed run: planned for the refused budget, or else for its own minimum. None if it cannot be planned at all.
fn change(spec: &RunSpec, refused: &Infeasible, on_host: bool, what: String, flag: String, same_results: bool) -> Option<Change> {
    let (plan, peak, fits) = match plan_at(spec, on_host, refused.budget) {
        Ok(plan) => {
            let peak = plan.device_memory.as_ref().filter(|_| !on_host).map_or(plan.total(), |device| device.total());
            (plan, peak, true)
        }
        Err(Error::Infeasible(still)) => (plan_at(spec, on_host, still.minimum).ok()?, still.minimum, false),
        Err(_) => return None,
    };
    Some(Change { what, flag, peak, fits, same_results, seconds_per_row: plan.predicted_s / plan.batch as f64 })
}

fn plan_at(spec: &RunSpec, on_host: bool, budget: Bytes) -> Result<RunPlan> {
    let budget = match on_host {
        true => Budget { host: Some(budget), ..spec.budget },
        false => Budget { device: Some(budget), ..spec.budget },
    };
    let trainer = Trainer::from(RunSpec { budget, ..spec.clone() });
    let fit = trainer.described_fit();
    trainer.plan(&fit)
}
