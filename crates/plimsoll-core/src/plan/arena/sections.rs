//! Compresses time into sections and partitions blocks into independent sets.

use super::BufferInterval;

/// A block in search coordinates: sections instead of steps, units instead of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// The first section in which it is live.
    pub start: u32,
    /// The section after the last.
    pub end: u32,
    /// Size in units.
    pub size: u64,
}

/// A set of blocks whose lifetimes overlap with no block outside the set.
pub(super) struct Partition {
    /// Indices of the blocks in the input.
    pub ids: Vec<usize>,
    /// The same blocks in this partition's sections.
    pub pieces: Vec<Interval>,
    /// Number of sections.
    pub sections: usize,
    /// Lower bound: the largest total of a section.
    pub bound: u64,
}

/// The greatest common divisor of all sizes.
pub(super) fn unit(blocks: &[BufferInterval]) -> u64 {
    let divide = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    blocks.iter().fold(0, |unit, block| divide(block.size.0, unit)).max(1)
}

/// Partitions the non-empty blocks into independent sets.
///
/// Only steps at which a block starts after another has ended matter: blocks that overlap at any step also overlap at
/// such a step. A partition therefore has at most as many sections as blocks, and often far fewer than steps.
pub(super) fn parts(blocks: &[BufferInterval], unit: u64) -> Vec<Partition> {
    let mut order: Vec<usize> = (0..blocks.len()).filter(|i| blocks[*i].size.0 > 0).collect();
    order.sort_by_key(|i| (blocks[*i].first, *i));
    let mut ends: Vec<u32> = order.iter().map(|i| blocks[*i].last).collect();
    ends.sort_unstable();
    // The last start before each run of ends names a section.
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

/// A subset of a partition's blocks, with sections recomputed for the subset.
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

/// Total size of the live blocks of each section.
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
