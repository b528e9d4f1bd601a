//! Greedy best-offset packing: one pass over the blocks in some order, each at the lowest free offset. No single order
//! is best; together they reach the lower bound on most networks.

use super::peaks;
use super::sections::{Interval, Partition};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Limit on pairwise comparisons. Priority orders compare each block with all blocks of overlapping lifetime; past this
/// limit no further priority order is tried. Time-ordered sweeps only scan gaps and always run.
const LOOKS: usize = 200_000_000;

/// Number of peak-first orders tried before the others; as many again are tried at the end.
const FIRST: usize = 3;

/// Priority orders of a sketch.
pub(super) const SKETCHED: usize = 2;

/// The best layout over at most `orders` priority orders and all sweeps, or the first whose height is at most `wanted`.
pub(super) fn pack(part: &Partition, wanted: u64, orders: usize) -> Vec<u64> {
    let pieces = &part.pieces;
    let mut best: Option<(u64, Vec<u64>)> = None;
    let affordable = (LOOKS / pieces.len().pow(2).max(1)).min(orders);
    let by_priority = PRIORITIES.iter().map(|priority| {
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        order.sort_by_key(|i| (Reverse(priority(&pieces[*i])), pieces[*i].start, *i));
        order
    });
    let mut by_peak = peaks::orders(part);
    let first: Vec<Vec<usize>> = by_peak.by_ref().take(FIRST.min(affordable)).collect();
    let placed = first.into_iter().chain(by_priority).chain(by_peak.take(FIRST)).take(affordable).map(|order| {
        let mut offsets = vec![0; pieces.len()];
        place_around(pieces, &[], &order, &mut offsets);
        offsets
    });
    let by_time = [(false, false), (false, true), (true, false), (true, true)]
        .into_iter()
        .map(|(backwards, tight)| sweep(pieces, part.sections as u32, backwards, tight));
    for offsets in placed.chain(by_time) {
        let height = height(pieces, &offsets);
        if best.as_ref().is_none_or(|(smallest, _)| height < *smallest) {
            best = Some((height, offsets));
        }
        if height <= wanted {
            break;
        }
    }
    best.map(|(_, offsets)| offsets).unwrap_or_default()
}

/// The height of a layout: the end of its highest block.
pub(super) fn height(pieces: &[Interval], offsets: &[u64]) -> u64 {
    pieces.iter().zip(offsets).map(|(piece, offset)| offset + piece.size).max().unwrap_or(0)
}

/// Sort key of a block; the second number breaks ties.
type Priority = fn(&Interval) -> (u64, u64);

const PRIORITIES: [Priority; 6] = [
    |p| (u64::from(p.end - p.start), p.size),
    |p| (p.size.saturating_mul(u64::from(p.end - p.start)), p.size),
    |p| (p.size, u64::from(p.end - p.start)),
    |p| (u64::MAX - u64::from(p.start), p.size),
    |p| (u64::from(p.end), p.size),
    |p| (u64::from(p.size.ilog2()), u64::from(p.end - p.start)),
];

/// A placed block, compact so that a scan over many stays in cache.
struct Placed {
    offset: u64,
    top: u64,
    start: u32,
    end: u32,
}

/// Places each block of the order at the lowest offset that is free over its whole lifetime, around the `fixed` blocks.
pub(super) fn place_around(pieces: &[Interval], fixed: &[usize], order: &[usize], offsets: &mut [u64]) {
    let fixed_at = |i: &usize| {
        let Interval { start, end, size } = pieces[*i];
        Placed { offset: offsets[*i], top: offsets[*i] + size, start, end }
    };
    // Sorted by offset, so that one walk finds the first gap.
    let mut placed: Vec<Placed> = fixed.iter().map(fixed_at).collect();
    placed.sort_by_key(|placed| placed.offset);
    for i in order {
        let Interval { start, end, size } = pieces[*i];
        let mut offset = 0;
        for other in placed.iter().filter(|other| other.start < end && start < other.end) {
            if offset + size <= other.offset {
                break;
            }
            offset = offset.max(other.top);
        }
        offsets[*i] = offset;
        let at = placed.partition_point(|other| other.offset <= offset);
        placed.insert(at, Placed { offset, top: offset + size, start, end });
    }
}

/// Simulates an allocator forwards or backwards in time, with first fit or best fit.
fn sweep(pieces: &[Interval], sections: u32, backwards: bool, tight: bool) -> Vec<u64> {
    let life = |piece: &Interval| if backwards { (sections - piece.end, sections - piece.start) } else { (piece.start, piece.end) };
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|i| (life(&pieces[*i]).0, Reverse(life(&pieces[*i]).1), Reverse(pieces[*i].size), *i));
    let mut ends: Vec<usize> = order.clone();
    ends.sort_by_key(|i| (life(&pieces[*i]).1, *i));
    let (mut offsets, mut given_back) = (vec![0; pieces.len()], 0);
    // Gaps by offset; the last one is unbounded.
    let mut gaps: BTreeMap<u64, u64> = BTreeMap::from([(0, u64::MAX)]);
    for i in order {
        let now = life(&pieces[i]).0;
        while life(&pieces[ends[given_back]]).1 <= now {
            let piece = ends[given_back];
            give_back(&mut gaps, offsets[piece], offsets[piece] + pieces[piece].size);
            given_back += 1;
        }
        let size = pieces[i].size;
        let mut fitting = gaps.iter().filter(|(start, end)| *end - *start >= size).map(|(start, end)| (*start, *end));
        let gap = if tight { fitting.min_by_key(|(start, end)| (end - start, *start)) } else { fitting.next() };
        let (start, end) = gap.expect("the last gap has no end");
        gaps.remove(&start);
        if start + size < end {
            gaps.insert(start + size, end);
        }
        offsets[i] = start;
    }
    offsets
}

fn give_back(gaps: &mut BTreeMap<u64, u64>, mut start: u64, mut end: u64) {
    if let Some((before, _)) = gaps.range(..start).next_back().filter(|(_, end)| **end == start) {
        start = *before;
    }
    if let Some(after) = gaps.remove(&end) {
        end = after;
    }
    gaps.insert(start, end);
}
