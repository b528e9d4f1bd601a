//! The move of the recompute search: evict an idle value and recompute it right before its next use.

use super::problem::{NOBODY, Problem};

/// The definition and use steps of each value in a sequence.
#[derive(Default)]
pub(super) struct Trace {
    starts: Vec<u32>,
    /// Twice the step, plus one if the step defines the value; ascending per value.
    events: Vec<u32>,
    cursor: Vec<u32>,
    /// Last step of each node; valid only for nodes in the sequence.
    last: Vec<u32>,
}

impl Trace {
    pub fn follow(&mut self, problem: &Problem, sequence: &[u32]) {
        let values = problem.size.len();
        self.starts.clear();
        self.starts.resize(values + 1, 0);
        self.last.resize(problem.seconds.len(), 0);
        for node in sequence {
            for value in problem.reads.of(*node).iter().chain(problem.makes.of(*node)) {
                self.starts[*value as usize + 1] += 1;
            }
        }
        (0..values).for_each(|i| self.starts[i + 1] += self.starts[i]);
        self.cursor.clear();
        self.cursor.extend_from_slice(&self.starts[..values]);
        self.events.resize(self.starts[values] as usize, 0);
        for (step, node) in sequence.iter().enumerate() {
            self.last[*node as usize] = step as u32;
            let mut note = |value: u32, made: u32| {
                let place = &mut self.cursor[value as usize];
                self.events[*place as usize] = 2 * step as u32 + made;
                *place += 1;
            };
            problem.reads.of(*node).iter().for_each(|value| note(*value, 0));
            problem.makes.of(*node).iter().for_each(|value| note(*value, 1));
        }
    }

    fn of(&self, value: u32) -> &[u32] {
        &self.events[self.starts[value as usize] as usize..self.starts[value as usize + 1] as usize]
    }

    /// If the value is live but idle at this step: its previous and its next access.
    pub fn gap(&self, value: u32, step: u32) -> Option<(u32, u32)> {
        let events = self.of(value);
        let next = events.partition_point(|event| *event < 2 * step);
        let (before, after) = (*events.get(next.checked_sub(1)?)?, *events.get(next)?);
        (after / 2 > step && after % 2 == 0).then_some((before / 2, after / 2))
    }

    /// Whether the value is live right before a step.
    fn alive(&self, value: u32, step: u32) -> bool {
        let events = self.of(value);
        events.get(events.partition_point(|event| *event < 2 * step)).is_some_and(|event| event % 2 == 0)
    }

    /// The last step before this one that defines the value.
    fn made_before(&self, value: u32, step: u32) -> Option<u32> {
        let events = self.of(value);
        let before = &events[..events.partition_point(|event| *event < 2 * step)];
        before.iter().rev().find(|event| *event % 2 == 1).map(|event| event / 2)
    }

    /// The last step before this one that accesses the value.
    fn last_before(&self, value: u32, step: u32) -> Option<u32> {
        let events = self.of(value);
        Some(events[events.partition_point(|event| *event < 2 * step).checked_sub(1)?] / 2)
    }
}

/// The earliest step, before `peak`, to which the node at step `at` can be hoisted: right after all its inputs are
/// defined. Nodes that update states are not moved.
pub(super) fn earliest(problem: &Problem, trace: &Trace, sequence: &[u32], at: u32, peak: u32) -> Option<u32> {
    let node = sequence[at as usize];
    if problem.changes[node as usize] {
        return None;
    }
    let made = problem.reads.of(node).iter().map(|read| trace.made_before(*read, at).map_or(0, |step| step + 1)).max().unwrap_or(0);
    (made <= peak).then_some(made)
}

/// Treatment of evicted inputs of a recomputed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Their lifetimes are extended.
    One,
    /// Inputs that are dead by the peak are recomputed too; lifetimes of the others are extended.
    Peak,
    /// All of them are recomputed too.
    All,
}

/// Maximum number of nodes recomputed for one value.
const LONGEST: usize = 600;

/// An input smaller than the evicted value by this factor is retained instead of recomputed.
const SMALL: u64 = 64;

/// Plans the recomputation of a value: the nodes to run before step `next`, inputs first, and the updates to delay.
pub(super) struct Evict {
    pub block: Vec<u32>,
    pub delayed: Vec<u32>,
    seen: Vec<bool>,
}

impl Evict {
    pub fn new(problem: &Problem) -> Evict {
        Evict { block: Vec::new(), delayed: Vec::new(), seen: vec![false; problem.seconds.len()] }
    }

    /// Fills `block` and `delayed` for evicting `value` across `peak` and recomputing it right before `next`. Returns
    /// false if that is impossible.
    pub fn plan(&mut self, problem: &Problem, trace: &Trace, value: u32, peak: u32, next: u32, reach: Reach) -> bool {
        self.block.clear();
        self.delayed.clear();
        let limit = problem.size[value as usize] / SMALL;
        let found = self.need(problem, trace, problem.maker[value as usize], peak, next, reach, limit);
        for i in 0..self.block.len() {
            self.seen[self.block[i] as usize] = false;
        }
        found && self.delay(problem, trace, next)
    }

    /// Depth first with an explicit stack, because chains are as long as the network is deep.
    #[allow(clippy::too_many_arguments, reason = "one recursive rule, written as a loop")]
    fn need(&mut self, problem: &Problem, trace: &Trace, node: u32, peak: u32, next: u32, reach: Reach, small: u64) -> bool {
        let mut open = vec![(node, 0)];
        let mut entered = vec![node];
        self.seen[node as usize] = true;
        while let Some((node, at)) = open.last_mut() {
            let reads = problem.reads.of(*node);
            let Some(read) = reads.get(*at).copied() else {
                self.block.push(*node);
                open.pop();
                continue;
            };
            *at += 1;
            let maker = problem.maker[read as usize];
            if maker == NOBODY || problem.size[read as usize] <= small || !problem.repeats[maker as usize] || self.seen[maker as usize] {
                continue;
            }
            if reach == Reach::One || trace.alive(read, next) {
                continue;
            }
            if reach == Reach::Peak && trace.last_before(read, next).is_none_or(|last| last >= peak) {
                continue;
            }
            if entered.len() == LONGEST {
                entered.iter().for_each(|node| self.seen[*node as usize] = false);
                return false;
            }
            self.seen[maker as usize] = true;
            entered.push(maker);
            open.push((maker, 0));
        }
        true
    }

    /// Delays state updates past recomputed reads of the old state.
    fn delay(&mut self, problem: &Problem, trace: &Trace, next: u32) -> bool {
        for node in &self.block {
            for read in problem.reads.of(*node) {
                let writer = problem.writer[*read as usize];
                if writer == NOBODY || trace.last[writer as usize] >= next || self.delayed.contains(&writer) {
                    continue;
                }
                let after = trace.last[writer as usize];
                let needed = |value: &u32| trace.of(*value).iter().any(|event| event / 2 > after && event / 2 < next);
                if problem.makes.of(writer).iter().any(needed) {
                    return false;
                }
                self.delayed.push(writer);
            }
        }
        true
    }

    /// The sequence after the move.
    pub fn apply(&self, sequence: &[u32], next: u32, into: &mut Vec<u32>) {
        into.clear();
        let (before, after) = sequence.split_at(next as usize);
        if self.delayed.is_empty() {
            into.extend_from_slice(before);
        } else {
            into.extend(before.iter().filter(|node| !self.delayed.contains(node)));
        }
        into.extend_from_slice(&self.block);
        into.extend_from_slice(&self.delayed);
        into.extend_from_slice(after);
    }
}
