//! A refused budget: what holds the peak, and the cheapest changes that lower it, each planned to the byte.

use crate::allow::{Allow, Permission};
use crate::error::Result;
use crate::infeasible::Infeasible;
use crate::plan::{DataSummary, RunPlan};
use crate::spec::RunSpec;
use crate::trainer::Trainer;
use plimsoll_core::Bytes;
use plimsoll_core::budget::Owner;
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
    /// Predicted seconds per row within that peak.
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

/// A change that may help, with the peak that is expected of it.
struct Idea {
    what: String,
    flag: String,
    changed: RunSpec,
    same_results: bool,
    /// How much of the run it changes; the less, the better.
    effort: usize,
    expected: Bytes,
}

/// The plan of the smallest budget that works, and the three cheapest changes with their exact peaks. Changes that fit
/// the refused budget come first: those that leave results as they are, then the fastest. If fewer fit, the budget that
/// would, the changes that save most, and budgets that need fewer strategies. The refusal knows about how much each
/// change saves, so that only those that are named are planned.
///
/// # Errors
/// If even the smallest budget cannot be planned.
pub fn cheapest_changes(trainer: Trainer, infeasible: &Infeasible) -> Result<(RunPlan, Refusal)> {
    let on_host = infeasible.space == crate::infeasible::HOST;
    // The search for the largest batch is refused with one row.
    let rows = DataSummary::read(trainer.spec())?.training.batch_rows()?;
    let trainer = if rows == infeasible.batch { trainer } else { with_rows(trainer.spec(), infeasible.batch).into() };
    let flag = if on_host { "--host-memory" } else { "--device-memory" };
    let smallest = trainer.smallest_plan(infeasible.smallest.as_ref())?;
    let raise = |what: String, peak: Bytes, seconds_per_row: f64| {
        let flag = format!("{flag} {}", peak.0);
        Change { what, flag, peak, fits: false, same_results: true, seconds_per_row }
    };
    let least = infeasible.minimum;
    let row_s = |plan: &RunPlan| plan.predicted_s / plan.batch as f64;
    let raised = raise(format!("raise the budget by {}", least - infeasible.budget), least, row_s(&smallest));
    // The choices of a checkpoint are kept: what remains is a larger budget.
    let ideas = if infeasible.resumed_with.is_some() { Vec::new() } else { ideas(trainer.spec(), infeasible) };
    let fitting = ideas.iter().filter(|idea| idea.expected <= infeasible.budget).count();
    let planned = if fitting < CHANGES { CHANGES - 1 } else { CHANGES };
    let planned = ideas.into_iter().take(planned).filter_map(|idea| {
        let plan = Trainer::from(idea.changed).smallest_plan(None).ok()?;
        let peak = plan.device_memory.as_ref().filter(|_| !on_host).map_or(plan.minimum, |device| device.minimum);
        let fits = peak <= infeasible.budget;
        Some(Change { what: idea.what, flag: idea.flag, peak, fits, same_results: idea.same_results, seconds_per_row: row_s(&plan) })
    });
    let mut changes: Vec<Change> = planned.filter(|change| change.peak < least).collect();
    changes.sort_by(|a, b| match (a.fits, b.fits) {
        (true, true) => (!a.same_results).cmp(&!b.same_results).then(a.seconds_per_row.total_cmp(&b.seconds_per_row)),
        (false, false) => a.peak.cmp(&b.peak),
        (a, b) => b.cmp(&a),
    });
    // Of those that do not fit, a larger budget changes least.
    changes.insert(changes.iter().filter(|change| change.fits).count(), raised);
    // Budgets at which the run is faster.
    let mut faster = vec![(smallest.micro_batch, "without recomputation, splitting or offload")];
    let whole = if infeasible.micro_batch_asked { smallest.micro_batch } else { smallest.batch };
    faster.extend((whole > smallest.micro_batch).then_some((whole, "without any strategy")));
    for (rows, how) in faster.into_iter().take(CHANGES.saturating_sub(changes.len())) {
        let (host, device, seconds) = trainer.plain(rows)?;
        let peak = if on_host { host } else { device };
        if peak > least {
            let what = format!("raise the budget by {}, enough {how}", peak - infeasible.budget);
            changes.push(raise(what, peak, seconds / smallest.batch as f64));
        }
    }
    changes.truncate(CHANGES);
    Ok((smallest, Refusal { infeasible: infeasible.clone(), changes }))
}

/// Changes that are expected to help, the cheapest first: those that fit, with unchanged results and few permissions;
/// then those that save most.
fn ideas(spec: &RunSpec, refused: &Infeasible) -> Vec<Idea> {
    let fits = |bytes: Bytes| bytes <= refused.budget;
    let mut ideas: Vec<Idea> = refused.minimum_with.iter().map(|(allow, bytes)| with_permissions(spec, *allow, *bytes)).collect();
    let batches: Vec<Idea> = smaller_batches(refused).map(|rows| with_batch(spec, refused, rows)).collect();
    // Of the batches that fit, the largest.
    let largest = batches.iter().position(|idea| fits(idea.expected));
    ideas.extend(batches.into_iter().enumerate().filter(|(i, _)| largest.is_none_or(|largest| *i == largest)).map(|(_, idea)| idea));
    ideas.sort_by_key(|idea| match fits(idea.expected) {
        true => (false, !idea.same_results, idea.effort, idea.expected),
        false => (true, false, 0, idea.expected),
    });
    ideas
}

fn with_permissions(spec: &RunSpec, allow: Allow, expected: Bytes) -> Idea {
    let new = Permission::NAMES.into_iter().filter(|(_, permission)| allow.has(*permission) && !spec.allow.has(*permission));
    let names: Vec<&str> = new.clone().map(|(name, _)| name).collect();
    Idea {
        what: format!("allow {}", names.join(" and ")),
        flag: format!("--allow {allow}"),
        changed: RunSpec { allow, ..spec.clone() },
        same_results: !new.clone().any(|(_, permission)| permission.changes_results()),
        effort: names.len(),
        expected,
    }
}

fn with_batch(spec: &RunSpec, refused: &Infeasible, rows: usize) -> Idea {
    let half = rows * 2 == refused.batch;
    // What the rows of the micro-batch hold shrinks with them.
    let by_rows = |owner: &Owner| {
        let arena = matches!(owner, Owner::Activations | Owner::Gradients | Owner::Workspace | Owner::Fragmentation);
        arena || matches!(owner, Owner::Pipeline | Owner::Staging | Owner::PinnedStaging)
    };
    let shrinks: u64 = refused.owners.iter().filter(|(owner, _)| by_rows(owner)).map(|(_, size)| size.0).sum();
    let saved = shrinks - (shrinks as f64 * rows as f64 / refused.micro_batch as f64) as u64;
    Idea {
        what: format!("{} the batch to {rows} row{}", if half { "halve" } else { "reduce" }, if rows == 1 { "" } else { "s" }),
        flag: format!("--batch {rows}"),
        changed: with_rows(spec, rows),
        same_results: false,
        effort: Permission::NAMES.len(),
        expected: refused.minimum.saturating_sub(Bytes(saved)),
    }
}

/// The same run with another batch size.
fn with_rows(spec: &RunSpec, rows: usize) -> RunSpec {
    RunSpec { data: spec.data.clone().rebatch(rows), micro_batch: None, ..spec.clone() }
}

/// Half the batch, a quarter, an eighth, and one row; only those with fewer rows than the micro-batch of the smallest
/// plan.
fn smaller_batches(refused: &Infeasible) -> impl Iterator<Item = usize> {
    let (batch, micro_batch) = (refused.batch, refused.micro_batch);
    let mut sizes: Vec<usize> =
        [2, 4, 8].iter().map(|part| batch / part).chain([1]).filter(|rows| (1..micro_batch).contains(rows)).collect();
    sizes.dedup();
    sizes.into_iter()
}
