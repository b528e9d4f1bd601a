//! Pseudo-random choices from a seed, identical on every machine.

use crate::DType;
use crate::base::random::StepRandom;

/// A sequence of choices.
pub(super) struct Draw {
    random: StepRandom,
    stream: u32,
    next: u64,
    /// Element types of real operands and results.
    types: &'static [DType],
}

impl Draw {
    pub fn new(seed: u64, stream: u32, types: &'static [DType]) -> Draw {
        Draw { random: StepRandom { seed, step: 0, first_row: 0 }, stream, next: 0, types }
    }

    /// A random element type for a real operand or result.
    pub fn dtype(&mut self) -> DType {
        if let [only] = *self.types { only } else { self.pick(self.types) }
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        (f64::from(self.random.uniform(self.stream, self.next)) * n as f64) as usize
    }

    /// A number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Random extents with a few hundred elements at most, including odd ones.
    pub fn extents(&mut self, rank: usize) -> Vec<usize> {
        loop {
            let extents: Vec<usize> = (0..rank).map(|_| self.pick(&[1, 2, 3, 4, 5, 7, 8, 9])).collect();
            if extents.iter().product::<usize>() <= 120 {
                return extents;
            }
        }
    }

    /// A random permutation of the numbers below `n`.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}
