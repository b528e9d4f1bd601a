//! `skip`: drops the first rows.

use super::kind::{Key, KeyKind, StageKind, Validation};
use super::shard::EveryNth;
use crate::DataError;
use crate::dataset::{BlockIterator, Dataset, IndexStep, Opening, Stage};

struct Skip {
    rows: u64,
}

pub(super) const KIND: StageKind = StageKind {
    name: "skip",
    summary: "skips the first rows",
    keys: &[Key::required("rows", KeyKind::Count(0), "how many rows are left out")],
    counts_rows: true,
    has_short_form: true,
    validation: Validation::Omitted,
    build: |data, args| Ok(data.skip(args.rows("rows"))),
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Drops the first `rows` rows.
    pub fn skip(self, rows: u64) -> Dataset {
        self.then(Skip { rows })
    }
}

impl Stage for Skip {
    fn describe(&self) -> String {
        format!("skip({})", self.rows)
    }

    fn index_step(&self) -> Option<IndexStep> {
        Some(IndexStep::Offset(self.rows))
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.map_rows(EveryNth { first: self.rows, step: 1, consumed: None, skip: 0 })
    }
}
