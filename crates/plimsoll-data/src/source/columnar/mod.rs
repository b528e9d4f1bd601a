//! Tables in files of columns, such as Parquet and Arrow: what opening and reading them have in common.

mod block;
mod index;
mod selected;

pub(super) use block::{BLOCK, Block, BlockReader, BlockRows};
pub(super) use index::index_columns;
pub(super) use selected::{RowsSpec, SelectedRows};

use super::{FileUse, TableFacts};
use crate::DataError;
use crate::progress::Reporter;
use crate::table::{
    Cell, CellFormat, Chosen, ColumnKind, ColumnNames, Columns, ColumnsError, Encoding, FitRows, Inference, RowBuffer, TableSpec,
    candidates,
};
use plimsoll_core::Bytes;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A column of a file.
pub(super) struct ColumnInfo {
    /// Its name; of a struct's field, with the names of both.
    pub name: String,
    /// What its cells hold, or the reason why they are not read.
    pub cells: Result<ColumnKind, &'static str>,
    /// Whether all of its values are integers.
    pub whole: bool,
}

/// One pass over the rows of files.
pub(super) trait CellReader {
    /// Adds the cells of the wanted columns of the next row, and of all columns by default; `false` after the last.
    /// Every row wants the same columns.
    fn row(&mut self, wanted: Option<&[bool]>, cells: &mut RowBuffer) -> Result<bool, DataError>;
}

/// The rows that columns are fitted to.
#[derive(Clone)]
pub(super) struct FittedRows(Arc<Vec<u64>>);

impl FittedRows {
    /// Those for which `keep` holds, of `rows`.
    pub fn new(rows: u64, keep: &dyn Fn(u64) -> bool) -> FittedRows {
        let mut words = vec![0u64; rows.div_ceil(64) as usize];
        (0..rows).filter(|row| keep(*row)).for_each(|row| words[(row / 64) as usize] |= 1 << (row % 64));
        FittedRows(Arc::new(words))
    }

    fn has(&self, row: u64) -> bool {
        self.0.get((row / 64) as usize).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }
}

impl std::fmt::Debug for FittedRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FitRows({} words)", self.0.len())
    }
}

/// A table that is being opened.
pub(super) struct TableOpening<'s> {
    spec: &'s TableSpec,
    rows: &'s RowsSpec,
    format: CellFormat,
    columns: Vec<ColumnInfo>,
    names: ColumnNames,
    seen: Vec<Option<Inference>>,
    /// The columns whose type does not say all: texts may be categories, lists have lengths, and numbers may be
    /// missing.
    pub inspected: Vec<usize>,
    /// Bytes of the longest text.
    pub longest_text: usize,
}

impl<'s> TableOpening<'s> {
    pub fn new(spec: &'s TableSpec, rows: &'s RowsSpec, columns: Vec<ColumnInfo>) -> Result<TableOpening<'s>, String> {
        let mut names = ColumnNames::default();
        columns.iter().try_for_each(|column| names.push(&column.name))?;
        let wanted = candidates(spec, &names).map_err(listed)?;
        let mut seen: Vec<Option<Inference>> = vec![None; columns.len()];
        let mut inspected = Vec::new();
        for (at, column) in columns.iter().enumerate() {
            let (Some(label), Ok(kind)) = (wanted[at], column.cells) else { continue };
            match kind {
                ColumnKind::Text | ColumnKind::List => {
                    seen[at] = Some(Inference::new(label));
                    inspected.push(at);
                }
                kind => {
                    seen[at] = Some(Inference::known(kind, column.whole));
                    if spec.indicator && !label {
                        inspected.push(at);
                    }
                }
            }
        }
        let format = CellFormat { missing: spec.missing_values.iter().cloned().collect(), ..CellFormat::default() };
        Ok(TableOpening { spec, rows, format, columns, names, seen, inspected, longest_text: 0 })
    }

    /// The names of the inspected columns.
    pub fn inspected_names(&self) -> Vec<String> {
        self.inspected.iter().map(|at| self.columns[*at].name.clone()).collect()
    }

    /// Looks at all rows of the inspected columns, which `reader` returns in their order.
    pub fn infer(&mut self, reader: &mut dyn CellReader, path: &Path, rows: u64) -> Result<(), DataError> {
        let format = self.format.clone();
        self.each_cell(reader, path, rows, |opening, row, column, cell| {
            if let Some(seen) = &mut opening.seen[opening.inspected[column]] {
                seen.add(cell, &format, true, row);
            }
        })
    }

    /// Finds the longest text of all rows that `reader` returns.
    pub fn measure(&mut self, reader: &mut dyn CellReader, path: &Path, rows: u64) -> Result<(), DataError> {
        self.each_cell(reader, path, rows, |_, _, _, _| {})
    }

    /// Reads all rows, with progress, and finds the longest text. `add` receives the row, counted from 1, the column
    /// and the cell.
    fn each_cell(
        &mut self,
        reader: &mut dyn CellReader,
        path: &Path,
        rows: u64,
        mut add: impl FnMut(&mut Self, u64, usize, Cell<'_>),
    ) -> Result<(), DataError> {
        let mut reporter = Reporter::rows("reading", path, rows);
        let (mut cells, mut row) = (RowBuffer::default(), 0);
        while reader.row(None, {
            cells.clear();
            &mut cells
        })? {
            row += 1;
            reporter.at(row);
            for (column, cell) in cells.iter() {
                if let Cell::Text(text) = cell {
                    self.longest_text = self.longest_text.max(text.len());
                }
                add(self, row, column, cell);
            }
        }
        Ok(())
    }

    /// Which columns are read. `index` are the columns that pandas wrote as its index.
    pub fn choose(&self, index: &[String]) -> Result<Chosen, String> {
        Chosen::new(self.spec, &self.names, &self.seen, self.rows.window.is_some(), index).map_err(listed)
    }

    /// The names of the used columns.
    pub fn used_names(&self, chosen: &Chosen) -> Vec<String> {
        chosen.used.iter().map(|at| self.names.get(*at as usize).to_string()).collect()
    }

    /// Fits the used columns to the selected rows of `reader`, and returns the memory that this took.
    pub fn fit(
        &self,
        chosen: &Chosen,
        reader: &mut dyn CellReader,
        range: &Range<u64>,
        (path, rows): (&Path, u64),
    ) -> Result<(Columns, Bytes), ColumnsError> {
        let mut pass = |wanted: &[bool], sink: &mut dyn FnMut(u64, &RowBuffer) -> Result<(), String>| {
            let mut reporter = Reporter::rows("fitting", path, rows);
            let (mut cells, mut row, mut good, mut bad) = (RowBuffer::default(), 0, 0, None);
            while reader.row(Some(wanted), {
                cells.clear();
                &mut cells
            })? {
                reporter.at(row);
                if self.rows.fits(range, row) {
                    // A row that cannot be read is reported when it is.
                    match sink(row, &cells) {
                        Ok(()) => good += 1,
                        Err(problem) => _ = bad.get_or_insert((row, problem)),
                    }
                }
                row += 1;
            }
            // Without any other, nothing can be fitted.
            match bad.filter(|_| good == 0) {
                Some((row, problem)) => Err(DataError::TableRow { path: path.to_path_buf(), row, problem }),
                None => Ok(()),
            }
        };
        let fit_rows = FitRows { pass: &mut pass, all: self.rows.fits_all(range, rows) };
        chosen.columns(self.spec, &self.names, &self.format, self.rows.window.is_some(), fit_rows)
    }

    /// What is known about the files once the columns are fitted.
    pub fn facts(&self, chosen: &Chosen, columns: &Columns) -> TableFacts {
        TableFacts {
            file_use: self.file_use(chosen).with_encoded(columns.encoders.iter().map(|encoder| &encoder.column)),
            scales: if self.spec.standardize.is_some() { columns.scales() } else { Vec::new() },
            fitted: columns.encoders.iter().map(|encoder| encoder.column.clone()).collect(),
            classes: columns.classes(),
        }
    }

    fn file_use(&self, chosen: &Chosen) -> FileUse {
        let name = |at: &u32| self.spec.renamed(self.names.get(chosen.used[*at as usize] as usize)).to_string();
        let unused = chosen.unused.iter().map(|(at, reason)| {
            let column = &self.columns[*at as usize];
            (column.name.clone(), column.cells.err().unwrap_or(reason).to_string())
        });
        FileUse {
            used: chosen.features.iter().map(name).collect(),
            targets: chosen.targets.iter().map(name).collect(),
            outputs: chosen.outputs.iter().map(|(output, columns)| (output.clone(), columns.iter().map(name).collect())).collect(),
            encoded: Vec::new(),
            unused: unused.collect(),
        }
    }
}

/// Calls `visit` with the cells of the only column of a reader, as texts.
pub(super) fn visit_cells(reader: &mut dyn CellReader, visit: &mut dyn FnMut(&[u8])) -> Result<(), DataError> {
    let mut cells = RowBuffer::default();
    while reader.row(None, {
        cells.clear();
        &mut cells
    })? {
        cells.iter().for_each(|(_, cell)| cell.with_text(&mut *visit));
    }
    Ok(())
}

/// Memory of fitting columns, beyond what they hold since.
pub(super) fn fitting_bytes(columns: &Columns, fitting: Bytes) -> Bytes {
    fitting.saturating_sub(Bytes(columns.held() as u64))
}

/// Memory of the columns with what was fitted, and of lists while they are encoded.
pub(super) fn held_bytes(columns: &Columns) -> usize {
    let bytes = columns.encoders.iter().map(|encoder| match encoder.column.encoding {
        Encoding::List { length, .. } => length * 8 * 2,
        _ => 0,
    });
    columns.held() + bytes.sum::<usize>()
}

/// A half-precision number.
pub(super) fn half(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (if bits >> 15 == 1 { -1.0 } else { 1.0 }, i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

/// Makes `vector` empty with exactly this capacity. The old allocation is freed first, so that both never exist
/// together.
pub(super) fn resize_to<T>(vector: &mut Vec<T>, elements: usize) {
    vector.clear();
    if vector.capacity() < elements {
        *vector = Vec::new();
        vector.reserve_exact(elements);
    }
}

/// The wording of a file that is one of several.
fn listed(problem: String) -> String {
    problem.replacen("there is no column", "it has no column", 1).replacen("; the columns are ", "; its columns are ", 1)
}
