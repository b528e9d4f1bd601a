//! Arrow and Feather: files and streams of record batches. Buffers that are not compressed are read in blocks of rows,
//! so that memory does not grow with the batches; compressed ones are decompressed as a whole, as their batch was
//! written.
//!
//! Opening reads the metadata of all batches, so the memory for reading is known in advance. The source is sequential.

mod buffer;
mod file;
mod flat;
mod rows;
mod schema;
mod values;

use super::columnar::{BlockRows, CellReader, FittedRows, RowsSpec, SelectedRows, TableOpening, fitting_bytes, held_bytes, visit_cells};
use super::selection::RowSelection;
use super::{SequentialSource, Window, files, identify_open};
use crate::DataError;
use crate::table::{ColumnKind, ColumnsError, TableSpec};
use file::ArrowFile;
use plimsoll_core::Bytes;
use rows::{ArrowProjection, ArrowReader, Projected, reading_bytes};
use schema::ArrowLeaf;
use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use values::{ColumnLimits, Seen};

/// Which columns of Arrow files are read, and how.
#[derive(Clone, Debug, Default)]
pub struct ArrowSpec {
    table: TableSpec,
    rows: RowsSpec,
}

impl From<TableSpec> for ArrowSpec {
    fn from(table: TableSpec) -> ArrowSpec {
        ArrowSpec { table, ..ArrowSpec::default() }
    }
}

impl ArrowSpec {
    /// The default: every column that can be encoded is part of `x`.
    pub fn new() -> ArrowSpec {
        ArrowSpec::default()
    }

    /// Time-series windows over consecutive rows: `x` is f32 `[length, features]`, `y` f32 `[horizon × targets]`.
    /// Without `features`, the targets are features too.
    pub fn window(mut self, window: Window) -> ArrowSpec {
        self.rows.window = Some(window);
        self
    }

    /// Selects rows of all files together, counted from 0.
    pub fn rows(mut self, rows: Range<u64>) -> ArrowSpec {
        self.rows.part = RowSelection::Rows(rows);
        self
    }

    /// Selects a fraction of the rows, for example from 0.0 to 0.9.
    pub fn part(mut self, from: f64, to: f64) -> ArrowSpec {
        self.rows.part = RowSelection::Shares(from, to);
        self
    }

    /// Fits columns to some of the selected rows only: those for which `keep` holds, of `rows`.
    pub fn fitted_to(mut self, rows: u64, keep: &dyn Fn(u64) -> bool) -> ArrowSpec {
        self.rows.fitted_to = Some(FittedRows::new(rows, keep));
        self
    }

    /// Opens files.
    pub(crate) fn open(&self, paths: &[PathBuf]) -> Result<SequentialSource, DataError> {
        let Some(first) = paths.first() else { return Err(DataError::Stage("a table needs at least one file".into())) };
        let refuse = |problem: String| DataError::Arrow { path: first.clone(), problem };
        let mut opened = paths.iter().map(|path| ArrowFile::open(path)).collect::<Result<Vec<_>, _>>()?;
        let columns = opened[0].schema.columns().iter().map(ArrowLeaf::info).collect();
        let mut opening = TableOpening::new(&self.table, &self.rows, columns).map_err(refuse)?;
        let mut inspected = opening.inspected_names();
        let mut seen = sizes(&mut opened, &inspected, |reader, path, rows| opening.infer(reader, path, rows))?;
        let chosen = opening.choose(&opened[0].schema.index).map_err(refuse)?;
        let used = opening.used_names(&chosen);
        let kinds: Vec<_> = columns_of(&opened[0], &used)?.iter().map(|leaf| leaf.info().cells).collect();
        // Columns that are fitted already, as those of a trained model, are not inspected.
        let varying = |kind: &_| matches!(kind, Ok(ColumnKind::Text | ColumnKind::List));
        let declared = used.iter().zip(&kinds).filter(|(name, kind)| varying(kind) && !inspected.contains(name));
        let declared: Vec<String> = declared.map(|(name, _)| name.clone()).collect();
        seen.extend(sizes(&mut opened, &declared, |reader, path, rows| opening.measure(reader, path, rows))?);
        inspected.extend(declared);
        let mut files = Vec::with_capacity(opened.len());
        for file in opened {
            for (leaf, kind) in columns_of(&file, &used)?.iter().zip(&kinds) {
                let problem = match leaf.info().cells {
                    Err(reason) => format!(
                        "its column `{}` is not read ({reason}); leave it out, or write numbers, texts or lists of numbers",
                        leaf.name
                    ),
                    cells if cells == *kind => continue,
                    _ => format!("its column `{}` has another type than that of {}; write all files alike", leaf.name, first.display()),
                };
                return Err(DataError::Arrow { path: file.path.clone(), problem });
            }
            let mut file = project(file, &used, None)?;
            for column in &mut file.columns {
                let of = inspected.iter().position(|name| *name == column.name).and_then(|at| seen.get(at));
                let Seen { block, dictionary_text, dictionary_block } = of.copied().unwrap_or_default();
                (column.limits.block, column.limits.dictionary_text) = (block, dictionary_text);
                column.limits.dictionary_values.iter_mut().for_each(|values| values.block = dictionary_block);
            }
            files.push(file);
        }
        let rows = files.iter().map(|file| file.file.rows()).sum();
        let range = self.rows.part.range(rows).map_err(refuse)?;
        let files = Arc::new(files);
        let columns = opening.fit(&chosen, &mut ArrowReader::new(&files).keeping_integers(|_| true), &range, (first, rows));
        let (columns, fitting) = columns.map_err(|error| match error {
            ColumnsError::Problem(problem) => refuse(problem),
            ColumnsError::Data(error) => error,
        })?;
        let facts = opening.facts(&chosen, &columns);
        let selected = SelectedRows::new(&self.rows, range, &columns, chosen.targets.len())?.map_err(refuse)?;
        let schema = selected.schema.clone();
        let longest_text = opening.longest_text;
        let block = BlockRows::<ArrowReader>::bytes(&columns, longest_text, rows) + held_bytes(&columns) + selected.held();
        let fitting = fitting_bytes(&columns, fitting);
        let held = reading_bytes(&files) + block as u64;
        let name = super::named("arrow", files.iter().map(|file| file.file.path.as_path()));
        let name = self.rows.described(name);
        let (known, spec, fitted) = (Arc::clone(&files), format!("{self:?}"), format!("{:?}", facts.fitted));
        let identity = move |hash: &mut dyn Hasher| {
            hash.write(spec.as_bytes());
            hash.write(fitted.as_bytes());
            known.iter().try_for_each(|file| identify_open(&file.file.path, &file.file.file, hash))
        };
        let columns = Arc::new(columns);
        let paths = paths.to_vec();
        let visitor = selected.visiting(Arc::new(move |name, visit| visit_column(&paths, name, visit)));
        let len = selected.len;
        let open = move || {
            let reader = ArrowReader::new(&files).keeping_integers(|at| columns.encoders[at].is_category());
            selected.of(BlockRows::new(reader, &columns, longest_text))
        };
        let source = SequentialSource::new(name, schema, Bytes(held), open).identified(identity).with_rows(len).with_facts(facts);
        Ok(source.with_fitting(fitting).with_columns(move |name, visit| visitor(name, visit)))
    }
}

/// Reads all rows of some columns, and returns the largest sizes of each.
fn sizes(
    opened: &mut Vec<ArrowFile>,
    inspected: &[String],
    mut read: impl FnMut(&mut dyn CellReader, &Path, u64) -> Result<(), DataError>,
) -> Result<Vec<Seen>, DataError> {
    let mut all = vec![Seen::default(); inspected.len()];
    if inspected.is_empty() {
        return Ok(all);
    }
    for file in std::mem::take(opened) {
        let files = Arc::new(vec![project(file, inspected, Some(ColumnLimits::none()))?]);
        let (path, rows) = (files[0].file.path.clone(), files[0].file.rows());
        let mut reader = ArrowReader::new(&files).keeping_integers(|_| true);
        read(&mut reader, &path, rows)?;
        for (all, column) in all.iter_mut().zip(&reader.columns) {
            all.block = all.block.max(column.seen.block);
            all.dictionary_text = all.dictionary_text.max(column.seen.dictionary_text);
            all.dictionary_block = all.dictionary_block.max(column.seen.dictionary_block);
        }
        drop(reader);
        opened.extend(Arc::into_inner(files).into_iter().flatten().map(|projected| projected.file));
    }
    Ok(all)
}

/// Calls `visit` with the text of a column for every row.
fn visit_column(paths: &[PathBuf], name: &str, visit: &mut dyn FnMut(&[u8])) -> Result<bool, DataError> {
    for path in paths {
        let file = ArrowFile::open(path)?;
        if !file.schema.columns().iter().any(|leaf| leaf.name == name && leaf.info().cells.is_ok()) {
            return Ok(false);
        }
        sizes(&mut vec![file], &[name.to_string()], |reader, _, _| visit_cells(reader, visit))?;
    }
    Ok(true)
}

/// Columns by name.
fn columns_of<'f>(file: &'f ArrowFile, names: &[String]) -> Result<Vec<ArrowLeaf<'f>>, DataError> {
    let find = |name: &String| {
        let leaves = file.schema.columns().into_iter();
        leaves.into_iter().find(|leaf| leaf.name == *name).ok_or_else(|| {
            let problem = format!("it has no column `{name}`, which the first file has; write all files alike");
            DataError::Arrow { path: file.path.clone(), problem }
        })
    };
    names.iter().map(find).collect()
}

/// Selects columns by name, with their limits, or those that their buffers have.
fn project(file: ArrowFile, names: &[String], limits: Option<ColumnLimits>) -> Result<Projected, DataError> {
    let paths: Vec<Vec<usize>> = columns_of(&file, names)?.into_iter().map(|leaf| leaf.path).collect();
    let mut projected = Projected { file, columns: Vec::new() };
    for (name, path) in names.iter().zip(paths) {
        let limits = limits.clone().map_or_else(|| projected.measure(&path), Ok)?;
        projected.columns.push(ArrowProjection { name: name.clone(), path, limits });
    }
    Ok(projected)
}

/// The Arrow files of a path: one, those that match a pattern, or those of a folder and its folders.
pub fn arrow_files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return super::table_files(path);
    }
    let found = ["arrow", "feather", "arrows", "ipc"].map(|ending| files(path.join(format!("**/*.{ending}"))));
    let mut all: Vec<PathBuf> = found.iter().flatten().flatten().cloned().collect();
    all.sort();
    match all.is_empty() {
        true => found.into_iter().next().unwrap_or_else(|| Ok(Vec::new())),
        false => Ok(all),
    }
}
