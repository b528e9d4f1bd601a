//! How the elements of a tensor are divided over ranks: consecutive ones on each, as many on all.

use std::ops::Range;

/// The elements of a rank's shard: as many on every rank, of which the last ranks may not need all.
pub fn length(elements: usize, ranks: usize) -> usize {
    elements.div_ceil(ranks.max(1))
}

/// The elements of a tensor that a rank has. Its shard begins with them, and is zero behind them.
///
/// ```
/// use plimsoll_core::shard;
/// let shards: Vec<_> = (0..4).map(|rank| shard::range(9, 4, rank)).collect();
/// assert_eq!(shards, [0..3, 3..6, 6..9, 9..9]);
/// assert_eq!(shard::length(9, 4), 3);
/// ```
pub fn range(elements: usize, ranks: usize, rank: usize) -> Range<usize> {
    let length = length(elements, ranks);
    (rank * length).min(elements)..((rank + 1) * length).min(elements)
}
