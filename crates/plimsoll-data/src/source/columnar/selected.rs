//! Which rows of a file of columns are read, and the windows that they form.

use super::FittedRows;
use crate::fault::{Fault, Loss};
use crate::source::selection::RowSelection;
use crate::source::windows::{WindowRows, WindowShape};
use crate::source::{ColumnVisitor, RowIterator, Window};
use crate::table::{Columns, WORD};
use crate::{DataError, Schema};
use std::ops::Range;
use std::sync::Arc;

/// What is asked of the rows of a table.
#[derive(Clone, Debug, Default)]
pub(in crate::source) struct RowsSpec {
    pub window: Option<Window>,
    pub part: RowSelection,
    /// The selected rows that columns are fitted to; all by default.
    pub fitted_to: Option<FittedRows>,
}

impl RowsSpec {
    /// Whether columns are fitted to a row of `range`.
    pub fn fits(&self, range: &Range<u64>, row: u64) -> bool {
        range.contains(&row) && self.fitted_to.as_ref().is_none_or(|to| to.has(row - range.start))
    }

    /// The name of files with what is read of their rows, in words.
    pub fn described(&self, name: String) -> String {
        let part = match &self.part {
            RowSelection::Whole => None,
            RowSelection::Rows(rows) => Some(format!("rows {} to {}", rows.start, rows.end)),
            RowSelection::Shares(from, to) => Some(format!("from {from} to {to}")),
        };
        let words: Vec<String> = part.into_iter().chain(self.window.as_ref().map(Window::describe)).collect();
        if words.is_empty() { name } else { format!("{name} ({})", words.join(", ")) }
    }

    /// Whether columns are fitted to all rows of a table.
    pub fn fits_all(&self, range: &Range<u64>, rows: u64) -> bool {
        self.fitted_to.is_none() && *range == (0..rows)
    }
}

/// The selected rows.
#[derive(Clone)]
pub(in crate::source) struct SelectedRows {
    range: Range<u64>,
    windows: Option<WindowShape>,
    step: u64,
    row_bytes: usize,
    /// How many rows or windows there are.
    pub len: u64,
    pub schema: Schema,
}

impl SelectedRows {
    pub fn new(spec: &RowsSpec, range: Range<u64>, columns: &Columns, targets: usize) -> Result<Result<SelectedRows, String>, DataError> {
        let row_bytes = columns.widths().sum::<usize>() * WORD;
        let Some(window) = &spec.window else {
            let (len, schema) = (range.end - range.start, columns.schema_with_classes()?);
            return Ok(Ok(SelectedRows { range, windows: None, step: 1, row_bytes, len, schema }));
        };
        let windows = Some(WindowShape::new(window.clone(), columns));
        let found = window.schema(columns, targets, &range)?;
        Ok(found.map(|(schema, len)| SelectedRows { range, windows, step: window.step() as u64, row_bytes, len, schema }))
    }

    /// Memory of the rows of a window and of skipping rows.
    pub fn held(&self) -> usize {
        self.windows.as_ref().map_or(0, WindowShape::held) + if self.range.start > 0 { self.row_bytes } else { 0 }
    }

    /// The selected rows of an iterator over all.
    pub fn of<R: RowIterator + 'static>(&self, all: R) -> Box<dyn RowIterator> {
        let rows = RangeRows { all, range: self.range.clone(), at: 0, row_bytes: self.row_bytes, skipped: Vec::new() };
        match &self.windows {
            Some(shape) => Box::new(WindowRows::new(rows, shape.clone())),
            None => Box::new(rows),
        }
    }

    /// The values of a column for the selected rows; those of windows are the values of their first rows.
    pub fn visiting(&self, all: ColumnVisitor) -> ColumnVisitor {
        let (range, step, len) = (self.range.clone(), self.step, self.len);
        Arc::new(move |name, visit| {
            let mut row = 0;
            all(name, &mut |value| {
                let of_range = range.contains(&row) && (row - range.start).is_multiple_of(step);
                if of_range && (row - range.start) / step < len {
                    visit(value);
                }
                row += 1;
            })
        })
    }
}

/// A range of rows.
struct RangeRows<R> {
    all: R,
    range: Range<u64>,
    at: u64,
    row_bytes: usize,
    skipped: Vec<u8>,
}

impl<R: RowIterator> RangeRows<R> {
    /// Moves to the first row of the range; `false` if there is none.
    fn skip(&mut self) -> Result<bool, Fault> {
        if self.at < self.range.start {
            self.skipped.resize(self.row_bytes, 0);
        }
        while self.at < self.range.start {
            match self.all.row(&mut self.skipped) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // A bad row that is not read is no error.
                Err(fault) if fault.loss == Loss::Row => {}
                Err(fault) => return Err(fault),
            }
            self.at += 1;
        }
        Ok(self.at < self.range.end)
    }
}

impl<R: RowIterator> RowIterator for RangeRows<R> {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.at = 0;
        self.all.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        if !self.skip()? {
            return Ok(false);
        }
        let read = self.all.row(out);
        self.at += match &read {
            Ok(true) => 1,
            Err(fault) => u64::from(fault.loss == Loss::Row),
            Ok(false) => 0,
        };
        read
    }

    fn rows(&mut self, out: &mut [u8], row_bytes: usize) -> Result<usize, Fault> {
        if !self.skip()? {
            return Ok(0);
        }
        let wanted = (out.len() / row_bytes.max(1)).min((self.range.end - self.at).min(usize::MAX as u64) as usize);
        let read = self.all.rows(&mut out[..wanted * row_bytes], row_bytes);
        self.at += match &read {
            Ok(count) => *count as u64,
            Err(fault) => u64::from(fault.loss == Loss::Row),
        };
        read
    }

    fn close(&mut self) {
        self.all.close();
    }
}
