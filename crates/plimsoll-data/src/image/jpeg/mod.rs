//! Baseline JPEG: the kind that cameras and nearly all files of images are. Everything else, and every file with something unusual before or behind its
//! data, is [handed over](HandOver) to a decoder of all kinds. The pixels are the same, bit by bit; but data that is broken is
//! [refused](Undecoded::Broken), where others go on and leave the rest of the image grey.

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

/// A file that this decoder is not for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandOver;

/// Why a file was not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecoded {
    /// It is for another decoder.
    HandOver,
    /// It is of a kind that this one decodes, but its data ends or makes no sense somewhere before this byte.
    Broken(usize),
}

impl From<HandOver> for Undecoded {
    fn from(_: HandOver) -> Undecoded {
        Undecoded::HandOver
    }
}

/// What is kept from image to image: tables, because many images have the same, and a window of the data.
pub(crate) struct Decoder {
    kept: Option<Box<DecoderState>>,
    level: Level,
}

struct DecoderState {
    tables: DecoderTables,
    window: InputWindow,
}

impl DecoderState {
    /// Apart, because it would otherwise lie on the stack of every image.
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

/// The tables that a file may name.
struct DecoderTables {
    /// Factors of coefficients.
    factors: [([u16; 64], ZigzagSteps); 4],
    /// Codes of single and of run-length symbols.
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
    /// What one takes, at most.
    pub const BYTES: usize = size_of::<DecoderState>();

    /// Takes its memory with the first image.
    pub fn new() -> Decoder {
        Decoder::at(Level::best())
    }

    fn at(level: Level) -> Decoder {
        Decoder { kept: None, level }
    }

    /// Lines in work for an image so wide, in bytes.
    pub fn lines(width: usize) -> usize {
        scan::lines(width)
    }

    /// Decodes to the start of `pixels`; `lines` has the bytes of [`lines`](Self::lines). Where it hands over, `pixels` may hold anything.
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
