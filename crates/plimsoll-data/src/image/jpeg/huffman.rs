//! Lookup tables for Huffman codes: run, size and value in one step if they are short.

use super::HandOver;

/// Bits per lookup.
pub(super) const AHEAD: u32 = 10;

/// The decoded symbol of the next bits, packed into one number: see the methods of [`LookupEntry`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LookupEntry(u32);

/// The run of an end-of-block symbol: beyond every block.
pub(super) const END: usize = 128;

const SLOW: u32 = 0x80;

impl LookupEntry {
    /// A code longer than [`AHEAD`].
    const LONG: LookupEntry = LookupEntry(SLOW);

    fn whole(value: i32, run: usize, length: u32) -> LookupEntry {
        LookupEntry((value as u32) << 16 | (run as u32 + 1) << 8 | length)
    }

    /// Only the code fits; `size` bits of the value follow.
    fn code(size: u32, run: usize, length: u32) -> LookupEntry {
        LookupEntry(size << 16 | (run as u32 + 1) << 8 | SLOW | length)
    }

    /// Whether the entry includes the value.
    #[inline(always)]
    pub fn is_whole(self) -> bool {
        self.0 & SLOW == 0
    }

    /// Bits to consume: code and value, or the code alone.
    #[inline(always)]
    pub fn length(self) -> u32 {
        self.0 & 0x7F
    }

    /// The raw entry; its lowest six bits are the bits to consume if it is whole.
    #[inline(always)]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The number of coefficients up to and including the value; more than [`END`] at the end of the block.
    #[inline(always)]
    pub fn step(self) -> usize {
        (self.0 >> 8 & 0xFF) as usize
    }

    /// The value, or its number of bits.
    #[inline(always)]
    pub fn value(self) -> i32 {
        self.0 as i32 >> 16
    }
}

/// One table, for DC or AC symbols.
pub(super) struct HuffmanTable {
    pub entries: [LookupEntry; 1 << AHEAD],
    /// For each length, the limit above its last code, left-aligned in sixteen bits; and the offset from a code to
    /// its symbol.
    limits: [u32; 17],
    offsets: [i32; 17],
    symbols: [u8; 256],
    /// The definition of the table: sixteen counts, then the symbols.
    counts: [u8; 16],
    /// The class of the table; `None` if it is not defined.
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

    /// Builds the table from counts and symbols, unless it is the same already, which is common for files of one
    /// camera.
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
            // No code consists of ones only.
            if count > 0 && code >= 1 << length {
                return Err(HandOver);
            }
            self.limits[length as usize] = code << (16 - length);
            code <<= 1;
        }
        self.kind = Some(kind);
        Ok(())
    }

    /// The entry of a code longer than [`AHEAD`], from the next sixteen bits.
    #[cold]
    pub fn long(&self, kind: TableClass, bits: u32) -> Result<LookupEntry, HandOver> {
        let length = (AHEAD + 1..=16).find(|&length| bits < self.limits[length as usize]).ok_or(HandOver)?;
        let index = (bits >> (16 - length)) as i32 + self.offsets[length as usize];
        let symbol = *self.symbols.get(usize::try_from(index).map_err(|_| HandOver)?).ok_or(HandOver)?;
        let (run, size) = split(kind, symbol);
        Ok(if size == 0 { LookupEntry::whole(0, run, length) } else { LookupEntry::code(size, run, length) })
    }
}

/// The run and the value size of a symbol.
fn split(kind: TableClass, symbol: u8) -> (usize, u32) {
    match (kind, symbol >> 4, u32::from(symbol & 15)) {
        (TableClass::Dc, _, _) => (0, u32::from(symbol)),
        // ZRL: sixteen zeros, the last of them as the value.
        (TableClass::Ac, 15, 0) => (15, 0),
        (TableClass::Ac, _, 0) => (END, 0),
        (TableClass::Ac, run, size) => (usize::from(run), size),
    }
}

impl LookupEntry {
    /// The entry for [`AHEAD`] bits that start with the code of a symbol.
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

/// Sign-extends a value of `size` bits: values with a leading zero bit are negative.
#[inline(always)]
pub(super) fn extend(bits: u32, size: u32) -> i32 {
    let below = 1i32 << (size - 1);
    let value = bits as i32;
    if value < below { value - 2 * below + 1 } else { value }
}
