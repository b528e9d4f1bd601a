//! Attributes of strings: Keras keeps configurations and names of weights in them.

use super::types::{Text, dataspace, text};
use crate::error::{Result, damaged, unsupported};
use crate::source::{FieldReader, Metadata};

/// Name and strings of an attribute; none if its elements are not strings.
pub fn strings(metadata: &Metadata, message: &[u8], path: &str) -> Result<Option<(String, Vec<String>)>> {
    let what = format!("an attribute of `{path}`");
    let mut fields = FieldReader::new(message, &what);
    let version = fields.u8()?;
    let flags = fields.u8()?;
    let sizes = [fields.u16()?, fields.u16()?, fields.u16()?].map(usize::from);
    let padded = |size: usize| if version == 1 { size.next_multiple_of(8) } else { size };
    match version {
        1 => {}
        2 | 3 if flags != 0 => return unsupported(format!("{what} has a committed type")),
        2 => {}
        3 => drop(fields.u8()?),
        _ => return unsupported(format!("{what} has the unknown version {version}")),
    }
    let name = fields.take(padded(sizes[0]))?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).into_owned();
    let ty = fields.take(padded(sizes[1]))?;
    let space = fields.take(padded(sizes[2]))?;
    let Some(kind) = text(ty)? else { return Ok(None) };
    let (shape, _) = dataspace(space)?;
    let elements = shape.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim));
    let size = match kind {
        Text::Fixed(size) => size,
        Text::Variable => 16,
    };
    // Elements without bytes would take memory that the file does not.
    let elements = elements.filter(|elements| *elements <= message.len() as u64);
    let data = elements.and_then(|elements| (elements as usize).checked_mul(size)).map(|bytes| fields.take(bytes));
    let (Some(elements), Some(data)) = (elements, data.transpose()?) else {
        return damaged(format!("{what} has more elements than bytes"));
    };
    let mut strings = Vec::new();
    for element in 0..elements as usize {
        let bytes = &data[element * size..(element + 1) * size];
        let string = match kind {
            Text::Fixed(_) => bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec(),
            Text::Variable => from_heap(metadata, bytes, &what)?,
        };
        metadata.count(string.len() as u64 + 24)?;
        match String::from_utf8(string) {
            Ok(string) => strings.push(string),
            Err(_) => return damaged(format!("{what} is not text")),
        }
    }
    Ok(Some((name, strings)))
}

/// A string of variable length: its length, and the address and index of the object with its bytes.
fn from_heap(metadata: &Metadata, element: &[u8], what: &str) -> Result<Vec<u8>> {
    let mut fields = FieldReader::new(element, what);
    let (length, address, index) = (fields.u32()?, fields.u64()?, fields.u32()?);
    if length == 0 {
        return Ok(Vec::new());
    }
    let start = metadata.read(address, 16, what)?;
    let mut fields = FieldReader::new(&start, what);
    if fields.take(4)? != b"GCOL" {
        return damaged(format!("{what} has no heap with its text"));
    }
    fields.take(4)?;
    let mut left = fields.u64()?.saturating_sub(16);
    let mut at = address.saturating_add(16);
    while left >= 16 {
        let start = metadata.read(at, 16, what)?;
        let mut fields = FieldReader::new(&start, what);
        let known = fields.u16()?;
        fields.take(6)?;
        let size = fields.u64()?;
        if u32::from(known) == index && index != 0 {
            if u64::from(length) > size {
                return damaged(format!("{what} is longer than its text"));
            }
            return metadata.read(at.saturating_add(16), length.into(), what);
        }
        if known == 0 {
            break;
        }
        let step = size.checked_next_multiple_of(8).and_then(|size| size.checked_add(16)).filter(|step| *step <= left);
        let Some(step) = step else { break };
        (at, left) = (at + step, left - step);
    }
    damaged(format!("{what} refers to text that is not there"))
}
