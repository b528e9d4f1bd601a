//! Settings for batches and threads, as opposed to rows.

use super::Dataset;
use super::stage::Stage;
use crate::DataError;
use crate::fault::RowErrors;
use crate::ops::Mix;
use plimsoll_core::Bytes;
use std::sync::Arc;

/// Number of worker threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parallelism {
    /// One per core if images are decoded or an operation [is slow](crate::ops::Op::takes_long), as user code is; as
    /// many of them are active as the consumer needs. A single one if rows are only copied.
    #[default]
    Auto,
    /// This many.
    Threads(usize),
}

/// How many batches are prefetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// As many as help, within the plan's limit.
    #[default]
    Auto,
    /// This many batches.
    Batches(usize),
}

/// The settings of a pipeline; stages change them with [`set`](super::Stage::set).
#[derive(Clone, Default)]
pub(crate) struct Settings {
    /// Rows per batch.
    pub batch: Option<usize>,
    /// Whether partial batches are dropped: those of this many rows, or of the batch size.
    pub drop_remainder: Option<Option<usize>>,
    /// Rows that an epoch must have.
    pub cardinality: Option<u64>,
    pub prefetch: Prefetch,
    pub parallelism: Parallelism,
    /// Maximum bytes for reading and decoding one file.
    pub max_item: Option<Bytes>,
    /// How rows of a batch are mixed, and the batch size for that if it is not `batch`.
    pub mix: Option<(Mix, Option<usize>)>,
    /// The value that pads rows of variable length, batch by batch.
    pub pad: Option<f32>,
    /// Whether batches come in row order, if set; if not, groups of this many rows stay together.
    pub deterministic: Option<(bool, Option<usize>)>,
    /// Records the errors of rows, which are then marked in an extra last column.
    pub row_errors: Option<Arc<RowErrors>>,
}

/// A stage that only changes settings.
struct Setting<F> {
    description: String,
    concerns: Concern,
    set: F,
}

/// What a setting is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concern {
    /// Batches and threads.
    Batches,
    /// Decoding files.
    Decoding,
    /// The memory for decoding a file, which determines which images are errors.
    ItemLimit,
    /// Internal; not shown to users.
    Hidden,
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

    fn is_implicit(&self) -> bool {
        self.concerns == Concern::Hidden
    }

    fn concerns_decoding(&self) -> bool {
        matches!(self.concerns, Concern::Decoding | Concern::ItemLimit)
    }

    fn changes_rows(&self, ignores_errors: bool) -> bool {
        self.concerns == Concern::ItemLimit && ignores_errors
    }
}

impl Dataset {
    /// Adds a stage that only changes settings.
    pub(crate) fn with_setting<F>(self, concerns: Concern, description: impl Into<String>, set: F) -> Dataset
    where
        F: Fn(&mut Settings) -> Result<(), DataError> + Send + Sync + 'static,
    {
        self.then(Setting { description: description.into(), concerns, set })
    }
}

impl Settings {
    /// The batch size, if every batch is full.
    pub fn whole_batches(&self) -> Option<usize> {
        self.drop_remainder.and_then(|batch| batch.or(self.batch))
    }

    /// Whether batches come in row order.
    pub fn is_ordered(&self) -> bool {
        self.deterministic.is_none_or(|(ordered, _)| ordered)
    }

    /// Rows that stay together if batches may come out of order.
    pub fn unordered_group(&self) -> Option<usize> {
        self.deterministic.filter(|(ordered, _)| !ordered).and_then(|(_, group)| group)
    }

    /// Whether a later stage ignores errors.
    pub fn ignores_errors(&self) -> bool {
        self.row_errors.as_ref().is_some_and(|errors| errors.ignored)
    }

    /// Sets another batch size. `drop_remainder`, `mix` and `deterministic` still apply to the original batches.
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

/// The error for a batch size of zero.
pub(crate) fn empty_batch() -> DataError {
    DataError::Stage("batch(0) holds nothing; ask for at least one row".into())
}

/// Least common multiple; saturates, since such a size is too large for any plan.
pub(crate) fn common_multiple(a: usize, b: usize) -> usize {
    let (a, b) = (a.max(1), b.max(1));
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).saturating_mul(b)
}
