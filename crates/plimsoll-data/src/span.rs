//! Equally spaced rows of a source, or of one part of it.

use crate::holdout::SplitPart;
use std::ops::Range;

/// Equally spaced rows of a source, or of one part of it.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    /// The part whose rows are counted; the whole source if `None`.
    pub part: Option<SplitPart>,
    pub first: u64,
    pub step: u64,
    pub rows: u64,
}

impl Span {
    /// The position of a row among them.
    pub fn position(&self, row: u64) -> Option<u64> {
        let row = self.part.as_ref().map_or(Some(row), |part| part.place(row))?;
        let after = row.checked_sub(self.first)?;
        let position = if self.step == 1 { after } else { after.is_multiple_of(self.step).then(|| after / self.step)? };
        (position < self.rows).then_some(position)
    }

    /// The row of the source at a position among them.
    pub fn row(&self, position: u64) -> u64 {
        let row = self.first + position * self.step;
        self.part.as_ref().map_or(row, |part| part.row(row))
    }

    /// The first `rows` of them.
    pub fn take(self, rows: u64) -> Span {
        Span { rows: self.rows.min(rows), ..self }
    }

    /// All rows from the first to the last of them.
    pub fn range(&self) -> Range<u64> {
        if self.rows == 0 { 0..0 } else { self.row(0)..self.row(self.rows - 1) + 1 }
    }
}
