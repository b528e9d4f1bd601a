//! Peak-first orders and local search over them. Blocks that are live at the peak have no slack, so they are stacked
//! first and the other blocks are placed around them by size. If the result is slightly too high, a small change of the
//! order near the highest block often fixes it: move the block itself, the block that separates it from the free space
//! below, or its support.

use super::greedy::{self, place_around};
use super::large_first::Tried;
use super::search::PackingOutcome;
use super::sections::{Interval, Partition, totals};
use std::cmp::Reverse;

/// Only orders whose height is within 1/`NEAR` of the target are improved; local moves do not fix larger excesses.
const NEAR: u64 = 20;

/// Changes tried per order and round; grows with every round.
const CHANGES: u64 = 40;

/// Late acceptance: a change is accepted if it is no worse than the state this many changes ago, which escapes local
/// minima.
const MEMORY: usize = 20;

/// Number of block placements that cost as much as one unit of search work.
const PER_LOOK: u64 = 64;

/// Stacking order of the blocks that are live at the peak; the largest key is at the bottom.
const STACKS: [fn(&Interval) -> u64; 3] =
    [|piece| u64::from(piece.end), |piece| u64::from(u32::MAX - piece.start), |piece| u64::from(piece.end - piece.start)];

/// Sort keys of the other blocks, from the block and the peak over its lifetime.
const OTHERS: [fn(&Interval, u64) -> [u64; 3]; 5] = [
    |piece, _| [piece.size, width(piece), 0],
    |piece, _| [piece.size.saturating_mul(width(piece)), 0, 0],
    |piece, held| [held, piece.size, 0],
    |piece, held| [held, width(piece), piece.size],
    |piece, _| [width(piece), piece.size, 0],
];

fn width(piece: &Interval) -> u64 {
    u64::from(piece.end - piece.start)
}

/// Peak-first orders, most successful first.
pub(super) fn orders(part: &Partition) -> impl Iterator<Item = Vec<usize>> {
    let pieces = &part.pieces;
    let totals = totals(pieces, part.sections);
    let peak_step = totals.iter().position(|held| *held == part.bound).unwrap_or(0) as u32;
    let held: Vec<u64> = pieces.iter().map(|piece| most(&totals, piece)).collect();
    let pairs = OTHERS.into_iter().flat_map(|others| STACKS.into_iter().map(move |stack| (stack, others)));
    pairs.map(move |(stack, others)| {
        let key = |i: usize| {
            let piece = &pieces[i];
            let stacked = piece.start <= peak_step && peak_step < piece.end;
            (stacked, if stacked { [stack(piece), piece.size, 0] } else { others(piece, held[i]) })
        };
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        order.sort_by_cached_key(|i| (Reverse(key(*i)), *i));
        order
    })
}

/// The largest section total over a block's lifetime.
fn most(totals: &[u64], piece: &Interval) -> u64 {
    totals[piece.start as usize..piece.end as usize].iter().copied().max().unwrap_or(0)
}

/// Searches for a layout within a height by local changes to orders whose height is close to it.
pub(super) fn search(part: &Partition, wanted: u64, work: u64, keep_going: &dyn Fn() -> bool) -> Tried {
    let mut tried = Tried { outcome: PackingOutcome::GaveUp, found: None, work: 0, restarts: 0 };
    let each = order_work(part.pieces.len(), part.pieces.len());
    let mut starts: Vec<Tuned<'_>> = Vec::new();
    for order in orders(part) {
        if tried.work + each > work {
            break;
        }
        tried.work += each;
        let start = Tuned::new(part, wanted, order);
        if start.excess == 0 {
            (tried.outcome, tried.found) = (PackingOutcome::Found, Some(start.offsets));
            return tried;
        }
        if start.highest() - wanted <= wanted / NEAR {
            starts.push(start);
        }
    }
    starts.sort_by_key(|start| start.excess);
    let totals = totals(&part.pieces, part.sections);
    for round in 1.. {
        for start in &starts {
            let mut random = PackingRng(tried.restarts);
            tried.restarts += 1;
            let mut tuned = start.clone();
            let mut before = [tuned.excess; MEMORY];
            for change in 0..CHANGES * round {
                if tried.work >= work || !keep_going() {
                    return tried;
                }
                let spent = tuned.change(&totals, &mut random, before[change as usize % MEMORY]);
                before[change as usize % MEMORY] = tuned.excess;
                tried.work += spent;
                if tuned.excess == 0 {
                    (tried.outcome, tried.found) = (PackingOutcome::Found, Some(tuned.offsets));
                    return tried;
                }
            }
        }
        if starts.is_empty() {
            break;
        }
    }
    tried
}

/// The work of placing `placed` of `all` blocks.
fn order_work(placed: usize, all: usize) -> u64 {
    (placed as u64 * all as u64) / PER_LOOK + all as u64
}

/// An order and the offsets it yields.
#[derive(Clone)]
struct Tuned<'a> {
    part: &'a Partition,
    wanted: u64,
    order: Vec<usize>,
    offsets: Vec<u64>,
    /// Excess of its height over the target; 0 if it fits.
    excess: u64,
}

impl<'a> Tuned<'a> {
    fn new(part: &'a Partition, wanted: u64, order: Vec<usize>) -> Tuned<'a> {
        let mut offsets = vec![0; order.len()];
        place_around(&part.pieces, &[], &order, &mut offsets);
        Tuned { excess: excess(&part.pieces, &offsets, wanted), part, wanted, order, offsets }
    }

    fn highest(&self) -> u64 {
        greedy::height(&self.part.pieces, &self.offsets)
    }

    /// Changes the order near a block above the target. The change is undone if it is worse than both the current state
    /// and `before`. Returns the work spent.
    fn change(&mut self, totals: &[u64], random: &mut PackingRng, before: u64) -> u64 {
        let (pieces, all) = (&self.part.pieces, self.order.len());
        let outstanding: Vec<usize> = (0..all).filter(|i| self.offsets[*i] + pieces[*i].size > self.wanted).collect();
        let mut order = self.order.clone();
        let mut first = all;
        for _ in 0..1 + random.below(2) {
            if let Some((from, to)) = self.moved(&order, outstanding[random.below(outstanding.len())], totals, random) {
                let moved = order.remove(from);
                order.insert(to, moved);
                first = first.min(from).min(to);
            }
        }
        if first == all {
            return all as u64;
        }
        // Blocks before the first moved one keep their offsets.
        let mut offsets = self.offsets.clone();
        place_around(pieces, &order[..first], &order[first..], &mut offsets);
        let excess = excess(pieces, &offsets, self.wanted);
        if excess <= self.excess.max(before) {
            (self.order, self.offsets, self.excess) = (order, offsets, excess);
        }
        order_work(all - first, all) + all as u64
    }

    /// Source and destination positions of a move that may lower block `out`.
    fn moved(&self, order: &[usize], out: usize, totals: &[u64], random: &mut PackingRng) -> Option<(usize, usize)> {
        let pieces = &self.part.pieces;
        let rank = |id: usize| order.iter().position(|i| *i == id).expect("an order has every block");
        let meet = |a: usize, b: usize| pieces[a].start < pieces[b].end && pieces[b].start < pieces[a].end;
        let here = rank(out);
        let kind = random.below(6);
        match kind {
            0 => (here > 0).then(|| (here, random.below(here))),
            1 => {
                let before: Vec<usize> = (0..here).filter(|at| meet(order[*at], out)).collect();
                (!before.is_empty()).then(|| (before[random.below(before.len())], here))
            }
            _ => {
                let lifetime = pieces[out].start..pieces[out].end;
                let section = match kind {
                    2 | 3 => lifetime.max_by_key(|s| totals[*s as usize])?,
                    _ => lifetime.start + random.below(lifetime.len()) as u32,
                };
                // A block above a gap, or its support in another section.
                let floating = self.above_a_gap(section, random)?;
                let supports: Vec<usize> = (0..pieces.len())
                    .filter(|id| *id != floating && meet(*id, floating) && self.offsets[*id] + pieces[*id].size == self.offsets[floating])
                    .collect();
                let there = rank(floating);
                match random.below(3) {
                    0 => (there < here).then_some((here, there)),
                    _ if supports.is_empty() => None,
                    way => {
                        let below = rank(supports[random.below(supports.len())]);
                        (below < there).then_some(if way == 1 { (there, below) } else { (below, there) })
                    }
                }
            }
        }
    }

    /// A random block above a gap in the section, weighted by the size of the gap.
    fn above_a_gap(&self, section: u32, random: &mut PackingRng) -> Option<usize> {
        let pieces = &self.part.pieces;
        let mut there: Vec<usize> = (0..pieces.len()).filter(|i| pieces[*i].start <= section && section < pieces[*i].end).collect();
        there.sort_by_key(|i| self.offsets[*i]);
        let mut top = 0;
        let gap = |id: &usize| {
            let gap = self.offsets[*id] - top;
            top = self.offsets[*id] + pieces[*id].size;
            (gap, *id)
        };
        let gaps: Vec<(u64, usize)> = there.iter().map(gap).filter(|(gap, _)| *gap > 0).collect();
        let all: u64 = gaps.iter().map(|(gap, _)| gap).sum();
        let mut drawn = if all == 0 { return None } else { random.next() % all };
        gaps.into_iter()
            .find(|(gap, _)| {
                drawn < *gap || {
                    drawn -= gap;
                    false
                }
            })
            .map(|(_, id)| id)
    }
}

/// Excess of the highest block over the target, plus a small penalty for every block above it.
fn excess(pieces: &[Interval], offsets: &[u64], wanted: u64) -> u64 {
    let (mut highest, mut all) = (0, 0u64);
    for (piece, offset) in pieces.iter().zip(offsets) {
        let above = (offset + piece.size).saturating_sub(wanted);
        highest = highest.max(above);
        all = all.saturating_add(above.min(piece.size));
    }
    highest.saturating_mul(256).saturating_add(all)
}

/// A deterministic pseudo-random generator.
struct PackingRng(u64);

impl PackingRng {
    fn next(&mut self) -> u64 {
        super::restarts::draw(&mut self.0)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
