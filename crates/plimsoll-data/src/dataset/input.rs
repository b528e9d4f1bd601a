//! Inputs of sequential stages.

use super::cardinality::ExpectedRows;
use crate::fault::{Fault, RowErrors};
use crate::meter::InputTimer;
use crate::source::RowIterator;
use std::sync::Arc;
use std::time::Instant;

/// An iterator over rows, in blocks of bytes.
pub(crate) trait BlockIterator: Send {
    /// Starts an epoch at its first row.
    fn begin(&mut self, epoch: u64) -> Result<(), Fault>;

    /// Writes whole rows to `out` and returns how many; zero only at the end of the epoch, and then on every call. A
    /// fault is returned by itself, after the rows before it; unless it is final, the next call continues after it.
    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault>;

    /// Stops until the next epoch begins; threads and their memory are released.
    fn close(&mut self) {}
}

/// The rows of a data set, one by one from a block.
pub(crate) struct Input {
    stream: Box<dyn BlockIterator>,
    block: Vec<u8>,
    row_bytes: usize,
    /// Rows of the block already returned, and its total rows.
    from: usize,
    to: usize,
    errors: Option<Arc<RowErrors>>,
    epoch: u64,
    /// Rows of the epoch already returned, including failed ones.
    place: u64,
    expected: ExpectedRows,
    timer: Arc<InputTimer>,
}

impl Input {
    /// Reads rows of this many bytes in blocks of `rows`. With `errors`, an extra last byte marks rows with an error.
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

    /// Stops until the next epoch begins.
    pub fn close(&mut self) {
        (self.from, self.to) = (0, 0);
        let start = Instant::now();
        self.stream.close();
        self.timer.add(start);
    }

    /// The next row; `None` at the end of the epoch.
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
        // The error mark follows the row.
        match &self.errors {
            Some(errors) if mark != [0] => {
                let fault = errors.take(self.epoch, self.place - 1);
                self.expected.lost(fault.loss);
                Err(fault)
            }
            _ => Ok(Some(row)),
        }
    }

    /// Copies the next row to `out`; `false` at the end of the epoch.
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
    /// The fault that follows the rows written last.
    fault: Option<Fault>,
}

/// Adapts an iterator over single rows to one over blocks.
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
        let (mut rows, space) = (0, out.len() / self.row_bytes);
        while rows < space && !self.over {
            match self.stage.rows(&mut out[rows * self.row_bytes..space * self.row_bytes], self.row_bytes) {
                Ok(0) => self.over = true,
                Ok(came) => rows += came,
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

/// A stage with one input that computes its rows one by one.
pub(crate) trait RowStage: Send {
    /// Called at the start of an epoch, before the first row of the input.
    fn begin(&mut self, _epoch: u64) {}

    /// Writes the next row; `false` at the end of the epoch.
    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault>;
}

/// A `RowStage` with its input.
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
