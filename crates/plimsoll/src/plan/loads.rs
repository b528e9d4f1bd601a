//! How many programs of each role a run loads: one for each number of rows.

use super::data::{DataSummary, DatasetSummary};
use plimsoll_core::step::Role;
use std::collections::BTreeSet;

/// The batches of a run, as far as the programs that it loads depend on them.
#[derive(Clone, Copy)]
pub(crate) struct Loads<'a> {
    /// The data.
    pub data: &'a DataSummary,
    /// Whether the run only predicts.
    pub inference_only: bool,
    /// Ranks that the batches are divided over.
    pub ranks: usize,
    /// Rows of a batch that a rank has, and of a micro-batch.
    pub batch: usize,
    pub micro_batch: usize,
}

impl Loads<'_> {
    /// Programs of this role that are loaded at the same time. Where the length of an epoch is unknown, its last batch
    /// may have any number of rows; only the program of the latest one stays loaded.
    pub fn of(&self, role: Role) -> usize {
        let Loads { batch, micro_batch, .. } = *self;
        if self.ranks > 1 {
            return self.of_ranks(role);
        }
        let last = Ragged::of(&self.data.training, batch);
        let last_piece = |rows: usize| if rows.is_multiple_of(micro_batch) { micro_batch } else { rows % micro_batch };
        match role {
            Role::Step if micro_batch == batch => 1 + usize::from(last != Ragged::Rows(0)),
            // The last batch of an epoch may be a single micro-batch.
            Role::Step => usize::from(last == Ragged::Unknown || matches!(last, Ragged::Rows(rows) if (1..=micro_batch).contains(&rows))),
            Role::First | Role::Middle => 1,
            Role::Last => match last {
                Ragged::Rows(rows) if rows > micro_batch && last_piece(rows) != last_piece(batch) => 2,
                Ragged::Rows(_) => 1,
                Ragged::Unknown => 2,
            },
            Role::Evaluate => self.data.validation.as_ref().map_or(0, |data| self.pieces(data)),
            Role::Predict if self.inference_only => self.pieces(&self.data.training),
            Role::Predict => 1,
        }
    }

    /// The same on any of several ranks, at most: the last batch of an epoch may have fewer rows, and some ranks have
    /// one row less than others.
    fn of_ranks(&self, role: Role) -> usize {
        let Loads { batch, micro_batch, .. } = *self;
        match role {
            Role::Step | Role::Last => 2,
            Role::First | Role::Middle | Role::Predict => 1,
            Role::Evaluate => self.data.validation.as_ref().map_or(0, |_| if micro_batch == batch { 2 } else { 3 }),
        }
    }

    /// The most programs of one role.
    pub fn most(&self) -> usize {
        let roles = [Role::Step, Role::First, Role::Middle, Role::Last, Role::Evaluate, Role::Predict];
        roles.into_iter().map(|role| self.of(role)).max().unwrap_or(1).max(1)
    }

    /// Numbers of rows of the pieces of all batches of a dataset.
    fn pieces(&self, data: &DatasetSummary) -> usize {
        let batch = data.batch.unwrap_or(self.batch);
        let mut sizes = BTreeSet::from([self.micro_batch.min(batch), batch % self.micro_batch]);
        let unknown = match Ragged::of(data, batch) {
            Ragged::Rows(rows) => {
                sizes.extend([if rows >= self.micro_batch { self.micro_batch } else { 0 }, rows % self.micro_batch]);
                false
            }
            Ragged::Unknown => true,
        };
        sizes.remove(&0);
        sizes.len() + usize::from(unknown)
    }
}

/// Rows of the last batch of an epoch, if it is smaller than the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ragged {
    /// None, if zero.
    Rows(usize),
    Unknown,
}

impl Ragged {
    fn of(data: &DatasetSummary, batch: usize) -> Ragged {
        data.epoch_rows.map_or(Ragged::Unknown, |rows| Ragged::Rows((rows % batch as u64) as usize))
    }
}
