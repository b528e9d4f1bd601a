//! Columns of text tables (CSV, TSV, JSON lines), as rows or as time-series windows.

mod fields;
mod input;
mod json;
mod records;
mod scan;
mod spec;
mod stream;
mod syntax;
mod table;

pub(crate) use fields::each_record;
use fields::each_record_of;

use super::selection::RowSelection;
use super::windows::{WindowRows, WindowShape};
use super::{ColumnScale, FileUse, Gather, RowIterator, SequentialSource, Source, Window, files, identify_open};
use crate::block::BlockMut;
use crate::table::{Encoding, FittedColumn, WORD};
use crate::{DataError, Schema};
use plimsoll_core::{Bytes, DType};
use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use table::TextTable;

pub use spec::{CsvSpec, CsvType};

/// Columns of a text table. Opening reads the files once, infers what columns hold, checks every used value, indexes
/// the rows and fits what has to be fitted. Rows are then loaded into memory if the plan has space for them, and read
/// from the files otherwise.
#[derive(Clone)]
pub struct Csv {
    table: Arc<TextTable>,
    spec: CsvSpec,
    schema: Schema,
    rows: Range<u64>,
    len: u64,
    /// The encoded rows, if they are in memory.
    matrix: Option<Arc<[[u8; WORD]]>>,
}

/// Columns that a description names.
const DESCRIBED: usize = 64;

/// Code of the parser, which is resident only where tables are read; debug builds count all code.
const PARSER_CODE: Bytes = if cfg!(debug_assertions) { Bytes::ZERO } else { Bytes::kib(320) };

impl Csv {
    /// Opens a file, or all files that match a pattern.
    pub fn open(path: &Path, spec: &CsvSpec) -> Result<Csv, DataError> {
        Csv::open_files(&table_files(path)?, spec)
    }

    /// Opens several files with the same columns, one after the other.
    pub fn open_files(paths: &[PathBuf], spec: &CsvSpec) -> Result<Csv, DataError> {
        let table = TextTable::open(paths, spec)?;
        let rows = table.part(&spec.part)?;
        Csv::new(Arc::new(table), spec.clone(), rows)
    }

    /// Other rows of the same file, as these were fitted.
    pub fn rows(&self, rows: Range<u64>) -> Result<Csv, DataError> {
        let rows = self.table.part(&RowSelection::Rows(rows))?;
        Csv::new(Arc::clone(&self.table), self.spec.clone(), rows)
    }

    /// Another fraction of the same file, as this one was fitted.
    pub fn part(&self, from: f64, to: f64) -> Result<Csv, DataError> {
        let rows = self.table.part(&RowSelection::Shares(from, to))?;
        Csv::new(Arc::clone(&self.table), self.spec.clone(), rows)
    }

    /// The same columns of another file, as they were fitted to this one.
    pub fn other_file(&self, path: &Path) -> Result<Csv, DataError> {
        let mut spec = CsvSpec { part: RowSelection::Whole, ..self.spec.clone() };
        spec.table.features = Some(self.names(&self.table.chosen.features));
        spec.table.fitted = self.fitted();
        Csv::open(path, &spec)
    }

    /// The same rows, with columns fitted to some of them: those for which `keep` holds, which counts rows from 0.
    pub fn fitted_to(&self, keep: &dyn Fn(u64) -> bool) -> Result<Csv, DataError> {
        let (stride, rows) = (self.stride(), self.rows.clone());
        let keep = |row: u64| rows.contains(&row) && keep((row - rows.start) / stride);
        let table = self.table.refit(&self.spec, &keep)?;
        Csv::new(Arc::new(table), self.spec.clone(), self.rows.clone())
    }

    /// Whether anything of its columns was fitted to rows.
    pub fn is_fitted(&self) -> bool {
        self.table.columns.encoders.iter().any(|encoder| encoder.column.is_fitted())
    }

    /// The columns as they were fitted.
    pub fn fitted(&self) -> Vec<FittedColumn> {
        self.table.columns.encoders.iter().map(|encoder| encoder.column.clone()).collect()
    }

    /// The standardization of each column, as (name, mean, standard deviation): multiply a prediction by the
    /// deviation and add the mean to get the units of the file.
    pub fn scales(&self) -> Vec<(&str, f64, f64)> {
        let scale = |at: usize| {
            let (mean, std) = match self.table.columns.encoders[at].column.encoding {
                Encoding::Normalize { mean, std } => (mean, std),
                _ => (0.0, 1.0),
            };
            (self.table.name(at), mean, std)
        };
        (0..self.table.columns.encoders.len()).map(scale).collect()
    }

    fn statistics(&self) -> Vec<ColumnScale> {
        self.scales().into_iter().map(|(name, mean, std)| ColumnScale { name: name.to_string(), mean, std }).collect()
    }

    /// The names of some used columns.
    fn names(&self, columns: &[u32]) -> Vec<String> {
        columns.iter().map(|&at| self.table.name(at as usize).to_string()).collect()
    }

    fn new(table: Arc<TextTable>, spec: CsvSpec, rows: Range<u64>) -> Result<Csv, DataError> {
        let targets = table.chosen.targets.len();
        let refuse = |problem: String| DataError::csv(&table.files[0].path, 1, problem);
        let Some(window) = &spec.window else {
            let schema = table.columns.schema_with_classes()?;
            let len = rows.end - rows.start;
            return Ok(Csv { schema, table, spec, rows, len, matrix: None });
        };
        let (schema, len) = window.schema(&table.columns, targets, &rows)?.map_err(refuse)?;
        Ok(Csv { schema, table, spec, rows, len, matrix: None })
    }

    /// The rows as a stream, if the files are compressed, so that they have no random access.
    pub(crate) fn into_stream(self) -> Result<Result<SequentialSource, Csv>, DataError> {
        if !self.table.is_stream() {
            return Ok(Err(self));
        }
        let (rows, identity) = (self.len, self.clone());
        let name = self.describe();
        let (schema, facts, fitting) = (self.schema.clone(), self.facts(), self.table.fitting_beyond_held());
        let windows = self.spec.window.clone().map(|window| WindowShape::new(window, &self.table.columns));
        let held = self.table.held() + stream::held(&self.table) + windows.as_ref().map_or(0, WindowShape::held);
        let source = SequentialSource::new(name, schema, Bytes(held as u64), move || {
            let rows = stream::CsvRows::new(&self.table, self.rows.clone());
            match &windows {
                Some(shape) => Box::new(WindowRows::new(rows, shape.clone())) as Box<dyn RowIterator>,
                None => Box::new(rows),
            }
        });
        let of_columns = identity.clone();
        let source = source.with_rows(rows).with_facts(facts).with_fitting(fitting);
        let source = source.with_columns(move |name, visit| of_columns.visit_column(name, visit));
        Ok(Ok(source.identified(move |hash| identity.fingerprint(0..0, hash).map(drop))))
    }

    /// What is known about its file.
    fn facts(&self) -> super::TableFacts {
        let (file_use, scales, fitted) = (self.file_use(), Source::scales(self), self.fitted());
        super::TableFacts { file_use, scales, fitted, classes: self.class_names() }
    }

    /// Rows of the file per output row.
    fn seen(&self) -> usize {
        self.spec.window.as_ref().map_or(1, Window::rows)
    }

    fn stride(&self) -> u64 {
        self.spec.window.as_ref().map_or(1, |window| window.step() as u64)
    }

    fn write(&self, rows: impl Iterator<Item = u64>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        let (width, seen) = (self.table.columns.words, self.seen());
        let mut rows = rows.enumerate().peekable();
        while let Some((index, row)) = rows.next() {
            let first = row * self.stride();
            if let Some(matrix) = &self.matrix {
                self.put(&matrix[first as usize * width..][..seen * width], index, out);
                continue;
            }
            let (memory, words) = scratch.split_at_mut(self.table.scratch_bytes());
            let words = &mut words.as_chunks_mut().0[..(seen + 1) * width];
            let first = self.rows.start + first;
            if self.spec.window.is_some() {
                let (kept, row_words) = words.split_at_mut(seen * width);
                self.table.walk(first..first + seen as u64, memory, row_words, |row, words, read| {
                    kept[row as usize * width..][..width].copy_from_slice(words);
                    read
                })?;
                self.put(kept, index, out);
                continue;
            }
            // Consecutive rows are read in one call.
            let mut run = 1;
            while rows.next_if(|(_, next)| *next == row + run).is_some() {
                run += 1;
            }
            self.table.walk(first..first + run, memory, &mut words[..width], |row, words, read| {
                read.map(|()| self.put(words, index + row as usize, out))
            })?;
        }
        Ok(())
    }

    /// Writes one output row from the words of its file rows.
    fn put(&self, words: &[[u8; WORD]], index: usize, out: &mut BlockMut<'_, '_>) {
        let columns = &self.table.columns;
        let Some(window) = &self.spec.window else {
            for (at, width) in columns.widths().enumerate() {
                columns.put(words, at, &mut out.column(at).as_chunks_mut().0[index * width..][..width]);
            }
            return;
        };
        for (at, width) in columns.widths().enumerate().take(2) {
            let steps = if at == 0 { window.length() } else { window.horizon() };
            let out = &mut out.column(at).as_chunks_mut().0[index * steps * width..][..steps * width];
            let put = |row: usize, out: &mut [[u8; WORD]]| columns.put(&words[row * columns.words..][..columns.words], at, out);
            match at {
                0 => window.inputs().zip(out.chunks_exact_mut(width)).for_each(|(row, out)| put(row, out)),
                _ => window.targets().zip(out.chunks_exact_mut(width)).for_each(|(row, out)| put(row, out)),
            }
        }
    }
}

/// The files of a table: one, those that match a pattern, or those of a folder.
pub fn table_files(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    let is_pattern = path.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'{'));
    if path.is_dir() {
        return files(path.join("*"));
    }
    if path.exists() || !is_pattern { Ok(vec![path.to_path_buf()]) } else { files(path) }
}

impl Source for Csv {
    fn takes_little_stack(&self) -> bool {
        true
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn scratch_bytes(&self, _rows: usize) -> Bytes {
        Bytes((self.table.scratch_bytes() + (self.seen() + 1) * self.table.columns.words * WORD) as u64)
    }

    fn read(&self, first_row: u64, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.write(first_row..first_row + out.rows() as u64, scratch, out)
    }

    fn gather(&self, rows: Gather<'_>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.write(rows.rows.iter().copied(), scratch, out)
    }

    fn held_bytes(&self) -> Bytes {
        PARSER_CODE + Bytes(self.table.held() as u64)
    }

    fn fitting_bytes(&self) -> Bytes {
        self.table.fitting_beyond_held()
    }

    fn resident_bytes(&self) -> Bytes {
        if self.spec.lenient {
            return Bytes::ZERO;
        }
        Bytes((self.rows.end - self.rows.start) * (self.table.columns.words * WORD) as u64)
    }

    fn resident(&self) -> Result<Arc<dyn Source>, DataError> {
        let width = self.table.columns.words;
        let mut memory = vec![0; self.table.scratch_bytes()];
        let mut matrix: Arc<[[u8; WORD]]> = std::iter::repeat_n([0; WORD], self.resident_bytes().get() / WORD).collect();
        let all = Arc::get_mut(&mut matrix).expect("it is not shared yet");
        let mut row_words = vec![[0; WORD]; width];
        self.table.walk(self.rows.clone(), &mut memory, &mut row_words, |row, words, read| {
            all[row as usize * width..][..width].copy_from_slice(words);
            read
        })?;
        Ok(Arc::new(Csv { matrix: Some(matrix), ..self.clone() }))
    }

    fn classes(&self, visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        let &[target] = &self.table.chosen.targets[..] else { return Ok(false) };
        let columns = &self.table.columns;
        let encoder = &columns.encoders[target as usize];
        if self.spec.window.is_some() || encoder.dtype != DType::I32 || encoder.words != 1 {
            return Ok(false);
        }
        let (mut memory, mut words) = (vec![0; self.table.scratch_bytes()], vec![[0; WORD]; columns.words]);
        let at = columns.offsets[target as usize];
        self.table.walk(self.rows.clone(), &mut memory, &mut words, |_, words, read| {
            // An invalid row is reported when it is read.
            visit(if read.is_ok() { i64::from(i32::from_ne_bytes(words[at])) } else { i64::MIN });
            Ok(())
        })?;
        Ok(true)
    }

    fn visit_column(&self, name: &str, visit: &mut dyn FnMut(&[u8])) -> Result<bool, DataError> {
        if self.spec.json_lines {
            return self.table.visit_key(name, |row, text| {
                let (rows, stride) = (&self.rows, self.stride());
                if rows.contains(&row) && (row - rows.start).is_multiple_of(stride) && (row - rows.start) / stride < self.len {
                    visit(text);
                }
            });
        }
        // The value of a window is that of its first row.
        let (mut found, mut row, stride) = (false, 0, self.stride());
        for file in self.table.files.iter() {
            let mut at = None;
            each_record_of(&file.path, self.table.delimiter(), |line, fields| {
                let Some(column) = at else {
                    at = Some(fields.iter().position(|field| field == name.as_bytes()));
                    return Ok(());
                };
                let is_start = self.rows.contains(&row) && (row - self.rows.start).is_multiple_of(stride);
                if let Some(column) = column.filter(|_| is_start && (row - self.rows.start) / stride < self.len) {
                    let missing = || DataError::csv(&file.path, line, format!("it has no column `{name}`; correct the row"));
                    visit(fields.get(column).ok_or_else(missing)?);
                }
                row += 1;
                Ok(())
            })?;
            found |= at.flatten().is_some();
        }
        Ok(found)
    }

    fn row_name(&self, row: u64) -> String {
        let first = self.rows.start + row * self.stride();
        let mut memory = vec![0; self.table.scratch_bytes()];
        let path = &self.table.file_of(first).path;
        match self.table.line(first, &mut memory) {
            Ok(line) => format!("{}:{line}", path.display()),
            Err(_) => format!("row {first} of {}", path.display()),
        }
    }

    fn class_names(&self) -> Vec<String> {
        self.table.columns.classes()
    }

    fn file_use(&self) -> FileUse {
        let unused = self.table.unused().map(|(name, reason)| (name.to_string(), reason.to_string()));
        let file_use = FileUse {
            used: self.names(&self.table.chosen.features),
            targets: self.names(&self.table.chosen.targets),
            outputs: self.table.chosen.outputs.iter().map(|(name, columns)| (name.clone(), self.names(columns))).collect(),
            encoded: Vec::new(),
            unused: unused.collect(),
        };
        file_use.with_encoded(self.table.columns.encoders.iter().map(|encoder| &encoder.column))
    }

    fn scales(&self) -> Vec<ColumnScale> {
        if self.spec.table.standardize.is_some() { self.statistics() } else { Vec::new() }
    }

    fn fitted_columns(&self) -> Vec<FittedColumn> {
        self.fitted()
    }

    fn held_name(&self) -> &'static str {
        "index"
    }

    fn fingerprint(&self, _rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        for file in self.table.files.iter() {
            identify_open(&file.path, &file.file, hash)?;
        }
        // The encoders contain what was derived from the whole file, such as types and standardization.
        hash.write(format!("{:?} {:?}", self.spec, self.rows).as_bytes());
        for encoder in &self.table.columns.encoders {
            hash.write(format!("{:?}", encoder.column).as_bytes());
        }
        Ok(true)
    }

    fn describe(&self) -> String {
        let names = |columns: &[u32]| {
            let names = columns.iter().take(DESCRIBED).map(|&at| self.table.name(at as usize)).collect::<Vec<_>>().join(", ");
            match columns.len().saturating_sub(DESCRIBED) {
                0 => names,
                more => format!("{names} and {more} more"),
            }
        };
        let kind = if self.spec.json_lines { "json_lines" } else { "csv" };
        let mut text = format!("{kind} {} (rows {} to {}", self.table.files_named(), self.rows.start, self.rows.end);
        text += &format!(", {}", names(&self.table.chosen.features));
        if !self.table.chosen.targets.is_empty() {
            text += &format!(" → {}", names(&self.table.chosen.targets));
        }
        if let Some(window) = &self.spec.window {
            text += &format!(", {}", window.describe());
        }
        text + ")"
    }
}
