//! Sequential sources: files and generators without random access.

use super::{FileUse, Source, TableFacts};
use crate::fault::Fault;
use crate::{DataError, Schema};
use plimsoll_core::Bytes;
use std::hash::Hasher;
use std::sync::Arc;

/// An iterator over rows, of a sequential source or of a stage.
pub(crate) trait RowIterator: Send {
    /// Starts an epoch at its first row.
    fn begin(&mut self, epoch: u64) -> Result<(), Fault>;

    /// Writes the next row; `false` at the end of the epoch. May be called again after a [fault](Fault::goes_on) that
    /// is not final.
    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault>;

    /// Writes at least one of the next rows, of `row_bytes` each, and as many as are ready; 0 at the end of the epoch.
    fn rows(&mut self, out: &mut [u8], row_bytes: usize) -> Result<usize, Fault> {
        Ok(usize::from(self.row(&mut out[..row_bytes])?))
    }

    /// Stops until the next epoch begins; inputs are closed as well.
    fn close(&mut self) {}
}

impl<T: RowIterator + ?Sized> RowIterator for Box<T> {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (**self).begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        (**self).row(out)
    }

    fn rows(&mut self, out: &mut [u8], row_bytes: usize) -> Result<usize, Fault> {
        (**self).rows(out, row_bytes)
    }

    fn close(&mut self) {
        (**self).close();
    }
}

/// Hashes everything that the rows depend on.
pub(crate) type Identity = Arc<dyn Fn(&mut dyn Hasher) -> Result<(), DataError> + Send + Sync>;

/// Calls a function with the text of a column for every row, in order; returns whether there is such a column.
pub(crate) type ColumnVisitor = Arc<dyn Fn(&str, &mut dyn FnMut(&[u8])) -> Result<bool, DataError> + Send + Sync>;

/// A source without random access.
#[derive(Clone)]
pub(crate) struct SequentialSource {
    /// The source and its files.
    pub name: String,
    pub schema: Schema,
    /// Rows of an epoch, if known in advance.
    pub rows: Option<u64>,
    /// Memory for reading, without the row being written.
    pub held: Bytes,
    /// Memory of fitting its columns when it was opened, beyond what is held since.
    pub fitting: Bytes,
    /// `None` if user code produces the rows.
    pub identity: Option<Identity>,
    /// What is known about its files.
    pub facts: TableFacts,
    /// Reads one column of its files, if they have any.
    pub columns: Option<ColumnVisitor>,
    /// Opens it for one thread.
    pub open: Arc<dyn Fn() -> Box<dyn RowIterator> + Send + Sync>,
}

impl SequentialSource {
    pub fn new<R: RowIterator + 'static>(
        name: String,
        schema: Schema,
        held: Bytes,
        open: impl Fn() -> R + Send + Sync + 'static,
    ) -> SequentialSource {
        SequentialSource {
            name,
            schema,
            rows: None,
            held,
            fitting: Bytes::ZERO,
            identity: None,
            facts: TableFacts::default(),
            columns: None,
            open: Arc::new(move || Box::new(open())),
        }
    }

    /// Sets the hash of everything that its rows depend on.
    pub fn identified(self, identity: impl Fn(&mut dyn Hasher) -> Result<(), DataError> + Send + Sync + 'static) -> SequentialSource {
        SequentialSource { identity: Some(Arc::new(identity)), ..self }
    }

    /// Sets what its file is read for.
    pub fn with_file_use(self, file_use: FileUse) -> SequentialSource {
        SequentialSource { facts: TableFacts { file_use, ..TableFacts::default() }, ..self }
    }

    /// Sets what is known about its files.
    pub fn with_facts(self, facts: TableFacts) -> SequentialSource {
        SequentialSource { facts, ..self }
    }

    /// Sets the memory of fitting its columns.
    pub fn with_fitting(self, fitting: Bytes) -> SequentialSource {
        SequentialSource { fitting, ..self }
    }

    /// Sets how one column of its files is read.
    pub fn with_columns(
        self,
        visit: impl Fn(&str, &mut dyn FnMut(&[u8])) -> Result<bool, DataError> + Send + Sync + 'static,
    ) -> SequentialSource {
        SequentialSource { columns: Some(Arc::new(visit)), ..self }
    }

    /// Sets the number of rows of an epoch.
    pub fn with_rows(self, rows: u64) -> SequentialSource {
        SequentialSource { rows: Some(rows), ..self }
    }
}

/// An opened file, with or without random access.
pub(crate) enum Opened {
    Indexed(Arc<dyn Source>),
    Sequential(Box<SequentialSource>),
}
