//! TIFF: the first page, in whole lines or tiles, uncompressed or compressed with LZW, Deflate or PackBits.

use super::ReadAt;
use super::header_reader::HeaderReader;
use crate::DataError;
use flate2::{Decompress, FlushDecompress};
use std::path::Path;
use weezl::{BitOrder, LzwStatus};

/// A page, as its directory describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiff {
    pub width: usize,
    pub height: usize,
    pub orientation: u16,
    bits: usize,
    samples: usize,
    compression: u32,
    photometric: u32,
    predictor: u32,
    /// Whether each sample has planes of its own.
    planar: bool,
    /// Width and height of a tile; whole lines are as wide as the page.
    chunk: (usize, usize),
    offsets: TagValues,
    lengths: TagValues,
    palette: Option<TagValues>,
    little: bool,
}

/// The values of a tag, somewhere in the file.
#[derive(Clone, Copy, Debug)]
struct TagValues {
    at: u64,
    count: u64,
    /// Bytes of a value.
    size: u64,
}

/// More tags are a sign of damage.
const MOST_TAGS: u64 = 4096;

impl Tiff {
    /// Parses the header and the directory of the first page.
    pub fn read(reader: &mut HeaderReader<'_>) -> Result<Tiff, DataError> {
        let path = reader.path;
        let refuse = |problem: String| DataError::image(path, problem);
        let unsupported = |what: String| refuse(format!("{what}, which is not supported; save it as PNG"));
        let head: [u8; 8] = reader.at(0, 8)?.try_into().expect("8 bytes");
        let little = head[0] == b'I';
        if number(&head[2..4], little) == 43 {
            return Err(unsupported("it is a BigTIFF".into()));
        }
        let directory = u64::from(number(&head[4..8], little));
        let tags = u64::from(number(reader.at(directory, 2)?, little));
        if tags > MOST_TAGS {
            return Err(refuse(format!("its directory claims {tags} tags; the file is damaged")));
        }
        let mut tiff = Tiff {
            width: 0,
            height: 0,
            orientation: 1,
            bits: 1,
            samples: 1,
            compression: 1,
            photometric: 1,
            predictor: 1,
            planar: false,
            chunk: (0, usize::MAX),
            offsets: TagValues { at: 0, count: 0, size: 4 },
            lengths: TagValues { at: 0, count: 0, size: 4 },
            palette: None,
            little,
        };
        let (mut bits_at, mut tiled) = (None, false);
        for tag in 0..tags {
            let at = directory + 2 + 12 * tag;
            let entry: [u8; 12] = reader.at(at, 12)?.try_into().expect("12 bytes");
            let (kind, count) = (number(&entry[2..4], little), u64::from(number(&entry[4..8], little)));
            let size = match kind {
                1 | 2 | 6 | 7 => 1,
                3 | 8 => 2,
                4 | 9 | 11 => 4,
                _ => 8,
            };
            let inline = size * count <= 4;
            let values = TagValues { at: if inline { at + 8 } else { u64::from(number(&entry[8..12], little)) }, count, size };
            let first = number(&entry[8..8 + size.min(4) as usize], little);
            match number(&entry[0..2], little) {
                256 => tiff.width = first as usize,
                257 => tiff.height = first as usize,
                258 => bits_at = Some(values),
                259 => tiff.compression = first,
                262 => tiff.photometric = first,
                273 => tiff.offsets = values,
                274 => tiff.orientation = first as u16,
                277 => tiff.samples = first as usize,
                278 if !tiled => tiff.chunk.1 = first as usize,
                279 => tiff.lengths = values,
                284 => tiff.planar = first == 2,
                317 => tiff.predictor = first,
                320 => tiff.palette = Some(values),
                322 => (tiled, tiff.chunk.0) = (true, first as usize),
                323 => (tiled, tiff.chunk.1) = (true, first as usize),
                324 => tiff.offsets = values,
                325 => tiff.lengths = values,
                // The formats of samples: unsigned integers or unspecified.
                339 if !matches!(first, 1 | 4) && inline => return Err(unsupported("its samples are signed numbers or floats".into())),
                339 if !inline => {
                    let format = number(reader.at(values.at, 2)?, little);
                    if !matches!(format, 1 | 4) {
                        return Err(unsupported("its samples are signed numbers or floats".into()));
                    }
                }
                _ => {}
            }
        }
        if let Some(values) = bits_at {
            for index in 0..values.count.min(8) {
                let bits = number(reader.at(values.at + index * values.size, values.size as usize)?, little) as usize;
                if index > 0 && bits != tiff.bits {
                    return Err(unsupported("its channels have different numbers of bits".into()));
                }
                tiff.bits = bits;
            }
        }
        if tiff.width == 0 || tiff.height == 0 {
            return Err(refuse(format!("its header says it is {} × {} pixels", tiff.width, tiff.height)));
        }
        if tiff.chunk.0 == 0 {
            tiff.chunk = (tiff.width, tiff.chunk.1.clamp(1, tiff.height));
        }
        let wanted = match tiff.photometric {
            0 | 1 | 3 => 1,
            2 => 3,
            5 => 4,
            other => return Err(unsupported(format!("its colours are of kind {other} (such as YCbCr or CIELab)"))),
        };
        if !matches!(tiff.bits, 1 | 2 | 4 | 8 | 16) || (tiff.bits < 8 && tiff.samples != 1) {
            return Err(unsupported(format!("it has {} samples of {} bits", tiff.samples, tiff.bits)));
        }
        if tiff.samples < wanted || tiff.samples > 8 || (tiff.photometric == 3 && (tiff.palette.is_none() || tiff.bits > 8)) {
            return Err(refuse("its header says two things about its colours; the file is damaged".into()));
        }
        if !matches!(tiff.compression, 1 | 5 | 8 | 32_773 | 32_946) {
            let name = match tiff.compression {
                2..=4 => "fax (CCITT)".to_string(),
                6 | 7 => "JPEG".to_string(),
                50_000 => "Zstandard".to_string(),
                50_001 => "WebP".to_string(),
                other => format!("method {other}"),
            };
            return Err(refuse(format!("its compression is {name}; save it with LZW, Deflate or without compression")));
        }
        if !matches!(tiff.predictor, 1 | 2) || (tiff.predictor == 2 && tiff.bits < 8) {
            return Err(unsupported(format!("its predictor is {}", tiff.predictor)));
        }
        if tiff.chunk.0 == 0 || tiff.chunk.1 == 0 || tiff.line_bytes().and_then(|line| line.checked_mul(tiff.chunk.1)).is_none() {
            return Err(refuse(format!("its tiles are {} × {} pixels; the file is damaged", tiff.chunk.0, tiff.chunk.1)));
        }
        Ok(tiff)
    }

    /// Samples of a pixel in a segment.
    fn stored_samples(&self) -> usize {
        if self.planar { 1 } else { self.samples }
    }

    /// Bytes of a line of a segment.
    fn line_bytes(&self) -> Option<usize> {
        let bits = self.chunk.0.checked_mul(self.stored_samples())?.checked_mul(self.bits)?;
        Some(bits.div_ceil(8))
    }

    /// Bytes of the largest segment after decompression.
    pub fn chunk_bytes(&self) -> usize {
        self.line_bytes().unwrap_or(0) * self.chunk.1
    }

    /// Whether pixels have one sample: grey values or indices.
    fn is_single(&self) -> bool {
        matches!(self.photometric, 0 | 1 | 3)
    }

    /// Whether pixels are grey, not colours of a palette.
    pub fn is_grey(&self) -> bool {
        matches!(self.photometric, 0 | 1)
    }

    /// Writes pixels: grey ones with one byte each, others with three. `chunk` has [`chunk_bytes`](Self::chunk_bytes).
    pub fn pixels(&self, path: &Path, file: &[u8], chunk: &mut [u8], pixels: &mut [u8]) -> Result<(), DataError> {
        let refuse = |problem: String| DataError::image(path, problem);
        if self.is_grey() {
            let most = (1u32 << self.bits.min(8)) - 1;
            let inverted = self.photometric == 0;
            return self
                .each(file, chunk, |at, _, value| {
                    let value = if inverted { most - value } else { value };
                    pixels[at] = (value * 255 / most) as u8;
                })
                .map_err(refuse);
        }
        if let Some(palette) = self.palette.filter(|_| self.photometric == 3) {
            let colours = 1usize << self.bits;
            let mut table = [[0; 3]; 256];
            for (index, colour) in table.iter_mut().enumerate().take(colours) {
                for (channel, out) in colour.iter_mut().enumerate() {
                    // Sixteen bits per channel: all reds, then greens, then blues.
                    *out = (self.value(file, palette, (channel * colours + index) as u64).map_err(refuse)? >> 8) as u8;
                }
            }
            return self
                .each(file, chunk, |at, _, value| pixels[at * 3..][..3].copy_from_slice(&table[value as usize & 255]))
                .map_err(refuse);
        }
        let inks = self.photometric == 5;
        let channels = if inks { 4 } else { 3 };
        self.each(file, chunk, |at, sample, value| {
            if sample < channels {
                pixels[at * channels + sample] = value as u8;
            }
        })
        .map_err(refuse)?;
        if inks {
            for at in 0..self.width * self.height {
                let [cyan, magenta, yellow, black] = [0, 1, 2, 3].map(|ink| 255 - u32::from(pixels[at * 4 + ink]));
                for (out, ink) in [cyan, magenta, yellow].into_iter().enumerate() {
                    pixels[at * 3 + out] = (ink * black / 255) as u8;
                }
            }
        }
        Ok(())
    }

    /// Writes the indices of pixels, or their grey values as they are.
    pub fn indices(&self, path: &Path, file: &[u8], chunk: &mut [u8], out: &mut [u8]) -> Result<(), DataError> {
        let refuse = |problem: String| DataError::image(path, problem);
        if !self.is_single() || self.bits > 8 {
            return Err(refuse("its pixels are colours or have 16 bits, not class indices".into()));
        }
        let most = (1u32 << self.bits) - 1;
        let inverted = self.photometric == 0;
        self.each(file, chunk, |at, sample, value| {
            if sample == 0 {
                out[at] = if inverted { most - value } else { value } as u8;
            }
        })
        .map_err(refuse)
    }

    /// Calls `put` with the pixel, the sample and the value of every sample; of 16 bits, the upper eight.
    fn each(&self, file: &[u8], chunk: &mut [u8], mut put: impl FnMut(usize, usize, u32)) -> Result<(), String> {
        let (across, down) = (self.width.div_ceil(self.chunk.0), self.height.div_ceil(self.chunk.1));
        let (line, stored) = (self.line_bytes().unwrap_or(0), self.stored_samples());
        let planes = if self.planar { self.samples } else { 1 };
        for plane in 0..planes {
            for index in 0..across * down {
                let (left, top) = (index % across * self.chunk.0, index / across * self.chunk.1);
                // The last lines may be fewer; tiles are always whole.
                let lines = if self.chunk.0 == self.width { self.chunk.1.min(self.height - top) } else { self.chunk.1 };
                let bytes = &mut chunk[..line * lines];
                self.unpack(file, (plane * across * down + index) as u64, bytes)?;
                if self.predictor == 2 {
                    bytes.chunks_exact_mut(line).for_each(|line| self.undo_differences(line));
                }
                for (y, line) in bytes.chunks_exact(line).enumerate().take(self.height - top) {
                    for x in 0..self.chunk.0.min(self.width - left) {
                        let pixel = (top + y) * self.width + left + x;
                        for sample in 0..stored {
                            put(pixel, plane + sample, self.sample(line, x * stored + sample));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// A sample of a line; of 16 bits, the upper eight.
    fn sample(&self, line: &[u8], at: usize) -> u32 {
        u32::from(match self.bits {
            8 => line[at],
            16 => line[2 * at + usize::from(self.little)],
            bits => {
                let per_byte = 8 / bits;
                line[at / per_byte] >> ((per_byte - 1 - at % per_byte) * bits) & ((1 << bits) - 1)
            }
        })
    }

    /// Adds the sample to the left to each sample.
    fn undo_differences(&self, line: &mut [u8]) {
        let stored = self.stored_samples();
        if self.bits == 8 {
            (stored..line.len()).for_each(|at| line[at] = line[at].wrapping_add(line[at - stored]));
            return;
        }
        for at in (2 * stored..line.len()).step_by(2) {
            let word = |at: usize| [line[at], line[at + 1]];
            let load = |bytes| if self.little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) };
            let sum = load(word(at)).wrapping_add(load(word(at - 2 * stored)));
            let sum = if self.little { sum.to_le_bytes() } else { sum.to_be_bytes() };
            line[at..at + 2].copy_from_slice(&sum);
        }
    }

    /// Decompresses a segment.
    fn unpack(&self, file: &[u8], index: u64, out: &mut [u8]) -> Result<(), String> {
        let start = self.value(file, self.offsets, index)? as usize;
        // Old writers leave out the lengths of uncompressed data.
        let length = if self.lengths.count == 0 { out.len() } else { self.value(file, self.lengths, index)? as usize };
        let from = file.get(start..).and_then(|rest| rest.get(..length.min(rest.len()))).ok_or_else(cut)?;
        match self.compression {
            1 => out.copy_from_slice(from.get(..out.len()).ok_or_else(cut)?),
            5 => lzw(from, out)?,
            32_773 => pack_bits(from, out)?,
            _ => deflate(from, out)?,
        }
        Ok(())
    }

    /// A value of a tag.
    fn value(&self, file: &[u8], values: TagValues, index: u64) -> Result<u32, String> {
        if index >= values.count {
            return Err("its directory lists too few segments or colours; the file is damaged".into());
        }
        let (mut bytes, size) = ([0; 8], values.size.min(4) as usize);
        let at = values.at.saturating_add(index * values.size);
        let read = file.read_at(&mut bytes[..size], at).unwrap_or(0);
        if read < size { Err(cut()) } else { Ok(number(&bytes[..size], self.little)) }
    }
}

fn cut() -> String {
    "it is truncated: the end of its data is missing".into()
}

/// An unsigned integer of one, two or four bytes.
fn number(bytes: &[u8], little: bool) -> u32 {
    let digits = bytes.iter().map(|byte| u32::from(*byte));
    if little { digits.rev().fold(0, |all, byte| all << 8 | byte) } else { digits.fold(0, |all, byte| all << 8 | byte) }
}

fn lzw(mut from: &[u8], mut out: &mut [u8]) -> Result<(), String> {
    let mut decoder = weezl::decode::Decoder::with_tiff_size_switch(BitOrder::Msb, 8);
    while !out.is_empty() {
        let result = decoder.decode_bytes(from, out);
        (from, out) = (&from[result.consumed_in..], &mut out[result.consumed_out..]);
        match result.status {
            Ok(LzwStatus::Ok) if result.consumed_in + result.consumed_out > 0 => {}
            _ if out.is_empty() => {}
            _ => return Err(cut()),
        }
    }
    Ok(())
}

fn deflate(from: &[u8], out: &mut [u8]) -> Result<(), String> {
    let mut state = Decompress::new(true);
    state.decompress(from, out, FlushDecompress::Finish).map_err(|error| format!("its data is broken ({error})"))?;
    // The data may go on after the pixels.
    if state.total_out() == out.len() as u64 { Ok(()) } else { Err(cut()) }
}

fn pack_bits(mut from: &[u8], out: &mut [u8]) -> Result<(), String> {
    let mut at = 0;
    while at < out.len() {
        let [head, rest @ ..] = from else { return Err(cut()) };
        match *head as i8 {
            literal @ 0.. => {
                let count = literal as usize + 1;
                let bytes = rest.get(..count).ok_or_else(cut)?;
                let fits = count.min(out.len() - at);
                out[at..at + fits].copy_from_slice(&bytes[..fits]);
                (at, from) = (at + fits, &rest[count..]);
            }
            -128 => from = rest,
            run => {
                let count = (1 - isize::from(run)) as usize;
                let (value, rest) = rest.split_first().ok_or_else(cut)?;
                let fits = count.min(out.len() - at);
                out[at..at + fits].fill(*value);
                (at, from) = (at + fits, rest);
            }
        }
    }
    Ok(())
}
