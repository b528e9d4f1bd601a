//! Compression of pages.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::read::MultiGzDecoder;
use ruzstd::decoding::FrameDecoder;
use std::io::Read;

/// Checks the compression codec, by the format's number.
pub(super) fn check(number: i64) -> Result<(), String> {
    match number {
        0..=2 | 4..=7 => Ok(()),
        other => {
            let name = if other == 3 { "LZO" } else { "an unknown codec" };
            Err(format!("is packed with {name} (codec {other}), which is not supported; write it with zstd, Snappy or gzip"))
        }
    }
}

/// Memory of unpacking a page of `unpacked` bytes, besides the page.
pub(super) fn bytes(number: i64, unpacked: u64) -> u64 {
    match number {
        2 => 64 << 10,
        // The window, which an encoder may make larger than the page, and tables.
        4 => (1 << 24) + (1 << 20),
        // At most the window of the highest level, or a page.
        6 => 2 * unpacked + (1 << 20),
        _ => 0,
    }
}

/// Unpacks pages; what a codec needs is kept from page to page.
#[derive(Default)]
pub(super) struct Unpacker {
    zstd: Option<FrameDecoder>,
}

impl Unpacker {
    /// Unpacks a page of `wanted` bytes to `out`, which has that capacity and no more is allocated.
    pub fn unpack(&mut self, codec: i64, packed: &[u8], wanted: usize, out: &mut Vec<u8>) -> Result<(), String> {
        out.clear();
        let broken = |error: &dyn std::fmt::Display| format!("cannot be unpacked ({error})");
        match codec {
            1 => snappy(packed, wanted, out),
            2 => {
                out.resize(wanted, 0);
                let mut bytes = MultiGzDecoder::new(packed);
                // The checksum follows the last byte and is verified only by one more read.
                let read = bytes.read_exact(out).and_then(|()| bytes.read(&mut [0]));
                whole(read.map_err(|error| broken(&error))?)
            }
            4 => {
                out.resize(wanted, 0);
                brotli(packed, out)
            }
            5 => {
                out.resize(wanted, 0);
                hadoop_lz4(packed, out)
            }
            6 => {
                out.resize(wanted, 0);
                let read = self.zstd.get_or_insert_default().decode_all(packed, out).map_err(|error| broken(&error))?;
                if read == wanted { Ok(()) } else { Err(SHORT.into()) }
            }
            7 => {
                out.resize(wanted, 0);
                let read = lz4_flex::block::decompress_into(packed, out).map_err(|error| broken(&error))?;
                if read == wanted { Ok(()) } else { Err(SHORT.into()) }
            }
            _ => Err(format!("is packed with codec {codec}, which is not supported")),
        }
    }
}

const SHORT: &str = "cannot be unpacked (it holds less than its head says)";

fn whole(more: usize) -> Result<(), String> {
    if more > 0 { Err("holds more than its head says".into()) } else { Ok(()) }
}

/// The older LZ4 of Parquet: blocks with their sizes, as Hadoop writes them, or a raw block.
fn hadoop_lz4(packed: &[u8], out: &mut [u8]) -> Result<(), String> {
    let (mut rest, mut done) = (packed, 0);
    let framed = loop {
        if rest.is_empty() {
            break done == out.len();
        }
        let Some((sizes, after)) = rest.split_first_chunk::<8>() else { break false };
        let size = |at: usize| u32::from_be_bytes([sizes[at], sizes[at + 1], sizes[at + 2], sizes[at + 3]]) as usize;
        let (Some(block), Some(target)) = (after.get(..size(4)), out.get_mut(done..).and_then(|out| out.get_mut(..size(0)))) else {
            break false;
        };
        match lz4_flex::block::decompress_into(block, target) {
            Ok(count) if count == target.len() && count > 0 => done += count,
            _ => break false,
        }
        rest = &after[size(4)..];
    };
    if framed {
        return Ok(());
    }
    match lz4_flex::block::decompress_into(packed, out) {
        Ok(count) if count == out.len() => Ok(()),
        Ok(_) => Err(SHORT.into()),
        Err(error) => Err(format!("cannot be unpacked ({error})")),
    }
}

fn brotli(packed: &[u8], out: &mut [u8]) -> Result<(), String> {
    let mut state = BrotliState::new(StandardAlloc::default(), StandardAlloc::default(), StandardAlloc::default());
    let (mut input_left, mut input_at, mut output_left, mut output_at, mut total) = (packed.len(), 0, out.len(), 0, 0);
    let result =
        BrotliDecompressStream(&mut input_left, &mut input_at, packed, &mut output_left, &mut output_at, out, &mut total, &mut state);
    match result {
        BrotliResult::ResultSuccess if output_at == out.len() => Ok(()),
        BrotliResult::NeedsMoreOutput => Err("holds more than its head says".into()),
        _ => Err("cannot be unpacked (its Brotli data is broken)".into()),
    }
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
        // A copy may overlap its own output, which then repeats.
        let start = out.len() - back;
        let mut left = length;
        while left > 0 {
            let count = left.min(out.len() - start);
            out.extend_from_within(start..start + count);
            left -= count;
        }
    }
    if out.len() == wanted { Ok(()) } else { Err(BROKEN.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
