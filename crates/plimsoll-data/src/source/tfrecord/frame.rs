//! The framing of a record: its length, and masked CRC-32C checksums of the length and of the data.

use super::LONGEST;
use plimsoll_core::Bytes;

/// Bytes of the length and its checksum; and these with the checksum of the data.
pub(super) const HEAD: usize = 12;
pub(super) const FRAME: u64 = 16;

#[derive(Clone, Copy)]
pub(super) struct RecordHeader {
    pub bytes: u64,
}

impl RecordHeader {
    pub fn read(head: &[u8; HEAD]) -> Result<RecordHeader, String> {
        let (length, check) = head.split_at(8);
        let bytes = u64::from_le_bytes(length.try_into().expect("8 bytes"));
        if masked(length) != u32::from_le_bytes(check.try_into().expect("4 bytes")) {
            return Err("its length does not match its checksum; the file is damaged or no TFRecord file".into());
        }
        Ok(RecordHeader { bytes })
    }

    /// Checks the header, and that the record is not longer than `longest`.
    pub fn check(self, longest: Bytes) -> Result<RecordHeader, String> {
        match self.bytes > longest.0 {
            true => Err(format!("it is of {} and may be of {longest}; split it", Bytes(self.bytes))),
            false => Ok(self),
        }
    }
}

/// The data of a frame, after its checksum is verified.
pub(super) fn record(frame: &[u8]) -> Result<&[u8], String> {
    let cut = || "the file ends inside it; copy or write the file again".to_string();
    let (head, rest) = frame.split_first_chunk::<HEAD>().ok_or_else(cut)?;
    let bytes = RecordHeader::read(head)?.check(LONGEST)?.bytes as usize;
    let (record, rest) = rest.split_at_checked(bytes).ok_or_else(cut)?;
    let check = rest.first_chunk::<4>().ok_or_else(cut)?;
    if masked(record) != u32::from_le_bytes(*check) {
        return Err("its bytes do not match their checksum; the file is damaged, copy or write it again".into());
    }
    Ok(record)
}

/// The checksum as stored: rotated and offset, so that checksums of data with embedded checksums are no weaker.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// Whether a file begins with the length of a record and its checksum; an empty file has no records.
pub(super) fn begins(head: &[u8]) -> bool {
    head.is_empty() || head.first_chunk().is_some_and(|head| RecordHeader::read(head).is_ok())
}
