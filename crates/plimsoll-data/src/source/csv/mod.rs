//! Columns of a CSV file, as rows or as time-series windows.

mod fields;
mod names;
mod records;
mod table;
mod window;

pub(crate) use fields::each_record;
pub use window::Window;

use super::{ColumnScale, FileUse, Gather, Source, identify_open};
use crate::block::BlockMut;
use crate::{Column, DataError, Schema};
use plimsoll_core::{Bytes, DType};
use records::{FIELD, PIECE};
use std::hash::Hasher;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use table::{CsvTable, Read, UsedColumn};

/// Which columns of a CSV file are read, and how they form rows.
///
/// ```no_run
/// use plimsoll_data::{Dataset, Shuffle};
/// use plimsoll_data::source::{Csv, CsvSpec, Standardize, Window};
/// let spec = CsvSpec::new()
///     .targets(["OT"])
///     .window(Window::new(96, 24))
///     .standardize(Standardize::All)
///     .rows(0..8640);
/// let training = Csv::open("ETTh1.csv".as_ref(), &spec)?;
/// // The same columns, put to the same scale; the first window looks back at rows that were trained on.
/// let held_out = training.rows(8640 - 96..11520)?;
/// let data = Dataset::from(training).shuffle(Shuffle::seed(7)).batch(32);
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CsvSpec {
    features: Option<Vec<String>>,
    targets: Vec<String>,
    types: Vec<(String, CsvType)>,
    window: Option<Window>,
    standardize: Option<Standardize>,
    scales: Option<Vec<ColumnScale>>,
    part: RowSelection,
    lenient: bool,
}

/// The dtype of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsvType {
    /// f32.
    Float,
    /// i32; for targets only, features are always f32.
    Int,
}

/// Which columns are standardized to mean 0 and standard deviation 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standardize {
    /// Features, and targets that are not integers.
    All,
    /// Features only.
    Features,
}

#[derive(Clone, Debug, Default)]
enum RowSelection {
    #[default]
    Whole,
    Rows(Range<u64>),
    Shares(f64, f64),
}

impl CsvSpec {
    /// The default: all numeric columns are features, and there is no window.
    pub fn new() -> CsvSpec {
        CsvSpec::default()
    }

    /// Sets the columns of `x`. Default: all columns whose first non-missing value is a number; without a window,
    /// targets are excluded.
    pub fn features<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> CsvSpec {
        self.features = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the columns of `y`.
    pub fn targets<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> CsvSpec {
        self.targets = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the dtype of a column. By default, a target whose values are all integers, such as a class, is an
    /// integer.
    pub fn column_type(mut self, name: impl Into<String>, kind: CsvType) -> CsvSpec {
        self.types.push((name.into(), kind));
        self
    }

    /// Time-series windows: `x` is f32 `[length, features]`, `y` f32 `[horizon × targets]`.
    pub fn window(mut self, window: Window) -> CsvSpec {
        self.window = Some(window);
        self
    }

    /// Standardizes columns with the mean and standard deviation of the selected rows.
    pub fn standardize(mut self, which: Standardize) -> CsvSpec {
        self.standardize = Some(which);
        self
    }

    /// Standardizes columns with these statistics, such as those of the rows that a model was trained on.
    pub fn scales(mut self, scales: impl IntoIterator<Item = ColumnScale>) -> CsvSpec {
        self.scales = Some(scales.into_iter().collect());
        self
    }

    /// Selects rows, counted from 0 after the header.
    pub fn rows(mut self, rows: Range<u64>) -> CsvSpec {
        self.part = RowSelection::Rows(rows);
        self
    }

    /// Selects a fraction of the file, for example from 0.0 to 0.9.
    pub fn part(mut self, from: f64, to: f64) -> CsvSpec {
        self.part = RowSelection::Shares(from, to);
        self
    }

    /// Reports invalid rows when they are read instead of on opening, so that
    /// [`ignore_errors`](crate::Dataset::ignore_errors) can drop them. The rows are then not loaded into memory.
    pub fn lenient(mut self) -> CsvSpec {
        self.lenient = true;
        self
    }
}

/// Columns of a CSV file: `x` is f32 `[features]`, `y` the targets. Opening reads the file once, checks every used
/// value and indexes the rows. Rows are then loaded into memory if the plan has space for them, and read from the
/// file otherwise.
#[derive(Clone)]
pub struct Csv {
    table: Arc<CsvTable>,
    spec: CsvSpec,
    schema: Schema,
    rows: Range<u64>,
    len: u64,
    /// The converted rows, if they are in memory.
    matrix: Option<Arc<[[u8; 4]]>>,
}

/// Columns that a description names.
const DESCRIBED: usize = 64;

/// Bytes of a matrix element.
const WORD: usize = 4;

impl Csv {
    /// Opens a file.
    pub fn open(path: &Path, spec: &CsvSpec) -> Result<Csv, DataError> {
        let mut table = CsvTable::open(path, spec)?;
        let rows = part(&table, &spec.part)?;
        match (&spec.scales, spec.standardize) {
            (Some(scales), Some(_)) => table.standardize_with(scales)?,
            (None, Some(which)) => table.standardize(which, rows.clone(), spec.lenient)?,
            (_, None) => {}
        }
        Csv::new(Arc::new(table), spec.clone(), rows)
    }

    /// Other rows of the same file, with the same standardization.
    pub fn rows(&self, rows: Range<u64>) -> Result<Csv, DataError> {
        let rows = part(&self.table, &RowSelection::Rows(rows))?;
        Csv::new(Arc::clone(&self.table), self.spec.clone(), rows)
    }

    /// Another fraction of the same file, with the same standardization.
    pub fn part(&self, from: f64, to: f64) -> Result<Csv, DataError> {
        let rows = part(&self.table, &RowSelection::Shares(from, to))?;
        Csv::new(Arc::clone(&self.table), self.spec.clone(), rows)
    }

    /// The same columns of another file, with the standardization of this one.
    pub fn other_file(&self, path: &Path) -> Result<Csv, DataError> {
        let mut spec = CsvSpec { part: RowSelection::Whole, ..self.spec.clone() };
        spec.features = Some(self.names(&self.table.features));
        let whole = self.table.targets.iter().map(|&at| kind(self.table.used[at as usize].whole));
        spec.types = self.names(&self.table.targets).into_iter().zip(whole).collect();
        let mut table = CsvTable::open(path, &spec)?;
        table.convert_like(&self.table);
        spec.scales = Some(self.statistics());
        let rows = 0..table.rows;
        Csv::new(Arc::new(table), spec, rows)
    }

    /// The standardization of each column, as (name, mean, standard deviation): multiply a prediction by the
    /// deviation and add the mean to get the units of the file.
    pub fn scales(&self) -> Vec<(&str, f64, f64)> {
        let scale = |(at, used): (usize, &UsedColumn)| (self.table.name(at), used.mean, 1.0 / used.factor);
        self.table.used.iter().enumerate().map(scale).collect()
    }

    fn statistics(&self) -> Vec<ColumnScale> {
        self.scales().into_iter().map(|(name, mean, std)| ColumnScale { name: name.to_string(), mean, std }).collect()
    }

    /// The names of some used columns.
    fn names(&self, columns: &[u32]) -> Vec<String> {
        columns.iter().map(|&at| self.table.name(at as usize).to_string()).collect()
    }

    fn new(table: Arc<CsvTable>, spec: CsvSpec, rows: Range<u64>) -> Result<Csv, DataError> {
        let (features, targets) = (table.features.len(), table.targets.len());
        let dtype = if table.targets.iter().any(|&at| table.used[at as usize].whole) { DType::I32 } else { DType::F32 };
        let count = rows.end - rows.start;
        let refuse = |problem: String| DataError::csv(&table.path, 1, problem);
        let (x, y, len) = match &spec.window {
            Some(window) => {
                if let Some(problem) = window.problem(targets) {
                    return Err(refuse(problem));
                }
                let (length, horizon, whole) = (window.length(), window.horizon(), window.rows() as u64);
                if whole > count {
                    let spread = if whole > (length + horizon) as u64 { format!(" over {whole} rows") } else { String::new() };
                    return Err(refuse(format!(
                        "its {count} rows ({rows:?}) have no window of {length} and {horizon} rows{spread}; use more rows"
                    )));
                }
                (vec![length, features], vec![horizon.saturating_mul(targets)], (count - whole) / window.step() as u64 + 1)
            }
            // A single class is a scalar.
            None if dtype == DType::I32 && targets == 1 => (vec![features], vec![], count),
            None => (vec![features], vec![targets], count),
        };
        let mut columns = vec![Column::new("x", DType::F32, x)];
        if targets > 0 {
            columns.push(Column::new("y", dtype, y));
        }
        Ok(Csv { schema: Schema::new(columns)?, table, spec, rows, len, matrix: None })
    }

    /// Rows of the file per output row.
    fn seen(&self) -> usize {
        self.spec.window.as_ref().map_or(1, Window::rows)
    }

    fn stride(&self) -> u64 {
        self.spec.window.as_ref().map_or(1, |window| window.step() as u64)
    }

    fn write(&self, rows: impl Iterator<Item = u64>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        let (used, seen) = (self.table.used.len(), self.seen());
        let mut rows = rows.enumerate().peekable();
        while let Some((index, row)) = rows.next() {
            let first = row * self.stride();
            if let Some(matrix) = &self.matrix {
                self.put(&matrix[first as usize * used..][..seen * used], index, out);
                continue;
            }
            let (memory, words) = scratch.split_at_mut(PIECE + FIELD);
            let words = &mut words.as_chunks_mut().0[..seen * used];
            let first = self.rows.start + first;
            if self.spec.window.is_some() {
                self.table.each(first..first + seen as u64, memory, |row, column, value| {
                    words[row as usize * used + column] = self.table.used[column].word(value);
                })?;
                self.put(words, index, out);
                continue;
            }
            // Consecutive rows are read in one call.
            let mut run = 1;
            while rows.next_if(|(_, next)| *next == row + run).is_some() {
                run += 1;
            }
            self.table.walk(first..first + run, memory, |row, read| match read {
                Read::Value(column, value) => {
                    words[column] = self.table.used[column].word(value);
                    Ok(())
                }
                Read::End(how) => how.map(|()| self.put(words, index + row as usize, out)),
            })?;
        }
        Ok(())
    }

    /// Writes one output row from the elements of its file rows.
    fn put(&self, words: &[[u8; 4]], index: usize, out: &mut BlockMut<'_, '_>) {
        let (used, features, targets) = (self.table.used.len(), &self.table.features, &self.table.targets);
        let row = |at: usize| &words[at * used..][..used];
        let Some(window) = &self.spec.window else {
            pick([row(0)].into_iter(), features, &mut out.column(0).as_chunks_mut().0[index * features.len()..]);
            if !targets.is_empty() {
                pick([row(0)].into_iter(), targets, &mut out.column(1).as_chunks_mut().0[index * targets.len()..]);
            }
            return;
        };
        let first = index * window.length() * features.len();
        pick(window.inputs().map(row), features, &mut out.column(0).as_chunks_mut().0[first..]);
        if !targets.is_empty() {
            let first = index * window.horizon() * targets.len();
            pick(window.targets().map(row), targets, &mut out.column(1).as_chunks_mut().0[first..]);
        }
    }
}

/// Writes the chosen columns of rows.
fn pick<'w>(rows: impl Iterator<Item = &'w [[u8; 4]]>, columns: &[u32], out: &mut [[u8; 4]]) {
    for (row, out) in rows.zip(out.chunks_exact_mut(columns.len())) {
        for (out, &column) in out.iter_mut().zip(columns) {
            *out = row[column as usize];
        }
    }
}

fn kind(whole: bool) -> CsvType {
    if whole { CsvType::Int } else { CsvType::Float }
}

/// The selected rows, checked against the file.
fn part(table: &CsvTable, part: &RowSelection) -> Result<Range<u64>, DataError> {
    let all = table.rows;
    let rows = match *part {
        RowSelection::Whole => 0..all,
        RowSelection::Rows(ref rows) => rows.clone(),
        RowSelection::Shares(from, to) if (0.0..=1.0).contains(&from) && (from..=1.0).contains(&to) => {
            (all as f64 * from).round() as u64..(all as f64 * to).round() as u64
        }
        RowSelection::Shares(from, to) => {
            return Err(DataError::csv(&table.path, 1, format!("{from} to {to} is no part of it; give shares from 0 to 1")));
        }
    };
    if rows.start >= rows.end || rows.end > all {
        return Err(DataError::csv(&table.path, 1, format!("it has no rows {} to {}; it has {all}", rows.start, rows.end)));
    }
    Ok(rows)
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
        Bytes((PIECE + FIELD + self.seen() * self.table.used.len() * WORD) as u64)
    }

    fn read(&self, first_row: u64, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.write(first_row..first_row + out.rows() as u64, scratch, out)
    }

    fn gather(&self, rows: Gather<'_>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.write(rows.rows.iter().copied(), scratch, out)
    }

    fn held_bytes(&self) -> Bytes {
        Bytes(self.table.held() as u64)
    }

    fn resident_bytes(&self) -> Bytes {
        if self.spec.lenient {
            return Bytes::ZERO;
        }
        Bytes((self.rows.end - self.rows.start) * (self.table.used.len() * WORD) as u64)
    }

    fn resident(&self) -> Result<Arc<dyn Source>, DataError> {
        let used = self.table.used.len();
        let mut memory = vec![0; PIECE + FIELD];
        let mut matrix: Arc<[[u8; WORD]]> = std::iter::repeat_n([0; WORD], self.resident_bytes().get() / WORD).collect();
        let words = Arc::get_mut(&mut matrix).expect("it is not shared yet");
        self.table.each(self.rows.clone(), &mut memory, |row, column, value| {
            words[row as usize * used + column] = self.table.used[column].word(value);
        })?;
        Ok(Arc::new(Csv { matrix: Some(matrix), ..self.clone() }))
    }

    fn classes(&self, visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        let &[target] = &self.table.targets[..] else { return Ok(false) };
        let target = target as usize;
        if self.spec.window.is_some() || !self.table.used[target].whole {
            return Ok(false);
        }
        let (mut memory, mut class) = (vec![0; PIECE + FIELD], i64::MIN);
        self.table.walk(self.rows.clone(), &mut memory, |_, read| {
            match read {
                Read::Value(column, value) if column == target => class = value as i64,
                Read::Value(..) => {}
                // An invalid row is reported when it is read.
                Read::End(_) => visit(std::mem::replace(&mut class, i64::MIN)),
            }
            Ok(())
        })?;
        Ok(true)
    }

    fn visit_column(&self, name: &str, visit: &mut dyn FnMut(&[u8])) -> Result<bool, DataError> {
        // The value of a window is that of its first row.
        let (mut at, mut row, stride) = (None, 0, self.stride());
        each_record(&self.table.path, |line, fields| {
            let Some(column) = at else {
                at = Some(fields.iter().position(|field| field == name.as_bytes()));
                return Ok(());
            };
            let is_start = self.rows.contains(&row) && (row - self.rows.start).is_multiple_of(stride);
            if let Some(column) = column.filter(|_| is_start && (row - self.rows.start) / stride < self.len) {
                let field = fields
                    .get(column)
                    .ok_or_else(|| DataError::csv(&self.table.path, line, format!("it has no column `{name}`; correct the row")));
                visit(field?);
            }
            row += 1;
            Ok(())
        })?;
        Ok(at.flatten().is_some())
    }

    fn row_name(&self, row: u64) -> String {
        let first = self.rows.start + row * self.stride();
        let mut memory = vec![0; PIECE + FIELD];
        match self.table.line(first, &mut memory) {
            Ok(line) => format!("{}:{line}", self.table.path.display()),
            Err(_) => format!("row {first} of {}", self.table.path.display()),
        }
    }

    fn file_use(&self) -> FileUse {
        let unused = self.table.unused().map(|(name, reason)| (name.to_string(), reason.to_string()));
        FileUse { used: self.names(&self.table.features), targets: self.names(&self.table.targets), unused: unused.collect() }
    }

    fn scales(&self) -> Vec<ColumnScale> {
        if self.spec.standardize.is_some() { self.statistics() } else { Vec::new() }
    }

    fn held_name(&self) -> &'static str {
        "index"
    }

    fn fingerprint(&self, _rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        identify_open(&self.table.path, &self.table.file, hash)?;
        // `used` contains what was derived from the whole file, such as types and standardization.
        hash.write(format!("{:?} {:?}", self.spec, self.rows).as_bytes());
        for (at, used) in self.table.used.iter().enumerate() {
            hash.write(self.table.name(at).as_bytes());
            hash.write(&[u8::from(used.whole)]);
            [used.mean, used.factor].iter().for_each(|number| hash.write(&number.to_bits().to_le_bytes()));
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
        let mut text = format!("csv {} (rows {} to {}", self.table.path.display(), self.rows.start, self.rows.end);
        text += &format!(", {}", names(&self.table.features));
        if !self.table.targets.is_empty() {
            text += &format!(" → {}", names(&self.table.targets));
        }
        if let Some(window) = &self.spec.window {
            text += &format!(", {}", window.describe());
        }
        text + ")"
    }
}
