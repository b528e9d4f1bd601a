//! `unbatch`: splits rows along their first dimension.

use super::kind::{Batches, StageKind};
use super::window::of_one_length;
use crate::dataset::{BlockIterator, Concern, Dataset, Holding, Input, Opening, RowStage, Stage, StreamBudget, first_schema};
use crate::fault::Fault;
use crate::{Column, DataError, Schema};
use plimsoll_core::Bytes;

/// For rows with a batch dimension; after `batch`, that stage is removed instead.
struct Unbatch;

pub(super) const KIND: StageKind = StageKind {
    name: "unbatch",
    summary: "splits rows along their first dimension; after `batch`, undoes it",
    batches: Batches::Undoes,
    build: |data, _| Ok(data.unbatch()),
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Splits rows along their first dimension, which all columns must share. After [`batch`](Dataset::batch), or
    /// [`padded_batch`](Dataset::padded_batch) to the longest row, undoes that stage.
    pub fn unbatch(self) -> Dataset {
        if self.batch_size().is_none() {
            return self.then(Unbatch);
        }
        self.with_setting(Concern::Batches, "unbatch", |settings| {
            (settings.batch, settings.drop_remainder, settings.pad) = (None, None, None);
            Ok(())
        })
    }
}

/// The first dimension of the rows of this data set.
fn rows_in_each(input: &Dataset) -> Option<u64> {
    input.output_schema().ok()?.columns().first()?.shape.first().map(|rows| *rows as u64)
}

impl Stage for Unbatch {
    fn describe(&self) -> String {
        "unbatch".into()
    }

    fn rows(&self, inputs: &[Dataset], of: &dyn Fn(&Dataset) -> Option<u64>) -> Option<u64> {
        Some(of(&inputs[0])?.saturating_mul(rows_in_each(&inputs[0])?))
    }

    fn max_rows(&self, inputs: &[Dataset]) -> u64 {
        inputs[0].len().saturating_mul(rows_in_each(&inputs[0]).unwrap_or(1))
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        unbatched(&of_one_length(first_schema(inputs, "unbatch")?, "unbatch takes rows apart")?)
    }

    /// One input row while it is split.
    fn holdings(&self, inputs: &[Dataset], _row: Bytes, _budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        Ok(vec![Holding::here(self.describe(), inputs[0].output_schema()?.row_bytes())])
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.map_rows(Unbatching::new(&inputs.node.inputs[0].output_schema()?))
    }
}

/// The columns without their first dimension, which all must share.
fn unbatched(schema: &Schema) -> Result<Schema, DataError> {
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

/// The running stage.
struct Unbatching {
    /// Bytes of each column of an input row.
    columns: Vec<usize>,
    each: usize,
    row: Vec<u8>,
    at: usize,
}

impl Unbatching {
    fn new(schema: &Schema) -> Unbatching {
        let each = schema.columns()[0].shape[0];
        let columns = schema.columns().iter().map(|column| column.row_bytes().get()).collect();
        Unbatching { row: vec![0; schema.row_bytes().get()], columns, each, at: each }
    }
}

impl RowStage for Unbatching {
    fn begin(&mut self, _epoch: u64) {
        self.at = self.each;
    }

    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        if self.at == self.each {
            if !input.copy(&mut self.row)? {
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
}
