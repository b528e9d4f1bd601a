//! Sources whose rows come one after the other, because nothing says where in a file a row is.

use super::Source;
use crate::fault::Fault;
use crate::{DataError, Schema};
use plimsoll_core::Bytes;
use std::hash::Hasher;
use std::sync::Arc;

/// Rows one at a time, of a sequential source or of a stage.
pub(crate) trait RowIterator: Send {
    /// The rows that follow are those of this epoch, from its first on.
    fn begin(&mut self, epoch: u64) -> Result<(), Fault>;

    /// Writes the next row; `false` at the end of the epoch. After a [fault](Fault::goes_on) that rows follow, it is called again.
    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault>;

    /// No more rows are wanted until the next epoch begins: inputs are closed, too.
    fn close(&mut self) {}
}

impl<T: RowIterator + ?Sized> RowIterator for Box<T> {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (**self).begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        (**self).row(out)
    }

    fn close(&mut self) {
        (**self).close();
    }
}

/// Feeds a hash with all that the rows depend on.
pub(crate) type Identity = Arc<dyn Fn(&mut dyn Hasher) -> Result<(), DataError> + Send + Sync>;

/// A source whose rows come one after the other.
#[derive(Clone)]
pub(crate) struct SequentialSource {
    /// The source and its files.
    pub name: String,
    pub schema: Schema,
    /// Rows of an epoch, where that is known beforehand.
    pub rows: Option<u64>,
    /// What reading holds, apart from the row being written.
    pub held: Bytes,
    /// `None` where user code makes the rows.
    pub identity: Option<Identity>,
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
        SequentialSource { name, schema, rows: None, held, identity: None, open: Arc::new(move || Box::new(open())) }
    }

    /// The same with all that its rows depend on.
    pub fn identified(self, identity: impl Fn(&mut dyn Hasher) -> Result<(), DataError> + Send + Sync + 'static) -> SequentialSource {
        SequentialSource { identity: Some(Arc::new(identity)), ..self }
    }

    /// The same with the number of rows of an epoch.
    pub fn with_rows(self, rows: u64) -> SequentialSource {
        SequentialSource { rows: Some(rows), ..self }
    }
}

/// A file that was opened, with random access or without.
pub(crate) enum Opened {
    Indexed(Arc<dyn Source>),
    Sequential(SequentialSource),
}
