//! Rows that carry their index in place of files that are not opened yet.

use super::{ColumnScale, FileUse, Gather, Source};
use crate::block::{BlockMut, ColumnMut};
use crate::schema::Extent;
use crate::{Column, DataError, Schema};
use plimsoll_core::DType;
use std::path::PathBuf;
use std::slice;
use std::sync::Arc;

/// The name of the column with the row index; no user column can have it.
const REFERENCE: &str = "\0row";

/// Bytes of a row index.
pub(crate) const REFERENCE_BYTES: usize = size_of::<u64>();

/// Maximum number of columns, so that a list of them fits on the stack.
const MOST_COLUMNS: usize = 32;

/// The rows of a source without its files, and with the row index as the last column.
pub(crate) struct DeferredDecode {
    source: Arc<dyn Source>,
    schema: Schema,
}

impl DeferredDecode {
    /// The source without its columns of files, and those columns with their positions; `None` if it has none.
    pub fn of(source: &Arc<dyn Source>) -> Option<(DeferredDecode, Vec<(usize, Column)>)> {
        let all = source.schema().columns();
        let is_file = |column: &Column| column.extent == Extent::Files;
        if !all.iter().any(is_file) || all.len() > MOST_COLUMNS {
            return None;
        }
        let mut columns: Vec<Column> = all.iter().filter(|column| !is_file(column)).cloned().collect();
        columns.push(Column::new(REFERENCE, DType::I32, [REFERENCE_BYTES / DType::I32.size()]));
        let schema = Schema::new(columns).ok()?;
        let files = all.iter().enumerate().filter(|(_, column)| is_file(column)).map(|(at, column)| (at, column.clone()));
        Some((DeferredDecode { source: Arc::clone(source), schema }, files.collect()))
    }

    /// Lets the source write all columns but the last, and writes the indices to that.
    fn fill(
        &self,
        out: &mut BlockMut<'_, '_>,
        numbers: impl Iterator<Item = u64>,
        write: impl FnOnce(&mut BlockMut<'_, '_>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let (rows, all) = (out.rows(), self.source.schema().columns());
        let (references, given) = out.columns().split_last_mut().expect("the reference is the last column");
        for (out, number) in references.bytes().as_chunks_mut().0.iter_mut().zip(numbers) {
            *out = number.to_ne_bytes();
        }
        let mut columns: [ColumnMut<'_>; MOST_COLUMNS] = std::array::from_fn(|_| ColumnMut::new(&mut []));
        let fixed = columns.iter_mut().zip(all).filter(|(_, column)| column.extent != Extent::Files).map(|(memory, _)| memory);
        for (memory, given) in fixed.zip(given) {
            *memory = ColumnMut::new(given.bytes());
        }
        write(&mut BlockMut::new(self.source.schema(), rows, &mut columns[..all.len()]))
    }
}

/// The columns that user code sees. The index is the last column, so the others keep their positions.
pub(crate) fn without_reference(schema: Schema) -> Schema {
    let seen = schema.columns().iter().filter(|column| column.name != REFERENCE).cloned().collect();
    Schema::new(seen).unwrap_or(schema)
}

/// The index at the end of a row.
pub(crate) fn referenced_row(row: &[u8]) -> u64 {
    u64::from_ne_bytes(*row.last_chunk().expect("a row that refers to another ends with its number"))
}

impl Source for DeferredDecode {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn parts(&self) -> &[Arc<dyn Source>] {
        slice::from_ref(&self.source)
    }

    fn len(&self) -> u64 {
        self.source.len()
    }

    fn read(&self, first_row: u64, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.fill(out, first_row.., |block| self.source.read(first_row, scratch, block))
    }

    fn gather(&self, rows: Gather<'_>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.fill(out, rows.rows.iter().copied(), |block| self.source.gather(rows, scratch, block))
    }

    fn held_name(&self) -> &'static str {
        self.source.held_name()
    }

    fn locate(&self, row: u64, column: usize) -> Option<(PathBuf, u64)> {
        let mut fixed = self.source.schema().columns().iter().enumerate().filter(|(_, column)| column.extent != Extent::Files);
        self.source.locate(row, fixed.nth(column)?.0)
    }

    fn classes(&self, visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        self.source.classes(visit)
    }

    fn row_name(&self, row: u64) -> String {
        self.source.row_name(row)
    }

    fn file_use(&self) -> FileUse {
        self.source.file_use()
    }

    fn scales(&self) -> Vec<ColumnScale> {
        self.source.scales()
    }

    fn describe(&self) -> String {
        self.source.describe()
    }
}
