//! Sums over the rows of an epoch.

use crate::error::Result;
use crate::ranks::Ranks;
use plimsoll_core::plan::NUMBERS;

/// Sums over rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub loss: f64,
    /// The divisor of the loss: rows, or labels that are not ignored.
    pub weight: f64,
    /// In the order of the counters.
    pub sums: [f64; NUMBERS],
    pub rows: u64,
}

impl Tally {
    pub(super) fn mean_loss(&self) -> f64 {
        self.loss / if self.weight > 0.0 { self.weight } else { 1.0 }
    }

    /// How many numbers it consists of.
    pub(super) const NUMBERS: usize = NUMBERS + 3;

    pub(super) fn to_numbers(self) -> [f64; Tally::NUMBERS] {
        let mut numbers = [0.0; Tally::NUMBERS];
        numbers[..3].copy_from_slice(&[self.loss, self.weight, self.rows as f64]);
        numbers[3..].copy_from_slice(&self.sums);
        numbers
    }

    pub(super) fn of_numbers(numbers: &[f64; Tally::NUMBERS]) -> Tally {
        let mut sums = [0.0; NUMBERS];
        sums.copy_from_slice(&numbers[3..]);
        Tally { loss: numbers[0], weight: numbers[1], sums, rows: numbers[2] as u64 }
    }

    /// The sums over the rows of all ranks.
    pub fn over(&self, ranks: &Ranks) -> Result<Tally> {
        let mut numbers = self.to_numbers();
        ranks.sum(&mut numbers)?;
        Ok(Tally::of_numbers(&numbers))
    }

    /// The sums over these rows and others.
    pub(super) fn plus(mut self, other: &Tally) -> Tally {
        self.loss += other.loss;
        self.weight += other.weight;
        self.sums.iter_mut().zip(other.sums).for_each(|(sum, other)| *sum += other);
        Tally { rows: self.rows + other.rows, ..self }
    }

    /// The sums by name, as the bits of their values.
    pub fn save(&self) -> Vec<(String, u64)> {
        let known = [("loss", self.loss.to_bits()), ("weight", self.weight.to_bits()), ("rows", self.rows)];
        let known = known.into_iter().map(|(name, bits)| (name.to_string(), bits));
        known.chain(self.sums.iter().enumerate().map(|(i, sum)| (format!("sum{i}"), sum.to_bits()))).collect()
    }

    /// Restores the result of [`Tally::save`].
    pub fn restore(&mut self, sums: &[(String, u64)]) {
        for (name, bits) in sums {
            match name.as_str() {
                "loss" => self.loss = f64::from_bits(*bits),
                "weight" => self.weight = f64::from_bits(*bits),
                "rows" => self.rows = *bits,
                name => {
                    let place = name.strip_prefix("sum").and_then(|i| i.parse::<usize>().ok()).filter(|i| *i < NUMBERS);
                    place.into_iter().for_each(|i| self.sums[i] = f64::from_bits(*bits));
                }
            }
        }
    }
}
