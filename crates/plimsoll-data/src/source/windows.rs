//! Time-series windows over rows that are read in sequence. The rows of one window are in memory.

use super::{RowIterator, Window};
use crate::DataError;
use crate::fault::{Fault, Loss};
use crate::table::{Columns, WORD};
use std::collections::VecDeque;

/// Bytes of the error of a row: its path, its words, and its place.
const ERROR: usize = 320;

/// A window, and the bytes of a row that are input and label.
#[derive(Clone, Debug)]
pub(super) struct WindowShape {
    window: Window,
    input: usize,
    label: usize,
}

impl WindowShape {
    /// Windows over rows of these columns.
    pub fn new(window: Window, columns: &Columns) -> WindowShape {
        let mut widths = columns.widths().map(|words| words * WORD);
        WindowShape { window, input: widths.next().unwrap_or(0), label: widths.next().unwrap_or(0) }
    }

    fn row_bytes(&self) -> usize {
        self.input + self.label
    }

    /// Memory of the rows of a window, all of which may be bad.
    pub fn held(&self) -> usize {
        self.window.rows() * (self.row_bytes() + ERROR)
    }
}

/// The windows of one epoch.
pub(super) struct WindowRows<R> {
    inner: R,
    shape: WindowShape,
    /// The last rows: each at its number modulo the rows of a window.
    rows: Vec<u8>,
    /// How many rows were read, and the first row of the next window.
    read: u64,
    next: u64,
    /// The errors of rows that a window may have.
    bad: VecDeque<(u64, DataError)>,
}

impl<R: RowIterator> WindowRows<R> {
    pub fn new(inner: R, shape: WindowShape) -> WindowRows<R> {
        let rows = vec![0; shape.window.rows() * shape.row_bytes()];
        WindowRows { inner, shape, rows, read: 0, next: 0, bad: VecDeque::new() }
    }

    fn slot(&self, row: u64) -> std::ops::Range<usize> {
        let bytes = self.shape.row_bytes();
        let start = (row % self.shape.window.rows() as u64) as usize * bytes;
        start..start + bytes
    }

    /// Reads rows until the next window is complete; `false` at the end.
    fn fill(&mut self) -> Result<bool, Fault> {
        while self.read < self.next + self.shape.window.rows() as u64 {
            let slot = self.slot(self.read);
            match self.inner.row(&mut self.rows[slot]) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(fault) if fault.loss == Loss::Row => self.bad.push_back((self.read, *fault.error)),
                Err(fault) => {
                    // Rows before and after the lost ones are not consecutive.
                    self.bad.clear();
                    self.next = self.read;
                    return Err(fault);
                }
            }
            self.read += 1;
            while self.bad.front().is_some_and(|(row, _)| *row < self.next) {
                self.bad.pop_front();
            }
        }
        Ok(true)
    }
}

impl<R: RowIterator> RowIterator for WindowRows<R> {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.read, self.next) = (0, 0);
        self.bad.clear();
        self.inner.begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        if !self.fill()? {
            return Ok(false);
        }
        let first = self.next;
        self.next += self.shape.window.step() as u64;
        let window = &self.shape.window;
        // As of files with random access, also where sampling passes over the row.
        if let Some((_, error)) = self.bad.front().filter(|(row, _)| *row < first + window.rows() as u64) {
            return Err(Fault::row(error.clone()));
        }
        let (inputs, labels) = out.split_at_mut(window.length() * self.shape.input);
        for (at, out) in window.inputs().zip(inputs.chunks_exact_mut(self.shape.input.max(1))) {
            out.copy_from_slice(&self.rows[self.slot(first + at as u64)][..self.shape.input]);
        }
        for (at, out) in window.targets().zip(labels.chunks_exact_mut(self.shape.label.max(1))) {
            out.copy_from_slice(&self.rows[self.slot(first + at as u64)][self.shape.input..]);
        }
        Ok(true)
    }

    fn close(&mut self) {
        self.inner.close();
    }
}
