//! The header of a safetensors file, without the document it was read from: a deep model has thousands of tensors.

use plimsoll_core::Shape;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// The tensors of a file by name, and its metadata.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub metadata: BTreeMap<String, String>,
    pub tensors: BTreeMap<Box<str>, TensorEntry>,
}

/// A tensor, as the header describes it.
#[derive(Debug, Deserialize)]
pub(super) struct TensorEntry {
    /// The name of its data type in the format.
    pub dtype: Box<str>,
    pub shape: Box<[usize]>,
    /// Where its bytes begin and end, from the end of the header.
    #[serde(rename = "data_offsets")]
    pub offsets: [u64; 2],
}

impl fmt::Display for TensorEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dtype, Shape::fixed(self.shape.to_vec()))
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header::default();
                while let Some(name) = map.next_key::<Box<str>>()? {
                    if &*name == "__metadata__" {
                        header.metadata = map.next_value()?;
                    } else {
                        header.tensors.insert(name, map.next_value()?);
                    }
                }
                Ok(header)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_not_a_tensor() {
        let text = r#"{"__metadata__":{"format":"pt"},"a/b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"s":{"shape":[],"dtype":"I32","data_offsets":[24,28]}}"#;
        let header: Header = serde_json::from_str(text).unwrap();
        assert_eq!(header.metadata["format"], "pt");
        assert_eq!(header.tensors.keys().map(|name| &**name).collect::<Vec<_>>(), ["a/b", "s"]);
        assert_eq!(header.tensors["a/b"].to_string(), "F32 [2, 3]");
        assert_eq!(header.tensors["s"].offsets, [24, 28]);
    }

    #[test]
    fn what_is_not_a_header_is_refused() {
        let refused = [
            r#"[]"#,
            r#"{"a":1}"#,
            r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}"#,
            r#"{"__metadata__":{"n":1}}"#,
        ];
        for text in refused {
            assert!(serde_json::from_str::<Header>(text).is_err(), "{text}");
        }
    }
}
