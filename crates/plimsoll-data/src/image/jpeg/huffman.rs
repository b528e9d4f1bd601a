//! DecoderTables that turn the next bits of the data into what they stand for: run, size and value at once where the whole is short.

use super::HandOver;

/// Bits that are inspected together.
pub(super) const AHEAD: u32 = 10;

/// What the next bits stand for, in one number: see [`LookupEntry`]'s methods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LookupEntry(u32);

/// Passed over instead of a run: beyond every block.
pub(super) const END: usize = 128;

const SLOW: u32 = 0x80;

impl LookupEntry {
    /// A code longer than [`AHEAD`].
    const LONG: LookupEntry = LookupEntry(SLOW);

    fn whole(value: i32, run: usize, length: u32) -> LookupEntry {
        LookupEntry((value as u32) << 16 | (run as u32 + 1) << 8 | length)
    }

    /// The code alone fits; `size` bits of the value follow.
    fn code(size: u32, run: usize, length: u32) -> LookupEntry {
        LookupEntry(size << 16 | (run as u32 + 1) << 8 | SLOW | length)
    }

    /// Whether value and all are inside.
    #[inline(always)]
    pub fn is_whole(self) -> bool {
        self.0 & SLOW == 0
    }

    /// Bits to drop: of code and value, or of the code alone.
    #[inline(always)]
    pub fn length(self) -> u32 {
        self.0 & 0x7F
    }

    /// All of it: its lowest six bits are those to drop if it is whole.
    #[inline(always)]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Coefficients up to the value and with it; more than [`END`] if there are no more.
    #[inline(always)]
    pub fn step(self) -> usize {
        (self.0 >> 8 & 0xFF) as usize
    }

    /// The value, or how many bits it has.
    #[inline(always)]
    pub fn value(self) -> i32 {
        self.0 as i32 >> 16
    }
}

/// One table, for single (DC) or run-length (AC) symbols.
pub(super) struct HuffmanTable {
    pub entries: [LookupEntry; 1 << AHEAD],
    /// Above the last code of a length, moved to the top of sixteen bits; and what leads from a code to its symbol.
    limits: [u32; 17],
    offsets: [i32; 17],
    symbols: [u8; 256],
    /// What it was made from: sixteen counts, then the symbols.
    counts: [u8; 16],
    /// Whether it holds anything, and which of the two kinds.
    kind: Option<TableClass>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TableClass {
    Dc,
    Ac,
}

impl HuffmanTable {
    pub const EMPTY: HuffmanTable = HuffmanTable {
        entries: [LookupEntry::LONG; 1 << AHEAD],
        limits: [0; 17],
        offsets: [0; 17],
        symbols: [0; 256],
        counts: [0; 16],
        kind: None,
    };

    /// Becomes the table of these counts and symbols. Files of one camera have the same tables, so it is first seen whether it is one already.
    pub fn make(&mut self, kind: TableClass, counts: &[u8; 16], symbols: &[u8]) -> Result<(), HandOver> {
        if self.kind == Some(kind) && self.counts == *counts && self.symbols.starts_with(symbols) {
            return Ok(());
        }
        self.kind = None;
        if kind == TableClass::Dc && symbols.iter().any(|&symbol| symbol > 15) {
            return Err(HandOver);
        }
        self.symbols.get_mut(..symbols.len()).ok_or(HandOver)?.copy_from_slice(symbols);
        self.counts = *counts;
        self.entries.fill(LookupEntry::LONG);
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=16u32 {
            let count = usize::from(counts[length as usize - 1]);
            self.offsets[length as usize] = index as i32 - code as i32;
            for &symbol in symbols.get(index..index + count).ok_or(HandOver)? {
                if length <= AHEAD {
                    let first = (code << (AHEAD - length)) as usize;
                    let places = first..first + (1 << (AHEAD - length));
                    for (bits, entry) in places.clone().zip(self.entries.get_mut(places).ok_or(HandOver)?) {
                        *entry = LookupEntry::of(kind, symbol, length, bits as u32);
                    }
                }
                code += 1;
            }
            index += count;
            // No code is all ones.
            if count > 0 && code >= 1 << length {
                return Err(HandOver);
            }
            self.limits[length as usize] = code << (16 - length);
            code <<= 1;
        }
        self.kind = Some(kind);
        Ok(())
    }

    /// What a code longer than [`AHEAD`] stands for, from the next sixteen bits.
    #[cold]
    pub fn long(&self, kind: TableClass, bits: u32) -> Result<LookupEntry, HandOver> {
        let length = (AHEAD + 1..=16).find(|&length| bits < self.limits[length as usize]).ok_or(HandOver)?;
        let index = (bits >> (16 - length)) as i32 + self.offsets[length as usize];
        let symbol = *self.symbols.get(usize::try_from(index).map_err(|_| HandOver)?).ok_or(HandOver)?;
        let (run, size) = split(kind, symbol);
        Ok(if size == 0 { LookupEntry::whole(0, run, length) } else { LookupEntry::code(size, run, length) })
    }
}

/// The run and the bits of the value that a symbol announces.
fn split(kind: TableClass, symbol: u8) -> (usize, u32) {
    match (kind, symbol >> 4, u32::from(symbol & 15)) {
        (TableClass::Dc, _, _) => (0, u32::from(symbol)),
        // Sixteen zeros, the last of them as the value.
        (TableClass::Ac, 15, 0) => (15, 0),
        (TableClass::Ac, _, 0) => (END, 0),
        (TableClass::Ac, run, size) => (usize::from(run), size),
    }
}

impl LookupEntry {
    /// The entry for [`AHEAD`] bits that begin with a symbol's code.
    fn of(kind: TableClass, symbol: u8, length: u32, bits: u32) -> LookupEntry {
        let (run, size) = split(kind, symbol);
        if size == 0 {
            LookupEntry::whole(0, run, length)
        } else if length + size <= AHEAD {
            let value = bits >> (AHEAD - length - size) & ((1 << size) - 1);
            LookupEntry::whole(extend(value, size), run, length + size)
        } else {
            LookupEntry::code(size, run, length)
        }
    }
}

/// The number that `size` bits stand for: those with a leading zero are negative.
#[inline(always)]
pub(super) fn extend(bits: u32, size: u32) -> i32 {
    let below = 1i32 << (size - 1);
    let value = bits as i32;
    if value < below { value - 2 * below + 1 } else { value }
}
