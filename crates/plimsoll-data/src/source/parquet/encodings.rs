//! Encodings of values and levels.

/// The error of a page that is too short.
pub(super) const CUT: &str = "ends before its values";

/// Integers of a run.
pub(super) enum Run<'r> {
    /// One integer, so many times.
    Same(u32, usize),
    /// Different ones.
    Each(&'r [u32]),
}

/// Integers that are unpacked at a time, a multiple of eight.
pub(super) const CHUNK: usize = 1024;

/// The RLE/bit-packing hybrid: integers of `width` bits, in runs of one value and bit-packed groups of eight.
#[derive(Clone, Copy)]
pub(super) struct Hybrid {
    width: usize,
    /// Integers that were not returned yet.
    left: usize,
    /// Where the next bytes are.
    at: usize,
    run: Current,
}

#[derive(Clone, Copy)]
enum Current {
    Same(u32, usize),
    /// So many packed ones.
    Packed(usize),
}

impl Hybrid {
    /// `count` integers, from byte `at` on.
    pub fn new(width: u32, count: usize, at: usize) -> Result<Hybrid, String> {
        match width > 32 {
            true => Err(format!("has numbers of {width} bits")),
            false => Ok(Hybrid { width: width as usize, left: count, at, run: Current::Packed(0) }),
        }
    }

    /// The next integers, at most [`CHUNK`]; none after the last.
    pub fn next<'c>(&mut self, bytes: &[u8], chunk: &'c mut [u32; CHUNK]) -> Result<Run<'c>, String> {
        if matches!(self.run, Current::Same(_, 0) | Current::Packed(0)) && self.left > 0 {
            self.begin_run(bytes)?;
        }
        match &mut self.run {
            Current::Same(value, times) => {
                let here = CHUNK.min(*times);
                *times -= here;
                self.left -= here;
                Ok(Run::Same(*value, here))
            }
            Current::Packed(count) => {
                let here = CHUNK.min(*count);
                let groups = here.div_ceil(8);
                unpack(&bytes[self.at..], self.width, groups, chunk);
                *count -= here;
                self.left -= here;
                // The last group may be cut.
                self.at = (self.at + groups * self.width).min(bytes.len());
                Ok(Run::Each(&chunk[..here]))
            }
        }
    }

    /// Integers that were not returned yet.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Whether all integers are this one, in one run.
    pub fn is_run_of(mut self, bytes: &[u8], value: u32) -> bool {
        self.begin_run(bytes).is_ok() && matches!(self.run, Current::Same(same, times) if same == value && times == self.left)
    }

    fn begin_run(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut head = 0u64;
        let mut shift = 0;
        loop {
            let &byte = bytes.get(self.at).ok_or(CUT)?;
            self.at += 1;
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
            let size = self.width.div_ceil(8);
            let value = bytes.get(self.at..self.at + size).ok_or(CUT)?;
            self.at += size;
            let value = value.iter().rev().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
            self.run = Current::Same(value, length.min(self.left));
        } else {
            let count = length.saturating_mul(8).min(self.left);
            if (count * self.width).div_ceil(8) > bytes.len().saturating_sub(self.at) {
                return Err(CUT.into());
            }
            // Groups without bits are zeros.
            self.run = if self.width == 0 { Current::Same(0, count) } else { Current::Packed(count) };
        }
        match self.run {
            Current::Same(_, 0) | Current::Packed(0) => Err("has a run of nothing".into()),
            _ => Ok(()),
        }
    }
}

/// Calls `put` with all integers.
pub(super) fn hybrid(bytes: &[u8], width: u32, count: usize, mut put: impl FnMut(Run<'_>) -> Result<(), String>) -> Result<(), String> {
    let mut integers = Hybrid::new(width, count, 0)?;
    let mut chunk = [0; CHUNK];
    while integers.left > 0 {
        put(integers.next(bytes, &mut chunk)?)?;
    }
    Ok(())
}

/// Unpacks groups of eight integers; of an incomplete group at the end, the missing bytes are zero.
fn unpack(packed: &[u8], width: usize, groups: usize, out: &mut [u32; CHUNK]) {
    fn of<const WIDTH: usize>(packed: &[u8], groups: usize, out: &mut [u32; CHUNK]) {
        for (at, out) in out.as_chunks_mut::<8>().0.iter_mut().take(groups).enumerate() {
            let start = at * WIDTH;
            // Eight bytes are loaded for each integer, which begins at most seven bits into them; near the end of the
            // page, from a copy.
            match packed.get(start..start + WIDTH + 8) {
                Some(bytes) => eight::<WIDTH>(bytes, out),
                None => {
                    let mut bytes = [0; 40];
                    let rest = packed.get(start..).unwrap_or_default();
                    let rest = &rest[..rest.len().min(WIDTH)];
                    bytes[..rest.len()].copy_from_slice(rest);
                    eight::<WIDTH>(&bytes[..WIDTH + 8], out);
                }
            }
        }
    }
    #[inline(always)]
    fn eight<const WIDTH: usize>(bytes: &[u8], out: &mut [u32; 8]) {
        let bytes = &bytes[..WIDTH + 8];
        for (index, out) in out.iter_mut().enumerate() {
            let (byte, bit) = (index * WIDTH / 8, index * WIDTH % 8);
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[byte..byte + 8]);
            *out = (u64::from_le_bytes(word) >> bit & ((1 << WIDTH) - 1)) as u32;
        }
    }
    macro_rules! widths {
        ($($width:literal)*) => {
            match width {
                $($width => of::<$width>(packed, groups, out),)*
                _ => {}
            }
        };
    }
    widths!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
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
            hybrid(bytes, width, count, |run| {
                match run {
                    Run::Same(value, times) => out.extend(std::iter::repeat_n(value, times)),
                    Run::Each(values) => out.extend_from_slice(values),
                }
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

    #[test]
    fn integers_of_all_widths_are_unpacked_with_the_last_group_cut() {
        for width in 1..=32u32 {
            let values: Vec<u32> = (0..1003u32).map(|n| n.wrapping_mul(2_654_435_761) >> (32 - width)).collect();
            let mut packed = vec![0u8; (values.len() * width as usize).div_ceil(8)];
            for (at, value) in values.iter().enumerate() {
                (0..width).filter(|bit| value >> bit & 1 == 1).for_each(|bit| {
                    let place = at * width as usize + bit as usize;
                    packed[place / 8] |= 1 << (place % 8);
                });
            }
            // 126 groups of eight.
            let bytes = [&[0b1111_1101, 1][..], &packed].concat();
            let mut out = Vec::new();
            let read = hybrid(&bytes, width, values.len(), |run| {
                if let Run::Each(values) = run {
                    out.extend_from_slice(values);
                }
                Ok(())
            });
            assert_eq!((read, out == values), (Ok(()), true), "{width} bits");
        }
    }
}
