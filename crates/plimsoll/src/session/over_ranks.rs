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

/// How a rank divides its rows of a batch.
#[derive(Clone, Copy)]
pub(crate) struct RankPieces<'a> {
    /// Rows of a micro-batch.
    pub micro_batch: usize,
    pub own: &'a RankRows,
    /// Rows of an epoch, of all ranks.
    pub length: u64,
    /// Whether ranks exchange the gradients of every micro-batch: all of them then have as many as the one with the
    /// most rows.
    pub together: bool,
}

/// The next piece of a block and its role, as those of one process. A block is all rows of a batch that the rank has.
/// Where other ranks have one more micro-batch, the last row is repeated.
pub(crate) fn place_in_rank<'a>(pieces: RankPieces<'_>, batch: HostRows<'a>, at: usize, block_rows: usize) -> (Role, Piece<'a>) {
    let RankPieces { micro_batch, own, length, together } = pieces;
    let number = batch.first_row() / own.rows().max(1);
    let batch_rows = own.batch().min(length - number * own.batch());
    let repeats = own.repeats(batch_rows) || at >= block_rows;
    let most = if together { block_rows.max(own.most(batch_rows) as usize) } else { block_rows };
    let (place, last) = (at / micro_batch, most.div_ceil(micro_batch) - 1);
    let role = match (place == 0, place >= last) {
        (true, true) => Role::Step,
        (true, false) => Role::First,
        (false, false) => Role::Middle,
        (false, true) => Role::Last,
    };
    let at = at.min(block_rows - 1);
    let rows = micro_batch.min(block_rows - at);
    let first_row = own.of_batch(batch_rows).start + at as u64;
    let number = (first_row / micro_batch as u64) as u32;
    (role, Piece { batch, at, rows, first_row, batch_rows, repeats, number })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks that exchange every micro-batch have equally many, and every row takes part once.
    #[test]
    fn ranks_have_equally_many_micro_batches_together() {
        for (ranks, batch, micro_batch) in (1..5).flat_map(|r| (1..14).flat_map(move |b| (1..5).map(move |m| (r, b, m)))) {
            for last in 1..=batch {
                let (mut roles, mut counted) = (Vec::new(), Vec::new());
                for rank in 0..ranks {
                    let own = RankRows::new(batch, ranks, rank).repeating();
                    let rows = own.of_batch(last);
                    let block_rows = (rows.end - rows.start) as usize;
                    let pieces = RankPieces { micro_batch, own: &own, length: last, together: true };
                    let (mut at, mut list) = (0, Vec::new());
                    loop {
                        let (role, piece) = place_in_rank(pieces, HostRows::Given(&[], 0), at, block_rows);
                        assert!(piece.rows <= micro_batch && piece.at + piece.rows <= block_rows);
                        if !piece.repeats {
                            counted.extend(piece.first_row..piece.first_row + piece.rows as u64);
                        }
                        list.push(role);
                        at += piece.rows;
                        if matches!(role, Role::Step | Role::Last) {
                            break;
                        }
                    }
                    roles.push(list);
                }
                assert!(roles.iter().all(|list| *list == roles[0]), "{ranks} ranks, {last} rows in {micro_batch}: {roles:?}");
                counted.sort_unstable();
                assert_eq!(counted, (0..last).collect::<Vec<_>>());
            }
        }
    }
}
