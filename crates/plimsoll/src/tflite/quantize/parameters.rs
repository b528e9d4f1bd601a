//! Scales and zero points: of weights from their largest numbers, of activations from the range that was observed.

use crate::tflite::interpreter::constant;
use plimsoll_formats::tflite::{Quantization, TfliteTensor};

/// The smallest and the largest number of a tensor over all rows so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Range {
    pub min: f32,
    pub max: f32,
    /// Whether a number was not finite.
    pub broken: bool,
}

impl Default for Range {
    fn default() -> Range {
        Range { min: f32::INFINITY, max: f32::NEG_INFINITY, broken: false }
    }
}

impl Range {
    /// Takes more numbers into account.
    pub fn observe(&mut self, numbers: &[f32]) {
        for number in numbers {
            self.broken |= !number.is_finite();
            self.min = self.min.min(*number);
            self.max = self.max.max(*number);
        }
    }

    pub fn union(self, other: Range) -> Range {
        Range { min: self.min.min(other.min), max: self.max.max(other.max), broken: self.broken || other.broken }
    }

    /// Whether there were no numbers.
    pub fn is_empty(&self) -> bool {
        self.min > self.max
    }

    /// Whether all numbers were the same zero: there is nothing to scale.
    pub fn is_zero(&self) -> bool {
        self.min == 0.0 && self.max == 0.0
    }

    /// Integers from -128 to 127 over the range, which is widened to include zero: zero must be an integer, for it
    /// pads.
    pub fn asymmetric(&self) -> Quantization {
        let (min, max) = (f64::from(self.min.min(0.0)), f64::from(self.max.max(0.0)));
        let scale = ((max - min) / 255.0).max(f64::from(f32::MIN_POSITIVE));
        let zero = (-128.0 - min / scale).round().clamp(-128.0, 127.0);
        Quantization::per_tensor(scale as f32, zero as i64)
    }
}

/// Integers from -127 to 127 with zero at zero, for a whole constant or along an axis.
pub(super) fn symmetric(tensor: &TfliteTensor, axis: Option<i32>) -> Result<Quantization, String> {
    let elements = constant(tensor)?;
    let channels = axis.map_or(1, |axis| elements.shape[axis as usize]);
    let inner: usize = axis.map_or(elements.numbers.len(), |axis| elements.shape[axis as usize + 1..].iter().product());
    let mut largest = vec![0.0_f32; channels];
    for (i, number) in elements.numbers.iter().enumerate() {
        if !number.is_finite() {
            return Err(format!("the weight `{}` has a number that is not finite", tensor.name));
        }
        let at = i / inner.max(1) % channels;
        largest[at] = largest[at].max(number.abs());
    }
    // A channel of zeros has any scale.
    let scales: Vec<f32> = largest.iter().map(|most| if *most > 0.0 { most / 127.0 } else { 1.0 }).collect();
    Ok(Quantization { zero_points: vec![0; scales.len()], scales, axis: axis.unwrap_or(0) })
}

/// The half-precision number nearest to a number, ties to even.
pub(super) fn half_bits(number: f32) -> u16 {
    let bits = number.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let size = bits & 0x7FFF_FFFF;
    if size > 0x7F80_0000 {
        return sign | 0x7E00;
    }
    // 65520 and above round to infinity; below 2⁻¹⁴, halves are multiples of 2⁻²⁴.
    if size >= 0x477F_F000 {
        return sign | 0x7C00;
    }
    if size < 0x3880_0000 {
        return sign | (f32::from_bits(size) * 16_777_216.0).round_ties_even() as u16;
    }
    let odd = size >> 13 & 1;
    sign | ((size + 0x0FFF + odd - (112 << 23)) >> 13) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_includes_zero_and_zero_is_an_integer() {
        let mut range = Range::default();
        range.observe(&[-1.0, 3.0]);
        let found = range.asymmetric();
        assert_eq!((found.scales[0], found.zero_points[0]), ((4.0_f64 / 255.0) as f32, -64));
        let positive = Range { min: 2.0, max: 5.1, broken: false }.asymmetric();
        assert_eq!((positive.scales[0], positive.zero_points[0]), ((5.1_f32 as f64 / 255.0) as f32, -128));
        let negative = Range { min: -5.1, max: -1.0, broken: false }.asymmetric();
        assert_eq!(negative.zero_points[0], 127);
    }

    #[test]
    fn halves_are_the_nearest() {
        let cases = [(1.0, 0x3C00), (-2.0, 0xC000), (65504.0, 0x7BFF), (65520.0, 0x7C00), (5.960_464_5e-8, 0x0001), (0.1, 0x2E66)];
        for (number, bits) in cases {
            assert_eq!(half_bits(number), bits, "{number}");
        }
        // Halfway between two: to the even one.
        assert_eq!((half_bits(2049.0), half_bits(2051.0), half_bits(6.1e-5)), (0x6800, 0x6802, 0x03FF));
        assert_eq!(half_bits(f32::NAN), 0x7E00);
    }

    #[test]
    fn numbers_that_are_not_finite_are_seen() {
        let mut range = Range::default();
        range.observe(&[0.0, f32::NAN]);
        assert!(range.broken);
    }
}
