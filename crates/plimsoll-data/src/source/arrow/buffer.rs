//! The buffers of a record batch: read where they are, or decompressed as a whole.

use super::file::{ArrowFile, BufferSpan, Codec};
use crate::source::columnar::resize_to;
use lz4_flex::frame::FrameDecoder as Lz4;
use ruzstd::decoding::FrameDecoder as Zstandard;
use std::io::Read;
use std::os::unix::fs::FileExt;

/// A larger buffer is not decompressed.
const LARGEST: u64 = 256 << 20;

pub(super) const SHORT: &str = "has fewer values than rows; the file is damaged";
const CHANGED: &str = "is not what it was; the file changed while it was read";

/// Decompresses buffers; what that takes is kept from one to the next.
#[derive(Default)]
pub(super) struct BufferUnpacker {
    packed: Vec<u8>,
    zstandard: Option<Zstandard>,
}

/// Sizes from which memory is planned; those of a buffer that is not compressed are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BufferLimits {
    /// Of the compressed bytes.
    pub packed: u64,
    pub unpacked: u64,
    /// Of decompressing: the window of Zstandard or the blocks of LZ4, and tables.
    pub unpacking: u64,
}

impl BufferLimits {
    pub fn of(file: &ArrowFile, codec: Option<Codec>, span: BufferSpan) -> Result<BufferLimits, String> {
        Ok(head(file, codec, span)?.0)
    }

    pub fn merge(self, other: BufferLimits) -> BufferLimits {
        BufferLimits {
            packed: self.packed.max(other.packed),
            unpacked: self.unpacked.max(other.unpacked),
            unpacking: self.unpacking.max(other.unpacking),
        }
    }
}

/// The sizes of a buffer, and where its bytes are.
fn head(file: &ArrowFile, codec: Option<Codec>, span: BufferSpan) -> Result<(BufferLimits, BufferSpan), String> {
    let Some(codec) = codec.filter(|_| span.length > 0) else { return Ok((BufferLimits::default(), span)) };
    // The length before compression, and the first bytes of a frame.
    let mut start = [0; 14];
    let count = (span.length as usize).min(start.len());
    file.file.read_exact_at(&mut start[..count], span.at).map_err(|_| CHANGED)?;
    let rest = BufferSpan { at: span.at + 8, length: span.length.checked_sub(8).ok_or(SHORT)? };
    let (length, frame) = start.split_first_chunk().ok_or(SHORT)?;
    let unpacked = match i64::from_le_bytes(*length) {
        -1 => return Ok((BufferLimits::default(), rest)),
        length => u64::try_from(length).map_err(|_| SHORT)?,
    };
    if unpacked > LARGEST {
        let (has, most) = (unpacked >> 20, LARGEST >> 20);
        return Err(format!("has a compressed buffer of {has} MiB, and at most {most} are read; write smaller record batches"));
    }
    let unpacking = match codec {
        // The sixth byte of a frame has the size of its blocks: 64 KiB, 256 KiB, 1 MiB or 4 MiB.
        Codec::Lz4 => (3 << (8 + 2 * u64::from(frame[5] >> 4 & 7).max(4))) + (256 << 10),
        Codec::Zstandard => 2 * unpacked + (1 << 20),
    };
    Ok((BufferLimits { packed: rest.length, unpacked, unpacking }, rest))
}

/// A buffer of the current record batch.
#[derive(Default)]
pub(super) struct Buffer {
    span: BufferSpan,
    /// Its bytes, if they were compressed.
    unpacked: Option<Vec<u8>>,
    /// Bytes that were read of it.
    raw: Vec<u8>,
}

impl Buffer {
    /// Moves to a buffer; a compressed one is decompressed, within the limits.
    pub fn enter(
        &mut self,
        file: &ArrowFile,
        codec: Option<Codec>,
        span: BufferSpan,
        limits: BufferLimits,
        unpacker: &mut BufferUnpacker,
    ) -> Result<(), String> {
        let mut bytes = self.unpacked.take().unwrap_or_default();
        let (sizes, rest) = head(file, codec, span)?;
        self.span = rest;
        let Some(codec) = codec.filter(|_| sizes != BufferLimits::default()) else { return Ok(()) };
        if limits.merge(sizes) != limits {
            return Err(CHANGED.into());
        }
        let length = sizes.unpacked;
        resize_to(&mut bytes, length as usize);
        bytes.resize(length as usize, 0);
        if length > 0 {
            unpacker.unpack(file, codec, rest, &mut bytes)?;
        }
        self.unpacked = Some(bytes);
        Ok(())
    }

    /// Bytes of the buffer.
    pub fn length(&self) -> u64 {
        self.unpacked.as_ref().map_or(self.span.length, |bytes| bytes.len() as u64)
    }

    /// Some bytes.
    pub fn bytes(&mut self, file: &ArrowFile, at: u64, length: usize) -> Result<&[u8], String> {
        let end = at.checked_add(length as u64).filter(|end| *end <= self.length()).ok_or(SHORT)?;
        if let Some(bytes) = &self.unpacked {
            return Ok(&bytes[at as usize..end as usize]);
        }
        if self.raw.len() < length {
            resize_to(&mut self.raw, length);
            self.raw.resize(length, 0);
        }
        let raw = &mut self.raw[..length];
        file.file.read_exact_at(raw, self.span.at + at).map_err(|_| CHANGED)?;
        Ok(raw)
    }
}

impl BufferUnpacker {
    fn unpack(&mut self, file: &ArrowFile, codec: Codec, span: BufferSpan, out: &mut [u8]) -> Result<(), String> {
        let length = span.length as usize;
        resize_to(&mut self.packed, length);
        self.packed.resize(length, 0);
        file.file.read_exact_at(&mut self.packed, span.at).map_err(|_| CHANGED)?;
        let broken = |error: &dyn std::fmt::Display| format!("has a buffer that cannot be unpacked ({error})");
        match codec {
            Codec::Lz4 => Lz4::new(&self.packed[..]).read_exact(out).map_err(|error| broken(&error)),
            Codec::Zstandard => {
                let read = self.zstandard.get_or_insert_default().decode_all(&self.packed, out).map_err(|error| broken(&error))?;
                if read == out.len() { Ok(()) } else { Err(broken(&"it is shorter than its head says")) }
            }
        }
    }
}
