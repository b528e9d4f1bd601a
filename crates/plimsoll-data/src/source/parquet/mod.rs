//! Parquet: columns of numbers, texts and lists of numbers, page by page. Only the requested columns and row groups are
//! read.
//!
//! Opening reads every page header, so the memory for reading is known in advance. The source is sequential, because
//! a page has no random access.

mod codec;
mod encodings;
mod file;
mod footer;
mod numbers;
mod rows;
mod thrift;
mod values;

use super::columnar::{BlockRows, FittedRows, RowsSpec, SelectedRows, TableOpening, fitting_bytes, held_bytes, visit_cells};
use super::selection::RowSelection;
use super::{SequentialSource, Window, files, identify_open};
use crate::DataError;
use crate::table::{ColumnsError, TableSpec};
use file::{ParquetFile, reading_bytes};
use footer::{Footer, Leaf};
use plimsoll_core::Bytes;
use rows::Reader;
use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which columns of Parquet files are read, and how.
#[derive(Clone, Debug, Default)]
pub struct ParquetSpec {
    table: TableSpec,
    groups: Option<Range<usize>>,
    rows: RowsSpec,
}

impl From<TableSpec> for ParquetSpec {
    fn from(table: TableSpec) -> ParquetSpec {
        ParquetSpec { table, ..ParquetSpec::default() }
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

    /// Time-series windows over consecutive rows: `x` is f32 `[length, features]`, `y` f32 `[horizon × targets]`.
    /// Without `features`, the targets are features too.
    pub fn window(mut self, window: Window) -> ParquetSpec {
        self.rows.window = Some(window);
        self
    }

    /// Selects rows of all files together, counted from 0.
    pub fn rows(mut self, rows: Range<u64>) -> ParquetSpec {
        self.rows.part = RowSelection::Rows(rows);
        self
    }

    /// Selects a fraction of the rows, for example from 0.0 to 0.9.
    pub fn part(mut self, from: f64, to: f64) -> ParquetSpec {
        self.rows.part = RowSelection::Shares(from, to);
        self
    }

    /// Fits columns to some of the selected rows only: those for which `keep` holds, of `rows`.
    pub fn fitted_to(mut self, rows: u64, keep: &dyn Fn(u64) -> bool) -> ParquetSpec {
        self.rows.fitted_to = Some(FittedRows::new(rows, keep));
        self
    }

    /// Opens files.
    pub(crate) fn open(&self, paths: &[PathBuf]) -> Result<SequentialSource, DataError> {
        let Some(first) = paths.first() else { return Err(DataError::Stage("a table needs at least one file".into())) };
        let refuse = |problem: String| DataError::Parquet { path: first.clone(), problem };
        let mut opened = paths.iter().map(|path| ParquetFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        let mut opening =
            TableOpening::new(&self.table, &self.rows, opened[0].1.leaves.iter().map(Leaf::info).collect()).map_err(refuse)?;
        self.infer(&mut opened, &mut opening)?;
        let chosen = opening.choose(&opened[0].1.index).map_err(refuse)?;
        let files = Arc::new(self.project(opened, &opening.used_names(&chosen))?);
        let rows = files.iter().flat_map(|file| &file.groups).sum();
        let range = self.rows.part.range(rows).map_err(refuse)?;
        let columns = opening.fit(&chosen, &mut Reader::new(&files).keeping_integers(|_| true), &range, (first, rows));
        let (columns, fitting) = columns.map_err(|error| match error {
            ColumnsError::Problem(problem) => refuse(problem),
            ColumnsError::Data(error) => error,
        })?;
        let facts = opening.facts(&chosen, &columns);
        let selected = SelectedRows::new(&self.rows, range, &columns, chosen.targets.len())?.map_err(refuse)?;
        let schema = selected.schema.clone();
        let longest_text = opening.longest_text;
        let block = BlockRows::<Reader>::bytes(&columns, longest_text, rows) + held_bytes(&columns) + selected.held();
        let fitting = fitting_bytes(&columns, fitting);
        let held = reading_bytes(&files) + block as u64;
        let name = super::named("parquet", files.iter().map(|file| file.path.as_path()));
        let name = self.rows.described(name);
        let (known, spec, fitted) = (Arc::clone(&files), format!("{self:?}"), format!("{:?}", facts.fitted));
        let identity = move |hash: &mut dyn Hasher| {
            hash.write(spec.as_bytes());
            hash.write(fitted.as_bytes());
            known.iter().try_for_each(|file| identify_open(&file.path, &file.file, hash))
        };
        let columns = Arc::new(columns);
        let (spec, paths) = (self.clone(), paths.to_vec());
        let visitor = selected.visiting(Arc::new(move |name, visit| spec.visit_column(&paths, name, visit)));
        let len = selected.len;
        let open = move || {
            let reader = Reader::new(&files).keeping_integers(|at| columns.encoders[at].is_category());
            selected.of(BlockRows::new(reader, &columns, longest_text))
        };
        let source = SequentialSource::new(name, schema, Bytes(held), open).identified(identity).with_rows(len).with_facts(facts);
        Ok(source.with_fitting(fitting).with_columns(move |name, visit| visitor(name, visit)))
    }

    /// Calls `visit` with the text of a column for every row.
    fn visit_column(&self, paths: &[PathBuf], name: &str, visit: &mut dyn FnMut(&[u8])) -> Result<bool, DataError> {
        for path in paths {
            let (mut file, footer) = ParquetFile::open(path)?;
            let Some(leaf) = footer.leaves.iter().position(|leaf| leaf.name == name && leaf.repeated == 0) else { return Ok(false) };
            file.project(&footer, self.groups(&footer), &[leaf])?;
            visit_cells(&mut Reader::new(&Arc::new(vec![file])).keeping_integers(|_| true), visit)?;
        }
        Ok(true)
    }

    fn groups(&self, footer: &Footer) -> Range<usize> {
        self.groups.clone().unwrap_or(0..footer.groups.len())
    }

    /// Looks at all rows of the columns whose type does not say all.
    fn infer(&self, opened: &mut [(ParquetFile, Footer)], opening: &mut TableOpening<'_>) -> Result<(), DataError> {
        let names = opening.inspected_names();
        for (file, footer) in opened.iter_mut().filter(|_| !names.is_empty()) {
            let leaves = leaves_of(file, footer, names.iter())?;
            file.project(footer, self.groups(footer), &leaves)?;
            let (path, rows) = (file.path.clone(), file.groups.iter().sum());
            let files = Arc::new(vec![std::mem::replace(file, ParquetFile::open(&path)?.0)]);
            opening.infer(&mut Reader::new(&files), &path, rows)?;
        }
        Ok(())
    }

    /// Selects the used columns of all files.
    fn project(&self, opened: Vec<(ParquetFile, Footer)>, used: &[String]) -> Result<Vec<ParquetFile>, DataError> {
        let kinds: Vec<_> = leaves_of(&opened[0].0, &opened[0].1, used.iter())?.iter().map(|at| opened[0].1.leaves[*at].cells()).collect();
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

/// The Parquet files of a path: one, those that match a pattern, or those of a folder and its folders.
pub fn parquet_files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if path.is_dir() { files(path.join("**/*.parquet")) } else { super::table_files(path) }
}
