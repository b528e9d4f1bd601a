//! Events of a run.

use crate::history::Epoch;
use crate::metrics::Scores;
use crate::plan::RunPlan;
use plimsoll_core::Bytes;
use plimsoll_data::{Batch, Dataset, Schema};
use std::fmt;
use std::path::Path;

/// The rows that a run begins with.
#[derive(Clone, Copy)]
pub struct FirstBatch<'a> {
    pub(crate) batch: &'a Batch<'a>,
    pub(crate) data: &'a Dataset,
    pub(crate) schema: &'a Schema,
}

impl fmt::Debug for FirstBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {}", self.batch.rows, self.schema)
    }
}

/// An event of a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// The run is planned and about to begin.
    Planned {
        /// Its plan.
        plan: &'a RunPlan,
        /// The number of the last epoch it will do.
        epochs: u64,
    },
    /// Less memory is free than was planned for: the run was replanned, and a [`Planned`](Event::Planned) event
    /// follows.
    Replanned {
        /// The plan that no longer fits.
        before: &'a RunPlan,
        /// What is short, and by how much.
        reason: &'a str,
    },
    /// The first batch of the run is about to be trained on.
    FirstBatch(FirstBatch<'a>),
    /// Some steps of an epoch are done; at most ten times a second.
    Progress {
        /// The epoch, counted from 1.
        epoch: u64,
        /// Steps of it that are done.
        step: u64,
        /// Steps of the epoch, if known in advance.
        steps: Option<u64>,
        /// Loss and metrics over those steps.
        scores: &'a Scores,
        /// The learning rate of the last of them.
        learning_rate: f64,
        /// Rows per second since the epoch began.
        examples_per_s: f64,
        /// Resident memory of the process now.
        resident: Bytes,
    },
    /// An epoch is done.
    EpochEnd(&'a Epoch),
    /// A run continues from a checkpoint.
    Resumed {
        /// Epochs done.
        epoch: u64,
        /// Steps done.
        step: u64,
        /// Errors of newer checkpoints that could not be used.
        complaints: &'a [String],
    },
    /// A [`StopHandle`](crate::StopHandle) ended the run before its last epoch.
    Stopped {
        /// Epochs done.
        epoch: u64,
        /// Steps done.
        step: u64,
        /// The newest checkpoint, from which the run can be resumed; none if there is none.
        checkpoint: Option<&'a Path>,
        /// Whether that is the state after the last step. It is not where rows come in any order, or if the run was
        /// stopped within a step that cannot be repeated.
        complete: bool,
    },
    /// A problem that does not stop the run.
    Warning(&'a str),
}
