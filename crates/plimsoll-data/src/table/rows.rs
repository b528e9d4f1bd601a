//! The cells of one row, kept until the row is complete.

use super::encode::{Cell, LargeInteger};

/// The cells of a row, copied.
#[derive(Default)]
pub(crate) struct RowBuffer {
    bytes: Vec<u8>,
    cells: Vec<(u32, Stored)>,
}

#[derive(Clone, Copy)]
enum Stored {
    Missing,
    Number(f64),
    Integer(LargeInteger),
    Boolean(bool),
    Text(usize, usize),
    List(usize, usize),
    TooLong(usize),
}

impl RowBuffer {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.cells.clear();
    }

    pub fn push(&mut self, column: usize, cell: Cell<'_>) {
        let start = self.bytes.len();
        let stored = match cell {
            Cell::Missing => Stored::Missing,
            Cell::Number(value) => Stored::Number(value),
            Cell::Integer(integer) => Stored::Integer(integer),
            Cell::Boolean(truth) => Stored::Boolean(truth),
            Cell::TooLong(limit) => Stored::TooLong(limit),
            Cell::Text(text) => {
                self.bytes.extend_from_slice(text);
                Stored::Text(start, self.bytes.len())
            }
            Cell::List(list) => {
                self.bytes.extend_from_slice(list.as_flattened());
                Stored::List(start, self.bytes.len())
            }
        };
        self.cells.push((column as u32, stored));
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, Cell<'_>)> {
        self.cells.iter().map(|(column, stored)| {
            let cell = match *stored {
                Stored::Missing => Cell::Missing,
                Stored::Number(value) => Cell::Number(value),
                Stored::Integer(integer) => Cell::Integer(integer),
                Stored::Boolean(truth) => Cell::Boolean(truth),
                Stored::TooLong(limit) => Cell::TooLong(limit),
                Stored::Text(start, end) => Cell::Text(&self.bytes[start..end]),
                Stored::List(start, end) => Cell::List(self.bytes[start..end].as_chunks().0),
            };
            (*column as usize, cell)
        })
    }
}
