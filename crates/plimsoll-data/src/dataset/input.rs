//! The rows of an input, as a sequential stage reads them.

use super::cardinality::ExpectedRows;
use crate::fault::{Fault, RowErrors};
use crate::meter::InputTimer;
use crate::source::RowIterator;
use std::sync::Arc;
use std::time::Instant;

/// Rows that come one after the other, in blocks of whole rows of bytes.
pub(crate) trait BlockIterator: Send {
    /// The rows that follow are those of this epoch, from its first on.
    fn begin(&mut self, epoch: u64) -> Result<(), Fault>;

    /// Writes whole rows to `out` and returns how many; none only at the end of the epoch, and then each time it is called. A fault comes alone:
    /// the rows before it have been written, and unless it is the end, those after it are at the next call.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault>;

    /// No more rows are wanted until the next epoch begins: threads and what they hold are given back.
    fn close(&mut self) {}
}

/// The rows of a data set, one by one from a block.
pub(crate) struct Input {
    stream: Box<dyn BlockIterator>,
    block: Vec<u8>,
    row_bytes: usize,
    /// Rows of the block that were handed out, and that there are.
    from: usize,
    to: usize,
    errors: Option<Arc<RowErrors>>,
    epoch: u64,
    /// Rows of the epoch that were handed out, with those that could not be.
    place: u64,
    expected: ExpectedRows,
    timer: Arc<InputTimer>,
}

impl Input {
    /// Rows of this many bytes, of which blocks hold so many. Where there are `errors`, a last byte marks rows that have one.
    pub fn new(
        stream: Box<dyn BlockIterator>,
        row_bytes: usize,
        block_rows: usize,
        errors: Option<Arc<RowErrors>>,
        expected: ExpectedRows,
        timer: Arc<InputTimer>,
    ) -> Input {
        let block = vec![0; row_bytes * block_rows];
        Input { stream, block, row_bytes: row_bytes - errors.iter().len(), from: 0, to: 0, errors, epoch: 0, place: 0, expected, timer }
    }

    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    pub fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.from, self.to, self.epoch, self.place) = (0, 0, epoch, 0);
        self.errors.iter().for_each(|errors| errors.begin(epoch));
        self.expected.begin();
        let start = Instant::now();
        let begun = self.stream.begin(epoch);
        self.timer.add(start);
        begun
    }

    /// No more rows are wanted until the next epoch is begun.
    pub fn close(&mut self) {
        (self.from, self.to) = (0, 0);
        let start = Instant::now();
        self.stream.close();
        self.timer.add(start);
    }

    /// The next row; `None` when the epoch is over.
    pub fn next(&mut self) -> Result<Option<&[u8]>, Fault> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
            let start = Instant::now();
            let filled = self.stream.fill(&mut self.block);
            self.timer.add(start);
            self.to = match filled {
                Ok(rows) => rows,
                Err(fault) => {
                    self.place += 1;
                    self.expected.lost(fault.loss);
                    return Err(fault);
                }
            };
            if self.to == 0 {
                self.expected.check(self.epoch, self.place, true)?;
                return Ok(None);
            }
        }
        (self.from, self.place) = (self.from + 1, self.place + 1);
        self.expected.check(self.epoch, self.place, false)?;
        let each = self.row_bytes + self.errors.iter().len();
        let (row, mark) = self.block[(self.from - 1) * each..][..each].split_at(self.row_bytes);
        // Behind a row is its mark.
        match &self.errors {
            Some(errors) if mark != [0] => {
                let fault = errors.take(self.epoch, self.place - 1);
                self.expected.lost(fault.loss);
                Err(fault)
            }
            _ => Ok(Some(row)),
        }
    }

    /// Copies the next row.
    pub fn copy(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        let Some(row) = self.next()? else { return Ok(false) };
        out.copy_from_slice(row);
        Ok(true)
    }
}

struct PerRow<T> {
    stage: T,
    row_bytes: usize,
    over: bool,
    /// What came after the rows that were written last.
    fault: Option<Fault>,
}

/// Rows that come one at a time, in blocks.
pub(super) fn per_row<T: RowIterator + 'static>(row_bytes: usize, stage: T) -> Box<dyn BlockIterator> {
    Box::new(PerRow { stage, row_bytes, over: true, fault: None })
}

impl<T: RowIterator> BlockIterator for PerRow<T> {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.over, self.fault) = (false, None);
        self.stage.begin(epoch)
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut rows = 0;
        for out in out.chunks_exact_mut(self.row_bytes) {
            if self.over {
                break;
            }
            match self.stage.row(out) {
                Ok(true) => rows += 1,
                Ok(false) => self.over = true,
                Err(fault) if rows == 0 => return Err(fault),
                Err(fault) => {
                    self.fault = Some(fault);
                    break;
                }
            }
        }
        Ok(rows)
    }

    fn close(&mut self) {
        (self.over, self.fault) = (true, None);
        self.stage.close();
    }
}

/// A stage that makes its rows of those of one input.
pub(crate) trait RowStage: Send {
    /// An epoch begins, here and in the input.
    fn begin(&mut self, _epoch: u64) {}

    /// Writes the next row; `false` at the end of the epoch.
    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault>;
}

/// Such a stage and its input.
pub(super) struct OneInput<S> {
    pub input: Input,
    pub stage: S,
}

impl<S: RowStage> RowIterator for OneInput<S> {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.stage.begin(epoch);
        self.input.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        self.stage.row(&mut self.input, out)
    }

    fn close(&mut self) {
        self.input.close();
    }
}
