//! `ignore_errors`: drops rows with errors and reports them, up to a cap.

use super::filter::of_one_size;
use super::kind::{Key, KeyKind, StageKind};
use crate::dataset::{BlockIterator, Dataset, Input, Opening, RowStage, Stage};
use crate::fault::Fault;
use crate::{DataError, Schema};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

struct IgnoreErrors {
    ignored: Arc<Ignored>,
}

pub(super) const KIND: StageKind = StageKind {
    name: "ignore_errors",
    summary: "skips up to `cap` rows per epoch that an earlier stage fails to produce",
    keys: &[Key::required("cap", KeyKind::Count(0), "how many rows of an epoch may be left out")],
    counts_rows: true,
    has_short_form: true,
    build: |data, args| Ok(data.ignore_errors(args.rows("cap"))),
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Drops rows that cannot be read or mapped, or that user code returns an error for, up to `cap` per epoch; one
    /// more is an error. Dropped rows are counted and described by [`Dataset::ignored`]. If the rest of a file is
    /// unreadable, that counts once, and reading continues with the next file or row group.
    ///
    /// ```
    /// use plimsoll_core::DType;
    /// use plimsoll_data::{Column, DataError, Dataset, Schema, Tensor};
    /// let schema = Schema::new(vec![Column::new("x", DType::I32, [])])?;
    /// let rows = Dataset::from_generator(schema, |_epoch| (0..10).map(|n| match n {
    ///     3 => Err(DataError::Stage("a comma is missing".into())),
    ///     n => Ok(vec![Tensor::i32([], [n])?]),
    /// }));
    /// let data = rows.ignore_errors(5);
    /// assert_eq!(data.clone().batch(4).count_rows()?, 9);
    /// assert_eq!(data.ignored(), (1, vec!["row 3 of the generator: a comma is missing".to_string()]));
    /// # Ok::<(), DataError>(())
    /// ```
    pub fn ignore_errors(self, cap: u64) -> Dataset {
        self.then(IgnoreErrors { ignored: Arc::new(Ignored::new(cap)) })
    }
}

impl Stage for IgnoreErrors {
    fn describe(&self) -> String {
        format!("ignore_errors({})", self.ignored.cap)
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        of_one_size(inputs, &self.describe())
    }

    fn ignores_errors(&self) -> bool {
        true
    }

    fn ignored(&self, epoch: Option<u64>) -> (u64, Vec<String>) {
        self.ignored.left_out(epoch)
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.map_rows(Ignoring::new(&self.ignored))
    }
}

/// The dropped rows.
struct Ignored {
    cap: u64,
    /// For each epoch, the number of dropped rows and the first errors in order. There are several epochs because
    /// streams read ahead.
    epochs: Mutex<BTreeMap<u64, (u64, Vec<String>)>>,
}

/// Maximum number of errors per epoch that are stored.
const MAX_NAMED: usize = 100;

/// Maximum number of epochs that are stored; for finished ones, only the first error.
const EPOCHS: usize = 256;

/// This many equal failures in a row are not bad rows: the source makes no progress.
const ALIKE: u64 = 1000;

impl Ignored {
    fn new(cap: u64) -> Ignored {
        Ignored { cap, epochs: Mutex::default() }
    }

    /// The number of rows dropped in an epoch (default: the latest), and the first errors.
    fn left_out(&self, epoch: Option<u64>) -> (u64, Vec<String>) {
        let epochs = lock(&self.epochs);
        let found = epoch.map_or_else(|| epochs.values().next_back(), |epoch| epochs.get(&epoch));
        found.cloned().unwrap_or_default()
    }

    fn begin(&self, epoch: u64) {
        let mut epochs = lock(&self.epochs);
        epochs.values_mut().for_each(|(_, named)| named.truncate(1));
        // An epoch that is read twice retains its record: its rows are the same, and readers run ahead of the caller.
        epochs.entry(epoch).or_default();
        if epochs.len() > EPOCHS {
            epochs.pop_first();
        }
    }

    /// Records the `count`th dropped row of an epoch. The count is set, not incremented, so that two readers of the
    /// same epoch do not count twice.
    fn record(&self, epoch: u64, count: u64, name: String) {
        let mut epochs = lock(&self.epochs);
        let (known, named) = epochs.entry(epoch).or_default();
        *known = count.max(*known);
        if named.len() < MAX_NAMED && named.len() as u64 + 1 == count {
            named.push(name);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The rows without errors.
struct Ignoring {
    ignored: Arc<Ignored>,
    epoch: u64,
    /// Rows dropped in this epoch.
    count: u64,
    /// The last error message, and how often it occurred without a row in between.
    alike: (String, u64),
}

impl Ignoring {
    fn new(ignored: &Arc<Ignored>) -> Ignoring {
        Ignoring { ignored: Arc::clone(ignored), epoch: 0, count: 0, alike: (String::new(), 0) }
    }

    fn leave_out(&mut self, fault: Fault) -> Result<(), Fault> {
        let (said, name) = (fault.error.to_string(), fault.to_string());
        self.count += 1;
        let cap = self.ignored.cap;
        if self.count > cap {
            let problem = format!("more than {cap} rows of epoch {} could not be read; the last: {name}", self.epoch);
            return Err(DataError::Stage(problem).into());
        }
        match &mut self.alike {
            (last, times) if *last == said => *times += 1,
            alike => *alike = (said, 1),
        }
        if self.alike.1 == ALIKE {
            let problem = format!("{ALIKE} failures of epoch {} one after the other are the same, and no row comes: {name}", self.epoch);
            return Err(DataError::Stage(problem).into());
        }
        self.ignored.record(self.epoch, self.count, name);
        Ok(())
    }
}

impl RowStage for Ignoring {
    fn begin(&mut self, epoch: u64) {
        (self.epoch, self.count, self.alike.1) = (epoch, 0, 0);
        self.alike.0.clear();
        self.ignored.begin(epoch);
    }

    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        loop {
            match input.copy(out) {
                Err(fault) if fault.goes_on() => self.leave_out(fault)?,
                come => {
                    self.alike.1 = 0;
                    return come;
                }
            }
        }
    }
}
