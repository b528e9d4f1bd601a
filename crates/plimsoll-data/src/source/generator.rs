//! Rows from user iterators.

use super::Tensor;
use super::sequential::{RowIterator, SequentialSource};
use crate::fault::{Fault, guarded};
use crate::{DataError, Schema};
use plimsoll_core::Bytes;
use std::sync::Arc;

/// A user iterator; a row is one tensor per column.
pub type Elements = Box<dyn Iterator<Item = Result<Vec<Tensor>, DataError>> + Send>;

/// Creates the iterator of an epoch.
pub(crate) type Make = Arc<dyn Fn(u64) -> Elements + Send + Sync>;

/// Rows from iterators, a new one each epoch.
pub(crate) struct Generator {
    schema: Schema,
    make: Make,
    rows: Option<Elements>,
    /// Number of calls of the iterator.
    asked: u64,
}

impl Generator {
    /// Creates the source; `held` is the memory that the iterators own.
    pub fn source(schema: Schema, held: Bytes, make: Make) -> SequentialSource {
        // The returned row exists in addition to the one that is written.
        let (of, held) = (schema.clone(), held + schema.row_bytes());
        let open = move || Generator { schema: of.clone(), make: Arc::clone(&make), rows: None, asked: 0 };
        SequentialSource::new("generator".into(), schema, held, open)
    }

    fn write(&self, row: &[Tensor], out: &mut [u8]) -> Result<(), DataError> {
        let columns = self.schema.columns();
        if row.len() != columns.len() {
            let problem = format!("a generator gave {} columns where {} are declared ({})", row.len(), columns.len(), self.schema);
            return Err(DataError::Stage(problem));
        }
        let mut rest = out;
        for (tensor, column) in row.iter().zip(columns) {
            let (part, after) = rest.split_at_mut(column.row_bytes().get());
            tensor.write_row(column, part)?;
            rest = after;
        }
        Ok(())
    }
}

impl RowIterator for Generator {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        // Drop the old iterator first: the plan counts the memory of one.
        (self.rows, self.asked) = (None, 0);
        self.rows = Some(guarded(|| (self.make)(epoch))?);
        Ok(())
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        let Some(rows) = &mut self.rows else { return Ok(false) };
        let number = self.asked;
        self.asked += 1;
        let given = match guarded(|| rows.next()).transpose() {
            None => {
                self.rows = None;
                return Ok(false);
            }
            Some(given) => given.flatten(),
        };
        let written = given.and_then(|row| self.write(&row, out));
        written.map(|()| true).map_err(|error| Fault::row(error).numbered(number, "of the generator"))
    }
}
