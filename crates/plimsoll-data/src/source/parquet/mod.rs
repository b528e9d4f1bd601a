//! Parquet: numeric columns, page by page. Only the requested columns and row groups are read.
//!
//! Opening reads every page header, so the memory for reading is known in advance. The source is sequential, because
//! a page has no random access.

mod footer;
mod page;
mod thrift;

use super::{FileUse, RowIterator, SequentialSource, identify_open};
use crate::fault::{Fault, Loss};
use crate::table::is_index_name;
use crate::{Column, DataError, Schema};
use footer::{Chunk, DATA, DATA_V2, DICTIONARY, Footer, Leaf, LogicalType, PageHeader};
use page::{Pages, PhysicalType, resize_to};
use plimsoll_core::{Bytes, DType};
use std::fs::File;
use std::hash::Hasher;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thrift::Malformed;

/// Which columns of a Parquet file are read, and how.
#[derive(Clone, Debug, Default)]
pub struct ParquetSpec {
    features: Option<Vec<String>>,
    targets: Vec<String>,
    groups: Option<Range<usize>>,
}

impl ParquetSpec {
    /// The default: every numeric column is part of `x`.
    pub fn new() -> ParquetSpec {
        ParquetSpec::default()
    }

    /// Sets the columns of `x`, in this order.
    pub fn features<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> ParquetSpec {
        self.features = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the columns of `y`: a single integer column is i32, others are f32.
    pub fn targets<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> ParquetSpec {
        self.targets = names.into_iter().map(Into::into).collect();
        self
    }

    /// Selects row groups, counted from 0.
    pub fn row_groups(mut self, groups: Range<usize>) -> ParquetSpec {
        self.groups = Some(groups);
        self
    }
}

impl ParquetSpec {
    /// Opens a file: `x` f32, and `y` if there are targets.
    pub(crate) fn open(&self, path: &Path) -> Result<SequentialSource, DataError> {
        let table = ParquetFile::open(path, self)?;
        let x = Column::new("x", DType::F32, [table.features]);
        let schema = match &table.used[table.features..] {
            [] => vec![x],
            [used] if used.number.is_whole() => vec![x, Column::new("y", DType::I32, [])],
            targets => vec![x, Column::new("y", DType::F32, [targets.len()])],
        };
        let (schema, rows, held) = (Schema::new(schema)?, table.rows, table.held);
        let (name, file_use) = (format!("parquet {}", table.path.display()), table.file_use.clone());
        let table = Arc::new(table);
        let (known, spec) = (Arc::clone(&table), format!("{self:?}"));
        let identity = move |hash: &mut dyn Hasher| {
            hash.write(spec.as_bytes());
            identify_open(&known.path, &known.file, hash)
        };
        let open = move || ParquetRows::new(Arc::clone(&table));
        Ok(SequentialSource::new(name, schema, held, open).identified(identity).with_rows(rows).with_file_use(file_use))
    }
}

/// A file whose footer and page headers were read.
struct ParquetFile {
    path: PathBuf,
    file: File,
    /// The columns of `x`, then those of `y`.
    used: Vec<ProjectedColumn>,
    features: usize,
    rows: u64,
    /// Rows of each group.
    groups: Vec<u64>,
    file_use: FileUse,
    held: Bytes,
}

struct ProjectedColumn {
    name: String,
    number: PhysicalType,
    optional: bool,
    chunks: Vec<Chunk>,
    largest: PageLimits,
}

/// Maximum page sizes of a column, from which the memory is planned.
#[derive(Clone, Copy, Default)]
struct PageLimits {
    packed: u64,
    unpacked: u64,
    values: u64,
    dictionary: u64,
}

impl PageLimits {
    fn add(&mut self, head: &PageHeader) {
        let values = if head.kind == DICTIONARY { &mut self.dictionary } else { &mut self.values };
        *values = (*values).max(head.values);
        self.packed = self.packed.max(head.packed);
        self.unpacked = self.unpacked.max(head.unpacked).max(head.packed);
    }

    fn has(&self, head: &PageHeader) -> bool {
        let mut with = *self;
        with.add(head);
        (with.packed, with.unpacked, with.values, with.dictionary) == (self.packed, self.unpacked, self.values, self.dictionary)
    }

    fn bytes(&self, optional: bool) -> Bytes {
        // One f64 per value, and whether the value is present.
        let numbers = 8 * (self.values + self.dictionary) + if optional { self.values } else { 0 };
        Bytes(self.packed + self.unpacked + numbers) + Bytes::kib(64)
    }
}

impl Leaf {
    /// Whether it holds one number per row, read as such or refused.
    fn is_number(&self) -> bool {
        let misread = self.logical.as_ref().is_some_and(|logical| logical.misread().is_some());
        let other = matches!(self.logical, Some(LogicalType::Other(_)));
        self.plain && (misread || PhysicalType::of(self.kind).is_some() && !other)
    }

    /// Why it is not read.
    fn reason(&self) -> String {
        match &self.logical {
            _ if self.is_number() => "not among the features".to_string(),
            Some(logical) => logical.name(),
            None => "bytes".to_string(),
        }
    }
}

impl Footer {
    fn is_index(&self, at: usize) -> bool {
        let leaf = &self.leaves[at];
        self.index.contains(&leaf.name) || is_index_name(&leaf.name)
    }

    /// Which columns are read.
    fn file_use(&self, features: &[usize], targets: &[usize]) -> FileUse {
        let names = |columns: &[usize]| columns.iter().map(|&at| self.leaves[at].name.clone()).collect();
        let mut unused: Vec<(String, String)> = Vec::new();
        for at in (0..self.leaves.len()).filter(|at| !features.contains(at) && !targets.contains(at)) {
            let leaf = &self.leaves[at];
            // A nested column has several leaves.
            if unused.last().is_none_or(|(name, _)| *name != leaf.column) {
                let reason = if self.is_index(at) { "index column".to_string() } else { leaf.reason() };
                unused.push((leaf.column.clone(), reason));
            }
        }
        FileUse { used: names(features), targets: names(targets), unused, ..FileUse::default() }
    }
}

const MAGIC: &[u8; 4] = b"PAR1";

/// Larger numbers mean corruption: the footer, a page, the values of a page.
const LARGEST_FOOTER: u64 = 64 << 20;
const LARGEST_PAGE: u64 = 256 << 20;
const MOST_VALUES: u64 = 16 << 20;

/// A page header is a few dozen bytes, or more with statistics of long strings.
const HEAD: usize = 512;
const LONGEST_HEAD: usize = 64 << 10;

impl ParquetFile {
    fn open(path: &Path, spec: &ParquetSpec) -> Result<ParquetFile, DataError> {
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
                let usable = |at: &usize| footer.leaves[*at].is_number() && !footer.is_index(*at) && !targets.contains(at);
                (0..footer.leaves.len()).filter(usable).collect()
            }
        };
        if features.is_empty() {
            return Err(refuse("it has no columns of numbers to train on; name some with features".into()));
        }
        // Their numbers would be others than those that were written.
        for leaf in features.iter().chain(&targets).map(|&at| &footer.leaves[at]) {
            if let Some(logical) = leaf.logical.as_ref().filter(|_| leaf.plain).and_then(LogicalType::misread) {
                let how = "cast it to float or to a signed integer when writing the file, or name the columns to read with features";
                return Err(refuse(format!("its column `{}` is {logical}, which is not read yet; {how}", leaf.name)));
            }
        }
        let file_use = footer.file_use(&features, &targets);
        let all = 0..footer.groups.len();
        let groups = spec.groups.clone().unwrap_or(all.clone());
        let Some(groups) = footer.groups.get(groups.clone()) else {
            return Err(refuse(format!("it has {} groups of rows, and {groups:?} were asked for", all.end)));
        };
        let rows = groups.iter().try_fold(0u64, |rows, group| rows.checked_add(group.rows));
        let rows = rows.filter(|rows| *rows < 1 << 48).ok_or_else(|| refuse("its groups have more rows than any file".into()))?;
        let mut table = ParquetFile {
            path: path.to_path_buf(),
            file,
            used: Vec::new(),
            features: features.len(),
            rows,
            groups: groups.iter().map(|group| group.rows).collect(),
            file_use,
            held: Bytes::ZERO,
        };
        for &at in features.iter().chain(&targets) {
            let leaf = &footer.leaves[at];
            let (name, Some(number), true) = (leaf.name.clone(), PhysicalType::of(leaf.kind), leaf.plain) else {
                return Err(refuse(format!("its column `{}` is none of single numbers; leave it out", leaf.name)));
            };
            let chunks = groups.iter().map(|group| group.chunks.get(at).copied().filter(|chunk| chunk.values == group.rows));
            let Some(chunks) = chunks.collect::<Option<Vec<Chunk>>>() else {
                return Err(refuse(format!("its column `{name}` has not as many values as there are rows; the file is damaged")));
            };
            let mut used = ProjectedColumn { name, number, optional: leaf.optional, chunks, largest: PageLimits::default() };
            used.largest = table.measure(&used, length)?;
            table.held += used.largest.bytes(used.optional);
            table.used.push(used);
        }
        Ok(table)
    }

    fn broken(&self, used: &ProjectedColumn, at: u64, problem: impl std::fmt::Display) -> DataError {
        DataError::Record { path: self.path.clone(), at, problem: format!("a page of column `{}` {problem}", used.name) }
    }

    /// Reads all page headers of a column.
    fn measure(&self, used: &ProjectedColumn, length: u64) -> Result<PageLimits, DataError> {
        let mut largest = PageLimits::default();
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
                largest.add(&head);
                // Other pages, such as dictionaries, have no rows; each has at least one byte, so the loop ends.
                if matches!(head.kind, DATA | DATA_V2) {
                    let more = "has more values than its group has rows; the file is damaged";
                    left = left.checked_sub(head.values).ok_or_else(|| self.broken(used, at, more))?;
                }
                at = end;
            }
        }
        Ok(largest)
    }

    /// The page header at `at`, and the offset of the page's bytes.
    fn head(&self, used: &ProjectedColumn, at: u64) -> Result<(PageHeader, u64), DataError> {
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
struct ParquetRows {
    table: Arc<ParquetFile>,
    readers: Vec<ColumnReader>,
    /// The current or next row group, and how many of its rows are left.
    group: usize,
    left: u64,
    row: u64,
}

/// The position in one column.
struct ColumnReader {
    pages: Pages,
    page: Vec<u8>,
    /// Offset of its page, and of the next one.
    page_at: u64,
    at: u64,
}

impl ColumnReader {
    fn new(used: &ProjectedColumn) -> ColumnReader {
        ColumnReader { pages: Pages::new(used.number, used.optional), page: Vec::new(), page_at: 0, at: 0 }
    }

    fn begin(&mut self, chunk: &Chunk) {
        self.pages.drop_page();
        self.at = chunk.start;
    }

    fn value(&mut self, table: &ParquetFile, used: &ProjectedColumn, group: usize) -> Result<f64, Fault> {
        while self.pages.left() == 0 {
            self.load(table, used, group).map_err(Fault::part)?;
        }
        self.pages.value().map_err(|row| {
            let problem = format!("has no value in its row {row}; fill it in or leave the row out");
            Fault::row(table.broken(used, self.page_at, problem))
        })
    }

    fn load(&mut self, table: &ParquetFile, used: &ProjectedColumn, group: usize) -> Result<(), DataError> {
        let at = self.at;
        let changed = || table.broken(used, at, "is not what it was; the file changed while it was read");
        let (head, data) = table.head(used, at)?;
        if !used.largest.has(&head) {
            return Err(changed());
        }
        self.at = data + head.packed;
        if !matches!(head.kind, DATA | DATA_V2 | DICTIONARY) {
            return Ok(());
        }
        resize_to(&mut self.page, head.packed as usize);
        self.page.resize(head.packed as usize, 0);
        table.file.read_exact_at(&mut self.page, data).map_err(|_| changed())?;
        self.page_at = at;
        self.pages.read(&head, used.chunks[group].codec, &self.page).map_err(|problem| table.broken(used, at, problem))
    }
}

impl ParquetRows {
    fn new(table: Arc<ParquetFile>) -> ParquetRows {
        let readers = table.used.iter().map(ColumnReader::new).collect();
        ParquetRows { readers, group: table.groups.len(), table, left: 0, row: 0 }
    }

    /// Moves before the first row of a group, or past the last group.
    fn go_to(&mut self, group: usize) {
        self.group = group;
        self.left = self.table.groups.get(group).copied().unwrap_or(0);
        for (used, reader) in self.table.used.iter().zip(&mut self.readers) {
            used.chunks.get(group).into_iter().for_each(|chunk| reader.begin(chunk));
        }
    }

    /// Advances all columns by one row, even if it is invalid, so that they stay aligned.
    fn write(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        let ParquetRows { table, readers, group, row, .. } = self;
        let whole_target = table.used.len() == table.features + 1 && table.used[table.features].number.is_whole();
        let mut missing = None;
        for (index, ((used, reader), out)) in table.used.iter().zip(readers).zip(out.as_chunks_mut().0).enumerate() {
            let value = match reader.value(table, used, *group) {
                Ok(value) => value,
                Err(fault) if fault.loss == Loss::Row => {
                    missing = missing.or(Some(fault));
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            if index < table.features || !whole_target {
                *out = (value as f32).to_ne_bytes();
            } else if f64::from(value as i32) == value {
                *out = (value as i32).to_ne_bytes();
            } else {
                let (path, row) = (table.path.clone(), *row);
                missing = missing.or(Some(Fault::row(DataError::DoesNotFit { path, row, value: value as i64, dtype: DType::I32 })));
            }
        }
        missing.map_or(Ok(()), Err)
    }
}

impl RowIterator for ParquetRows {
    fn begin(&mut self, _epoch: u64) -> Result<(), Fault> {
        self.row = 0;
        self.go_to(0);
        Ok(())
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        while self.left == 0 {
            if self.group >= self.table.groups.len() {
                return Ok(false);
            }
            self.go_to(self.group + 1);
        }
        let written = self.write(out);
        if written.as_ref().is_err_and(|fault| fault.loss != Loss::Row) {
            // Only the start of the next row group is known.
            self.row += self.left;
            self.go_to(self.group + 1);
        } else {
            self.row += 1;
            self.left -= 1;
        }
        written.map(|()| true)
    }
}
