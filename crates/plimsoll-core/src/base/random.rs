//! Counter-based random numbers: Philox4x32-10. Identical on every device and without stored state.

/// The constants of a round: multipliers of the first and third word, and increments of the key.
pub(crate) const PHILOX_MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
pub(crate) const PHILOX_KEYS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// One block of four random words for a counter under a key (Salmon et al., "Parallel random numbers: as easy as 1, 2,
/// 3").
pub const fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut round = 0;
    while round < 10 {
        let a = counter[0] as u64 * PHILOX_MULTIPLIERS[0] as u64;
        let b = counter[2] as u64 * PHILOX_MULTIPLIERS[1] as u64;
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(PHILOX_KEYS[0]), key[1].wrapping_add(PHILOX_KEYS[1])];
        round += 1;
    }
    counter
}

/// The position of a step in the run's random sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepRandom {
    /// The run's seed.
    pub seed: u64,
    /// The optimizer step, so that every step has new random numbers.
    pub step: u32,
    /// The first row of this micro-batch within its batch, so that micro-batches use the same numbers as the whole
    /// batch.
    pub first_row: u64,
}

impl StepRandom {
    /// The four words for elements `4·block … 4·block + 3` of the tensor that uses `stream`.
    pub const fn words(&self, stream: u32, block: u64) -> [u32; 4] {
        philox([block as u32, (block >> 32) as u32, self.step, stream], [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// The uniform number in [0, 1) for element `index` of the tensor that uses `stream`.
    pub const fn uniform(&self, stream: u32, index: u64) -> f32 {
        uniform(self.words(stream, index / 4)[(index % 4) as usize])
    }
}

/// Converts a word to a number in [0, 1) with 24 bits: exact in single precision on every device.
pub const fn uniform(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with the Random123 library.
    #[test]
    fn philox_gives_its_published_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, answer) in cases {
            assert_eq!(philox(counter, key), answer);
        }
    }

    #[test]
    fn uniform_numbers_stay_below_one() {
        assert_eq!(uniform(0), 0.0);
        assert!(uniform(u32::MAX) < 1.0);
    }
}
