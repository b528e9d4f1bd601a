//! Simulates the live bytes of a sequence at every step, with the same result as liveness analysis.
//!
//! A sequence may contain a node several times. A read resolves to the most recent definition, so the sequence alone
//! determines what is retained and what is recomputed: a definition is live until its last read before the next one.

use super::problem::Problem;

/// The cost of a sequence.
#[derive(Clone, Copy, Debug)]
pub(in crate::plan) struct SequenceCost {
    /// The largest sum of live bytes.
    pub peak: u64,
    /// The first step at which it occurs.
    pub at: u32,
    /// Bytes above the limit, summed over the steps.
    pub excess: f64,
    /// Predicted seconds of all steps.
    pub seconds: f64,
    /// Whether every read is valid: no value is read before it is defined or after it was overwritten.
    pub legal: bool,
}

/// Simulates sequences. It walks backwards: one pass yields both the live values and their last uses.
pub(in crate::plan) struct Simulation {
    /// Per value, whether a later step reads the current definition.
    used: Vec<bool>,
    /// Per value, the step (plus one) of the last death found.
    dies: Vec<u32>,
    /// Live bytes at each step of the last sequence.
    pub held: Vec<u64>,
    /// Whether each step of the last sequence has a live result.
    pub alive: Vec<bool>,
    /// Simulated steps so far: the unit of work.
    pub work: u64,
}

impl Simulation {
    pub fn new(problem: &Problem) -> Simulation {
        let values = problem.size.len();
        Simulation { used: vec![false; values], dies: vec![0; values], held: Vec::new(), alive: Vec::new(), work: 0 }
    }

    pub fn play(&mut self, problem: &Problem, sequence: &[u32], limit: u64) -> SequenceCost {
        self.play_within(problem, sequence, limit, f64::INFINITY).expect("no excess is infinite")
    }

    /// The same for a sequence that is of no use with more excess than `most`: none as soon as that is certain. The
    /// work counts as for a whole sequence, so that the result of a search does not depend on it.
    pub fn play_within(&mut self, problem: &Problem, sequence: &[u32], limit: u64, most: f64) -> Option<SequenceCost> {
        self.work += sequence.len() as u64;
        self.used.copy_from_slice(&problem.wanted);
        self.dies.fill(0);
        self.held.clear();
        self.held.resize(sequence.len(), 0);
        self.alive.clear();
        self.alive.resize(sequence.len(), true);
        let mut live: u64 = problem.wanted.iter().zip(&problem.size).filter(|(wanted, _)| **wanted).map(|(_, size)| *size).sum();
        let mut outcome = SequenceCost { peak: 0, at: 0, excess: 0.0, seconds: 0.0, legal: true };
        for (i, node) in sequence.iter().copied().enumerate().rev() {
            let (makes, reads) = (problem.makes.of(node), problem.reads.of(node));
            if !problem.changes[node as usize] && makes.iter().all(|value| !self.used[*value as usize]) {
                self.alive[i] = false;
                continue;
            }
            let mut now = live;
            for value in makes.iter().map(|value| *value as usize).filter(|value| !self.used[*value]) {
                now += problem.size[value];
            }
            for state in problem.spoils.of(node) {
                outcome.legal &= !self.used[*state as usize];
            }
            for value in reads.iter().map(|value| *value as usize).filter(|value| !self.used[*value]) {
                now += problem.size[value];
                self.dies[value] = i as u32 + 1;
            }
            let mut written = u32::MAX;
            for pair in problem.over.of(node).chunks_exact(2) {
                let (output, input) = (pair[0], pair[1] as usize);
                if output != written && self.dies[input] == i as u32 + 1 {
                    now -= problem.size[input];
                    self.dies[input] = 0;
                    written = output;
                }
            }
            now += problem.scratch[node as usize];
            for value in makes.iter().map(|value| *value as usize) {
                if std::mem::replace(&mut self.used[value], false) {
                    live -= problem.size[value];
                }
            }
            for value in reads.iter().map(|value| *value as usize) {
                if !std::mem::replace(&mut self.used[value], true) {
                    live += problem.size[value];
                }
            }
            self.held[i] = now;
            outcome.seconds += problem.seconds[node as usize];
            if now >= outcome.peak {
                (outcome.peak, outcome.at) = (now, i as u32);
            }
            if now > limit {
                outcome.excess += (now - limit) as f64;
                if outcome.excess > most {
                    return None;
                }
            }
        }
        // A value that is still live at the start was never defined, unless it is an input of the program.
        outcome.legal &= live == 0;
        Some(outcome)
    }
}
