//! Converts elements of any dtype to numbers.

use plimsoll_core::DType;

/// The elements of a column as f64: exact for every dtype, except for i64 beyond 2⁵³.
///
/// ```
/// use plimsoll_core::DType;
/// let halves = [0x3C00u16, 0xC000].map(u16::to_ne_bytes).concat();
/// assert_eq!(plimsoll_data::numbers(DType::F16, &halves).collect::<Vec<_>>(), [1.0, -2.0]);
/// ```
pub fn numbers(dtype: DType, bytes: &[u8]) -> impl Iterator<Item = f64> + '_ {
    bytes.chunks_exact(dtype.size()).map(move |element| number(dtype, element))
}

/// Whether every element satisfies a predicate. The dtype is matched once, not for each element.
pub(crate) fn all_numbers(dtype: DType, bytes: &[u8], holds: impl Fn(f64) -> bool) -> bool {
    match dtype {
        DType::U8 => all_of(DType::U8, bytes, holds),
        DType::Bool => all_of(DType::Bool, bytes, holds),
        DType::I32 => all_of(DType::I32, bytes, holds),
        DType::I64 => all_of(DType::I64, bytes, holds),
        DType::F16 => all_of(DType::F16, bytes, holds),
        DType::BF16 => all_of(DType::BF16, bytes, holds),
        DType::F32 => all_of(DType::F32, bytes, holds),
        DType::F64 => all_of(DType::F64, bytes, holds),
    }
}

/// Inlined with a constant dtype, so that the conversion of an element has no branch.
#[inline(always)]
fn all_of(dtype: DType, bytes: &[u8], holds: impl Fn(f64) -> bool) -> bool {
    bytes.chunks_exact(dtype.size()).all(|element| holds(number(dtype, element)))
}

#[inline(always)]
fn number(dtype: DType, element: &[u8]) -> f64 {
    match (dtype, element) {
        (DType::U8 | DType::Bool, &[byte]) => f64::from(byte),
        (DType::I32, &[a, b, c, d]) => f64::from(i32::from_ne_bytes([a, b, c, d])),
        (DType::F32, &[a, b, c, d]) => f64::from(f32::from_ne_bytes([a, b, c, d])),
        (DType::F16, &[a, b]) => f64::from(f16_to_f32(u16::from_ne_bytes([a, b]))),
        (DType::BF16, &[a, b]) => f64::from(f32::from_bits(u32::from(u16::from_ne_bytes([a, b])) << 16)),
        (DType::F64, &[a, b, c, d, e, f, g, h]) => f64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        (DType::I64, &[a, b, c, d, e, f, g, h]) => i64::from_ne_bytes([a, b, c, d, e, f, g, h]) as f64,
        _ => unreachable!("elements of {dtype} have {} bytes", dtype.size()),
    }
}

/// A number rounded to the nearest value of a float type; unchanged for integers.
pub(crate) fn round_to(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(value as f32),
        DType::F16 => round_to_half(value, 10, -14, 65504.0),
        DType::BF16 => round_to_half(value, 7, -126, 3.389_531_389_251_535_5e38),
        DType::F64 | DType::I32 | DType::I64 | DType::U8 | DType::Bool => value,
    }
}

/// Rounds to the nearest float with this many mantissa bits and this smallest exponent, ties to even.
fn round_to_half(value: f64, mantissa: i32, smallest: i32, largest: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent = ((value.to_bits() >> 52 & 0x7FF) as i32 - 1023).max(smallest);
    let quantum = f64::powi(2.0, exponent - mantissa);
    let rounded = (value / quantum).round_ties_even() * quantum;
    if rounded.abs() > largest { f64::INFINITY.copysign(value) } else { rounded }
}

/// Exact. The exponent is moved by a multiplication, which handles subnormals without a branch.
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7FFF) << 13;
    let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let unsigned = if magnitude >= 0x7C00 << 13 { magnitude | 0x7F80_0000 } else { finite };
    f32::from_bits(unsigned | (u32::from(half & 0x8000) << 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_rounds_to_itself_and_between_halves_to_the_nearer() {
        for bits in 0..=u16::MAX {
            for dtype in [DType::F16, DType::BF16] {
                let value = number(dtype, &bits.to_ne_bytes());
                let rounded = round_to(dtype, value);
                assert!(rounded == value || value.is_nan() && rounded.is_nan(), "{dtype} {bits:#06x}: {value} became {rounded}");
            }
        }
        assert_eq!(round_to(DType::F16, 0.1), 0.099_975_585_937_5);
        assert_eq!(round_to(DType::BF16, 0.1), 0.100_097_656_25);
        assert_eq!(round_to(DType::F16, 2049.0), 2048.0);
        assert_eq!(round_to(DType::F16, 2051.0), 2052.0);
        assert_eq!(round_to(DType::F16, -1e6), f64::NEG_INFINITY);
        assert_eq!(round_to(DType::F32, 0.1), f64::from(0.1f32));
        assert_eq!(round_to(DType::I64, 0.1), 0.1);
    }
}
