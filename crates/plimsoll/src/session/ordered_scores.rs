//! Scores of a reproducible run: sums over micro-batches in the order of its gradients, so that they have the same bits
//! on any number of ranks.

use super::Tally;
use crate::error::Result;
use crate::fixed_micro_batches::FixedMicroBatches;
use crate::ranks::Ranks;
use plimsoll_comm::sum_in_order;
use plimsoll_core::pairwise::{PairwisePlace, PairwiseTree, RankPair};
use std::ops::Range;

/// Partial sums of a batch under way.
pub(crate) struct OrderedScores {
    pub fixed: FixedMicroBatches,
    /// The ranks that add them together: one, where a rank evaluates by itself.
    ranks: usize,
    /// The micro-batches of every batch that this rank has, and their tree.
    share: Range<u32>,
    tree: PairwiseTree,
    /// As many partial sums as can be held at the same time, and one more for the micro-batch that is added.
    held: Vec<Tally>,
    /// The exchanges that this rank takes part in.
    pairs: Vec<RankPair>,
    root: usize,
}

impl OrderedScores {
    /// Those of one of some ranks.
    pub fn new(fixed: FixedMicroBatches, ranks: usize, rank: usize) -> OrderedScores {
        let share = fixed.share(ranks, rank);
        let tree = PairwiseTree::new(share.len() as u32);
        let own = |pair: &RankPair| pair.left as usize == rank || pair.right as usize == rank;
        let pairs = fixed.tree().exchanges(ranks as u32).into_iter().filter(own).collect();
        let root = fixed.tree().root(ranks as u32) as usize;
        OrderedScores { fixed, ranks, share, tree, held: Vec::with_capacity(tree.levels() as usize + 1), pairs, root }
    }

    /// The number of the first micro-batch of this rank.
    pub fn first(&self) -> u32 {
        self.share.start
    }

    /// What becomes of the micro-batch of this number within its batch.
    pub fn place(&self, number: u32) -> PairwisePlace {
        self.tree.place(number.saturating_sub(self.share.start))
    }

    /// Forgets a batch that did not end.
    pub fn clear(&mut self) {
        self.held.clear();
    }

    /// Adds the results of the micro-batch of this number.
    pub fn add(&mut self, number: u32, own: Tally) {
        let merged = self.place(number).merged as usize;
        let sum = (0..merged.min(self.held.len())).fold(own, |sum, _| self.held.pop().expect("counted").plus(&sum));
        self.held.push(sum);
    }

    /// The sum over the batch, which ends here.
    pub fn take(&mut self) -> Tally {
        let last = self.held.pop().unwrap_or_default();
        (0..self.held.len()).fold(last, |sum, _| self.held.pop().expect("counted").plus(&sum))
    }

    /// The same over the micro-batches of all ranks.
    pub fn take_over(&mut self, ranks: Option<&Ranks>) -> Result<Tally> {
        let own = self.take();
        let Some(ranks) = ranks.filter(|_| self.ranks > 1) else { return Ok(own) };
        let mut numbers = own.to_numbers();
        let pairs = self.pairs.iter().map(|pair| (pair.left as usize, pair.right as usize));
        sum_in_order(&**ranks.group(), &mut numbers, &mut [0.0; Tally::NUMBERS], pairs, self.root)?;
        Ok(Tally::of_numbers(&numbers))
    }
}
