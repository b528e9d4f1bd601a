//! Weights in a file: safetensors, written whole or not at all, read and written in small pieces.

use crate::error::{Error, Result};
use plimsoll_core::graph::{State, StateId, StateKind};
use plimsoll_core::{Bytes, Executor};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Bytes copied at a time.
const PIECE: usize = 16 << 10;

/// The longest header that is believed; a broken file must not make us ask for memory.
const MAX_HEADER: u64 = 16 << 20;

/// The states a model is made of, with their numbers.
fn weights(executor: &Executor) -> Vec<(StateId, State)> {
    let states = executor.plan().programs.iter().map(|program| program.graph.states()).max_by_key(|states| states.len());
    let kept = |(_, state): &(usize, &State)| matches!(state.kind, StateKind::Parameter | StateKind::Statistic);
    states.unwrap_or_default().iter().enumerate().filter(kept).map(|(i, state)| (StateId(i as u32), state.clone())).collect()
}

/// Writes all weights: to a temporary name first, then renamed, so that a file under this name is whole.
pub(crate) fn save(executor: &Executor, path: &Path) -> Result<()> {
    let error = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
    let weights = weights(executor);
    let mut header = Map::new();
    let mut end = 0;
    for (_, state) in &weights {
        let (start, size) = (end, state.ty.bytes(1).0);
        end += size;
        header.insert(state.name.clone(), json!({ "dtype": "F32", "shape": state.ty.shape.bind(1), "data_offsets": [start, end] }));
    }
    let mut header = Value::Object(header).to_string();
    // Padded so that the tensors begin at a multiple of eight.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));

    let temporary = path.with_extension("tmp");
    let mut file = BufWriter::new(File::create(&temporary).map_err(error)?);
    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(error)?;
    file.write_all(header.as_bytes()).map_err(error)?;
    let mut piece = [0; PIECE];
    for (id, state) in &weights {
        let (mut done, size) = (0, state.ty.bytes(1).get());
        while done < size {
            let piece = &mut piece[..PIECE.min(size - done)];
            executor.read_state_part(*id, Bytes(done as u64), piece)?;
            file.write_all(piece).map_err(error)?;
            done += piece.len();
        }
    }
    let file = file.into_inner().map_err(|failed| error(failed.into_error()))?;
    file.sync_all().and_then(|()| std::fs::rename(&temporary, path)).map_err(|source| {
        let _ = std::fs::remove_file(&temporary);
        error(source)
    })
}

/// Reads all weights; the file must have exactly the model's.
pub(crate) fn load(executor: &mut Executor, path: &Path) -> Result<()> {
    let error = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
    let wrong = |what: String| Error::Config(format!("{} does not hold this model's weights: {what}", path.display()));
    let mut file = File::open(path).map_err(error)?;
    let length = file.metadata().map_err(error)?.len();
    let mut start = [0; 8];
    file.read_exact(&mut start).map_err(error)?;
    let start = u64::from_le_bytes(start);
    if start > MAX_HEADER.min(length.saturating_sub(8)) {
        return Err(wrong("it is not a safetensors file, or it is cut off".to_string()));
    }
    let mut header = vec![0; start as usize];
    file.read_exact(&mut header).map_err(error)?;
    let header: Value = serde_json::from_slice(&header).map_err(|_| wrong("its header is not JSON".to_string()))?;
    let mut piece = [0; PIECE];
    for (id, state) in weights(executor) {
        let name = &state.name;
        let entry = &header[name];
        let shape: Option<Vec<usize>> =
            entry["shape"].as_array().map(|dims| dims.iter().filter_map(|d| d.as_u64()).map(|d| d as usize).collect());
        let size = state.ty.bytes(1).0;
        let place = entry["data_offsets"][0].as_u64().zip(entry["data_offsets"][1].as_u64());
        match (shape, place, entry["dtype"].as_str()) {
            (None, ..) => return Err(wrong(format!("`{name}` is missing"))),
            (Some(shape), ..) if shape != state.ty.shape.bind(1) => {
                return Err(wrong(format!("`{name}` has the shape {shape:?} there and {} here", state.ty.shape)));
            }
            (_, Some((from, to)), Some("F32")) if to.checked_sub(from) == Some(size) && 8 + start + to <= length => {
                file.seek(SeekFrom::Start(8 + start + from)).map_err(error)?;
            }
            _ => return Err(wrong(format!("`{name}` is not whole or not of type F32"))),
        }
        let mut done = 0;
        while done < size {
            let piece = &mut piece[..(PIECE as u64).min(size - done) as usize];
            file.read_exact(piece).map_err(error)?;
            executor.write_state_part(id, Bytes(done), piece)?;
            done += piece.len() as u64;
        }
    }
    Ok(())
}
