//! The micro-batches of a reproducible run, which do not depend on the number of ranks.

use plimsoll_core::fixed_order::FixedOrder;
use plimsoll_core::pairwise::PairwiseTree;
use plimsoll_data::RankRows;
use std::ops::Range;

/// Micro-batches of a batch, by default: as many as this, so that up to as many ranks share them.
const MICRO_BATCHES: usize = 16;

/// The division of every batch of a run into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedMicroBatches {
    /// Rows of a batch.
    batch: usize,
    /// Rows of a micro-batch; the last of a batch may have fewer.
    rows: usize,
}

impl FixedMicroBatches {
    /// Micro-batches of this many rows, or of those that follow from the batch alone.
    pub fn new(batch: usize, rows: Option<usize>) -> FixedMicroBatches {
        let batch = batch.max(1);
        FixedMicroBatches { batch, rows: rows.unwrap_or(batch.div_ceil(MICRO_BATCHES)).clamp(1, batch) }
    }

    /// Rows of a micro-batch.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Rows of a batch.
    pub fn batch(self) -> usize {
        self.batch
    }

    /// The micro-batches of a batch of this many rows.
    pub fn of_batch(self, rows: u64) -> u64 {
        rows.div_ceil(self.rows as u64)
    }

    /// The order in which they are added.
    pub fn tree(self) -> PairwiseTree {
        PairwiseTree::new(self.of_batch(self.batch as u64) as u32)
    }

    /// The same, with the most micro-batches that one of some ranks has.
    pub fn order(self, ranks: usize) -> FixedOrder {
        FixedOrder { tree: self.tree(), own: PairwiseTree::new(self.share(ranks, 0).len() as u32) }
    }

    /// The micro-batches of a rank.
    pub fn share(self, ranks: usize, rank: usize) -> Range<u32> {
        self.tree().shares(ranks as u32).swap_remove(rank)
    }

    /// The rows of them.
    pub fn rows_of_rank(self, ranks: usize, rank: usize) -> RankRows {
        let (batch, share) = (self.batch as u64, self.share(ranks, rank));
        let row = |micro_batch: u32| (u64::from(micro_batch) * self.rows as u64).min(batch);
        RankRows::fixed(batch, row(share.start)..row(share.end))
    }

    /// Rows of a batch that a rank has, at most.
    pub fn rank_batch(self, ranks: usize) -> usize {
        self.rows_of_rank(ranks, 0).rows() as usize
    }
}
