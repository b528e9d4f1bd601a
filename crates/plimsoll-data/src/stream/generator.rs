//! Rows that user code gives one after the other.

use super::Stream;
use crate::source::Tensor;
use crate::{DataError, Schema};
use std::sync::Arc;

/// What user code gives: a row is one tensor for each column.
pub type Elements = Box<dyn Iterator<Item = Result<Vec<Tensor>, DataError>> + Send>;

/// Makes the rows of an epoch.
pub(crate) type Make = Arc<dyn Fn(u64) -> Elements + Send + Sync>;

/// The rows of iterators, a new one each epoch.
pub(super) struct Generator {
    schema: Schema,
    make: Make,
    rows: Option<Elements>,
}

impl Generator {
    pub fn new(schema: Schema, make: &Make) -> Generator {
        Generator { schema, make: Arc::clone(make), rows: None }
    }
}

impl Stream for Generator {
    fn begin(&mut self, epoch: u64) -> Result<(), DataError> {
        self.rows = Some((self.make)(epoch));
        Ok(())
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, DataError> {
        let row_bytes = self.schema.row_bytes().get();
        let mut count = 0;
        for out in out.chunks_exact_mut(row_bytes) {
            let Some(row) = self.rows.as_mut().and_then(Iterator::next) else {
                self.rows = None;
                break;
            };
            let row = row?;
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
            count += 1;
        }
        Ok(count)
    }
}
