//! Pickles, as far as snapshots need them: plain containers, numbers and strings, written as they come. Nothing is ever
//! read from one.

use std::io::{self, Write};

pub struct Pickle<W> {
    writer: W,
}

impl<W: Write> Pickle<W> {
    /// Begins a pickle of protocol 2.
    pub fn new(mut writer: W) -> io::Result<Pickle<W>> {
        writer.write_all(b"\x80\x02")?;
        Ok(Pickle { writer })
    }

    pub fn finish(mut self) -> io::Result<W> {
        self.writer.write_all(b".")?;
        self.writer.flush()?;
        Ok(self.writer)
    }

    /// An empty dictionary, to which the entries up to `set_items` are added.
    pub fn dict(&mut self) -> io::Result<()> {
        self.writer.write_all(b"}(")
    }

    pub fn set_items(&mut self) -> io::Result<()> {
        self.writer.write_all(b"u")
    }

    /// An empty list, to which the items up to `appends` are added.
    pub fn list(&mut self) -> io::Result<()> {
        self.writer.write_all(b"](")
    }

    pub fn appends(&mut self) -> io::Result<()> {
        self.writer.write_all(b"e")
    }

    pub fn text(&mut self, text: &str) -> io::Result<()> {
        self.writer.write_all(b"X")?;
        self.writer.write_all(&(text.len() as u32).to_le_bytes())?;
        self.writer.write_all(text.as_bytes())
    }

    pub fn integer(&mut self, value: u64) -> io::Result<()> {
        match value {
            0..=255 => self.writer.write_all(&[b'K', value as u8]),
            256..=0x7fff_ffff => {
                self.writer.write_all(b"J")?;
                self.writer.write_all(&(value as u32).to_le_bytes())
            }
            // Nine bytes: the sign needs a bit of its own.
            _ => {
                self.writer.write_all(b"\x8a\x09")?;
                self.writer.write_all(&value.to_le_bytes())?;
                self.writer.write_all(&[0])
            }
        }
    }

    pub fn flag(&mut self, value: bool) -> io::Result<()> {
        self.writer.write_all(if value { b"\x88" } else { b"\x89" })
    }

    /// Two integers.
    pub fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.integer(first)?;
        self.integer(second)?;
        self.writer.write_all(b"\x86")
    }

    /// Stores the last value under a number.
    pub fn put(&mut self, index: u32) -> io::Result<()> {
        self.writer.write_all(b"r")?;
        self.writer.write_all(&index.to_le_bytes())
    }

    /// The value stored under a number.
    pub fn get(&mut self, index: u32) -> io::Result<()> {
        self.writer.write_all(b"j")?;
        self.writer.write_all(&index.to_le_bytes())
    }

    /// Removes the last value.
    pub fn pop(&mut self) -> io::Result<()> {
        self.writer.write_all(b"0")
    }

    /// A key and an integer.
    pub fn entry(&mut self, key: &str, value: u64) -> io::Result<()> {
        self.text(key)?;
        self.integer(value)
    }

    /// A key and a string.
    pub fn text_entry(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.text(key)?;
        self.text(value)
    }
}
