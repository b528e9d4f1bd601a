//! `repeat`: all rows several times per epoch.

use super::kind::{Key, KeyKind, StageKind, Validation};
use crate::DataError;
use crate::dataset::{BlockIterator, Dataset, IndexStep, Input, Opening, Stage};
use crate::fault::Fault;
use crate::source::RowIterator;

struct Repeat {
    times: u64,
}

pub(super) const KIND: StageKind = StageKind {
    name: "repeat",
    summary: "repeats the rows within an epoch",
    keys: &[Key::required("times", KeyKind::Count(1), "how often an epoch has each row")],
    counts_rows: true,
    has_short_form: true,
    validation: Validation::Omitted,
    build: |data, args| Ok(data.repeat(args.rows("times"))),
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Repeats all rows `times` times per epoch. Rows that were shuffled before have a new order in each repetition.
    pub fn repeat(self, times: u64) -> Dataset {
        self.then(Repeat { times })
    }
}

impl Stage for Repeat {
    fn describe(&self) -> String {
        format!("repeat({})", self.times)
    }

    fn index_step(&self) -> Option<IndexStep> {
        Some(IndexStep::Repeat(self.times))
    }

    fn max_rows(&self, inputs: &[Dataset]) -> u64 {
        inputs[0].len().saturating_mul(self.times)
    }

    /// Each repetition is an epoch of the upstream stages; the list is truncated if it is very long.
    fn input_epochs(&self, epoch: u64) -> Vec<u64> {
        (0..self.times).take(256).map(|time| epoch.wrapping_mul(self.times).wrapping_add(time)).collect()
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.rows(Repeating { input: inputs.input(0)?, times: self.times, first: 0, done: 0, empty: 0 })
    }
}

struct Repeating {
    input: Input,
    times: u64,
    first: u64,
    done: u64,
    /// Consecutive repetitions without a row.
    empty: u64,
}

/// After this many repetitions without a row, the stage ends; otherwise a huge count would loop forever.
const MAX_EMPTY: u64 = 1000;

impl RowIterator for Repeating {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.first, self.done, self.empty) = (epoch.wrapping_mul(self.times), 0, 1);
        if self.times > 0 { self.input.begin(self.first) } else { Ok(()) }
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        while self.done < self.times && self.empty <= MAX_EMPTY {
            if self.input.copy(out)? {
                self.empty = 0;
                return Ok(true);
            }
            (self.done, self.empty) = (self.done + 1, self.empty + 1);
            if self.done < self.times {
                self.input.begin(self.first.wrapping_add(self.done))?;
            }
        }
        Ok(false)
    }

    fn close(&mut self) {
        self.input.close();
    }
}
