//! A decoder for baseline JPEG, which nearly all image files are. Other files, and files with unusual headers or
//! trailers, are [handed over](HandOver) to a general decoder. The pixels are bit-identical, but corrupt data is [an
//! error](Undecoded::Broken), where other decoders leave the rest of the image grey.

mod bits;
mod colour;
mod header;
mod huffman;
mod idct;
mod scan;
#[cfg(test)]
mod tests;

use bits::{InputWindow, ZigzagSteps, steps};
use header::JpegHeader;
use huffman::HuffmanTable;

use super::Channels;
use super::windows::Level;

/// A file that this decoder does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandOver;

/// Why a file was not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecoded {
    /// It needs the general decoder.
    HandOver,
    /// It is supported, but its data is truncated or corrupt before this byte.
    Broken(usize),
}

impl From<HandOver> for Undecoded {
    fn from(_: HandOver) -> Undecoded {
        Undecoded::HandOver
    }
}

/// State that is reused between images: tables, because many images share them, and the input window.
pub(crate) struct Decoder {
    kept: Option<Box<DecoderState>>,
    level: Level,
}

struct DecoderState {
    tables: DecoderTables,
    window: InputWindow,
}

impl DecoderState {
    /// Not inlined, because the state would otherwise be on the stack for every image.
    #[cold]
    #[inline(never)]
    fn empty() -> Box<DecoderState> {
        let factors = [([0; 64], steps(&[0; 64])); 4];
        Box::new(DecoderState {
            tables: DecoderTables { factors, codes: [[HuffmanTable::EMPTY; 4], [HuffmanTable::EMPTY; 4]] },
            window: InputWindow::EMPTY,
        })
    }
}

/// The tables that a file can refer to.
struct DecoderTables {
    /// Quantization tables.
    factors: [([u16; 64], ZigzagSteps); 4],
    /// DC and AC Huffman tables.
    codes: [[HuffmanTable; 4]; 2],
}

impl DecoderTables {
    fn set_factors(&mut self, index: usize, factors: [u16; 64]) -> Result<(), HandOver> {
        let (known, made) = self.factors.get_mut(index).ok_or(HandOver)?;
        if *known != factors {
            (*known, *made) = (factors, steps(&factors));
        }
        Ok(())
    }
}

impl Decoder {
    /// Maximum memory of a decoder.
    pub const BYTES: usize = size_of::<DecoderState>();

    /// Allocates its memory with the first image.
    pub fn new() -> Decoder {
        Decoder::at(Level::best())
    }

    fn at(level: Level) -> Decoder {
        Decoder { kept: None, level }
    }

    /// Bytes of line buffers for an image of this width.
    pub fn lines(width: usize) -> usize {
        scan::lines(width)
    }

    /// Decodes to the start of `pixels`; `lines` has [`lines`](Self::lines) bytes. If it hands over, the content of
    /// `pixels` is unspecified.
    pub fn run(
        &mut self,
        file: &[u8],
        size: (usize, usize),
        channels: Channels,
        lines: &mut [u8],
        pixels: &mut [u8],
    ) -> Result<(), Undecoded> {
        let DecoderState { tables, window } = &mut **self.kept.get_or_insert_with(DecoderState::empty);
        let header = JpegHeader::read(file, tables)?;
        if (header.width, header.height) != size {
            return Err(Undecoded::HandOver);
        }
        scan::run(&header, tables, window, self.level, channels, lines, pixels).map_err(|error| match error {
            Undecoded::Broken(at) => Undecoded::Broken(file.len() - header.data.len() + at),
            other => other,
        })
    }
}
