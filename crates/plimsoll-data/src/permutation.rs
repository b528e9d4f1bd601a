//! A random permutation of `0..n` that is computed, not stored.

use crate::rng::mix64;

/// A pseudo-random permutation of `0..n`, determined by a seed and an epoch. It needs constant memory and visits
/// every number exactly once.
///
/// A number is split into two digits in base ⌈√n⌉, which pass through a Feistel network; that is a bijection for any
/// round function. The few results at or above `n` are passed through again until one is below (cycle walking, still
/// a bijection). Since the base is minimal, that happens with probability of about `2/√n`.
///
/// ```
/// use plimsoll_data::Permutation;
/// let order = Permutation::new(10, 7, 0);
/// let mut seen: Vec<u64> = (0..10).map(|i| order.at(i)).collect();
/// assert_ne!(seen, (0..10).collect::<Vec<_>>());
/// seen.sort();
/// assert_eq!(seen, (0..10).collect::<Vec<_>>());
/// ```
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    base: u64,
    keys: [u64; ROUNDS],
}

/// Four rounds suffice for large domains; tiny ones need more for a uniform distribution of orders.
const ROUNDS: usize = 8;

impl Permutation {
    /// The order of `0..len` in epoch `epoch` under `seed`.
    pub fn new(len: u64, seed: u64, epoch: u64) -> Permutation {
        let mut base = len.isqrt();
        if base * base < len {
            base += 1;
        }
        let mut state = mix64(seed ^ mix64(epoch.wrapping_add(GOLDEN)));
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(GOLDEN);
            mix64(state)
        });
        Permutation { len, base, keys }
    }

    /// The number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number at position `index`.
    ///
    /// # Panics
    /// If `index` is not below [`len`](Self::len).
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.len, "place {index} of a permutation of {} numbers", self.len);
        let mut number = index;
        loop {
            number = self.pass(number);
            if number < self.len {
                return number;
            }
        }
    }

    fn pass(&self, number: u64) -> u64 {
        // 32-bit division is several times faster and serves every data set that exists today.
        let (mut high, mut low) = match (u32::try_from(number), u32::try_from(self.base)) {
            (Ok(number), Ok(base)) => ((number / base) as u64, (number % base) as u64),
            _ => (number / self.base, number % self.base),
        };
        for key in self.keys {
            // The top half of the product is uniform over 0..base without a division. `base` is at most 2³², so the
            // product of it and a 32-bit hash fits.
            let digit = ((mix64(low ^ key) >> 32) * self.base) >> 32;
            let sum = high + digit;
            (high, low) = (low, if sum >= self.base { sum - self.base } else { sum });
        }
        // The largest result, base² - 1, fits: base² is at most 2⁶⁴.
        high.wrapping_mul(self.base).wrapping_add(low)
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(len: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let permutation = Permutation::new(len, seed, epoch);
        (0..len).map(|place| permutation.at(place)).collect()
    }

    fn is_permutation(order: &[u64]) -> bool {
        let mut seen = vec![false; order.len()];
        order.iter().all(|&number| !std::mem::replace(&mut seen[number as usize], true))
    }

    #[test]
    fn every_small_length_is_a_bijection() {
        for len in 0..600 {
            assert!(is_permutation(&order(len, 7, len % 5)), "length {len}");
        }
    }

    proptest! {
        #[test]
        fn any_length_seed_and_epoch_is_a_bijection(len in 0u64..20_000, seed: u64, epoch: u64) {
            prop_assert!(is_permutation(&order(len, seed, epoch)));
        }

        #[test]
        fn huge_lengths_stay_inside_and_do_not_collide(len in (1u64 << 31)..u64::MAX, seed: u64, start: u64) {
            let permutation = Permutation::new(len, seed, 0);
            let mut seen: Vec<u64> = (0..100).map(|i| permutation.at((start.wrapping_add(i * 97)) % len)).collect();
            prop_assert!(seen.iter().all(|&number| number < len));
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), 100);
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let first = order(1000, 7, 0);
        for other in [order(1000, 7, 1), order(1000, 8, 0), (0..1000).collect()] {
            let same_place = first.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(same_place < 10, "two random orders of 1000 agree in about one place, these in {same_place}");
        }
    }

    /// Pearson's statistic of `counts` against a uniform expectation.
    fn chi_square(counts: &[u64]) -> f64 {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum()
    }

    #[test]
    fn every_number_is_equally_likely_at_every_place() {
        for len in [2u64, 3, 5, 10, 16, 33] {
            let mut counts = vec![0u64; (len * len) as usize];
            for epoch in 0..5_000 {
                for (place, number) in order(len, 42, epoch).into_iter().enumerate() {
                    counts[place * len as usize + number as usize] += 1;
                }
            }
            let freedom = ((len - 1) * (len - 1)) as f64;
            let limit = freedom + 4.0 * (2.0 * freedom).sqrt() + 8.0;
            let statistic = chi_square(&counts);
            assert!(statistic < limit, "length {len}: {statistic:.1} is above {limit:.1}");
        }
    }

    #[test]
    fn every_order_of_four_is_equally_likely() {
        let mut counts = vec![0u64; 256];
        for epoch in 0..24_000 {
            let code = order(4, 1, epoch).iter().fold(0, |code, number| code * 4 + number);
            counts[code as usize] += 1;
        }
        counts.retain(|&count| count > 0);
        assert_eq!(counts.len(), 24);
        let statistic = chi_square(&counts);
        assert!(statistic < 60.0, "{statistic:.1}");
    }

    #[test]
    fn neighbours_do_not_stay_neighbours() {
        let order = order(100_000, 3, 0);
        let close = order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) <= 10).count();
        assert!((10..40).contains(&close), "about 20 of 100,000 neighbours are within 10 by chance, not {close}");
    }
}
