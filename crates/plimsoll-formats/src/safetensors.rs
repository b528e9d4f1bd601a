//! Files of Hugging Face's safetensors format: a JSON header, then the tensors.

use crate::error::{Result, damaged, unsupported};
use crate::source::{MAX_METADATA, Region};
use crate::tensor::{DType, Tensor};
use serde_json::Value;
use std::collections::BTreeMap;

/// An open file: its tensors by name, not read yet.
#[derive(Debug)]
pub struct SafeTensors {
    /// The tensors.
    pub tensors: BTreeMap<String, Tensor>,
    /// Free text by key.
    pub metadata: BTreeMap<String, String>,
}

/// The name of a type in the format.
pub fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::I8 => "I8",
        DType::I16 => "I16",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::U8 => "U8",
        DType::U16 => "U16",
        DType::U32 => "U32",
        DType::U64 => "U64",
        DType::Bool => "BOOL",
    }
}

const DTYPES: [DType; 13] = [
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Bool,
];

impl SafeTensors {
    /// Reads the header of a file.
    ///
    /// ```
    /// use plimsoll_formats::{safetensors::SafeTensors, source::Region};
    /// let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    /// let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0, 0, 128, 63, 0, 0, 0, 64]].concat();
    /// let file = SafeTensors::open(Region::bytes(file)).unwrap();
    /// assert_eq!(file.tensors["w"].numbers(2).unwrap(), [1.0, 2.0]);
    /// ```
    pub fn open(region: Region) -> Result<SafeTensors> {
        let mut length = [0; 8];
        region.read(0, &mut length, "the header of the safetensors file")?;
        let length = u64::from_le_bytes(length);
        let header = region.part(8, length, "the header of the safetensors file")?;
        let data = region.part(8 + length, region.length() - 8 - length, "the tensors")?;
        let header = header.read_all(MAX_METADATA, "the header of the safetensors file")?;
        let Ok(Value::Object(header)) = serde_json::from_slice(&header) else {
            return damaged("the header of the safetensors file is not a JSON object");
        };
        let mut file = SafeTensors { tensors: BTreeMap::new(), metadata: BTreeMap::new() };
        for (name, entry) in header {
            if name == "__metadata__" {
                let texts = entry.as_object().into_iter().flatten();
                file.metadata = texts.filter_map(|(key, text)| Some((key.clone(), text.as_str()?.to_string()))).collect();
                continue;
            }
            let ty = entry["dtype"].as_str().unwrap_or_default();
            let Some(dtype) = DTYPES.into_iter().find(|dtype| dtype_name(*dtype) == ty) else {
                return unsupported(format!("`{name}` has the type \"{ty}\", which is not read"));
            };
            let numbers = |key: &str| entry[key].as_array().and_then(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
            let (shape, offsets) = (numbers("shape"), numbers("data_offsets"));
            let (Some(shape), Some(&[from, to])) = (shape, offsets.as_deref()) else {
                return damaged(format!("`{name}` has no shape or no offsets"));
            };
            let what = format!("`{name}`");
            let stored = data.part(from, to.checked_sub(from).unwrap_or(u64::MAX), &what)?;
            file.tensors.insert(name, Tensor::stored(dtype, shape, stored, &what)?);
        }
        Ok(file)
    }
}
