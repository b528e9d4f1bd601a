//! Parquet: columns of numbers, page by page. Only the columns that are asked for are read, and of the groups of rows only those.
//!
//! Every page's head is looked at when the file is opened, so what reading takes is known before anything is held. Rows come one after the
//! other: inside a page there is no way to a row but past those before it.

mod footer;
mod page;
mod thrift;

use crate::dataset::Dataset;
use crate::{Column, DataError, Schema, Tensor};
use footer::{Chunk, DATA, DICTIONARY, Footer, Head, NEWER_DATA};
use page::{Number, Pages};
use plimsoll_core::{Bytes, DType};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thrift::Broken;

/// Which columns of a Parquet file are used, and how.
#[derive(Clone, Debug, Default)]
pub struct ParquetSpec {
    features: Option<Vec<String>>,
    targets: Vec<String>,
    groups: Option<Range<usize>>,
}

impl ParquetSpec {
    /// Every column of numbers becomes a part of `x`.
    pub fn new() -> ParquetSpec {
        ParquetSpec::default()
    }

    /// Only these columns become `x`, in this order.
    pub fn features<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> ParquetSpec {
        self.features = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// These columns become `y`: one of whole numbers as i32, others as f32.
    pub fn targets<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> ParquetSpec {
        self.targets = names.into_iter().map(Into::into).collect();
        self
    }

    /// Only these groups of rows, counted from 0.
    pub fn row_groups(mut self, groups: Range<usize>) -> ParquetSpec {
        self.groups = Some(groups);
        self
    }
}

impl Dataset {
    /// Columns of numbers of a Parquet file, as a [stream](Dataset#streams): `x` f32, and `y` if there are targets.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, source::ParquetSpec};
    /// let missing = Dataset::parquet("no/such.parquet", &ParquetSpec::new());
    /// assert_eq!(missing.unwrap_err().to_string(), "cannot open no/such.parquet: No such file or directory (os error 2)");
    /// ```
    pub fn parquet(path: impl AsRef<Path>, spec: &ParquetSpec) -> Result<Dataset, DataError> {
        let table = Table::open(path.as_ref(), spec)?;
        let x = Column::new("x", DType::F32, [table.features]);
        let schema = match &table.used[table.features..] {
            [] => vec![x],
            [used] if used.number.is_whole() => vec![x, Column::new("y", DType::I32, [])],
            targets => vec![x, Column::new("y", DType::F32, [targets.len()])],
        };
        let (schema, rows, held) = (Schema::new(schema)?, table.rows, table.held);
        let name = format!("parquet {}", table.path.display());
        let table = Arc::new(table);
        let make = move |_epoch| Rows { readers: None, table: Arc::clone(&table), row: 0 };
        Ok(Dataset::from_rows(name, schema, held, make).assert_cardinality(rows))
    }
}

/// A file whose end and whose pages' heads were read.
struct Table {
    path: PathBuf,
    file: File,
    /// Those of `x`, then those of `y`.
    used: Vec<Used>,
    features: usize,
    rows: u64,
    held: Bytes,
}

struct Used {
    name: String,
    number: Number,
    optional: bool,
    chunks: Vec<Chunk>,
}

const MAGIC: &[u8; 4] = b"PAR1";

/// Larger numbers than these are damage: the end of a file, a page, the values of one.
const LARGEST_FOOTER: u64 = 64 << 20;
const LARGEST_PAGE: u64 = 256 << 20;
const MOST_VALUES: u64 = 16 << 20;

/// A page's head is a few dozen bytes; with the least and the greatest of long texts it may be more.
const HEAD: usize = 512;
const LONGEST_HEAD: usize = 64 << 10;

impl Table {
    fn open(path: &Path, spec: &ParquetSpec) -> Result<Table, DataError> {
        let refuse = |problem: String| DataError::Parquet { path: path.to_path_buf(), problem };
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let length = file.metadata().map_err(|error| DataError::io("examine", path, error))?.len();
        let footer = read_footer(&file, length).map_err(refuse)?;
        let find = |name: &String| {
            let found = footer.leaves.iter().position(|leaf| leaf.name == *name);
            let names = || footer.leaves.iter().map(|leaf| leaf.name.as_str()).collect::<Vec<_>>().join(", ");
            found.ok_or_else(|| refuse(format!("it has no column `{name}`; its columns are {}", names())))
        };
        let targets = spec.targets.iter().map(find).collect::<Result<Vec<usize>, _>>()?;
        let features = match &spec.features {
            Some(names) => names.iter().map(find).collect::<Result<Vec<usize>, _>>()?,
            None => {
                let usable =
                    |at: &usize| Number::of(footer.leaves[*at].kind).is_some() && footer.leaves[*at].plain && !targets.contains(at);
                (0..footer.leaves.len()).filter(usable).collect()
            }
        };
        if features.is_empty() {
            return Err(refuse("it has no columns of numbers to learn from; name some with features".into()));
        }
        let all = 0..footer.groups.len();
        let groups = spec.groups.clone().unwrap_or(all.clone());
        let Some(groups) = footer.groups.get(groups.clone()) else {
            return Err(refuse(format!("it has {} groups of rows, and {groups:?} were asked for", all.end)));
        };
        let rows = groups.iter().try_fold(0u64, |rows, group| rows.checked_add(group.rows));
        let rows = rows.filter(|rows| *rows < 1 << 48).ok_or_else(|| refuse("its groups have more rows than any file".into()))?;
        let mut table = Table { path: path.to_path_buf(), file, used: Vec::new(), features: features.len(), rows, held: Bytes::ZERO };
        for &at in features.iter().chain(&targets) {
            let leaf = &footer.leaves[at];
            let (name, Some(number), true) = (leaf.name.clone(), Number::of(leaf.kind), leaf.plain) else {
                return Err(refuse(format!("its column `{}` is none of single numbers; leave it out", leaf.name)));
            };
            let chunks = groups.iter().map(|group| group.chunks.get(at).copied().filter(|chunk| chunk.values == group.rows));
            let Some(chunks) = chunks.collect::<Option<Vec<Chunk>>>() else {
                return Err(refuse(format!("its column `{name}` has not as many values as there are rows; the file is damaged")));
            };
            let used = Used { name, number, optional: leaf.optional, chunks };
            table.held += table.measure(&used, length)?;
            table.used.push(used);
        }
        Ok(table)
    }

    fn broken(&self, used: &Used, at: u64, problem: impl std::fmt::Display) -> DataError {
        DataError::Record { path: self.path.clone(), at, problem: format!("a page of column `{}` {problem}", used.name) }
    }

    /// Looks at all heads of a column's pages, and says what reading it takes.
    fn measure(&self, used: &Used, length: u64) -> Result<Bytes, DataError> {
        let (mut page, mut unpacked, mut values, mut dictionary) = (0, 0, 0, 0);
        for chunk in &used.chunks {
            page::codec(chunk.codec).map_err(|problem| self.broken(used, chunk.start, problem))?;
            let (mut at, mut left) = (chunk.start, chunk.values);
            while left > 0 {
                let (head, data) = self.head(used, at)?;
                let end = data.checked_add(head.packed).filter(|end| *end <= length);
                let sound = head.unpacked <= LARGEST_PAGE && head.values <= MOST_VALUES && (head.kind != DATA || head.values > 0);
                let Some(end) = end.filter(|_| sound) else {
                    return Err(self.broken(used, at, "promises more than there can be; the file is damaged"));
                };
                page = page.max(head.packed);
                unpacked = unpacked.max(head.unpacked);
                match head.kind {
                    DATA | NEWER_DATA if head.values > 0 => {
                        values = values.max(head.values);
                        let more = "has more values than its group has rows; the file is damaged";
                        left = left.checked_sub(head.values).ok_or_else(|| self.broken(used, at, more))?;
                    }
                    DICTIONARY => dictionary = dictionary.max(head.values),
                    // Of a kind that is passed over; each takes some bytes, so this ends.
                    _ => {}
                }
                at = end;
            }
        }
        Ok(Bytes(page + unpacked + 8 * (values + dictionary)) + Bytes::kib(64))
    }

    /// The head of the page at `at`, and where its bytes begin.
    fn head(&self, used: &Used, at: u64) -> Result<(Head, u64), DataError> {
        let mut small = [0; HEAD];
        let read = |buffer: &mut [u8]| {
            self.file.read_at(buffer, at).map_err(|error| DataError::io(format!("read byte {at} of"), &self.path, error))
        };
        let count = read(&mut small)?;
        let mut head = Head::read(&small[..count]);
        if head.as_ref().err() == Some(&Broken::Short) && count == HEAD {
            let mut large = vec![0; LONGEST_HEAD];
            let count = read(&mut large)?;
            head = Head::read(&large[..count]);
        }
        let (head, bytes) = head.map_err(|_| self.broken(used, at, "has no head that can be read; the file is damaged"))?;
        Ok((head, at + bytes))
    }
}

fn read_footer(file: &File, length: u64) -> Result<Footer, String> {
    const DAMAGED: &str = "its end cannot be read; the file is damaged or cut off, copy or write it again";
    let mut tail = [0; 8];
    let at = length.checked_sub(8).filter(|at| *at >= 4).ok_or("it is no Parquet file")?;
    file.read_exact_at(&mut tail, at).map_err(|_| DAMAGED)?;
    let (size, magic) = tail.split_at(4);
    if magic != MAGIC {
        return Err("it is no Parquet file, or its end is cut off".into());
    }
    let size = u64::from(u32::from_le_bytes(size.try_into().expect("four bytes")));
    let start = at.checked_sub(size).filter(|_| size <= LARGEST_FOOTER).ok_or(DAMAGED)?;
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, start).map_err(|_| DAMAGED)?;
    Footer::read(&bytes).map_err(|_| DAMAGED.into())
}

/// The rows of one epoch.
struct Rows {
    table: Arc<Table>,
    readers: Option<Vec<Reader>>,
    row: u64,
}

/// Where one column is.
struct Reader {
    pages: Pages,
    page: Vec<u8>,
    /// The group, where its next page is, and how many of its values were not read.
    group: usize,
    at: u64,
    left: u64,
    /// The next value of the page.
    next: usize,
}

impl Reader {
    fn new(used: &Used) -> Reader {
        Reader { pages: Pages::new(used.number, used.optional), page: Vec::new(), group: 0, at: 0, left: 0, next: 0 }
    }

    fn value(&mut self, table: &Table, used: &Used) -> Result<f64, DataError> {
        while self.next == self.pages.values.len() {
            self.load(table, used)?;
        }
        self.next += 1;
        Ok(self.pages.values[self.next - 1])
    }

    fn load(&mut self, table: &Table, used: &Used) -> Result<(), DataError> {
        let changed = |at: u64| table.broken(used, at, "is not what it was; the file changed while it was read");
        if self.left == 0 {
            let chunk = used.chunks.get(self.group).ok_or_else(|| changed(self.at))?;
            (self.at, self.left, self.next) = (chunk.start, chunk.values, 0);
            self.group += 1;
            self.pages.values.clear();
            return Ok(());
        }
        let at = self.at;
        let (head, data) = table.head(used, at)?;
        if head.packed > LARGEST_PAGE || head.unpacked > LARGEST_PAGE || head.values > MOST_VALUES {
            return Err(changed(at));
        }
        self.at = data + head.packed;
        if !matches!(head.kind, DATA | NEWER_DATA | DICTIONARY) {
            return Ok(());
        }
        self.page.resize(head.packed as usize, 0);
        table.file.read_exact_at(&mut self.page, data).map_err(|_| changed(at))?;
        let codec = used.chunks[self.group - 1].codec;
        self.pages.read(&head, codec, &self.page).map_err(|problem| table.broken(used, at, problem))?;
        if head.kind != DICTIONARY {
            self.next = 0;
            self.left = self.left.checked_sub(self.pages.values.len() as u64).ok_or_else(|| changed(at))?;
        }
        Ok(())
    }
}

impl Rows {
    fn tensors(&mut self) -> Result<Vec<Tensor>, DataError> {
        let Rows { table, readers, row } = self;
        let readers = readers.get_or_insert_with(|| table.used.iter().map(Reader::new).collect());
        let mut x = Vec::with_capacity(table.features);
        let mut y = Vec::with_capacity(table.used.len() - table.features);
        for (index, (used, reader)) in table.used.iter().zip(readers).enumerate() {
            let value = reader.value(table, used)?;
            if index < table.features { x.push(value as f32) } else { y.push(value) }
        }
        let x = Tensor::f32([table.features], x)?;
        match (&table.used[table.features..], &y[..]) {
            ([], _) => Ok(vec![x]),
            ([used], &[value]) if used.number.is_whole() => {
                let whole = value as i32;
                if f64::from(whole) != value {
                    return Err(DataError::DoesNotFit { path: table.path.clone(), row: *row, value: value as i64, dtype: DType::I32 });
                }
                Ok(vec![x, Tensor::i32([], [whole])?])
            }
            _ => Ok(vec![x, Tensor::f32([y.len()], y.iter().map(|value| *value as f32).collect::<Vec<_>>())?]),
        }
    }
}

impl Iterator for Rows {
    type Item = Result<Vec<Tensor>, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.row == self.table.rows {
            return None;
        }
        let tensors = self.tensors();
        self.row += 1;
        Some(tensors)
    }
}
