//! Depth-first search for a layout of one partition within a given height.
//!
//! If a layout exists, one exists in which no block can move to a lower free offset: every block rests at offset 0 or
//! on another block. Each step picks a block such that no block with an overlapping lifetime can start below it, and
//! decides one bit: the block is placed at its resting offset, or it rests on a block that is not placed yet. The
//! second branch is as informative as the first: it raises the block above the lowest top among the overlapping blocks,
//! which raises the floor of nearly full sections.
//!
//! Bounds are propagated per section until a fixed point is reached ([`PackingSearch::settle`]). The open blocks may
//! then split into time ranges without common blocks. These subproblems are solved independently; an infeasible one
//! refutes the decision that separated it, regardless of decisions in other subproblems.

use super::sections::{Interval, Partition};
use std::collections::VecDeque;

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PackingOutcome {
    /// A layout was found.
    Found,
    /// No layout exists within the height.
    Impossible,
    /// The work limit was reached.
    GaveUp,
}

/// How to choose the section to branch in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Focus {
    /// The section with the lowest floor.
    Lowest,
    /// The section with the smallest slack.
    Tightest,
    /// The section with the smallest slack, weighted by the number of dead ends in it.
    Troubled,
}

/// Summary of the open blocks of a section. A block's offset is at least its `low`.
#[derive(Clone, Copy)]
struct Section {
    /// The smallest `low`, its block, and the second smallest `low`.
    floor: u64,
    first: u32,
    next_floor: u64,
    /// The smallest `low` plus size, its block, and the second smallest.
    top: u64,
    owner: u32,
    next_top: u64,
}

const EMPTY: Section =
    Section { floor: u64::MAX, first: u32::MAX, next_floor: u64::MAX, top: u64::MAX, owner: u32::MAX, next_top: u64::MAX };

impl Section {
    fn top_without(&self, id: usize) -> u64 {
        if self.owner as usize == id { self.next_top } else { self.top }
    }

    fn floor_without(&self, id: usize) -> u64 {
        if self.first as usize == id { self.next_floor } else { self.floor }
    }

    fn add(&mut self, id: u32, low: u64, size: u64) {
        if low < self.floor {
            self.next_floor = self.floor;
            (self.floor, self.first) = (low, id);
        } else {
            self.next_floor = self.next_floor.min(low);
        }
        let top = low + size;
        if top < self.top {
            self.next_top = self.top;
            (self.top, self.owner) = (top, id);
        } else {
            self.next_top = self.next_top.min(top);
        }
    }
}

/// An undo record of one change.
enum Change {
    Low(u32, u64),
    Rest(u32, u64),
    Section(u32, Section),
    Placed(u32),
}

/// Sections whose open blocks are live in no other section, and the decision that separated them.
#[derive(Clone, Copy)]
struct Stretch {
    from: usize,
    to: usize,
    cut_by: Option<usize>,
}

/// A tentative placement.
struct Decision {
    stretch: Stretch,
    id: usize,
    /// Length of the undo log before the decision.
    changes: usize,
    /// Number of other pending stretches at the time.
    waiting: usize,
}

/// Blocks are numbered in branching order.
pub(super) struct PackingSearch {
    pieces: Vec<Interval>,
    /// Maps each number to the block's index in the partition.
    ids: Vec<u32>,
    height: u64,
    focus: Focus,
    /// For each section, the set of blocks that are live in it.
    members: Vec<Vec<u64>>,
    placed: Vec<u64>,
    /// The lowest offset at which each open block rests on placed blocks; the final offset once placed.
    rest: Vec<u64>,
    /// Lower bound on each block's offset. If it is above `rest`, the block must rest on a block that is still open.
    low: Vec<u64>,
    /// Set when `low` changed since the block's possible supports were last computed.
    lifted: Vec<bool>,
    sections: Vec<Section>,
    /// Total size of the open blocks of each section.
    open: Vec<u64>,
    /// Number of open blocks that are live in each section and in the next.
    crossing: Vec<u32>,
    changes: Vec<Change>,
    waiting: Vec<Stretch>,
    unsettled: VecDeque<u32>,
    is_unsettled: Vec<bool>,
    /// Number of dead ends in each section.
    pub trouble: Vec<u64>,
    /// Remaining work.
    pub work: u64,
    /// The open blocks of the current section, with their lows and sizes.
    list: Vec<u32>,
    sorted: Vec<(u64, u64)>,
}

impl PackingSearch {
    /// Creates a search that branches on blocks in this order.
    pub fn new(part: &Partition, height: u64, ids: Vec<u32>, focus: Focus, trouble: Vec<u64>) -> PackingSearch {
        let pieces: Vec<Interval> = ids.iter().map(|id| part.pieces[*id as usize]).collect();
        let (blocks, sections, words) = (pieces.len(), part.sections, pieces.len().div_ceil(64));
        let (mut members, mut open, mut crossing) = (vec![vec![0u64; words]; sections], vec![0; sections], vec![0; sections]);
        for (id, piece) in pieces.iter().enumerate() {
            for s in piece.start..piece.end {
                members[s as usize][id / 64] |= 1 << (id % 64);
                open[s as usize] += piece.size;
                crossing[s as usize] += u32::from(s + 1 < piece.end);
            }
        }
        PackingSearch {
            pieces,
            ids,
            height,
            focus,
            members,
            placed: vec![0; words],
            rest: vec![0; blocks],
            low: vec![0; blocks],
            lifted: vec![true; blocks],
            sections: vec![EMPTY; sections],
            open,
            crossing,
            changes: Vec::new(),
            waiting: Vec::new(),
            unsettled: (0..sections as u32).collect(),
            is_unsettled: vec![true; sections],
            trouble,
            work: 0,
            list: Vec::new(),
            sorted: Vec::new(),
        }
    }

    /// Offsets of the partition's blocks, valid after a layout was found.
    pub fn offsets(&self) -> Vec<u64> {
        let mut offsets = vec![0; self.ids.len()];
        self.ids.iter().zip(&self.rest).for_each(|(id, rest)| offsets[*id as usize] = *rest);
        offsets
    }

    /// Searches until the work limit is reached.
    pub fn run(&mut self, work: u64) -> PackingOutcome {
        self.work = work;
        if !self.settle_all() {
            return self.refuted();
        }
        self.cut(0, self.sections.len(), None);
        let mut decisions: Vec<Decision> = Vec::new();
        while let Some(stretch) = self.waiting.pop() {
            if self.work == 0 {
                return PackingOutcome::GaveUp;
            }
            let id = self.choose(stretch);
            decisions.push(Decision { stretch, id, changes: self.changes.len(), waiting: self.waiting.len() });
            self.put(id);
            if self.settle_all() {
                self.cut(stretch.from, stretch.to, Some(decisions.len() - 1));
            } else if !self.refute(&mut decisions) {
                return self.refuted();
            }
        }
        PackingOutcome::Found
    }

    /// The search space is exhausted. This is a proof only if every propagation completed, which it does not when work
    /// runs out.
    fn refuted(&self) -> PackingOutcome {
        if self.work == 0 { PackingOutcome::GaveUp } else { PackingOutcome::Impossible }
    }

    /// Refutes the last decision. If its opposite is infeasible too, the stretch is infeasible, and the decision that
    /// separated the stretch is refuted next. Returns false if no decision is left, or no work.
    fn refute(&mut self, decisions: &mut Vec<Decision>) -> bool {
        while let Some(Decision { stretch, id, changes, waiting }) = decisions.pop() {
            if self.work == 0 {
                return false;
            }
            self.undo(changes);
            self.waiting.truncate(waiting);
            if self.forbid(id) && self.settle_all() {
                self.waiting.push(stretch);
                return true;
            }
            decisions.truncate(stretch.cut_by.map_or(0, |decision| decision + 1));
        }
        false
    }

    /// Queues the open blocks of these sections as stretches without common blocks. The shortest stretch is solved
    /// first.
    fn cut(&mut self, from: usize, to: usize, cut_by: Option<usize>) {
        let (known, mut start) = (self.waiting.len(), from);
        for s in from..to {
            if s + 1 == to || self.crossing[s] == 0 {
                if self.open[start..=s].iter().any(|open| *open > 0) {
                    self.waiting.push(Stretch { from: start, to: s + 1, cut_by });
                }
                start = s + 1;
            }
        }
        self.waiting[known..].sort_by_key(|stretch| std::cmp::Reverse(stretch.to - stretch.from));
    }

    /// A block such that no block with an overlapping lifetime can start below it.
    fn choose(&self, stretch: Stretch) -> usize {
        let slack = |s: usize| self.height - self.open[s] - self.sections[s].floor;
        let floor = |s: usize| self.sections[s].floor;
        let sections = (stretch.from..stretch.to).filter(|s| self.open[*s] > 0);
        let section = match self.focus {
            Focus::Lowest => sections.min_by_key(|s| floor(*s)),
            Focus::Tightest => sections.min_by_key(|s| (slack(*s), floor(*s))),
            Focus::Troubled => sections.min_by(|a, b| {
                let key = |s: usize, other: usize| u128::from(slack(s) + 1) * u128::from(self.trouble[other] + 1);
                key(*a, *b).cmp(&key(*b, *a)).then(floor(*a).cmp(&floor(*b)))
            }),
        };
        let mut section = section.expect("a stretch that waits has open blocks");
        loop {
            let id = self.sections[section].first as usize;
            let lifetime = self.pieces[id].start as usize..self.pieces[id].end as usize;
            let lowest = lifetime.min_by_key(|s| floor(*s)).expect("a block lives in a section");
            if floor(lowest) >= self.low[id] {
                return id;
            }
            section = lowest;
        }
    }

    /// Places a block at its resting offset and raises the overlapping blocks above it.
    fn put(&mut self, id: usize) {
        let Interval { start, end, size } = self.pieces[id];
        let top = self.rest[id] + size;
        self.placed[id / 64] |= 1 << (id % 64);
        self.changes.push(Change::Placed(id as u32));
        for s in start as usize..end as usize {
            self.open[s] -= size;
            self.crossing[s] -= u32::from(s + 1 < end as usize);
            self.unsettle(s);
            self.list_open(s);
            for at in 0..self.list.len() {
                let other = self.list[at] as usize;
                if self.rest[other] < top {
                    self.changes.push(Change::Rest(other as u32, self.rest[other]));
                    self.rest[other] = top;
                    self.raise(other, top);
                }
            }
        }
    }

    /// Forbids the resting offset for this block and for all blocks of equal lifetime and size. Returns false if one no
    /// longer fits.
    fn forbid(&mut self, id: usize) -> bool {
        let (Interval { start, end, size }, above) = (self.pieces[id], self.rest[id] + 1);
        self.list_open(start as usize);
        let alike = |piece: &Interval| piece.start == start && piece.end == end && piece.size == size;
        (0..self.list.len()).all(|at| {
            let other = self.list[at] as usize;
            !alike(&self.pieces[other]) || self.raise(other, above)
        })
    }

    /// Returns false if the block no longer fits.
    fn raise(&mut self, id: usize, low: u64) -> bool {
        if low > self.low[id] {
            self.changes.push(Change::Low(id as u32, self.low[id]));
            self.low[id] = low;
            self.lifted[id] = true;
            (self.pieces[id].start as usize..self.pieces[id].end as usize).for_each(|s| self.unsettle(s));
        }
        low.saturating_add(self.pieces[id].size) <= self.height
    }

    fn unsettle(&mut self, s: usize) {
        if !std::mem::replace(&mut self.is_unsettled[s], true) {
            self.unsettled.push_back(s as u32);
        }
    }

    /// Collects the open blocks of a section into the list.
    fn list_open(&mut self, s: usize) {
        self.list.clear();
        for (word, (members, placed)) in self.members[s].iter().zip(&self.placed).enumerate() {
            let mut left = members & !placed;
            while left != 0 {
                self.list.push(64 * word as u32 + left.trailing_zeros());
                left &= left - 1;
            }
        }
        self.work = self.work.saturating_sub(8 + self.list.len() as u64);
    }

    /// Propagates bounds to a fixed point. Returns false on a contradiction or when work runs out: bounds can raise
    /// each other by a few units at a time, so the fixed point alone may exceed the work limit.
    fn settle_all(&mut self) -> bool {
        let mut possible = true;
        while let Some(s) = self.unsettled.pop_front() {
            self.is_unsettled[s as usize] = false;
            possible &= self.work > 0;
            // After a contradiction, only drain the queue.
            if possible && !self.settle(s as usize) {
                self.trouble[s as usize] += 1;
                possible = false;
            }
        }
        possible
    }

    /// Propagates bounds from the open blocks of one section. Returns false on a contradiction.
    fn settle(&mut self, s: usize) -> bool {
        let before = self.sections[s];
        self.changes.push(Change::Section(s as u32, before));
        self.list_open(s);
        let mut section = EMPTY;
        self.list.iter().for_each(|id| section.add(*id, self.low[*id as usize], self.pieces[*id as usize].size));
        self.sections[s] = section;
        if self.list.is_empty() {
            return true;
        }
        if section.floor + self.open[s] > self.height || !self.fits_in_turn() {
            return false;
        }
        // Upper bound on the offset of the section's lowest block; above it, the others no longer fit.
        let highest = self.height - self.open[s];
        let only_first = section.next_floor > highest;
        for at in 0..self.list.len() {
            let id = self.list[at] as usize;
            let mut low = self.low[id];
            if only_first && id != section.first as usize {
                low = low.max(section.floor + self.pieces[section.first as usize].size);
            }
            if low > highest {
                low = low.max(section.top_without(id));
            }
            if low > self.rest[id] {
                let fit = self.rest[id] + self.pieces[id].size;
                let may_matter = self.lifted[id]
                    || low > self.low[id]
                    || before.top_without(id) <= low
                    || (before.floor_without(id) < fit && section.floor_without(id) >= fit);
                if may_matter {
                    match self.support(id, fit) {
                        Some(support) => low = low.max(support),
                        None => return false,
                    }
                }
            }
            if !self.raise(id, low) {
                return false;
            }
        }
        true
    }

    /// The lowest top that a block can rest on, if it does not rest on placed blocks. None if all overlapping blocks
    /// stay above its free gap: the block could then move down into the gap.
    fn support(&mut self, id: usize, fit: u64) -> Option<u64> {
        self.lifted[id] = false;
        let (mut support, mut under) = (u64::MAX, u64::MAX);
        let lifetime = self.pieces[id].start as usize..self.pieces[id].end as usize;
        self.work = self.work.saturating_sub(lifetime.len() as u64 / 8);
        for section in &self.sections[lifetime] {
            support = support.min(section.top_without(id));
            under = under.min(section.floor_without(id));
        }
        (under < fit).then_some(support)
    }

    /// Whether the listed blocks, stacked and none below its `low`, stay within the height.
    fn fits_in_turn(&mut self) -> bool {
        self.sorted.clear();
        self.sorted.extend(self.list.iter().map(|id| (self.low[*id as usize], self.pieces[*id as usize].size)));
        self.sorted.sort_unstable();
        let mut above = 0;
        self.sorted.iter().rev().all(|(low, size)| {
            above += size;
            low + above <= self.height
        })
    }

    fn undo(&mut self, changes: usize) {
        while self.changes.len() > changes {
            match self.changes.pop().expect("there are more than that") {
                Change::Low(id, low) => self.low[id as usize] = low,
                Change::Rest(id, rest) => self.rest[id as usize] = rest,
                Change::Section(s, section) => self.sections[s as usize] = section,
                Change::Placed(id) => {
                    let id = id as usize;
                    self.placed[id / 64] &= !(1 << (id % 64));
                    let Interval { start, end, size } = self.pieces[id];
                    for s in start as usize..end as usize {
                        self.open[s] += size;
                        self.crossing[s] += u32::from(s + 1 < end as usize);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two small blocks that may not rest at offset 0 can only rest on each other until they are above the large one.
    /// Their bounds raise each other by a few bytes at a time, over a height of terabytes.
    #[test]
    fn bounds_that_lift_each_other_for_ever_end_with_the_work() {
        let piece = |size| Interval { start: 0, end: 1, size };
        let part = Partition { ids: vec![0, 1, 2], pieces: vec![piece(1 << 40), piece(1), piece(2)], sections: 1, bound: (1 << 40) + 3 };
        let mut search = PackingSearch::new(&part, 1 << 42, vec![0, 1, 2], Focus::Lowest, vec![0]);
        search.work = 10_000;
        assert!(search.raise(1, 1) && search.raise(2, 1));
        assert!(!search.settle_all(), "not all conclusions were drawn");
        assert_eq!((search.work, search.refuted()), (0, PackingOutcome::GaveUp));
        assert!(search.unsettled.is_empty() && search.trouble == [0], "and nothing is held against the section");
    }

    #[test]
    fn little_work_never_gives_a_wrong_answer() {
        let piece = |start, end, size| Interval { start, end, size };
        let pieces = vec![piece(0, 2, 3), piece(1, 3, 4), piece(2, 4, 3), piece(3, 5, 5), piece(0, 1, 4), piece(4, 5, 2), piece(1, 5, 1)];
        let part = Partition { ids: (0..7).collect(), pieces, sections: 5, bound: 9 };
        for (height, truth) in [(8, PackingOutcome::Impossible), (12, PackingOutcome::Found)] {
            for work in 0..400 {
                let got = PackingSearch::new(&part, height, (0..7).collect(), Focus::Tightest, vec![0; 5]).run(work);
                assert!(got == truth || got == PackingOutcome::GaveUp, "{got:?} with {work} of work within {height}");
            }
            let got = PackingSearch::new(&part, height, (0..7).collect(), Focus::Tightest, vec![0; 5]).run(1_000_000);
            assert_eq!(got, truth);
        }
    }
}
