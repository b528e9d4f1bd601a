//! Numbers of pages: their types, and their encodings.

use super::encodings::{CUT, Run, delta, hybrid, split_value};
use crate::source::columnar::half;
use crate::table::Cell;

/// What values become: a number, divided where a divisor is given, or a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ValueType {
    Boolean,
    I32(f64),
    U32,
    I64(f64),
    U64,
    /// Integers of 64 bits of which not one may be rounded, such as categories: their bits as those of an f64.
    ExactI64,
    ExactU64,
    /// Nanoseconds of a day, and the day.
    I96,
    F32,
    F64,
    F16,
    /// Big-endian integers of a fixed or their own length.
    Decimal(Option<usize>, f64),
    Text,
}

impl ValueType {
    /// Bytes of a plain value, if all have the same.
    pub fn size(self) -> Option<usize> {
        Some(match self {
            ValueType::Boolean | ValueType::Text | ValueType::Decimal(None, _) => return None,
            ValueType::I32(_) | ValueType::U32 | ValueType::F32 => 4,
            ValueType::I64(_) | ValueType::U64 | ValueType::ExactI64 | ValueType::ExactU64 | ValueType::F64 => 8,
            ValueType::I96 => 12,
            ValueType::F16 => 2,
            ValueType::Decimal(Some(size), _) => size,
        })
    }

    /// The type whose integers are not rounded.
    pub fn exact(self) -> ValueType {
        match self {
            ValueType::I64(1.0) => ValueType::ExactI64,
            ValueType::U64 => ValueType::ExactU64,
            other => other,
        }
    }

    /// The cell of a decoded value.
    pub fn cell<'c>(self, value: f64) -> Cell<'c> {
        match self {
            ValueType::ExactI64 => {
                let integer = value.to_bits().cast_signed();
                Cell::integer(integer < 0, integer.unsigned_abs())
            }
            ValueType::ExactU64 => Cell::integer(false, value.to_bits()),
            _ => Cell::Number(value),
        }
    }

    fn of_integer(self, value: i64) -> f64 {
        match self {
            ValueType::U32 => f64::from(value as u32),
            ValueType::U64 => value as u64 as f64,
            ValueType::ExactI64 | ValueType::ExactU64 => f64::from_bits(value as u64),
            ValueType::I32(by) | ValueType::I64(by) if by != 1.0 => value as f64 / by,
            _ => value as f64,
        }
    }

    /// A value of fixed size.
    fn of_bytes(self, bytes: &[u8]) -> f64 {
        let four = || <[u8; 4]>::try_from(bytes).unwrap_or_default();
        let eight = || <[u8; 8]>::try_from(bytes).unwrap_or_default();
        match self {
            ValueType::I32(_) => self.of_integer(i64::from(i32::from_le_bytes(four()))),
            ValueType::U32 => f64::from(u32::from_le_bytes(four())),
            ValueType::F32 => f64::from(f32::from_le_bytes(four())),
            ValueType::I64(_) | ValueType::U64 | ValueType::ExactI64 | ValueType::ExactU64 => self.of_integer(i64::from_le_bytes(eight())),
            ValueType::F64 => f64::from_le_bytes(eight()),
            ValueType::F16 => f64::from(half(u16::from_le_bytes([bytes[0], bytes[1]]))),
            ValueType::I96 => {
                let nanos = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default());
                let day = u32::from_le_bytes(bytes[8..].try_into().unwrap_or_default());
                // Julian days; 1970-01-01 is day 2,440,588.
                f64::from(day) - 2_440_588.0 + nanos as f64 / 86_400e9
            }
            ValueType::Decimal(_, by) => {
                let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
                let start = if negative { -1i128 } else { 0 };
                bytes.iter().take(16).fold(start, |value, byte| value << 8 | i128::from(*byte)) as f64 / by
            }
            ValueType::Boolean | ValueType::Text => 0.0,
        }
    }
}

pub(super) const UNLISTED: &str = "has a value that its dictionary does not list";

pub(super) fn unsupported(encoding: i64) -> String {
    format!("is encoded in a way that its type does not have (encoding {encoding}); the file is damaged")
}

/// Adds the values of a dictionary by their indices.
pub(super) fn look_up<T: Copy>(run: Run<'_>, dictionary: &[T], out: &mut Vec<T>) -> Result<(), String> {
    match run {
        Run::Same(index, times) => {
            let value = *dictionary.get(index as usize).ok_or(UNLISTED)?;
            out.extend(std::iter::repeat_n(value, times));
        }
        Run::Each(indices) => {
            let most = indices.iter().fold(0, |most, index| most.max(*index)) as usize;
            let known = dictionary.get(..=most).ok_or(UNLISTED)?;
            out.extend(indices.iter().map(|index| known[*index as usize]));
        }
    }
    Ok(())
}

/// Decodes all numbers of a page, of encodings that are not decoded in parts.
pub(super) fn numbers(value: ValueType, encoding: i64, bytes: &[u8], count: usize, out: &mut Vec<f64>) -> Result<(), String> {
    match (encoding, value) {
        _ if count == 0 => Ok(()),
        (0, _) => plain(value, bytes, count, out),
        (3, ValueType::Boolean) => {
            let bytes = bytes.get(4..).ok_or(CUT)?;
            hybrid(bytes, 1, count, |run| {
                match run {
                    Run::Same(truth, times) => out.extend(std::iter::repeat_n(f64::from(truth), times)),
                    Run::Each(truths) => out.extend(truths.iter().map(|truth| f64::from(*truth))),
                }
                Ok(())
            })
        }
        (5, ValueType::I32(_) | ValueType::U32 | ValueType::I64(_) | ValueType::U64 | ValueType::ExactI64 | ValueType::ExactU64) => {
            let narrow = matches!(value, ValueType::I32(_) | ValueType::U32);
            // Differences of 32-bit numbers wrap at 32 bits.
            delta(bytes, count, |number| out.push(value.of_integer(if narrow { i64::from(number as i32) } else { number }))).map(|_| ())
        }
        (6 | 7, ValueType::Decimal(..)) => deltas(value, encoding, bytes, count, out),
        (9, _) => {
            let Some(size) = value.size().filter(|size| size.checked_mul(count).is_some_and(|all| all <= bytes.len())) else {
                return Err(CUT.into());
            };
            match size {
                2 => out.extend((0..count).map(|at| value.of_bytes(&split_value::<2>(bytes, count, at)))),
                4 => out.extend((0..count).map(|at| value.of_bytes(&split_value::<4>(bytes, count, at)))),
                8 => out.extend((0..count).map(|at| value.of_bytes(&split_value::<8>(bytes, count, at)))),
                size if size <= 32 => {
                    let mut buffer = [0; 32];
                    for at in 0..count {
                        (0..size).for_each(|stream| buffer[stream] = bytes[stream * count + at]);
                        out.push(value.of_bytes(&buffer[..size]));
                    }
                }
                _ => return Err(unsupported(9)),
            }
            Ok(())
        }
        (other, _) => Err(unsupported(other)),
    }
}

/// Decimals as byte strings with delta-encoded lengths, or that share prefixes.
fn deltas(value: ValueType, encoding: i64, bytes: &[u8], count: usize, out: &mut Vec<f64>) -> Result<(), String> {
    const LONGEST: usize = 32;
    let mut prefixes = Vec::new();
    let mut rest = bytes;
    if encoding == 7 {
        prefixes.reserve_exact(count);
        rest = delta(rest, count, |length| prefixes.push(length as usize))?;
    }
    let mut lengths = Vec::with_capacity(count);
    rest = delta(rest, count, |length| lengths.push(length as usize))?;
    let (mut current, mut length) = ([0; LONGEST], 0);
    for (at, &suffix) in lengths.iter().enumerate() {
        let prefix = prefixes.get(at).copied().unwrap_or(0);
        let (text, after) = rest.split_at_checked(suffix).ok_or(CUT)?;
        let end =
            prefix.checked_add(suffix).filter(|end| prefix <= length && *end <= LONGEST).ok_or("has a decimal of more than 32 bytes")?;
        current[prefix..end].copy_from_slice(text);
        (rest, length) = (after, end);
        out.push(value.of_bytes(&current[..length]));
    }
    Ok(())
}

/// PLAIN encoding.
pub(super) fn plain(value: ValueType, bytes: &[u8], count: usize, out: &mut Vec<f64>) -> Result<(), String> {
    fn each<const N: usize>(bytes: &[u8], count: usize, out: &mut Vec<f64>, to: impl Fn([u8; N]) -> f64) -> Result<(), String> {
        let values = bytes.as_chunks::<N>().0.get(..count).ok_or(CUT)?;
        out.extend(values.iter().map(|bytes| to(*bytes)));
        Ok(())
    }
    match value {
        ValueType::Boolean => {
            if count.div_ceil(8) > bytes.len() {
                return Err(CUT.into());
            }
            out.extend((0..count).map(|index| f64::from(bytes[index / 8] >> (index % 8) & 1)));
            Ok(())
        }
        ValueType::I32(1.0) => each(bytes, count, out, |bytes| f64::from(i32::from_le_bytes(bytes))),
        ValueType::I64(1.0) => each(bytes, count, out, |bytes| i64::from_le_bytes(bytes) as f64),
        ValueType::F32 => each(bytes, count, out, |bytes| f64::from(f32::from_le_bytes(bytes))),
        ValueType::F64 => each(bytes, count, out, f64::from_le_bytes),
        ValueType::Decimal(None, _) => {
            let mut rest = bytes;
            for _ in 0..count {
                let (length, after) = rest.split_first_chunk::<4>().ok_or(CUT)?;
                let (number, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(CUT)?;
                out.push(value.of_bytes(number));
                rest = after;
            }
            Ok(())
        }
        ValueType::Text => Err(unsupported(0)),
        value => {
            let size = value.size().ok_or(CUT)?;
            let values = size.checked_mul(count).and_then(|all| bytes.get(..all)).ok_or(CUT)?;
            out.extend(values.chunks_exact(size).map(|bytes| value.of_bytes(bytes)));
            Ok(())
        }
    }
}
