//! Errors of data sets: one sentence with the problem, its place and the remedy.

use plimsoll_core::{Bytes, DType, LedgerError};
use std::any::Any;
use std::io;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error of a data set, its plan or its feed. Cloning is cheap: a failed feed returns the same error on every
/// call.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// An I/O error.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// The operation, such as `open` or `read row 7 of`.
        action: String,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// A file that is not a valid `.npy` file.
    #[error("{} cannot be read as .npy: {problem}", .path.display())]
    Npy {
        /// The file.
        path: PathBuf,
        /// The problem and the remedy.
        problem: String,
    },
    /// A file that is not a valid Parquet file.
    #[error("{} cannot be read as Parquet: {problem}", .path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The problem and the remedy.
        problem: String,
    },
    /// A file that is not a valid Arrow file or stream.
    #[error("{} cannot be read as Arrow: {problem}", .path.display())]
    Arrow {
        /// The file.
        path: PathBuf,
        /// The problem and the remedy.
        problem: String,
    },
    /// An invalid row of a file of columns.
    #[error("{}, row {row} (the first is 0): {problem}", .path.display())]
    TableRow {
        /// The file.
        path: PathBuf,
        /// The row, counted from 0.
        row: u64,
        /// The problem and the remedy.
        problem: String,
    },
    /// A text file that cannot be read as windows.
    #[error("{} cannot be read as text: {problem}", .path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The problem and the remedy.
        problem: String,
    },
    /// A tokenizer that cannot be used.
    #[error("{} cannot be used as a tokenizer: {problem}", .path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The problem and the remedy.
        problem: String,
    },
    /// A CSV file with an invalid row.
    #[error("{}, line {line}: {problem}", .path.display())]
    Csv {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The problem and the remedy.
        problem: String,
    },
    /// An invalid record in a file.
    #[error("{}, the record at byte {at}: {problem}", .path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Offset of the record.
        at: u64,
        /// The problem and the remedy.
        problem: String,
    },
    /// An image that cannot be decoded.
    #[error("{} cannot be decoded: {problem}; replace the file or take it out of the folder", .path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// An image that exceeds the maximum per file, regardless of the memory limit.
    #[error(
        "{} is {width} × {height} pixels and takes {needed} to read and decode, but a single item may take {cap}; \
         raise max_item, or make the image smaller", .path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Bytes of the file, its pixels and the decoder's own memory.
        needed: Bytes,
        /// The maximum per file.
        cap: Bytes,
    },
    /// An image that takes more than the whole decode pool. It was not scanned before planning, or has changed since:
    /// memory is reserved for the largest image that was scanned.
    #[error(
        "{} is {width} × {height} pixels and takes {needed} to read and decode, but the plan reserves {cap} for a single item: \
         its header was not read before planning, or the file has changed since; raise the limit, \
         or drop such rows with ignore_errors", .path.display()
    )]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Bytes of the file, its pixels and the decoder's own memory.
        needed: Bytes,
        /// The available memory.
        cap: Bytes,
    },
    /// An image smaller than the crop.
    #[error("{} is {width} × {height} pixels, too small to cut {crop_width} × {crop_height} out of it; resize before cropping, or crop less", .path.display())]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Width of the crop.
        crop_width: usize,
        /// Height of the crop.
        crop_height: usize,
    },
    /// An image larger than the frame to pad to.
    #[error(
        "{} is {width} × {height} pixels, too large for a frame of {frame_width} × {frame_height}; use crop_or_pad, resize, or a larger frame",
        .path.display()
    )]
    TooBig {
        /// The file.
        path: PathBuf,
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Width of the frame.
        frame_width: usize,
        /// Height of the frame.
        frame_height: usize,
    },
    /// An image or a mask without its counterpart.
    #[error("{}: {problem}", .path.display())]
    Unpaired {
        /// The file or folder.
        path: PathBuf,
        /// The problem and the remedy.
        problem: String,
    },
    /// A folder that does not have one subfolder per class.
    #[error("{} is no folder of classes: {problem}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The problem and the remedy.
        problem: String,
    },
    /// A cache file that cannot be used.
    #[error("{} cannot be used as a cache: {problem}", .path.display())]
    Cache {
        /// The file.
        path: PathBuf,
        /// The problem and the remedy.
        problem: String,
    },
    /// A file that is shorter than its header states.
    #[error("{} is truncated: its header promises {expected} bytes and it has {actual}; copy or write it again", .path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes according to the header, including it.
        expected: u64,
        /// Actual bytes.
        actual: u64,
    },
    /// Files of one data set with different numbers of rows.
    #[error("{} has {rows} rows but {} has {other_rows}; columns of one data set need the same number of rows", .path.display(), .other.display())]
    RowsDisagree {
        /// One file.
        path: PathBuf,
        /// Its rows.
        rows: u64,
        /// The other file.
        other: PathBuf,
        /// Its rows.
        other_rows: u64,
    },
    /// An integer that does not fit in the column's dtype.
    #[error("{} holds {value} in row {row}, which does not fit {dtype}; store smaller numbers or use a float type", .path.display())]
    DoesNotFit {
        /// The file.
        path: PathBuf,
        /// The row, counted from 0.
        row: u64,
        /// The value.
        value: i64,
        /// The dtype of the column.
        dtype: DType,
    },
    /// An invalid schema.
    #[error("column `{column}` {problem}")]
    Schema {
        /// The column.
        column: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// A stage or a user closure names a column that does not exist.
    #[error("there is no column `{name}`{}; the columns are {}", if *.undecoded { " of decoded images" } else { "" }, .have.join(", "))]
    NoColumn {
        /// The requested name.
        name: String,
        /// The existing names.
        have: Vec<String>,
        /// Whether there are also columns of images that a later stage decodes.
        undecoded: bool,
    },
    /// An operation that cannot be applied to a column.
    #[error("{op} cannot be applied to column `{column}`: {problem}")]
    Op {
        /// The operation with its arguments.
        op: String,
        /// The column.
        column: String,
        /// The problem and the remedy.
        problem: String,
    },
    /// A label outside the range of classes.
    #[error(
        "column `{column}` holds the label {value} in row {row}{}, outside 0..{classes}; correct the row or raise the number of classes",
        place(.at)
    )]
    Label {
        /// The column.
        column: String,
        /// The row of the source, counted from 0.
        row: u64,
        /// The value.
        value: i64,
        /// Number of classes.
        classes: usize,
        /// The file and the byte offset of the row, if the source knows them.
        at: Option<(PathBuf, u64)>,
    },
    /// An error of user code for a row.
    #[error("{op} failed on column `{column}` in row {row}{}: {problem}; correct the row or the function, or leave it out", place(.at))]
    Function {
        /// The operation.
        op: String,
        /// The column.
        column: String,
        /// The row of the source, counted from 0.
        row: u64,
        /// Its message.
        problem: String,
        /// The file and the byte offset of the row, if the source knows them.
        at: Option<(PathBuf, u64)>,
    },
    /// A value that is NaN or infinite.
    #[error("column `{column}` holds {value} in row {row}{}; correct the row or leave it out", place(.at))]
    NotFinite {
        /// The column.
        column: String,
        /// The row of the source, counted from 0.
        row: u64,
        /// The value.
        value: f32,
        /// The file and the byte offset of the row, if the source knows them.
        at: Option<(PathBuf, u64)>,
    },
    /// A stage that is invalid or in an invalid position.
    #[error("{0}")]
    Stage(String),
    /// A memory limit below the minimum of the pipeline.
    #[error(
        "the input pipeline cannot run in {limit}: it needs at least {minimum} ({}); raise the limit or lower the batch size",
        list(.stages)
    )]
    OverLimit {
        /// The limit.
        limit: Bytes,
        /// The smallest limit that works.
        minimum: Bytes,
        /// The bytes of each stage at the minimum.
        stages: Vec<(String, Bytes)>,
    },
    /// The ledger refused a planned reservation.
    #[error("the input pipeline's memory was refused: {0}")]
    Ledger(#[from] LedgerError),
    /// A plan used with another data set.
    #[error(
        "the plan was made for another data set (it counts {planned}, this one needs {needed}); call plan() on the data set that is fed"
    )]
    OtherPlan {
        /// Bytes of the plan.
        planned: Bytes,
        /// Bytes of the data set with the plan's geometry.
        needed: Bytes,
    },
    /// A saved position of another data set.
    #[error(
        "the saved position was taken with {what} {saved}, but this data set has {now}; resume with the data set the position was saved from"
    )]
    OtherState {
        /// What differs.
        what: &'static str,
        /// Its value when saved.
        saved: String,
        /// Its value now.
        now: String,
    },
    /// A source or an operation panicked.
    #[error("a source or an operation panicked: {message}; correct it if the code is yours, otherwise please report a bug")]
    Panic {
        /// The message of the panic.
        message: String,
    },
}

impl DataError {
    /// Unwinds out of a user closure that cannot return an error; [`from_panic`](Self::from_panic) recovers the
    /// error.
    pub(crate) fn unwind(self) -> ! {
        resume_unwind(Box::new(self))
    }

    /// The error that code unwound with, or the message of a panic.
    pub(crate) fn from_panic(panic: Box<dyn Any + Send>) -> DataError {
        match panic.downcast::<DataError>() {
            Ok(error) => *error,
            Err(panic) => DataError::Panic { message: panic_message(panic) },
        }
    }

    /// Adds the location of the row in its file.
    pub(crate) fn located(mut self, locate: impl FnOnce(u64) -> Option<(PathBuf, u64)>) -> DataError {
        if let DataError::NotFinite { row, at, .. } | DataError::Label { row, at, .. } | DataError::Function { row, at, .. } = &mut self {
            *at = locate(*row);
        }
        self
    }

    pub(crate) fn io(action: impl Into<String>, path: &Path, source: io::Error) -> DataError {
        DataError::Io { action: action.into(), path: path.to_path_buf(), source: Arc::new(source) }
    }

    pub(crate) fn text(path: &Path, problem: impl Into<String>) -> DataError {
        DataError::Text { path: path.to_path_buf(), problem: problem.into() }
    }

    pub(crate) fn csv(path: &Path, line: u64, problem: impl Into<String>) -> DataError {
        DataError::Csv { path: path.to_path_buf(), line, problem: problem.into() }
    }

    pub(crate) fn image(path: &Path, problem: impl Into<String>) -> DataError {
        DataError::Image { path: path.to_path_buf(), problem: problem.into() }
    }
}

/// The message of a panic that was caught.
pub(crate) fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}

fn place(at: &Option<(PathBuf, u64)>) -> String {
    at.as_ref().map_or(String::new(), |(path, byte)| format!(" ({}, byte {byte})", path.display()))
}

fn list(stages: &[(String, Bytes)]) -> String {
    stages.iter().map(|(name, bytes)| format!("{name} {bytes}")).collect::<Vec<_>>().join(", ")
}
