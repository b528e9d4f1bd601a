//! Thrift's compact protocol, the subset that Parquet headers use.

/// The error of a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    /// The input ends too early.
    Short,
    /// The input is invalid.
    Nonsense,
}

/// A cursor over encoded values.
pub(super) struct Compact<'b> {
    bytes: &'b [u8],
    at: usize,
}

/// Type codes.
const TRUE: u8 = 1;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// Maximum nesting of structs; no header is deeper.
const DEEPEST: usize = 16;

impl<'b> Compact<'b> {
    pub fn new(bytes: &'b [u8]) -> Compact<'b> {
        Compact { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self.bytes.get(self.at).ok_or(Malformed::Short)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed::Nonsense)
    }

    /// An integer.
    pub fn int(&mut self) -> Result<i64, Malformed> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A non-negative integer.
    pub fn count(&mut self) -> Result<u64, Malformed> {
        u64::try_from(self.int()?).map_err(|_| Malformed::Nonsense)
    }

    pub fn binary(&mut self) -> Result<&'b [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Nonsense)?;
        let end = self.at.checked_add(length).ok_or(Malformed::Nonsense)?;
        let bytes = self.bytes.get(self.at..end).ok_or(Malformed::Short)?;
        self.at = end;
        Ok(bytes)
    }

    /// Iterates over the fields of a struct: `take` reads the value of a field and returns whether it did; other
    /// fields are skipped.
    pub fn fields(&mut self, mut take: impl FnMut(&mut Self, i16, u8) -> Result<bool, Malformed>) -> Result<(), Malformed> {
        let mut number: i16 = 0;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            number = match head >> 4 {
                0 => i16::try_from(self.int()?).map_err(|_| Malformed::Nonsense)?,
                step => number.checked_add(i16::from(step)).ok_or(Malformed::Nonsense)?,
            };
            let kind = head & 15;
            if !take(self, number, kind)? {
                self.skip(kind, 0)?;
            }
        }
    }

    /// Reads the header of a list and returns its length.
    pub fn list(&mut self) -> Result<usize, Malformed> {
        Ok(self.list_of()?.0)
    }

    fn list_of(&mut self) -> Result<(usize, u8), Malformed> {
        let head = self.byte()?;
        let length = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        // Every element takes at least one byte, even an empty struct.
        match usize::try_from(length) {
            Ok(length) if length <= self.bytes.len() => Ok((length, head & 15)),
            _ => Err(Malformed::Nonsense),
        }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Result<(), Malformed> {
        if depth > DEEPEST {
            return Err(Malformed::Nonsense);
        }
        match kind {
            TRUE | 2 => {}
            3 => _ = self.byte()?,
            4..=6 => _ = self.varint()?,
            7 => {
                for _ in 0..8 {
                    self.byte()?;
                }
            }
            BINARY => _ = self.binary()?,
            LIST | 10 => {
                let (length, kind) = self.list_of()?;
                for _ in 0..length {
                    // In a list, a Boolean is a separate byte.
                    self.skip(if kind == TRUE || kind == 2 { 3 } else { kind }, depth + 1)?;
                }
            }
            STRUCT => loop {
                let head = self.byte()?;
                if head == 0 {
                    break;
                }
                if head >> 4 == 0 {
                    self.varint()?;
                }
                self.skip(head & 15, depth + 1)?;
            },
            _ => return Err(Malformed::Nonsense),
        }
        Ok(())
    }

    /// A Boolean, which is encoded in its type code.
    pub fn truth(kind: u8) -> bool {
        kind == TRUE
    }
}
