//! Parses the headers before the compressed data. Returns `HandOver` for anything that this decoder does not support.

use super::huffman::TableClass;
use super::{DecoderTables, HandOver};

/// An image in one interleaved scan.
#[derive(Clone, Copy)]
pub(super) struct JpegHeader<'a> {
    pub width: usize,
    pub height: usize,
    /// One or three.
    pub components: usize,
    /// For each component the indices of its quantization table and its DC and AC Huffman tables.
    pub tables: [[usize; 3]; 3],
    /// Horizontal and vertical sampling factors of the first component; the others have 1.
    pub across: usize,
    pub down: usize,
    /// MCUs between restart markers; zero for none.
    pub restart: usize,
    pub data: &'a [u8],
}

/// The frame header (SOF).
#[derive(Clone, Copy)]
struct FrameHeader {
    width: usize,
    height: usize,
    components: usize,
    /// Component ID, sampling factors, quantization table.
    parts: [[u8; 3]; 3],
}

impl<'a> JpegHeader<'a> {
    /// Parses the file up to the data and fills `tables`.
    pub fn read(file: &'a [u8], tables: &mut DecoderTables) -> Result<JpegHeader<'a>, HandOver> {
        let mut rest = file.strip_prefix(&[0xFF, 0xD8]).ok_or(HandOver)?;
        let mut frame = None;
        let (mut restart, mut adobe) = (0, false);
        let (mut factors, mut codes) = ([false; 4], [[false; 4]; 2]);
        loop {
            let [0xFF, code, high, low, ..] = *rest else { return Err(HandOver) };
            let size = usize::from(u16::from_be_bytes([high, low]));
            let segment = rest.get(4..2 + size).ok_or(HandOver)?;
            rest = &rest[2 + size..];
            match code {
                0xDB => tables.read_factors(segment, &mut factors)?,
                0xC4 => tables.read_codes(segment, &mut codes)?,
                0xC0 | 0xC1 if frame.is_none() => frame = Some(FrameHeader::read(segment)?),
                0xDD => restart = usize::from(u16::from_be_bytes(segment.try_into().map_err(|_| HandOver)?)),
                // The Adobe segment may declare another color transform; only YCbCr is supported here.
                0xEE if segment.starts_with(b"Adobe") => {
                    if segment.len() < 12 || segment[11] != 1 {
                        return Err(HandOver);
                    }
                    adobe = true;
                }
                0xE0..=0xEF | 0xFE => {}
                0xDA => {
                    let frame = frame.ok_or(HandOver)?;
                    return frame.scan(segment, (factors, codes), adobe, restart, rest);
                }
                _ => return Err(HandOver),
            }
        }
    }
}

impl FrameHeader {
    fn read(segment: &[u8]) -> Result<FrameHeader, HandOver> {
        let &[8, tall, tall_low, wide, wide_low, count, ref parts @ ..] = segment else { return Err(HandOver) };
        let (height, width) = (usize::from(u16::from_be_bytes([tall, tall_low])), usize::from(u16::from_be_bytes([wide, wide_low])));
        let components = usize::from(count);
        if width == 0 || height == 0 || !matches!(components, 1 | 3) || parts.len() != 3 * components {
            return Err(HandOver);
        }
        let mut frame = FrameHeader { width, height, components, parts: [[0; 3]; 3] };
        frame.parts[..components].copy_from_slice(parts.as_chunks().0);
        // Components with these IDs are RGB.
        if frame.parts.map(|part| part[0]) == *b"RGB" {
            return Err(HandOver);
        }
        Ok(frame)
    }

    /// Combines frame and scan headers; `defined` states which tables the file has.
    fn scan<'a>(
        &self,
        segment: &[u8],
        defined: ([bool; 4], [[bool; 4]; 2]),
        adobe: bool,
        restart: usize,
        data: &'a [u8],
    ) -> Result<JpegHeader<'a>, HandOver> {
        let (&count, rest) = segment.split_first().ok_or(HandOver)?;
        if usize::from(count) != self.components || rest.len() != 2 * self.components + 3 || (adobe && self.components == 1) {
            return Err(HandOver);
        }
        let (selectors, spectrum) = rest.split_at(2 * self.components);
        if spectrum != [0, 63, 0] {
            return Err(HandOver);
        }
        let mut tables = [[0; 3]; 3];
        for (index, (&[name, codes], part)) in selectors.as_chunks().0.iter().zip(&self.parts).enumerate() {
            let [factors, dc, ac] = [part[2], codes >> 4, codes & 15].map(usize::from);
            let known = |defined: &[bool; 4], table: usize| defined.get(table).copied().unwrap_or(false);
            if name != part[0] || !known(&defined.0, factors) || !known(&defined.1[0], dc) || !known(&defined.1[1], ac) {
                return Err(HandOver);
            }
            tables[index] = [factors, dc, ac];
        }
        let [first, others @ ..] = self.parts.map(|part| (usize::from(part[1] >> 4), usize::from(part[1] & 15)));
        let handled = matches!(first, (1 | 2, 1 | 2)) && (self.components == 1 || others == [(1, 1); 2]);
        // The sampling factors of a single component have no meaning.
        let (across, down) = if self.components == 1 { (1, 1) } else { first };
        // Duplicate IDs would be ambiguous.
        let names = self.parts.map(|part| part[0]);
        if !handled || (self.components == 3 && (names[0] == names[1] || names[1] == names[2] || names[0] == names[2])) {
            return Err(HandOver);
        }
        let FrameHeader { width, height, components, .. } = *self;
        Ok(JpegHeader { width, height, components, tables, across, down, restart, data })
    }
}

impl DecoderTables {
    fn read_factors(&mut self, mut segment: &[u8], defined: &mut [bool; 4]) -> Result<(), HandOver> {
        while let Some((&info, rest)) = segment.split_first() {
            let wide = match info >> 4 {
                0 => false,
                1 => true,
                _ => return Err(HandOver),
            };
            let (bytes, rest) = rest.split_at_checked(if wide { 128 } else { 64 }).ok_or(HandOver)?;
            let factor = |index: usize| match wide {
                true => u16::from_be_bytes([bytes[2 * index], bytes[2 * index + 1]]),
                false => u16::from(bytes[index]),
            };
            let index = usize::from(info & 15);
            self.set_factors(index, std::array::from_fn(factor))?;
            *defined.get_mut(index).ok_or(HandOver)? = true;
            segment = rest;
        }
        Ok(())
    }

    fn read_codes(&mut self, mut segment: &[u8], defined: &mut [[bool; 4]; 2]) -> Result<(), HandOver> {
        while let Some((&info, rest)) = segment.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or(HandOver)?;
            let total = counts.iter().map(|&count| usize::from(count)).sum();
            let (symbols, rest) = rest.split_at_checked(total).ok_or(HandOver)?;
            let (kind, class) = match info >> 4 {
                0 => (TableClass::Dc, 0),
                1 => (TableClass::Ac, 1),
                _ => return Err(HandOver),
            };
            let index = usize::from(info & 15);
            let table = self.codes[class].get_mut(index).ok_or(HandOver)?;
            table.make(kind, counts, symbols)?;
            defined[class][index] = true;
            segment = rest;
        }
        Ok(())
    }
}
