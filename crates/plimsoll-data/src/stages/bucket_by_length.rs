//! `bucket_by_length`: groups rows of similar length into batches.

use super::filter::of_one_size;
use super::kind::{Batches, Key, KeyKind, MAX_ROWS_AT_ONCE, StageKind, Validation};
use crate::dataset::{BlockIterator, Dataset, Holding, Input, Opening, RowStage, Stage, StreamBudget};
use crate::fault::Fault;
use crate::ragged::length_of;
use crate::{DataError, Extent, Row, Schema};
use plimsoll_core::{Bytes, DType};

/// Groups rows by the value or the length of one column: each batch has rows of one bucket.
#[derive(Clone, Debug)]
struct Buckets {
    column: String,
    boundaries: Vec<i64>,
    batch: usize,
}

impl Buckets {
    /// Checks the column; returns whether rows are grouped by its length rather than its value.
    fn check(&self, schema: &Schema) -> Result<bool, DataError> {
        let refuse = |problem: &str| Err(DataError::Stage(format!("{} {problem}", self.describe())));
        let column = schema.look_up(&self.column)?;
        let ragged = column.extent == Extent::UpTo;
        if !ragged && (column.elements() != 1 || !matches!(column.dtype, DType::I32 | DType::U8)) {
            return refuse("needs a column whose rows vary in length, or one with one integer a row");
        }
        if self.batch == 0 || !self.boundaries.is_sorted_by(|a, b| a < b) {
            return refuse("needs boundaries that grow and batches of at least one row");
        }
        Ok(ragged)
    }

    /// Rows buffered until their bucket is full.
    fn buffered_rows(&self) -> u64 {
        (self.boundaries.len() as u64 + 1).saturating_mul(self.batch as u64)
    }
}

pub(super) const KIND: StageKind = StageKind {
    name: "bucket_by_length",
    summary: "groups rows of similar length into batches",
    keys: &[
        Key::required("column", KeyKind::Text, "which column is inspected"),
        Key::required("bounds", KeyKind::Counts, "the lengths at which a bucket begins, such as [16, 32, 64]"),
        Key::optional("rows", KeyKind::BatchRows(MAX_ROWS_AT_ONCE)),
    ],
    counts_rows: true,
    batches: Batches::GathersFor,
    reorders: true,
    validation: Validation::Omitted,
    build: |data, args| {
        let bounds = args.counts("bounds").unwrap_or_default();
        let bounds: Vec<i64> = bounds.into_iter().map(|bound| bound as i64).collect();
        Ok(data.bucket_by_length(args.name("column"), bounds, args.rows_at_once("rows")))
    },
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Groups rows by the integer in `column`, or by its length if its rows [vary in length](crate::Column::up_to).
    /// Each run of `batch` consecutive rows is from one bucket between two boundaries, except at the end of an epoch.
    /// Use the same batch size in the `batch` stage that follows.
    ///
    /// ```
    /// use plimsoll_core::{DType, Ledger};
    /// use plimsoll_data::{Column, Dataset, Feed, Options, PadTo, Schema, Tensor};
    /// let schema = Schema::new(vec![Column::up_to("x", DType::I32, [100])])?;
    /// let words = Dataset::from_generator(schema, |_epoch| [1, 90, 2, 80].map(|long| Ok(vec![Tensor::i32([long], vec![7; long])?])).into_iter());
    /// let data = words.bucket_by_length("x", [50], 2).padded_batch(2, PadTo::Longest, 0.0);
    /// let mut feed = Feed::start(&data, &data.plan(None)?, &Ledger::new("host", None), Options::default())?;
    /// assert_eq!(feed.next()?.unwrap().shape(0), [2, 2]);
    /// assert_eq!(feed.next()?.unwrap().shape(0), [2, 90]);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn bucket_by_length(self, column: impl Into<String>, boundaries: impl Into<Vec<i64>>, batch: usize) -> Dataset {
        self.then(Buckets { column: column.into(), boundaries: boundaries.into(), batch })
    }
}

impl Stage for Buckets {
    fn describe(&self) -> String {
        format!("bucket_by_length({}, {:?}, {})", self.column, self.boundaries, self.batch)
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        let schema = of_one_size(inputs, &self.describe())?;
        self.check(&schema)?;
        Ok(schema)
    }

    fn holdings(&self, _inputs: &[Dataset], row: Bytes, _budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        Ok(vec![Holding::here(self.describe(), Bytes(self.buffered_rows().saturating_mul(row.0)))])
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.map_rows(Bucketing::new(&inputs.node.schema()?, self)?)
    }
}

struct Bucketing {
    buckets: Buckets,
    schema: Schema,
    /// Whether rows are grouped by the length of the column.
    ragged: bool,
    /// A batch of rows for each bucket, and the number of rows in each.
    buffer: Vec<u8>,
    held: Vec<usize>,
    /// The bucket being emitted, and how many of its rows were.
    giving: Option<(usize, usize)>,
    over: bool,
}

impl Bucketing {
    fn new(schema: &Schema, buckets: &Buckets) -> Result<Bucketing, DataError> {
        let ragged = buckets.check(schema)?;
        let held = vec![0; buckets.boundaries.len() + 1];
        let buffer = vec![0; buckets.buffered_rows() as usize * schema.row_bytes().get()];
        Ok(Bucketing { buckets: buckets.clone(), schema: schema.clone(), ragged, buffer, held, giving: None, over: false })
    }
}

impl RowStage for Bucketing {
    fn begin(&mut self, _epoch: u64) {
        self.held.fill(0);
        (self.giving, self.over) = (None, false);
    }

    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        let (row, batch) = (input.row_bytes(), self.buckets.batch);
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
                // At the end, emit the partial buckets, shortest first.
                let Some(bucket) = self.held.iter().position(|held| *held > 0) else { return Ok(false) };
                self.giving = Some((bucket, 0));
                continue;
            }
            match input.next()? {
                None => self.over = true,
                Some(next) => {
                    let seen = Row::new(&self.schema, next);
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
}
