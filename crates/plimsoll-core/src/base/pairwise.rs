//! Pairwise summation of what the micro-batches of a batch contribute: a fixed tree, whatever the number of ranks.
//!
//! A node of the tree sums consecutive micro-batches: the larger half of them, and the rest. A rank has all
//! micro-batches of one node, so that ranks exchange one sum each, and add these in the order of the tree.
//! Micro-batches that a short batch does not have are left out of the sums.

use std::ops::Range;

/// The tree over the micro-batches of a whole batch, or over those of one rank.
///
/// ```
/// use plimsoll_core::pairwise::PairwiseTree;
///
/// let tree = PairwiseTree::new(8);
/// assert_eq!(tree.shares(3), [4..8, 0..2, 2..4]);
/// // Sums of the first and second half are complete before the last micro-batch: 1 + 2 + 4 of them.
/// assert_eq!((tree.place(7).before, tree.levels()), (3, 3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PairwiseTree {
    micro_batches: u32,
}

/// What becomes of a micro-batch's contribution, as on a stack of partial sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairwisePlace {
    /// Partial sums that are held before it.
    pub before: u32,
    /// How many of these it is added to, the latest first, before it is held itself.
    pub merged: u32,
}

/// Two ranks whose sums are those of one node: `right` sends its sum, and `left` adds it to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPair {
    /// The rank that continues with the sum of both.
    pub left: u32,
    /// The rank that sends its sum.
    pub right: u32,
    /// The first micro-batch of the right part: batches that end before it do not have that part.
    pub from: u32,
}

impl PairwiseTree {
    /// The tree over this many micro-batches, at least one.
    pub fn new(micro_batches: u32) -> PairwiseTree {
        PairwiseTree { micro_batches: micro_batches.max(1) }
    }

    /// The micro-batches of a whole batch.
    pub fn micro_batches(self) -> u32 {
        self.micro_batches
    }

    /// What becomes of the micro-batch of this number. The last one of a batch is added to all partial sums that are
    /// held, also if the batch is shorter than others.
    pub fn place(self, number: u32) -> PairwisePlace {
        let (mut count, mut number) = (self.micro_batches, number.min(self.micro_batches - 1));
        let mut place = PairwisePlace { before: 0, merged: 0 };
        while count > 1 {
            let left = count.div_ceil(2);
            match number.checked_sub(left) {
                None => (count, place.merged) = (left, 0),
                Some(rest) => {
                    (count, number) = (count - left, rest);
                    (place.before, place.merged) = (place.before + 1, place.merged + 1);
                }
            }
        }
        place
    }

    /// Partial sums that are held at the same time, between two micro-batches of a batch.
    pub fn levels(self) -> u32 {
        self.micro_batches.ilog2()
    }

    /// The micro-batches of each rank: those of one node, the most on the first rank. They are divided until every rank
    /// has some; ranks beyond the number of micro-batches have none.
    pub fn shares(self, ranks: u32) -> Vec<Range<u32>> {
        let all = self.micro_batches;
        let mut nodes: Vec<Range<u32>> = std::iter::once(0..all).collect();
        while nodes.len() < ranks as usize {
            let most = nodes.iter().map(|node| node.len()).max().unwrap_or(0);
            if most < 2 {
                break;
            }
            let at = nodes.iter().position(|node| node.len() == most).expect("one has the most");
            let (start, end) = (nodes[at].start, nodes[at].end);
            let middle = start + (end - start).div_ceil(2);
            nodes.splice(at..=at, [start..middle, middle..end]);
        }
        nodes.sort_by_key(|node| (std::cmp::Reverse(node.len()), node.start));
        nodes.resize(ranks as usize, all..all);
        nodes
    }

    /// The order in which ranks add their sums; the last pair's left rank has the sum of the batch. None for a single
    /// rank.
    pub fn exchanges(self, ranks: u32) -> Vec<RankPair> {
        let mut pairs = Vec::new();
        join(&self.shares(ranks), 0..self.micro_batches, &mut pairs);
        pairs
    }

    /// The rank that has the first micro-batch, and the sum of the batch in the end.
    pub fn root(self, ranks: u32) -> u32 {
        let first = self.shares(ranks).iter().position(|share| share.start == 0 && !share.is_empty());
        first.map_or(0, |rank| rank as u32)
    }
}

/// Adds the exchanges within a node; the rank that has its sum.
fn join(shares: &[Range<u32>], node: Range<u32>, pairs: &mut Vec<RankPair>) -> u32 {
    if let Some(rank) = shares.iter().position(|share| *share == node) {
        return rank as u32;
    }
    let middle = node.start + (node.end - node.start).div_ceil(2);
    let left = join(shares, node.start..middle, pairs);
    let right = join(shares, middle..node.end, pairs);
    pairs.push(RankPair { left, right, from: middle });
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sum as the text of its additions, which are not associative.
    fn node(batch: u32, node: Range<u32>) -> Option<String> {
        if node.start >= batch {
            return None;
        }
        if node.len() == 1 {
            return Some(node.start.to_string());
        }
        let middle = node.start + (node.end - node.start).div_ceil(2);
        let left = self::node(batch, node.start..middle)?;
        Some(match self::node(batch, middle..node.end) {
            Some(right) => format!("({left}+{right})"),
            None => left,
        })
    }

    /// The sum over the micro-batches of one rank, one after the other.
    fn of_share(batch: u32, share: &Range<u32>, most: &mut usize) -> Option<String> {
        let (tree, end) = (PairwiseTree::new(share.len() as u32), share.end.min(batch));
        let mut held: Vec<String> = Vec::new();
        for number in share.start..end {
            let place = tree.place(number - share.start);
            assert_eq!(held.len(), place.before as usize);
            let last = number + 1 == end;
            let merged = if last { place.before } else { place.merged };
            let sum = (0..merged).fold(number.to_string(), |sum, _| format!("({}+{sum})", held.pop().unwrap()));
            held.push(sum);
            if !last {
                *most = held.len().max(*most);
            }
        }
        held.pop()
    }

    #[test]
    fn any_number_of_ranks_adds_in_the_order_of_one_tree() {
        for whole in 1..=20 {
            let tree = PairwiseTree::new(whole);
            for batch in 1..=whole {
                let expected = node(batch, 0..whole);
                for ranks in 1..=whole + 2 {
                    let shares = tree.shares(ranks);
                    assert_eq!(shares.iter().map(|share| share.len()).sum::<usize>(), whole as usize);
                    assert!(shares.iter().all(|share| share.len() <= shares[0].len()), "the first rank has the most");
                    let mut most = 0;
                    let mut sums: Vec<Option<String>> = shares.iter().map(|share| of_share(batch, share, &mut most)).collect();
                    assert!(most <= PairwiseTree::new(shares[0].len() as u32).levels() as usize);
                    for RankPair { left, right, from } in tree.exchanges(ranks) {
                        if from < batch {
                            let right = sums[right as usize].take().unwrap();
                            sums[left as usize] = sums[left as usize].take().map(|left| format!("({left}+{right})"));
                        }
                    }
                    assert_eq!(sums[tree.root(ranks) as usize], expected, "{batch} of {whole} micro-batches on {ranks} ranks");
                }
            }
        }
    }

    #[test]
    fn few_partial_sums_are_held() {
        let held = |micro_batches| PairwiseTree::new(micro_batches).levels();
        assert_eq!([1, 2, 3, 4, 5, 8, 9, 16, 1024].map(held), [0, 1, 1, 2, 2, 3, 3, 4, 10]);
        for micro_batches in 1..=40 {
            let (tree, mut most) = (PairwiseTree::new(micro_batches), 0);
            of_share(micro_batches, &(0..micro_batches), &mut most);
            assert_eq!(most, tree.levels() as usize, "{micro_batches} micro-batches");
        }
    }
}
