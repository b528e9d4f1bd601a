//! The state of a run as its folder tells, while it trains and afterwards: for those who watch it, and for lists of
//! runs.

use crate::error::{Error, Result};
use crate::metrics::lower_is_better;
use plimsoll_core::Bytes;
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Whether a run is still training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// A process holds its folder.
    Running,
    /// It came to its end.
    Done,
    /// It ended before, and can be resumed.
    Stopped,
}

/// What the folder of a run tells.
#[derive(Clone, Debug)]
pub struct RunStatus {
    /// The folder.
    pub path: PathBuf,
    /// Whether it is still training.
    pub state: RunState,
    /// The statement of its plan.
    pub plan: Value,
    /// Its epochs: the objects of `log.jsonl`.
    pub epochs: Vec<Value>,
    /// The last progress within an epoch, as it was written.
    pub progress: Option<Value>,
    /// Its `report.json`, once it is done.
    pub report: Option<Value>,
}

impl RunStatus {
    /// Reads the folder of a run.
    ///
    /// # Errors
    /// If it is none.
    pub fn read(path: &Path) -> Result<RunStatus> {
        let file = path.join("plan.json");
        let plan = json(&file).ok_or_else(|| Error::Config(format!("{} is no run folder: it has no plan.json", path.display())))?;
        let log = fs::read_to_string(path.join("log.jsonl")).unwrap_or_default();
        let epochs = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let report = json(&path.join("report.json"));
        let state = match (in_use(path), &report) {
            (true, _) => RunState::Running,
            (false, Some(_)) => RunState::Done,
            (false, None) => RunState::Stopped,
        };
        Ok(RunStatus { path: path.to_path_buf(), state, plan, epochs, progress: json(&path.join(crate::report::STATUS)), report })
    }

    /// The runs in a folder, in the order of their names.
    pub fn all(folder: &Path) -> Vec<RunStatus> {
        let mut paths: Vec<PathBuf> = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        paths.sort();
        paths.iter().filter_map(|path| RunStatus::read(path).ok()).collect()
    }

    /// The best value of the score that matters most: of the validation data if there is any, accuracy before loss;
    /// with its name and epoch.
    pub fn best(&self) -> Option<(&'static str, f64, u64)> {
        let has = |name: &&str| self.epochs.iter().any(|epoch| epoch[*name].is_f64());
        let name = ["val_accuracy", "val_loss", "accuracy", "loss"].into_iter().find(has)?;
        let values = self.epochs.iter().filter_map(|epoch| Some((epoch[name].as_f64()?, epoch["epoch"].as_u64()?)));
        let better = |a: &(f64, u64), b: &(f64, u64)| if lower_is_better(name) { b.0.total_cmp(&a.0) } else { a.0.total_cmp(&b.0) };
        // The first of equal epochs.
        values.rev().max_by(better).map(|(value, epoch)| (name, value, epoch))
    }

    /// The planned peak of host memory.
    pub fn planned(&self) -> Bytes {
        Bytes(self.plan["peak_bytes"]["host"].as_u64().unwrap_or(0))
    }
}

fn json(path: &Path) -> Option<Value> {
    serde_json::from_str(fs::read_to_string(path).ok()?.trim_end()).ok()
}

/// Whether another process has the folder locked.
fn in_use(folder: &Path) -> bool {
    File::open(folder.join(".lock")).is_ok_and(|file| matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}
