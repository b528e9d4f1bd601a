//! Streams with some of the rows of another.

use super::Predicate;
use super::input::Input;
use crate::Row;
use crate::fault::{Fault, Loss, guarded};
use crate::source::RowIterator;
use crate::{DataError, Schema};

/// The rows a predicate keeps.
pub(super) struct Filter {
    input: Input,
    schema: Schema,
    keep: Predicate,
    /// Rows that were looked at.
    seen: u64,
}

impl Filter {
    pub fn new(input: Input, schema: Schema, keep: &Predicate) -> Filter {
        Filter { input, schema, keep: keep.clone(), seen: 0 }
    }
}

impl RowIterator for Filter {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.seen = 0;
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        while let Some(row) = self.input.next()? {
            self.seen += 1;
            let kept = guarded(|| self.keep.keeps(&Row::new(&self.schema, row)));
            if kept.map_err(|error| Fault::row(error).numbered(self.seen - 1, "that filter was given"))? {
                out.copy_from_slice(row);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn close(&mut self) {
        self.input.close();
    }
}

/// The rows up to the first that a predicate does not keep.
pub(super) struct TakeWhile {
    input: Input,
    schema: Schema,
    keep: Predicate,
    /// Rows that were looked at.
    seen: u64,
}

impl TakeWhile {
    pub fn new(input: Input, schema: Schema, keep: &Predicate) -> TakeWhile {
        TakeWhile { input, schema, keep: keep.clone(), seen: 0 }
    }
}

impl RowIterator for TakeWhile {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.seen = 0;
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        let Some(row) = self.input.next()? else { return Ok(false) };
        self.seen += 1;
        let kept = guarded(|| self.keep.keeps(&Row::new(&self.schema, row)));
        let kept = kept.map_err(|error| Fault::row(error).numbered(self.seen - 1, "that take_while was given"))?;
        if kept {
            out.copy_from_slice(row);
        }
        Ok(kept)
    }

    fn close(&mut self) {
        self.input.close();
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

impl RowIterator for Take {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.left = self.rows;
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        self.input.copy(out)
    }

    fn close(&mut self) {
        self.input.close();
    }
}

/// One row of each so many, from some row on. A row that could not be made keeps its place, and is of no concern here where it is none of these.
pub(super) struct Every {
    input: Input,
    first: u64,
    step: u64,
    /// An epoch, and how many of its rows are passed over before the first.
    begun: Option<(u64, u64)>,
    /// Rows to pass over before the next.
    over: u64,
}

impl Every {
    pub fn new(input: Input, first: u64, step: u64, begun: Option<(u64, u64)>) -> Every {
        Every { input, first, step, begun, over: 0 }
    }
}

impl RowIterator for Every {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        let before = self.begun.filter(|(begun, _)| *begun == epoch).map_or(0, |(_, rows)| rows);
        self.over = self.first.saturating_add(before);
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        while self.over > 0 {
            match self.input.next() {
                Ok(None) => return Ok(false),
                Ok(Some(_)) => self.over -= 1,
                Err(fault) => {
                    self.over -= 1;
                    if fault.loss != Loss::Row {
                        return Err(fault);
                    }
                }
            }
        }
        self.over = self.step - 1;
        self.input.copy(out)
    }

    fn close(&mut self) {
        self.input.close();
    }
}

/// All rows several times; each time is an epoch of its own to what comes before.
pub(super) struct Repeat {
    input: Input,
    times: u64,
    first: u64,
    done: u64,
    /// How often no row came, until now without a break.
    barren: u64,
}

/// Where so often no row comes, none will: asking as often as there are numbers would last for ever.
const BARREN: u64 = 1000;

impl Repeat {
    pub fn new(input: Input, times: u64) -> Repeat {
        Repeat { input, times, first: 0, done: 0, barren: 0 }
    }
}

impl RowIterator for Repeat {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.first, self.done, self.barren) = (epoch.wrapping_mul(self.times), 0, 1);
        if self.times > 0 { self.input.begin(self.first) } else { Ok(()) }
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        while self.done < self.times && self.barren <= BARREN {
            if self.input.copy(out)? {
                self.barren = 0;
                return Ok(true);
            }
            (self.done, self.barren) = (self.done + 1, self.barren + 1);
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

impl RowIterator for Enumerate {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.number = 0;
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        let (number, rest) = out.split_at_mut(size_of::<i32>());
        number.copy_from_slice(&self.number.to_ne_bytes());
        self.number = self.number.checked_add(1).ok_or_else(|| DataError::Stage("an epoch has more rows than an i32 can count".into()))?;
        self.input.copy(rest)
    }

    fn close(&mut self) {
        self.input.close();
    }
}
