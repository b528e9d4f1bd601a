//! Decodes pages to numbers.

use super::footer::{DICTIONARY, PageHeader};
use flate2::read::MultiGzDecoder;
use std::io::Read;

/// The supported physical types, with the format's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhysicalType {
    Bool,
    I32,
    I64,
    F32,
    F64,
}

impl PhysicalType {
    pub fn of(kind: i64) -> Option<PhysicalType> {
        Some(match kind {
            0 => PhysicalType::Bool,
            1 => PhysicalType::I32,
            2 => PhysicalType::I64,
            4 => PhysicalType::F32,
            5 => PhysicalType::F64,
            _ => return None,
        })
    }

    /// Whether all of its values are integers.
    pub fn is_whole(self) -> bool {
        !matches!(self, PhysicalType::F32 | PhysicalType::F64)
    }
}

/// Checks the compression codec, by the format's number.
pub(super) fn codec(number: i64) -> Result<(), String> {
    match number {
        0..=2 => Ok(()),
        other => {
            let name = ["", "", "", "LZO", "Brotli", "LZ4", "Zstandard", "LZ4"].get(other as usize).unwrap_or(&"");
            Err(format!("is packed with {name} (codec {other}), which is not supported; write it with Snappy, gzip or nothing"))
        }
    }
}

/// The values of a column, page by page.
pub(super) struct Pages {
    number: PhysicalType,
    optional: bool,
    unpacked: Vec<u8>,
    dictionary: Vec<f64>,
    /// The values that are present.
    values: Vec<f64>,
    /// For each row of the page whether it has a value; empty if all have one.
    present: Vec<bool>,
    /// The rows of the page, the next row, and the index of its value.
    rows: usize,
    row: usize,
    next: usize,
}

/// Makes `vector` empty with exactly this capacity. The old allocation is freed first, so that both never exist
/// together.
pub(super) fn resize_to<T>(vector: &mut Vec<T>, elements: usize) {
    vector.clear();
    if vector.capacity() < elements {
        *vector = Vec::new();
        vector.reserve_exact(elements);
    }
}

const CUT: &str = "ends before its values";

impl Pages {
    pub fn new(number: PhysicalType, optional: bool) -> Pages {
        let (unpacked, dictionary, values, present) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Pages { number, optional, unpacked, dictionary, values, present, rows: 0, row: 0, next: 0 }
    }

    /// Rows of the page not yet returned.
    pub fn left(&self) -> usize {
        self.rows - self.row
    }

    /// Drops the current page.
    pub fn drop_page(&mut self) {
        (self.rows, self.row, self.next) = (0, 0, 0);
    }

    /// The value of the next row, or its index in the page if it has none.
    pub fn value(&mut self) -> Result<f64, usize> {
        let row = self.row;
        self.row += 1;
        if self.present.get(row) == Some(&false) {
            return Err(row);
        }
        self.next += 1;
        Ok(self.values[self.next - 1])
    }

    /// Reads a page: a dictionary is stored, values replace those of the page before.
    pub fn read(&mut self, head: &PageHeader, codec: i64, page: &[u8]) -> Result<(), String> {
        let [repeated, defined] = head.levels.map_or([0, 0], |[defined, repeated]| [repeated as usize, defined as usize]);
        let levels = repeated.checked_add(defined).and_then(|end| page.get(..end)).ok_or(CUT)?;
        let packed = &page[levels.len()..];
        let unpacked = (head.unpacked as usize).checked_sub(levels.len()).ok_or("has levels longer than itself")?;
        // Allocate exactly what was planned, without amortized growth.
        let is_packed = head.values_packed && codec != 0;
        resize_to(&mut self.unpacked, if is_packed { unpacked } else { packed.len() });
        match codec {
            1 if is_packed => snappy(packed, unpacked, &mut self.unpacked)?,
            2 if is_packed => {
                self.unpacked.resize(unpacked, 0);
                let mut bytes = MultiGzDecoder::new(packed);
                // The checksum follows the last byte and is verified only by one more read.
                let read = bytes.read_exact(&mut self.unpacked).and_then(|()| bytes.read(&mut [0]));
                if read.map_err(|error| format!("cannot be unpacked ({error})"))? > 0 {
                    return Err("holds more than its head says".into());
                }
            }
            _ => self.unpacked.extend_from_slice(packed),
        }
        let (mut bytes, values) = (&self.unpacked[..], head.values as usize);
        if head.kind == DICTIONARY {
            resize_to(&mut self.dictionary, values);
            return plain(self.number, bytes, values, &mut self.dictionary);
        }
        if self.optional {
            let levels = match head.levels {
                Some(_) => &levels[repeated..],
                None => {
                    let (length, rest) = bytes.split_first_chunk::<4>().ok_or(CUT)?;
                    let (levels, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(CUT)?;
                    bytes = rest;
                    levels
                }
            };
            resize_to(&mut self.present, values);
            let present = &mut self.present;
            hybrid(levels, 1, values, |level| {
                present.push(level != 0);
                Ok(())
            })?;
        }
        let rows = values;
        let values = if self.optional { self.present.iter().filter(|present| **present).count() } else { rows };
        resize_to(&mut self.values, values);
        numbers(self.number, head.encoding, bytes, values, &self.dictionary, &mut self.values)?;
        (self.rows, self.row, self.next) = (rows, 0, 0);
        Ok(())
    }
}

/// Decodes the values of a page.
fn numbers(number: PhysicalType, encoding: i64, bytes: &[u8], count: usize, dictionary: &[f64], out: &mut Vec<f64>) -> Result<(), String> {
    match encoding {
        _ if count == 0 => Ok(()),
        0 => plain(number, bytes, count, out),
        2 | 8 => {
            let (&width, bytes) = bytes.split_first().ok_or(CUT)?;
            hybrid(bytes, u32::from(width), count, |index| {
                out.push(*dictionary.get(index as usize).ok_or("has a value that its dictionary does not list")?);
                Ok(())
            })
        }
        3 if number == PhysicalType::Bool => {
            let bytes = bytes.get(4..).ok_or(CUT)?;
            hybrid(bytes, 1, count, |truth| {
                out.push(f64::from(truth));
                Ok(())
            })
        }
        other => Err(format!("is encoded in a way that is not supported (encoding {other}); write it plain or with a dictionary")),
    }
}

/// PLAIN encoding.
fn plain(number: PhysicalType, bytes: &[u8], count: usize, out: &mut Vec<f64>) -> Result<(), String> {
    fn each<const N: usize>(bytes: &[u8], count: usize, out: &mut Vec<f64>, to: impl Fn([u8; N]) -> f64) -> Result<(), String> {
        let values = bytes.as_chunks::<N>().0.get(..count).ok_or(CUT)?;
        out.extend(values.iter().map(|bytes| to(*bytes)));
        Ok(())
    }
    match number {
        PhysicalType::Bool => {
            if count.div_ceil(8) > bytes.len() {
                return Err(CUT.into());
            }
            out.extend((0..count).map(|index| f64::from(bytes[index / 8] >> (index % 8) & 1)));
            Ok(())
        }
        PhysicalType::I32 => each(bytes, count, out, |bytes| f64::from(i32::from_le_bytes(bytes))),
        PhysicalType::I64 => each(bytes, count, out, |bytes| i64::from_le_bytes(bytes) as f64),
        PhysicalType::F32 => each(bytes, count, out, |bytes| f64::from(f32::from_le_bytes(bytes))),
        PhysicalType::F64 => each(bytes, count, out, f64::from_le_bytes),
    }
}

/// The RLE/bit-packing hybrid: integers of `width` bits, in runs of one value and bit-packed groups of eight.
fn hybrid(bytes: &[u8], width: u32, count: usize, mut put: impl FnMut(u32) -> Result<(), String>) -> Result<(), String> {
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

/// Decompresses Snappy: literals, and copies of earlier output.
fn snappy(packed: &[u8], wanted: usize, out: &mut Vec<u8>) -> Result<(), String> {
    const BROKEN: &str = "cannot be unpacked (its Snappy data is broken)";
    let mut rest = packed;
    let mut promised = 0u64;
    for shift in (0..35).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or(BROKEN)?;
        rest = after;
        promised |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            break;
        }
    }
    if promised != wanted as u64 {
        return Err(BROKEN.into());
    }
    out.reserve_exact(wanted);
    while let Some((&tag, after)) = rest.split_first() {
        rest = after;
        let mut number = |bytes: usize| {
            let (number, after) = rest.split_at_checked(bytes).ok_or(BROKEN)?;
            rest = after;
            Ok::<usize, String>(number.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
        };
        let small = usize::from(tag >> 2);
        let (length, back) = match tag & 3 {
            0 => {
                let length = 1 + if small < 60 { small } else { number(small - 59)? };
                let (literal, after) = rest.split_at_checked(length).ok_or(BROKEN)?;
                rest = after;
                if out.len() + length > wanted {
                    return Err(BROKEN.into());
                }
                out.extend_from_slice(literal);
                continue;
            }
            1 => (4 + (small & 7), (small >> 3) << 8 | number(1)?),
            2 => (1 + small, number(2)?),
            _ => (1 + small, number(4)?),
        };
        if back == 0 || back > out.len() || out.len() + length > wanted {
            return Err(BROKEN.into());
        }
        // A copy may overlap its own output.
        for _ in 0..length {
            out.push(out[out.len() - back]);
        }
    }
    if out.len() == wanted { Ok(()) } else { Err(BROKEN.into()) }
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
    fn snappy_is_unpacked_and_never_past_what_was_promised() {
        let mut out = Vec::new();
        // "abcd", then a copy of eight bytes from four back.
        snappy(&[12, 3 << 2, b'a', b'b', b'c', b'd', 4 << 2 | 1, 4], 12, &mut out).unwrap();
        assert_eq!(out, b"abcdabcdabcd");
        for bytes in [&[12, 3 << 2, b'a'][..], &[4, 4 << 2 | 1, 4], &[2, 3 << 2, b'a', b'b', b'c', b'd'], &[3, 0, b'a'], &[]] {
            out.clear();
            assert!(snappy(bytes, 12.min(bytes.first().copied().unwrap_or(0) as usize), &mut out).is_err(), "{bytes:?}");
        }
    }
}
