//! Parses the header of an image, a few bytes at a time, so that its size is known before memory is allocated.

use super::bmp::Bmp;
use super::header_reader::{HeaderReader, WINDOW};
use super::tiff::Tiff;
use super::{Orientation, ReadAt, jpeg};
use crate::DataError;
use plimsoll_core::Bytes;
use std::ops::Range;
use std::path::Path;

/// The format and size of an image, and the memory for decoding it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub format: Format,
    pub width: usize,
    pub height: usize,
    /// Channels that the decoder may produce before conversion to the requested ones.
    pub channels: usize,
    pub file: Bytes,
    /// Upper bound of the memory that the decoder allocates itself.
    pub work: Bytes,
    /// Bytes of line buffers that the decoder takes from the caller.
    pub lines: usize,
    pub orientation: Orientation,
    /// Whether it is CMYK.
    pub inks: bool,
    /// Offset of the compressed data of a JPEG.
    pub data: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Jpeg,
    Png,
    WebP,
    Gif,
    Bmp,
    Tiff,
}

/// Tables and state of a decoder, with allocator overhead.
const DECODER: Bytes = Bytes::kib(256);

/// Inflating: the window, its buffers, one or two lines.
const INFLATE: Bytes = Bytes::kib(512);

/// State of a PNG decoder, and its buffers for decompressed data at most.
const PNG_STATE: u64 = 40 << 10;
const PNG_BUFFERS: u64 = 400 << 10;

/// The table and the line buffers of a GIF decoder.
const LZW: Bytes = Bytes::kib(128);

/// Parses the header of an image that is a part of a file, or all of it.
pub(crate) fn probe(file: &dyn ReadAt, path: &Path, part: Range<u64>) -> Result<Probe, DataError> {
    let length = part.end - part.start;
    let mut reader = HeaderReader::new(file, path, part.start);
    if length == 0 {
        return Err(DataError::image(path, "it is empty"));
    }
    let head = reader.at(0, 8.min(length as usize))?;
    match head {
        [0xFF, 0xD8, 0xFF, ..] => jpeg_header(&mut reader, length),
        b"\x89PNG\r\n\x1a\n" => png(&mut reader, length),
        [b'R', b'I', b'F', b'F', ..] => webp(&mut reader, length),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => gif(&mut reader, length),
        [b'I', b'I', b'*' | b'+', 0, ..] | [b'M', b'M', 0, b'*' | b'+', ..] => tiff(&mut reader, length),
        [b'B', b'M', ..] => bmp(&mut reader, length),
        _ => Err(DataError::image(path, "it begins like no JPEG, PNG, WebP, GIF, BMP or TIFF")),
    }
}

/// Whether the bytes start with the signature of a supported format.
pub(crate) fn begins_like_one(bytes: &[u8]) -> bool {
    let starts: [&[u8]; 6] = [&[0xFF, 0xD8, 0xFF], b"\x89PNG\r\n\x1a\n", b"RIFF", b"GIF8", b"II*\0", b"MM\0*"];
    starts.iter().any(|start| bytes.starts_with(start))
}

/// An image of this size with four channels, for which the decoder allocates `work` bytes.
fn sized(reader: &HeaderReader<'_>, format: Format, width: usize, height: usize, file: u64, work: Bytes) -> Result<Probe, DataError> {
    if width == 0 || height == 0 {
        return Err(DataError::image(reader.path, format!("its header says it is {width} × {height} pixels")));
    }
    let (orientation, inks) = (Orientation::default(), false);
    Ok(Probe { format, width, height, channels: 4, file: Bytes(file), work, lines: 0, orientation, inks, data: 0 })
}

fn png(reader: &mut HeaderReader<'_>, length: u64) -> Result<Probe, DataError> {
    let header: [u8; 33] = reader.at(0, 33)?.try_into().expect("33 bytes");
    if &header[12..16] != b"IHDR" {
        return Err(DataError::image(reader.path, "its first chunk is not IHDR"));
    }
    let side = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize;
    let (width, height) = (side(16), side(20));
    let (depth, colour) = (u64::from(header[24]), header[25]);
    let samples = match colour {
        0 | 3 => 1,
        2 => 3,
        4 => 2,
        _ => 4,
    };
    let line = (width as u64 * samples * depth).div_ceil(8) + 1;
    let chunks = png_chunks(reader, length)?;
    // Palettes become RGB; transparency becomes a channel.
    let channels = match colour {
        0 => 1 + usize::from(chunks.transparency),
        2 | 3 => 3 + usize::from(chunks.transparency),
        4 => 2,
        _ => 4,
    };
    // The buffers grow by doubling, up to their limit: the previous line, the current one, and the decompressed data.
    let decompressed = line.saturating_mul(height as u64);
    let work = PNG_STATE + decompressed.saturating_mul(4).min(PNG_BUFFERS) + 4 * line + 8 * width as u64 + 3 * chunks.largest;
    Ok(Probe { channels, ..sized(reader, Format::Png, width, height, length, Bytes(work))? })
}

/// What the chunks before the data of a PNG say about the memory for decoding it.
struct PngChunks {
    transparency: bool,
    /// Bytes of the largest chunk, which the decoder holds as a whole.
    largest: u64,
}

fn png_chunks(reader: &mut HeaderReader<'_>, length: u64) -> Result<PngChunks, DataError> {
    const MOST: usize = 64;
    // The size of the data, which is not held, and of texts and profiles, which are skipped, does not matter.
    const NOT_HELD: [&[u8]; 4] = [b"tEXt", b"zTXt", b"iTXt", b"iCCP"];
    let mut chunks = PngChunks { transparency: false, largest: 0 };
    let mut at = 8;
    for _ in 0..MOST {
        if at + 8 > length {
            return Ok(chunks);
        }
        let head: [u8; 8] = reader.at(at, 8)?.try_into().expect("eight bytes");
        let size = u64::from(u32::from_be_bytes([head[0], head[1], head[2], head[3]]));
        match &head[4..] {
            b"IDAT" | b"IEND" => return Ok(chunks),
            b"tRNS" => chunks.transparency = true,
            kind if NOT_HELD.contains(&kind) => {}
            _ => chunks.largest = chunks.largest.max(size.min(length)),
        }
        at += 12 + size;
    }
    Ok(PngChunks { transparency: true, largest: chunks.largest.max(INFLATE.0) })
}

fn webp(reader: &mut HeaderReader<'_>, length: u64) -> Result<Probe, DataError> {
    let header: [u8; 30] = reader.at(0, 30)?.try_into().expect("30 bytes");
    let wide = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let three = |at: usize| wide(at) | usize::from(header[at + 2]) << 16;
    let (width, height) = match (&header[8..12], &header[12..16]) {
        (b"WEBP", b"VP8 ") => (wide(26) & 0x3FFF, wide(28) & 0x3FFF),
        // After a signature byte, fourteen bits each.
        (b"WEBP", b"VP8L") => {
            let bits = wide(21) | wide(23) << 16;
            ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        }
        (b"WEBP", b"VP8X") => (three(24) + 1, three(27) + 1),
        _ => return Err(DataError::image(reader.path, "it begins like a RIFF file but is no WebP")),
    };
    // Planes of a frame or untransformed pixels, a copy of the data, and tables whose size is bounded by the data.
    let work = DECODER + Bytes(width as u64 * height as u64 * 12) + Bytes(length) * 32;
    sized(reader, Format::WebP, width, height, length, work)
}

fn gif(reader: &mut HeaderReader<'_>, length: u64) -> Result<Probe, DataError> {
    let header: [u8; 10] = reader.at(0, 10)?.try_into().expect("ten bytes");
    let wide = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    // Three channels of RGB and one of palette indices.
    sized(reader, Format::Gif, wide(6), wide(8), length, LZW)
}

fn bmp(reader: &mut HeaderReader<'_>, length: u64) -> Result<Probe, DataError> {
    let bmp = Bmp::read(reader)?;
    // Three channels of RGB and one of palette indices.
    sized(reader, Format::Bmp, bmp.width, bmp.height, length, Bytes::ZERO)
}

fn tiff(reader: &mut HeaderReader<'_>, length: u64) -> Result<Probe, DataError> {
    let tiff = Tiff::read(reader)?;
    let probe = sized(reader, Format::Tiff, tiff.width, tiff.height, length, INFLATE)?;
    Ok(Probe { lines: tiff.chunk_bytes(), orientation: Orientation::of(tiff.orientation), ..probe })
}

fn jpeg_header(reader: &mut HeaderReader<'_>, length: u64) -> Result<Probe, DataError> {
    let mut at = 2;
    let mut frame: Option<JpegFrame> = None;
    let mut orientation = Orientation::default();
    loop {
        let &[mark, code, high, low] = reader.at(at, 4)? else { unreachable!("four were asked for") };
        if mark != 0xFF {
            return Err(DataError::image(reader.path, format!("its header breaks off at byte {at}")));
        }
        if code == 0xFF {
            at += 1;
            continue;
        }
        let size = u64::from(u16::from_be_bytes([high, low]));
        match code {
            0xC0..=0xC2 => frame = Some(JpegFrame::read(reader, at, size, code == 0xC2)?),
            0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                return Err(DataError::image(reader.path, "its kind of JPEG (lossless, hierarchical or arithmetic) is not supported"));
            }
            0xE1 if orientation == Orientation::default() => {
                let count = (size as usize).saturating_sub(2).min(WINDOW).min((length.saturating_sub(at + 4)) as usize);
                orientation = Orientation::from_exif(reader.at(at + 4, count)?);
            }
            0xDA => {
                let scan = reader.at(at + 4, 1)?[0];
                let Some(frame) = frame else {
                    return Err(DataError::image(reader.path, "its data begins before its size is said"));
                };
                let work = frame.work(usize::from(scan) < frame.components || frame.progressive) + Bytes(at);
                let (lines, inks) = (jpeg::Decoder::lines(frame.width), frame.components == 4);
                let probe = sized(reader, Format::Jpeg, frame.width, frame.height, length, work)?;
                return Ok(Probe { channels: 3, lines, orientation, inks, data: at, ..probe });
            }
            0xD9 => return Err(DataError::image(reader.path, "it ends before its data")),
            _ => {}
        }
        if size < 2 {
            return Err(DataError::image(reader.path, format!("its header breaks off at byte {at}")));
        }
        at += 2 + size;
    }
}

#[derive(Clone, Copy)]
struct JpegFrame {
    width: usize,
    height: usize,
    components: usize,
    /// The sum over components of the product of their sampling factors.
    samples: usize,
    progressive: bool,
}

impl JpegFrame {
    fn read(reader: &mut HeaderReader<'_>, at: u64, size: u64, progressive: bool) -> Result<JpegFrame, DataError> {
        let fixed: [u8; 6] = reader.at(at + 4, 6)?.try_into().expect("six bytes");
        let components = usize::from(fixed[5]);
        if !matches!(components, 1 | 3 | 4) || size < 8 + 3 * components as u64 {
            return Err(DataError::image(reader.path, format!("its header promises {components} colour components")));
        }
        let mut samples = 0;
        for component in reader.at(at + 10, 3 * components)?.chunks_exact(3) {
            samples += usize::from(component[1] >> 4) * usize::from(component[1] & 15);
        }
        let side = |i: usize| usize::from(u16::from_be_bytes([fixed[i], fixed[i + 1]]));
        Ok(JpegFrame { height: side(1), width: side(3), components, samples, progressive })
    }

    /// Line buffers, and all coefficients if the image has several scans.
    fn work(&self, several_scans: bool) -> Bytes {
        let lines = (self.width as u64 + 64) * self.samples.max(self.components) as u64 * 128;
        let coefficients = (self.width as u64 + 64) * (self.height as u64 + 64) * self.samples as u64 * 2;
        DECODER + Bytes(lines) + Bytes(if several_scans { coefficients } else { 0 })
    }
}
