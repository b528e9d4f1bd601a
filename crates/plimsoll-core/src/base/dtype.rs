//! Element types.

use serde::{Deserialize, Serialize};

/// The type of one element of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE single precision, the type of all arithmetic.
    #[default]
    F32,
    /// IEEE double precision; only in files, never inside a step.
    F64,
    /// IEEE half precision.
    F16,
    /// Upper half of a single-precision number.
    BF16,
    /// Signed 32-bit integer: labels, tokens, indices.
    I32,
    /// Signed 64-bit integer; only in files.
    I64,
    /// Unsigned byte: pixels, pooling positions, masks.
    U8,
    /// A byte that is zero or one: the result of a comparison in eager code.
    Bool,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether it is a real type, which can have a gradient.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// Whether it is a 16-bit real type, which activations may be stored in.
    pub const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// The distance from one to the next larger number, for real types; integers are exact.
    pub fn epsilon(self) -> f64 {
        match self {
            DType::F64 => f64::EPSILON,
            DType::F32 => f64::from(f32::EPSILON),
            DType::F16 => 1.0 / 1024.0,
            DType::BF16 => 1.0 / 128.0,
            DType::I32 | DType::I64 | DType::U8 | DType::Bool => 0.0,
        }
    }

    /// Rounds a number to the type: to nearest, ties to even. Integers truncate toward zero and saturate; anything but
    /// zero is true.
    ///
    /// ```
    /// use plimsoll_core::DType;
    /// assert_eq!(DType::BF16.stored(0.3), 0.30078125);
    /// assert_eq!(DType::F16.stored(1e6), f64::INFINITY);
    /// assert_eq!(DType::U8.stored(-1.5), 0.0);
    /// assert_eq!(DType::Bool.stored(-0.5), 1.0);
    /// ```
    pub fn stored(self, x: f64) -> f64 {
        match self {
            DType::F64 => x,
            DType::F32 => f64::from(x as f32),
            // Arithmetic is in single precision, so that value is rounded.
            DType::F16 => rounded(f64::from(x as f32), 11, -14, 65_504.0),
            DType::BF16 => rounded(f64::from(x as f32), 8, -126, f64::from(f32::from_bits(0x7f7f_0000))),
            DType::I32 => f64::from(x as i32),
            DType::I64 => x as i64 as f64,
            DType::U8 => f64::from(x as u8),
            DType::Bool => f64::from(x != 0.0),
        }
    }

    /// The name used in print-outs and files.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }
}

/// Rounds to `digits` binary digits, fewer below 2^`least`, and to infinity above `largest`.
fn rounded(x: f64, digits: i32, least: i32, largest: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    let unit = 2f64.powi(exponent.max(least) + 1 - digits);
    let nearest = (x / unit).round_ties_even() * unit;
    if nearest.abs() > largest { f64::INFINITY.copysign(x) } else { nearest }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn halves_round_to_nearest_even() {
        let step = 1.0 / 1024.0;
        for (x, y) in [
            (1.0 + step / 2.0, 1.0),
            (1.0 + 1.5 * step, 1.0 + 2.0 * step),
            (65_519.9, 65_504.0),
            (65_520.0, f64::INFINITY),
            (2f64.powi(-24), 2f64.powi(-24)),
            (2f64.powi(-25), 0.0),
            (-2f64.powi(-25) * 1.001, -2f64.powi(-24)),
        ] {
            assert_eq!(DType::F16.stored(x), y, "{x}");
        }
        let step = 1.0 / 128.0;
        assert_eq!((DType::BF16.stored(1.0 + step / 2.0), DType::BF16.stored(1.0 + 1.5 * step)), (1.0, 1.0 + 2.0 * step));
        assert_eq!(DType::BF16.stored(-f64::from(f32::MAX)), f64::NEG_INFINITY);
        assert!(DType::BF16.stored(f64::NAN).is_nan());
    }
}
