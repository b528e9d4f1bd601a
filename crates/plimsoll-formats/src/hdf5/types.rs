//! Dataspaces and datatypes.

use crate::error::{Result, unsupported};
use crate::source::FieldReader;
use crate::tensor::DType;

/// The dimensions, and the bytes of the message.
pub fn dataspace(message: &[u8]) -> Result<(Vec<u64>, usize)> {
    let mut fields = FieldReader::new(message, "a dataspace");
    let (version, rank, flags) = (fields.u8()?, fields.u8()?, fields.u8()?);
    let kind = fields.u8()?;
    match version {
        1 => drop(fields.take(4)?),
        2 if kind == 2 => return Ok((vec![0], 4)),
        2 => {}
        _ => return unsupported(format!("a dataspace has the unknown version {version}")),
    }
    let dims = (0..rank).map(|_| fields.u64()).collect::<Result<Vec<u64>>>()?;
    if flags & 1 != 0 {
        fields.take(usize::from(rank) * 8)?;
    }
    Ok((dims, message.len() - fields.rest().len()))
}

/// What an attribute's elements are.
pub enum Text {
    /// Strings of this many bytes, padded.
    Fixed(usize),
    /// Strings in global heaps.
    Variable,
}

/// The strings that a type stands for; none if it has others.
pub fn text(message: &[u8]) -> Result<Option<Text>> {
    let mut fields = FieldReader::new(message, "a datatype");
    let class = fields.u8()?;
    let kind = fields.u8()? & 15;
    fields.take(2)?;
    let size = fields.u32()? as usize;
    Ok(match class & 15 {
        3 => Some(Text::Fixed(size)),
        9 if kind == 1 => Some(Text::Variable),
        _ => None,
    })
}

/// The type of numbers; none for strings, compounds and others that are no weights. `bfloat` is Keras' mark of
/// bfloat16.
pub fn number(message: &[u8], bfloat: bool, path: &str) -> Result<Option<DType>> {
    let mut fields = FieldReader::new(message, "a datatype");
    let class = fields.u8()?;
    let bits = fields.u8()?;
    fields.take(2)?;
    let size = fields.u32()?;
    let class = class & 15;
    if class < 2 && bits & 1 != 0 {
        return unsupported(format!("the dataset `{path}` is big-endian; Keras writes little-endian numbers"));
    }
    let signed = bits & 8 != 0;
    Ok(match (class, size) {
        (0 | 5, 2) if bfloat => Some(DType::BF16),
        (0, 1) => Some(if signed { DType::I8 } else { DType::U8 }),
        (0, 2) => Some(if signed { DType::I16 } else { DType::U16 }),
        (0, 4) => Some(if signed { DType::I32 } else { DType::U32 }),
        (0, 8) => Some(if signed { DType::I64 } else { DType::U64 }),
        (1, 2) => {
            fields.take(5)?;
            Some(if fields.u8()? == 8 { DType::BF16 } else { DType::F16 })
        }
        (1, 4) => Some(DType::F32),
        (1, 8) => Some(DType::F64),
        // h5py writes booleans as an enumeration of bytes.
        (8, 1) => Some(DType::Bool),
        (0 | 1, _) => return unsupported(format!("the dataset `{path}` has numbers of {size} bytes")),
        _ => None,
    })
}
