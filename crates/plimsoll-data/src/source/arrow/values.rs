//! The values of a column, in blocks of rows.

use super::buffer::{Buffer, BufferLimits, BufferUnpacker, SHORT};
use super::file::{ArrowFile, BufferSlot, BufferSpan, Codec, MessageAt};
use super::schema::{ArrowField, Form, Layout, Number};
use crate::source::columnar::{BLOCK, half, resize_to};
use crate::table::Cell;

const OFFSETS: &str = "has offsets that are not in order; the file is damaged";
const LARGER: &str = "has longer texts or lists than it had; the file changed while it was read";

/// Bytes of the view of a text, and of the longest text inside of one.
const VIEW: usize = 16;
const INSIDE: usize = 12;

/// Sizes from which the memory of a column is planned.
#[derive(Clone, Debug, Default)]
pub(super) struct ColumnLimits {
    /// Of its buffers, in the order of [`ArrowColumn::enter`].
    pub buffers: Vec<BufferLimits>,
    /// Bytes of the texts, or numbers of the lists, of a block.
    pub block: usize,
    /// Values of its dictionary, bytes of their texts, and the sizes of reading them.
    pub dictionary: usize,
    pub dictionary_text: usize,
    pub dictionary_values: Option<Box<ColumnLimits>>,
}

impl ColumnLimits {
    /// No limits, for looking at a file.
    pub fn none() -> ColumnLimits {
        let all = BufferLimits { packed: u64::MAX, unpacked: u64::MAX, unpacking: u64::MAX };
        let values = ColumnLimits { buffers: vec![all; MOST_BUFFERS], block: usize::MAX, ..ColumnLimits::default() };
        ColumnLimits { dictionary: usize::MAX, dictionary_text: usize::MAX, dictionary_values: Some(Box::new(values.clone())), ..values }
    }

    pub fn add(&mut self, at: usize, buffer: BufferLimits) {
        self.buffers.resize(self.buffers.len().max(at + 1), BufferLimits::default());
        self.buffers[at] = self.buffers[at].merge(buffer);
    }

    /// Memory of the column, without that of decompressing.
    pub fn bytes(&self, layout: &Layout) -> u64 {
        let unpacked: u64 = self.buffers.iter().map(|buffer| buffer.unpacked).sum();
        // Numbers, ends and flags of a block, and bytes of buffers that are not compressed.
        let per_row = match layout {
            Layout::Strings(_) | Layout::Views => 8 + 1 + 2 * VIEW,
            Layout::Numbers(number) | Layout::Lists(_, number) | Layout::FixedLists(_, number) => 8 + 8 + 1 + number.size.max(8),
            _ => 8 + 8 + 1 + 8,
        };
        let block = match layout {
            Layout::Strings(_) | Layout::Views => 2 * self.block,
            Layout::Lists(_, number) | Layout::FixedLists(_, number) => self.block * (16 + 1 + number.size),
            _ => 0,
        };
        let dictionary = self.dictionary * 13 + self.dictionary_text;
        let values = match (layout, &self.dictionary_values) {
            (Layout::Dictionary { values, .. }, Some(limits)) => limits.bytes(values),
            _ => 0,
        };
        unpacked + values + (per_row * BLOCK + block + dictionary + (8 << 10)) as u64
    }

    /// Memory of decompressing its buffers: the compressed bytes, and what the decompressor takes.
    pub fn unpacking(&self) -> (u64, u64) {
        let most = |of: fn(&BufferLimits) -> u64| self.buffers.iter().map(of).max().unwrap_or(0);
        let (packed, unpacking) = self.dictionary_values.as_ref().map_or((0, 0), |values| values.unpacking());
        (packed.max(most(|buffer| buffer.packed)), unpacking.max(most(|buffer| buffer.unpacking)))
    }
}

/// Buffers of a column in one batch that is not corrupt: validity of its structs, its own, and those of views.
const MOST_BUFFERS: usize = 1 << 12;

/// What was read of a block, or of a dictionary.
#[derive(Default)]
struct ArrowValues {
    numbers: Vec<f64>,
    text: Vec<u8>,
    /// One past the last byte of each text, or number of each list.
    ends: Vec<u32>,
    missing: Vec<bool>,
}

impl ArrowValues {
    fn text(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        &self.text[start..self.ends[at] as usize]
    }
}

/// A column in the current record batch.
pub(super) struct ArrowColumn {
    layout: Layout,
    limits: ColumnLimits,
    /// Which rows are valid, for itself and the structs that it is in; only those with missing rows.
    valid: Vec<Buffer>,
    /// Offsets, views or numbers; then texts or the numbers of lists.
    values: Buffer,
    data: Vec<Buffer>,
    /// Which elements of lists are valid.
    element_valid: Option<Buffer>,
    block: ArrowValues,
    /// The numbers of the current lists.
    list: Vec<[u8; 8]>,
    dictionary: ArrowValues,
    /// The messages that the dictionary is of.
    loaded: Option<(usize, Vec<usize>)>,
    pub seen: Seen,
}

/// The largest sizes so far: texts or lists of a block, the texts of the dictionary, and those of a block of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub block: usize,
    pub dictionary_text: usize,
    pub dictionary_block: usize,
}

/// The buffers of a column, in the order of [`ColumnLimits::buffers`].
pub(super) fn buffers<'s>(outer: &'s [&'s BufferSlot], slot: &'s BufferSlot) -> impl Iterator<Item = BufferSpan> + 's {
    let own = slot.buffers.iter().copied();
    let children = slot.children.iter().flat_map(|child| child.buffers.iter().copied());
    outer.iter().filter_map(|outer| outer.buffers.first().copied()).chain(own).chain(children)
}

impl ArrowColumn {
    pub fn new(layout: Layout, limits: ColumnLimits) -> ArrowColumn {
        ArrowColumn {
            layout,
            limits,
            valid: Vec::new(),
            values: Buffer::default(),
            data: Vec::new(),
            element_valid: None,
            block: ArrowValues::default(),
            list: Vec::new(),
            dictionary: ArrowValues::default(),
            loaded: None,
            seen: Seen::default(),
        }
    }

    /// Moves to a record batch. `outer` are the structs that the column is in.
    pub fn enter(
        &mut self,
        file: &ArrowFile,
        codec: Option<Codec>,
        outer: &[&BufferSlot],
        slot: &BufferSlot,
        unpacker: &mut BufferUnpacker,
    ) -> Result<(), String> {
        let mut index = 0;
        let limits = &self.limits;
        let mut enter = |buffer: &mut Buffer, span: BufferSpan| {
            let limits = limits.buffers.get(index).copied().unwrap_or_default();
            index += 1;
            buffer.enter(file, codec, span, limits, unpacker)
        };
        let mut skipped = Buffer::default();
        let has_validity = !matches!(self.layout, Layout::Null);
        self.valid.clear();
        for (slot, has_validity) in outer.iter().map(|outer| (*outer, true)).chain([(slot, has_validity)]) {
            let Some(span) = slot.buffers.first().copied().filter(|_| has_validity) else { continue };
            // Without missing rows the buffer may be empty, and is not needed.
            match slot.nulls > 0 {
                true => {
                    let mut buffer = Buffer::default();
                    enter(&mut buffer, span)?;
                    self.valid.push(buffer);
                }
                false => enter(&mut skipped, BufferSpan::default())?,
            }
        }
        let mut own = slot.buffers.iter().skip(usize::from(has_validity)).copied();
        if !matches!(self.layout, Layout::Null | Layout::FixedLists(..)) {
            enter(&mut self.values, own.next().ok_or(SHORT)?)?;
        }
        let data: Vec<BufferSpan> = own.collect();
        self.data.resize_with(data.len(), Buffer::default);
        data.iter().zip(&mut self.data).try_for_each(|(span, buffer)| enter(buffer, *span))?;
        if let (Layout::Lists(..) | Layout::FixedLists(..), Some(child)) = (&self.layout, slot.children.first()) {
            let [valid, values] = child.buffers[..] else { return Err(SHORT.into()) };
            self.element_valid = (child.nulls > 0).then(Buffer::default);
            match &mut self.element_valid {
                Some(buffer) => enter(buffer, valid)?,
                None => enter(&mut skipped, BufferSpan::default())?,
            }
            self.data.resize_with(1, Buffer::default);
            enter(&mut self.data[0], values)?;
        }
        Ok(())
    }

    /// Reads the dictionary of a record batch.
    pub fn enter_dictionary(
        &mut self,
        file: &ArrowFile,
        file_index: usize,
        batch: &MessageAt,
        field: &ArrowField,
        unpacker: &mut BufferUnpacker,
    ) -> Result<(), String> {
        let Some((id, values)) = &field.dictionary else { return Ok(()) };
        let messages: Vec<usize> = file.dictionary(batch, *id).filter(|at| file.dictionary_message(*at, *id).is_some()).collect();
        if self.loaded.as_ref().is_some_and(|(known, loaded)| *known == file_index && *loaded == messages) {
            return Ok(());
        }
        let total: u64 = messages.iter().filter_map(|at| file.dictionary_message(*at, *id)).map(|message| message.rows).sum();
        let limits = self.limits.dictionary_values.as_deref().cloned().unwrap_or_default();
        if total > self.limits.dictionary as u64 || total > u64::from(u32::MAX) || messages.is_empty() && batch.rows > 0 {
            return Err(if messages.is_empty() { "has no dictionary; the file is damaged" } else { LARGER }.into());
        }
        self.loaded = None;
        let bounded = |size: usize| if size == usize::MAX { 0 } else { size };
        self.dictionary.ends.clear();
        resize_to(&mut self.dictionary.text, bounded(self.limits.dictionary_text));
        resize_to(&mut self.dictionary.numbers, bounded(self.limits.dictionary));
        resize_to(&mut self.dictionary.missing, bounded(self.limits.dictionary));
        resize_to(&mut self.dictionary.ends, bounded(self.limits.dictionary));
        let Layout::Dictionary { values: layout, .. } = &self.layout else { return Ok(()) };
        let mut reader = ArrowColumn::new((**layout).clone(), limits);
        for message in messages.iter().filter_map(|at| file.dictionary_message(*at, *id)) {
            let batch = file.batch(message, [&**values])?;
            reader.enter(file, batch.codec, &[], &batch.slots[0], unpacker)?;
            let mut first = 0;
            while first < message.rows {
                let rows = (message.rows - first).min(BLOCK as u64) as usize;
                reader.load(file, first, rows)?;
                for row in 0..rows {
                    let out = &mut self.dictionary;
                    let (number, text, missing) = match reader.cell(row) {
                        Cell::Number(_) | Cell::Integer(_) => (reader.block.numbers[row], &b""[..], false),
                        Cell::Text(text) => (0.0, text, false),
                        _ => (0.0, &b""[..], true),
                    };
                    if out.text.len() + text.len() > self.limits.dictionary_text.min(u32::MAX as usize) {
                        return Err(LARGER.into());
                    }
                    out.numbers.push(number);
                    out.text.extend_from_slice(text);
                    out.ends.push(out.text.len() as u32);
                    out.missing.push(missing);
                }
                first += rows as u64;
            }
        }
        self.seen.dictionary_text = self.seen.dictionary_text.max(self.dictionary.text.len());
        self.seen.dictionary_block = self.seen.dictionary_block.max(reader.seen.block);
        self.loaded = Some((file_index, messages));
        Ok(())
    }

    /// Reads some rows of the record batch.
    pub fn load(&mut self, file: &ArrowFile, first: u64, rows: usize) -> Result<(), String> {
        self.load_missing(file, first, rows)?;
        let ArrowValues { numbers, text, ends, missing } = &mut self.block;
        let limit = self.limits.block;
        match &self.layout {
            Layout::Null | Layout::Unread(_) => {
                missing.clear();
                missing.resize(rows, true);
            }
            Layout::Bits => {
                let start = (first / 8, (first % 8) as usize);
                let bits = self.values.bytes(file, start.0, (start.1 + rows).div_ceil(8))?;
                resize_to(numbers, BLOCK);
                numbers.extend((start.1..start.1 + rows).map(|at| f64::from(bits[at / 8] >> (at % 8) & 1)));
            }
            Layout::Numbers(number) | Layout::Dictionary { index: number, .. } => {
                let bytes = self.values.bytes(file, first * number.size as u64, rows * number.size)?;
                resize_to(numbers, BLOCK);
                number.extend(bytes, numbers);
                if matches!(self.layout, Layout::Dictionary { .. }) {
                    let known = self.dictionary.ends.len() as f64;
                    let is_sound = |(row, index): (usize, &f64)| (0.0..known).contains(index) || missing.get(row) == Some(&true);
                    if !numbers.iter().enumerate().all(is_sound) {
                        return Err("has an index beyond its dictionary; the file is damaged".into());
                    }
                }
            }
            Layout::Strings(size) => {
                let start = spans(&mut self.values, file, *size, first, rows, ends)?;
                let total = ends.last().map_or(0, |end| *end as usize);
                if total > limit {
                    return Err(LARGER.into());
                }
                let data = self.data.first_mut().ok_or(SHORT)?;
                resize_to(text, if limit == usize::MAX { total } else { limit });
                text.extend_from_slice(data.bytes(file, start, total)?);
                self.seen.block = self.seen.block.max(total);
            }
            Layout::Views => {
                let views = self.values.bytes(file, first * VIEW as u64, rows * VIEW)?;
                resize_to(text, if limit == usize::MAX { 0 } else { limit });
                resize_to(ends, BLOCK);
                for (row, view) in views.as_chunks::<VIEW>().0.iter().enumerate() {
                    let word = |at: usize| u32::from_le_bytes([view[at], view[at + 1], view[at + 2], view[at + 3]]) as usize;
                    let length = if missing.get(row) == Some(&true) { 0 } else { word(0) };
                    if text.len() + length > limit.min(u32::MAX as usize) {
                        return Err(LARGER.into());
                    }
                    match length <= INSIDE {
                        true => text.extend_from_slice(&view[4..4 + length]),
                        false => {
                            let data = self.data.get_mut(word(8)).ok_or(OFFSETS)?;
                            text.extend_from_slice(data.bytes(file, word(12) as u64, length)?);
                        }
                    }
                    ends.push(text.len() as u32);
                }
                self.seen.block = self.seen.block.max(text.len());
            }
            Layout::Lists(size, number) => {
                let start = spans(&mut self.values, file, *size, first, rows, ends)?;
                let (total, number) = (ends.last().map_or(0, |end| *end as usize), *number);
                self.load_elements(file, start, total, number)?;
            }
            Layout::FixedLists(length, number) => {
                let (length, number) = (*length, *number);
                resize_to(ends, BLOCK);
                let end = |row: usize| u32::try_from(row * length).map_err(|_| LARGER.to_string());
                (1..=rows).try_for_each(|row| end(row).map(|end| ends.push(end)))?;
                let start = first.checked_mul(length as u64).ok_or(OFFSETS)?;
                self.load_elements(file, start, rows * length, number)?;
            }
        }
        Ok(())
    }

    fn load_missing(&mut self, file: &ArrowFile, first: u64, rows: usize) -> Result<(), String> {
        let missing = &mut self.block.missing;
        missing.clear();
        for buffer in &mut self.valid {
            let start = (first / 8, (first % 8) as usize);
            let bits = buffer.bytes(file, start.0, (start.1 + rows).div_ceil(8))?;
            missing.reserve_exact(BLOCK);
            missing.resize(rows, false);
            (0..rows).for_each(|row| missing[row] |= bits[(start.1 + row) / 8] >> ((start.1 + row) % 8) & 1 == 0);
        }
        Ok(())
    }

    /// Reads elements of lists.
    fn load_elements(&mut self, file: &ArrowFile, start: u64, total: usize, number: Number) -> Result<(), String> {
        if total > self.limits.block {
            return Err(LARGER.into());
        }
        let bounded = if self.limits.block == usize::MAX { total } else { self.limits.block };
        self.seen.block = self.seen.block.max(total);
        let at = start.checked_mul(number.size as u64).ok_or(OFFSETS)?;
        let length = total.checked_mul(number.size).ok_or(OFFSETS)?;
        let bytes = self.data.first_mut().ok_or(SHORT)?.bytes(file, at, length)?;
        resize_to(&mut self.block.numbers, bounded);
        number.extend(bytes, &mut self.block.numbers);
        if let Some(valid) = &mut self.element_valid {
            let (byte, bit) = (start / 8, (start % 8) as usize);
            let bits = valid.bytes(file, byte, (bit + total).div_ceil(8))?;
            for (at, number) in self.block.numbers.iter_mut().enumerate() {
                if bits[(bit + at) / 8] >> ((bit + at) % 8) & 1 == 0 {
                    *number = f64::NAN;
                }
            }
        }
        resize_to(&mut self.list, bounded);
        self.list.extend(self.block.numbers.iter().map(|number| number.to_ne_bytes()));
        Ok(())
    }

    /// The numbers of the block, if it has nothing else.
    pub fn numbers(&self) -> Option<&[f64]> {
        (matches!(self.layout, Layout::Numbers(_) | Layout::Bits) && self.block.missing.is_empty()).then_some(&self.block.numbers[..])
    }

    /// The cell of a row of the block.
    pub fn cell(&self, row: usize) -> Cell<'_> {
        let block = &self.block;
        if block.missing.get(row) == Some(&true) {
            return Cell::Missing;
        }
        match &self.layout {
            Layout::Null | Layout::Unread(_) => Cell::Missing,
            Layout::Bits => Cell::Number(block.numbers[row]),
            Layout::Numbers(number) => number.cell(block.numbers[row]),
            Layout::Strings(_) | Layout::Views => Cell::Text(block.text(row)),
            Layout::Lists(..) | Layout::FixedLists(..) => {
                let start = if row == 0 { 0 } else { block.ends[row - 1] as usize };
                Cell::List(&self.list[start..block.ends[row] as usize])
            }
            Layout::Dictionary { values, .. } => {
                let at = block.numbers[row] as usize;
                match (self.dictionary.missing[at], &**values) {
                    (true, _) => Cell::Missing,
                    (false, Layout::Strings(_) | Layout::Views) => Cell::Text(self.dictionary.text(at)),
                    (false, Layout::Numbers(number)) => number.cell(self.dictionary.numbers[at]),
                    (false, _) => Cell::Number(self.dictionary.numbers[at]),
                }
            }
        }
    }
}

/// Reads offsets: where the first of some rows begins, and the ends of all relative to that.
fn spans(offsets: &mut Buffer, file: &ArrowFile, size: usize, first: u64, rows: usize, ends: &mut Vec<u32>) -> Result<u64, String> {
    resize_to(ends, BLOCK);
    // A batch without rows may have no offsets.
    if rows == 0 {
        return Ok(0);
    }
    let bytes = offsets.bytes(file, first * size as u64, (rows + 1) * size)?;
    let offset = |bytes: &[u8]| match bytes.len() {
        4 => i64::from(i32::from_le_bytes(bytes.try_into().unwrap_or_default())),
        _ => i64::from_le_bytes(bytes.try_into().unwrap_or_default()),
    };
    let mut all = bytes.chunks_exact(size).map(offset);
    let start = all.next().filter(|start| *start >= 0).ok_or(OFFSETS)?;
    let mut before = start;
    for end in all {
        if end < before || end - start > i64::from(u32::MAX) {
            return Err(OFFSETS.into());
        }
        ends.push((end - start) as u32);
        before = end;
    }
    Ok(start as u64)
}

impl Number {
    /// Adds the values of bytes.
    fn extend(self, bytes: &[u8], out: &mut Vec<f64>) {
        let first = out.len();
        match (self.form, self.size) {
            (Form::Signed, 1) => out.extend(bytes.iter().map(|byte| f64::from(byte.cast_signed()))),
            (Form::Signed, 2) => out.extend(bytes.as_chunks().0.iter().map(|two| f64::from(i16::from_le_bytes(*two)))),
            (Form::Signed, 4) => out.extend(bytes.as_chunks().0.iter().map(|four| f64::from(i32::from_le_bytes(*four)))),
            (Form::Signed, 8) => out.extend(bytes.as_chunks().0.iter().map(|eight| i64::from_le_bytes(*eight) as f64)),
            (Form::Signed, 16) => out.extend(bytes.as_chunks().0.iter().map(|bytes| i128::from_le_bytes(*bytes) as f64)),
            // Of 256 bits, the upper half counts 2^128.
            (Form::Signed, _) => out.extend(bytes.as_chunks::<32>().0.iter().map(|bytes| {
                let [mut low, mut high] = [[0; 16]; 2];
                low.copy_from_slice(&bytes[..16]);
                high.copy_from_slice(&bytes[16..]);
                match (u128::from_le_bytes(low), i128::from_le_bytes(high)) {
                    (low, -1) if low >> 127 == 1 => low.cast_signed() as f64,
                    (low, high) => high as f64 * 2f64.powi(128) + low as f64,
                }
            })),
            (Form::Unsigned, 1) => out.extend(bytes.iter().map(|byte| f64::from(*byte))),
            (Form::Unsigned, 2) => out.extend(bytes.as_chunks().0.iter().map(|two| f64::from(u16::from_le_bytes(*two)))),
            (Form::Unsigned, 4) => out.extend(bytes.as_chunks().0.iter().map(|four| f64::from(u32::from_le_bytes(*four)))),
            (Form::Unsigned, _) => out.extend(bytes.as_chunks().0.iter().map(|eight| u64::from_le_bytes(*eight) as f64)),
            (Form::ExactSigned | Form::ExactUnsigned, _) => {
                out.extend(bytes.as_chunks().0.iter().map(|eight| f64::from_bits(u64::from_le_bytes(*eight))));
            }
            (Form::Float, 2) => out.extend(bytes.as_chunks().0.iter().map(|two| f64::from(half(u16::from_le_bytes(*two))))),
            (Form::Float, 4) => out.extend(bytes.as_chunks().0.iter().map(|four| f64::from(f32::from_le_bytes(*four)))),
            (Form::Float, _) => out.extend(bytes.as_chunks().0.iter().map(|eight| f64::from_le_bytes(*eight))),
        }
        if self.by != 1.0 {
            out[first..].iter_mut().for_each(|number| *number /= self.by);
        }
    }
}
