//! `assert_cardinality`: sets the number of rows of an epoch.

use super::kind::{Key, KeyKind, StageKind, Validation};
use crate::DataError;
use crate::dataset::{Dataset, Recipe, Settings, Stage};

struct AssertCardinality {
    rows: u64,
}

pub(super) const KIND: StageKind = StageKind {
    name: "cardinality",
    summary: "states the number of rows of a stream's epoch; another number is an error",
    keys: &[Key::required("rows", KeyKind::Count(0), "how many rows an epoch has")],
    validation: Validation::Omitted,
    build: |data, args| Ok(data.assert_cardinality(args.rows("rows"))),
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Sets the number of rows in an epoch of a stream. An epoch with more or fewer rows is an error, even if other
    /// stages follow. For an indexed data set the number is checked immediately.
    pub fn assert_cardinality(self, rows: u64) -> Dataset {
        self.then(AssertCardinality { rows })
    }
}

impl Stage for AssertCardinality {
    fn describe(&self) -> String {
        format!("assert_cardinality({})", self.rows)
    }

    fn is_inline(&self) -> bool {
        true
    }

    fn set(&self, settings: &mut Settings) -> Result<(), DataError> {
        settings.cardinality = Some(self.rows);
        Ok(())
    }

    fn compile(&self, recipe: &mut Recipe, data: &Dataset) -> Result<(), DataError> {
        recipe.check_rows(self.rows, data)?;
        self.set(&mut recipe.settings)
    }
}
