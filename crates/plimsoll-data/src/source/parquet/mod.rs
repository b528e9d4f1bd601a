//! Parquet: columns of numbers, texts and lists of numbers, page by page. Only the requested columns and row groups are
//! read.
//!
//! Opening reads every page header, so the memory for reading is known in advance. The source is sequential, because
//! a page has no random access.

mod codec;
mod encodings;
mod file;
mod footer;
mod rows;
mod thrift;
mod values;

use super::{FileUse, SequentialSource, TableFacts, files, identify_open};
use crate::DataError;
use crate::progress::Reporter;
use crate::table::{CellFormat, Chosen, ColumnNames, ColumnsError, Encoding, Inference, RowBuffer, TableSpec, candidates};
use file::{ParquetFile, reading_bytes};
use footer::Footer;
use plimsoll_core::Bytes;
use rows::{ParquetRows, Reader};
use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which columns of Parquet files are read, and how.
#[derive(Clone, Debug, Default)]
pub struct ParquetSpec {
    table: TableSpec,
    groups: Option<Range<usize>>,
    /// The rows that columns are fitted to; all by default.
    keep: Option<Keep>,
}

impl From<TableSpec> for ParquetSpec {
    fn from(table: TableSpec) -> ParquetSpec {
        ParquetSpec { table, ..ParquetSpec::default() }
    }
}

/// The rows that columns are fitted to.
#[derive(Clone)]
struct Keep(Arc<Vec<u64>>);

impl std::fmt::Debug for Keep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keep({} words)", self.0.len())
    }
}

impl ParquetSpec {
    /// The default: every column that can be encoded is part of `x`.
    pub fn new() -> ParquetSpec {
        ParquetSpec::default()
    }

    /// Sets the columns of `x`, in this order.
    pub fn features<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> ParquetSpec {
        self.table = self.table.features(names);
        self
    }

    /// Sets the columns of `y`: a single integer column is i32, others are f32.
    pub fn targets<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> ParquetSpec {
        self.table = self.table.targets(names);
        self
    }

    /// Selects row groups, counted from 0.
    pub fn row_groups(mut self, groups: Range<usize>) -> ParquetSpec {
        self.groups = Some(groups);
        self
    }

    /// Fits columns to some rows only: those for which `keep` holds, of `rows`.
    pub fn fitted_to(mut self, rows: u64, keep: &dyn Fn(u64) -> bool) -> ParquetSpec {
        let mut words = vec![0u64; rows.div_ceil(64) as usize];
        (0..rows).filter(|row| keep(*row)).for_each(|row| words[(row / 64) as usize] |= 1 << (row % 64));
        self.keep = Some(Keep(Arc::new(words)));
        self
    }

    /// Opens files.
    pub(crate) fn open(&self, paths: &[PathBuf]) -> Result<SequentialSource, DataError> {
        let Some(first) = paths.first() else { return Err(DataError::Stage("a table needs at least one file".into())) };
        let refuse = |problem: String| DataError::Parquet { path: first.clone(), problem };
        let mut opened = paths.iter().map(|path| ParquetFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        let mut names = ColumnNames::default();
        let leaves = opened[0].1.leaves.clone();
        leaves.iter().try_for_each(|leaf| names.push(&leaf.name)).map_err(|problem| refuse(problem.into()))?;
        let wanted = candidates(&self.table, &names).map_err(|problem| refuse(listed(problem)))?;
        // The types are known; only texts and lists have to be inspected.
        let mut seen: Vec<Option<Inference>> = vec![None; leaves.len()];
        let mut look = Vec::new();
        for (at, leaf) in leaves.iter().enumerate() {
            let (Some(label), Some(kind)) = (wanted[at], leaf.cells()) else { continue };
            match kind {
                crate::table::ColumnKind::Text | crate::table::ColumnKind::List => {
                    seen[at] = Some(Inference::new(label));
                    look.push(at);
                }
                kind => seen[at] = Some(Inference::known(kind, leaf.is_whole())),
            }
        }
        let index = opened[0].1.index.clone();
        let longest_text = self.infer(&mut opened, &mut seen, &look)?;
        let chosen = Chosen::new(&self.table, &names, &seen, false, &index).map_err(|problem| refuse(listed(problem)))?;
        let file_use = file_use(&opened[0].1, &chosen, &names, &self.table);
        let files = self.project(opened, &chosen, &names)?;
        let rows = files.iter().flat_map(|file| &file.groups).sum();
        let files = Arc::new(files);
        let mut each = |sink: &mut dyn FnMut(u64, &RowBuffer) -> Result<(), String>| {
            let mut reader = Reader::new(&files);
            let mut reporter = Reporter::new("fitting", first, rows);
            let mut cells = RowBuffer::default();
            reader.begin();
            let mut row = 0;
            while reader.row({
                cells.clear();
                &mut cells
            })? {
                reporter.at(row);
                // A row that cannot be read is reported when it is.
                let kept =
                    self.keep.as_ref().is_none_or(|keep| keep.0.get((row / 64) as usize).is_some_and(|word| word >> (row % 64) & 1 == 1));
                if kept {
                    _ = sink(row, &cells);
                }
                row += 1;
            }
            Ok(())
        };
        let columns = chosen.columns(&self.table, &names, &CellFormat::default(), false, &mut each);
        let (columns, _) = columns.map_err(|error| match error {
            ColumnsError::Problem(problem) => refuse(problem),
            ColumnsError::Data(error) => error,
        })?;
        let facts = TableFacts {
            file_use: file_use.with_encoded(columns.encoders.iter().map(|encoder| &encoder.column)),
            scales: if self.table.standardize.is_some() { columns.scales() } else { Vec::new() },
            fitted: columns.encoders.iter().map(|encoder| encoder.column.clone()).collect(),
            classes: columns.classes(),
        };
        let schema = columns.schema_with_classes()?;
        let lists = columns.encoders.iter().map(|encoder| match encoder.column.encoding {
            Encoding::List { length, .. } => length * 8 * 2,
            _ => 0,
        });
        let lists: usize = lists.sum();
        let held = reading_bytes(&files) + (ParquetRows::bytes(&columns, longest_text) + columns.held() + lists) as u64;
        let name = super::named("parquet", files.iter().map(|file| file.path.as_path()));
        let (known, spec, fitted) = (Arc::clone(&files), format!("{self:?}"), format!("{:?}", facts.fitted));
        let identity = move |hash: &mut dyn Hasher| {
            hash.write(spec.as_bytes());
            hash.write(fitted.as_bytes());
            known.iter().try_for_each(|file| identify_open(&file.path, &file.file, hash))
        };
        let columns = Arc::new(columns);
        let open = move || ParquetRows::new(&files, &columns, longest_text);
        Ok(SequentialSource::new(name, schema, Bytes(held), open).identified(identity).with_rows(rows).with_facts(facts))
    }

    fn groups(&self, footer: &Footer) -> Range<usize> {
        self.groups.clone().unwrap_or(0..footer.groups.len())
    }

    /// Looks at all rows of some columns and returns the length of the longest text.
    fn infer(&self, opened: &mut [(ParquetFile, Footer)], seen: &mut [Option<Inference>], look: &[usize]) -> Result<usize, DataError> {
        let mut longest = 0;
        if look.is_empty() {
            return Ok(longest);
        }
        let names: Vec<String> = look.iter().map(|at| opened[0].1.leaves[*at].name.clone()).collect();
        for (file, footer) in opened {
            let leaves = leaves_of(file, footer, names.iter())?;
            file.project(footer, self.groups(footer), &leaves)?;
            let total = file.groups.iter().sum();
            let path = file.path.clone();
            let mut reporter = Reporter::new("reading", &path, total);
            let taken = ParquetFile::open(&path)?.0;
            let files = Arc::new(vec![std::mem::replace(file, taken)]);
            let mut reader = Reader::new(&files);
            reader.begin();
            let (mut cells, mut row, format) = (RowBuffer::default(), 0, CellFormat::default());
            while reader.row({
                cells.clear();
                &mut cells
            })? {
                row += 1;
                reporter.at(row);
                for (column, cell) in cells.iter() {
                    if let crate::table::Cell::Text(text) = cell {
                        longest = longest.max(text.len());
                    }
                    if let Some(seen) = &mut seen[look[column]] {
                        seen.add(cell, &format, true, row);
                    }
                }
            }
        }
        Ok(longest)
    }

    /// Selects the used columns of all files.
    fn project(&self, opened: Vec<(ParquetFile, Footer)>, chosen: &Chosen, names: &ColumnNames) -> Result<Vec<ParquetFile>, DataError> {
        let used: Vec<String> = chosen.used.iter().map(|at| names.get(*at as usize).to_string()).collect();
        let kinds: Vec<_> = chosen.used.iter().map(|at| opened[0].1.leaves[*at as usize].cells()).collect();
        let mut files = Vec::with_capacity(opened.len());
        let first = opened[0].0.path.clone();
        for (mut file, footer) in opened {
            let leaves = leaves_of(&file, &footer, used.iter())?;
            for (at, kind) in leaves.iter().zip(&kinds) {
                let leaf = &footer.leaves[*at];
                if leaf.cells() != *kind {
                    let problem =
                        format!("its column `{}` has another type than that of {}; write all files alike", leaf.name, first.display());
                    return Err(DataError::Parquet { path: file.path.clone(), problem });
                }
            }
            file.project(&footer, self.groups(&footer), &leaves)?;
            files.push(file);
        }
        Ok(files)
    }
}

/// The leaves of columns by name.
fn leaves_of<'n>(file: &ParquetFile, footer: &Footer, names: impl Iterator<Item = &'n String>) -> Result<Vec<usize>, DataError> {
    let find = |name: &String| {
        footer.leaves.iter().position(|leaf| leaf.name == *name).ok_or_else(|| {
            let problem = format!("it has no column `{name}`, which the first file has; write all files alike");
            DataError::Parquet { path: file.path.clone(), problem }
        })
    };
    names.map(find).collect()
}

/// The wording of a file that is one of Parquet.
fn listed(problem: String) -> String {
    problem.replacen("there is no column", "it has no column", 1).replacen("; the columns are ", "; its columns are ", 1)
}

/// Which columns are read.
fn file_use(footer: &Footer, chosen: &Chosen, names: &ColumnNames, spec: &TableSpec) -> FileUse {
    let name = |at: &u32| spec.renamed(names.get(chosen.used[*at as usize] as usize)).to_string();
    let unused = chosen.unused.iter().map(|(at, reason)| {
        let leaf = &footer.leaves[*at as usize];
        let reason = match leaf.value_type() {
            Err(unread) => unread,
            Ok(_) => reason,
        };
        (leaf.name.clone(), reason.to_string())
    });
    FileUse {
        used: chosen.features.iter().map(name).collect(),
        targets: chosen.targets.iter().map(name).collect(),
        encoded: Vec::new(),
        unused: unused.collect(),
    }
}

/// The Parquet files of a path: one, those that match a pattern, or those of a folder and its folders.
pub fn parquet_files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if path.is_dir() { files(path.join("**/*.parquet")) } else { super::table_files(path) }
}
