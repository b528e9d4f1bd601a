//! What can go wrong with data: one sentence that says what, to what, and what to do.

use plimsoll_core::{Bytes, DType, LedgerError};
use std::any::Any;
use std::io;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error of a data set, its plan or its feed. Cloning is cheap: a feed that has failed gives the same error each time it is asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was being done, such as `open` or `read row 7 of`.
        action: String,
        /// To which file.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// A file whose contents are not what its name promises.
    #[error("{} cannot be read as .npy: {problem}", .path.display())]
    Npy {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// The same of a Parquet file.
    #[error("{} cannot be read as Parquet: {problem}", .path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A text that windows cannot be created of.
    #[error("{} cannot be read as text: {problem}", .path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A table that rows cannot be created of.
    #[error("{}, line {line}: {problem}", .path.display())]
    Csv {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A record inside a file that cannot be read.
    #[error("{}, the record at byte {at}: {problem}", .path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        at: u64,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// An image that cannot be decoded.
    #[error("{} cannot be decoded: {problem}; replace the file or take it out of the folder", .path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An image that takes more memory than one may, whatever the limit is.
    #[error(
        "{} is {width} × {height} pixels and takes {needed} to read and decode, but a single item may take {cap}; \
         raise max_item, or make the image smaller", .path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Pixels in a row.
        width: usize,
        /// Rows of pixels.
        height: usize,
        /// The file, its pixels and the decoder's own memory.
        needed: Bytes,
        /// What one may take.
        cap: Bytes,
    },
    /// An image that this limit has no space for, and a larger one has. It is no bad row: which rows there are depends on no limit.
    #[error(
        "{} is {width} × {height} pixels and takes {needed} to read and decode, but this memory limit leaves {cap} for a single item; \
         raise the limit, or say what one may take (max_item), so that ignore_errors leaves out larger ones under any limit", .path.display()
    )]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Pixels in a row.
        width: usize,
        /// Rows of pixels.
        height: usize,
        /// The file, its pixels and the decoder's own memory.
        needed: Bytes,
        /// What there is.
        cap: Bytes,
    },
    /// An image smaller than the part that is to be cut out of it.
    #[error("{} is {width} × {height} pixels, too small to cut {crop_width} × {crop_height} out of it; resize before cropping, or crop less", .path.display())]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Pixels in a row.
        width: usize,
        /// Rows of pixels.
        height: usize,
        /// The part's.
        crop_width: usize,
        /// The part's.
        crop_height: usize,
    },
    /// An image larger than the frame it is to be put into.
    #[error(
        "{} is {width} × {height} pixels, too large for a frame of {frame_width} × {frame_height}; use crop_or_pad, resize, or a larger frame",
        .path.display()
    )]
    TooBig {
        /// The file.
        path: PathBuf,
        /// Pixels in a row.
        width: usize,
        /// Rows of pixels.
        height: usize,
        /// The frame's.
        frame_width: usize,
        /// The frame's.
        frame_height: usize,
    },
    /// A folder that is not laid out as one class per folder.
    #[error("{} is no folder of classes: {problem}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A cache file that cannot be used.
    #[error("{} cannot be used as a cache: {problem}", .path.display())]
    Cache {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A file that ends before its header says it does.
    #[error("{} is truncated: its header promises {expected} bytes and it has {actual}; copy or write it again", .path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes the header promises, the header included.
        expected: u64,
        /// Bytes there are.
        actual: u64,
    },
    /// Files that are columns of the same rows must have as many of them.
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
    /// An integer that the type the consumer gets cannot hold.
    #[error("{} holds {value} in row {row}, which does not fit {dtype}; store smaller numbers or use a float type", .path.display())]
    DoesNotFit {
        /// The file.
        path: PathBuf,
        /// The row, counted from 0.
        row: u64,
        /// What stands there.
        value: i64,
        /// What the consumer gets.
        dtype: DType,
    },
    /// A schema that no block of rows could have.
    #[error("column `{column}` {problem}")]
    Schema {
        /// The column.
        column: String,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A stage, or a closure of the user's, names a column that is not there.
    #[error("there is no column `{name}`{}; the columns are {}", if *.undecoded { " of decoded images" } else { "" }, .have.join(", "))]
    NoColumn {
        /// The name asked for.
        name: String,
        /// The names there are.
        have: Vec<String>,
        /// Whether there are also columns of images that a later stage decodes.
        undecoded: bool,
    },
    /// An operation that cannot be applied to a column.
    #[error("{op} cannot be applied to column `{column}`: {problem}")]
    Op {
        /// The operation as people write it.
        op: String,
        /// The column.
        column: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A label outside the classes it is encoded for.
    #[error(
        "column `{column}` holds the label {value} in row {row}{}, outside 0..{classes}; correct the row or raise the number of classes",
        place(.at)
    )]
    Label {
        /// The column.
        column: String,
        /// The row of the source, counted from 0.
        row: u64,
        /// What stands there.
        value: i64,
        /// How many classes there are.
        classes: usize,
        /// The file, and the byte the row begins at, where the source knows.
        at: Option<(PathBuf, u64)>,
    },
    /// What user code said of a row.
    #[error("{op} failed on column `{column}` in row {row}{}: {problem}; correct the row or the function, or leave it out", place(.at))]
    Function {
        /// The operation.
        op: String,
        /// The column.
        column: String,
        /// The row of the source, counted from 0.
        row: u64,
        /// What it said.
        problem: String,
        /// The file, and the byte the row begins at, where the source knows.
        at: Option<(PathBuf, u64)>,
    },
    /// A number that is none.
    #[error("column `{column}` holds {value} in row {row}{}; correct the row or leave it out", place(.at))]
    NotFinite {
        /// The column.
        column: String,
        /// The row of the source, counted from 0.
        row: u64,
        /// What stands there.
        value: f32,
        /// The file, and the byte the row begins at, where the source knows.
        at: Option<(PathBuf, u64)>,
    },
    /// A stage that makes no sense where or as it is written.
    #[error("{0}")]
    Stage(String),
    /// A limit no arrangement of the pipeline fits in.
    #[error(
        "the input pipeline cannot run in {limit}: it needs at least {minimum} ({}); raise the limit or lower the batch size",
        list(.stages)
    )]
    OverLimit {
        /// The limit.
        limit: Bytes,
        /// The smallest limit that works.
        minimum: Bytes,
        /// What the smallest arrangement holds, by stage.
        stages: Vec<(String, Bytes)>,
    },
    /// The ledger refused a reservation the plan had counted on.
    #[error("the input pipeline's memory was refused: {0}")]
    Ledger(#[from] LedgerError),
    /// A plan used with a data set it was not made for.
    #[error(
        "the plan was made for another data set (it counts {planned}, this one needs {needed}); call plan() on the data set that is fed"
    )]
    OtherPlan {
        /// What the plan counts.
        planned: Bytes,
        /// What the data set would take in the plan's geometry.
        needed: Bytes,
    },
    /// A saved position that belongs to a different data set.
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
    /// Code of a source or an operation panicked.
    #[error("a source or an operation panicked: {message}; correct it if the code is yours, otherwise please report a bug")]
    Panic {
        /// What the panic said.
        message: String,
    },
}

impl DataError {
    /// Unwinds out of a closure of the user's that cannot return an error; [`from_panic`](Self::from_panic) gives the error back.
    pub(crate) fn unwind(self) -> ! {
        resume_unwind(Box::new(self))
    }

    /// The error that code unwound with, or a panic's message.
    pub(crate) fn from_panic(panic: Box<dyn Any + Send>) -> DataError {
        match panic.downcast::<DataError>() {
            Ok(error) => *error,
            Err(panic) => DataError::Panic { message: panic_message(panic) },
        }
    }

    /// The same, with where in its file the row is.
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
