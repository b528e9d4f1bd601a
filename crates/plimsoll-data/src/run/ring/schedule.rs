//! The sequence of rows that fills the slots of a ring.

use super::SlotRows;

/// The rows to produce: start, end and chunk size.
#[derive(Clone, Copy)]
pub(crate) struct Schedule {
    pub epoch: u64,
    /// Epochs left, including this one.
    pub left: Option<u64>,
    pub place: u64,
    /// Rows of an epoch, if known; otherwise the worker that claims rows [sets](super::Ring::settle) how many there
    /// are.
    pub epoch_rows: Option<u64>,
    /// Rows of the epochs after this one.
    pub later_rows: Option<u64>,
    /// If the number of rows is unknown: the last slot of an epoch is truncated to a multiple of this.
    pub whole_batches: Option<usize>,
    /// Rows of a slot, and the maximum number of rows per claim.
    pub slot_rows: usize,
    pub claim_rows: usize,
}

impl Schedule {
    /// The rows of the next slot; `None` after the last epoch.
    pub fn next(&mut self) -> Option<SlotRows> {
        if self.left == Some(0) {
            return None;
        }
        let Some(epoch_rows) = self.epoch_rows else {
            // An epoch known to be empty consists only of its end.
            let ends_epoch = self.slot_rows == 0;
            let fill = SlotRows { epoch: self.epoch, place: self.place, rows: self.slot_rows, ends_epoch };
            self.pass(0, ends_epoch);
            return Some(fill);
        };
        let rows = (epoch_rows - self.place).min(self.slot_rows as u64);
        let ends_epoch = self.place + rows == epoch_rows;
        let fill = SlotRows { epoch: self.epoch, place: self.place, rows: rows as usize, ends_epoch };
        self.pass(rows, ends_epoch);
        Some(fill)
    }

    pub fn pass(&mut self, rows: u64, ends_epoch: bool) {
        self.place += rows;
        if ends_epoch {
            self.place = 0;
            self.epoch = self.epoch.wrapping_add(1);
            self.epoch_rows = self.later_rows;
            self.left = self.left.map(|left| left - 1);
        }
    }
}
