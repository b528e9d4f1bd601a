//! Offsets: packing buffers with known lifetimes into the smallest arena, with the lower bound beside it.
//!
//! Blocks that never live at the same time as others fall into parts of their own ([`sections`]). Each part is packed by a portfolio of
//! greedy orders ([`greedy`]); where those stay above the bound, by changing orders that come near it ([`peaks`]), then by a search with
//! restarts ([`restarts`], [`search`]), of the few great blocks first ([`strata`]).

mod greedy;
mod large_first;
mod peaks;
mod restarts;
mod search;
mod sections;

use super::liveness::peak;
use crate::Bytes;
use restarts::Restarts;
use search::PackingOutcome;
use sections::{Partition, parts};

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

/// What is wanted of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// As small as can be found.
    Smallest,
    /// Within this capacity; how far below it does not matter.
    Within(Bytes),
}

/// How long to search where greedy orders are not enough.
///
/// Work is counted, not timed, so that the same blocks get the same layout on every machine.
#[derive(Clone, Copy)]
pub struct PackingEffort<'a> {
    /// The most work: looks at a block in a step, some thirty million of which a core does in a second.
    pub work: u64,
    /// Asked now and then whether to go on; what it answers is the one thing a layout may depend on besides the blocks.
    pub keep_going: &'a dyn Fn() -> bool,
}

impl Default for PackingEffort<'_> {
    /// About a tenth of a second, and only where greedy orders stay above the bound.
    fn default() -> Self {
        PackingEffort { work: 4_000_000, keep_going: &|| true }
    }
}

/// A layout and what is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// The best layout found.
    pub layout: Layout,
    /// Nothing smaller exists: for [`Goal::Within`], nothing within the capacity if the layout is above it.
    pub proven: bool,
    /// How often the search began again.
    pub restarts: u64,
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
    solve(blocks, Goal::Smallest, PackingEffort::default()).layout
}

/// Places blocks towards a goal, with no more than the given effort. Always gives a layout; the smallest it found.
///
/// ```
/// use plimsoll_core::{Bytes, plan::{Block, PackingEffort, Goal, solve}};
/// let blocks = [Block { first: 0, last: 1, size: Bytes(64) }, Block { first: 1, last: 2, size: Bytes(32) }];
/// let solution = solve(&blocks, Goal::Within(Bytes(80)), PackingEffort::default());
/// assert_eq!(solution.layout.size, Bytes(96), "both live in step 1");
/// assert!(solution.proven, "and nothing within 80 bytes exists");
/// ```
pub fn solve(blocks: &[Block], goal: Goal, effort: PackingEffort<'_>) -> Solution {
    let steps = blocks.iter().map(|block| block.last as usize + 1).max().unwrap_or(0);
    let (_, lower_bound) = peak(blocks.iter().map(|b| (b.first, b.last, b.size)), steps);
    let unit = sections::unit(blocks);
    let wanted = match goal {
        Goal::Smallest => lower_bound.0 / unit,
        Goal::Within(capacity) => (capacity.0 / unit).max(lower_bound.0 / unit),
    };
    let parts = parts(blocks, unit);
    let mut packed: Vec<Packed<'_>> = parts.iter().map(|part| Packed::greedy(part, wanted)).collect();
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

/// A part and the best that was found for it.
struct Packed<'a> {
    part: &'a Partition,
    offsets: Vec<u64>,
    size: u64,
}

impl<'a> Packed<'a> {
    fn greedy(part: &'a Partition, wanted: u64) -> Packed<'a> {
        let offsets = greedy::pack(part, wanted.max(part.bound));
        let size = greedy::height(&part.pieces, &offsets);
        Packed { part, offsets, size }
    }
}

/// Work that is left for a whole layout.
struct WorkBudget<'a> {
    left: u64,
    keep_going: &'a dyn Fn() -> bool,
    restarts: u64,
}

fn height(packed: &[Packed<'_>]) -> u64 {
    packed.iter().map(|packed| packed.size).max().unwrap_or(0)
}

/// Searches every part that is above `wanted`; gives the smallest height not known to be infeasible.
fn within(packed: &mut [Packed<'_>], wanted: u64, budget: &mut WorkBudget<'_>) -> u64 {
    let mut least = packed.iter().map(|packed| packed.part.bound).max().unwrap_or(0);
    for packed in packed.iter_mut().filter(|packed| packed.size > wanted) {
        if attempt(packed, wanted, budget.left, budget) == PackingOutcome::Impossible {
            least = least.max(wanted + 1);
        }
    }
    least
}

/// Tries the bound itself with half the work, then heights between it and the best known; gives the smallest not known to be infeasible.
fn smallest(packed: &mut [Packed<'_>], bound: u64, budget: &mut WorkBudget<'_>) -> u64 {
    let mut least = bound;
    for packed in packed.iter_mut() {
        // Below what another part needs anyhow there is nothing to win.
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

/// Searches a layout of the part within a height, and keeps it if there is one.
fn attempt(packed: &mut Packed<'_>, wanted: u64, work: u64, budget: &mut WorkBudget<'_>) -> PackingOutcome {
    if wanted < packed.part.bound {
        return PackingOutcome::Impossible;
    }
    let mut spent = 0;
    for search in [peaks::search, large_first::search] {
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
