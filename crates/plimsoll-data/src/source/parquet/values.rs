//! The values of a column, page by page.

use super::codec::Unpacker;
use super::encodings::{CHUNK, CUT, Hybrid, Run, delta, hybrid, split_value};
use super::footer::{DICTIONARY, Leaf, PageHeader};
use crate::source::columnar::{half, resize_to};
use crate::table::Cell;

/// What values become: a number, divided where a divisor is given, or a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ValueType {
    Boolean,
    I32(f64),
    U32,
    I64(f64),
    U64,
    /// Nanoseconds of a day, and the day.
    I96,
    F32,
    F64,
    F16,
    /// Big-endian integers of a fixed or their own length.
    Decimal(Option<usize>, f64),
    Text,
}

impl ValueType {
    /// Bytes of a plain value, if all have the same.
    fn size(self) -> Option<usize> {
        Some(match self {
            ValueType::Boolean | ValueType::Text | ValueType::Decimal(None, _) => return None,
            ValueType::I32(_) | ValueType::U32 | ValueType::F32 => 4,
            ValueType::I64(_) | ValueType::U64 | ValueType::F64 => 8,
            ValueType::I96 => 12,
            ValueType::F16 => 2,
            ValueType::Decimal(Some(size), _) => size,
        })
    }

    fn of_integer(self, value: i64) -> f64 {
        match self {
            ValueType::U32 => f64::from(value as u32),
            ValueType::U64 => value as u64 as f64,
            ValueType::I32(by) | ValueType::I64(by) if by != 1.0 => value as f64 / by,
            _ => value as f64,
        }
    }

    /// A value of fixed size.
    fn of_bytes(self, bytes: &[u8]) -> f64 {
        let four = || <[u8; 4]>::try_from(bytes).unwrap_or_default();
        let eight = || <[u8; 8]>::try_from(bytes).unwrap_or_default();
        match self {
            ValueType::I32(_) => self.of_integer(i64::from(i32::from_le_bytes(four()))),
            ValueType::U32 => f64::from(u32::from_le_bytes(four())),
            ValueType::F32 => f64::from(f32::from_le_bytes(four())),
            ValueType::I64(_) | ValueType::U64 => self.of_integer(i64::from_le_bytes(eight())),
            ValueType::F64 => f64::from_le_bytes(eight()),
            ValueType::F16 => f64::from(half(u16::from_le_bytes([bytes[0], bytes[1]]))),
            ValueType::I96 => {
                let nanos = u64::from_le_bytes(bytes[..8].try_into().unwrap_or_default());
                let day = u32::from_le_bytes(bytes[8..].try_into().unwrap_or_default());
                // Julian days; 1970-01-01 is day 2,440,588.
                f64::from(day) - 2_440_588.0 + nanos as f64 / 86_400e9
            }
            ValueType::Decimal(_, by) => {
                let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
                let start = if negative { -1i128 } else { 0 };
                bytes.iter().take(16).fold(start, |value, byte| value << 8 | i128::from(*byte)) as f64 / by
            }
            ValueType::Boolean | ValueType::Text => 0.0,
        }
    }
}

/// How the texts of the page are stored.
#[derive(Clone, Copy, PartialEq)]
enum Strings {
    /// Lengths before the texts.
    Plain,
    /// Indices in the dictionary, in `first`.
    Dictionary,
    /// Lengths in `second`, then the texts.
    Lengths,
    /// Lengths of shared prefixes in `first`, of the rest in `second`, then the rests.
    Prefixes,
}

/// How the numbers of a page are decoded that were not yet. They are decoded while they are in the processor's cache.
#[derive(Clone, Copy)]
enum Later {
    Nothing,
    /// Plain values from this byte on, and how many.
    Plain(usize, usize),
    /// Indices in the dictionary.
    Indices(Hybrid),
}

/// The values of a column, page by page.
pub(super) struct Pages {
    value: ValueType,
    defined: u8,
    element: u8,
    repeated: bool,
    unpacked: Vec<u8>,
    /// The dictionary: numbers, or texts with their ends.
    dictionary: Vec<f64>,
    dictionary_text: Vec<u8>,
    ends: Vec<u32>,
    /// Dictionaries so far.
    dictionaries: u64,
    /// The numbers that are present: all, or those from `decoded` on.
    values: Vec<f64>,
    decoded: usize,
    /// How further numbers are decoded, if not all were at once.
    later: Later,
    texts: Strings,
    first: Vec<u32>,
    second: Vec<u32>,
    /// Where the next text begins, and the last one if they share prefixes.
    text_at: usize,
    current: Vec<u8>,
    /// Levels; definition levels are empty if all values are present.
    definitions: Vec<u8>,
    repetitions: Vec<u8>,
    /// The entries of the page, the next one, and the index of its value.
    entries: usize,
    entry: usize,
    next: usize,
}

impl Pages {
    pub fn new(leaf: &Leaf, value: ValueType) -> Pages {
        Pages {
            value,
            defined: leaf.defined,
            element: leaf.element,
            repeated: leaf.repeated > 0,
            unpacked: Vec::new(),
            dictionary: Vec::new(),
            dictionary_text: Vec::new(),
            ends: Vec::new(),
            dictionaries: 0,
            values: Vec::new(),
            decoded: 0,
            later: Later::Nothing,
            texts: Strings::Plain,
            first: Vec::new(),
            second: Vec::new(),
            text_at: 0,
            current: Vec::new(),
            definitions: Vec::new(),
            repetitions: Vec::new(),
            entries: 0,
            entry: 0,
            next: 0,
        }
    }

    /// Entries of the page not yet returned.
    pub fn left(&self) -> usize {
        self.entries - self.entry
    }

    /// Drops the current page.
    pub fn drop_page(&mut self) {
        (self.entries, self.entry, self.next) = (0, 0, 0);
    }

    /// Numbers of a page without missing values or repetition: up to `count` of the next ones, which are consumed.
    pub fn numbers(&mut self, count: usize) -> Option<&[f64]> {
        if self.repeated || !self.definitions.is_empty() || self.value == ValueType::Text {
            return None;
        }
        self.decode().ok()?;
        let from = self.next - self.decoded;
        let numbers = self.values.get(from..)?;
        let numbers = &numbers[..count.min(numbers.len())];
        self.entry += numbers.len();
        self.next += numbers.len();
        Some(numbers)
    }

    /// Decodes numbers until the next one is known.
    fn decode(&mut self) -> Result<(), String> {
        while self.next >= self.decoded + self.values.len() {
            let known = self.decoded + self.values.len();
            resize_to(&mut self.values, CHUNK);
            self.decoded = known;
            match &mut self.later {
                Later::Nothing => return Err(CUT.into()),
                Later::Plain(at, left) => {
                    let count = CHUNK.min(*left);
                    plain(self.value, self.unpacked.get(*at..).ok_or(CUT)?, count, &mut self.values)?;
                    *at += count * self.value.size().unwrap_or(0);
                    *left -= count;
                }
                Later::Indices(indices) => {
                    let mut chunk = [0; CHUNK];
                    let run = indices.next(&self.unpacked, &mut chunk)?;
                    look_up(run, &self.dictionary, &mut self.values)?;
                }
            }
            if self.values.is_empty() {
                return Err(CUT.into());
            }
        }
        Ok(())
    }

    /// Indices of texts in the dictionary, of a page without missing values: the next ones, which are consumed.
    pub fn indices(&mut self, count: usize) -> Option<&[u32]> {
        if self.repeated || !self.definitions.is_empty() || self.value != ValueType::Text || self.texts != Strings::Dictionary {
            return None;
        }
        let indices = &self.first[self.next..self.next + count];
        self.entry += count;
        self.next += count;
        Some(indices)
    }

    /// Which dictionary the indices are of, counted from the first, and the number of its texts.
    pub fn dictionary(&self) -> (u64, usize) {
        (self.dictionaries, self.ends.len())
    }

    /// A text of the dictionary.
    pub fn listed(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.dictionary_text[start..self.ends[index] as usize]
    }

    /// Whether the next entry continues a list.
    pub fn continues(&self) -> bool {
        self.repetitions.get(self.entry).is_some_and(|level| *level > 0)
    }

    /// The number of the next element of a list: `None` if there is no element, as in an empty list.
    pub fn element(&mut self) -> Result<Option<f64>, String> {
        let level = self.definitions.get(self.entry).copied().unwrap_or(self.defined);
        self.entry += 1;
        if level < self.element {
            return Ok(None);
        }
        if level < self.defined {
            return Ok(Some(f64::NAN));
        }
        self.decode()?;
        self.next += 1;
        Ok(Some(self.values[self.next - 1 - self.decoded]))
    }

    /// The cell of the next row.
    pub fn cell(&mut self) -> Result<Cell<'_>, String> {
        let row = self.entry;
        self.entry += 1;
        if self.definitions.get(row).is_some_and(|level| *level < self.defined) {
            return Ok(Cell::Missing);
        }
        if self.value != ValueType::Text {
            self.decode()?;
            self.next += 1;
            return Ok(Cell::Number(self.values[self.next - 1 - self.decoded]));
        }
        let at = self.next;
        self.next += 1;
        match self.texts {
            Strings::Plain => {
                let (length, rest) = self.unpacked.get(self.text_at..).and_then(|rest| rest.split_first_chunk::<4>()).ok_or(CUT)?;
                let length = u32::from_le_bytes(*length) as usize;
                let text = rest.get(..length).ok_or(CUT)?;
                self.text_at += 4 + length;
                Ok(Cell::Text(text))
            }
            Strings::Dictionary => Ok(Cell::Text(self.listed(self.first[at] as usize))),
            Strings::Lengths => {
                let text = self.unpacked.get(self.text_at..).and_then(|rest| rest.get(..self.second[at] as usize)).ok_or(CUT)?;
                self.text_at += text.len();
                Ok(Cell::Text(text))
            }
            Strings::Prefixes => {
                let rest = self.unpacked.get(self.text_at..).and_then(|rest| rest.get(..self.second[at] as usize)).ok_or(CUT)?;
                let prefix = self.first[at] as usize;
                if prefix > self.current.len() {
                    return Err("shares more than the text before it has".into());
                }
                self.current.truncate(prefix);
                self.current.extend_from_slice(rest);
                self.text_at += rest.len();
                Ok(Cell::Text(&self.current))
            }
        }
    }

    /// Reads a page: a dictionary is stored, values replace those of the page before.
    pub fn read(&mut self, head: &PageHeader, codec: i64, page: &[u8], unpacker: &mut Unpacker) -> Result<(), String> {
        let [repeated, defined] = head.levels.map_or([0, 0], |[defined, repeated]| [repeated as usize, defined as usize]);
        let levels = repeated.checked_add(defined).and_then(|end| page.get(..end)).ok_or(CUT)?;
        let packed = &page[levels.len()..];
        let unpacked = (head.unpacked as usize).checked_sub(levels.len()).ok_or("has levels longer than itself")?;
        // Allocate exactly what was planned, without amortized growth.
        let is_packed = head.values_packed && codec != 0;
        resize_to(&mut self.unpacked, if is_packed { unpacked } else { packed.len() });
        match is_packed && unpacked > 0 {
            true => unpacker.unpack(codec, packed, unpacked, &mut self.unpacked)?,
            false => self.unpacked.extend_from_slice(packed),
        }
        let entries = head.values as usize;
        if head.kind == DICTIONARY {
            return self.read_dictionary(entries);
        }
        let bytes = std::mem::take(&mut self.unpacked);
        let read = self.read_values(head, &bytes, levels.split_at(repeated), entries);
        self.unpacked = bytes;
        read?;
        (self.entries, self.entry, self.next) = (entries, 0, 0);
        Ok(())
    }

    fn read_dictionary(&mut self, count: usize) -> Result<(), String> {
        self.dictionaries += 1;
        if self.value != ValueType::Text {
            let bytes = std::mem::take(&mut self.unpacked);
            resize_to(&mut self.dictionary, count);
            let read = plain(self.value, &bytes, count, &mut self.dictionary);
            self.unpacked = bytes;
            return read;
        }
        resize_to(&mut self.ends, count);
        resize_to(&mut self.dictionary_text, self.unpacked.len());
        let mut rest = &self.unpacked[..];
        for _ in 0..count {
            let (length, after) = rest.split_first_chunk::<4>().ok_or(CUT)?;
            let (text, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(CUT)?;
            self.dictionary_text.extend_from_slice(text);
            self.ends.push(self.dictionary_text.len() as u32);
            rest = after;
        }
        Ok(())
    }

    fn read_values(&mut self, head: &PageHeader, bytes: &[u8], levels: (&[u8], &[u8]), entries: usize) -> Result<(), String> {
        let mut rest = bytes;
        // Levels of the first version have their length before them.
        let mut take = |of_v2| match head.levels {
            Some(_) => Ok::<_, String>(of_v2),
            None => {
                let (length, after) = rest.split_first_chunk::<4>().ok_or(CUT)?;
                let (levels, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(CUT)?;
                rest = after;
                Ok(levels)
            }
        };
        if self.repeated {
            read_levels(take(levels.0)?, 1, entries, &mut self.repetitions)?;
        }
        let mut count = entries;
        if self.defined > 0 {
            let levels = take(levels.1)?;
            self.definitions.clear();
            if !all_are(levels, self.defined, entries)? {
                read_levels(levels, self.defined, entries, &mut self.definitions)?;
                count = self.definitions.iter().filter(|level| **level == self.defined).count();
                if count == entries {
                    self.definitions.clear();
                }
            }
        }
        (self.decoded, self.later) = (0, Later::Nothing);
        self.values.clear();
        let at = bytes.len() - rest.len();
        match self.value {
            ValueType::Text => return self.read_texts(head.encoding, bytes, rest, count),
            _ if count == 0 => {}
            value if head.encoding == 0 && value.size().is_some() => {
                let size = value.size().and_then(|size| size.checked_mul(count));
                size.filter(|size| *size <= rest.len()).ok_or(CUT)?;
                self.later = Later::Plain(at, count);
            }
            _ if matches!(head.encoding, 2 | 8) => {
                let (&width, _) = rest.split_first().ok_or(CUT)?;
                self.later = Later::Indices(Hybrid::new(u32::from(width), count, at + 1)?);
            }
            value => {
                resize_to(&mut self.values, count);
                numbers(value, head.encoding, rest, count, &mut self.values)?;
            }
        }
        Ok(())
    }

    fn read_texts(&mut self, encoding: i64, page: &[u8], bytes: &[u8], count: usize) -> Result<(), String> {
        let lengths = |bytes: &[u8], count: usize, out: &mut Vec<u32>| {
            resize_to(out, count);
            delta(bytes, count, |length| out.push(u32::try_from(length).unwrap_or(u32::MAX))).map(<[u8]>::len)
        };
        self.text_at = page.len() - bytes.len();
        match encoding {
            _ if count == 0 => {}
            0 => self.texts = Strings::Plain,
            2 | 8 => {
                self.texts = Strings::Dictionary;
                let (&width, bytes) = bytes.split_first().ok_or(CUT)?;
                resize_to(&mut self.first, count);
                let first = &mut self.first;
                hybrid(bytes, u32::from(width), count, |run| {
                    match run {
                        Run::Same(index, times) => first.extend(std::iter::repeat_n(index, times)),
                        Run::Each(indices) => first.extend_from_slice(indices),
                    }
                    Ok(())
                })?;
                let known = self.ends.len();
                if first.iter().any(|index| *index as usize >= known) {
                    return Err(UNLISTED.into());
                }
            }
            6 => {
                self.texts = Strings::Lengths;
                self.text_at = page.len() - lengths(bytes, count, &mut self.second)?;
            }
            7 => {
                self.texts = Strings::Prefixes;
                let left = lengths(bytes, count, &mut self.first)?;
                self.text_at = page.len() - lengths(&bytes[bytes.len() - left..], count, &mut self.second)?;
                resize_to(&mut self.current, page.len());
            }
            other => return Err(unsupported(other)),
        }
        Ok(())
    }
}

const UNLISTED: &str = "has a value that its dictionary does not list";

fn unsupported(encoding: i64) -> String {
    format!("is encoded in a way that its type does not have (encoding {encoding}); the file is damaged")
}

fn read_levels(bytes: &[u8], most: u8, count: usize, out: &mut Vec<u8>) -> Result<(), String> {
    resize_to(out, count);
    hybrid(bytes, 8 - most.leading_zeros(), count, |run| {
        match run {
            Run::Same(level, times) => out.extend(std::iter::repeat_n(level as u8, times)),
            Run::Each(levels) => out.extend(levels.iter().map(|level| *level as u8)),
        }
        Ok(())
    })
}

/// Whether all levels are this one, in a single run, as where nothing is missing.
fn all_are(bytes: &[u8], level: u8, count: usize) -> Result<bool, String> {
    let width = 8 - level.leading_zeros();
    Ok(count > 0 && Hybrid::new(width, count, 0)?.is_run_of(bytes, u32::from(level)))
}

/// Adds the values of a dictionary by their indices.
fn look_up(run: Run<'_>, dictionary: &[f64], out: &mut Vec<f64>) -> Result<(), String> {
    match run {
        Run::Same(index, times) => {
            let value = *dictionary.get(index as usize).ok_or(UNLISTED)?;
            out.extend(std::iter::repeat_n(value, times));
        }
        Run::Each(indices) => {
            let most = indices.iter().fold(0, |most, index| most.max(*index)) as usize;
            let known = dictionary.get(..=most).ok_or(UNLISTED)?;
            out.extend(indices.iter().map(|index| known[*index as usize]));
        }
    }
    Ok(())
}

/// Decodes all numbers of a page, of encodings that are not decoded in parts.
fn numbers(value: ValueType, encoding: i64, bytes: &[u8], count: usize, out: &mut Vec<f64>) -> Result<(), String> {
    match (encoding, value) {
        _ if count == 0 => Ok(()),
        (0, _) => plain(value, bytes, count, out),
        (3, ValueType::Boolean) => {
            let bytes = bytes.get(4..).ok_or(CUT)?;
            hybrid(bytes, 1, count, |run| {
                match run {
                    Run::Same(truth, times) => out.extend(std::iter::repeat_n(f64::from(truth), times)),
                    Run::Each(truths) => out.extend(truths.iter().map(|truth| f64::from(*truth))),
                }
                Ok(())
            })
        }
        (5, ValueType::I32(_) | ValueType::U32 | ValueType::I64(_) | ValueType::U64) => {
            let narrow = matches!(value, ValueType::I32(_) | ValueType::U32);
            // Differences of 32-bit numbers wrap at 32 bits.
            delta(bytes, count, |number| out.push(value.of_integer(if narrow { i64::from(number as i32) } else { number }))).map(|_| ())
        }
        (6 | 7, ValueType::Decimal(..)) => deltas(value, encoding, bytes, count, out),
        (9, _) => {
            let Some(size) = value.size().filter(|size| size.checked_mul(count).is_some_and(|all| all <= bytes.len())) else {
                return Err(CUT.into());
            };
            match size {
                2 => out.extend((0..count).map(|at| value.of_bytes(&split_value::<2>(bytes, count, at)))),
                4 => out.extend((0..count).map(|at| value.of_bytes(&split_value::<4>(bytes, count, at)))),
                8 => out.extend((0..count).map(|at| value.of_bytes(&split_value::<8>(bytes, count, at)))),
                size if size <= 32 => {
                    let mut buffer = [0; 32];
                    for at in 0..count {
                        (0..size).for_each(|stream| buffer[stream] = bytes[stream * count + at]);
                        out.push(value.of_bytes(&buffer[..size]));
                    }
                }
                _ => return Err(unsupported(9)),
            }
            Ok(())
        }
        (other, _) => Err(unsupported(other)),
    }
}

/// Decimals as byte strings with delta-encoded lengths, or that share prefixes.
fn deltas(value: ValueType, encoding: i64, bytes: &[u8], count: usize, out: &mut Vec<f64>) -> Result<(), String> {
    const LONGEST: usize = 32;
    let mut prefixes = Vec::new();
    let mut rest = bytes;
    if encoding == 7 {
        prefixes.reserve_exact(count);
        rest = delta(rest, count, |length| prefixes.push(length as usize))?;
    }
    let mut lengths = Vec::with_capacity(count);
    rest = delta(rest, count, |length| lengths.push(length as usize))?;
    let (mut current, mut length) = ([0; LONGEST], 0);
    for (at, &suffix) in lengths.iter().enumerate() {
        let prefix = prefixes.get(at).copied().unwrap_or(0);
        let (text, after) = rest.split_at_checked(suffix).ok_or(CUT)?;
        let end =
            prefix.checked_add(suffix).filter(|end| prefix <= length && *end <= LONGEST).ok_or("has a decimal of more than 32 bytes")?;
        current[prefix..end].copy_from_slice(text);
        (rest, length) = (after, end);
        out.push(value.of_bytes(&current[..length]));
    }
    Ok(())
}

/// PLAIN encoding.
fn plain(value: ValueType, bytes: &[u8], count: usize, out: &mut Vec<f64>) -> Result<(), String> {
    fn each<const N: usize>(bytes: &[u8], count: usize, out: &mut Vec<f64>, to: impl Fn([u8; N]) -> f64) -> Result<(), String> {
        let values = bytes.as_chunks::<N>().0.get(..count).ok_or(CUT)?;
        out.extend(values.iter().map(|bytes| to(*bytes)));
        Ok(())
    }
    match value {
        ValueType::Boolean => {
            if count.div_ceil(8) > bytes.len() {
                return Err(CUT.into());
            }
            out.extend((0..count).map(|index| f64::from(bytes[index / 8] >> (index % 8) & 1)));
            Ok(())
        }
        ValueType::I32(1.0) => each(bytes, count, out, |bytes| f64::from(i32::from_le_bytes(bytes))),
        ValueType::I64(1.0) => each(bytes, count, out, |bytes| i64::from_le_bytes(bytes) as f64),
        ValueType::F32 => each(bytes, count, out, |bytes| f64::from(f32::from_le_bytes(bytes))),
        ValueType::F64 => each(bytes, count, out, f64::from_le_bytes),
        ValueType::Decimal(None, _) => {
            let mut rest = bytes;
            for _ in 0..count {
                let (length, after) = rest.split_first_chunk::<4>().ok_or(CUT)?;
                let (number, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(CUT)?;
                out.push(value.of_bytes(number));
                rest = after;
            }
            Ok(())
        }
        ValueType::Text => Err(unsupported(0)),
        value => {
            let size = value.size().ok_or(CUT)?;
            let values = size.checked_mul(count).and_then(|all| bytes.get(..all)).ok_or(CUT)?;
            out.extend(values.chunks_exact(size).map(|bytes| value.of_bytes(bytes)));
            Ok(())
        }
    }
}
