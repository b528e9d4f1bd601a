//! Pads rows that vary in length, to the declared maximum or to the longest of their batch.

use super::{Kernel, Op};
use crate::block::Rows;
use crate::ragged::{length_of, write_length};
use crate::schema::Extent;
use crate::{Column, DataError, Schema};
use plimsoll_core::DType;
use std::sync::Arc;

/// Whether the rows of a column vary in length.
pub(crate) fn is_ragged(column: &Column) -> bool {
    column.extent == Extent::UpTo
}

/// Pads rows that [vary in length](Column::up_to) with `value` to the declared maximum.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::fill};
/// let words = Column::up_to("x", DType::I32, [100]);
/// assert_eq!((words.to_string(), fill(0.0).output(&words)?.to_string()), ("x: i32[≤ 100]".into(), "x: i32[100]".into()));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn fill(value: f32) -> Arc<dyn Op> {
    Arc::new(FillUp { value })
}

struct FillUp {
    value: f32,
}

impl Op for FillUp {
    fn describe(&self) -> String {
        format!("fill({})", self.value)
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        if !is_ragged(input) {
            let problem = "its rows are all of one length; leave it out".into();
            return Err(DataError::Op { op: self.describe(), column: input.name.clone(), problem });
        }
        Ok(Column { extent: Extent::Fixed, ..input.clone() })
    }

    fn takes_lengths(&self) -> bool {
        true
    }

    fn takes_long(&self) -> bool {
        false
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        Box::new(Padding::new(input, self.value))
    }
}

/// How rows of one column are padded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Padding {
    /// Bytes of a row, including its length.
    row: usize,
    /// Bytes per step along the first dimension.
    step: usize,
    most: usize,
    size: usize,
    value: [u8; 4],
}

impl Padding {
    pub fn new(column: &Column, value: f32) -> Padding {
        let size = column.dtype.size();
        let value = match column.dtype {
            DType::I32 => (value as i32).to_ne_bytes(),
            DType::U8 => [value as u8; 4],
            _ => value.to_ne_bytes(),
        };
        let most = column.shape[0];
        Padding { row: column.row_bytes().get(), step: column.elements() / most * size, most, size, value }
    }

    fn pad(&self, out: &mut [u8]) {
        for element in out.chunks_exact_mut(self.size) {
            element.copy_from_slice(&self.value[..self.size]);
        }
    }

    /// The length of a row.
    fn length(&self, row: &[u8]) -> usize {
        (length_of(row) as usize).min(self.most)
    }

    /// Bytes of a row, including its length.
    pub fn row_bytes(&self) -> usize {
        self.row
    }

    /// Pads the rows of a batch to its longest, packs them at the start of the batch, and writes that length to its
    /// end.
    pub fn pad_batch(&self, batch: &mut [u8]) {
        let longest = batch.chunks_exact(self.row).map(|row| self.length(row)).max().unwrap_or(0);
        let width = longest * self.step;
        // A row moves only towards the start, so the lengths of later rows are still intact.
        for index in 0..batch.len() / self.row {
            let bytes = self.length(&batch[index * self.row..][..self.row]) * self.step;
            batch.copy_within(index * self.row..index * self.row + bytes, index * width);
            self.pad(&mut batch[index * width + bytes..(index + 1) * width]);
        }
        write_length(batch, longest as u32);
    }

    /// The elements of a padded batch, and the length of its rows.
    pub fn of_batch<'b>(&self, batch: &'b [u8]) -> (&'b [u8], usize) {
        let longest = self.length(batch);
        (&batch[..batch.len() / self.row * longest * self.step], longest)
    }
}

impl Kernel for Padding {
    fn run(&mut self, _rows: Rows<'_>, input: &[u8], output: &mut [u8]) -> Result<(), DataError> {
        let whole = self.most * self.step;
        for (row, out) in input.chunks_exact(self.row).zip(output.chunks_exact_mut(whole.max(1))) {
            let bytes = self.length(row) * self.step;
            out[..bytes].copy_from_slice(&row[..bytes]);
            self.pad(&mut out[bytes..]);
        }
        Ok(())
    }
}

/// The columns of a schema that are padded per batch.
pub(crate) struct Padder {
    columns: Vec<Option<Padding>>,
    batch: usize,
}

impl Padder {
    /// `None` if there is nothing to pad.
    pub fn new(schema: &Schema, value: Option<f32>, batch: usize) -> Option<Padder> {
        let value = value?;
        let columns = schema.columns().iter().map(|column| is_ragged(column).then(|| Padding::new(column, value)));
        let columns: Vec<Option<Padding>> = columns.collect();
        columns.iter().any(Option::is_some).then_some(Padder { columns, batch })
    }

    /// Pads all batches of some rows.
    pub fn run<'c>(&self, columns: impl Iterator<Item = &'c mut [u8]>) {
        for (column, padding) in columns.zip(&self.columns) {
            let Some(padding) = padding else { continue };
            column.chunks_mut(self.batch.saturating_mul(padding.row_bytes())).for_each(|batch| padding.pad_batch(batch));
        }
    }

    pub fn padding(&self, column: usize) -> Option<&Padding> {
        self.columns[column].as_ref()
    }
}
