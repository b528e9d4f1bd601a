//! Checks the number of rows of an epoch against `assert_cardinality`.

use crate::DataError;
use crate::fault::Loss;

/// The number of rows set by [`assert_cardinality`](crate::Dataset::assert_cardinality), if any. Upstream and
/// downstream stages rely on it, so it is checked wherever it is in the pipeline.
pub(crate) struct ExpectedRows {
    rows: Option<u64>,
    /// Whether an unknown number of rows was lost, such as the rest of a file. Then the epoch cannot be checked.
    in_part: bool,
}

impl ExpectedRows {
    pub fn new(rows: Option<u64>) -> ExpectedRows {
        ExpectedRows { rows, in_part: false }
    }

    /// Starts an epoch.
    pub fn begin(&mut self) {
        self.in_part = false;
    }

    /// Records a loss; a failed row still counts as a row.
    pub fn lost(&mut self, loss: Loss) {
        self.in_part |= loss == Loss::Part;
    }

    /// How many of the next `rows` rows, after `before` of the epoch, are expected.
    pub fn of(&self, before: u64, rows: usize) -> usize {
        match self.rows.filter(|_| !self.in_part) {
            Some(expected) => expected.saturating_sub(before).min(rows as u64) as usize,
            None => rows,
        }
    }

    /// Checks the number of rows so far; `over` is set at the end of the epoch.
    pub fn check(&self, epoch: u64, came: u64, over: bool) -> Result<(), DataError> {
        let Some(rows) = self.rows.filter(|_| !self.in_part) else { return Ok(()) };
        if came < rows && !over || came == rows {
            return Ok(());
        }
        let more = if came > rows { "more than " } else { "" };
        let problem = format!("epoch {epoch} has {more}{} rows where assert_cardinality({rows}) was said", came.min(rows));
        Err(DataError::Stage(problem))
    }
}
