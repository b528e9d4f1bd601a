//! Writing FlatBuffers from front to back: tables first, large vectors streamed behind them.
//!
//! Offsets of a FlatBuffer point forward and the lengths of all vectors are known, so large ones need not be in memory.

use std::collections::HashMap;
use std::io::{self, Write};

/// A table: fields by their number in the schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Table(Vec<(u16, Field)>);

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Field {
    Byte(u8),
    Word([u8; 4]),
    Text(String),
    Table(Table),
    Tables(Vec<Table>),
    /// A vector of 4-byte scalars.
    Words(Vec<[u8; 4]>),
    /// A vector of 8-byte scalars.
    Longs(Vec<[u8; 8]>),
    /// A vector of bytes that is streamed later; its number of bytes.
    Streamed(u64),
    /// A table or vector that is written once for all fields with the same.
    Shared(Box<Field>),
}

impl Table {
    pub fn set(&mut self, id: u16, field: Field) {
        self.0.push((id, field));
    }

    pub fn byte(&mut self, id: u16, value: u8) {
        self.set(id, Field::Byte(value));
    }

    pub fn int(&mut self, id: u16, value: i32) {
        self.set(id, Field::Word(value.to_le_bytes()));
    }

    pub fn float(&mut self, id: u16, value: f32) {
        self.set(id, Field::Word(value.to_le_bytes()));
    }

    pub fn text(&mut self, id: u16, value: &str) {
        self.set(id, Field::Text(value.to_string()));
    }

    pub fn ints(&mut self, id: u16, values: &[i32]) {
        self.set(id, Field::Words(values.iter().map(|value| value.to_le_bytes()).collect()));
    }

    pub fn floats(&mut self, id: u16, values: &[f32]) {
        self.set(id, Field::Words(values.iter().map(|value| value.to_le_bytes()).collect()));
    }

    pub fn longs(&mut self, id: u16, values: &[i64]) {
        self.set(id, Field::Longs(values.iter().map(|value| value.to_le_bytes()).collect()));
    }

    /// Sets a field whose value other tables may have too.
    pub fn shared(&mut self, id: u16, field: Field) {
        self.set(id, Field::Shared(Box::new(field)));
    }

    pub fn shared_ints(&mut self, id: u16, values: &[i32]) {
        self.shared(id, Field::Words(values.iter().map(|value| value.to_le_bytes()).collect()));
    }

    pub fn tables(&mut self, id: u16, tables: Vec<Table>) {
        self.set(id, Field::Tables(tables));
    }
}

/// A FlatBuffer whose streamed vectors are still to be written.
#[derive(Default)]
pub(crate) struct FlatFile {
    bytes: Vec<u8>,
    /// Positions of equal virtual tables, which are shared.
    virtual_tables: HashMap<Vec<u8>, usize>,
    /// Shared values, and the fields that refer to them.
    shared: Vec<(Field, Vec<usize>)>,
    /// The place of a shared value in the list.
    known: HashMap<Field, usize>,
    /// The field that refers to a streamed vector, and the vector's bytes.
    streamed: Vec<(usize, u64)>,
}

/// Offsets are 32 bits wide; readers take them as signed.
const LARGEST: u64 = (1 << 31) - 1;

impl FlatFile {
    /// Lays out all tables. Streamed vectors follow in the order of their fields; their elements begin at multiples of
    /// `alignment`.
    pub fn new(identifier: [u8; 4], root: &Table, alignment: u64) -> io::Result<FlatFile> {
        let mut file = FlatFile::default();
        file.bytes.extend([0; 4]);
        file.bytes.extend(identifier);
        let at = file.table(root);
        file.refer(0, at);
        // Offsets point forward, so that shared values stand behind everything that refers to them.
        for (value, fields) in std::mem::take(&mut file.shared) {
            let at = file.value(&value);
            fields.into_iter().for_each(|field| file.refer(field, at));
        }
        let mut end = file.bytes.len() as u64;
        for (field, bytes) in file.streamed.clone() {
            let start = vector_start(end, alignment);
            end = start + 4 + bytes;
            if end > LARGEST {
                return Err(io::Error::other("the model takes more than 2 GiB, which one file of this format cannot"));
            }
            file.refer(field, start as usize);
        }
        Ok(file)
    }

    /// Writes the file; `data` writes the bytes of the streamed vector of this number.
    pub fn write(
        &self,
        out: &mut dyn Write,
        alignment: u64,
        mut data: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        out.write_all(&self.bytes)?;
        let mut end = self.bytes.len() as u64;
        for (i, (_, bytes)) in self.streamed.iter().enumerate() {
            let start = vector_start(end, alignment);
            io::copy(&mut io::Read::take(io::repeat(0), start - end), out)?;
            out.write_all(&(*bytes as u32).to_le_bytes())?;
            let mut counted = CountingWriter { out, bytes: 0 };
            data(i, &mut counted)?;
            if counted.bytes != *bytes {
                return Err(io::Error::other(format!("a tensor of {bytes} bytes was written with {}", counted.bytes)));
            }
            end = start + 4 + bytes;
        }
        // The end is aligned as the vectors are, so that files can follow each other.
        io::copy(&mut io::Read::take(io::repeat(0), end.next_multiple_of(alignment) - end), out).map(|_| ())
    }

    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    fn refer(&mut self, field: usize, target: usize) {
        self.bytes[field..field + 4].copy_from_slice(&((target - field) as u32).to_le_bytes());
    }

    fn table(&mut self, table: &Table) -> usize {
        let slots = table.0.iter().map(|(id, _)| usize::from(*id) + 1).max().unwrap_or(0);
        let mut offsets = vec![0_u16; slots];
        // Wide fields first, so that all are aligned.
        let mut length = 4;
        for wide in [true, false] {
            for (id, field) in table.0.iter().filter(|(_, field)| matches!(field, Field::Byte(_)) != wide) {
                offsets[usize::from(*id)] = length;
                length += if matches!(field, Field::Byte(_)) { 1 } else { 4 };
            }
        }
        let mut entries: Vec<u8> = ((4 + 2 * slots) as u16).to_le_bytes().to_vec();
        entries.extend(length.to_le_bytes());
        offsets.iter().for_each(|offset| entries.extend(offset.to_le_bytes()));
        let entries_at = match self.virtual_tables.get(&entries) {
            Some(known) => *known,
            None => {
                self.align(2);
                let at = self.bytes.len();
                self.bytes.extend(&entries);
                self.virtual_tables.insert(entries, at);
                at
            }
        };
        self.align(4);
        let at = self.bytes.len();
        self.bytes.extend(((at - entries_at) as i32).to_le_bytes());
        self.bytes.resize(at + usize::from(length), 0);
        for (id, field) in &table.0 {
            let place = at + usize::from(offsets[usize::from(*id)]);
            match field {
                Field::Byte(value) => self.bytes[place] = *value,
                Field::Word(value) => self.bytes[place..place + 4].copy_from_slice(value),
                other => self.child(place, other),
            }
        }
        at
    }

    /// Writes what a field refers to.
    fn child(&mut self, field: usize, value: &Field) {
        match value {
            Field::Streamed(bytes) => self.streamed.push((field, *bytes)),
            Field::Shared(value) => match self.known.get(&**value) {
                Some(place) => self.shared[*place].1.push(field),
                None => {
                    self.known.insert((**value).clone(), self.shared.len());
                    self.shared.push(((**value).clone(), vec![field]));
                }
            },
            other => {
                let at = self.value(other);
                self.refer(field, at);
            }
        }
    }

    /// Writes a table, a text or a vector, and gives its position.
    fn value(&mut self, value: &Field) -> usize {
        match value {
            Field::Byte(_) | Field::Word(_) | Field::Streamed(_) | Field::Shared(_) => self.bytes.len(),
            Field::Table(table) => self.table(table),
            Field::Text(text) => {
                self.align(4);
                let at = self.count(text.len());
                self.bytes.extend(text.as_bytes());
                self.bytes.push(0);
                at
            }
            Field::Words(words) => {
                self.align(4);
                let at = self.count(words.len());
                words.iter().for_each(|word| self.bytes.extend(word));
                at
            }
            Field::Longs(longs) => {
                self.align(4);
                if self.bytes.len().is_multiple_of(8) {
                    self.bytes.extend([0; 4]);
                }
                let at = self.count(longs.len());
                longs.iter().for_each(|long| self.bytes.extend(long));
                at
            }
            Field::Tables(tables) => {
                self.align(4);
                let at = self.count(tables.len());
                self.bytes.resize(at + 4 + 4 * tables.len(), 0);
                for (i, table) in tables.iter().enumerate() {
                    let target = self.table(table);
                    self.refer(at + 4 + 4 * i, target);
                }
                at
            }
        }
    }

    fn count(&mut self, count: usize) -> usize {
        let at = self.bytes.len();
        self.bytes.extend((count as u32).to_le_bytes());
        at
    }
}

/// Where the length of a vector stands, so that its elements are aligned.
fn vector_start(end: u64, alignment: u64) -> u64 {
    (end + 4).next_multiple_of(alignment) - 4
}

struct CountingWriter<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Write for CountingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
