//! `tf.train.Example`: named lists of numbers or bytes, in Protocol Buffers.

use super::{Feature, FeatureKind, RecordFeature, RecordValues};
use crate::Column;
use crate::image;
use crate::ragged::write_length;
use plimsoll_core::DType;

/// Writes one feature of an example as a row of its column, or returns an error message.
pub(super) fn write(record: &[u8], feature: &Feature, column: &Column, out: &mut [u8]) -> Result<(), String> {
    let mut written = None;
    each(record, |name, value| {
        if written.is_none() && name == feature.key.as_bytes() {
            written = Some(list(value, feature, column, out));
        }
        Ok(written.is_none())
    })?;
    written.unwrap_or_else(|| Err(format!("it has no feature `{}`", feature.key)))
}

/// The names, types and lengths of the features of an example, sorted by name.
pub(super) fn features(record: &[u8]) -> Result<Vec<RecordFeature>, String> {
    let mut found = Vec::new();
    each(record, |name, value| {
        found.push(found_in(name, value)?);
        Ok(true)
    })?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn found_in(name: &[u8], value: &[u8]) -> Result<RecordFeature, String> {
    let mut found =
        RecordFeature { name: String::from_utf8_lossy(name).into_owned(), values: RecordValues::Ints, count: 0, is_image: false };
    for field in Fields(value) {
        let (kind, Value::Bytes(items)) = field? else { continue };
        found.values = match kind {
            1 => RecordValues::Bytes,
            2 => RecordValues::Floats,
            _ => RecordValues::Ints,
        };
        for item in Fields(items) {
            found.count += match (kind, item?) {
                (1, (1, Value::Bytes(bytes))) => {
                    found.is_image |= image::begins_like_one(bytes);
                    bytes.len()
                }
                (2, (1, Value::Bytes(packed))) => packed.len() / 4,
                // The last byte of each varint is below 128.
                (3, (1, Value::Bytes(packed))) => packed.iter().filter(|byte| **byte < 0x80).count(),
                _ => 1,
            };
        }
    }
    Ok(found)
}

/// Calls `sink` with the name and the list of each feature until it returns `false`.
fn each<'b>(record: &'b [u8], mut sink: impl FnMut(&'b [u8], &'b [u8]) -> Result<bool, String>) -> Result<(), String> {
    for field in Fields(record) {
        let (1, Value::Bytes(map)) = field? else { continue };
        for entry in Fields(map) {
            let (1, Value::Bytes(entry)) = entry? else { continue };
            let (mut name, mut value): (&[u8], &[u8]) = (&[], &[]);
            for field in Fields(entry) {
                match field? {
                    (1, Value::Bytes(bytes)) => name = bytes,
                    (2, Value::Bytes(bytes)) => value = bytes,
                    _ => {}
                }
            }
            if !sink(name, value)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Writes one list of values, which must be complete unless it is padded.
fn list(value: &[u8], feature: &Feature, column: &Column, out: &mut [u8]) -> Result<(), String> {
    let name = &feature.key;
    let wanted = column.elements();
    let mut count = 0;
    let mut put = |number: ListItem| -> Result<(), String> {
        if count < wanted {
            let place = &mut out[count * column.dtype.size()..][..column.dtype.size()];
            match (column.dtype, number) {
                (DType::F32, ListItem::Float(value)) => place.copy_from_slice(&value.to_ne_bytes()),
                (DType::F32, ListItem::Int(value)) => place.copy_from_slice(&(value as f32).to_ne_bytes()),
                (DType::I32, ListItem::Int(value)) => {
                    let value = i32::try_from(value).map_err(|_| format!("feature `{name}` holds {value}, which does not fit i32"))?;
                    place.copy_from_slice(&value.to_ne_bytes());
                }
                (dtype, _) => return Err(format!("feature `{name}` is not of {dtype}; declare it as what it is")),
            }
        }
        count += 1;
        Ok(())
    };
    let mut bytes = None;
    for field in Fields(value) {
        let (kind, Value::Bytes(items)) = field? else { continue };
        for item in Fields(items) {
            match (kind, item?) {
                (1, (1, Value::Bytes(item))) => bytes = bytes.or(Some(item)),
                // Both packed and unpacked encodings are valid.
                (2, (1, Value::Bytes(packed))) => {
                    packed.as_chunks().0.iter().try_for_each(|four| put(ListItem::Float(f32::from_le_bytes(*four))))?;
                }
                (2, (1, Value::Fixed32(bits))) => put(ListItem::Float(f32::from_bits(bits)))?,
                (3, (1, Value::Bytes(packed))) => {
                    let mut rest = packed;
                    while !rest.is_empty() {
                        put(ListItem::Int(varint(&mut rest)? as i64))?;
                    }
                }
                (3, (1, Value::Varint(number))) => put(ListItem::Int(number as i64))?,
                _ => {}
            }
        }
    }
    if let Some(raw) = bytes {
        if column.dtype != DType::U8 {
            return Err(format!("feature `{name}` is bytes and not {}; declare it as u8", column.dtype));
        }
        count = raw.len();
        let copied = count.min(wanted);
        out[..copied].copy_from_slice(&raw[..copied]);
    }
    let size = column.dtype.size();
    match feature.kind {
        FeatureKind::UpTo if count <= wanted => {
            let each = wanted / column.shape[0];
            if !count.is_multiple_of(each) {
                return Err(format!("feature `{name}` has {count} values, which are no rows of {each}"));
            }
            out[count * size..].fill(0);
            write_length(out, (count / each) as u32);
            Ok(())
        }
        _ if count == wanted => Ok(()),
        FeatureKind::Padded(value) if count < wanted => {
            let value = match column.dtype {
                DType::I32 => (value as i32).to_ne_bytes(),
                DType::U8 => [value as u8; 4],
                _ => value.to_ne_bytes(),
            };
            out[count * size..].chunks_exact_mut(size).for_each(|element| element.copy_from_slice(&value[..size]));
            Ok(())
        }
        _ => Err(format!("feature `{name}` has {count} values where shape {:?} has {wanted}", column.shape)),
    }
}

enum ListItem {
    Float(f32),
    Int(i64),
}

enum Value<'b> {
    Varint(u64),
    Fixed32(u32),
    Fixed64,
    Bytes(&'b [u8]),
}

/// Iterates over the fields of a message.
struct Fields<'b>(&'b [u8]);

impl<'b> Iterator for Fields<'b> {
    type Item = Result<(u64, Value<'b>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = field(&mut self.0);
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

fn field<'b>(rest: &mut &'b [u8]) -> Result<(u64, Value<'b>), String> {
    let tag = varint(rest)?;
    let value = match tag & 7 {
        0 => Value::Varint(varint(rest)?),
        1 => {
            take(rest, 8)?;
            Value::Fixed64
        }
        2 => {
            let length = varint(rest)?;
            Value::Bytes(take(rest, usize::try_from(length).unwrap_or(usize::MAX))?)
        }
        5 => {
            let four = take(rest, 4)?;
            Value::Fixed32(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
        }
        _ => return Err(NO_EXAMPLE.into()),
    };
    Ok((tag >> 3, value))
}

const NO_EXAMPLE: &str = "it is no tf.train.Example";

fn varint(rest: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(NO_EXAMPLE.into())
}

fn take<'b>(rest: &mut &'b [u8], count: usize) -> Result<&'b [u8], String> {
    let (taken, after) = rest.split_at_checked(count).ok_or_else(|| NO_EXAMPLE.to_string())?;
    *rest = after;
    Ok(taken)
}
