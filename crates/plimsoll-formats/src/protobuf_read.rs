//! Reading Protocol Buffers: the fields of a message one after the other, without holding the message.

use crate::error::{Result, damaged};
use crate::source::Region;

/// Bytes that are read ahead.
const WINDOW: usize = 4 << 10;

/// The value of a field.
pub enum Value {
    /// An integer, an enum or a boolean.
    Varint(u64),
    /// Eight bytes.
    Fixed64([u8; 8]),
    /// Bytes, text, a message, or packed numbers.
    Bytes(Region),
    /// Four bytes.
    Fixed32([u8; 4]),
}

/// A message that is being read.
pub struct Fields {
    region: Region,
    at: u64,
    /// The bytes from `start`.
    window: Vec<u8>,
    start: u64,
}

impl Fields {
    pub fn new(region: Region) -> Fields {
        Fields { region, at: 0, window: Vec::new(), start: 0 }
    }

    /// The number and value of the next field; none at the end.
    pub fn field(&mut self) -> Result<Option<(u64, Value)>> {
        if self.at == self.region.length() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(self.fixed()?),
            2 => {
                let length = self.varint()?;
                let part = self.region.part(self.at, length, "a field of the message")?;
                self.at += length;
                Value::Bytes(part)
            }
            5 => Value::Fixed32(self.fixed()?),
            other => return damaged(format!("a field of the message has the unknown wire type {other}")),
        };
        Ok(Some((key >> 3, value)))
    }

    /// The next number of packed ones; none at the end.
    pub fn packed(&mut self) -> Result<Option<u64>> {
        if self.at == self.region.length() { Ok(None) } else { self.varint().map(Some) }
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        damaged("a number of the message is longer than ten bytes")
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8> {
        let inside = self.at.checked_sub(self.start).and_then(|at| self.window.get(usize::try_from(at).ok()?));
        let byte = match inside {
            Some(byte) => *byte,
            None => {
                let length = (self.region.length() - self.at).min(WINDOW as u64) as usize;
                self.window.resize(length.max(1), 0);
                self.start = self.at;
                self.region.read(self.at, &mut self.window, "the message")?;
                self.window[0]
            }
        };
        self.at += 1;
        Ok(byte)
    }
}
