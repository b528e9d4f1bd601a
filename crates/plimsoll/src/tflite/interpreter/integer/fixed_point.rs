//! Sigmoid and tanh of 16-bit fixed point numbers, as gemmlowp computes them: an exponential from a polynomial and a
//! product per bit, and a quotient by three steps of Newton's method.
//!
//! A number with `n` integer bits is `raw / 2^(15 - n)`; results have none, so that 1 is the largest number below it.

const ONE: i16 = i16::MAX;

/// One with two integer bits.
const ONE_OF_TWO_BITS: i16 = 1 << 13;

/// `1 / (1 + e⁻ˣ)` of a number with three integer bits.
pub(super) fn sigmoid(x: i16) -> i16 {
    let size = if x > 0 { x } else { x.wrapping_neg() };
    let positive = rescaled(inverse(half_sum(exponential(size.wrapping_neg(), 3), ONE)), 1);
    match x {
        0 => 1 << 14,
        1.. => positive,
        _ => ONE - positive,
    }
}

/// The hyperbolic tangent of a number with up to four integer bits.
pub(super) fn tanh(x: i16, integer_bits: i32) -> i16 {
    let negative = if x < 0 { x } else { x.wrapping_neg() };
    // (1 - e²ˣ) / (1 + e²ˣ): twice the number is the number with one more integer bit.
    let quotient = inverse(half_sum(exponential(negative, integer_bits + 1), ONE));
    let size = rescaled(quotient.wrapping_sub(ONE_OF_TWO_BITS), 2);
    match x {
        0 => 0,
        1.. => size,
        _ => size.wrapping_neg(),
    }
}

/// The product of two numbers; their integer bits add up.
fn product(a: i16, b: i16) -> i16 {
    if a == i16::MIN && b == i16::MIN {
        return i16::MAX;
    }
    let product = i32::from(a) * i32::from(b);
    let nudge = if product >= 0 { 1 << 14 } else { 1 - (1 << 14) };
    ((product + nudge) / (1 << 15)) as i16
}

/// Division by a power of two, halves away from zero.
pub(super) fn divided(x: i32, by: u32) -> i32 {
    let mask = (1_i32 << by) - 1;
    (x >> by) + i32::from((x & mask) > (mask >> 1) + i32::from(x < 0))
}

/// A number with that many integer bits less: limited to the largest and the smallest.
fn rescaled(x: i16, bits: u32) -> i16 {
    (i32::from(x) << bits).clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
}

fn half_sum(a: i16, b: i16) -> i16 {
    let sum = i32::from(a) + i32::from(b);
    ((sum + if sum >= 0 { 1 } else { -1 }) / 2) as i16
}

/// A constant of 31 fractional bits in 15.
fn constant(raw: i32) -> i16 {
    divided(raw, 16) as i16
}

/// The inverse of a number from a half to one, with two integer bits.
fn inverse(half: i16) -> i16 {
    // 48/17 - 32/17 x, the best line to start from.
    let mut x = constant(1_515_870_810).wrapping_add(product(half, constant(-1_010_580_540)));
    for _ in 0..3 {
        let rest = ONE_OF_TWO_BITS.wrapping_sub(product(half, x));
        x = x.wrapping_add(rescaled(product(x, rest), 2));
    }
    x
}

/// `eˣ` of a number from -1/4 to 0 without integer bits: a polynomial around -1/8.
fn exponential_near_zero(x: i16) -> i16 {
    let at = constant(1_895_147_668);
    let x = x.wrapping_add(1 << 12);
    let x2 = product(x, x);
    let (x3, x4) = (product(x2, x), product(x2, x2));
    let quarter = divided(i32::from(x4), 2) as i16;
    let higher = divided(i32::from(product(quarter.wrapping_add(x3), constant(715_827_883)).wrapping_add(x2)), 1) as i16;
    at.saturating_add(product(at, x.wrapping_add(higher)))
}

/// `eˣ` of a number that is not positive.
fn exponential(x: i16, integer_bits: i32) -> i16 {
    // e^-2ⁿ for the bits from a quarter on.
    const POWERS: [i32; 7] = [1_672_461_947, 1_302_514_674, 790_015_084, 290_630_308, 39_332_535, 720_401, 242];
    if x == 0 {
        return ONE;
    }
    let fraction = 15 - integer_bits;
    let quarter = 1_i16 << (fraction - 2);
    let near = (x & (quarter - 1)) - quarter;
    let mut result = exponential_near_zero(rescaled(near, integer_bits as u32));
    let rest = near.wrapping_sub(x);
    for (bit, power) in (-2..integer_bits).zip(POWERS) {
        if rest & (1 << (fraction + bit)) != 0 {
            result = product(result, constant(power));
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number, against real numbers: the error is that of a few of the last bits.
    #[test]
    fn sigmoid_and_tanh_are_close_to_those_of_real_numbers() {
        for x in i16::MIN..=i16::MAX {
            let real = f64::from(x) / 4096.0;
            let error = f64::from(sigmoid(x)) / 32768.0 - 1.0 / (1.0 + (-real).exp());
            assert!(error.abs() < 3e-4, "sigmoid({real}) is wrong by {error}");
            for bits in 0..=4 {
                let real = f64::from(x) / f64::from(1 << (15 - bits));
                let error = f64::from(tanh(x, bits)) / 32768.0 - real.tanh();
                assert!(error.abs() < 6e-4, "tanh({real}) is wrong by {error} with {bits} integer bits");
            }
        }
    }

    #[test]
    fn zero_and_the_ends_are_exact() {
        assert_eq!((sigmoid(0), tanh(0, 3), tanh(0, 0)), (1 << 14, 0, 0));
        assert_eq!((tanh(i16::MAX, 4), tanh(i16::MIN, 4)), (i16::MAX, -i16::MAX));
        assert_eq!((divided(3, 1), divided(-3, 1), divided(5, 2), divided(-5, 2)), (2, -2, 1, -1));
    }
}
