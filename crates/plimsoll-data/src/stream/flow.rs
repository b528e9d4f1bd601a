//! A stream in the place of a source.

use super::Spec;
use crate::source::{Gather, Source};
use crate::{BlockMut, DataError, Dataset, Schema};
use plimsoll_core::Bytes;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Stands where a source does, and is never read as one.
pub(crate) struct Flow {
    pub spec: Arc<Spec>,
    pub schema: Schema,
}

impl Source for Flow {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.spec.at_most()
    }

    fn scratch_bytes(&self, _rows: usize) -> Bytes {
        Bytes::ZERO
    }

    fn read(&self, _first_row: u64, _scratch: &mut [u8], _out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        unreachable!("a stream has no rows by number")
    }

    fn gather(&self, _rows: Gather<'_>, _scratch: &mut [u8], _out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        unreachable!("a stream has no rows by number")
    }

    /// Of the row that one of the stream refers to.
    fn file(&self, row: u64, path: &mut PathBuf) {
        self.spec.inputs()[0].source.file(row, path);
    }

    fn file_part(&self, row: u64) -> Result<Option<Range<u64>>, DataError> {
        self.spec.inputs()[0].source.file_part(row)
    }

    fn class_names(&self) -> Vec<String> {
        self.spec.inputs().first().map(Dataset::class_names).unwrap_or_default()
    }

    fn passed_over(&self) -> Option<String> {
        self.spec.inputs().iter().find_map(Dataset::passed_over)
    }

    fn describe(&self) -> String {
        self.spec.describe()
    }
}
