//! Streams whose rows are several rows of another, or parts of one.

use super::input::Input;
use crate::fault::Fault;
use crate::source::RowIterator;
use crate::{Column, DataError, Extent, Schema};

/// The same schema if no column has rows that differ in length or size: such a row is neither a part nor made of parts.
pub(super) fn of_one_length(schema: Schema, what: &str) -> Result<Schema, DataError> {
    for column in schema.columns() {
        let (kind, remedy) = match column.extent {
            Extent::Fixed => continue,
            Extent::UpTo => ("length", "fill"),
            Extent::Files | Extent::Images => ("size", "decode and resize"),
        };
        let problem = format!("has rows that differ in {kind}, and {what} that are all of one {kind}; put {remedy} before it");
        return Err(DataError::Schema { column: column.name.clone(), problem });
    }
    Ok(schema)
}

/// The columns of rows without their first dimension, which all must share.
pub(super) fn unbatched(schema: &Schema) -> Result<Schema, DataError> {
    let each = schema.columns().first().and_then(|column| column.shape.first().copied());
    let narrow = |column: &Column| match column.shape.split_first() {
        Some((first, shape)) if Some(*first) == each => Ok(Column { shape: shape.to_vec(), ..column.clone() }),
        _ => {
            let problem = format!("has rows of shape {:?}, and unbatch takes rows apart that all begin with one dimension", column.shape);
            Err(DataError::Schema { column: column.name.clone(), problem })
        }
    };
    Schema::new(schema.columns().iter().map(narrow).collect::<Result<Vec<_>, _>>()?)
}

/// Rows taken apart along their first dimension.
pub(super) struct Unbatch {
    input: Input,
    /// Bytes of each column of a whole row.
    columns: Vec<usize>,
    each: usize,
    row: Vec<u8>,
    at: usize,
}

impl Unbatch {
    pub fn new(input: Input, schema: &Schema) -> Unbatch {
        let each = schema.columns()[0].shape[0];
        let columns = schema.columns().iter().map(|column| column.row_bytes().get()).collect();
        Unbatch { row: vec![0; input.row_bytes()], input, columns, each, at: each }
    }
}

impl RowIterator for Unbatch {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.at = self.each;
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        if self.at == self.each {
            if !self.input.copy(&mut self.row)? {
                return Ok(false);
            }
            self.at = 0;
        }
        let (mut from, mut to) = (0, 0);
        for &bytes in &self.columns {
            let part = bytes / self.each;
            out[to..to + part].copy_from_slice(&self.row[from + self.at * part..][..part]);
            from += bytes;
            to += part;
        }
        self.at += 1;
        Ok(true)
    }

    fn close(&mut self) {
        self.input.close();
    }
}

/// Rows that a window reaches over.
pub(super) fn span(size: usize, stride: usize) -> usize {
    (size - 1) * stride + 1
}

/// Rows that follow each other, as one row; what is left at the end of an epoch is no window, and neither is what a row is missing from.
pub(super) struct Windows {
    input: Input,
    /// Bytes of each column of a single row.
    columns: Vec<usize>,
    size: usize,
    shift: usize,
    stride: usize,
    /// The last rows, the oldest first; a window is cut out of them.
    rows: Vec<u8>,
    /// Rows to come before the next window is whole.
    missing: usize,
    /// Rows that came since the last that could not be made.
    unbroken: usize,
}

impl Windows {
    pub fn new(input: Input, schema: &Schema, size: usize, shift: usize, stride: usize) -> Windows {
        let columns = schema.columns().iter().map(|column| column.row_bytes().get()).collect();
        let span = span(size, stride);
        Windows { rows: vec![0; span * input.row_bytes()], missing: span, unbroken: 0, input, columns, size, shift, stride }
    }
}

impl RowIterator for Windows {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.missing, self.unbroken) = (span(self.size, self.stride), 0);
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        let row = self.input.row_bytes();
        loop {
            while self.missing > 0 {
                let next = match self.input.next() {
                    Ok(Some(next)) => next,
                    Ok(None) => return Ok(false),
                    Err(fault) => {
                        // It keeps its place.
                        (self.missing, self.unbroken) = (self.missing - 1, 0);
                        return Err(fault);
                    }
                };
                self.rows.copy_within(row.., 0);
                let last = self.rows.len() - row;
                self.rows[last..].copy_from_slice(next);
                self.missing -= 1;
                self.unbroken = self.unbroken.saturating_add(1);
            }
            self.missing = self.shift;
            if self.unbroken >= span(self.size, self.stride) {
                break;
            }
        }
        let (mut from, mut to) = (0, 0);
        for &bytes in &self.columns {
            for index in 0..self.size {
                out[to..to + bytes].copy_from_slice(&self.rows[index * self.stride * row + from..][..bytes]);
                to += bytes;
            }
            from += bytes;
        }
        Ok(true)
    }

    fn close(&mut self) {
        self.input.close();
    }
}
