//! Scans the records of a text table, in memory of the caller.

use crate::DataError;
use crate::table::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::ops::DerefMut;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes per read, and the minimum space for a field.
pub(super) const PIECE: usize = 16 << 10;
pub(super) const FIELD: usize = 1 << 10;

/// The longest field of a table.
pub(super) const LONGEST_FIELD: usize = 1 << 20;

/// The start of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordStart {
    pub byte: u64,
    pub line: u64,
}

/// Where bytes come from.
pub(super) trait Supply {
    /// Reads bytes at an offset; a stream is asked for consecutive ones.
    fn read(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

impl Supply for &File {
    fn read(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_at(buffer, at)
    }
}

impl Supply for Box<dyn Read + Send> {
    fn read(&mut self, _at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        Read::read(self, buffer)
    }
}

/// A position in a file.
pub(super) struct RecordScanner<S, M> {
    supply: S,
    path: Arc<Path>,
    delimiter: u8,
    /// The line of the next byte.
    line: u64,
    /// The read buffer and the space for a field; the unread range of the former, which ends at byte `read` of the
    /// file.
    memory: M,
    from: usize,
    to: usize,
    read: u64,
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
    /// Whether it exceeds the maximum length, which this is.
    too_long: Option<usize>,
    quoted: bool,
}

impl<S: Supply, M: DerefMut<Target = [u8]>> RecordScanner<S, M> {
    /// `memory` must have [`PIECE`] and at least [`FIELD`] bytes.
    pub fn at(supply: S, path: &Arc<Path>, delimiter: u8, place: RecordStart, memory: M) -> RecordScanner<S, M> {
        RecordScanner { supply, path: Arc::clone(path), delimiter, line: place.line, memory, from: 0, to: 0, read: place.byte }
    }

    /// The start of the next record; `None` at the end of the file. Skips blank lines.
    pub fn next_record(&mut self) -> Result<Option<RecordStart>, DataError> {
        loop {
            if self.from == self.to && !self.refill()? {
                return Ok(None);
            }
            match self.memory[self.from] {
                b'\n' => self.line += 1,
                b'\r' => {}
                _ => break,
            }
            self.from += 1;
        }
        Ok(Some(RecordStart { byte: self.read - (self.to - self.from) as u64, line: self.line }))
    }

    /// The next field of the record: plain up to a delimiter or the end of the line, or quoted, with doubled quotes as
    /// escapes.
    #[inline]
    pub fn field(&mut self) -> Result<Field<'_>, DataError> {
        if self.from == self.to {
            self.refill()?;
        }
        // Fast path: an unquoted field that is completely in the buffer.
        let (rest, delimiter) = (&self.memory[self.from..self.to], self.delimiter);
        if rest.first() != Some(&b'"')
            && let Some(length) = rest.iter().position(|byte| *byte == delimiter || matches!(byte, b'\n' | b'\r'))
        {
            let (from, end) = (self.from, rest[length]);
            self.from += length + 1;
            self.line += u64::from(end == b'\n');
            let limit = self.limit();
            let bytes = &self.memory[from..from + length.min(limit)];
            return Ok(Field { bytes, ends_record: end != delimiter, too_long: (length > limit).then_some(limit), quoted: false });
        }
        self.field_in_parts()
    }

    /// The longest field.
    fn limit(&self) -> usize {
        self.memory.len() - PIECE
    }

    /// Slow path, byte by byte.
    fn field_in_parts(&mut self) -> Result<Field<'_>, DataError> {
        let limit = self.limit();
        let (mut state, mut length, mut too_long, mut quoted) = (FieldState::Begun, 0, None, false);
        let ends_record = loop {
            if self.from == self.to && !self.refill()? {
                break true;
            }
            let byte = self.memory[self.from];
            self.from += 1;
            self.line += u64::from(byte == b'\n');
            let next = match (state, byte) {
                (FieldState::Begun, b'"') => FieldState::Quoted,
                (FieldState::Quoted, b'"') => FieldState::Quote,
                (FieldState::Quoted, _) | (FieldState::Quote, b'"') => FieldState::Quoted,
                (_, byte) if byte == self.delimiter => break false,
                (_, b'\n' | b'\r') => break true,
                _ => FieldState::Plain,
            };
            // Opening, closing and escaping quotes are not part of the field.
            let is_mark = matches!((state, next), (FieldState::Begun, FieldState::Quoted) | (_, FieldState::Quote));
            quoted |= is_mark;
            state = next;
            if !is_mark {
                if length == limit {
                    (length, too_long) = (0, Some(limit));
                }
                self.memory[PIECE + length] = byte;
                length += 1;
            }
        };
        Ok(Field { bytes: &self.memory[PIECE..PIECE + length], ends_record, too_long, quoted })
    }

    /// The rest of the line, to be changed in place; `Err` with the limit if it is longer than that.
    pub fn line(&mut self) -> Result<Result<&mut [u8], usize>, DataError> {
        let (limit, mut length) = (self.limit(), 0);
        let mut too_long = false;
        loop {
            if self.from == self.to && !self.refill()? {
                break;
            }
            let rest = &self.memory[self.from..self.to];
            let end = rest.iter().position(|byte| *byte == b'\n');
            let count = end.unwrap_or(rest.len());
            if length + count <= limit {
                self.memory.copy_within(self.from..self.from + count, PIECE + length);
            } else {
                too_long = true;
            }
            length += count;
            self.from += count + usize::from(end.is_some());
            if end.is_some() {
                self.line += 1;
                break;
            }
        }
        Ok(if too_long { Err(limit) } else { Ok(&mut self.memory[PIECE..PIECE + length]) })
    }

    /// Refills the buffer; `false` at the end of the file.
    fn refill(&mut self) -> Result<bool, DataError> {
        let at = self.read;
        let read = self.supply.read(at, &mut self.memory[..PIECE]);
        let read = read.map_err(|error| DataError::io(format!("read byte {at} of"), &self.path, error))?;
        // Skip a UTF-8 byte order mark.
        let mark = if at == 0 && self.memory[..read].starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
        (self.from, self.to) = (mark, read);
        self.read += read as u64;
        Ok(read > mark)
    }
}

impl Field<'_> {
    /// Its text, for names.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes).into_owned()
    }

    /// The field as a cell; white space around it counts only in quotes.
    #[inline]
    pub fn cell(&self) -> Cell<'_> {
        match self.too_long {
            Some(limit) => Cell::TooLong(limit),
            None if self.quoted => Cell::Text(self.bytes),
            None => Cell::Text(self.bytes.trim_ascii()),
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
        let mut records = RecordScanner::at(&file, &Path::new("table.csv").into(), b',', RecordStart { byte: 0, line: 1 }, &mut memory[..]);
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
            let mut records =
                RecordScanner::at(&file, &Path::new("table.csv").into(), b',', RecordStart { byte: 0, line: 1 }, &mut memory[..]);
            records.next_record().unwrap();
            assert_eq!(records.field().unwrap().cell(), Cell::TooLong(FIELD));
            assert_eq!(records.field().unwrap().cell(), Cell::Text(b"8"));
            assert_eq!(records.next_record().unwrap().unwrap().line, 2);
        }
    }
}
