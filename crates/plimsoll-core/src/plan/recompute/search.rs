//! Searches for the cheapest sequence that fits: evicts the values that save the most bytes per second of
//! recomputation, reverts unnecessary recomputation, then alternates removal and repair until the effort is spent.
//! Effort is counted in simulated steps, so the result is deterministic.

use super::moves::{Evict, Reach, Trace, earliest};
use super::problem::Problem;
use super::simulate::{SequenceCost, Simulation};
use super::starts;

/// A sequence and its simulated outcome.
#[derive(Clone)]
pub(super) struct Candidate {
    pub sequence: Vec<u32>,
    pub outcome: SequenceCost,
}

pub(super) struct RecomputeSearch<'a> {
    problem: &'a Problem,
    simulation: Simulation,
    limit: u64,
    /// Limit on simulated steps.
    effort: u64,
    trace: Trace,
    evict: Evict,
    random: SearchRng,
    scratch: Vec<u32>,
}

/// A move for a value that is live but idle at the peak.
#[derive(Clone, Copy)]
enum Move {
    /// Evict it and recompute it right before step `next`.
    Evict { value: u32, next: u32, reach: Reach },
    /// Hoist its next consumer.
    Hoist { from: u32, to: u32 },
}

/// Number of top-ranked moves that are simulated exactly before one is chosen.
const PLAYED: usize = 24;

/// Rounds of refinement without a faster sequence after which the search ends. In large graphs the effort is spent
/// before.
const MAX_STALE: u32 = 600;

/// Number of cheapest sequences to return.
const KEPT: usize = 6;

/// The cheapest sequences found whose peak is within the limit, cheapest first. `from` is an additional initial
/// sequence.
pub(super) fn search(problem: &Problem, limit: u64, effort: u64, from: Option<&[u32]>) -> Vec<Candidate> {
    if limit < problem.least() {
        return Vec::new();
    }
    let mut search = RecomputeSearch::new(problem, limit, effort);
    let mut best: Option<Candidate> = None;
    for (i, start) in from.map(<[u32]>::to_vec).into_iter().chain(starts::starts(problem)).enumerate() {
        // Every initial sequence is tried, but part of the effort is reserved for refinement.
        if i > 1 && search.simulation.work > effort / 2 && best.is_some() {
            break;
        }
        // A sequence without recomputation is optimal.
        if best.as_ref().is_some_and(|best| search.repetitions(&best.sequence).is_empty()) {
            break;
        }
        if let Some(found) = search.descend(start)
            && best.as_ref().is_none_or(|best| found.outcome.seconds < best.outcome.seconds)
        {
            best = Some(found);
        }
    }
    best.map(|best| search.refine(best)).unwrap_or_default()
}

/// Inserts a sequence if it is among the cheapest. Of sequences with equal cost, only the one with the smaller peak is
/// retained.
fn keep(pool: &mut Vec<Candidate>, found: &Candidate) {
    let same = |known: &Candidate| (known.outcome.seconds - found.outcome.seconds).abs() <= 1e-9 * known.outcome.seconds;
    if let Some(known) = pool.iter_mut().find(|known| same(known)) {
        if found.outcome.peak < known.outcome.peak {
            known.clone_from(found);
        }
        return;
    }
    let at = pool.partition_point(|known| known.outcome.seconds < found.outcome.seconds);
    if at < KEPT {
        pool.truncate(KEPT - 1);
        pool.insert(at, found.clone());
    }
}

/// The sequence with the smallest sum of its peak and `per_step` bytes for every step, or the first with a peak of at
/// most `enough`. It depends only on its arguments, so the minimum budget derived from it is reproducible.
pub(super) fn squeeze(problem: &Problem, enough: u64, per_step: u64, effort: u64) -> Candidate {
    let mut search = RecomputeSearch::new(problem, u64::MAX, effort);
    let mut smallest: Option<Candidate> = None;
    let floor = problem.least();
    for mut sequence in starts::starts(problem) {
        let mut outcome = search.play(&sequence);
        if !outcome.legal {
            continue;
        }
        loop {
            let size = |peak: u64, steps: usize| peak + per_step * steps as u64;
            let less = |best: &Candidate| size(outcome.peak, sequence.len()) < size(best.outcome.peak, best.sequence.len());
            if smallest.as_ref().is_none_or(less) {
                smallest = Some(Candidate { sequence: sequence.clone(), outcome });
            }
            if outcome.peak <= enough.max(floor) {
                break;
            }
            // Slightly below the current peak: only the peak steps exceed the limit, and no other step may.
            search.limit = outcome.peak - 1 - outcome.peak / 200;
            outcome = search.play(&sequence);
            if search.simulation.work > effort {
                break;
            }
            match search.give_up(&mut sequence, outcome, 0.0, f64::INFINITY) {
                Some(better) => outcome = better,
                None if search.limit == outcome.peak - 1 => break,
                None => {
                    search.limit = outcome.peak - 1;
                    search.play(&sequence);
                    let before = search.play(&sequence);
                    match search.give_up(&mut sequence, before, 0.0, f64::INFINITY) {
                        Some(better) => outcome = better,
                        None => break,
                    }
                }
            }
        }
    }
    smallest.expect("the order itself is legal")
}

impl<'a> RecomputeSearch<'a> {
    fn new(problem: &'a Problem, limit: u64, effort: u64) -> RecomputeSearch<'a> {
        RecomputeSearch {
            problem,
            simulation: Simulation::new(problem),
            limit,
            effort,
            trace: Trace::default(),
            evict: Evict::new(problem),
            random: SearchRng(0x9e37_79b9_7f4a_7c15),
            scratch: Vec::new(),
        }
    }
}

impl RecomputeSearch<'_> {
    fn play(&mut self, sequence: &[u32]) -> SequenceCost {
        self.simulation.play(self.problem, sequence, self.limit)
    }

    fn play_within(&mut self, sequence: &[u32], most_excess: f64) -> Option<SequenceCost> {
        self.simulation.play_within(self.problem, sequence, self.limit, most_excess)
    }

    /// Makes a sequence fit, then reverts unnecessary recomputation. None if it does not fit.
    fn descend(&mut self, mut sequence: Vec<u32>) -> Option<Candidate> {
        if !self.play(&sequence).legal {
            return None;
        }
        self.compact(&mut sequence);
        let mut outcome = self.play(&sequence);
        while outcome.excess > 0.0 {
            if self.simulation.work > 2 * self.effort {
                return None;
            }
            outcome = self.give_up(&mut sequence, outcome, 0.0, f64::INFINITY)?;
        }
        outcome = self.take_back(&mut sequence, outcome, 0.0);
        Some(Candidate { sequence, outcome })
    }

    /// Removes steps whose results are dead.
    fn compact(&mut self, sequence: &mut Vec<u32>) {
        let alive = &self.simulation.alive;
        let mut i = 0;
        sequence.retain(|_| {
            i += 1;
            alive[i - 1]
        });
    }

    /// Applies the move at the peak with the best ratio of removed excess to time. The sequence must have been
    /// simulated last.
    fn give_up(&mut self, sequence: &mut Vec<u32>, before: SequenceCost, noise: f64, max_seconds: f64) -> Option<SequenceCost> {
        self.trace.follow(self.problem, sequence);
        let mut over = Vec::with_capacity(sequence.len() + 1);
        over.push(0u32);
        for held in &self.simulation.held {
            over.push(over.last().copied().unwrap_or_default() + u32::from(*held > self.limit));
        }
        let peak = before.at;
        let tiny = before.seconds * 1e-9;
        let mut moves: Vec<(f64, Move)> = Vec::new();
        let mut hoisted = Vec::new();
        for value in 0..self.problem.size.len() as u32 {
            let size = self.problem.size[value as usize];
            if size == 0 {
                continue;
            }
            let Some((last, next)) = self.trace.gap(value, peak) else { continue };
            if !hoisted.contains(&next)
                && let Some(to) = earliest(self.problem, &self.trace, sequence, next, peak)
            {
                hoisted.push(next);
                moves.push((f64::INFINITY, Move::Hoist { from: next, to }));
            }
            if !self.problem.repeats[self.problem.maker[value as usize] as usize] {
                continue;
            }
            let steps = over[next as usize] - over[last as usize + 1];
            let mut block = Vec::new();
            for reach in [Reach::One, Reach::Peak, Reach::All] {
                if !self.evict.plan(self.problem, &self.trace, value, peak, next, reach) || self.evict.block == block {
                    continue;
                }
                block.clone_from(&self.evict.block);
                let seconds: f64 = block.iter().map(|node| self.problem.seconds[*node as usize]).sum();
                let luck = if noise > 0.0 { 1.0 + noise * self.random.unit() } else { 1.0 };
                let worth = luck * size as f64 * f64::from(steps) / (seconds + tiny);
                moves.push((worth, Move::Evict { value, next, reach }));
            }
        }
        moves.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut best: Option<(f64, Move)> = None;
        let mut changed = std::mem::take(&mut self.scratch);
        for (played, (_, candidate)) in moves.into_iter().enumerate() {
            if played >= PLAYED && best.is_some() {
                break;
            }
            self.apply(sequence, peak, candidate, &mut changed);
            let Some(after) = self.play_within(&changed, before.excess.next_down()) else { continue };
            if !after.legal || after.seconds > max_seconds {
                continue;
            }
            let luck = if noise > 0.0 { 1.0 + noise * self.random.unit() } else { 1.0 };
            let score = luck * (before.excess - after.excess) / ((after.seconds - before.seconds).max(0.0) + tiny);
            if best.is_none_or(|(known, _)| score > known) {
                best = Some((score, candidate));
            }
        }
        if let Some((_, chosen)) = best {
            self.apply(sequence, peak, chosen, &mut changed);
            std::mem::swap(sequence, &mut changed);
        }
        self.scratch = changed;
        best?;
        self.play(sequence);
        self.compact(sequence);
        Some(self.play(sequence))
    }

    fn apply(&mut self, sequence: &[u32], peak: u32, change: Move, into: &mut Vec<u32>) {
        match change {
            Move::Evict { value, next, reach } => {
                self.evict.plan(self.problem, &self.trace, value, peak, next, reach);
                self.evict.apply(sequence, next, into);
            }
            Move::Hoist { from, to } => {
                into.clear();
                into.extend_from_slice(sequence);
                into[to as usize..=from as usize].rotate_right(1);
            }
        }
    }

    /// Reverts recomputations, most expensive first, while the excess does not grow.
    fn take_back(&mut self, sequence: &mut Vec<u32>, mut outcome: SequenceCost, noise: f64) -> SequenceCost {
        // A recomputation that cannot be reverted now can rarely be reverted later, so each is tried once.
        let mut tried: Vec<(u32, u32)> = Vec::new();
        loop {
            let mut repeated: Vec<(f64, usize, (u32, u32))> = Vec::new();
            for (step, time) in self.repetitions(sequence) {
                let name = (sequence[step], time);
                if !tried.contains(&name) {
                    let luck = if noise > 0.0 { 1.0 + noise * self.random.unit() } else { 1.0 };
                    repeated.push((luck * self.seconds(sequence[step]), step, name));
                }
            }
            repeated.sort_by(|a, b| b.0.total_cmp(&a.0));
            let mut without = std::mem::take(&mut self.scratch);
            let mut found = false;
            for (_, step, name) in repeated {
                without.clear();
                without.extend_from_slice(&sequence[..step]);
                without.extend_from_slice(&sequence[step + 1..]);
                let after = self.play_within(&without, outcome.excess);
                if after.is_some_and(|after| after.legal && after.seconds < outcome.seconds) {
                    found = true;
                    break;
                }
                tried.push(name);
            }
            if found {
                std::mem::swap(sequence, &mut without);
                self.scratch = without;
                self.play(sequence);
                self.compact(sequence);
                outcome = self.play(sequence);
            } else {
                self.scratch = without;
                return self.play(sequence);
            }
        }
    }

    fn seconds(&self, node: u32) -> f64 {
        self.problem.seconds[node as usize]
    }

    /// The steps that recompute a node, with the occurrence index.
    fn repetitions(&self, sequence: &[u32]) -> Vec<(usize, u32)> {
        let mut ran = vec![0u32; self.problem.seconds.len()];
        let mut repeated = Vec::new();
        for (step, node) in sequence.iter().enumerate() {
            if ran[*node as usize] > 0 {
                repeated.push((step, ran[*node as usize]));
            }
            ran[*node as usize] += 1;
        }
        repeated
    }

    /// Large-neighborhood search: removes a few recomputations and repairs the sequence, until the effort is spent or
    /// nothing faster is found for a long time.
    fn refine(&mut self, mut best: Candidate) -> Vec<Candidate> {
        let mut current = best.clone();
        let mut pool = vec![best.clone()];
        let mut stale = 0;
        while self.simulation.work < self.effort && stale < MAX_STALE {
            let repeated = self.repetitions(&current.sequence);
            if repeated.is_empty() {
                return pool;
            }
            let mut sequence = current.sequence.clone();
            let most = if stale % 3 == 0 { 12 } else { 4 };
            let count = 1 + self.random.below(most.min(repeated.len()));
            let centre = self.random.below(repeated.len());
            let near = self.random.below(2) == 0;
            let mut torn: Vec<usize> = (0..count)
                .map(|i| if near { (centre + i) % repeated.len() } else { self.random.below(repeated.len()) })
                .map(|i| repeated[i].0)
                .collect();
            torn.sort_unstable();
            torn.dedup();
            for step in torn.into_iter().rev() {
                sequence.remove(step);
            }
            // The allowance is relative to the cost of recomputation, not of the whole step.
            let own = self.own_seconds(&current.sequence);
            let found = self.rebuild(sequence, current.outcome.seconds + 0.05 * (current.outcome.seconds - own));
            stale += 1;
            let Some(found) = found else { continue };
            keep(&mut pool, &found);
            if found.outcome.seconds < best.outcome.seconds * (1.0 - 1e-9) {
                best = found.clone();
                stale = 0;
            }
            // Occasionally accepts a slightly worse sequence to escape local minima.
            if found.outcome.seconds < current.outcome.seconds || self.random.below(10) == 0 {
                current = found;
            }
            if stale % 100 == 99 {
                current = best.clone();
            }
        }
        pool
    }

    /// Seconds of the sequence without recomputation.
    fn own_seconds(&self, sequence: &[u32]) -> f64 {
        let again: f64 = self.repetitions(sequence).iter().map(|(step, _)| self.seconds(sequence[*step])).sum();
        sequence.iter().map(|node| self.seconds(*node)).sum::<f64>() - again
    }

    /// Repairs a sequence after removals, within this time limit.
    fn rebuild(&mut self, mut sequence: Vec<u32>, max_seconds: f64) -> Option<Candidate> {
        if !self.play(&sequence).legal {
            return None;
        }
        self.compact(&mut sequence);
        let mut outcome = self.play(&sequence);
        while outcome.excess > 0.0 {
            if self.simulation.work >= self.effort {
                return None;
            }
            outcome = self.give_up(&mut sequence, outcome, 0.5, max_seconds)?;
        }
        outcome = self.take_back(&mut sequence, outcome, 0.5);
        Some(Candidate { sequence, outcome })
    }
}

/// A small pseudo-random generator; the search needs variety, not statistical quality.
struct SearchRng(u64);

impl SearchRng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
