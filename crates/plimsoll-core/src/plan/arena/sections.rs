//! Time cut into sections: what a packing depends on of the steps, and which blocks have nothing to do with each other.

use super::Block;

/// A block as the search sees it: sections instead of steps, units instead of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// The first section it lives in.
    pub start: u32,
    /// The section after the last.
    pub end: u32,
    /// Units it takes.
    pub size: u64,
}

/// Blocks that can be placed without looking at any others, since nobody else lives when they do.
pub(super) struct Partition {
    /// Which of all blocks they are.
    pub ids: Vec<usize>,
    /// The same blocks, in sections of this part.
    pub pieces: Vec<Interval>,
    /// How many sections there are.
    pub sections: usize,
    /// The most units held in any section.
    pub bound: u64,
}

/// The greatest size that all sizes are multiples of.
pub(super) fn unit(blocks: &[Block]) -> u64 {
    let divide = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    blocks.iter().fold(0, |unit, block| divide(block.size.0, unit)).max(1)
}

/// Partitions the non-empty blocks into independent parts.
///
/// Only moments matter at which a block has begun since another ended: blocks that are live together at any other moment are also live together at such
/// a one. So a part has at most as many sections as blocks, and often far fewer than steps.
pub(super) fn parts(blocks: &[Block], unit: u64) -> Vec<Partition> {
    let mut order: Vec<usize> = (0..blocks.len()).filter(|i| blocks[*i].size.0 > 0).collect();
    order.sort_by_key(|i| (blocks[*i].first, *i));
    let mut ends: Vec<u32> = order.iter().map(|i| blocks[*i].last).collect();
    ends.sort_unstable();
    // The last start before each run of ends is a section, named by that step.
    let (mut moments, mut passed) = (Vec::new(), 0);
    for (at, id) in order.iter().enumerate() {
        let next = order.get(at + 1).map(|next| blocks[*next].first);
        if next.is_none_or(|next| ends[passed] < next) {
            moments.push(blocks[*id].first);
            while next.is_some_and(|next| passed < ends.len() && ends[passed] < next) {
                passed += 1;
            }
        }
    }
    let mut parts: Vec<Partition> = Vec::new();
    let (mut base, mut reach) = (0, 0);
    for id in order {
        let block = &blocks[id];
        let start = moments.partition_point(|moment| *moment < block.first) as u32;
        let end = moments.partition_point(|moment| *moment <= block.last) as u32;
        if parts.is_empty() || start >= reach {
            parts.push(Partition { ids: Vec::new(), pieces: Vec::new(), sections: 0, bound: 0 });
            (base, reach) = (start, end);
        }
        reach = reach.max(end);
        let part = parts.last_mut().expect("just made sure of");
        part.ids.push(id);
        part.pieces.push(Interval { start: start - base, end: end - base, size: block.size.0 / unit });
        part.sections = (reach - base) as usize;
    }
    for part in &mut parts {
        part.bound = totals(&part.pieces, part.sections).into_iter().max().unwrap_or(0);
    }
    parts
}

/// Some of a part's blocks by themselves, in as few sections as they need.
pub(super) fn part_of(part: &Partition, ids: &[usize]) -> Partition {
    let mut moments: Vec<u32> = Vec::new();
    let mut starts: Vec<u32> = ids.iter().map(|id| part.pieces[*id].start).collect();
    let mut ends: Vec<u32> = ids.iter().map(|id| part.pieces[*id].end).collect();
    starts.sort_unstable();
    ends.sort_unstable();
    let mut passed = 0;
    for (at, start) in starts.iter().enumerate() {
        let next = starts.get(at + 1);
        if next.is_none_or(|next| ends[passed] <= *next) {
            moments.push(*start);
            while next.is_some_and(|next| passed < ends.len() && ends[passed] <= *next) {
                passed += 1;
            }
        }
    }
    let section = |bound: u32| moments.partition_point(|moment| *moment < bound) as u32;
    let pieces: Vec<Interval> = ids
        .iter()
        .map(|id| {
            let Interval { start, end, size } = part.pieces[*id];
            Interval { start: section(start), end: section(end), size }
        })
        .collect();
    let bound = totals(&pieces, moments.len()).into_iter().max().unwrap_or(0);
    Partition { ids: ids.to_vec(), pieces, sections: moments.len(), bound }
}

/// What each section holds.
pub(super) fn totals(pieces: &[Interval], sections: usize) -> Vec<u64> {
    let mut change = vec![0i128; sections + 1];
    for piece in pieces {
        change[piece.start as usize] += i128::from(piece.size);
        change[piece.end as usize] -= i128::from(piece.size);
    }
    let mut held = 0;
    change[..sections]
        .iter()
        .map(|change| {
            held += change;
            u64::try_from(held).unwrap_or(u64::MAX)
        })
        .collect()
}
