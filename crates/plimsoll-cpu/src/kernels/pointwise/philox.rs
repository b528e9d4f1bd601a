//! The step's random numbers, sixteen Philox blocks at a time. Bit-identical to `plimsoll_core::random`.

use plimsoll_core::random::{StepRandom, uniform};

/// Blocks generated at once: one vector register per word.
const BLOCKS: usize = 16;
/// Numbers generated at once.
const GROUP: usize = 4 * BLOCKS;

/// Writes the random numbers of elements `first … first + count` of the tensor that uses `stream`.
///
/// # Safety
/// `to` is writable for `count` floats.
#[inline(always)]
pub(crate) unsafe fn fill(to: *mut f32, count: usize, random: &StepRandom, stream: u32, first: u64) {
    let mut done = 0;
    while done < count {
        let element = first + done as u64;
        let skip = (element % 4) as usize;
        let numbers = group(random, stream, element / 4);
        let length = (GROUP - skip).min(count - done);
        // SAFETY: `skip + length` is at most `GROUP`, and `done + length` at most `count`.
        unsafe { std::ptr::copy_nonoverlapping(numbers.as_ptr().add(skip), to.add(done), length) };
        done += length;
    }
}

#[inline(always)]
fn group(random: &StepRandom, stream: u32, block: u64) -> [f32; GROUP] {
    let (mut a, mut b, mut c, mut d) = ([0u32; BLOCKS], [0u32; BLOCKS], [random.step; BLOCKS], [stream; BLOCKS]);
    for i in 0..BLOCKS {
        a[i] = (block + i as u64) as u32;
        b[i] = ((block + i as u64) >> 32) as u32;
    }
    let mut key = [random.seed as u32, (random.seed >> 32) as u32];
    for _ in 0..10 {
        for i in 0..BLOCKS {
            let x = u64::from(a[i]) * 0xD251_1F53;
            let y = u64::from(c[i]) * 0xCD9E_8D57;
            a[i] = (y >> 32) as u32 ^ b[i] ^ key[0];
            b[i] = y as u32;
            c[i] = (x >> 32) as u32 ^ d[i] ^ key[1];
            d[i] = x as u32;
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    let mut numbers = [0.0; GROUP];
    for i in 0..BLOCKS {
        numbers[4 * i] = uniform(a[i]);
        numbers[4 * i + 1] = uniform(b[i]);
        numbers[4 * i + 2] = uniform(c[i]);
        numbers[4 * i + 3] = uniform(d[i]);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_those_of_the_core_wherever_one_starts() {
        let random = StepRandom { seed: 0x1234_5678_9abc_def0, step: 77, first_row: 0 };
        for first in [0, 1, 2, 3, 61, 64, (1 << 34) - 5] {
            for count in [0, 1, 3, 4, 63, 64, 65, 200] {
                let mut numbers = vec![0.0; count];
                // SAFETY: the vector has `count` floats.
                unsafe { fill(numbers.as_mut_ptr(), count, &random, 9, first) };
                for (i, number) in numbers.iter().enumerate() {
                    assert_eq!(*number, random.uniform(9, first + i as u64), "element {}", first + i as u64);
                }
            }
        }
    }
}
