//! A Parquet file: its footer, and the page headers of the columns that are read.

use super::codec;
use super::footer::{Chunk, DATA, DATA_V2, DICTIONARY, Footer, Leaf, PageHeader};
use super::numbers::ValueType;
use super::thrift::Malformed;
use super::values::AHEAD;
use crate::DataError;
use crate::source::columnar::BLOCK;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 4] = b"PAR1";

/// Larger numbers mean corruption: the footer, a page, the values of a page.
const LARGEST_FOOTER: u64 = 64 << 20;
const LARGEST_PAGE: u64 = 256 << 20;
const MOST_VALUES: u64 = 16 << 20;

/// A page header is a few dozen bytes, or more with statistics of long strings.
const HEAD: usize = 512;
const LONGEST_HEAD: usize = 64 << 10;

/// A file whose footer was read.
pub(super) struct ParquetFile {
    pub path: PathBuf,
    pub file: File,
    length: u64,
    /// Rows of each group, and before the first of them.
    pub groups: Vec<u64>,
    rows_before: u64,
    /// The columns that are read, in the order of the used columns of the table.
    pub columns: Vec<ProjectedColumn>,
}

pub(super) struct ProjectedColumn {
    pub leaf: Leaf,
    pub value: ValueType,
    pub chunks: Vec<Chunk>,
    pub largest: PageLimits,
}

/// Maximum page sizes of a column, from which the memory is planned.
#[derive(Clone, Copy, Default)]
pub(super) struct PageLimits {
    packed: u64,
    unpacked: u64,
    values: u64,
    /// Values that are decoded at once, and words that are looked up ahead.
    decoded: u64,
    ahead: u64,
    dictionary: u64,
    dictionary_bytes: u64,
    /// Memory of unpacking.
    codec: u64,
}

impl PageLimits {
    fn add(&mut self, head: &PageHeader, codec: i64) {
        if head.kind == DICTIONARY {
            self.dictionary = self.dictionary.max(head.values);
            self.dictionary_bytes = self.dictionary_bytes.max(head.unpacked);
        } else {
            self.values = self.values.max(head.values);
            let in_parts = matches!(head.encoding, 0 | 2 | 8);
            self.decoded = self.decoded.max(if in_parts { head.values.min(BLOCK as u64) } else { head.values });
            self.ahead = self.ahead.max(if matches!(head.encoding, 2 | 8) { head.values.min(AHEAD as u64) } else { 0 });
        }
        self.packed = self.packed.max(head.packed);
        self.unpacked = self.unpacked.max(head.unpacked).max(head.packed);
        self.codec = self.codec.max(codec::bytes(codec, head.unpacked));
    }

    pub fn has(&self, head: &PageHeader, codec: i64) -> bool {
        let mut with = *self;
        with.add(head, codec);
        let all = |limits: &PageLimits| {
            let values = (limits.values, limits.decoded, limits.ahead, limits.dictionary);
            (limits.packed, limits.unpacked, values, limits.dictionary_bytes)
        };
        all(&with) == all(self)
    }

    /// Larger of both in each respect.
    fn merge(&mut self, other: &PageLimits) {
        self.packed = self.packed.max(other.packed);
        self.unpacked = self.unpacked.max(other.unpacked);
        self.values = self.values.max(other.values);
        self.decoded = self.decoded.max(other.decoded);
        self.ahead = self.ahead.max(other.ahead);
        self.dictionary = self.dictionary.max(other.dictionary);
        self.dictionary_bytes = self.dictionary_bytes.max(other.dictionary_bytes);
        self.codec = self.codec.max(other.codec);
    }

    /// Memory of reading a column.
    fn bytes(&self, column: &ProjectedColumn) -> u64 {
        let values = match column.value {
            // Indices or lengths, the dictionary with its words, those of the values ahead, and the current text where
            // texts share prefixes.
            ValueType::Text => 8 * self.values + 8 * self.dictionary + self.dictionary_bytes + self.unpacked + 4 * self.ahead,
            ValueType::Decimal(..) | ValueType::Boolean => 12 * self.dictionary + 24 * self.values,
            // Numbers, and the words of the dictionary and of the values ahead.
            _ => 8 * (self.decoded.max(BLOCK as u64) + self.dictionary) + 4 * (self.dictionary + self.ahead),
        };
        let levels = self.values * (u64::from(column.leaf.defined > 0) + u64::from(column.leaf.repeated > 0));
        self.packed + self.unpacked + values + levels + (64 << 10)
    }
}

/// Memory of reading these columns of all files, of which one is open at a time.
pub(super) fn reading_bytes(files: &[ParquetFile]) -> u64 {
    let columns = files.first().map_or(0, |file| file.columns.len());
    let (mut sum, mut codec) = (0, 0);
    for at in 0..columns {
        let mut limits = PageLimits::default();
        files.iter().for_each(|file| limits.merge(&file.columns[at].largest));
        sum += limits.bytes(&files[0].columns[at]);
        codec = codec.max(limits.codec);
    }
    sum + codec
}

impl ParquetFile {
    /// Opens a file and reads its footer.
    pub fn open(path: &Path) -> Result<(ParquetFile, Footer), DataError> {
        let refuse = |problem: String| DataError::Parquet { path: path.to_path_buf(), problem };
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let length = file.metadata().map_err(|error| DataError::io("examine", path, error))?.len();
        let footer = read_footer(&file, length).map_err(refuse)?;
        let groups: Vec<u64> = footer.groups.iter().map(|group| group.rows).collect();
        let rows = groups.iter().try_fold(0u64, |rows, group| rows.checked_add(*group));
        rows.filter(|rows| *rows < 1 << 48).ok_or_else(|| refuse("its groups have more rows than any file".into()))?;
        Ok((ParquetFile { path: path.to_path_buf(), file, length, groups, rows_before: 0, columns: Vec::new() }, footer))
    }

    /// Selects row groups and columns, by their leaves, and reads the headers of their pages.
    pub fn project(&mut self, footer: &Footer, groups: std::ops::Range<usize>, leaves: &[usize]) -> Result<(), DataError> {
        let refuse = |problem: String| DataError::Parquet { path: self.path.clone(), problem };
        let Some(chosen) = footer.groups.get(groups.clone()) else {
            return Err(refuse(format!("it has {} groups of rows, and {groups:?} were asked for", footer.groups.len())));
        };
        self.groups = chosen.iter().map(|group| group.rows).collect();
        self.rows_before = footer.groups[..groups.start].iter().map(|group| group.rows).sum();
        self.columns.clear();
        for &at in leaves {
            let leaf = footer.leaves[at].clone();
            let value = leaf.value_type().map_err(|reason| {
                refuse(format!(
                    "its column `{}` is not read ({reason}); leave it out, or write numbers, texts or lists of numbers",
                    leaf.name
                ))
            })?;
            let chunk = |group: &super::footer::RowGroup| {
                group.chunks.get(at).copied().filter(|chunk| chunk.values == group.rows || leaf.repeated > 0 && chunk.values >= group.rows)
            };
            let Some(chunks) = chosen.iter().map(chunk).collect::<Option<Vec<Chunk>>>() else {
                return Err(refuse(format!("its column `{}` has not as many values as there are rows; the file is damaged", leaf.name)));
            };
            let mut column = ProjectedColumn { leaf, value, chunks, largest: PageLimits::default() };
            column.largest = self.measure(&column)?;
            self.columns.push(column);
        }
        Ok(())
    }

    /// The row of the file that a group begins with.
    pub fn first_row(&self, group: usize) -> u64 {
        self.rows_before + self.groups[..group].iter().sum::<u64>()
    }

    pub fn broken(&self, name: &str, at: u64, problem: impl std::fmt::Display) -> DataError {
        DataError::Record { path: self.path.clone(), at, problem: format!("a page of column `{name}` {problem}") }
    }

    /// Reads all page headers of a column.
    fn measure(&self, column: &ProjectedColumn) -> Result<PageLimits, DataError> {
        let mut largest = PageLimits::default();
        let broken = |at: u64, problem: &str| self.broken(&column.leaf.name, at, problem);
        for chunk in &column.chunks {
            codec::check(chunk.codec).map_err(|problem| broken(chunk.start, &problem))?;
            let (mut at, mut left) = (chunk.start, chunk.values);
            while left > 0 {
                let (head, data) = self.head(&column.leaf.name, at)?;
                let end = data.checked_add(head.packed).filter(|end| *end <= self.length);
                let sound = head.unpacked <= LARGEST_PAGE && head.values <= MOST_VALUES && (head.kind != DATA || head.values > 0);
                let Some(end) = end.filter(|_| sound) else {
                    return Err(broken(at, "promises more than there can be; the file is damaged"));
                };
                largest.add(&head, chunk.codec);
                // Other pages, such as dictionaries, have no rows; each has at least one byte, so the loop ends.
                if matches!(head.kind, DATA | DATA_V2) {
                    let more = "has more values than its group has rows; the file is damaged";
                    left = left.checked_sub(head.values).ok_or_else(|| broken(at, more))?;
                }
                at = end;
            }
        }
        Ok(largest)
    }

    /// The page header at `at`, and the offset of the page's bytes.
    pub fn head(&self, name: &str, at: u64) -> Result<(PageHeader, u64), DataError> {
        let mut small = [0; HEAD];
        let read = |buffer: &mut [u8]| {
            self.file.read_at(buffer, at).map_err(|error| DataError::io(format!("read byte {at} of"), &self.path, error))
        };
        let count = read(&mut small)?;
        let mut head = PageHeader::read(&small[..count]);
        if head.as_ref().err() == Some(&Malformed::Short) && count == HEAD {
            let mut large = vec![0; LONGEST_HEAD];
            let count = read(&mut large)?;
            head = PageHeader::read(&large[..count]);
        }
        let (head, bytes) = head.map_err(|_| self.broken(name, at, "has no head that can be read; the file is damaged"))?;
        Ok((head, at + bytes))
    }
}

fn read_footer(file: &File, length: u64) -> Result<Footer, String> {
    const DAMAGED: &str = "its end cannot be read; the file is damaged or cut off, copy or write it again";
    let mut tail = [0; 8];
    let at = length.checked_sub(8).filter(|at| *at >= 4).ok_or("it is no Parquet file")?;
    file.read_exact_at(&mut tail, at).map_err(|_| DAMAGED)?;
    let (size, magic) = tail.split_at(4);
    if magic == b"PARE" {
        return Err("it is encrypted, which is not supported; write it without encryption".into());
    }
    if magic != MAGIC {
        return Err("it is no Parquet file, or its end is cut off".into());
    }
    let size = u64::from(u32::from_le_bytes(size.try_into().expect("four bytes")));
    let start = at.checked_sub(size).filter(|_| size <= LARGEST_FOOTER).ok_or(DAMAGED)?;
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, start).map_err(|_| DAMAGED)?;
    Footer::read(&bytes).map_err(|_| DAMAGED.into())
}
