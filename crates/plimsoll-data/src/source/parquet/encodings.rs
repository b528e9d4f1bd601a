//! Encodings of values and levels.

/// The error of a page that is too short.
pub(super) const CUT: &str = "ends before its values";

/// The RLE/bit-packing hybrid: integers of `width` bits, in runs of one value and bit-packed groups of eight.
pub(super) fn hybrid(bytes: &[u8], width: u32, count: usize, mut put: impl FnMut(u32) -> Result<(), String>) -> Result<(), String> {
    if width > 32 {
        return Err(format!("has numbers of {width} bits"));
    }
    let (mut rest, mut left) = (bytes, count);
    while left > 0 {
        let mut head = 0u64;
        let mut shift = 0;
        loop {
            let (&byte, after) = rest.split_first().ok_or(CUT)?;
            rest = after;
            head |= u64::from(byte & 0x7F) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
            if shift > 35 {
                return Err("has a run without end".into());
            }
        }
        let length = (head >> 1) as usize;
        if head & 1 == 0 {
            let (value, after) = rest.split_at_checked(width.div_ceil(8) as usize).ok_or(CUT)?;
            rest = after;
            let value = value.iter().rev().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
            let run = length.min(left);
            (0..run).try_for_each(|_| put(value))?;
            left -= run;
            if run == 0 {
                return Err("has a run of nothing".into());
            }
        } else {
            let (packed, after) = rest.split_at_checked(length.saturating_mul(width as usize).min(rest.len())).ok_or(CUT)?;
            rest = after;
            let run = (length * 8).min(left);
            if run == 0 || (run * width as usize).div_ceil(8) > packed.len() {
                return Err(CUT.into());
            }
            let (mut bits, mut held, mut bytes) = (0u64, 0, packed.iter());
            for _ in 0..run {
                while held < width {
                    bits |= u64::from(*bytes.next().ok_or(CUT)?) << held;
                    held += 8;
                }
                put((bits & ((1u64 << width) - 1)) as u32)?;
                bits >>= width;
                held -= width;
            }
            left -= run;
        }
    }
    Ok(())
}

/// A cursor over variable-length integers.
struct Integers<'b>(&'b [u8]);

impl Integers<'_> {
    fn unsigned(&mut self) -> Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(CUT)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("has a number without end".into())
    }

    fn signed(&mut self) -> Result<i64, String> {
        let value = self.unsigned()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

/// DELTA_BINARY_PACKED: calls `put` with each of `count` integers and returns the bytes after them.
pub(super) fn delta(bytes: &[u8], count: usize, mut put: impl FnMut(i64)) -> Result<&[u8], String> {
    let mut from = Integers(bytes);
    let (block, minis, total) = (from.unsigned()?, from.unsigned()?, from.unsigned()?);
    let mut value = from.signed()?;
    if total != count as u64 {
        return Err(format!("has {total} numbers where {count} belong"));
    }
    let per_mini =
        block.checked_div(minis).filter(|size| *size > 0 && size % 8 == 0 && block <= 1 << 20).ok_or("has blocks of no size")? as usize;
    if count > 0 {
        put(value);
    }
    let mut left = count.saturating_sub(1);
    while left > 0 {
        let least = from.signed()?;
        let (widths, rest) = from.0.split_at_checked(minis as usize).ok_or(CUT)?;
        from.0 = rest;
        for &width in widths {
            if left == 0 {
                break;
            }
            let width = u32::from(width);
            if width > 64 {
                return Err(format!("has numbers of {width} bits"));
            }
            let size = per_mini * width as usize / 8;
            // The last block may be cut off after its last number.
            let used = per_mini.min(left);
            let packed = from.0.get(..size).or_else(|| from.0.get(..(used * width as usize).div_ceil(8))).ok_or(CUT)?;
            let (mut bits, mut held, mut bytes) = (0u128, 0, packed.iter());
            for _ in 0..used {
                while held < width {
                    bits |= u128::from(*bytes.next().ok_or(CUT)?) << held;
                    held += 8;
                }
                let step = (bits & ((1u128 << width) - 1)) as u64;
                bits >>= width;
                held -= width;
                value = value.wrapping_add(least).wrapping_add(step as i64);
                put(value);
            }
            left -= used;
            from.0 = &from.0[packed.len()..];
        }
    }
    Ok(from.0)
}

/// BYTE_STREAM_SPLIT: the bytes of value `at`, of `N` streams.
pub(super) fn split_value<const N: usize>(bytes: &[u8], count: usize, at: usize) -> [u8; N] {
    std::array::from_fn(|stream| bytes[stream * count + at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_packed_numbers_are_read_as_the_format_describes_them() {
        let read = |bytes: &[u8], width, count| {
            let mut out = Vec::new();
            hybrid(bytes, width, count, |value| {
                out.push(value);
                Ok(())
            })
            .map(|()| out)
        };
        // The example of the specification: 0 to 7 in three bits each.
        assert_eq!(read(&[0b11, 0b1000_1000, 0b1100_0110, 0b1111_1010], 3, 8), Ok((0..8).collect()));
        assert_eq!(read(&[10, 0x12, 0x34], 16, 5), Ok(vec![0x3412; 5]));
        assert_eq!(read(&[6], 0, 3), Ok(vec![0; 3]));
        assert!(read(&[0, 1], 1, 3).is_err() && read(&[0b11, 1], 3, 8).is_err() && read(&[], 1, 1).is_err());
    }

    #[test]
    fn deltas_are_those_of_the_specification() {
        let read = |bytes: &[u8], count| {
            let mut out = Vec::new();
            delta(bytes, count, |value| out.push(value)).map(|rest| (out, rest.len()))
        };
        // Blocks of 128 in 4 parts: 7, 5, 3, 1, 2, 3, 4, 5, whose least difference is −2.
        let bytes = [0x80, 1, 4, 8, 14, 3, 2, 0, 0, 0, 0b1100_0000, 0b0011_1111, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(read(&bytes, 8), Ok((vec![7, 5, 3, 1, 2, 3, 4, 5], 1)));
        assert_eq!(read(&[0x80, 1, 4, 1, 13], 1), Ok((vec![-7], 0)));
        assert!(read(&[0x80, 1, 4, 8, 14], 8).is_err() && read(&[0, 0, 3, 1], 3).is_err());
    }
}
