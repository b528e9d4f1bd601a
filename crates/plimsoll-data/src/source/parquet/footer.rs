//! The footer of a Parquet file: columns, row groups, and the offsets of column chunks.

use super::numbers::ValueType;
use super::thrift::{Compact, Malformed};
use crate::source::columnar::{ColumnInfo, index_columns};
use crate::table::ColumnKind;

/// A leaf column.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// The column of the table; of a struct, with the names of its fields after points.
    pub name: String,
    /// The format's number of the physical type, and the bytes of a value of fixed length.
    pub kind: i64,
    pub length: usize,
    /// The definition level of a value, and of an element of a list.
    pub defined: u8,
    pub element: u8,
    /// How often it is repeated: never, or once for a list.
    pub repeated: u8,
    /// How its values are to be understood, if not as its physical type.
    pub logical: Option<LogicalType>,
}

/// How the values of a column are to be understood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LogicalType {
    /// Unsigned integers of this many bits.
    Unsigned(u64),
    /// Integers, divided by a power of ten.
    Decimal(u32),
    /// Days since 1970.
    Date,
    /// Units since 1970, or of the day; so many are a day.
    Time(f64),
    Float16,
    /// Texts.
    Text,
    /// Values that are not read.
    Other(&'static str),
}

const DAY: f64 = 86_400.0;

impl LogicalType {
    /// From the older annotation of a column, by the format's number.
    fn converted(number: i64, scale: u32) -> Option<LogicalType> {
        Some(match number {
            0 | 4 | 19 => LogicalType::Text,
            1 | 2 => LogicalType::Other("MAP"),
            3 => LogicalType::Other("LIST"),
            5 => LogicalType::Decimal(scale),
            6 => LogicalType::Date,
            7 | 9 => LogicalType::Time(DAY * 1e3),
            8 | 10 => LogicalType::Time(DAY * 1e6),
            11 => LogicalType::Unsigned(8),
            12 => LogicalType::Unsigned(16),
            13 => LogicalType::Unsigned(32),
            14 => LogicalType::Unsigned(64),
            20 => LogicalType::Other("BSON"),
            21 => LogicalType::Other("INTERVAL"),
            _ => return None,
        })
    }

    /// From the newer annotation, a union.
    fn read(from: &mut Compact<'_>) -> Result<Option<LogicalType>, Malformed> {
        let mut found = None;
        from.fields(|from, number, _| {
            found = match number {
                1 | 4 | 12 => Some(LogicalType::Text),
                2 => Some(LogicalType::Other("MAP")),
                3 => Some(LogicalType::Other("LIST")),
                5 => {
                    let mut scale = 0;
                    from.fields(|from, number, _| {
                        if number == 1 {
                            scale = from.count()?;
                        }
                        Ok(number == 1)
                    })?;
                    found = Some(LogicalType::Decimal(u32::try_from(scale).map_err(|_| Malformed::Nonsense)?));
                    return Ok(true);
                }
                6 => Some(LogicalType::Date),
                7 | 8 => {
                    let mut units = 1e6;
                    from.fields(|from, number, _| {
                        if number != 2 {
                            return Ok(false);
                        }
                        from.fields(|_, number, _| {
                            units = [1e3, 1e6, 1e9][usize::try_from(number - 1).unwrap_or(0).min(2)];
                            Ok(false)
                        })?;
                        Ok(true)
                    })?;
                    found = Some(LogicalType::Time(DAY * units));
                    return Ok(true);
                }
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
                13 => Some(LogicalType::Other("BSON")),
                14 => Some(LogicalType::Other("UUID")),
                15 => Some(LogicalType::Float16),
                _ => Some(LogicalType::Other("unknown")),
            };
            Ok(false)
        })?;
        Ok(found)
    }
}

impl Leaf {
    /// What its values become; `Err` with the reason why they are not read.
    pub fn value_type(&self) -> Result<ValueType, &'static str> {
        use ValueType as Of;
        if self.repeated > 1 || self.defined > 100 {
            return Err("nested");
        }
        let value = match (self.kind, self.logical) {
            (_, Some(LogicalType::Other(name))) if name != "LIST" => return Err(name),
            (0, _) => Of::Boolean,
            (1, Some(LogicalType::Unsigned(32))) => Of::U32,
            (1, Some(LogicalType::Decimal(scale))) => Of::I32(10f64.powi(scale as i32)),
            (1, Some(LogicalType::Time(day))) => Of::I32(day),
            (1, _) => Of::I32(1.0),
            (2, Some(LogicalType::Unsigned(64))) => Of::U64,
            (2, Some(LogicalType::Decimal(scale))) => Of::I64(10f64.powi(scale as i32)),
            (2, Some(LogicalType::Time(day))) => Of::I64(day),
            (2, _) => Of::I64(1.0),
            (3, _) => Of::I96,
            (4, _) => Of::F32,
            (5, _) => Of::F64,
            (6, Some(LogicalType::Decimal(scale))) => Of::Decimal(None, 10f64.powi(scale as i32)),
            (7, Some(LogicalType::Decimal(scale))) if self.length > 0 => Of::Decimal(Some(self.length), 10f64.powi(scale as i32)),
            (7, Some(LogicalType::Float16)) if self.length == 2 => Of::F16,
            (6, Some(LogicalType::Text)) => Of::Text,
            (6, None) => Of::Text,
            _ => return Err("bytes"),
        };
        match (self.repeated, value) {
            (1, Of::Text) => Err("list of texts"),
            (_, value) => Ok(value),
        }
    }

    /// The column of the table.
    pub fn info(&self) -> ColumnInfo {
        ColumnInfo { name: self.name.clone(), cells: self.cells(), whole: self.is_whole() }
    }

    /// What its cells hold, or why they are not read.
    pub fn cells(&self) -> Result<ColumnKind, &'static str> {
        Ok(match (self.value_type()?, self.logical) {
            _ if self.repeated == 1 => ColumnKind::List,
            (ValueType::Boolean, _) => ColumnKind::Boolean,
            (ValueType::Text, _) => ColumnKind::Text,
            (ValueType::I96, _) | (_, Some(LogicalType::Date | LogicalType::Time(_))) => ColumnKind::Date,
            _ => ColumnKind::Number,
        })
    }

    /// Whether all of its values are integers.
    fn is_whole(&self) -> bool {
        let whole = |value| match value {
            ValueType::Boolean | ValueType::U32 | ValueType::U64 => true,
            ValueType::I32(by) | ValueType::I64(by) | ValueType::Decimal(_, by) => by == 1.0,
            _ => false,
        };
        self.value_type().is_ok_and(whole)
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

/// A group of columns that is being read.
struct OpenGroup {
    /// Children that are left.
    left: u64,
    name: String,
    defined: u8,
    element: u8,
    repeated: u8,
    /// Whether it is a list, whose inner names are not part of the column's.
    list: bool,
    logical: Option<LogicalType>,
}

/// The schema tree is stored in preorder, each element with its number of children; only leaves have values.
fn leaves(from: &mut Compact<'_>) -> Result<Vec<Leaf>, Malformed> {
    let count = from.list()?;
    let mut leaves = Vec::new();
    // The first is the root.
    let mut open: Vec<OpenGroup> = Vec::new();
    for index in 0..count {
        let (mut name, mut kind, mut repetition, mut children, mut length) = (String::new(), -1, 0, 0, 0);
        let (mut converted, mut logical, mut scale) = (None, None, 0);
        from.fields(|from, number, _| {
            match number {
                1 => kind = from.int()?,
                2 => length = from.count()?,
                3 => repetition = from.int()?,
                4 => name = String::from_utf8_lossy(from.binary()?).into_owned(),
                5 => children = from.count()?,
                6 => converted = Some(from.int()?),
                7 => scale = from.count()?,
                10 => logical = LogicalType::read(from)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let scale = u32::try_from(scale).map_err(|_| Malformed::Nonsense)?;
        let logical = logical.or_else(|| LogicalType::converted(converted?, scale));
        let above = open.last();
        let defined =
            above.map_or(0, |above| above.defined).checked_add(u8::from(repetition != 0 && index > 0)).ok_or(Malformed::Nonsense)?;
        let repeated = above.map_or(0, |above| above.repeated).checked_add(u8::from(repetition == 2)).ok_or(Malformed::Nonsense)?;
        let element = if repetition == 2 { defined } else { above.map_or(0, |above| above.element) };
        let inner = above.is_some_and(|above| above.list);
        let full = match above {
            Some(above) if inner => above.name.clone(),
            Some(above) if open.len() > 1 => format!("{}.{name}", above.name),
            _ => name,
        };
        let is_list = logical == Some(LogicalType::Other("LIST"));
        let list = inner || is_list;
        if children == 0 && index > 0 {
            let outer = above.and_then(|above| above.logical).filter(|logical| *logical != LogicalType::Other("LIST"));
            let length = usize::try_from(length).unwrap_or(0);
            leaves.push(Leaf { name: full.clone(), kind, length, defined, element, repeated, logical: outer.or(logical) });
        }
        if let Some(above) = open.last_mut() {
            above.left = above.left.checked_sub(1).ok_or(Malformed::Nonsense)?;
        }
        if children > 0 {
            let inherited = open.last().and_then(|above| above.logical);
            let logical = inherited.or(logical.filter(|_| !is_list));
            open.push(OpenGroup { left: children, name: full, defined, element, repeated, list, logical });
        }
        while open.len() > 1 && open.last().is_some_and(|open| open.left == 0) {
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
