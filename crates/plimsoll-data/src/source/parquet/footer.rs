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
    /// The column of the table that it belongs to, if it is nested in one.
    pub column: String,
    /// How its values are to be understood, if not as its physical type.
    pub logical: Option<LogicalType>,
}

/// How the values of a column are to be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LogicalType {
    /// Unsigned integers of this many bits.
    Unsigned(u64),
    /// Numbers that are stored as other numbers, such as DECIMAL or DATE.
    Stored(&'static str),
    /// Values that are no numbers.
    Other(&'static str),
}

impl LogicalType {
    /// From the older annotation of a column, by the format's number.
    fn converted(number: i64) -> Option<LogicalType> {
        Some(match number {
            0 => LogicalType::Other("STRING"),
            1 | 2 => LogicalType::Other("MAP"),
            3 => LogicalType::Other("LIST"),
            4 => LogicalType::Other("ENUM"),
            5 => LogicalType::Stored("DECIMAL"),
            6 => LogicalType::Stored("DATE"),
            7 | 8 => LogicalType::Stored("TIME"),
            9 | 10 => LogicalType::Stored("TIMESTAMP"),
            11 => LogicalType::Unsigned(8),
            12 => LogicalType::Unsigned(16),
            13 => LogicalType::Unsigned(32),
            14 => LogicalType::Unsigned(64),
            19 => LogicalType::Other("JSON"),
            20 => LogicalType::Other("BSON"),
            21 => LogicalType::Stored("INTERVAL"),
            _ => return None,
        })
    }

    /// From the newer annotation, a union.
    fn read(from: &mut Compact<'_>) -> Result<Option<LogicalType>, Malformed> {
        let mut found = None;
        from.fields(|from, number, _| {
            found = match number {
                1 => Some(LogicalType::Other("STRING")),
                2 => Some(LogicalType::Other("MAP")),
                3 => Some(LogicalType::Other("LIST")),
                4 => Some(LogicalType::Other("ENUM")),
                5 => Some(LogicalType::Stored("DECIMAL")),
                6 => Some(LogicalType::Stored("DATE")),
                7 => Some(LogicalType::Stored("TIME")),
                8 => Some(LogicalType::Stored("TIMESTAMP")),
                10 => {
                    let (mut bits, mut signed) = (64, true);
                    from.fields(|from, number, kind| {
                        match number {
                            1 => bits = u64::from(from.byte()?),
                            2 => signed = Compact::truth(kind),
                            _ => return Ok(false),
                        }
                        Ok(true)
                    })?;
                    found = (!signed).then_some(LogicalType::Unsigned(bits));
                    return Ok(true);
                }
                11 => Some(LogicalType::Other("NULL")),
                12 => Some(LogicalType::Other("JSON")),
                13 => Some(LogicalType::Other("BSON")),
                14 => Some(LogicalType::Other("UUID")),
                15 => Some(LogicalType::Stored("FLOAT16")),
                _ => Some(LogicalType::Other("unknown")),
            };
            Ok(false)
        })?;
        Ok(found)
    }

    /// Its name, if reading the physical type would give other numbers.
    pub fn misread(&self) -> Option<String> {
        match self {
            LogicalType::Unsigned(8 | 16) | LogicalType::Other(_) => None,
            LogicalType::Unsigned(bits) => Some(format!("UINT{bits}")),
            LogicalType::Stored(name) => Some(name.to_string()),
        }
    }

    pub fn name(&self) -> String {
        match self {
            LogicalType::Unsigned(bits) => format!("UINT{bits}"),
            LogicalType::Stored(name) | LogicalType::Other(name) => name.to_string(),
        }
    }
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
    /// The columns that pandas wrote as its index.
    pub index: Vec<String>,
}

impl Footer {
    pub fn read(bytes: &[u8]) -> Result<Footer, Malformed> {
        let mut footer = Footer::default();
        Compact::new(bytes).fields(|from, number, _| {
            match number {
                2 => footer.leaves = leaves(from)?,
                4 => footer.groups = (0..from.list()?).map(|_| group(from)).collect::<Result<_, _>>()?,
                5 => {
                    for _ in 0..from.list()? {
                        footer.index.extend(pandas_index(from)?);
                    }
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(footer)
    }
}

/// The index columns in a key and value of the file's metadata, if pandas wrote it.
fn pandas_index(from: &mut Compact<'_>) -> Result<Vec<String>, Malformed> {
    let (mut key, mut value) = (&b""[..], &b""[..]);
    from.fields(|from, number, _| {
        match number {
            1 => key = from.binary()?,
            2 => value = from.binary()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(if key == b"pandas" { index_columns(&String::from_utf8_lossy(value)) } else { Vec::new() })
}

/// The texts in the list `index_columns` of a JSON object. An entry that is an object describes an index that is no
/// column, such as a range.
fn index_columns(json: &str) -> Vec<String> {
    let list = json.split_once("\"index_columns\"").and_then(|(_, rest)| rest.trim_start().strip_prefix(':'));
    let Some(mut rest) = list.and_then(|rest| rest.trim_start().strip_prefix('[')) else { return Vec::new() };
    let (mut names, mut depth) = (Vec::new(), 0usize);
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        match first {
            '"' => {
                let mut name = String::new();
                let mut letters = rest.char_indices();
                let end = loop {
                    match letters.next() {
                        Some((at, '"')) => break at + 1,
                        Some((_, '\\')) => name.extend(letters.next().map(|(_, letter)| letter)),
                        Some((_, letter)) => name.push(letter),
                        None => break rest.len(),
                    }
                };
                rest = &rest[end..];
                if depth == 0 {
                    names.push(name);
                }
            }
            '{' | '[' => depth += 1,
            ']' if depth == 0 => break,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    names
}

/// The schema tree is stored in preorder, each element with its number of children; only leaves have values.
fn leaves(from: &mut Compact<'_>) -> Result<Vec<Leaf>, Malformed> {
    let count = from.list()?;
    let mut leaves = Vec::new();
    // Children left at each depth; the first is the root.
    let mut open: Vec<u64> = Vec::new();
    let mut column = (String::new(), None);
    for index in 0..count {
        let (mut name, mut kind, mut repetition, mut children) = (String::new(), -1, 0, 0);
        let (mut converted, mut logical) = (None, None);
        from.fields(|from, number, _| {
            match number {
                1 => kind = from.int()?,
                3 => repetition = from.int()?,
                4 => name = String::from_utf8_lossy(from.binary()?).into_owned(),
                5 => children = from.count()?,
                6 => converted = LogicalType::converted(from.int()?),
                10 => logical = LogicalType::read(from)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let logical = logical.or(converted);
        if open.len() == 1 {
            column = (name.clone(), logical.clone());
        }
        if children == 0 && index > 0 {
            let plain = open.len() == 1 && repetition != 2;
            let logical = if plain { logical } else { column.1.clone().or(Some(LogicalType::Other("nested"))) };
            leaves.push(Leaf { name, kind, optional: repetition == 1, plain, column: column.0.clone(), logical });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pandas_names_its_index() {
        for (json, names) in [
            (r#"{"index_columns": ["__index_level_0__"], "columns": []}"#, vec!["__index_level_0__"]),
            (r#"{"columns": [], "index_columns":["id", "a \" b"] }"#, vec!["id", "a \" b"]),
            (r#"{"index_columns": [{"kind": "range", "name": null, "start": 0, "stop": 3}], "columns": []}"#, vec![]),
            (r#"{"index_columns": ["cut"#, vec!["cut"]),
            (r#"{"columns": []}"#, vec![]),
        ] {
            assert_eq!(index_columns(json), names, "{json}");
        }
    }
}
