//! Time-series windows: which rows of a file are the input, and which are to be predicted.

use crate::table::Columns;
use crate::{Column, DataError, Schema};
use plimsoll_core::DType;
use std::ops::Range;

/// A window of a time series: `length` rows of input, and rows to predict after them.
///
/// ```
/// use plimsoll_data::source::Window;
/// // Hourly inputs of a day from rows of ten minutes; the values 1, 6 and 24 hours ahead are predicted.
/// let window = Window::new(24, 1).sampling_rate(6).horizons([1, 6, 24]);
/// assert_eq!((window.rows(), window.targets().collect::<Vec<_>>()), (283, vec![144, 174, 282]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    length: usize,
    /// How many sampled rows after the last input each target is.
    ahead: Vec<usize>,
    stride: usize,
    sampling_rate: usize,
}

impl Window {
    /// `length` consecutive rows of input, and the next `horizon` rows to predict; a window begins at every row.
    pub fn new(length: usize, horizon: usize) -> Window {
        Window { length, ahead: (1..=horizon).collect(), stride: 1, sampling_rate: 1 }
    }

    /// Sets the rows between the starts of two windows.
    pub fn stride(self, stride: usize) -> Window {
        Window { stride, ..self }
    }

    /// Takes every `rate`-th row, for inputs and for targets.
    pub fn sampling_rate(self, rate: usize) -> Window {
        Window { sampling_rate: rate, ..self }
    }

    /// Predicts from `offset` rows after the last input on; 1, the default, is the next row.
    pub fn offset(self, offset: usize) -> Window {
        let ahead = (0..self.ahead.len()).map(|target| offset.saturating_add(target)).collect();
        Window { ahead, ..self }
    }

    /// Predicts the rows that are this many rows after the last input.
    pub fn horizons(self, ahead: impl Into<Vec<usize>>) -> Window {
        Window { ahead: ahead.into(), ..self }
    }

    /// The number of rows to predict.
    pub fn horizon(&self) -> usize {
        self.ahead.len()
    }

    /// How many (sampled) rows after the last input each row to predict is.
    pub fn ahead(&self) -> &[usize] {
        &self.ahead
    }

    /// The number of input rows.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Rows of the file from the first input to the last target.
    pub fn rows(&self) -> usize {
        let sampled = (self.length.saturating_sub(1)).saturating_add(self.ahead.iter().copied().max().unwrap_or(0));
        sampled.saturating_mul(self.sampling_rate).saturating_add(1)
    }

    /// The input rows, counted from the first row of the window.
    pub fn inputs(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.length).map(|row| row * self.sampling_rate)
    }

    /// The rows to predict, counted from the first row of the window.
    pub fn targets(&self) -> impl Iterator<Item = usize> + '_ {
        self.ahead.iter().map(|ahead| (self.length - 1 + ahead) * self.sampling_rate)
    }

    /// Rows between the starts of two windows.
    pub fn step(&self) -> usize {
        self.stride
    }

    /// What makes it hold nothing, if anything does.
    fn problem(&self, targets: usize) -> Option<String> {
        let Window { length, ahead, stride, sampling_rate } = self;
        if ahead.contains(&0) {
            return Some("a target 0 rows after the last input is the input itself; use 1 for the next row".into());
        }
        let nothing = *length == 0 || *stride == 0 || *sampling_rate == 0 || ahead.is_empty() != (targets == 0);
        nothing.then(|| {
            let horizon = ahead.len();
            format!("a window of {length} rows and {horizon} to predict, every {stride}, with {targets} targets, holds nothing")
        })
    }

    /// The columns of windows over some rows of a table, and how many windows there are.
    pub(super) fn schema(&self, columns: &Columns, targets: usize, rows: &Range<u64>) -> Result<Result<(Schema, u64), String>, DataError> {
        if let Some(problem) = self.problem(targets) {
            return Ok(Err(problem));
        }
        let (length, horizon, whole, count) = (self.length, self.horizon(), self.rows() as u64, rows.end - rows.start);
        if whole > count {
            let spread = if whole > (length + horizon) as u64 { format!(" over {whole} rows") } else { String::new() };
            let what = format!("its {count} rows ({rows:?}) have no window of {length} and {horizon} rows{spread}; use more rows");
            return Ok(Err(what));
        }
        let (features, labels) = match columns.series() {
            Ok(series) => series,
            Err(problem) => return Ok(Err(problem)),
        };
        let mut found = vec![Column::new("x", DType::F32, vec![length, features])];
        found.extend(labels.map(|(dtype, width)| Column::new("y", dtype, vec![horizon.saturating_mul(width)])));
        Ok(Ok((Schema::new(found)?, (count - whole) / self.stride as u64 + 1)))
    }

    /// In words, for the description of a source.
    pub(super) fn describe(&self) -> String {
        let Window { length, ahead, stride, sampling_rate } = self;
        let sampled = if *sampling_rate == 1 { String::new() } else { format!(" of every {sampling_rate}th") };
        let targets = match ahead.iter().copied().eq(1..=ahead.len()) {
            true => ahead.len().to_string(),
            false => format!("{ahead:?} ahead"),
        };
        format!("{length} rows{sampled} → {targets}, every {stride}")
    }
}
