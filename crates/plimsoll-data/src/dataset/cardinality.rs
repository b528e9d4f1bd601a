//! How many rows an epoch was said to have, and whether it has them.

use crate::DataError;
use crate::fault::Loss;

/// What [`assert_cardinality`](crate::Dataset::assert_cardinality) said, if anything. Stages before it and after it believe it, so it is
/// checked wherever it stands.
pub(crate) struct ExpectedRows {
    rows: Option<u64>,
    /// Whether more than single rows were lost of the epoch, such as the rest of a file: then nobody knows how many it would have had.
    in_part: bool,
}

impl ExpectedRows {
    pub fn new(rows: Option<u64>) -> ExpectedRows {
        ExpectedRows { rows, in_part: false }
    }

    /// Another epoch begins.
    pub fn begin(&mut self) {
        self.in_part = false;
    }

    /// Something failed; a row counts as one that came.
    pub fn lost(&mut self, loss: Loss) {
        self.in_part |= loss == Loss::Part;
    }

    /// How many of some rows, before which so many have come, were expected.
    pub fn of(&self, before: u64, rows: usize) -> usize {
        match self.rows.filter(|_| !self.in_part) {
            Some(expected) => expected.saturating_sub(before).min(rows as u64) as usize,
            None => rows,
        }
    }

    /// This many rows of an epoch have come, and it is over or goes on.
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
