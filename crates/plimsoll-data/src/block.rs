//! Blocks: rows of columns as contiguous bytes in memory that somebody else owns.

use crate::memory::ALIGNMENT;
use crate::schema::Schema;
use plimsoll_core::Bytes;

/// Bytes of the columns of a block, each in a buffer of its own.
pub(crate) fn column_bytes(schema: &Schema, rows: usize) -> Bytes {
    schema.columns().iter().map(|column| (column.row_bytes() * rows as u64).align_up(ALIGNMENT as u64)).sum()
}

/// Where the columns of a block of `rows` rows lie in one piece of memory: one after the other, each from a multiple
/// of [`ALIGNMENT`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    regions: Vec<Region>,
    rows: usize,
    bytes: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Region {
    offset: usize,
    row_bytes: usize,
}

impl BlockLayout {
    /// The layout of `rows` rows of `schema`.
    pub fn new(schema: &Schema, rows: usize) -> BlockLayout {
        let mut bytes = Bytes::ZERO;
        let mut regions = Vec::with_capacity(schema.columns().len());
        for column in schema.columns() {
            let stride = (column.row_bytes() * rows as u64).align_up(ALIGNMENT as u64);
            regions.push(Region { offset: bytes.get(), row_bytes: column.row_bytes().get() });
            bytes += stride;
        }
        BlockLayout { regions, rows, bytes }
    }

    /// Bytes of a whole block.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Rows of a whole block.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.regions.len()
    }

    /// The bytes of `rows` rows of one column, from row `first` of the block.
    pub fn column<'m>(&self, memory: &'m [u8], column: usize, first: usize, rows: usize) -> &'m [u8] {
        let region = &self.regions[column];
        &memory[region.offset + first * region.row_bytes..][..rows * region.row_bytes]
    }

    /// The same for every column in order, to be written.
    ///
    /// # Safety
    /// `memory` is that of a whole block, lives for `'m`, and nobody else reads or writes these rows as long.
    pub(crate) unsafe fn split_raw<'m>(&self, memory: *mut u8, first: usize, rows: usize) -> impl Iterator<Item = &'m mut [u8]> {
        assert!(first + rows <= self.rows, "a block has {} rows", self.rows);
        self.regions.iter().map(move |region| {
            // SAFETY: the rows are inside the column's region, and that inside the block (just checked); regions do not overlap, and
            // the caller vouches for the rest.
            unsafe { std::slice::from_raw_parts_mut(memory.add(region.offset + first * region.row_bytes), rows * region.row_bytes) }
        })
    }
}

/// One column of a block, to be written: `rows` rows, one after the other.
pub struct ColumnMut<'m> {
    bytes: &'m mut [u8],
}

impl<'m> ColumnMut<'m> {
    /// A column over caller-owned bytes.
    pub fn new(bytes: &'m mut [u8]) -> ColumnMut<'m> {
        ColumnMut { bytes }
    }

    /// All bytes of the column.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// An empty vector with the capacity of a used one, for columns of another lifetime: a feed makes a list of columns for
/// each block and must not allocate it. (Collecting from a vector's own iterator reuses its memory; a test counts on it.)
pub(crate) fn recycle<'m>(mut columns: Vec<ColumnMut<'_>>) -> Vec<ColumnMut<'m>> {
    columns.clear();
    columns.into_iter().map(|_| unreachable!("it was cleared")).collect()
}

/// A block to be written by a source: the same number of rows in every column, each column in memory of its own.
pub struct BlockMut<'a, 'm> {
    rows: usize,
    columns: &'a mut [ColumnMut<'m>],
}

impl<'a, 'm> BlockMut<'a, 'm> {
    /// A block of `rows` rows over `columns`.
    ///
    /// # Panics
    /// If the columns are not those of `schema` or one does not hold exactly `rows` rows.
    pub fn new(schema: &Schema, rows: usize, columns: &'a mut [ColumnMut<'m>]) -> BlockMut<'a, 'm> {
        assert_eq!(schema.columns().len(), columns.len(), "a block has the columns of its schema");
        for (column, memory) in schema.columns().iter().zip(columns.iter()) {
            assert_eq!(memory.bytes.len(), column.row_bytes().get() * rows, "column `{}` holds {rows} rows", column.name);
        }
        BlockMut { rows, columns }
    }

    /// How many rows are to be written.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The bytes of one column.
    pub fn column(&mut self, index: usize) -> &mut [u8] {
        self.columns[index].bytes()
    }

    /// All columns.
    pub fn columns(&mut self) -> &mut [ColumnMut<'m>] {
        self.columns
    }
}

/// Which rows of the source a block holds.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Rows from this one on.
    From(u64),
    /// These rows.
    At(&'a [u64]),
}

impl Rows<'_> {
    /// The source's number of the block's row `index`.
    pub fn row(&self, index: usize) -> u64 {
        match self {
            Rows::From(first) => first + index as u64,
            Rows::At(rows) => rows[index],
        }
    }
}
