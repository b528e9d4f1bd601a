//! Offsets: packing buffers with known lifetimes into the smallest arena. A portfolio of greedy orders, with the lower bound beside it.

use super::liveness::fullest;
use crate::Bytes;
use std::cmp::Reverse;

/// Something that needs `size` bytes from step `first` to step `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first step.
    pub first: u32,
    /// The last step.
    pub last: u32,
    /// Bytes; a multiple of the alignment, so that every offset is one too.
    pub size: Bytes,
}

/// Where each block goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The offset of each block.
    pub offsets: Vec<Bytes>,
    /// The highest byte used.
    pub size: Bytes,
    /// The most bytes held at any step: nothing can be smaller.
    pub lower_bound: Bytes,
}

/// Places blocks so that those that live at the same time do not overlap.
///
/// ```
/// use plimsoll_core::{Bytes, plan::{Block, assign}};
/// let a = Block { first: 0, last: 1, size: Bytes(64) };
/// let b = Block { first: 2, last: 3, size: Bytes(64) };
/// assert_eq!(assign(&[a, b]).size, Bytes(64), "the second takes the place of the first");
/// ```
pub fn assign(blocks: &[Block]) -> Layout {
    let steps = blocks.iter().map(|block| block.last as usize + 1).max().unwrap_or(0);
    let (_, lower_bound) = fullest(blocks.iter().map(|b| (b.first, b.last, b.size)), steps);
    let mut best: Option<Layout> = None;
    for priority in PRIORITIES {
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        order.sort_by_key(|i| (Reverse(priority(&blocks[*i])), blocks[*i].first, *i));
        let layout = place(blocks, &order, lower_bound);
        if best.as_ref().is_none_or(|best| layout.size < best.size) {
            best = Some(layout);
        }
        if best.as_ref().is_some_and(|best| best.size == lower_bound) {
            break;
        }
    }
    best.unwrap_or(Layout { offsets: vec![], size: Bytes::ZERO, lower_bound })
}

/// What makes a block go before others; the second number decides between equals.
type Priority = fn(&Block) -> (u64, u64);

/// What is placed first. No single order is best; together they reach the bound on most networks.
const PRIORITIES: [Priority; 6] = [
    |b| (b.size.0, u64::from(b.last - b.first)),
    |b| (u64::from(b.last - b.first), b.size.0),
    |b| (b.size.0 * (u64::from(b.last - b.first) + 1), b.size.0),
    |b| (u64::MAX - u64::from(b.first), b.size.0),
    |b| (u64::from(b.last), b.size.0),
    |b| (u64::from(b.size.0.max(1).ilog2()), u64::from(b.last - b.first)),
];

/// Each block at the lowest offset that is free over its whole lifetime.
fn place(blocks: &[Block], order: &[usize], lower_bound: Bytes) -> Layout {
    let mut offsets = vec![Bytes::ZERO; blocks.len()];
    let mut size = Bytes::ZERO;
    // Sorted by offset, so that one walk finds the first gap.
    let mut placed: Vec<usize> = Vec::with_capacity(blocks.len());
    for i in order.iter().copied().filter(|i| blocks[*i].size > Bytes::ZERO) {
        let block = &blocks[i];
        let mut offset = Bytes::ZERO;
        for other in &placed {
            let neighbour = &blocks[*other];
            if neighbour.last < block.first || block.last < neighbour.first {
                continue;
            }
            if offset + block.size <= offsets[*other] {
                break;
            }
            offset = offset.max(offsets[*other] + neighbour.size);
        }
        offsets[i] = offset;
        size = size.max(offset + block.size);
        let at = placed.partition_point(|other| offsets[*other] <= offset);
        placed.insert(at, i);
    }
    Layout { offsets, size, lower_bound }
}
