//! Batches of rows that differ in length.

use crate::Schema;
use crate::dataset::{Dataset, Stage};
use crate::ops::{Padding, fill, is_ragged};
use crate::ring::Claim;

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
            column.chunks_mut(self.batch.saturating_mul(padding.row_bytes())).for_each(|batch| padding.pad_batch(batch));
        }
    }

    pub fn padding(&self, column: usize) -> Option<&Padding> {
        self.columns[column].as_ref()
    }
}
