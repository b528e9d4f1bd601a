//! The links of a group: a B-tree of symbol table nodes with names in a local heap, or link messages.

use super::UNDEFINED;
use super::header::{self, Header};
use crate::error::{Result, damaged, unsupported};
use crate::source::{FieldReader, Metadata};

/// Names and addresses of the objects in a group, by name; none if the header is not a group's.
pub fn links(metadata: &Metadata, header: &Header, path: &str) -> Result<Option<Vec<(String, u64)>>> {
    let what = if path.is_empty() { "the root group".to_string() } else { format!("the group `{path}`") };
    let mut found = Vec::new();
    let mut is_group = false;
    if let Some(table) = header.of(header::SYMBOL_TABLE).next() {
        is_group = true;
        let mut fields = FieldReader::new(table, &what);
        let (tree, heap) = (fields.u64()?, fields.u64()?);
        let heap = Heap::read(metadata, heap, &what)?;
        nodes(metadata, tree, &heap, &what, 0, &mut found)?;
    }
    if let Some(info) = header.of(header::LINK_INFO).next() {
        is_group = true;
        let mut fields = FieldReader::new(info, &what);
        fields.u8()?;
        let flags = fields.u8()?;
        fields.take(usize::from(flags & 1) * 8)?;
        if fields.u64()? != UNDEFINED {
            return unsupported(format!("the links of {what} are in a dense heap, which Keras does not write"));
        }
    }
    for message in header.of(header::LINK) {
        is_group = true;
        found.push(link(message, &what)?);
    }
    found.sort();
    if let Some(pair) = found.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return damaged(format!("{what} has two objects `{}`", pair[0].0));
    }
    Ok(is_group.then_some(found))
}

struct Heap(Vec<u8>);

impl Heap {
    fn read(metadata: &Metadata, address: u64, what: &str) -> Result<Heap> {
        let start = metadata.read(address, 32, what)?;
        let mut fields = FieldReader::new(&start, what);
        if fields.take(4)? != b"HEAP" {
            return damaged(format!("{what} has no heap of names"));
        }
        fields.take(4)?;
        let length = fields.u64()?;
        fields.u64()?;
        Ok(Heap(metadata.read(fields.u64()?, length, what)?))
    }

    fn name(&self, at: u64, what: &str) -> Result<String> {
        let tail = usize::try_from(at).ok().and_then(|at| self.0.get(at..));
        let name = tail.and_then(|tail| Some(&tail[..tail.iter().position(|byte| *byte == 0)?]));
        match name.map(std::str::from_utf8) {
            Some(Ok(name)) if !name.is_empty() && !name.contains('/') => Ok(name.to_string()),
            _ => damaged(format!("{what} has an object without a valid name")),
        }
    }
}

fn nodes(metadata: &Metadata, at: u64, heap: &Heap, what: &str, depth: usize, found: &mut Vec<(String, u64)>) -> Result<()> {
    if depth > 16 {
        return damaged(format!("the B-tree of {what} is deeper than any of its size"));
    }
    let start = metadata.read(at, 24, what)?;
    let mut fields = FieldReader::new(&start, what);
    if fields.take(4)? != b"TREE" || fields.u8()? != 0 {
        return damaged(format!("{what} has no B-tree of links"));
    }
    let (level, count) = (fields.u8()?, fields.u16()?);
    let body = metadata.read(at.saturating_add(24), u64::from(count) * 16, what)?;
    let mut fields = FieldReader::new(&body, what);
    for _ in 0..count {
        fields.u64()?;
        let child = fields.u64()?;
        match level {
            0 => symbols(metadata, child, heap, what, found)?,
            _ => nodes(metadata, child, heap, what, depth + 1, found)?,
        }
    }
    Ok(())
}

fn symbols(metadata: &Metadata, at: u64, heap: &Heap, what: &str, found: &mut Vec<(String, u64)>) -> Result<()> {
    let start = metadata.read(at, 8, what)?;
    if !start.starts_with(b"SNOD") {
        return damaged(format!("{what} has no symbol table"));
    }
    let count = u16::from_le_bytes([start[6], start[7]]);
    let body = metadata.read(at.saturating_add(8), u64::from(count) * 40, what)?;
    let mut fields = FieldReader::new(&body, what);
    for _ in 0..count {
        let (name, address, cached) = (fields.u64()?, fields.u64()?, fields.u32()?);
        fields.take(20)?;
        let name = heap.name(name, what)?;
        if cached == 2 {
            return unsupported(format!("`{name}` in {what} is a soft link; only objects themselves are read"));
        }
        metadata.count(name.len() as u64)?;
        found.push((name, address));
    }
    Ok(())
}

/// A link as a message of the group's own header.
fn link(message: &[u8], what: &str) -> Result<(String, u64)> {
    let mut fields = FieldReader::new(message, what);
    fields.u8()?;
    let flags = fields.u8()?;
    let kind = if flags & 8 != 0 { fields.u8()? } else { 0 };
    fields.take(usize::from(flags >> 2 & 1) * 8 + usize::from(flags >> 4 & 1))?;
    let length = match flags & 3 {
        0 => u64::from(fields.u8()?),
        1 => u64::from(fields.u16()?),
        2 => u64::from(fields.u32()?),
        _ => fields.u64()?,
    };
    let name = fields.take(usize::try_from(length).unwrap_or(usize::MAX))?;
    let name = match std::str::from_utf8(name) {
        Ok(name) if !name.is_empty() && !name.contains('/') => name.to_string(),
        _ => return damaged(format!("{what} has an object without a valid name")),
    };
    match kind {
        0 => Ok((name, fields.u64()?)),
        1 => unsupported(format!("`{name}` in {what} is a soft link; only objects themselves are read")),
        _ => unsupported(format!("`{name}` in {what} is a link to another file, which is not opened")),
    }
}
