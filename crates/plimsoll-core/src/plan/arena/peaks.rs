//! Blocks that are live at the peak are placed first: there is no space to waste then, so they are stacked before any other block, and the rest
//! is placed around them by size. Where a block then sticks out by little, a small change of the order near it often helps: the block itself
//! is moved, the block that keeps it from the free space below, or the one that rests on.

use super::greedy::{self, place_around};
use super::large_first::Tried;
use super::search::PackingOutcome;
use super::sections::{Interval, Partition, totals};
use std::cmp::Reverse;

/// Orders that are within one part in so many of what is wanted are worth changing; what is farther off is not mended by moving a block.
const NEAR: u64 = 20;

/// Changes tried from one order before the next has its turn; more with every round.
const CHANGES: u64 = 40;

/// A change is kept if it is no worse than what was there so many changes ago, so that ways that get worse first are tried too.
const MEMORY: usize = 20;

/// What places so many blocks beside others is as much work as one look of a search.
const PER_LOOK: u64 = 64;

/// How blocks that are live at the peak are stacked: the largest key at the bottom.
const STACKS: [fn(&Interval) -> u64; 3] =
    [|piece| u64::from(piece.end), |piece| u64::from(u32::MAX - piece.start), |piece| u64::from(piece.end - piece.start)];

/// How the others follow, by themselves and the most that is held while they live.
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

/// Orders in which blocks live at the peak come first; the orders that help most often come first.
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

/// The most that is held while a block lives.
fn most(totals: &[u64], piece: &Interval) -> u64 {
    totals[piece.start as usize..piece.end as usize].iter().copied().max().unwrap_or(0)
}

/// Searches a layout of the part within a height by changing the orders that come near it.
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
            let mut random = Rng(tried.restarts);
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

/// The work of placing so many blocks of all.
fn order_work(placed: usize, all: usize) -> u64 {
    (placed as u64 * all as u64) / PER_LOOK + all as u64
}

/// An order, and where it puts the blocks.
#[derive(Clone)]
struct Tuned<'a> {
    part: &'a Partition,
    wanted: u64,
    order: Vec<usize>,
    offsets: Vec<u64>,
    /// How far it is above what is wanted; nothing where it is not.
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

    /// Changes the order where something stands out, and keeps that unless it is worse than both what is there and `before`. Gives the work it took.
    fn change(&mut self, totals: &[u64], random: &mut Rng, before: u64) -> u64 {
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
        // Blocks before the first that moved stay where they are.
        let mut offsets = self.offsets.clone();
        place_around(pieces, &order[..first], &order[first..], &mut offsets);
        let excess = excess(pieces, &offsets, self.wanted);
        if excess <= self.excess.max(before) {
            (self.order, self.offsets, self.excess) = (order, offsets, excess);
        }
        order_work(all - first, all) + all as u64
    }

    /// Which block to take from where in the order to where, because of one that stands out.
    fn moved(&self, order: &[usize], out: usize, totals: &[u64], random: &mut Rng) -> Option<(usize, usize)> {
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
                // A block above free space, or the block it rests on at another time.
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

    /// A block above free space in the section; the more space, the more likely.
    fn above_a_gap(&self, section: u32, random: &mut Rng) -> Option<usize> {
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

/// How far the highest block is above what is wanted, and a little for every block that is.
fn excess(pieces: &[Interval], offsets: &[u64], wanted: u64) -> u64 {
    let (mut highest, mut all) = (0, 0u64);
    for (piece, offset) in pieces.iter().zip(offsets) {
        let above = (offset + piece.size).saturating_sub(wanted);
        highest = highest.max(above);
        all = all.saturating_add(above.min(piece.size));
    }
    highest.saturating_mul(256).saturating_add(all)
}

/// A fixed sequence of numbers without a pattern.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        super::restarts::draw(&mut self.0)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
