//! Buffer assignment: packs buffers with known lifetimes into the smallest arena and reports the lower bound.
//!
//! Blocks are partitioned by overlapping lifetimes ([`sections`]). Each partition is packed by a portfolio of greedy
//! orders ([`greedy`]). If the result is above the lower bound, local search improves the best orders ([`peaks`]); then
//! a search with restarts runs ([`restarts`], [`search`]), on the largest blocks first ([`large_first`]).

mod greedy;
mod large_first;
mod peaks;
mod restarts;
mod search;
mod sections;

use super::liveness::peak;
use crate::Bytes;
use crate::base::budget::give_back_unused_memory;
use restarts::Restarts;
use search::PackingOutcome;
use sections::{Partition, parts};

/// A buffer of `size` bytes that is live from step `first` to step `last`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferInterval {
    /// The first step.
    pub first: u32,
    /// The last step.
    pub last: u32,
    /// Bytes; a multiple of the alignment, which keeps every offset aligned.
    pub size: Bytes,
}

/// The offsets of all blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The offset of each block.
    pub offsets: Vec<Bytes>,
    /// Arena size: the end of the highest block.
    pub size: Bytes,
    /// The largest sum of live bytes over all steps. No arena can be smaller.
    pub lower_bound: Bytes,
}

/// The objective of a packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Minimize the arena size.
    Smallest,
    /// Fit within this capacity; a smaller arena has no value.
    Within(Bytes),
}

/// Search limits, for when greedy orders do not reach the lower bound.
///
/// Work is counted, not timed: the same blocks get the same layout on every machine.
#[derive(Clone, Copy)]
pub struct PackingEffort<'a> {
    /// Maximum work, in visits of a block in a section. A core does about thirty million per second. Without work, only
    /// a few greedy orders are tried.
    pub work: u64,
    /// Polled to cancel the search. It is the only input other than the blocks that a layout depends on.
    pub keep_going: &'a dyn Fn() -> bool,
}

impl Default for PackingEffort<'_> {
    /// About a tenth of a second, spent only if greedy orders do not reach the lower bound.
    fn default() -> Self {
        PackingEffort { work: 4_000_000, keep_going: &|| true }
    }
}

/// A layout and what is proven about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The best layout found.
    pub layout: Layout,
    /// The layout is optimal. For [`Goal::Within`] with a layout above the capacity: none within the capacity exists.
    pub proven: bool,
    /// Number of restarts of the search.
    pub restarts: u64,
}

/// Assigns offsets such that blocks with overlapping lifetimes do not overlap in memory.
///
/// ```
/// use plimsoll_core::{Bytes, plan::{BufferInterval, assign}};
/// let a = BufferInterval { first: 0, last: 1, size: Bytes(64) };
/// let b = BufferInterval { first: 2, last: 3, size: Bytes(64) };
/// assert_eq!(assign(&[a, b]).size, Bytes(64), "the second takes the place of the first");
/// ```
pub fn assign(blocks: &[BufferInterval]) -> Layout {
    solve(blocks, Goal::Smallest, PackingEffort::default()).layout
}

/// Assigns offsets for a goal within the given effort. Always returns a layout: the smallest one found.
///
/// ```
/// use plimsoll_core::{Bytes, plan::{BufferInterval, PackingEffort, Goal, solve}};
/// let blocks = [BufferInterval { first: 0, last: 1, size: Bytes(64) }, BufferInterval { first: 1, last: 2, size: Bytes(32) }];
/// let solution = solve(&blocks, Goal::Within(Bytes(80)), PackingEffort::default());
/// assert_eq!(solution.layout.size, Bytes(96), "both live in step 1");
/// assert!(solution.proven, "and nothing within 80 bytes exists");
/// ```
pub fn solve(blocks: &[BufferInterval], goal: Goal, effort: PackingEffort<'_>) -> Solution {
    let steps = blocks.iter().map(|block| block.last as usize + 1).max().unwrap_or(0);
    let (_, lower_bound) = peak(blocks.iter().map(|b| (b.first, b.last, b.size)), steps);
    let unit = sections::unit(blocks);
    let wanted = match goal {
        Goal::Smallest => lower_bound.0 / unit,
        Goal::Within(capacity) => (capacity.0 / unit).max(lower_bound.0 / unit),
    };
    let parts = parts(blocks, unit);
    let orders = if effort.work == 0 { greedy::SKETCHED } else { usize::MAX };
    let mut packed: Vec<Packed<'_>> = parts.iter().map(|part| Packed::greedy(part, wanted, orders)).collect();
    let mut budget = WorkBudget { left: effort.work, keep_going: effort.keep_going, restarts: 0 };
    let least = match goal {
        Goal::Smallest => smallest(&mut packed, lower_bound.0 / unit, &mut budget),
        Goal::Within(_) => within(&mut packed, wanted, &mut budget),
    };
    let mut offsets = vec![Bytes::ZERO; blocks.len()];
    for packed in &packed {
        packed.part.ids.iter().zip(&packed.offsets).for_each(|(id, offset)| offsets[*id] = Bytes(offset * unit));
    }
    let size = Bytes(height(&packed) * unit);
    let proven = match goal {
        Goal::Smallest => size.0 == least * unit,
        Goal::Within(capacity) => size <= capacity || capacity < lower_bound || capacity.0 < least * unit,
    };
    Solution { layout: Layout { offsets, size, lower_bound }, proven, restarts: budget.restarts }
}

/// A partition and its best layout so far.
struct Packed<'a> {
    part: &'a Partition,
    offsets: Vec<u64>,
    size: u64,
}

impl<'a> Packed<'a> {
    fn greedy(part: &'a Partition, wanted: u64, orders: usize) -> Packed<'a> {
        let offsets = greedy::pack(part, wanted.max(part.bound), orders);
        let size = greedy::height(&part.pieces, &offsets);
        Packed { part, offsets, size }
    }
}

/// Remaining work of one packing.
struct WorkBudget<'a> {
    left: u64,
    keep_going: &'a dyn Fn() -> bool,
    restarts: u64,
}

fn height(packed: &[Packed<'_>]) -> u64 {
    packed.iter().map(|packed| packed.size).max().unwrap_or(0)
}

/// Searches every partition that is higher than `wanted`. Returns the smallest height not proven infeasible.
fn within(packed: &mut [Packed<'_>], wanted: u64, budget: &mut WorkBudget<'_>) -> u64 {
    let mut least = packed.iter().map(|packed| packed.part.bound).max().unwrap_or(0);
    for packed in packed.iter_mut().filter(|packed| packed.size > wanted) {
        if attempt(packed, wanted, budget.left, budget) == PackingOutcome::Impossible {
            least = least.max(wanted + 1);
        }
    }
    least
}

/// Tries the lower bound with half of the work, then bisects between it and the best known height. Returns the smallest
/// height not proven infeasible.
fn smallest(packed: &mut [Packed<'_>], bound: u64, budget: &mut WorkBudget<'_>) -> u64 {
    let mut least = bound;
    for packed in packed.iter_mut() {
        // A partition need not be lower than the lower bound of another one.
        let (mut lowest, mut proven) = (least.max(packed.part.bound), true);
        let mut share = budget.left / 2;
        while packed.size > lowest && budget.left > 0 {
            let wanted = if lowest == bound && proven { bound } else { lowest + (packed.size - 1 - lowest) / 2 };
            match attempt(packed, wanted, share, budget) {
                PackingOutcome::Found => {}
                PackingOutcome::Impossible => lowest = wanted + 1,
                PackingOutcome::GaveUp => (lowest, proven) = (wanted + 1, false),
            }
            if proven {
                least = least.max(lowest);
            }
            share = budget.left / 3;
        }
    }
    least
}

/// Searches for a layout of the partition within a height and stores it if found.
fn attempt(packed: &mut Packed<'_>, wanted: u64, work: u64, budget: &mut WorkBudget<'_>) -> PackingOutcome {
    if wanted < packed.part.bound {
        return PackingOutcome::Impossible;
    }
    let mut spent = 0;
    for search in [peaks::search, large_first::search] {
        give_back_unused_memory();
        let tried = search(packed.part, wanted, (work - spent) / 2, budget.keep_going);
        spent += tried.work;
        budget.left = budget.left.saturating_sub(tried.work);
        budget.restarts += tried.restarts;
        if let Some(offsets) = tried.found {
            packed.size = greedy::height(&packed.part.pieces, &offsets);
            packed.offsets = offsets;
        }
        if tried.outcome != PackingOutcome::GaveUp {
            return tried.outcome;
        }
    }
    let mut restarts = Restarts::new(packed.part, wanted);
    let (outcome, searched) = restarts.run(work.saturating_sub(spent), budget.keep_going);
    budget.left = if (budget.keep_going)() { budget.left.saturating_sub(searched) } else { 0 };
    budget.restarts += restarts.count;
    if let Some(offsets) = restarts.found {
        packed.size = greedy::height(&packed.part.pieces, &offsets);
        packed.offsets = offsets;
    }
    outcome
}
