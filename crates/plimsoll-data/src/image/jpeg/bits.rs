//! The entropy-coded data: removes stuffing bytes, then reads bits, one block of coefficients at a time.

use super::HandOver;
use super::huffman::{AHEAD, END, HuffmanTable, TableClass, extend};
use crate::image::windows::{Level, Simd};

/// More bytes than the longest block: 64 codes of 16 bits with values of 15 bits, and what is read ahead.
const BLOCK: usize = 264;

/// Bytes unstuffed at a time.
const WINDOW: usize = 4096;

/// The coefficients of a block in row-major order, followed by space for coefficients that are out of range.
pub(super) type CoefficientBlock = [i32; 256];

/// The quantization factor and the destination of a coefficient, by the zigzag index of the next one; indices beyond
/// the block go to the extra space.
pub(super) type ZigzagSteps = [ZigzagStep; 320];

#[derive(Clone, Copy)]
pub(super) struct ZigzagStep {
    factor: i32,
    place: u8,
}

const NOWHERE: ZigzagStep = ZigzagStep { factor: 0, place: 64 };

/// Builds the table from factors in zigzag order.
pub(super) fn steps(factors: &[u16; 64]) -> ZigzagSteps {
    let mut steps = [NOWHERE; 320];
    let (mut row, mut column) = (0i32, 0i32);
    for (index, &factor) in factors.iter().enumerate() {
        steps[index + 1] = ZigzagStep { factor: i32::from(factor), place: (row * 8 + column) as u8 };
        // Up and right on even diagonals, down and left on odd ones.
        let (down, right) = if (row + column) % 2 == 0 { (-1, 1) } else { (1, -1) };
        match (row + down, column + right) {
            (next, 8) => (row, column) = (next + 2, 7),
            (8, next) => (row, column) = (7, next + 2),
            (-1, next) => (row, column) = (0, next),
            (next, -1) => (row, column) = (next, 0),
            next => (row, column) = next,
        }
    }
    steps
}

/// A buffer of unstuffed bytes.
pub(super) struct InputWindow([u8; WINDOW + 2 * BLOCK]);

impl InputWindow {
    pub const EMPTY: InputWindow = InputWindow([0; WINDOW + 2 * BLOCK]);
}

pub(super) struct BitReader<'a> {
    /// Input that is not unstuffed yet, and the total length; starts with a marker if `closed`.
    rest: &'a [u8],
    all: usize,
    closed: bool,
    window: &'a mut [u8; WINDOW + 2 * BLOCK],
    /// The next byte to read, and the end of the input bytes.
    at: usize,
    end: usize,
    /// Buffered bits, at the most significant end, and the number of valid ones.
    held: u64,
    count: u32,
}

impl<'a> BitReader<'a> {
    pub fn new(data: &'a [u8], window: &'a mut InputWindow) -> BitReader<'a> {
        BitReader { rest: data, all: data.len(), closed: false, window: &mut window.0, at: 0, end: 0, held: 0, count: 0 }
    }

    /// Decodes a block into the zeroed `block` and dequantizes it. Returns the zigzag index after its last
    /// coefficient.
    #[inline(always)]
    pub fn block(
        &mut self,
        level: Level,
        codes: [&HuffmanTable; 2],
        steps: &ZigzagSteps,
        prediction: &mut i32,
        block: &mut CoefficientBlock,
    ) -> Result<usize, HandOver> {
        match level.simd() {
            // SAFETY: a `Level` exists only if the CPU supports its instructions.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 | Simd::Avx512 => unsafe { self.block_bmi2(codes, steps, prediction, block) },
            Simd::Plain => self.block_anywhere(codes, steps, prediction, block),
        }
    }

    /// With BMI2 shifts, which take the count from any register.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi2")]
    fn block_bmi2(
        &mut self,
        codes: [&HuffmanTable; 2],
        steps: &ZigzagSteps,
        prediction: &mut i32,
        block: &mut CoefficientBlock,
    ) -> Result<usize, HandOver> {
        self.block_anywhere(codes, steps, prediction, block)
    }

    #[inline(always)]
    fn block_anywhere(
        &mut self,
        [dc, ac]: [&HuffmanTable; 2],
        steps: &ZigzagSteps,
        prediction: &mut i32,
        block: &mut CoefficientBlock,
    ) -> Result<usize, HandOver> {
        if self.at + BLOCK > self.end {
            self.more()?;
        }
        // Only the lowest six bits of `count` are significant.
        let (mut held, mut count, mut at) = (self.held, self.count, self.at);
        // Whole bytes are inserted below the buffered bits; a byte that does not fit completely is read again next
        // time.
        macro_rules! refill {
            () => {
                count &= 63;
                let bytes = self.window.get(at..at + 8).and_then(|bytes| bytes.first_chunk()).ok_or(HandOver)?;
                held |= u64::from_be_bytes(*bytes) >> count;
                at += ((63 - count) >> 3) as usize;
                count |= 56;
            };
        }
        macro_rules! drop {
            ($length:expr) => {
                let length: u32 = $length;
                held <<= length & 63;
                count = count.wrapping_sub(length);
            };
        }
        // The table entry of a code whose value does not fit in a table, and its value.
        macro_rules! apart {
            ($entry:expr, $table:expr, $kind:expr) => {{
                let mut entry = $entry;
                if entry.length() == 0 {
                    entry = $table.long($kind, (held >> 48) as u32)?;
                }
                drop!(entry.length());
                let size = if entry.is_whole() { 0 } else { entry.value() as u32 };
                let value = if size == 0 { 0 } else { extend((held >> (64 - size)) as u32, size) };
                drop!(size);
                (entry.step(), value)
            }};
        }

        refill!();
        let entry = dc.entries[(held >> (64 - AHEAD)) as usize];
        if entry.is_whole() {
            drop!(entry.bits());
            *prediction = prediction.wrapping_add(entry.value());
        } else {
            let (_, value) = apart!(entry, dc, TableClass::Dc);
            *prediction = prediction.wrapping_add(value);
            refill!();
        }
        block[0] = prediction.wrapping_mul(steps[1].factor);

        let mut next = 1;
        'block: loop {
            // After one complete entry (at most ten bits) or a refill, there are bits for four.
            for _ in 0..4 {
                let entry = ac.entries[(held >> (64 - AHEAD)) as usize];
                if !entry.is_whole() {
                    refill!();
                    let (step, value) = apart!(entry, ac, TableClass::Ac);
                    next += step;
                    let step = steps[next.min(319)];
                    block[usize::from(step.place)] = value.wrapping_mul(step.factor);
                    if next >= 64 {
                        break 'block;
                    }
                    break;
                }
                drop!(entry.bits());
                next += entry.step();
                let step = steps[next];
                block[usize::from(step.place)] = entry.value().wrapping_mul(step.factor);
                if next >= 64 {
                    break 'block;
                }
            }
            refill!();
        }
        (self.held, self.count, self.at) = (held, count & 63, at);
        match next {
            64 => Ok(64),
            _ if next > END => Ok(next - END - 1),
            _ => Err(HandOver),
        }
    }

    /// Unstuffs more bytes, up to the next marker. Behind the last byte are zeros, enough for one block.
    #[cold]
    fn more(&mut self) -> Result<(), HandOver> {
        if self.closed {
            return if self.used() > self.end * 8 { Err(HandOver) } else { Ok(()) };
        }
        // The buffered bits came from up to eight bytes before.
        let gone = self.at.saturating_sub(8);
        self.window.copy_within(gone..self.end, 0);
        (self.end, self.at) = (self.end - gone, self.at - gone);
        while self.end + 8 <= WINDOW {
            if let Some(&bytes) = self.rest.first_chunk::<8>() {
                self.window[self.end..self.end + 8].copy_from_slice(&bytes);
                let plain = before_ff(u64::from_le_bytes(bytes));
                self.end += plain;
                self.rest = &self.rest[plain..];
                if plain == 8 {
                    continue;
                }
            }
            match self.rest {
                [0xFF, 0, rest @ ..] => {
                    self.window[self.end] = 0xFF;
                    self.rest = rest;
                }
                [] | [0xFF, ..] => {
                    self.closed = true;
                    break;
                }
                [byte, rest @ ..] => {
                    self.window[self.end] = *byte;
                    self.rest = rest;
                }
            }
            self.end += 1;
        }
        if self.closed {
            self.window[self.end..][..2 * BLOCK].fill(0);
        }
        Ok(())
    }

    /// Bits of the window consumed so far.
    fn used(&self) -> usize {
        self.at * 8 - self.count as usize
    }

    /// Bytes of the data consumed so far.
    pub fn read(&self) -> usize {
        self.all - self.rest.len()
    }

    /// Skips the padding bits and the marker that must follow.
    pub fn pass(&mut self, mark: u8) -> Result<(), HandOver> {
        if !self.closed {
            self.more()?;
        }
        let left = (self.end * 8).checked_sub(self.used()).ok_or(HandOver)?;
        match self.rest {
            [0xFF, code, rest @ ..] if *code == mark && self.closed && left < 8 => {
                (self.rest, self.closed, self.at, self.end, self.held, self.count) = (rest, false, 0, 0, 0, 0);
                Ok(())
            }
            _ => Err(HandOver),
        }
    }
}

/// How many of eight little-endian bytes precede the first 0xFF.
#[inline(always)]
fn before_ff(bytes: u64) -> usize {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let found = (!bytes).wrapping_sub(LOW) & bytes & (LOW << 7);
    found.trailing_zeros() as usize / 8
}
