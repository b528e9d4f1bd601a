//! Converts elements from the file's dtype to the schema's while writing them to their destination.
//!
//! The loops convert byte arrays to byte arrays, so they need no alignment and vectorize.

use super::header::NpyType;
use crate::number::f16_to_f32;

/// An integer that does not fit in an i32.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DoesNotFit {
    pub index: usize,
    pub value: i64,
}

/// Converts big-endian elements of `raw`, which becomes little endian, or little-endian ones, to `out`.
pub(super) fn convert_from(element: NpyType, swapped: bool, raw: &mut [u8], out: &mut [u8]) -> Result<(), DoesNotFit> {
    if swapped {
        swap(element.size(), raw);
    }
    convert(element, raw, out)
}

/// Reverses the bytes of every element.
pub(super) fn swap(size: usize, raw: &mut [u8]) {
    match size {
        2 => raw.as_chunks_mut::<2>().0.iter_mut().for_each(|bytes| bytes.reverse()),
        4 => raw.as_chunks_mut::<4>().0.iter_mut().for_each(|bytes| bytes.reverse()),
        8 => raw.as_chunks_mut::<8>().0.iter_mut().for_each(|bytes| bytes.reverse()),
        _ => {}
    }
}

/// Converts every element of `raw` to `out`.
pub(super) fn convert(element: NpyType, raw: &[u8], out: &mut [u8]) -> Result<(), DoesNotFit> {
    match element {
        NpyType::F32 | NpyType::I32 | NpyType::U8 => out.copy_from_slice(raw),
        NpyType::Bool => raw.iter().zip(out).for_each(|(raw, out)| *out = u8::from(*raw != 0)),
        NpyType::F64 => each(raw, out, |bytes| (f64::from_le_bytes(bytes) as f32).to_ne_bytes()),
        NpyType::F16 => each(raw, out, |bytes| f16_to_f32(u16::from_le_bytes(bytes)).to_ne_bytes()),
        NpyType::I8 => each(raw, out, |bytes| i32::from(i8::from_le_bytes(bytes)).to_ne_bytes()),
        NpyType::I16 => each(raw, out, |bytes| i32::from(i16::from_le_bytes(bytes)).to_ne_bytes()),
        NpyType::U16 => each(raw, out, |bytes| i32::from(u16::from_le_bytes(bytes)).to_ne_bytes()),
        NpyType::U32 => return each_checked(raw, out, |bytes| i64::from(u32::from_le_bytes(bytes))),
        NpyType::I64 => return each_checked(raw, out, i64::from_le_bytes),
    }
    Ok(())
}

/// Prefetches memory that is about to be written.
pub(super) fn will_write(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a prefetch is a hint without observable effects, and the address is in a slice.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

fn each<const N: usize>(raw: &[u8], out: &mut [u8], to: impl Fn([u8; N]) -> [u8; 4]) {
    for (raw, out) in raw.as_chunks::<N>().0.iter().zip(out.as_chunks_mut::<4>().0) {
        *out = to(*raw);
    }
}

fn each_checked<const N: usize>(raw: &[u8], out: &mut [u8], value: impl Fn([u8; N]) -> i64) -> Result<(), DoesNotFit> {
    let raw = raw.as_chunks::<N>().0;
    let mut all_fit = true;
    // No early exit, so that the loop vectorizes; the offending element is found afterwards.
    for (raw, out) in raw.iter().zip(out.as_chunks_mut::<4>().0) {
        let value = value(*raw);
        all_fit &= i64::from(value as i32) == value;
        *out = (value as i32).to_ne_bytes();
    }
    if all_fit {
        return Ok(());
    }
    let found = raw.iter().map(|raw| value(*raw)).enumerate().find(|&(_, value)| i32::try_from(value).is_err());
    let (index, value) = found.expect("one number did not fit");
    Err(DoesNotFit { index, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_exactly() {
        for half in 0..=u16::MAX {
            let (sign, exponent, fraction) = (half >> 15, i32::from(half >> 10 & 31), f64::from(half & 1023));
            let magnitude = match exponent {
                0 => fraction * 2f64.powi(-24),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
            };
            let expected = if sign == 1 { -magnitude } else { magnitude } as f32;
            let actual = f16_to_f32(half);
            assert!(actual.to_bits() == expected.to_bits() || actual.is_nan() && expected.is_nan(), "{half:#06x}: {actual}");
        }
    }

    #[test]
    fn integers_convert_or_are_named() {
        let raw: Vec<u8> = [5i64, -7, i64::from(i32::MIN), i64::from(i32::MAX)].iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = [0; 16];
        assert_eq!(convert(NpyType::I64, &raw, &mut out), Ok(()));
        let back: Vec<i32> = out.as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect();
        assert_eq!(back, [5, -7, i32::MIN, i32::MAX]);

        let raw: Vec<u8> = [1u32, u32::MAX, 2].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(convert(NpyType::U32, &raw, &mut out[..12]), Err(DoesNotFit { index: 1, value: 4_294_967_295 }));
    }

    #[test]
    fn small_signed_numbers_keep_their_sign() {
        let mut out = [0; 8];
        convert(NpyType::I8, &[0xFF, 0x7F], &mut out).unwrap();
        assert_eq!(out, [[0xFF; 4], 127i32.to_ne_bytes()].concat()[..]);
    }
}
