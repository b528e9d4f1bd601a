//! `enumerate`: adds the row index as a column.

use super::kind::{Key, KeyKind, StageKind};
use crate::dataset::{BlockIterator, Dataset, Input, Opening, RowStage, Stage, first_schema};
use crate::fault::Fault;
use crate::{Column, DataError, Schema};
use plimsoll_core::DType;

struct Enumerate {
    column: String,
}

pub(super) const KIND: StageKind = StageKind {
    name: "enumerate",
    summary: "the index of each row as a new first column",
    keys: &[Key::required("column", KeyKind::Text, "what the column of numbers is called, such as \"n\"")],
    counts_rows: true,
    build: |data, args| Ok(data.enumerate(args.name("column"))),
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Prepends the index of each row in the epoch, as the i32 column `name`.
    pub fn enumerate(self, name: impl Into<String>) -> Dataset {
        self.then(Enumerate { column: name.into() })
    }
}

impl Stage for Enumerate {
    fn describe(&self) -> String {
        format!("enumerate({})", self.column)
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        let mut columns = vec![Column::new(&self.column, DType::I32, [])];
        columns.extend_from_slice(first_schema(inputs, "enumerate")?.columns());
        Schema::new(columns)
    }

    fn ignores_values(&self) -> bool {
        true
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.map_rows(Enumerating { number: 0 })
    }
}

struct Enumerating {
    number: i32,
}

impl RowStage for Enumerating {
    fn begin(&mut self, _epoch: u64) {
        self.number = 0;
    }

    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        let (number, rest) = out.split_at_mut(size_of::<i32>());
        number.copy_from_slice(&self.number.to_ne_bytes());
        self.number = self.number.checked_add(1).ok_or_else(|| DataError::Stage("an epoch has more rows than an i32 can count".into()))?;
        input.copy(rest)
    }
}
