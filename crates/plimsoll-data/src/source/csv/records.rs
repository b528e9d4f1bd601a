//! Records of a CSV file one after the other, in memory that somebody else owns.

use crate::DataError;
use csv_core::{ReadFieldResult, Reader};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What is read at a time, and the longest field that is looked at. Longer ones are passed over, and are no numbers.
pub(super) const PIECE: usize = 16 << 10;
pub(super) const FIELD: usize = 1 << 10;

/// Where a record begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub byte: u64,
    pub line: u64,
}

/// A position in a file.
pub(super) struct Records<'a> {
    file: &'a File,
    path: &'a Path,
    reader: Reader,
    /// A piece of the file and the part of it that is not used up; the piece ends at byte `read`.
    piece: &'a mut [u8],
    from: usize,
    to: usize,
    read: u64,
    field: &'a mut [u8],
}

/// One field of a record.
pub(super) struct Field<'f> {
    pub bytes: &'f [u8],
    pub ends_record: bool,
    /// Longer than can be.
    pub too_long: bool,
}

impl<'a> Records<'a> {
    /// `memory` has [`PIECE`] and [`FIELD`] bytes.
    pub fn at(file: &'a File, path: &'a Path, place: Place, memory: &'a mut [u8]) -> Records<'a> {
        let (piece, field) = memory.split_at_mut(PIECE);
        // Made anew: a clone of a csv_core reader does not work.
        let mut reader = Reader::new();
        reader.set_line(place.line);
        Records { file, path, reader, piece, from: 0, to: 0, read: place.byte, field: &mut field[..FIELD] }
    }

    /// Where the next record begins; `None` at the end of the file. Blank lines are passed over.
    pub fn next_record(&mut self) -> Result<Option<Place>, DataError> {
        loop {
            if self.from == self.to && !self.refill()? {
                return Ok(None);
            }
            match self.piece[self.from] {
                b'\n' => self.reader.set_line(self.reader.line() + 1),
                b'\r' => {}
                _ => break,
            }
            self.from += 1;
        }
        Ok(Some(Place { byte: self.read - (self.to - self.from) as u64, line: self.reader.line() }))
    }

    /// The next field of the record.
    pub fn field(&mut self) -> Result<Field<'_>, DataError> {
        let (mut length, mut too_long) = (0, false);
        loop {
            if self.from == self.to {
                self.refill()?;
            }
            let (result, used, written) = self.reader.read_field(&self.piece[self.from..self.to], &mut self.field[length..]);
            self.from += used;
            length += written;
            match result {
                ReadFieldResult::InputEmpty => {}
                ReadFieldResult::OutputFull => (length, too_long) = (0, true),
                ReadFieldResult::Field { record_end } => {
                    return Ok(Field { bytes: &self.field[..length], ends_record: record_end, too_long });
                }
                ReadFieldResult::End => return Ok(Field { bytes: &[], ends_record: true, too_long }),
            }
        }
    }

    /// Reads the next piece; `false` at the end of the file.
    fn refill(&mut self) -> Result<bool, DataError> {
        let at = self.read;
        let read = self.file.read_at(self.piece, at).map_err(|error| DataError::io(format!("read byte {at} of"), self.path, error))?;
        (self.from, self.to) = (0, read);
        self.read += read as u64;
        Ok(read > 0)
    }
}

impl Field<'_> {
    /// What it says; for errors and names.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes).into_owned()
    }

    /// The number it is, or what is wrong with it.
    pub fn number(&self) -> Result<f64, String> {
        let trimmed = self.bytes.trim_ascii();
        if trimmed.is_empty() && !self.too_long {
            return Err("is empty; fill it in, or leave the row or the column out".into());
        }
        let number = str::from_utf8(trimmed).ok().filter(|_| !self.too_long).and_then(|text| text.parse::<f64>().ok());
        match number {
            Some(number) if number.is_finite() => Ok(number),
            Some(_) => Err(format!("is {}, which nothing can be learnt from; leave the row out", self.text())),
            None if self.too_long => Err(format!("is no number but more than {FIELD} bytes of text; choose another column")),
            None => Err(format!("is {:?}, which is no number; choose another column or correct the row", self.text())),
        }
    }
}
