//! What is asked of a text table.

use crate::source::selection::RowSelection;
use crate::source::{ColumnScale, Window};
use crate::table::{ColumnOptions, Standardize, TableSpec};
use std::ops::Range;

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
    pub(super) table: TableSpec,
    pub(super) delimiter: Option<u8>,
    pub(super) decimal: Option<u8>,
    pub(super) header: Option<bool>,
    pub(super) names: Option<Vec<String>>,
    pub(super) json_lines: bool,
    pub(super) window: Option<Window>,
    pub(super) part: RowSelection,
    pub(super) lenient: bool,
}

/// The dtype of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsvType {
    /// f32.
    Float,
    /// i32; for targets only, features are always f32.
    Int,
}

impl From<TableSpec> for CsvSpec {
    fn from(table: TableSpec) -> CsvSpec {
        CsvSpec { table, ..CsvSpec::default() }
    }
}

impl CsvSpec {
    /// The default: all columns that can be encoded are features, and there is no window.
    pub fn new() -> CsvSpec {
        CsvSpec::default()
    }

    /// Sets the columns of `x`. Default: all columns of numbers, Booleans, dates and categories; without a window,
    /// targets are excluded.
    pub fn features<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> CsvSpec {
        self.table = self.table.features(names);
        self
    }

    /// Sets the columns of `y`.
    pub fn targets<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> CsvSpec {
        self.table = self.table.targets(names);
        self
    }

    /// Sets the dtype of a column. By default, a target whose values are all integers, such as a class, is an
    /// integer.
    pub fn column_type(mut self, name: impl Into<String>, kind: CsvType) -> CsvSpec {
        let name = name.into();
        let options = ColumnOptions { integer: Some(kind == CsvType::Int), ..self.table.options(&name) };
        self.table = self.table.column(name, options);
        self
    }

    /// Sets the delimiter. Default: the one of `,`, `;`, tab and `|` that splits the first lines evenly.
    pub fn delimiter(mut self, delimiter: u8) -> CsvSpec {
        self.delimiter = Some(delimiter);
        self
    }

    /// Sets the decimal mark. Default: a point; a comma where numbers have one and it is not the delimiter.
    pub fn decimal(mut self, mark: u8) -> CsvSpec {
        self.decimal = Some(mark);
        self
    }

    /// The files have no header. Columns are called `column_0`, `column_1`, …, unless they have names.
    pub fn no_header(mut self) -> CsvSpec {
        self.header = Some(false);
        self
    }

    /// Sets the names of the columns, instead of those of the header.
    pub fn names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> CsvSpec {
        self.names = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Each line is a JSON object.
    pub fn json_lines(mut self) -> CsvSpec {
        self.json_lines = true;
        self
    }

    /// Time-series windows: `x` is f32 `[length, features]`, `y` f32 `[horizon × targets]`.
    pub fn window(mut self, window: Window) -> CsvSpec {
        self.window = Some(window);
        self
    }

    /// Standardizes columns with the mean and standard deviation of the selected rows.
    pub fn standardize(mut self, which: Standardize) -> CsvSpec {
        self.table = self.table.standardize(which);
        self
    }

    /// Standardizes columns with these statistics, such as those of the rows that a model was trained on.
    pub fn scales(mut self, scales: impl IntoIterator<Item = ColumnScale>) -> CsvSpec {
        self.table.scales = Some(scales.into_iter().collect());
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
