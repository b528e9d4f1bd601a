//! `window`: combines several rows into one.

use super::kind::{Key, KeyKind, StageKind};
use crate::dataset::{BlockIterator, Dataset, Holding, Input, Opening, RowStage, Stage, StreamBudget, first_schema};
use crate::fault::Fault;
use crate::{Column, DataError, Extent, Schema};
use plimsoll_core::Bytes;

#[derive(Clone, Copy)]
struct WindowStage {
    size: usize,
    shift: usize,
    stride: usize,
}

pub(super) const KIND: StageKind = StageKind {
    name: "window",
    summary: "windows of `size` rows, `stride` apart, starting every `shift` rows",
    keys: &[
        Key::required("size", KeyKind::RowsAtOnce, "how many rows become one"),
        Key::optional("shift", KeyKind::RowsAtOnce).or("size"),
        Key::optional("stride", KeyKind::RowsAtOnce).or("1"),
    ],
    counts_rows: true,
    build: |data, args| {
        let size = args.rows_at_once("size");
        let or = |key, otherwise| if args.contains(key) { args.rows_at_once(key) } else { otherwise };
        Ok(data.window(size, or("shift", size), or("stride", 1)))
    },
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Combines `size` rows, `stride` apart, into one, starting every `shift` rows; columns get a leading dimension
    /// of `size`. Incomplete windows at the end of an epoch are dropped.
    pub fn window(self, size: usize, shift: usize, stride: usize) -> Dataset {
        self.then(WindowStage { size, shift, stride })
    }
}

impl WindowStage {
    /// Rows from the first to the last of a window.
    fn span(&self) -> usize {
        (self.size - 1) * self.stride + 1
    }
}

impl Stage for WindowStage {
    fn describe(&self) -> String {
        format!("window({}, {}, {})", self.size, self.shift, self.stride)
    }

    fn rows(&self, inputs: &[Dataset], of: &dyn Fn(&Dataset) -> Option<u64>) -> Option<u64> {
        let span = self.span() as u64;
        of(&inputs[0]).map(|rows| if rows < span { 0 } else { (rows - span) / self.shift as u64 + 1 })
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        let first = of_one_length(first_schema(inputs, "window")?, "window puts rows together")?;
        if self.size == 0 || self.shift == 0 || self.stride == 0 {
            return Err(DataError::Stage(format!("{} holds nothing; give numbers of at least 1", self.describe())));
        }
        if (self.size as u128 * self.stride as u128).saturating_mul(u128::from(first.row_bytes().0)) > 1 << 48 {
            return Err(DataError::Stage(format!("{} reaches over more rows than can be held; ask for fewer", self.describe())));
        }
        let widen = |column: &Column| {
            let mut column = column.clone();
            column.shape.insert(0, self.size);
            column
        };
        Schema::new(first.columns().iter().map(widen).collect())
    }

    /// The rows that a window is taken from.
    fn holdings(&self, inputs: &[Dataset], _row: Bytes, _budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        Ok(vec![Holding::here(self.describe(), inputs[0].output_schema()?.row_bytes() * self.span() as u64)])
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        let schema = inputs.node.inputs[0].output_schema()?;
        let columns = schema.columns().iter().map(|column| column.row_bytes().get()).collect();
        let span = self.span();
        inputs.map_rows(Windowing { window: *self, rows: vec![0; span * schema.row_bytes().get()], missing: span, unbroken: 0, columns })
    }
}

/// The same schema, or an error if a column has rows that vary in length or size, which can be neither split nor
/// combined.
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

/// The running stage. Windows that are incomplete at the end of an epoch, or that contain a failed row, are dropped.
struct Windowing {
    /// Bytes of each column of an input row.
    columns: Vec<usize>,
    window: WindowStage,
    /// The latest rows, oldest first.
    rows: Vec<u8>,
    /// Rows needed to complete the next window.
    missing: usize,
    /// Rows since the last failed one.
    unbroken: usize,
}

impl RowStage for Windowing {
    fn begin(&mut self, _epoch: u64) {
        (self.missing, self.unbroken) = (self.window.span(), 0);
    }

    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        let row = input.row_bytes();
        loop {
            while self.missing > 0 {
                let next = match input.next() {
                    Ok(Some(next)) => next,
                    Ok(None) => return Ok(false),
                    Err(fault) => {
                        // The failed row is counted.
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
            self.missing = self.window.shift;
            if self.unbroken >= self.window.span() {
                break;
            }
        }
        let (mut from, mut to) = (0, 0);
        for &bytes in &self.columns {
            for index in 0..self.window.size {
                out[to..to + bytes].copy_from_slice(&self.rows[index * self.window.stride * row + from..][..bytes]);
                to += bytes;
            }
            from += bytes;
        }
        Ok(true)
    }
}
