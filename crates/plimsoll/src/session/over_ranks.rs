//! What a session does as one of several ranks: its rows of a batch, and what it adds up with the others.

use super::{HostRows, OrderedScores, Piece, Session, Tally};
use crate::allow::Permission;
use crate::error::Result;
use crate::ranks::Ranks;
use plimsoll_core::Bytes;
use plimsoll_core::graph::{StateId, StateKind};
use plimsoll_core::step::Role;
use plimsoll_data::RankRows;

impl Session {
    /// Sets the counts.
    pub fn set_counts(&mut self, counts: &[f64]) {
        self.counts.copy_from_slice(counts);
    }

    /// Makes the session one of a rank.
    pub fn join(&mut self, ranks: &Ranks) {
        self.ordered = self.plan.fixed_micro_batches().map(|fixed| OrderedScores::new(fixed, ranks.size(), ranks.rank()));
        self.ranks = Some(ranks.clone());
    }

    /// Adds scores as on one process from now on; returns how they were added before.
    pub fn leave_ranks(&mut self) -> Option<OrderedScores> {
        let alone = self.plan.fixed_micro_batches().map(|fixed| OrderedScores::new(fixed, 1, 0));
        std::mem::replace(&mut self.ordered, alone)
    }

    /// The end of a batch: adds its scores, in the order of its micro-batches on all ranks.
    pub fn end_batch(&mut self, tally: &mut Tally) -> Result<()> {
        let Some(ordered) = &mut self.ordered else { return Ok(()) };
        *tally = tally.plus(&ordered.take_over(self.ranks.as_ref())?);
        Ok(())
    }

    /// Adds the counts of all ranks up.
    pub fn sum_counts(&mut self, ranks: &Ranks) -> Result<()> {
        if self.counts.is_empty() { Ok(()) } else { ranks.sum(&mut self.counts) }
    }

    /// Takes the statistics of rank 0, where each rank has those of its own rows.
    pub fn share_statistics(&mut self, ranks: &Ranks) -> Result<()> {
        if !self.plan.used.contains(&Permission::MicrobatchBatchnorm) {
            return Ok(());
        }
        let mut bytes = [0u8; 4096];
        for (i, state) in self.plan.memory.states.iter().enumerate().filter(|(_, state)| state.kind == StateKind::Statistic) {
            let (id, size) = (StateId(i as u32), state.size.0);
            for from in (0..size).step_by(bytes.len()) {
                let bytes = &mut bytes[..(size - from).min(4096) as usize];
                self.executor.read_state_part(id, Bytes(from), bytes)?;
                ranks.copy_of_first(bytes)?;
                self.executor.write_state_part(id, Bytes(from), bytes)?;
            }
        }
        Ok(())
    }
}

/// The next piece of a block and its role, as those of one process. A block is all rows of a batch that the rank has; the epoch has `length`
/// rows of all ranks.
pub(crate) fn place_in_rank<'a>(
    micro_batch: usize,
    batch: HostRows<'a>,
    at: usize,
    block_rows: usize,
    own: &RankRows,
    length: u64,
) -> (Role, Piece<'a>) {
    let number = batch.first_row() / own.rows().max(1);
    let batch_rows = own.batch().min(length - number * own.batch());
    let rows = micro_batch.min(block_rows - at);
    let role = match (at == 0, at + rows == block_rows) {
        (true, true) => Role::Step,
        (true, false) => Role::First,
        (false, false) => Role::Middle,
        (false, true) => Role::Last,
    };
    let first_row = own.of_batch(batch_rows).start + at as u64;
    let number = (first_row / micro_batch as u64) as u32;
    (role, Piece { batch, at, rows, first_row, batch_rows, repeats: own.repeats(batch_rows), number })
}
