//! Real factors as integers: the fixed-point multiplication that int8 kernels end in.

/// A real factor as `mantissa · 2^(exponent - 31)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Multiplier {
    pub mantissa: i32,
    pub exponent: i32,
}

impl Multiplier {
    pub fn of(real: f64) -> Multiplier {
        if real == 0.0 || !real.is_finite() {
            return Multiplier { mantissa: 0, exponent: 0 };
        }
        let mut exponent = 0;
        let mut fraction = real;
        while fraction.abs() >= 1.0 {
            fraction /= 2.0;
            exponent += 1;
        }
        while fraction.abs() < 0.5 {
            fraction *= 2.0;
            exponent -= 1;
        }
        let mut mantissa = (fraction * f64::from(1_u32 << 31)).round() as i64;
        if mantissa == 1 << 31 {
            mantissa /= 2;
            exponent += 1;
        }
        if exponent < -31 {
            return Multiplier { mantissa: 0, exponent: 0 };
        }
        if exponent > 30 {
            return Multiplier { mantissa: i32::MAX, exponent: 30 };
        }
        Multiplier { mantissa: mantissa as i32, exponent }
    }

    /// The product, rounded to the nearest integer: behind the product halves are rounded up, behind the shift away
    /// from zero.
    pub fn times(self, x: i32) -> i32 {
        let shifted = x.wrapping_shl(self.exponent.max(0) as u32);
        shifted_right(high_product(shifted, self.mantissa), (-self.exponent).max(0) as u32)
    }

    /// The product, rounded once; halves are rounded up.
    pub fn times_once(self, x: i32) -> i32 {
        let shift = 31 - self.exponent;
        ((i64::from(x) * i64::from(self.mantissa) + (1 << (shift - 1))) >> shift).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
    }
}

/// The upper half of twice the product, rounded; halves are rounded up.
fn high_product(a: i32, b: i32) -> i32 {
    if a == i32::MIN && b == i32::MIN {
        return i32::MAX;
    }
    let product = i64::from(a) * i64::from(b);
    let nudge = if product >= 0 { 1 << 30 } else { 1 - (1 << 30) };
    ((product + nudge) / (1 << 31)) as i32
}

/// Division by a power of two, rounded; halves away from zero.
fn shifted_right(x: i32, by: u32) -> i32 {
    let mask = ((1_i64 << by) - 1) as i32;
    let threshold = (mask >> 1) + i32::from(x < 0);
    (x >> by.min(31)) + i32::from((x & mask) > threshold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_rounded_behind_the_product_and_behind_the_shift() {
        for (factor, x, wanted) in [(0.5, 3, 2), (0.5, -3, -1), (0.25, 5, 2), (0.25, 6, 2), (3.0, 7, 21), (1.0 / 3.0, 100, 34), (0.0, 5, 0)]
        {
            assert_eq!(Multiplier::of(factor).times(x), wanted, "{factor} · {x}");
        }
        for (factor, x, wanted) in
            [(0.5, 3, 2), (0.5, -3, -1), (0.25, 5, 1), (0.25, 6, 2), (0.25, -6, -1), (1.0 / 3.0, 100, 33), (3.0, 7, 21), (0.0, 5, 0)]
        {
            assert_eq!(Multiplier::of(factor).times_once(x), wanted, "{factor} · {x}");
        }
        let tiny = Multiplier::of(1e-12);
        assert_eq!((tiny.mantissa, tiny.times(i32::MAX)), (0, 0));
    }

    #[test]
    fn factors_near_a_power_of_two_keep_31_bits() {
        let one = Multiplier::of(1.0 - 1e-12);
        assert_eq!((one.mantissa, one.exponent), (1 << 30, 1));
        assert_eq!(one.times(12345), 12345);
    }
}
