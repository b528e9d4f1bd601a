//! Streams with some of the rows of another.

use super::Predicate;
use super::input::{Input, PerRow, Row};
use crate::{DataError, Schema};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The rows a predicate keeps.
pub(super) struct Filter {
    input: Input,
    schema: Schema,
    keep: Predicate,
}

impl Filter {
    pub fn new(input: Input, schema: Schema, keep: &Predicate) -> Filter {
        Filter { input, schema, keep: Arc::clone(keep) }
    }
}

impl PerRow for Filter {
    fn begin(&mut self, epoch: u64) -> Result<(), DataError> {
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, DataError> {
        while let Some(row) = self.input.next()? {
            if (self.keep)(&Row::new(&self.schema, row)) {
                out.copy_from_slice(row);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The rows up to the first that a predicate does not keep.
pub(super) struct TakeWhile {
    input: Input,
    schema: Schema,
    keep: Predicate,
}

impl TakeWhile {
    pub fn new(input: Input, schema: Schema, keep: &Predicate) -> TakeWhile {
        TakeWhile { input, schema, keep: Arc::clone(keep) }
    }
}

impl PerRow for TakeWhile {
    fn begin(&mut self, epoch: u64) -> Result<(), DataError> {
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, DataError> {
        let kept = self.input.next()?.filter(|row| (self.keep)(&Row::new(&self.schema, row)));
        let Some(row) = kept else { return Ok(false) };
        out.copy_from_slice(row);
        Ok(true)
    }
}

/// The first rows.
pub(super) struct Take {
    input: Input,
    rows: u64,
    left: u64,
}

impl Take {
    pub fn new(input: Input, rows: u64) -> Take {
        Take { input, rows, left: 0 }
    }
}

impl PerRow for Take {
    fn begin(&mut self, epoch: u64) -> Result<(), DataError> {
        self.left = self.rows;
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, DataError> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        self.input.copy(out)
    }
}

/// One row of each so many, from some row on.
pub(super) struct Every {
    input: Input,
    first: u64,
    step: u64,
    /// Rows to pass over before the next.
    over: u64,
}

impl Every {
    pub fn new(input: Input, first: u64, step: u64) -> Every {
        Every { input, first, step, over: 0 }
    }
}

impl PerRow for Every {
    fn begin(&mut self, epoch: u64) -> Result<(), DataError> {
        self.over = self.first;
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, DataError> {
        for _ in 0..self.over {
            if self.input.next()?.is_none() {
                return Ok(false);
            }
        }
        self.over = self.step - 1;
        self.input.copy(out)
    }
}

/// All rows several times; each time is an epoch of its own to what comes before.
pub(super) struct Repeat {
    input: Input,
    times: u64,
    first: u64,
    done: u64,
}

impl Repeat {
    pub fn new(input: Input, times: u64) -> Repeat {
        Repeat { input, times, first: 0, done: 0 }
    }
}

impl PerRow for Repeat {
    fn begin(&mut self, epoch: u64) -> Result<(), DataError> {
        (self.first, self.done) = (epoch.wrapping_mul(self.times), 0);
        if self.times > 0 { self.input.begin(self.first) } else { Ok(()) }
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, DataError> {
        while self.done < self.times {
            if self.input.copy(out)? {
                return Ok(true);
            }
            self.done += 1;
            if self.done < self.times {
                self.input.begin(self.first + self.done)?;
            }
        }
        Ok(false)
    }
}

/// Rows with their number in the epoch before them.
pub(super) struct Enumerate {
    input: Input,
    number: i32,
}

impl Enumerate {
    pub fn new(input: Input) -> Enumerate {
        Enumerate { input, number: 0 }
    }
}

impl PerRow for Enumerate {
    fn begin(&mut self, epoch: u64) -> Result<(), DataError> {
        self.number = 0;
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, DataError> {
        let (number, rest) = out.split_at_mut(size_of::<i32>());
        number.copy_from_slice(&self.number.to_ne_bytes());
        self.number = self.number.checked_add(1).ok_or_else(|| DataError::Stage("an epoch has more rows than an i32 can count".into()))?;
        self.input.copy(rest)
    }
}

/// What could not be read and was left out.
pub(crate) struct Ignored {
    cap: u64,
    /// What happened, by epoch and place: noted by whoever made the row, looked up when it is left out.
    notes: Mutex<BTreeMap<(u64, u64), String>>,
    /// How many were left out of an epoch, and the first of them in order. Streams run ahead, so there are several.
    epochs: Mutex<BTreeMap<u64, (u64, Vec<String>)>>,
}

/// The rows of an epoch that are remembered in words.
const TOLD: usize = 100;

/// The epochs that are remembered; of those that are over, the first row in words.
const EPOCHS: usize = 256;

impl Ignored {
    pub fn new(cap: u64) -> Ignored {
        Ignored { cap, notes: Mutex::default(), epochs: Mutex::default() }
    }

    pub fn cap(&self) -> u64 {
        self.cap
    }

    /// Worker: a row could not be made.
    pub fn note(&self, epoch: u64, place: u64, error: &DataError) {
        // Workers are at most a ring ahead of what was looked up, so this stays small.
        lock(&self.notes).insert((epoch, place), error.to_string());
    }

    /// How many were left out of an epoch, or of the latest, and the first of them.
    pub fn left_out(&self, epoch: Option<u64>) -> (u64, Vec<String>) {
        let epochs = lock(&self.epochs);
        let found = epoch.map_or_else(|| epochs.values().next_back(), |epoch| epochs.get(&epoch));
        found.cloned().unwrap_or_default()
    }

    fn begin(&self, epoch: u64) {
        let mut epochs = lock(&self.epochs);
        epochs.values_mut().for_each(|(_, told)| told.truncate(1));
        epochs.insert(epoch, (0, Vec::new()));
        if epochs.len() > EPOCHS {
            epochs.pop_first();
        }
        // Workers may have begun the epoch already.
        lock(&self.notes).retain(|&(noted, _), _| noted >= epoch);
    }

    fn leave_out(&self, epoch: u64, place: u64) -> Result<(), DataError> {
        let note = lock(&self.notes).remove(&(epoch, place)).unwrap_or_default();
        let mut epochs = lock(&self.epochs);
        let (count, told) = epochs.entry(epoch).or_default();
        *count += 1;
        if *count > self.cap {
            let problem = format!("more than {} rows of epoch {epoch} could not be read; the last: {note}", self.cap);
            return Err(DataError::Stage(problem));
        }
        if told.len() < TOLD {
            told.push(note);
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The rows that could be read; their last byte says so and goes no further.
pub(super) struct Ignore {
    input: Input,
    ignored: Arc<Ignored>,
    epoch: u64,
    place: u64,
}

impl Ignore {
    pub fn new(input: Input, ignored: &Arc<Ignored>) -> Ignore {
        Ignore { input, ignored: Arc::clone(ignored), epoch: 0, place: 0 }
    }
}

impl PerRow for Ignore {
    fn begin(&mut self, epoch: u64) -> Result<(), DataError> {
        (self.epoch, self.place) = (epoch, 0);
        self.ignored.begin(epoch);
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, DataError> {
        while let Some(row) = self.input.next()? {
            let place = self.place;
            self.place += 1;
            match row.split_last() {
                Some((0, row)) => {
                    out.copy_from_slice(row);
                    return Ok(true);
                }
                _ => self.ignored.leave_out(self.epoch, place)?,
            }
        }
        Ok(false)
    }
}
