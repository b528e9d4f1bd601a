//! Streams in another order, as far as a buffer reaches.

use super::input::Input;
use crate::fault::Fault;
use crate::ragged::length_of;
use crate::rng::random_bits;
use crate::source::RowIterator;
use crate::{DataError, Dataset, Extent, Schema};
use plimsoll_core::{Bytes, DType};
use std::fmt;

/// Rows that a buffer of this size holds: no more than there are.
pub(super) fn rows(bytes: Bytes, row: Bytes, input: &Dataset) -> u64 {
    (bytes.0 / row.0.max(1)).min(input.len()).max(1)
}

/// Each row drawn by lot from a buffer, and replaced by the next.
pub(super) struct Shuffled {
    input: Input,
    seed: u64,
    epoch: u64,
    drawn: u64,
    buffer: Vec<u8>,
    row: usize,
    /// Rows in the buffer.
    held: usize,
    /// Where the row was that was drawn last, and the next goes.
    hole: Option<usize>,
    over: bool,
}

impl Shuffled {
    pub fn new(input: Input, seed: u64, rows: usize, row: usize) -> Shuffled {
        Shuffled { input, seed, epoch: 0, drawn: 0, buffer: vec![0; rows * row], row, held: 0, hole: None, over: false }
    }
}

impl RowIterator for Shuffled {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.epoch, self.drawn, self.held, self.over) = (epoch, 0, 0, false);
        self.hole = None;
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        let row = self.row;
        // In single steps: what is told instead of a row comes between two of them.
        while !self.over && (self.held + 1) * row <= self.buffer.len() {
            let place = self.hole.unwrap_or(self.held);
            match self.input.copy(&mut self.buffer[place * row..][..row])? {
                true => (self.held, self.hole) = (self.held + 1, None),
                false => self.over = true,
            }
        }
        if let Some(hole) = self.hole.take() {
            // Nothing came for it, so the last row does.
            self.buffer.copy_within(self.held * row..(self.held + 1) * row, hole * row);
        }
        if self.held == 0 {
            return Ok(false);
        }
        let lot = random_bits(self.seed, self.epoch, self.drawn);
        self.drawn += 1;
        let chosen = ((u128::from(lot) * self.held as u128) >> 64) as usize;
        out.copy_from_slice(&self.buffer[chosen * row..][..row]);
        (self.held, self.hole) = (self.held - 1, Some(chosen));
        Ok(true)
    }

    fn close(&mut self) {
        self.input.close();
    }
}

/// Rows gathered by the number in one of their columns, or by how long it is: each batch has rows of one bucket.
#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    pub column: String,
    pub boundaries: Vec<i64>,
    pub batch: usize,
}

impl Buckets {
    /// Whether rows can be gathered so, and if, whether it is by how long they are.
    pub fn check(&self, schema: &Schema) -> Result<bool, DataError> {
        let refuse = |problem: &str| Err(DataError::Stage(format!("{self} {problem}")));
        let Some(column) = schema.index_of(&self.column) else {
            let columns: Vec<&str> = schema.columns().iter().map(|column| column.name.as_str()).collect();
            let problem = format!("there is no column `{}` to look at; the columns are {}", self.column, columns.join(", "));
            return Err(DataError::Stage(problem));
        };
        let column = &schema.columns()[column];
        let ragged = column.extent == Extent::UpTo;
        if !ragged && (column.elements() != 1 || !matches!(column.dtype, DType::I32 | DType::U8)) {
            return refuse("needs a column whose rows differ in length, or one with one whole number a row");
        }
        if self.batch == 0 || !self.boundaries.is_sorted_by(|a, b| a < b) {
            return refuse("needs boundaries that grow and batches of at least one row");
        }
        Ok(ragged)
    }

    /// Rows that wait until their bucket is full.
    pub fn rows(&self) -> u64 {
        (self.boundaries.len() as u64 + 1).saturating_mul(self.batch as u64)
    }
}

impl fmt::Display for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bucket_by_length({}, {:?}, {})", self.column, self.boundaries, self.batch)
    }
}

pub(super) struct Bucketed {
    input: Input,
    buckets: Buckets,
    schema: Schema,
    /// Whether the column's rows differ in length, and it is that what counts.
    ragged: bool,
    /// A batch of rows for each bucket, and how many there are.
    buffer: Vec<u8>,
    held: Vec<usize>,
    /// The bucket that is being handed out, and how many of its rows were.
    giving: Option<(usize, usize)>,
    over: bool,
}

impl Bucketed {
    pub fn new(input: Input, schema: &Schema, buckets: &Buckets) -> Result<Bucketed, DataError> {
        let ragged = buckets.check(schema)?;
        let held = vec![0; buckets.boundaries.len() + 1];
        let buffer = vec![0; buckets.rows() as usize * input.row_bytes()];
        Ok(Bucketed { input, buckets: buckets.clone(), schema: schema.clone(), ragged, buffer, held, giving: None, over: false })
    }
}

impl RowIterator for Bucketed {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.held.fill(0);
        (self.giving, self.over) = (None, false);
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        let (row, batch) = (self.input.row_bytes(), self.buckets.batch);
        loop {
            if let Some((bucket, given)) = self.giving {
                if given < self.held[bucket] {
                    out.copy_from_slice(&self.buffer[(bucket * batch + given) * row..][..row]);
                    self.giving = Some((bucket, given + 1));
                    return Ok(true);
                }
                self.held[bucket] = 0;
                self.giving = None;
            }
            if self.over {
                // What is left comes last, the shortest first.
                let Some(bucket) = self.held.iter().position(|held| *held > 0) else { return Ok(false) };
                self.giving = Some((bucket, 0));
                continue;
            }
            match self.input.next()? {
                None => self.over = true,
                Some(next) => {
                    let seen = crate::Row::new(&self.schema, next);
                    let length = match self.ragged {
                        true => i64::from(length_of(seen.bytes(&self.buckets.column))),
                        false => seen.int(&self.buckets.column),
                    };
                    let bucket = self.buckets.boundaries.partition_point(|&boundary| boundary <= length);
                    self.buffer[(bucket * batch + self.held[bucket]) * row..][..row].copy_from_slice(next);
                    self.held[bucket] += 1;
                    if self.held[bucket] == batch {
                        self.giving = Some((bucket, 0));
                    }
                }
            }
        }
    }

    fn close(&mut self) {
        self.input.close();
    }
}
