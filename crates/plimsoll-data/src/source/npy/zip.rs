//! Locates the members of an `.npz` file. A stored member is a `.npy` at some offset; a compressed one must be
//! decompressed first.

use crate::DataError;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// One member.
#[derive(Clone)]
pub(super) struct Member {
    pub name: String,
    /// Offset and length of its bytes.
    pub start: u64,
    pub bytes: u64,
    /// Whether they are compressed.
    pub packed: bool,
    /// CRC-32 of the bytes, after decompression.
    pub crc: u32,
}

/// Bytes of the end record, and the maximum comment after it.
const END: usize = 22;
const LONGEST_COMMENT: usize = u16::MAX as usize;

/// A larger directory means a corrupt length.
const MOST: u64 = 1 << 24;

/// The error of a member whose bytes are not those that were written.
pub(super) fn wrong_checksum(path: &Path, array: &str) -> DataError {
    let problem = format!("its array `{array}` does not match its checksum (CRC-32), so the file is damaged; copy or write it again");
    DataError::Npy { path: path.to_path_buf(), problem }
}

/// All members, from the central directory.
pub(super) fn members(file: &File, path: &Path) -> Result<Vec<Member>, DataError> {
    let refuse = |problem: &str| DataError::Npy { path: path.to_path_buf(), problem: problem.into() };
    let damaged = || refuse("its zip directory is damaged or cut off; copy or write it again");
    let read = |start: u64, bytes: usize| {
        let mut buffer = vec![0; bytes];
        file.read_exact_at(&mut buffer, start).map_err(|_| damaged())?;
        Ok::<_, DataError>(buffer)
    };
    let length = file.metadata().map_err(|error| DataError::io("examine", path, error))?.len();
    let tail_bytes = length.min((END + LONGEST_COMMENT) as u64);
    let tail = read(length - tail_bytes, tail_bytes as usize)?;
    let end = tail.windows(4).rposition(|four| four == b"PK\x05\x06").ok_or_else(|| refuse("it is no .npz; save it with numpy.savez"))?;
    let at = length - tail_bytes + end as u64;
    let record = tail.get(end..end + END).ok_or_else(damaged)?;
    let (mut bytes, mut start) = (u64::from(u32_at(record, 12)), u64::from(u32_at(record, 16)));
    if start == u64::from(u32::MAX) || bytes == u64::from(u32::MAX) {
        // Values that do not fit are in the ZIP64 record; its locator precedes the end record.
        let locator = read(at.checked_sub(20).ok_or_else(damaged)?, 20)?;
        let large = read(u64_at(&locator, 8), 56)?;
        if &large[..4] != b"PK\x06\x06" {
            return Err(damaged());
        }
        (bytes, start) = (u64_at(&large, 40), u64_at(&large, 48));
    }
    if bytes > MOST {
        return Err(damaged());
    }
    let directory = read(start, bytes as usize)?;
    let mut rest = &directory[..];
    let mut members = Vec::new();
    while rest.len() >= 46 && &rest[..4] == b"PK\x01\x02" {
        let (name, extra, comment) = (u16_at(rest, 28), u16_at(rest, 30), u16_at(rest, 32));
        let entry = rest.get(..46 + name + extra + comment).ok_or_else(damaged)?;
        let text = String::from_utf8_lossy(&entry[46..46 + name]).into_owned();
        let packed = match u16_at(entry, 10) {
            0 => false,
            8 => true,
            other => {
                let problem = format!("its array `{text}` is packed by method {other}; save it with numpy.savez or savez_compressed");
                return Err(refuse(&problem));
            }
        };
        let large =
            wide(&entry[46 + name..46 + name + extra], u32_at(entry, 24), u32_at(entry, 20), u32_at(entry, 42)).ok_or_else(damaged)?;
        let (bytes, header) = large;
        // The name and extra fields of the local header may be longer or shorter than those in the directory.
        let local = read(header, 30)?;
        if &local[..4] != b"PK\x03\x04" {
            return Err(damaged());
        }
        let start = header + 30 + (u16_at(&local, 26) + u16_at(&local, 28)) as u64;
        if start.checked_add(bytes).is_none_or(|end| end > length) {
            return Err(damaged());
        }
        members.push(Member { name: text, start, bytes, packed, crc: u32_at(entry, 16) });
        rest = &rest[entry.len()..];
    }
    Ok(members)
}

/// Compressed size and offset of an entry; values that do not fit in 32 bits are in an extra field, in this order.
fn wide(mut extra: &[u8], size: u32, compressed: u32, place: u32) -> Option<(u64, u64)> {
    let mut numbers: &[u8] = &[];
    while extra.len() >= 4 {
        let (kind, bytes) = (u16_at(extra, 0), u16_at(extra, 2));
        let body = extra.get(4..4 + bytes)?;
        if kind == 1 {
            numbers = body;
        }
        extra = &extra[4 + bytes..];
    }
    let mut next = |small: u32| match small {
        u32::MAX => {
            let (number, rest) = numbers.split_at_checked(8)?;
            numbers = rest;
            Some(u64_at(number, 0))
        }
        small => Some(u64::from(small)),
    };
    let (_, compressed, place) = (next(size)?, next(compressed)?, next(place)?);
    Some((compressed, place))
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
