//! Initial sequences of the search: the given order, and checkpointed orders that retain only some forward values for
//! the backward pass.

use super::problem::{NOBODY, Problem};

/// Numbers of checkpointing segments to try.
const SEGMENTS: [usize; 9] = [1, 2, 3, 4, 6, 8, 12, 16, 32];

/// The given order; then orders with forward segments of equal bytes that retain only values crossing a segment
/// boundary; then orders that retain expensive values.
pub(super) fn starts(problem: &Problem) -> Vec<Vec<u32>> {
    let mut starts = vec![problem.order.clone()];
    let forward: Vec<u32> = problem.order.iter().copied().filter(|node| problem.forward[*node as usize]).collect();
    let made = |node: u32| problem.makes.of(node).iter().map(|value| problem.size[*value as usize]).sum::<u64>();
    let total: u64 = forward.iter().map(|node| made(*node)).sum();
    for segments in SEGMENTS {
        // The segment that defines each value, and whether a later segment reads it.
        let mut piece = vec![0usize; problem.size.len()];
        let mut keep = vec![false; problem.size.len()];
        let mut bytes = 0u64;
        for node in &forward {
            let now = (u128::from(bytes) * segments as u128 / u128::from(total.max(1))) as usize;
            problem.reads.of(*node).iter().filter(|read| piece[**read as usize] < now).for_each(|read| keep[*read as usize] = true);
            problem.makes.of(*node).iter().for_each(|value| piece[*value as usize] = now);
            bytes += made(*node);
        }
        starts.extend(keeping(problem, &keep));
    }
    let mut worth: Vec<f64> = forward.iter().map(|node| problem.seconds[*node as usize] / made(*node).max(1) as f64).collect();
    worth.sort_by(f64::total_cmp);
    for share in [2, 4] {
        let Some(bound) = worth.get(worth.len() * (share - 1) / share) else { continue };
        let mut keep = vec![false; problem.size.len()];
        for node in &forward {
            let expensive = problem.seconds[*node as usize] / made(*node).max(1) as f64 >= *bound;
            problem.makes.of(*node).iter().for_each(|value| keep[*value as usize] = expensive);
        }
        starts.extend(keeping(problem, &keep));
    }
    starts
}

/// The order in which forward values outside `keep` are recomputed when the backward pass first needs them. None if
/// that would read a state after its update.
fn keeping(problem: &Problem, keep: &[bool]) -> Option<Vec<u32>> {
    let begin = problem.order.iter().position(|node| !problem.forward[*node as usize])?;
    let (forward, backward) = problem.order.split_at(begin);
    let mut there = vec![true; problem.size.len()];
    for value in forward.iter().flat_map(|node| problem.makes.of(*node)) {
        there[*value as usize] = keep[*value as usize] || !problem.repeats[problem.maker[*value as usize] as usize];
    }
    let largest = problem.size.iter().copied().max().unwrap_or(0);
    for (value, there) in there.iter_mut().enumerate().filter(|(_, there)| !**there) {
        *there = problem.size[value] <= largest / 1024;
    }
    let mut changed = vec![false; problem.size.len()];
    let mut sequence = forward.to_vec();
    for node in backward {
        let mut open: Vec<(u32, usize)> = vec![(*node, 0)];
        while let Some((node, at)) = open.last_mut() {
            match problem.reads.of(*node).get(*at).copied() {
                Some(read) => {
                    *at += 1;
                    if changed[read as usize] {
                        return None;
                    }
                    if !there[read as usize] && problem.maker[read as usize] != NOBODY {
                        there[read as usize] = true;
                        open.push((problem.maker[read as usize], 0));
                    }
                }
                None => {
                    sequence.push(*node);
                    problem.makes.of(*node).iter().for_each(|value| there[*value as usize] = true);
                    open.pop();
                }
            }
        }
        problem.spoils.of(*node).iter().for_each(|state| changed[*state as usize] = true);
    }
    Some(sequence)
}
