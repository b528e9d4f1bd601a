//! Equally spaced rows of a source.

use std::ops::Range;

/// Equally spaced rows of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub first: u64,
    pub step: u64,
    pub rows: u64,
}

impl Span {
    /// The position of a row among them.
    pub fn position(&self, row: u64) -> Option<u64> {
        let after = row.checked_sub(self.first)?;
        let position = if self.step == 1 { after } else { after.is_multiple_of(self.step).then(|| after / self.step)? };
        (position < self.rows).then_some(position)
    }

    /// The first `rows` of them.
    pub fn take(self, rows: u64) -> Span {
        Span { rows: self.rows.min(rows), ..self }
    }

    /// All rows from the first to the last of them.
    pub fn range(&self) -> Range<u64> {
        if self.rows == 0 { 0..0 } else { self.first..self.first + (self.rows - 1) * self.step + 1 }
    }
}
