//! Checkpoints: a run at the end of a step, in two files. The tensors are safetensors, everything else is one JSON
//! document, which is written last. It has the checksum of the tensors' file and one of itself: a checkpoint whose
//! checksums match is complete and unchanged.
//!
//! Of tensors that are divided over ranks, each rank writes its part to a file of its own, whose checksum is in the
//! document too.

mod load;
mod record;
mod writer;

pub(crate) use load::{load_best, load_newest, newest_record};
pub(crate) use record::{Position, Record};
pub(crate) use writer::{Unwritten, Writer};

use crate::tensors::{self, RankOf, Which};
use plimsoll_core::Bytes;
use plimsoll_core::plan::Resident;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use writer::STACK;

/// Where, when and how many checkpoints are written: between steps, while training continues during the sync.
///
/// ```
/// use plimsoll::{Checkpoints, Fit};
/// use std::time::Duration;
/// let checkpoints = Checkpoints::new("runs/mine/checkpoints").keep(3).every(Duration::from_secs(300)).best("val_loss");
/// let fit = Fit::epochs(10).checkpoints(checkpoints).resume(true);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoints {
    folder: PathBuf,
    keep: usize,
    every: Duration,
    steps: Option<u64>,
    best: Option<String>,
}

impl Checkpoints {
    /// In this folder, at the end of every epoch and at least every ten minutes; the last two are kept.
    pub fn new(folder: impl Into<PathBuf>) -> Checkpoints {
        Checkpoints { folder: folder.into(), keep: 2, every: Duration::from_secs(600), steps: None, best: None }
    }

    /// Keeps this many of the last ones, at least one.
    pub fn keep(self, keep: usize) -> Checkpoints {
        Checkpoints { keep: keep.max(1), ..self }
    }

    /// At least this often, inside an epoch too.
    pub fn every(self, every: Duration) -> Checkpoints {
        Checkpoints { every, ..self }
    }

    /// Also after every this many steps.
    pub fn every_steps(self, steps: u64) -> Checkpoints {
        Checkpoints { steps: Some(steps.max(1)), ..self }
    }

    /// Also keeps the epoch with the best score, such as `val_loss` or `val_accuracy`, as `best.safetensors`.
    pub fn best(self, score: &str) -> Checkpoints {
        Checkpoints { best: Some(score.to_string()), ..self }
    }

    /// The folder they are in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes all of them, and nothing else from the folder.
    pub(crate) fn clear(&self) {
        writer::clear(&self.folder);
    }

    /// Removes all but the newest; whether there was another.
    pub(crate) fn keep_newest(&self) -> bool {
        writer::prune(&self.folder, 1, u64::MAX, false)
    }

    /// Whether there is any, complete or not.
    pub(crate) fn any(&self) -> bool {
        !numbered(&self.folder).is_empty()
    }

    /// The score by which the best epoch is kept.
    pub(crate) fn best_score(&self) -> Option<&str> {
        self.best.as_deref()
    }

    /// The space of all their files, with the one that is written before an older one is removed.
    /// Of a tensor that is divided, the plan has one of `parts`.
    pub(crate) fn space(&self, states: &[Resident], parts: usize) -> Bytes {
        let (weights, all) = (tensors::file_size(states, Which::Weights), tensors::file_size(states, Which::Everything));
        let all = weights + Bytes((all - weights).0 * parts as u64);
        Bytes(all.0 * (self.keep as u64 + 1)) + if self.best.is_some() { weights } else { Bytes::ZERO }
    }

    /// The memory of writing them: a thread, and the document of `states` tensors.
    pub(crate) fn footprint(states: usize) -> Bytes {
        (STACK + Checkpoints::document(states)).align_up(4096)
    }

    /// The memory of the header of a file of `states` tensors, written or parsed: `plimsoll/tests/import_memory.rs`
    /// measures 460 bytes for a short name, and the allocator rounds up.
    pub(crate) fn document(states: usize) -> Bytes {
        (Bytes::kib(64) + Bytes(states as u64 * 640)).align_up(4096)
    }

    /// The same with its folder inside another, unless it is absolute.
    pub(crate) fn in_folder(&self, folder: &Path) -> Checkpoints {
        Checkpoints { folder: folder.join(&self.folder), ..self.clone() }
    }
}

/// The step of a numbered checkpoint, by the name of its files without their suffix.
fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.parse().ok()
}

/// The checkpoint that a file of tensors belongs to, by its name: that of all ranks, or a rank's part.
fn checkpoint_of(file: &str) -> Option<&str> {
    let name = file.strip_suffix(".safetensors")?;
    Some(name.split_once(".rank-").map_or(name, |(name, _)| name))
}

/// The name of the file with a rank's part of a checkpoint.
fn part_name(name: &str, of: RankOf) -> String {
    format!("{name}.rank-{}-of-{}.safetensors", of.rank, of.ranks)
}

/// The name of the checkpoint after a step.
fn name_of(step: u64) -> String {
    format!("step-{step:012}")
}

/// The steps of the numbered checkpoints that have a document, in order.
fn numbered(folder: &Path) -> Vec<u64> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut steps: Vec<u64> = entries.filter_map(|entry| step_of(entry.file_name().to_string_lossy().strip_suffix(".json")?)).collect();
    steps.sort_unstable();
    steps
}
