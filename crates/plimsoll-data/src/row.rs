//! A row by itself.

use crate::ragged::length_of;
use crate::{Extent, Schema};
use plimsoll_core::{Bytes, DType};

/// A row as user code sees it.
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
    /// If there is no such column.
    pub fn bytes(&self, name: &str) -> &'r [u8] {
        let index = self.schema.index_of(name).unwrap_or_else(|| {
            // What stands behind the columns is the number of a row with files.
            let refers = self.bytes.len() > self.schema.row_bytes().get();
            let decoded = if refers { " whose pictures are decoded by now" } else { "" };
            panic!("there is no column `{name}`{decoded}; the columns are {}", self.schema)
        });
        let columns = self.schema.columns();
        let before: Bytes = columns[..index].iter().map(|column| column.row_bytes()).sum();
        &self.bytes[before.get()..][..columns[index].row_bytes().get()]
    }

    /// The numbers of a column, as floats whatever their type.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn numbers(&self, name: &str) -> impl Iterator<Item = f32> + 'r {
        let bytes = self.bytes(name);
        let column = &self.schema.columns()[self.schema.index_of(name).expect("just found")];
        let dtype = column.dtype;
        let bytes = match column.extent {
            Extent::UpTo => &bytes[..length_of(bytes) as usize * (column.elements() / column.shape[0] * dtype.size())],
            _ => bytes,
        };
        bytes.chunks_exact(dtype.size()).map(move |number| match (dtype, number) {
            (DType::U8, [byte]) => f32::from(*byte),
            (DType::I32, &[a, b, c, d]) => i32::from_ne_bytes([a, b, c, d]) as f32,
            (_, &[a, b, c, d]) => f32::from_ne_bytes([a, b, c, d]),
            _ => f32::NAN,
        })
    }

    /// The first number of a column of whole numbers.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn int(&self, name: &str) -> i64 {
        match *self.bytes(name) {
            [byte] => i64::from(byte),
            [a, b, c, d, ..] => i64::from(i32::from_ne_bytes([a, b, c, d])),
            _ => 0,
        }
    }
}
