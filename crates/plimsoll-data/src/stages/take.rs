//! `take`: keeps the first rows.

use super::kind::{Key, KeyKind, StageKind, Validation};
use crate::DataError;
use crate::dataset::{BlockIterator, Dataset, IndexStep, Input, Opening, RowStage, Stage};
use crate::fault::Fault;

struct Take {
    rows: u64,
}

pub(super) const KIND: StageKind = StageKind {
    name: "take",
    summary: "keeps the first rows",
    keys: &[Key::required("rows", KeyKind::Count(1), "how many rows are kept")],
    counts_rows: true,
    has_short_form: true,
    validation: Validation::Omitted,
    build: |data, args| Ok(data.take(args.rows("rows"))),
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Keeps the first `rows` rows.
    pub fn take(self, rows: u64) -> Dataset {
        self.then(Take { rows })
    }
}

impl Stage for Take {
    fn describe(&self) -> String {
        format!("take({})", self.rows)
    }

    fn index_step(&self) -> Option<IndexStep> {
        Some(IndexStep::Truncate(self.rows))
    }

    fn max_rows(&self, inputs: &[Dataset]) -> u64 {
        inputs[0].len().min(self.rows)
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.map_rows(Taking { rows: self.rows, left: 0 })
    }
}

struct Taking {
    rows: u64,
    left: u64,
}

impl RowStage for Taking {
    fn begin(&mut self, _epoch: u64) {
        self.left = self.rows;
    }

    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        input.copy(out)
    }
}
