//! Decodes the scan to pixels, one row of MCUs at a time, so that samples are converted while they are in the CPU
//! cache.

use super::bits::{BitReader, CoefficientBlock, InputWindow, ZigzagSteps};
use super::header::JpegHeader;
use super::huffman::HuffmanTable;
use super::idct::idct;
use super::{DecoderTables, HandOver, Undecoded, colour};
use crate::image::Channels;
use crate::image::windows::Level;

/// Lines of a component kept from the previous row of MCUs, because chroma upsampling needs adjacent lines.
const KEPT: usize = 2;

/// Bytes of the line buffers: 2 + 16 lines of the first component, 2 + 8 and one blended line of each other, and the
/// margins for vector loads.
pub(super) fn lines(width: usize) -> usize {
    (KEPT + 16 + 2 * (KEPT + 8 + 1)) * width.next_multiple_of(16) + 7 * colour::BEYOND
}

/// The line buffers of one component.
struct Plane<'a> {
    samples: &'a mut [u8],
    stride: usize,
    /// Blocks per MCU, horizontally and vertically.
    across: usize,
    down: usize,
}

impl<'a> Plane<'a> {
    /// Takes its buffers from the front of `memory`.
    fn take(memory: &mut &'a mut [u8], units: usize, across: usize, down: usize) -> Result<Plane<'a>, HandOver> {
        let stride = units * across * 8;
        let samples = cut(memory, (KEPT + 8 * down) * stride + colour::BEYOND)?;
        Ok(Plane { samples, stride, across, down })
    }

    /// A line of this row of MCUs, or one of the two kept lines (0 and 1), with the margin for vector loads.
    fn line(&self, line: usize) -> &[u8] {
        &self.samples[line * self.stride..][..self.stride + colour::BEYOND]
    }

    fn keep(&mut self) {
        let all = (KEPT + 8 * self.down) * self.stride;
        self.samples.copy_within(all - KEPT * self.stride..all, 0);
    }
}

/// One of the blocks of an MCU.
#[derive(Clone, Copy)]
struct McuBlock<'a> {
    component: usize,
    codes: [&'a HuffmanTable; 2],
    steps: &'a ZigzagSteps,
    /// Offset of the first MCU's block in its plane, and the distance to the next.
    first: usize,
    pitch: usize,
}

/// A block whose coefficients were read. It is transformed only after the next one was read, because a vector load
/// right after small stores defeats store forwarding.
struct Waiting {
    component: usize,
    place: usize,
    length: usize,
}

impl Waiting {
    #[inline(always)]
    fn finish(self, level: Level, planes: &mut [Plane<'_>; 3], block: &mut CoefficientBlock) {
        let plane = &mut planes[self.component];
        idct(level, block, self.length, &mut plane.samples[self.place..], plane.stride);
    }
}

fn cut<'a>(memory: &mut &'a mut [u8], count: usize) -> Result<&'a mut [u8], HandOver> {
    let (front, rest) = std::mem::take(memory).split_at_mut_checked(count).ok_or(HandOver)?;
    *memory = rest;
    Ok(front)
}

/// Decodes the scan.
pub(super) fn run(
    header: &JpegHeader<'_>,
    tables: &DecoderTables,
    window: &mut InputWindow,
    level: Level,
    channels: Channels,
    mut memory: &mut [u8],
    pixels: &mut [u8],
) -> Result<(), Undecoded> {
    let &JpegHeader { width, height, components, across, down, .. } = header;
    // The general decoder converts such images to grey in a different way.
    if channels == Channels::Grey && (across, down) == (1, 2) {
        return Err(Undecoded::HandOver);
    }
    let units = width.div_ceil(8 * across);
    let rows = height.div_ceil(8 * down);
    let grey = components == 1 || channels == Channels::Grey;
    let mut planes = [
        Plane::take(&mut memory, units, across, down)?,
        Plane::take(&mut memory, if grey { 0 } else { units }, 1, 1)?,
        Plane::take(&mut memory, if grey { 0 } else { units }, 1, 1)?,
    ];
    let half = across == 2;
    let margins = [(); 2].map(|()| cut(&mut memory, if grey { 0 } else { units * 8 } + 2 * colour::BEYOND));
    let [blue, red] = margins;
    let mut blends = [blue?, red?];
    let pixels = pixels.get_mut(..width * height * channels.count()).ok_or(HandOver)?;
    let mut out = pixels.chunks_exact_mut(width * channels.count());

    let mut parts = [None; 6];
    let mut places = parts.iter_mut();
    for (component, plane) in planes.iter().enumerate().take(components) {
        let [factors, dc, ac] = header.tables[component];
        let (codes, steps) = ([&tables.codes[0][dc], &tables.codes[1][ac]], &tables.factors[factors].1);
        let sides = (0..plane.down).flat_map(|y| (0..plane.across).map(move |x| (y, x)));
        for ((y, x), part) in sides.zip(places.by_ref()) {
            let first = (KEPT + 8 * y) * plane.stride + 8 * x;
            *part = Some(McuBlock { component, codes, steps, first, pitch: 8 * plane.across });
        }
    }

    let mut bits = BitReader::new(header.data, window);
    let (mut first, mut second): (CoefficientBlock, CoefficientBlock) = ([0; 256], [0; 256]);
    let mut blocks = [&mut first, &mut second];
    let mut waiting: Option<Waiting> = None;
    let mut predictions = [0i32; 3];
    let (mut until_restart, mut mark) = (header.restart, 0);
    for row in 0..rows {
        for unit in 0..units {
            if header.restart > 0 && until_restart == 0 {
                bits.pass(0xD0 + mark).map_err(|HandOver| broken(&bits))?;
                (until_restart, mark, predictions) = (header.restart, (mark + 1) % 8, [0; 3]);
            }
            until_restart = until_restart.wrapping_sub(1);
            for part in parts.iter().flatten() {
                let made = bits.block(level, part.codes, part.steps, &mut predictions[part.component], blocks[0]);
                let length = made.map_err(|HandOver| broken(&bits))?;
                if part.component > 0 && grey {
                    blocks[0][..64].fill(0);
                    continue;
                }
                blocks.swap(0, 1);
                let next = Waiting { component: part.component, place: part.first + unit * part.pitch, length };
                if let Some(before) = waiting.replace(next) {
                    before.finish(level, &mut planes, blocks[0]);
                }
            }
        }
        if let Some(last) = waiting.take() {
            last.finish(level, &mut planes, blocks[1]);
        }
        if grey {
            for line in KEPT..KEPT + 8 * down {
                let Some(out) = out.next() else { break };
                colour::grey(planes[0].line(line), channels, out);
            }
        } else if down == 1 {
            for line in KEPT..KEPT + 8 {
                let Some(out) = out.next() else { break };
                if half {
                    for (blend, plane) in blends.iter_mut().zip(&planes[1..]) {
                        colour::blend(level, plane.line(line), plane.line(line), plane.stride, blend);
                    }
                    colour::rgb::<true>(level, [planes[0].line(line), blends[0], blends[1]], out);
                } else {
                    colour::rgb::<false>(level, [planes[0].line(line), planes[1].line(line), planes[2].line(line)], out);
                }
            }
        } else {
            let first = if row == 0 { KEPT } else { KEPT - 1 };
            let end = if row == rows - 1 { KEPT + 8 } else { KEPT + 7 };
            for line in first..end {
                let above = if row == 0 && line == KEPT { line } else { line - 1 };
                let below = if row == rows - 1 && line == KEPT + 7 { line } else { line + 1 };
                for (other, of_first) in [(above, 2 * line - 2), (below, 2 * line - 1)] {
                    let Some(out) = out.next() else { break };
                    for (blend, plane) in blends.iter_mut().zip(&planes[1..]) {
                        colour::blend(level, plane.line(line), plane.line(other), plane.stride, blend);
                    }
                    if half {
                        colour::rgb::<true>(level, [planes[0].line(of_first), blends[0], blends[1]], out);
                    } else {
                        let [blue, red] = [0, 1].map(|index: usize| &blends[index][colour::MARGIN..]);
                        colour::rgb::<false>(level, [planes[0].line(of_first), blue, red], out);
                    }
                }
            }
            planes.iter_mut().for_each(Plane::keep);
        }
    }
    // All pixels are decoded; other trailing data is left to the general decoder.
    Ok(bits.pass(0xD9)?)
}

/// The error for corrupt data up to this position.
#[cold]
fn broken(bits: &BitReader<'_>) -> Undecoded {
    Undecoded::Broken(bits.read())
}
