//! Which rows of a table are read.

use std::ops::Range;

/// A selection of rows.
#[derive(Clone, Debug, Default)]
pub(super) enum RowSelection {
    #[default]
    Whole,
    /// Rows counted from 0.
    Rows(Range<u64>),
    /// Fractions of the rows, from and to.
    Shares(f64, f64),
}

impl RowSelection {
    /// The selected ones of `all` rows, or what is wrong with the selection.
    pub fn range(&self, all: u64) -> Result<Range<u64>, String> {
        let rows = match *self {
            RowSelection::Whole => 0..all,
            RowSelection::Rows(ref rows) => rows.clone(),
            RowSelection::Shares(from, to) if (0.0..=1.0).contains(&from) && (from..=1.0).contains(&to) => {
                (all as f64 * from).round() as u64..(all as f64 * to).round() as u64
            }
            RowSelection::Shares(from, to) => return Err(format!("{from} to {to} is no part of it; give shares from 0 to 1")),
        };
        if rows.start >= rows.end || rows.end > all {
            return Err(format!("it has no rows {} to {}; it has {all}", rows.start, rows.end));
        }
        Ok(rows)
    }
}
