//! Blocks: rows as columns of contiguous bytes, in memory of the caller.

use crate::memory::ALIGNMENT;
use crate::schema::Schema;
use plimsoll_core::Bytes;

/// Bytes of the columns of a block, each in its own buffer.
pub(crate) fn column_bytes(schema: &Schema, rows: usize) -> Bytes {
    schema.columns().iter().map(|column| (column.row_bytes() * rows as u64).align_up(ALIGNMENT as u64)).sum()
}

/// The layout of a block of `rows` rows in one allocation: the columns in sequence, each aligned to [`ALIGNMENT`].
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

    /// Bytes of a block.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Rows of a block.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.regions.len()
    }

    /// The bytes of `rows` rows of one column, starting at row `first` of the block.
    pub fn column<'m>(&self, memory: &'m [u8], column: usize, first: usize, rows: usize) -> &'m [u8] {
        let region = &self.regions[column];
        &memory[region.offset + first * region.row_bytes..][..rows * region.row_bytes]
    }

    /// Mutable slices of `rows` rows of every column, in order.
    ///
    /// # Safety
    /// `memory` must be valid for the [bytes](Self::bytes) of a whole block and live for `'m`, and no other reference
    /// may access these rows during `'m`.
    pub(crate) unsafe fn split_raw<'m>(&self, memory: *mut u8, first: usize, rows: usize) -> impl Iterator<Item = &'m mut [u8]> {
        assert!(first <= self.rows && rows <= self.rows - first, "a block has {} rows", self.rows);
        self.regions.iter().map(move |region| {
            // SAFETY: the rows are inside the column's region, and that is inside the block (just checked). Sizes
            // saturate, so a block that exists has regions that neither wrap nor overlap; the caller guarantees the
            // rest.
            unsafe { std::slice::from_raw_parts_mut(memory.add(region.offset + first * region.row_bytes), rows * region.row_bytes) }
        })
    }
}

/// One column of a block to write: `rows` consecutive rows.
pub struct ColumnMut<'m> {
    bytes: &'m mut [u8],
}

impl<'m> ColumnMut<'m> {
    /// A column over bytes of the caller.
    pub fn new(bytes: &'m mut [u8]) -> ColumnMut<'m> {
        ColumnMut { bytes }
    }

    /// All bytes of the column.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// Returns an empty vector with the capacity of a used one, for columns of another lifetime, because a feed must not
/// allocate a list of columns per block. (Collecting from a vector's own iterator reuses its memory; a test relies on
/// it.)
pub(crate) fn recycle<'m>(mut columns: Vec<ColumnMut<'_>>) -> Vec<ColumnMut<'m>> {
    columns.clear();
    columns.into_iter().map(|_| unreachable!("it was cleared")).collect()
}

/// A block for a source to write: every column has the same number of rows, and its own memory.
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

    /// Number of rows to write.
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

/// The rows of the source in a block.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Consecutive rows, starting at this one.
    From(u64),
    /// These rows.
    At(&'a [u64]),
}

impl<'a> Rows<'a> {
    /// The source indices of the first `count` rows.
    pub fn iter(self, count: usize) -> impl Iterator<Item = u64> + Clone + 'a {
        (0..count).map(move |index| self.row(index))
    }

    /// The source index of the block's row `index`.
    pub fn row(&self, index: usize) -> u64 {
        match self {
            Rows::From(first) => first + index as u64,
            Rows::At(rows) => rows[index],
        }
    }
}
