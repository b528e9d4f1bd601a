//! The values of a column, page by page.

use super::codec::Unpacker;
use super::encodings::{CHUNK, CUT, Hybrid, Run, delta, hybrid};
use super::footer::{DICTIONARY, Leaf, PageHeader};
use super::numbers::{UNLISTED, ValueType, look_up, numbers, plain, unsupported};
use crate::source::columnar::resize_to;
use crate::table::{Cell, WORD};

/// Values of a dictionary that are looked up at a time. Columns are read in turn, so the dictionary of each has left
/// the processor's cache when it is used again; with more values at a time, that happens less often.
pub(super) const AHEAD: usize = 20 * CHUNK;

/// Entries of a dictionary of which the processor's nearest cache has several.
const SMALL: usize = 1024;

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
    /// Encoded numbers or texts of the page, the next one.
    words: Vec<[u8; WORD]>,
    next_word: usize,
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
            words: Vec::new(),
            next_word: 0,
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

    /// Returns cells with integers that are not rounded from here on. Lists and slices of numbers are then not
    /// available.
    pub fn keep_integers(&mut self) {
        if !self.repeated {
            self.value = self.value.exact();
        }
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

    /// The numbers of the dictionary, and which dictionary it is, counted from the first, if a page without missing
    /// values or repetition has indices of numbers.
    pub fn listed_numbers(&self) -> Option<(u64, &[f64])> {
        let is_plain = !self.repeated && self.definitions.is_empty() && self.value != ValueType::Text;
        (is_plain && matches!(self.later, Later::Indices(_))).then_some((self.dictionaries, &self.dictionary))
    }

    /// The same as [`numbers`](Self::numbers), where `listed` has the encoded numbers or texts of the dictionary.
    pub fn words(&mut self, count: usize, listed: &[[u8; WORD]]) -> Result<&[[u8; WORD]], String> {
        if self.next_word == self.words.len() {
            let Later::Indices(indices) = &mut self.later else { return Err(CUT.into()) };
            // A small dictionary is in the cache whenever it is used; then what was looked up should be too.
            let most = if listed.len() <= SMALL { 2 * CHUNK } else { AHEAD };
            resize_to(&mut self.words, AHEAD.min(self.entries));
            self.next_word = 0;
            let mut chunk = [0; CHUNK];
            while self.words.len() + CHUNK.min(indices.left()) <= most.min(self.entries) && indices.left() > 0 {
                look_up(indices.next(&self.unpacked, &mut chunk)?, listed, &mut self.words)?;
            }
        }
        let words = &self.words[self.next_word..];
        let words = &words[..count.min(words.len())];
        if words.is_empty() {
            return Err(CUT.into());
        }
        self.next_word += words.len();
        self.entry += words.len();
        self.next += words.len();
        Ok(words)
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

    /// Whether the page has indices of texts in the dictionary, and no missing values.
    pub fn lists_texts(&self) -> bool {
        !self.repeated && self.definitions.is_empty() && self.value == ValueType::Text && self.texts == Strings::Dictionary
    }

    /// The indices of the next texts, which are consumed. Not on a page of which [`words`](Self::words) were taken.
    pub fn indices(&mut self, count: usize) -> Result<&[u32], String> {
        self.decode_indices()?;
        let indices = self.first.get(self.next..self.next + count).ok_or(CUT)?;
        self.entry += count;
        self.next += count;
        Ok(indices)
    }

    /// Decodes the indices of all texts of the page, unless they are.
    fn decode_indices(&mut self) -> Result<(), String> {
        let Later::Indices(mut indices) = self.later else { return Ok(()) };
        resize_to(&mut self.first, indices.left());
        let mut chunk = [0; CHUNK];
        while indices.left() > 0 {
            match indices.next(&self.unpacked, &mut chunk)? {
                Run::Same(index, times) => self.first.extend(std::iter::repeat_n(index, times)),
                Run::Each(indices) => self.first.extend_from_slice(indices),
            }
        }
        let known = self.ends.len();
        if self.first.iter().any(|index| *index as usize >= known) {
            return Err(UNLISTED.into());
        }
        self.later = Later::Nothing;
        Ok(())
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
            return Ok(self.value.cell(self.values[self.next - 1 - self.decoded]));
        }
        if self.texts == Strings::Dictionary {
            self.decode_indices()?;
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
        (self.decoded, self.later, self.next_word) = (0, Later::Nothing, 0);
        self.values.clear();
        self.words.clear();
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
                let (&width, _) = bytes.split_first().ok_or(CUT)?;
                self.later = Later::Indices(Hybrid::new(u32::from(width), count, self.text_at + 1)?);
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

#[cfg(test)]
mod tests {
    use super::super::footer::DATA;
    use super::*;
    use proptest::prelude::*;

    /// Pages with a dictionary of integers as f64, and a data page of indices of 12 bits, in one bit-packed run after a
    /// run of one value.
    fn pages(indices: &[u32], repeated: usize) -> Pages {
        let leaf = Leaf { name: "n".into(), kind: 5, length: 0, defined: 0, element: 0, repeated: 0, logical: None };
        let mut pages = Pages::new(&leaf, ValueType::F64);
        let dictionary: Vec<u8> = (0..4096).flat_map(|number| f64::from(number * 3).to_le_bytes()).collect();
        let mut packed = vec![12u8];
        let varint = |mut number: usize, out: &mut Vec<u8>| {
            while number >= 0x80 {
                out.push(number as u8 | 0x80);
                number >>= 7;
            }
            out.push(number as u8);
        };
        varint(repeated << 1, &mut packed);
        packed.extend([7, 0]);
        varint(indices.len().div_ceil(8) << 1 | 1, &mut packed);
        let mut bits = vec![0u8; indices.len().div_ceil(8) * 12];
        for (at, index) in indices.iter().enumerate() {
            (0..12).filter(|bit| index >> bit & 1 == 1).for_each(|bit| bits[(at * 12 + bit) / 8] |= 1 << ((at * 12 + bit) % 8));
        }
        packed.extend(bits);
        let head = |kind: i64, values: usize, bytes: &[u8]| PageHeader {
            kind,
            values: values as u64,
            packed: bytes.len() as u64,
            unpacked: bytes.len() as u64,
            encoding: if kind == DATA { 8 } else { 0 },
            ..PageHeader::default()
        };
        let unpacker = &mut Unpacker::default();
        pages.read(&head(DICTIONARY, 4096, &dictionary), 0, &dictionary, unpacker).unwrap();
        pages.read(&head(DATA, repeated + indices.len(), &packed), 0, &packed, unpacker).unwrap();
        pages
    }

    proptest! {
        #[test]
        fn encoded_values_of_a_dictionary_are_its_values(
            seed in any::<u32>(), count in 1usize..70_000, repeated in 1usize..30_000, each in 1usize..3000,
        ) {
            let indices: Vec<u32> = (0..count as u32).map(|at| at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 20).collect();
            let mut pages = pages(&indices, repeated);
            let (number, dictionary) = pages.listed_numbers().unwrap();
            prop_assert_eq!((number, dictionary.len()), (1, 4096));
            let words: Vec<[u8; WORD]> = dictionary.iter().map(|value| (*value as f32).to_ne_bytes()).collect();
            let mut found = Vec::new();
            while pages.left() > 0 {
                let some = pages.words(each, &words).unwrap();
                prop_assert!(some.len() <= each);
                found.extend(some.iter().map(|word| f32::from_ne_bytes(*word) as u32 / 3));
            }
            prop_assert!(pages.words(1, &words).is_err() && pages.words.capacity() <= AHEAD);
            let expected: Vec<u32> = std::iter::repeat_n(7, repeated).chain(indices).collect();
            prop_assert!(found == expected);
        }
    }

    #[test]
    fn an_index_beyond_the_dictionary_is_an_error() {
        let mut pages = pages(&[5, 4000], 3);
        assert_eq!(pages.words(5, &[[0; WORD]; 100]), Err(UNLISTED.to_string()));
    }
}
