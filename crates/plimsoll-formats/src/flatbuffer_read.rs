//! Reading FlatBuffers table by table; every byte that is held is counted.

use crate::error::{Result, damaged};
use crate::source::{Metadata, Region};

/// A table: where it is, and where its fields are.
pub(crate) struct TableReader<'a> {
    file: &'a Metadata,
    at: u64,
    /// Offsets of the fields from the table; 0 is a field that is not there.
    offsets: Vec<u16>,
    what: &'static str,
}

/// A vector: the position of its first element, and their number.
#[derive(Clone, Copy)]
struct Vector {
    start: u64,
    count: u64,
}

impl<'a> TableReader<'a> {
    /// The root table of a file.
    pub fn root(file: &'a Metadata, what: &'static str) -> Result<TableReader<'a>> {
        let at = u64::from(u32_at(file, 0, what)?);
        TableReader::at(file, at, what)
    }

    fn at(file: &'a Metadata, at: u64, what: &'static str) -> Result<TableReader<'a>> {
        let back = i64::from(u32_at(file, at, what)? as i32);
        let Some(entries) = (at as i64).checked_sub(back).and_then(|entries| u64::try_from(entries).ok()) else {
            return damaged(format!("{what} refers to bytes before the file"));
        };
        let head = file.read(entries, 4, what)?;
        let length = u64::from(u16::from_le_bytes([head[0], head[1]]));
        if length < 4 || !length.is_multiple_of(2) {
            return damaged(format!("{what} has a list of fields of {length} bytes"));
        }
        let bytes = file.read(entries + 4, length - 4, what)?;
        let offsets = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        Ok(TableReader { file, at, offsets, what })
    }

    fn place(&self, id: u16) -> Option<u64> {
        self.offsets.get(usize::from(id)).filter(|offset| **offset != 0).map(|offset| self.at + u64::from(*offset))
    }

    pub fn byte(&self, id: u16) -> Result<Option<u8>> {
        self.place(id).map(|at| Ok(self.file.read(at, 1, self.what)?[0])).transpose()
    }

    pub fn int(&self, id: u16) -> Result<Option<i32>> {
        self.place(id).map(|at| Ok(u32_at(self.file, at, self.what)? as i32)).transpose()
    }

    pub fn float(&self, id: u16) -> Result<Option<f32>> {
        self.place(id).map(|at| Ok(f32::from_bits(u32_at(self.file, at, self.what)?))).transpose()
    }

    /// Where a field refers to.
    fn target(&self, id: u16) -> Result<Option<u64>> {
        let target = |at| Ok(at + u64::from(u32_at(self.file, at, self.what)?));
        self.place(id).map(target).transpose()
    }

    pub fn table(&self, id: u16, what: &'static str) -> Result<Option<TableReader<'a>>> {
        self.target(id)?.map(|at| TableReader::at(self.file, at, what)).transpose()
    }

    fn vector(&self, id: u16, size: u64) -> Result<Option<Vector>> {
        let Some(at) = self.target(id)? else { return Ok(None) };
        let count = u64::from(u32_at(self.file, at, self.what)?);
        // A vector that is not in the file is an error before it is an allocation.
        self.file.region.part(at + 4, count * size, self.what)?;
        Ok(Some(Vector { start: at + 4, count }))
    }

    pub fn text(&self, id: u16) -> Result<String> {
        let Some(vector) = self.vector(id, 1)? else { return Ok(String::new()) };
        let bytes = self.file.read(vector.start, vector.count, self.what)?;
        String::from_utf8(bytes).or_else(|_| damaged(format!("{} has a name that is no UTF-8", self.what)))
    }

    fn elements(&self, id: u16, size: u64) -> Result<Vec<u8>> {
        match self.vector(id, size)? {
            Some(vector) => self.file.read(vector.start, vector.count * size, self.what),
            None => Ok(Vec::new()),
        }
    }

    pub fn ints(&self, id: u16) -> Result<Vec<i32>> {
        Ok(self.elements(id, 4)?.chunks_exact(4).map(|bytes| i32::from_le_bytes(bytes.try_into().expect("four"))).collect())
    }

    pub fn floats(&self, id: u16) -> Result<Vec<f32>> {
        Ok(self.elements(id, 4)?.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four"))).collect())
    }

    pub fn longs(&self, id: u16) -> Result<Vec<i64>> {
        Ok(self.elements(id, 8)?.chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().expect("eight"))).collect())
    }

    /// A vector of bytes, not read yet.
    pub fn region(&self, id: u16) -> Result<Option<Region>> {
        let Some(vector) = self.vector(id, 1)? else { return Ok(None) };
        self.file.region.part(vector.start, vector.count, self.what).map(Some)
    }

    /// The tables of a vector.
    pub fn tables(&self, id: u16, what: &'static str) -> Result<Vec<TableReader<'a>>> {
        let Some(vector) = self.vector(id, 4)? else { return Ok(Vec::new()) };
        let table = |i: u64| {
            let at = vector.start + 4 * i;
            TableReader::at(self.file, at + u64::from(u32_at(self.file, at, what)?), what)
        };
        (0..vector.count).map(table).collect()
    }
}

fn u32_at(file: &Metadata, at: u64, what: &str) -> Result<u32> {
    Ok(u32::from_le_bytes(file.read(at, 4, what)?.try_into().expect("four")))
}
