//! What comes where a row should, and whether rows follow it.
//!
//! Rows that failed travel down a stream in their place among the others, so a stage that leaves them out counts the same ones
//! however rows are cut into blocks. A stage that was informed of one can be asked for the next row.

use crate::DataError;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

/// An error, and what it takes with it.
#[derive(Debug)]
pub(crate) struct Fault {
    pub error: Box<DataError>,
    pub loss: Loss,
    /// The row and whose it is, where the error itself names no place.
    row: Option<(u64, &'static str)>,
}

/// What is lost. To stages that count rows, a row or a part is one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// A row; the next follows.
    Row,
    /// Rows, nobody knows how many, such as the rest of a file; what is behind them follows.
    Part,
    /// All that would have followed.
    Rest,
}

impl Fault {
    pub fn row(error: DataError) -> Fault {
        // What a larger limit has space for is no bad row, and leaving it out would make rows depend on the limit.
        let loss = if let DataError::NoRoom { .. } = error { Loss::Rest } else { Loss::Row };
        Fault { error: Box::new(error), loss, row: None }
    }

    pub fn part(error: DataError) -> Fault {
        Fault { loss: Loss::Part, ..Fault::row(error) }
    }

    /// The same, known by its number among the rows of `whose`, unless it says which row it is.
    pub fn numbered(self, row: u64, whose: &'static str) -> Fault {
        use DataError as Of;
        let of_row = matches!(*self.error, Of::Label { .. } | Of::NotFinite { .. } | Of::Function { .. });
        let of_file =
            matches!(*self.error, Of::Image { .. } | Of::Io { .. } | Of::TooLarge { .. } | Of::TooSmall { .. } | Of::TooBig { .. });
        Fault { row: (!of_row && !of_file).then_some((row, whose)), ..self }
    }

    /// The same with another error.
    pub fn with_error(self, words: impl FnOnce(&DataError) -> DataError) -> Fault {
        Fault { error: Box::new(words(&self.error)), ..self }
    }

    /// Whether the stream can be asked for the next row.
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

/// The error with its place.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row {
            Some((row, whose)) => write!(f, "row {row} {whose}: {}", self.error),
            None => write!(f, "{}", self.error),
        }
    }
}

/// Runs code that may panic: the fault of the row it was given.
pub(crate) fn guarded<T>(code: impl FnOnce() -> T) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(code)).map_err(DataError::from_panic)
}

/// Faults that are kept at a time.
const MOST: usize = 128;

/// Faults of rows that come through a ring, by epoch and place: there the rows are only marked.
pub(crate) struct RowErrors {
    faults: Mutex<BTreeMap<(u64, u64), Fault>>,
    /// Whether someone leaves such rows out, so that those after them are wanted.
    pub ignored: bool,
}

impl RowErrors {
    pub fn new(ignored: bool) -> RowErrors {
        RowErrors { faults: Mutex::default(), ignored }
    }

    /// Worker: a row failed. A ring may have any number of rows, and all of them may be bad: of the later ones it is not kept what
    /// was wrong.
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

    /// What was wrong with a marked row.
    pub fn take(&self, epoch: u64, place: u64) -> Fault {
        let noted = self.lock().remove(&(epoch, place));
        noted.unwrap_or_else(|| {
            let problem = format!("it failed, as {MOST} before it, and what was wrong with so many is not kept");
            Fault::row(DataError::Stage(problem)).numbered(place, "of the stage before")
        })
    }

    /// An epoch is begun. Workers may have begun it already.
    pub fn begin(&self, epoch: u64) {
        self.lock().retain(|&(noted, _), _| noted >= epoch);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), Fault>> {
        self.faults.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
