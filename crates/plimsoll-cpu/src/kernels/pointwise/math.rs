//! Elementary functions in single precision, accurate to a few ulps over their whole range.
//!
//! Each is branch-free arithmetic with selects, so that loops over them vectorize. `FMA` is set if the surrounding
//! function is compiled with fused multiply-add: without it, `mul_add` would be a call. Comparisons are written so that
//! NaN propagates.
//!
//! The polynomials for the logarithm and the hyperbolic tangent are those of Cephes (Moshier), that of the error
//! function is Juffa's.

#[inline(always)]
fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn polynomial<const FMA: bool, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[0];
    let mut i = 1;
    while i < N {
        sum = fma::<FMA>(sum, x, coefficients[i]);
        i += 1;
    }
    sum
}

/// `2^n` for `n` from -126 to 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// The exponential.
#[inline(always)]
pub fn exp<const FMA: bool>(x: f32) -> f32 {
    // Adding and subtracting this number rounds to an integer, which is then also in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // Beyond these the result is 0 or infinite; in between the scale below is a product of two powers of two.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = fma::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let whole = shifted - ROUND;
    let rest = fma::<FMA>(whole, -0.693_359_4, x);
    let rest = fma::<FMA>(whole, 2.121_944_4e-4, rest);
    let series = [1.388_888_9e-3, 8.333_334e-3, 4.166_666_6e-2, 1.666_666_7e-1, 0.5];
    let sum = 1.0 + (rest + rest * rest * polynomial::<FMA, 5>(rest, series));
    // In two steps, so that subnormal results are rounded correctly.
    let half = n >> 1;
    sum * power_of_two(half) * power_of_two(n - half)
}

/// The natural logarithm.
#[inline(always)]
pub fn log<const FMA: bool>(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits() as i32;
    // The exponent for which the mantissa is between the square roots of 1/2 and 2.
    const HALF_ROOT: i32 = 0x3f35_04f3;
    let exponent = (bits.wrapping_sub(HALF_ROOT)) >> 23;
    let mantissa = f32::from_bits(bits.wrapping_sub(exponent << 23) as u32);
    let e = exponent as f32 - if tiny { 23.0 } else { 0.0 };
    let f = mantissa - 1.0;
    let square = f * f;
    let coefficients = [
        7.037_683_6e-2,
        -1.151_461e-1,
        1.167_699_84e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_4e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ];
    let y = polynomial::<FMA, 9>(f, coefficients) * f * square;
    let y = fma::<FMA>(e, -2.121_944_4e-4, y);
    let y = fma::<FMA>(-0.5, square, y);
    let result = fma::<FMA>(e, 0.693_359_4, f + y);
    let result = if x == f32::INFINITY { x } else { result };
    let result = if x == 0.0 { f32::NEG_INFINITY } else { result };
    if x >= 0.0 { result } else { f32::NAN }
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh<const FMA: bool>(x: f32) -> f32 {
    let magnitude = x.abs();
    let square = x * x;
    let coefficients = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];
    let near = fma::<FMA>(polynomial::<FMA, 5>(square, coefficients) * square, x, x);
    let far = 1.0 - 2.0 / (exp::<FMA>(magnitude + magnitude) + 1.0);
    if magnitude < 0.625 { near } else { far.copysign(x) }
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    let small = exp::<FMA>(-x.abs());
    let share = 1.0 / (1.0 + small);
    if x < 0.0 { small * share } else { share }
}

/// `log(1 + exp(x))`.
#[inline(always)]
pub fn softplus<const FMA: bool>(x: f32) -> f32 {
    let small = exp::<FMA>(-x.abs());
    let sum = 1.0 + small;
    // First-order correction of the rounding error of the sum.
    let rest = (small - (sum - 1.0)) / sum;
    let positive = if x > 0.0 { x } else { 0.0 };
    positive + (log::<FMA>(sum) + rest)
}

/// The error function.
#[inline(always)]
pub fn erf<const FMA: bool>(x: f32) -> f32 {
    let magnitude = x.abs();
    let square = x * x;
    let near =
        polynomial::<FMA, 6>(square, [-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1]);
    let near = fma::<FMA>(near, x, x);
    let upper = fma::<FMA>(-1.728_534_7e-5, magnitude, 3.831_971_3e-4);
    let lower = fma::<FMA>(-3.883_964_4e-3, magnitude, 2.425_462_2e-2);
    let far = fma::<FMA>(upper, square, lower);
    let far = polynomial::<FMA, 4>(magnitude, [far, -1.067_778_8e-1, -6.348_467e-1, -1.287_175_1e-1]);
    let far = fma::<FMA>(far, magnitude, -magnitude);
    let far = (1.0 - exp::<FMA>(far)).copysign(x);
    // Beyond 4 the value rounds to 1, and the polynomial would eventually combine infinities of both signs.
    let far = if magnitude > 4.0 { 1f32.copysign(x) } else { far };
    if magnitude <= 0.921_875 { near } else { far }
}

/// `a` to the power of `b`. The inner logarithm and exponential are in double precision: their error grows with the
/// result's exponent.
#[inline(always)]
pub fn pow<const FMA: bool>(a: f32, b: f32) -> f32 {
    let magnitude = a.abs();
    let logarithm = log_double(magnitude);
    let power = exp_double(f64::from(b) * logarithm) as f32;
    let is_whole = b.floor() == b;
    let half = b * 0.5;
    let is_odd = is_whole && half.floor() != half && b.abs() < f32::INFINITY;
    let negative = a.is_sign_negative();
    let power = if negative && is_odd { -power } else { power };
    let power = if a < 0.0 && magnitude < f32::INFINITY && !is_whole { f32::NAN } else { power };
    let one_anyway = b == 0.0 || a == 1.0 || (a == -1.0 && b.abs() == f32::INFINITY);
    if one_anyway { 1.0 } else { power }
}

/// The logarithm of a nonnegative number, to about twelve digits.
#[inline(always)]
fn log_double(x: f32) -> f64 {
    // Every single-precision number is normal in double precision.
    let wide = f64::from(x);
    const HALF_ROOT: i64 = 0x3fe6_a09e_667f_3bcd;
    let bits = wide.to_bits() as i64;
    let exponent = (bits - HALF_ROOT) >> 52;
    let mantissa = f64::from_bits((bits - (exponent << 52)) as u64);
    // Converts the exponent as in `exp`: not every instruction set has a vector conversion from 64-bit integers.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    let e = f64::from_bits((SHIFT.to_bits() as i64 + exponent) as u64) - SHIFT;
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let z = s * s;
    let mut sum = 1.0 / 15.0;
    let mut n = 13.0;
    while n >= 1.0 {
        sum = sum * z + 1.0 / n;
        n -= 2.0;
    }
    let result = 2.0 * s * sum + e * std::f64::consts::LN_2;
    let result = if x == f32::INFINITY { f64::INFINITY } else { result };
    let result = if x == 0.0 { f64::NEG_INFINITY } else { result };
    if x >= 0.0 { result } else { f64::NAN }
}

/// The exponential to about eleven digits, clamped where single precision is 0 or infinite.
#[inline(always)]
fn exp_double(x: f64) -> f64 {
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = if x < -200.0 { -200.0 } else { x };
    let x = if x > 200.0 { 200.0 } else { x };
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let rest = x - (shifted - ROUND) * std::f64::consts::LN_2;
    let mut sum = 1.0;
    let mut n_terms = 10.0;
    while n_terms >= 1.0 {
        sum = 1.0 + sum * rest * (1.0 / n_terms);
        n_terms -= 1.0;
    }
    sum * f64::from_bits(n.wrapping_add(1023) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::expr::{Binary, Unary};
    use proptest::prelude::*;

    /// Every function by name, with and without fused multiply-add, and its reference.
    type Function = fn(f32) -> f32;
    const FUNCTIONS: [(Unary, Function, Function); 6] = [
        (Unary::Exp, exp::<true>, exp::<false>),
        (Unary::Log, log::<true>, log::<false>),
        (Unary::Tanh, tanh::<true>, tanh::<false>),
        (Unary::Sigmoid, sigmoid::<true>, sigmoid::<false>),
        (Unary::Softplus, softplus::<true>, softplus::<false>),
        (Unary::Erf, erf::<true>, erf::<false>),
    ];

    /// Equal up to a relative 5e-7 (two to four ulps), or to the spacing of subnormal numbers.
    fn close(ours: f32, truth: f64) -> bool {
        if truth.is_nan() || ours.is_nan() {
            return truth.is_nan() && ours.is_nan();
        }
        let rounded = truth as f32;
        ours == rounded || (f64::from(ours) - truth).abs() <= 5e-7 * truth.abs() + 3e-45
    }

    fn check(x: f32) {
        for (name, fused, plain) in FUNCTIONS {
            let truth = name.evaluate(f64::from(x));
            for (how, ours) in [("fused", fused(x)), ("plain", plain(x))] {
                assert!(close(ours, truth), "{name:?}({x:e}) is {truth:e}, not {ours:e} ({how})");
            }
        }
    }

    #[test]
    fn the_edges_are_as_they_should_be() {
        let edges = [0.0, f32::MIN_POSITIVE, 1e-45, 1e-40, 0.625, 0.921_875, 1.0, 4.0, 17.3, 87.3, 88.72, 88.73, 89.0, 103.9, 104.1];
        let edges = edges.iter().chain(&[f32::MAX, f32::INFINITY, f32::NAN, 1e10]);
        edges.flat_map(|x| [*x, -*x]).for_each(check);
    }

    #[test]
    fn powers_at_the_edges_are_those_of_the_standard() {
        let edges = [0.0, 0.5, 1.0, 2.0, 3.0, 1e-40, 1e38, 16_777_215.0, 16_777_216.0, 1e9, f32::INFINITY, f32::NAN];
        let edges: Vec<f32> = edges.iter().flat_map(|x| [*x, -*x]).collect();
        for a in &edges {
            for b in &edges {
                let truth = a.powf(*b);
                let ours = pow::<true>(*a, *b);
                let same = close(ours, f64::from(truth)) && (ours.is_nan() || ours.is_sign_negative() == truth.is_sign_negative());
                assert!(same, "{a:e} to the power of {b:e} is {truth:e}, not {ours:e}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn functions_are_accurate_everywhere(bits: u32) {
            check(f32::from_bits(bits));
        }

        #[test]
        fn functions_are_accurate_where_they_bend(x in -110f32..110.0, small in -2f32..2.0) {
            check(x);
            check(small);
            check(1.0 + small * 1e-3);
        }

        #[test]
        fn powers_are_accurate(a in -20f32..20.0, bits: u32, b in -30f32..30.0, whole in -9i32..9) {
            for (a, b) in [(a, b), (a, whole as f32), (f32::from_bits(bits), b), (f32::from_bits(bits), b * 0.1)] {
                let truth = Binary::Pow.evaluate(f64::from(a), f64::from(b));
                for ours in [pow::<true>(a, b), pow::<false>(a, b)] {
                    prop_assert!(close(ours, truth), "{:e} to the power of {:e} is {:e}, not {:e}", a, b, truth, ours);
                }
            }
        }
    }
}
