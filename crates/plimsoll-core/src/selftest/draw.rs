//! Choices drawn from a seed: the same on every machine.

use crate::DType;
use crate::base::random::StepRandom;

/// A sequence of choices.
pub(super) struct Draw {
    random: StepRandom,
    stream: u32,
    next: u64,
    /// What real operands and results are stored in.
    types: &'static [DType],
}

impl Draw {
    pub fn new(seed: u64, stream: u32, types: &'static [DType]) -> Draw {
        Draw { random: StepRandom { seed, step: 0, first_row: 0 }, stream, next: 0, types }
    }

    /// The type that a real operand or result is stored in.
    pub fn dtype(&mut self) -> DType {
        if let [only] = *self.types { only } else { self.pick(self.types) }
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        (f64::from(self.random.uniform(self.stream, self.next)) * n as f64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Extents of a few hundred elements at most, odd ones among them.
    pub fn extents(&mut self, rank: usize) -> Vec<usize> {
        loop {
            let extents: Vec<usize> = (0..rank).map(|_| self.pick(&[1, 2, 3, 4, 5, 7, 8, 9])).collect();
            if extents.iter().product::<usize>() <= 120 {
                return extents;
            }
        }
    }

    /// The numbers below `n` in some order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}
