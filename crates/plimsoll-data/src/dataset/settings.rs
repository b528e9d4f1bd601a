//! What stages say about batches and threads, as opposed to rows.

use super::Dataset;
use super::stage::Stage;
use crate::DataError;
use crate::fault::RowErrors;
use crate::ops::Mix;
use plimsoll_core::Bytes;
use std::sync::Arc;

/// How many threads make rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// One for each core where images are decoded or an operation [is slow](crate::ops::Op::takes_long), as user code is; of those, as many
    /// work as the consumer needs. A single one where rows only have to be copied.
    Auto,
    /// This many.
    Threads(usize),
}

/// How far ahead of the consumer batches are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// As far as it pays, within the plan's limit.
    Auto,
    /// This many batches.
    Batches(usize),
}

/// The settings of a pipeline: each stage that is one [sets](super::Stage::set) it.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Rows of a batch.
    pub batch: Option<usize>,
    /// Incomplete batches are dropped: those of this many rows, or of the batch size.
    pub drop_remainder: Option<Option<usize>>,
    /// Rows that an epoch must have.
    pub cardinality: Option<u64>,
    pub prefetch: Prefetch,
    pub parallelism: Parallelism,
    /// The most that reading and decoding one file may take.
    pub max_item: Option<Bytes>,
    /// How rows of a batch are mixed, and of how many rows that batch is if not of the batch size.
    pub mix: Option<(Mix, Option<usize>)>,
    /// What rows of variable length are padded with, batch by batch.
    pub pad: Option<f32>,
    /// Whether batches come in the order of their rows, if it was said; if not, groups of this many rows stay whole.
    pub deterministic: Option<(bool, Option<usize>)>,
    /// Where errors of rows are recorded; such rows are marked in a last column.
    pub row_errors: Option<Arc<RowErrors>>,
}

/// A stage that only changes settings.
struct Setting<F> {
    description: String,
    set: F,
    concerns_decoding: bool,
}

impl<F: Fn(&mut Settings) -> Result<(), DataError> + Send + Sync + 'static> Stage for Setting<F> {
    fn describe(&self) -> String {
        self.description.clone()
    }

    fn is_inline(&self) -> bool {
        true
    }

    fn set(&self, settings: &mut Settings) -> Result<(), DataError> {
        (self.set)(settings)
    }

    fn concerns_decoding(&self) -> bool {
        self.concerns_decoding
    }
}

impl Dataset {
    /// Adds a stage that only changes settings.
    pub(crate) fn with_setting<F>(self, description: impl Into<String>, set: F) -> Dataset
    where
        F: Fn(&mut Settings) -> Result<(), DataError> + Send + Sync + 'static,
    {
        self.then(Setting { description: description.into(), set, concerns_decoding: false })
    }

    /// The same of a setting that is about how files are decoded.
    pub(crate) fn with_decode_setting<F>(self, description: impl Into<String>, set: F) -> Dataset
    where
        F: Fn(&mut Settings) -> Result<(), DataError> + Send + Sync + 'static,
    {
        self.then(Setting { description: description.into(), set, concerns_decoding: true })
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            batch: None,
            drop_remainder: None,
            cardinality: None,
            prefetch: Prefetch::Auto,
            parallelism: Parallelism::Auto,
            max_item: None,
            mix: None,
            pad: None,
            deterministic: None,
            row_errors: None,
        }
    }
}

impl Settings {
    /// The batch size that every batch has.
    pub fn whole_batches(&self) -> Option<usize> {
        self.drop_remainder.and_then(|batch| batch.or(self.batch))
    }

    /// Whether batches come in the order of their rows.
    pub fn is_ordered(&self) -> bool {
        self.deterministic.is_none_or(|(ordered, _)| ordered)
    }

    /// Rows that are not separated where batches may overtake each other.
    pub fn unordered_group(&self) -> Option<usize> {
        self.deterministic.filter(|(ordered, _)| !ordered).and_then(|(_, group)| group)
    }

    /// Whether a later stage leaves out rows with errors.
    pub fn ignores_errors(&self) -> bool {
        self.row_errors.as_ref().is_some_and(|errors| errors.ignored)
    }

    /// The same rows in batches of another size. What was said of whole batches stays true of the batches there were.
    pub fn rebatch(&mut self, rows: usize) -> Result<(), DataError> {
        let before = self.batch;
        if rows == 0 || before == Some(0) {
            return Err(empty_batch());
        }
        if let Some(batch @ None) = &mut self.drop_remainder {
            *batch = before;
        }
        if let Some((_, batch @ None)) = &mut self.mix {
            *batch = before;
        }
        if let Some((_, group)) = &mut self.deterministic {
            *group = Some(common_multiple(group.unwrap_or(1), before.unwrap_or(1)));
        }
        self.batch = Some(rows);
        Ok(())
    }
}

/// The error of a batch without rows.
pub(crate) fn empty_batch() -> DataError {
    DataError::Stage("batch(0) holds nothing; ask for at least one row".into())
}

/// The minimum common multiple; what overflows is too large for any plan.
pub(crate) fn common_multiple(a: usize, b: usize) -> usize {
    let (a, b) = (a.max(1), b.max(1));
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).saturating_mul(b)
}
