//! Errors within a stream, and whether rows follow them.
//!
//! A failed row keeps its position in the stream, so a stage that drops failed rows counts the same ones for any
//! block size. After a fault, a stage can continue with the next row.

use crate::DataError;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

/// An error, and what is lost with it.
#[derive(Debug)]
pub(crate) struct Fault {
    pub error: Box<DataError>,
    pub loss: Loss,
    /// The row and what it is a row of, if the error does not name its location.
    row: Option<(u64, &'static str)>,
}

/// What is lost. Stages that count rows count a row or a part as one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// One row; the next one follows.
    Row,
    /// An unknown number of rows, such as the rest of a file; the rows after them follow.
    Part,
    /// Everything that would have followed.
    Rest,
}

impl Fault {
    pub fn row(error: DataError) -> Fault {
        Fault { error: Box::new(error), loss: Loss::Row, row: None }
    }

    pub fn part(error: DataError) -> Fault {
        Fault { loss: Loss::Part, ..Fault::row(error) }
    }

    /// Adds the row index among the rows of `whose`, unless the error names its location.
    pub fn numbered(self, row: u64, whose: &'static str) -> Fault {
        use DataError as Of;
        let of_row = matches!(*self.error, Of::Label { .. } | Of::NotFinite { .. } | Of::Function { .. });
        let of_image = matches!(*self.error, Of::Image { .. } | Of::TooLarge { .. } | Of::NoRoom { .. });
        let of_file = of_image || matches!(*self.error, Of::Io { .. } | Of::TooSmall { .. } | Of::TooBig { .. });
        Fault { row: (!of_row && !of_file).then_some((row, whose)), ..self }
    }

    /// Replaces the error.
    pub fn with_error(self, words: impl FnOnce(&DataError) -> DataError) -> Fault {
        Fault { error: Box::new(words(&self.error)), ..self }
    }

    /// Whether the stream can continue with the next row.
    pub fn goes_on(&self) -> bool {
        self.loss != Loss::Rest
    }
}

impl From<DataError> for Fault {
    fn from(error: DataError) -> Fault {
        Fault { loss: Loss::Rest, ..Fault::row(error) }
    }
}

impl From<Fault> for DataError {
    fn from(fault: Fault) -> DataError {
        *fault.error
    }
}

/// The error with its location.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row {
            Some((row, whose)) => write!(f, "row {row} {whose}: {}", self.error),
            None => write!(f, "{}", self.error),
        }
    }
}

/// Runs code that may panic, and returns a panic as an error.
pub(crate) fn guarded<T>(code: impl FnOnce() -> T) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(code)).map_err(DataError::from_panic)
}

/// Maximum number of stored faults.
const MOST: usize = 128;

/// Faults of rows that pass through a ring, by epoch and position; in the ring itself, the rows are only marked.
pub(crate) struct RowErrors {
    faults: Mutex<BTreeMap<(u64, u64), Fault>>,
    /// Whether a later stage ignores errors, so that rows after a failed one are still read.
    pub ignored: bool,
}

impl RowErrors {
    pub fn new(ignored: bool) -> RowErrors {
        RowErrors { faults: Mutex::default(), ignored }
    }

    /// For workers: records a failed row. All rows of a ring may be bad, so the errors of later ones are not stored.
    pub fn record(&self, epoch: u64, place: u64, fault: Fault) {
        let mut faults = self.lock();
        faults.insert((epoch, place), fault);
        if faults.len() > MOST
            && let Some(last) = faults.last_entry()
            && last.get().loss == Loss::Row
        {
            last.remove();
        }
    }

    /// The error of a marked row.
    pub fn take(&self, epoch: u64, place: u64) -> Fault {
        let noted = self.lock().remove(&(epoch, place));
        noted.unwrap_or_else(|| {
            let problem = format!("it failed, as {MOST} before it, and what was wrong with so many is not kept");
            Fault::row(DataError::Stage(problem)).numbered(place, "of the stage before")
        })
    }

    /// Starts an epoch. Workers may already have started it.
    pub fn begin(&self, epoch: u64) {
        self.lock().retain(|&(noted, _), _| noted >= epoch);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), Fault>> {
        self.faults.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
