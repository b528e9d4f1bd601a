//! Single rows.

use crate::number::numbers;
use crate::{Column, DataError, Schema};
use plimsoll_core::{Bytes, DType};

/// A row, as passed to user code.
pub struct Row<'r> {
    schema: &'r Schema,
    bytes: &'r [u8],
}

impl<'r> Row<'r> {
    pub(crate) fn new(schema: &'r Schema, bytes: &'r [u8]) -> Row<'r> {
        Row { schema, bytes }
    }

    /// The columns.
    pub fn schema(&self) -> &'r Schema {
        self.schema
    }

    /// The bytes of a column.
    ///
    /// # Panics
    /// If there is no such column. The pipeline reports that as an error with the existing column names.
    pub fn bytes(&self, name: &str) -> &'r [u8] {
        self.column(name).1
    }

    /// The elements of a column as f64, for any dtype: exact except for i64 beyond 2⁵³. If rows [vary in
    /// length](Column::up_to), without padding.
    ///
    /// # Panics
    /// As [`bytes`](Self::bytes).
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Tensor};
    /// let rows = Dataset::from_tensor_slices([("x", Tensor::i32([3], [16_777_217, 2, 3])?)])?;
    /// assert_eq!(rows.filter(|row| row.numbers("x").all(|x| x == 16_777_217.0)).batch(1).count_rows()?, 1);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn numbers(&self, name: &str) -> impl Iterator<Item = f64> + 'r {
        let (column, bytes) = self.column(name);
        numbers(column.dtype, column.elements_of(bytes))
    }

    /// The first element of an integer column.
    ///
    /// # Panics
    /// As [`bytes`](Self::bytes), and if the column holds floats.
    pub fn int(&self, name: &str) -> i64 {
        let (column, bytes) = self.column(name);
        let first = bytes.get(..column.dtype.size()).unwrap_or_default();
        match (column.dtype, first) {
            (DType::U8, &[byte]) => i64::from(byte),
            (DType::I32, &[a, b, c, d]) => i64::from(i32::from_ne_bytes([a, b, c, d])),
            (DType::I64, &[a, b, c, d, e, f, g, h]) => i64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            _ => {
                let problem = format!("holds {} and is read as an integer; use Row::numbers", column.dtype);
                DataError::Schema { column: name.into(), problem }.unwind()
            }
        }
    }

    fn column(&self, name: &str) -> (&'r Column, &'r [u8]) {
        let columns = self.schema.columns();
        let Some(index) = self.schema.index_of(name) else {
            // A row whose images are not decoded yet has its index after the columns.
            let undecoded = self.bytes.len() > self.schema.row_bytes().get();
            let have = columns.iter().map(|column| column.name.clone()).collect();
            DataError::NoColumn { name: name.into(), have, undecoded }.unwind()
        };
        let before: Bytes = columns[..index].iter().map(|column| column.row_bytes()).sum();
        let column = &columns[index];
        (column, &self.bytes[before.get()..][..column.row_bytes().get()])
    }
}
