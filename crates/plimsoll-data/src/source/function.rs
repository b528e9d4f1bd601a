//! Rows computed by a closure from their index.

use super::Source;
use crate::block::{BlockMut, Rows};
use crate::ragged::write_length;
use crate::{Column, DataError, Extent, Schema};
use plimsoll_core::DType;

/// One row for user code to write, column by column. Columns that are not written are 0, or empty if they [vary in
/// length](crate::Column::up_to).
pub struct RowMut<'r, 'a, 'm> {
    schema: &'r Schema,
    index: usize,
    block: &'r mut BlockMut<'a, 'm>,
}

impl RowMut<'_, '_, '_> {
    /// The bytes of a column of this row.
    ///
    /// # Panics
    /// If there is no such column. The pipeline reports that as an error with the existing column names.
    pub fn bytes(&mut self, column: usize) -> &mut [u8] {
        let row_bytes = self.declared(column).unwrap_or_else(|error| error.unwind()).row_bytes().get();
        &mut self.block.column(column)[self.index * row_bytes..][..row_bytes]
    }

    /// Writes a column of f32.
    pub fn f32(&mut self, column: usize, values: &[f32]) -> Result<(), DataError> {
        let out = self.place(column, DType::F32, values.len())?;
        out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_ne_bytes());
        Ok(())
    }

    /// Writes a column of i32.
    pub fn i32(&mut self, column: usize, values: &[i32]) -> Result<(), DataError> {
        let out = self.place(column, DType::I32, values.len())?;
        out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_ne_bytes());
        Ok(())
    }

    /// Writes a column of u8.
    pub fn u8(&mut self, column: usize, values: &[u8]) -> Result<(), DataError> {
        self.place(column, DType::U8, values.len())?.copy_from_slice(values);
        Ok(())
    }

    /// The destination of `count` values; also sets the length of a row that varies in length.
    fn place(&mut self, column: usize, dtype: DType, count: usize) -> Result<&mut [u8], DataError> {
        self.check(column, dtype, count)?;
        let declared = &self.schema.columns()[column];
        let length = (declared.extent == Extent::UpTo).then(|| count / each(declared));
        let row = self.bytes(column);
        length.iter().for_each(|length| write_length(row, *length as u32));
        Ok(&mut row[..count * dtype.size()])
    }

    fn declared(&self, column: usize) -> Result<&Column, DataError> {
        self.schema.columns().get(column).ok_or_else(|| {
            let problem = format!("is not there: the schema declares {}", self.schema);
            DataError::Schema { column: column.to_string(), problem }
        })
    }

    fn check(&self, column: usize, dtype: DType, count: usize) -> Result<(), DataError> {
        let declared = self.declared(column)?;
        let fits = match declared.extent {
            Extent::UpTo => count <= declared.elements() && count.is_multiple_of(each(declared)),
            _ => count == declared.elements(),
        };
        if declared.dtype != dtype || !fits {
            let problem = format!("is declared as {declared}, and {count} values of {dtype} were written to it");
            return Err(DataError::Schema { column: declared.name.clone(), problem });
        }
        Ok(())
    }
}

/// Elements per step along the first dimension.
fn each(column: &Column) -> usize {
    column.elements() / column.shape[0]
}

/// The source of a closure.
pub struct Function<F> {
    schema: Schema,
    rows: u64,
    make: F,
}

impl<F: Fn(u64, &mut RowMut<'_, '_, '_>) -> Result<(), DataError> + Send + Sync> Function<F> {
    /// `rows` rows of this schema; `make(n, row)` writes row `n`, on any thread and in any order.
    pub fn new(schema: Schema, rows: u64, make: F) -> Function<F> {
        Function { schema, rows, make }
    }
}

impl<F: Fn(u64, &mut RowMut<'_, '_, '_>) -> Result<(), DataError> + Send + Sync> Source for Function<F> {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.rows
    }

    fn write_rows(&self, rows: Rows<'_>, _scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for column in 0..self.schema.columns().len() {
            out.column(column).fill(0);
        }
        for (index, row) in rows.iter(out.rows()).enumerate() {
            (self.make)(row, &mut RowMut { schema: &self.schema, index, block: out })?;
        }
        Ok(())
    }

    fn describe(&self) -> String {
        format!("{} rows of a function", self.rows)
    }
}
