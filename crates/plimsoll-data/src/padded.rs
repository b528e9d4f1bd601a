//! Rows that differ in length, brought to one: the longest of their batch, or the longest there may be.
//!
//! On its way a row of up to so many elements takes the room of the longest, and its length stands behind it. So every buffer has a size
//! before anything runs.

use crate::block::Rows;
use crate::dataset::{Dataset, Stage};
use crate::ops::{Kernel, Op};
use crate::ring::Claim;
use crate::schema::Extent;
use crate::{Column, DataError, Schema};
use plimsoll_core::{Bytes, DType};
use std::sync::Arc;

/// Bytes behind a row that say how long it is.
pub(crate) const LENGTH: usize = size_of::<u32>();

/// How far rows are padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadTo {
    /// To the longest row of the batch: batches differ in shape, see [`Batch::shape`](crate::Batch::shape).
    Longest,
    /// To the longest that was declared: all batches are alike, as training asks for.
    Declared,
}

impl Dataset {
    /// Hands out `rows` rows at a time, and pads columns whose rows [differ in length](Column::up_to) with `value`.
    ///
    /// ```
    /// use plimsoll_core::{DType, Ledger};
    /// use plimsoll_data::{Column, Dataset, Feed, Options, PadTo, Schema, Tensor};
    /// let schema = Schema::new(vec![Column::up_to("x", DType::I32, [100])])?;
    /// let words = Dataset::from_generator(schema, |_epoch| {
    ///     [vec![1, 2, 3], vec![4], vec![5, 6]].into_iter().map(|word| Ok(vec![Tensor::i32([word.len()], word)?]))
    /// });
    /// let data = words.padded_batch(2, PadTo::Longest, -1.0);
    /// let mut feed = Feed::start(&data, &data.plan(None)?, &Ledger::new("host", None), Options::default())?;
    /// let batch = feed.next()?.unwrap();
    /// assert_eq!(batch.shape(0), [2, 3]);
    /// let numbers: Vec<i32> = batch.column(0).as_chunks().0.iter().map(|four| i32::from_ne_bytes(*four)).collect();
    /// assert_eq!(numbers, [1, 2, 3, 4, -1, -1]);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn padded_batch(self, rows: usize, to: PadTo, value: f32) -> Dataset {
        let data = match to {
            PadTo::Longest => self.stage(Stage::Pad(value)),
            PadTo::Declared => {
                let ragged: Vec<String> = match self.output_schema() {
                    Ok(schema) => schema.columns().iter().filter(|column| is_ragged(column)).map(|column| column.name.clone()).collect(),
                    // Told when the stages are looked at.
                    Err(_) => Vec::new(),
                };
                ragged.iter().fold(self, |data, name| data.map(name, [fill(value)]))
            }
        };
        data.batch(rows)
    }
}

fn is_ragged(column: &Column) -> bool {
    column.extent == Extent::UpTo
}

/// Fills up rows that [differ in length](Column::up_to) with `value`, so that all are as long as the longest that was declared.
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

    fn kernel_bytes(&self, _input: &Column) -> Bytes {
        Bytes::ZERO
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        Box::new(Padding::new(input, self.value))
    }
}

/// How rows of one column are padded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Padding {
    /// Bytes of a row, its length included.
    row: usize,
    /// Bytes of one step along the first dimension.
    step: usize,
    most: usize,
    size: usize,
    value: [u8; 4],
}

impl Padding {
    fn new(column: &Column, value: f32) -> Padding {
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

    /// How long a row is.
    fn length(&self, row: &[u8]) -> usize {
        (length_of(row) as usize).min(self.most)
    }

    /// Brings the rows of a batch to its longest, one after the other from its start, and writes that length at its end.
    fn bring_together(&self, batch: &mut [u8]) {
        let longest = batch.chunks_exact(self.row).map(|row| self.length(row)).max().unwrap_or(0);
        let width = longest * self.step;
        // A row goes to where it is or before it, so the lengths of those after it are still there.
        for index in 0..batch.len() / self.row {
            let bytes = self.length(&batch[index * self.row..][..self.row]) * self.step;
            batch.copy_within(index * self.row..index * self.row + bytes, index * width);
            self.pad(&mut batch[index * width + bytes..(index + 1) * width]);
        }
        write_length(batch, longest as u32);
    }

    /// The elements of a batch that was brought together, and how long its rows are.
    pub fn of_batch<'b>(&self, batch: &'b [u8]) -> (&'b [u8], usize) {
        let longest = self.length(batch);
        (&batch[..batch.len() / self.row * longest * self.step], longest)
    }
}

/// The length that stands behind a row.
pub(crate) fn length_of(row: &[u8]) -> u32 {
    row.last_chunk().map_or(0, |length| u32::from_ne_bytes(*length))
}

pub(crate) fn write_length(row: &mut [u8], length: u32) {
    if let Some(place) = row.last_chunk_mut() {
        *place = length.to_ne_bytes();
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

/// The columns of a schema that are padded batch by batch.
pub(crate) struct Padder {
    columns: Vec<Option<Padding>>,
    batch: usize,
}

impl Padder {
    /// Nothing where there is nothing to pad.
    pub fn new(schema: &Schema, value: Option<f32>, batch: usize) -> Option<Padder> {
        let value = value?;
        let columns = schema.columns().iter().map(|column| is_ragged(column).then(|| Padding::new(column, value)));
        let columns: Vec<Option<Padding>> = columns.collect();
        columns.iter().any(Option::is_some).then_some(Padder { columns, batch })
    }

    /// Pads all batches of a slot.
    pub fn run(&self, slot: &mut Claim<'_>) {
        let rows = slot.rows;
        for (column, padding) in slot.columns(0, rows).zip(&self.columns) {
            let Some(padding) = padding else { continue };
            column.chunks_mut(self.batch.saturating_mul(padding.row)).for_each(|batch| padding.bring_together(batch));
        }
    }

    pub fn padding(&self, column: usize) -> Option<&Padding> {
        self.columns[column].as_ref()
    }
}
