//! Normally distributed random numbers, several at a time: Box–Muller over blocks of Philox.
//!
//! Logarithm and cosine are polynomials over lanes, so that compilers vectorize them. They use no fused multiplication,
//! so that numbers have the same bits with every instruction set and on every system.

#![allow(unsafe_code, reason = "calls code for instruction sets after asking the processor for them")]

use super::random::{PHILOX_KEYS, PHILOX_MULTIPLIERS};
use std::f64::consts::{LN_2, TAU};

/// Numbers that are computed at a time.
pub const LANES: usize = 8;

/// The numbers of draws `first … first + LANES − 1` of a stream. Each draw depends only on its number, the stream and
/// the seed.
///
/// ```
/// use plimsoll_core::normal::{LANES, normals};
/// let numbers = normals(0, 3, 7);
/// assert_eq!(numbers[1..], normals(1, 3, 7)[..LANES - 1]);
/// ```
pub fn normals(first: u64, stream: u32, seed: u64) -> [f64; LANES] {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the processor has these instructions.
            return unsafe { normals_avx512(first, stream, seed) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has these instructions.
            return unsafe { normals_avx2(first, stream, seed) };
        }
    }
    normals_of(first, stream, seed)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn normals_avx512(first: u64, stream: u32, seed: u64) -> [f64; LANES] {
    normals_of(first, stream, seed)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn normals_avx2(first: u64, stream: u32, seed: u64) -> [f64; LANES] {
    normals_of(first, stream, seed)
}

#[inline(always)]
fn normals_of(first: u64, stream: u32, seed: u64) -> [f64; LANES] {
    let (radii, turns) = words(first, stream, seed);
    let mut numbers = [0.0; LANES];
    for lane in 0..LANES {
        // In (0, 1], with 24 bits.
        let uniform = f64::from((1 << 24) - (radii[lane] >> 8) as i32) * (1.0 / 16_777_216.0);
        numbers[lane] = (-2.0 * ln(uniform)).sqrt() * cos_of_turn(turns[lane]);
    }
    numbers
}

/// The first two words of consecutive Philox blocks.
#[inline(always)]
fn words(first: u64, stream: u32, seed: u64) -> ([u32; LANES], [u32; LANES]) {
    let (mut a, mut b, mut c, mut d) = ([0u32; LANES], [0u32; LANES], [u32::MAX; LANES], [stream; LANES]);
    for lane in 0..LANES {
        let number = first.wrapping_add(lane as u64);
        (a[lane], b[lane]) = (number as u32, (number >> 32) as u32);
    }
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        for lane in 0..LANES {
            let x = u64::from(a[lane]) * u64::from(PHILOX_MULTIPLIERS[0]);
            let y = u64::from(c[lane]) * u64::from(PHILOX_MULTIPLIERS[1]);
            (a[lane], b[lane]) = ((y >> 32) as u32 ^ b[lane] ^ key[0], y as u32);
            (c[lane], d[lane]) = ((x >> 32) as u32 ^ d[lane] ^ key[1], x as u32);
        }
        key = [key[0].wrapping_add(PHILOX_KEYS[0]), key[1].wrapping_add(PHILOX_KEYS[1])];
    }
    (a, b)
}

/// The natural logarithm of a positive normal number, to about one unit in the last place of the larger summand.
#[inline(always)]
fn ln(x: f64) -> f64 {
    // The number is m · 2ᵉ with m between √½ and √2.
    let bits = x.to_bits();
    let above = bits.wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits());
    let exponent = (above as i64 >> 52) as i32;
    let m = f64::from_bits(bits.wrapping_sub((above >> 52) << 52));
    // ln m = 2 artanh s.
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut series = 1.0 / 21.0;
    for divisor in [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = series * z + 1.0 / divisor;
    }
    f64::from(exponent) * LN_2 + (2.0 * s + 2.0 * s * z * series)
}

/// The cosine of a random angle: the upper 24 bits of a word, as a fraction of a whole turn.
#[inline(always)]
fn cos_of_turn(word: u32) -> f64 {
    let turn = (word >> 8) as i32;
    let quarter = (turn + (1 << 21)) >> 22;
    let angle = f64::from(turn - (quarter << 22)) * (TAU / 16_777_216.0);
    let z = angle * angle;
    // Taylor series for angles up to π/4, by the quotients of successive coefficients.
    let (mut cosine, mut sine) = (1.0, 1.0);
    for i in [16.0, 14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0] {
        cosine = 1.0 - cosine * z * (1.0 / (i * (i - 1.0)));
        sine = 1.0 - sine * z * (1.0 / (i * (i + 1.0)));
    }
    // cos, −sin, −cos, sin.
    let magnitude = if quarter & 1 == 0 { cosine } else { sine * angle };
    f64::from_bits(magnitude.to_bits() ^ (((quarter + 1) as u64 & 2) << 62))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::{philox, uniform};

    /// The definition, with the functions of the system.
    fn plain(draw: u64, stream: u32, seed: u64) -> f64 {
        let words = philox([draw as u32, (draw >> 32) as u32, u32::MAX, stream], [seed as u32, (seed >> 32) as u32]);
        let radius = (-2.0 * (1.0 - f64::from(uniform(words[0]))).ln()).sqrt();
        radius * (TAU * f64::from(uniform(words[1]))).cos()
    }

    #[test]
    fn numbers_follow_the_definition() {
        for first in [0, 5, u64::from(u32::MAX) - 3, 1 << 40].into_iter().chain((0..40_000).step_by(LANES)) {
            for (lane, number) in normals(first, 0x8000_0003, 7).into_iter().enumerate() {
                let expected = plain(first + lane as u64, 0x8000_0003, 7);
                assert!((number - expected).abs() <= 4e-15, "{first} + {lane}: {number} instead of {expected}");
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for first in (0..4000).step_by(LANES) {
            let (fast, plain) = (normals(first, 9, 0xABCD_EF01_2345), normals_of(first, 9, 0xABCD_EF01_2345));
            assert_eq!(fast.map(f64::to_bits), plain.map(f64::to_bits));
        }
    }

    #[test]
    fn extremes_of_the_functions_are_exact() {
        assert_eq!((ln(1.0), ln(0.5), ln(2.0)), (0.0, -LN_2, LN_2));
        assert!((ln(1.0 / 16_777_216.0) + 24.0 * LN_2).abs() < 1e-14);
        let cosines = [0, 1 << 30, 2 << 30, 3 << 30].map(cos_of_turn);
        assert_eq!(cosines, [1.0, 0.0, -1.0, 0.0]);
        for word in (0..u32::MAX - 70_000).step_by(65_521) {
            let expected = (TAU * f64::from(uniform(word))).cos();
            assert!((cos_of_turn(word) - expected).abs() < 8e-16, "{word}");
        }
    }
}
