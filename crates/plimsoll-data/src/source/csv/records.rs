//! Scans the records of a CSV file, in memory of the caller.

use crate::DataError;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes per read, and the longest field that is parsed. Longer fields are skipped and are not numbers.
pub(super) const PIECE: usize = 16 << 10;
pub(super) const FIELD: usize = 1 << 10;

/// The start of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordStart {
    pub byte: u64,
    pub line: u64,
}

/// A position in a file.
pub(super) struct RecordScanner<'a> {
    file: &'a File,
    path: &'a Path,
    /// The line of the next byte.
    line: u64,
    /// The read buffer and the unread range in it; the buffer ends at byte `read` of the file.
    piece: &'a mut [u8],
    from: usize,
    to: usize,
    read: u64,
    field: &'a mut [u8],
}

/// Parser state within a field.
#[derive(Clone, Copy)]
enum FieldState {
    Begun,
    Plain,
    Quoted,
    /// After a quote inside a quoted field: the end of the quotes, or the first half of an escaped quote.
    Quote,
}

/// One field of a record.
pub(super) struct Field<'f> {
    pub bytes: &'f [u8],
    pub ends_record: bool,
    /// Whether it exceeds the maximum length.
    pub too_long: bool,
}

impl<'a> RecordScanner<'a> {
    /// `memory` must have [`PIECE`] + [`FIELD`] bytes.
    pub fn at(file: &'a File, path: &'a Path, place: RecordStart, memory: &'a mut [u8]) -> RecordScanner<'a> {
        let (piece, field) = memory.split_at_mut(PIECE);
        RecordScanner { file, path, line: place.line, piece, from: 0, to: 0, read: place.byte, field: &mut field[..FIELD] }
    }

    /// The start of the next record; `None` at the end of the file. Skips blank lines.
    pub fn next_record(&mut self) -> Result<Option<RecordStart>, DataError> {
        loop {
            if self.from == self.to && !self.refill()? {
                return Ok(None);
            }
            match self.piece[self.from] {
                b'\n' => self.line += 1,
                b'\r' => {}
                _ => break,
            }
            self.from += 1;
        }
        Ok(Some(RecordStart { byte: self.read - (self.to - self.from) as u64, line: self.line }))
    }

    /// The next field of the record: plain up to a comma or the end of the line, or quoted, with doubled quotes as
    /// escapes.
    pub fn field(&mut self) -> Result<Field<'_>, DataError> {
        if self.from == self.to {
            self.refill()?;
        }
        // Fast path: an unquoted field that is completely in the buffer.
        let rest = &self.piece[self.from..self.to];
        if rest.first() != Some(&b'"')
            && let Some(length) = rest.iter().position(|byte| matches!(byte, b',' | b'\n' | b'\r'))
        {
            let (from, end) = (self.from, rest[length]);
            self.from += length + 1;
            self.line += u64::from(end == b'\n');
            let bytes = &self.piece[from..from + length.min(FIELD)];
            return Ok(Field { bytes, ends_record: end != b',', too_long: length > FIELD });
        }
        self.field_in_parts()
    }

    /// Slow path, byte by byte.
    fn field_in_parts(&mut self) -> Result<Field<'_>, DataError> {
        let (mut state, mut length, mut too_long) = (FieldState::Begun, 0, false);
        let ends_record = loop {
            if self.from == self.to && !self.refill()? {
                break true;
            }
            let byte = self.piece[self.from];
            self.from += 1;
            self.line += u64::from(byte == b'\n');
            let next = match (state, byte) {
                (FieldState::Begun, b'"') => FieldState::Quoted,
                (FieldState::Quoted, b'"') => FieldState::Quote,
                (FieldState::Quoted, _) | (FieldState::Quote, b'"') => FieldState::Quoted,
                (_, b',') => break false,
                (_, b'\n' | b'\r') => break true,
                _ => FieldState::Plain,
            };
            // Opening, closing and escaping quotes are not part of the field.
            let is_mark = matches!((state, next), (FieldState::Begun, FieldState::Quoted) | (_, FieldState::Quote));
            state = next;
            if !is_mark {
                if length == FIELD {
                    (length, too_long) = (0, true);
                }
                self.field[length] = byte;
                length += 1;
            }
        };
        Ok(Field { bytes: &self.field[..length], ends_record, too_long })
    }

    /// Refills the buffer; `false` at the end of the file.
    fn refill(&mut self) -> Result<bool, DataError> {
        let at = self.read;
        let read = self.file.read_at(self.piece, at).map_err(|error| DataError::io(format!("read byte {at} of"), self.path, error))?;
        // Skip a UTF-8 byte order mark.
        let mark = if at == 0 && self.piece[..read].starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
        (self.from, self.to) = (mark, read);
        self.read += read as u64;
        Ok(read > mark)
    }
}

impl Field<'_> {
    /// Its text, for errors and names.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes).into_owned()
    }

    /// Whether it is a number (valid or not) rather than text; `None` if it is missing.
    pub fn kind(&self) -> Option<bool> {
        let trimmed = self.bytes.trim_ascii();
        let is_number = || str::from_utf8(trimmed).is_ok_and(|text| text.parse::<f64>().is_ok());
        (self.too_long || !trimmed.is_empty()).then(|| !self.too_long && is_number())
    }

    /// Parses it as a number.
    pub fn number(&self) -> Result<f64, String> {
        let trimmed = self.bytes.trim_ascii();
        if trimmed.is_empty() && !self.too_long {
            return Err("is empty; fill it in, or leave the row or the column out".into());
        }
        let number = str::from_utf8(trimmed).ok().filter(|_| !self.too_long).and_then(|text| text.parse::<f64>().ok());
        match number {
            Some(number) if number.is_finite() => Ok(number),
            Some(_) => Err(format!("is {}, which nothing can be trained on; leave the row out", self.text())),
            None if self.too_long => Err(format!("is no number but more than {FIELD} bytes of text; choose another column")),
            None => Err(format!("is {:?}, which is no number; choose another column or correct the row", self.text())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csv_core::{ReadFieldResult, Reader};
    use proptest::prelude::*;
    use std::io::Write;

    /// Fields of records, with the first line of each record.
    type ParsedRecords = Vec<(u64, Vec<Vec<u8>>)>;

    fn found(text: &[u8]) -> ParsedRecords {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        let mut memory = vec![0; PIECE + FIELD];
        let mut records = RecordScanner::at(&file, Path::new("table.csv"), RecordStart { byte: 0, line: 1 }, &mut memory);
        let mut found = Vec::new();
        while let Some(place) = records.next_record().unwrap() {
            let mut fields = Vec::new();
            loop {
                let field = records.field().unwrap();
                fields.push(field.bytes.to_vec());
                if field.ends_record {
                    break;
                }
            }
            found.push((place.line, fields));
        }
        found
    }

    /// The result of another parser, without line numbers.
    fn oracle(text: &[u8]) -> Vec<Vec<Vec<u8>>> {
        let (mut reader, mut rest, mut records, mut fields) = (Reader::new(), text, Vec::new(), Vec::new());
        let (mut out, mut length) = (vec![0; text.len() + 8], 0);
        loop {
            let (result, used, written) = reader.read_field(rest, &mut out[length..]);
            rest = &rest[used..];
            length += written;
            match result {
                ReadFieldResult::InputEmpty => {}
                ReadFieldResult::OutputFull => unreachable!("there is space for all of it"),
                ReadFieldResult::Field { record_end } => {
                    fields.push(out[..std::mem::take(&mut length)].to_vec());
                    if record_end {
                        records.push(std::mem::take(&mut fields));
                    }
                }
                ReadFieldResult::End => return records,
            }
        }
    }

    proptest! {
        #[test]
        fn fields_are_those_of_another_parser(text in "(\u{FEFF})?[ab1,,\"\"\n\r. ]{0,60}", repeat in prop_oneof![8 => Just(1usize), 1 => Just(700)]) {
            let text = text.repeat(repeat);
            let expected = oracle(text.as_bytes());
            // Fields longer than the parser's limit are tested elsewhere.
            prop_assume!(expected.iter().flatten().all(|field| field.len() <= FIELD));
            prop_assert_eq!(found(text.as_bytes()).into_iter().map(|(_, fields)| fields).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn lines_are_counted_through_quotes_blanks_and_both_kinds_of_ends() {
        let all = found(b"a,\"b\nc\"\r\n\n\r\n1,2\n\"x\"\"y\"z,\n3");
        let words = |fields: &[&str]| fields.iter().map(|field| field.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(all, [(1, words(&["a", "b\nc"])), (5, words(&["1", "2"])), (6, words(&["x\"yz", ""])), (7, words(&["3"]))]);
    }

    #[test]
    fn a_field_that_is_too_long_is_passed_over_and_said_to_be() {
        for quoted in [false, true] {
            let long = "7".repeat(FIELD + 1);
            let text = if quoted { format!("\"{long}\",8\n9") } else { format!("{long},8\n9") };
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let mut memory = vec![0; PIECE + FIELD];
            let mut records = RecordScanner::at(&file, Path::new("table.csv"), RecordStart { byte: 0, line: 1 }, &mut memory);
            records.next_record().unwrap();
            assert!(records.field().unwrap().number().unwrap_err().contains("more than 1024 bytes of text"));
            assert_eq!(records.field().unwrap().number(), Ok(8.0));
            assert_eq!(records.next_record().unwrap().unwrap().line, 2);
        }
    }
}
