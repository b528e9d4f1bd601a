//! Weights under the network's own names, as safetensors.

use super::TrainedNetwork;
use crate::error::{Error, Result};
use crate::files;
use plimsoll_core::shape::TensorType;
use serde_json::{Map, Value, json};
use std::io::{BufWriter, Write};
use std::path::Path;

/// Writes all weights of a network, with its metadata.
pub(super) fn write(network: &TrainedNetwork, path: &Path) -> Result<()> {
    let states = network.states()?;
    let mut header = Map::new();
    if !network.metadata.is_empty() {
        header.insert("__metadata__".to_string(), json!(network.metadata));
    }
    let mut end = 0;
    for (name, ty) in &states {
        let start = end;
        end += elements(ty) * 4;
        header.insert(name.clone(), json!({ "dtype": "F32", "shape": ty.shape.bind(1), "data_offsets": [start, end] }));
    }
    let mut header = Value::Object(header).to_string();
    // Tensors begin at a multiple of eight bytes, as the format recommends.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    files::replace(path, |file| {
        let failed = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
        let mut out = BufWriter::new(file);
        out.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| out.write_all(header.as_bytes())).map_err(failed)?;
        for (name, _) in &states {
            for number in network.weights.read(name)? {
                out.write_all(&number.to_le_bytes()).map_err(failed)?;
            }
        }
        out.flush().map_err(failed)
    })
}

fn elements(ty: &TensorType) -> u64 {
    ty.shape.elements().factor() as u64
}
