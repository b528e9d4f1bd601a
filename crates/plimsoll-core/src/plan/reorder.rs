//! Local improvement of an order: reorders the steps around the peak optimally until the peak no longer falls.
//!
//! The live bytes at a step depend on the set of earlier steps, not on their order. Dynamic programming over sets of
//! steps therefore finds the best order of a window.

use super::recompute::problem::{NOBODY, Problem};
use super::recompute::simulate::Simulation;
use crate::ir::graph::NodeId;
use std::collections::HashMap;

/// Window size in steps.
const STEPS: usize = 16;

/// Limit on visited sets per window.
const SETS: usize = 4_000;

/// Limit on improved windows.
const ROUNDS: usize = 64;

/// Lowers the peak of an order. Dependencies are preserved.
pub(super) fn improve(problem: &Problem, successors: &[Vec<NodeId>], order: &mut [u32]) {
    let mut simulation = Simulation::new(problem);
    for _ in 0..ROUNDS {
        let now = simulation.play(problem, order, u64::MAX);
        let at = now.at as usize;
        let lower = (at.saturating_sub(STEPS - 1)..=at).find_map(|start| {
            let end = order.len().min(start + STEPS);
            StepWindow::of(problem, successors, order, start, end).below(now.peak).map(|window| (start, window))
        });
        let Some((start, window)) = lower else { break };
        order[start..start + window.len()].copy_from_slice(&window);
    }
}

/// A value that a step of the window defines or reads.
struct NodeAccess {
    size: u64,
    /// Live at the start of the window.
    before: bool,
    /// Live at the end of the window.
    after: bool,
    /// The steps that define and read it, as bit sets.
    made: u32,
    read: u32,
}

struct StepWindow<'a> {
    problem: &'a Problem,
    nodes: Vec<u32>,
    /// For each step, its predecessors.
    waits: Vec<u32>,
    touched: Vec<NodeAccess>,
    index: HashMap<u32, usize>,
    /// Live bytes of values that the window does not access.
    held: u64,
}

impl<'a> StepWindow<'a> {
    fn of(problem: &'a Problem, successors: &[Vec<NodeId>], order: &[u32], start: usize, end: usize) -> StepWindow<'a> {
        let nodes = order[start..end].to_vec();
        let place: HashMap<u32, usize> = nodes.iter().enumerate().map(|(i, node)| (*node, i)).collect();
        let mut waits = vec![0u32; nodes.len()];
        for (i, node) in nodes.iter().enumerate() {
            let later = successors[*node as usize].iter().filter_map(|later| place.get(&later.0));
            later.for_each(|later| waits[*later] |= 1 << i);
        }
        let mut after = problem.wanted.clone();
        order[end..].iter().flat_map(|node| problem.reads.of(*node)).for_each(|read| after[*read as usize] = true);
        let (mut touched, mut index): (Vec<NodeAccess>, HashMap<u32, usize>) = (Vec::new(), HashMap::new());
        for (i, node) in nodes.iter().enumerate() {
            let made = problem.makes.of(*node).iter().map(|value| (*value, true));
            let read = problem.reads.of(*node).iter().map(|value| (*value, false));
            for (value, makes) in made.chain(read).filter(|(value, _)| problem.size[*value as usize] > 0) {
                let known = *index.entry(value).or_insert_with(|| {
                    let maker = problem.maker[value as usize];
                    let before = maker != NOBODY && !place.contains_key(&maker);
                    touched.push(NodeAccess { size: problem.size[value as usize], before, after: after[value as usize], made: 0, read: 0 });
                    touched.len() - 1
                });
                if makes {
                    touched[known].made |= 1 << i;
                } else {
                    touched[known].read |= 1 << i;
                }
            }
        }
        let earlier = order[..start].iter().flat_map(|node| problem.makes.of(*node));
        let kept = earlier.filter(|value| after[**value as usize] && !index.contains_key(value));
        let held = kept.map(|value| problem.size[*value as usize]).sum();
        StepWindow { problem, nodes, waits, touched, index, held }
    }

    /// Live bytes between steps after this set has run.
    fn held_after(&self, done: u32) -> u64 {
        let there = |value: &&NodeAccess| (value.before || value.made & done != 0) && (value.after || value.read & !done != 0);
        self.held + self.touched.iter().filter(there).map(|value| value.size).sum::<u64>()
    }

    /// Live bytes during a step that runs after this set.
    fn held_during(&self, step: usize, done: u32) -> u64 {
        let node = self.nodes[step];
        let made: u64 = self.problem.makes.of(node).iter().map(|value| self.problem.size[*value as usize]).sum();
        let mut now = self.held_after(done) + made + self.problem.scratch[node as usize];
        let (mut written, mut taken) = (NOBODY, 0u64);
        for pair in self.problem.over.of(node).chunks_exact(2) {
            let Some(input) = self.index.get(&pair[1]).copied() else { continue };
            let value = &self.touched[input];
            let dies = !value.after && value.read & !done & !(1 << step) == 0;
            if pair[0] != written && dies && taken & (1 << input) == 0 {
                now -= value.size;
                taken |= 1 << input;
                written = pair[0];
            }
        }
        now
    }

    /// The best order of the window, if its peak is below `peak`.
    fn below(&self, peak: u64) -> Option<Vec<u32>> {
        if self.nodes.len() < 2 || self.touched.len() > 64 {
            return None;
        }
        // For each set of steps, the lowest peak with which it is reachable, and its last step.
        let mut known: Vec<HashMap<u32, (u64, usize)>> = vec![HashMap::from([(0, (0, 0))])];
        let mut sets = 0;
        for _ in 0..self.nodes.len() {
            let mut next: HashMap<u32, (u64, usize)> = HashMap::new();
            for (done, (reached, _)) in known.last().into_iter().flatten() {
                for step in (0..self.nodes.len()).filter(|step| done & (1 << step) == 0 && self.waits[*step] & !done == 0) {
                    let highest = self.held_during(step, *done).max(*reached);
                    if highest >= peak {
                        continue;
                    }
                    let entry = next.entry(done | 1 << step).or_insert((highest, step));
                    *entry = (*entry).min((highest, step));
                }
            }
            sets += next.len();
            if next.is_empty() || sets > SETS {
                return None;
            }
            known.push(next);
        }
        let mut done = ((1u64 << self.nodes.len()) - 1) as u32;
        let mut order = Vec::with_capacity(self.nodes.len());
        for reached in known.iter().skip(1).rev() {
            let (_, step) = reached[&done];
            order.push(self.nodes[step]);
            done &= !(1 << step);
        }
        order.reverse();
        Some(order)
    }
}
