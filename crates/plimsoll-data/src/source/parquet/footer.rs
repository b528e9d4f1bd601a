//! The footer of a Parquet file: columns, row groups, and the offsets of column chunks.

use super::thrift::{Compact, Malformed};

/// A leaf column.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub name: String,
    /// The format's number of the physical type.
    pub kind: i64,
    /// Whether values may be missing.
    pub optional: bool,
    /// Whether each row has at most one value, that is, the column is not nested or repeated.
    pub plain: bool,
}

/// A column chunk: the part of a column in one row group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chunk {
    pub codec: i64,
    pub values: u64,
    /// Offset of its first page, which is the dictionary if there is one.
    pub start: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RowGroup {
    pub rows: u64,
    pub chunks: Vec<Chunk>,
}

#[derive(Debug, Default)]
pub(super) struct Footer {
    pub leaves: Vec<Leaf>,
    pub groups: Vec<RowGroup>,
}

impl Footer {
    pub fn read(bytes: &[u8]) -> Result<Footer, Malformed> {
        let mut footer = Footer::default();
        Compact::new(bytes).fields(|from, number, _| {
            match number {
                2 => footer.leaves = leaves(from)?,
                4 => footer.groups = (0..from.list()?).map(|_| group(from)).collect::<Result<_, _>>()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(footer)
    }
}

/// The schema tree is stored in preorder, each element with its number of children; only leaves have values.
fn leaves(from: &mut Compact<'_>) -> Result<Vec<Leaf>, Malformed> {
    let count = from.list()?;
    let mut leaves = Vec::new();
    // Children left at each depth; the first is the root.
    let mut open: Vec<u64> = Vec::new();
    for index in 0..count {
        let (mut name, mut kind, mut repetition, mut children) = (String::new(), -1, 0, 0);
        from.fields(|from, number, _| {
            match number {
                1 => kind = from.int()?,
                3 => repetition = from.int()?,
                4 => name = String::from_utf8_lossy(from.binary()?).into_owned(),
                5 => children = from.count()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if children == 0 && index > 0 {
            leaves.push(Leaf { name, kind, optional: repetition == 1, plain: open.len() == 1 && repetition != 2 });
        }
        if let Some(left) = open.last_mut() {
            *left = left.checked_sub(1).ok_or(Malformed::Nonsense)?;
        }
        if children > 0 {
            open.push(children);
        }
        while open.len() > 1 && open.last() == Some(&0) {
            open.pop();
        }
    }
    Ok(leaves)
}

fn group(from: &mut Compact<'_>) -> Result<RowGroup, Malformed> {
    let mut group = RowGroup::default();
    from.fields(|from, number, _| {
        match number {
            1 => group.chunks = (0..from.list()?).map(|_| chunk(from)).collect::<Result<_, _>>()?,
            3 => group.rows = from.count()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(group)
}

fn chunk(from: &mut Compact<'_>) -> Result<Chunk, Malformed> {
    let mut chunk = Chunk::default();
    let mut dictionary = None;
    from.fields(|from, number, _| {
        if number != 3 {
            return Ok(false);
        }
        from.fields(|from, number, _| {
            match number {
                4 => chunk.codec = from.int()?,
                5 => chunk.values = from.count()?,
                7 => chunk.bytes = from.count()?,
                9 => chunk.start = from.count()?,
                11 => dictionary = Some(from.count()?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(true)
    })?;
    // Some writers store 0 if there is no dictionary.
    chunk.start = dictionary.filter(|at| *at > 0).map_or(chunk.start, |at| at.min(chunk.start));
    Ok(chunk)
}

/// A page header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageHeader {
    pub kind: i64,
    pub unpacked: u64,
    pub packed: u64,
    pub values: u64,
    pub encoding: i64,
    /// For version-2 pages: bytes of the levels before the values; only the values may be compressed.
    pub levels: Option<[u64; 2]>,
    pub values_packed: bool,
}

pub(super) const DATA: i64 = 0;
pub(super) const DICTIONARY: i64 = 2;
pub(super) const DATA_V2: i64 = 3;

impl PageHeader {
    /// Parses a page header and returns its length.
    pub fn read(bytes: &[u8]) -> Result<(PageHeader, u64), Malformed> {
        let mut head = PageHeader { values_packed: true, ..PageHeader::default() };
        let mut from = Compact::new(bytes);
        from.fields(|from, number, _| {
            match number {
                1 => head.kind = from.int()?,
                2 => head.unpacked = from.count()?,
                3 => head.packed = from.count()?,
                5 | 7 => from.fields(|from, number, _| {
                    match number {
                        1 => head.values = from.count()?,
                        2 => head.encoding = from.int()?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                8 => {
                    let mut levels = [0; 2];
                    from.fields(|from, number, kind| {
                        match number {
                            1 => head.values = from.count()?,
                            4 => head.encoding = from.int()?,
                            5 => levels[0] = from.count()?,
                            6 => levels[1] = from.count()?,
                            7 => head.values_packed = Compact::truth(kind),
                            _ => return Ok(false),
                        }
                        Ok(true)
                    })?;
                    head.levels = Some(levels);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok((head, from.at() as u64))
    }
}
