//! Tensors in safetensors files, written and read in small chunks. The header's metadata has a checksum of the whole
//! file, header and data; files of other programs have none and are read without.

mod header;

use crate::error::{Error, Result};
use crate::files;
use crate::page_cache;
use header::Header;
use plimsoll_core::graph::{State, StateId, StateKind};
use plimsoll_core::plan::Resident;
use plimsoll_core::{Bytes, DType, Executor, TensorType, shard};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes copied at a time.
const PIECE: usize = 16 << 10;

/// The longest header that is accepted: a damaged file must not cause a large allocation.
const MAX_HEADER: u64 = 64 << 20;

/// The key of the checksum in the metadata of a file.
const CHECKSUM: &str = "plimsoll.crc32";

/// The keys of a file with a rank's parts of tensors: which rank it is, and a line for each tensor with the elements
/// that the file has.
const PART: &str = "plimsoll.part";
const INDEX: &str = "plimsoll.index";

/// The checksum while it is not known: it does not count in itself.
const NO_CHECKSUM: &str = "00000000";

/// Which tensors a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Parameters and statistics of the model.
    Weights,
    /// All that resuming needs: weights, optimizer state, masks and the teacher.
    Everything,
}

impl Which {
    /// Accumulated gradients and metric counts are never saved: between two steps the former are empty, and the host
    /// has the latter.
    fn has(self, kind: StateKind) -> bool {
        match self {
            Which::Weights => matches!(kind, StateKind::Parameter | StateKind::Statistic),
            Which::Everything => !matches!(kind, StateKind::Accumulator | StateKind::Metric),
        }
    }
}

/// Why a file's tensors could not be loaded.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// It belongs to another model: which tensor differs, and how.
    OtherModel(String),
    /// It is truncated or damaged: where.
    Damaged(String),
    /// The system or the device failed.
    Failed(Error),
}

impl Unusable {
    /// As an error about a file.
    pub fn about(self, path: &Path) -> Error {
        match self {
            Unusable::OtherModel(what) => Error::Config(format!("{} does not have the tensors of this model: {what}", path.display())),
            Unusable::Damaged(what) => Error::Config(format!("{} is damaged: {what}", path.display())),
            Unusable::Failed(error) => error,
        }
    }
}

/// A rank of some, which has its parts of tensors that are divided over all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankOf {
    pub rank: usize,
    pub ranks: usize,
}

impl RankOf {
    /// A process that is alone.
    pub const ALONE: RankOf = RankOf { rank: 0, ranks: 1 };
}

/// A tensor in a file, and the state whose first bytes it is.
struct Stored {
    id: StateId,
    name: String,
    dtype: DType,
    shape: Vec<usize>,
}

impl Stored {
    fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.size()) as u64
    }
}

/// The tensors a file has, with their state ids.
fn chosen(executor: &Executor, which: Which) -> Vec<(StateId, State)> {
    let states = executor.plan().programs.iter().map(|program| program.graph.states()).max_by_key(|states| states.len());
    let kept = |(_, state): &(usize, &State)| which.has(state.kind);
    states.unwrap_or_default().iter().enumerate().filter(kept).map(|(i, state)| (StateId(i as u32), state.clone())).collect()
}

/// The name of a data type in the format.
fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
    }
}

/// A file of tensors as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Written {
    /// Its length.
    pub bytes: u64,
    /// Its checksum, which is also in its header.
    pub checksum: u32,
}

/// Bytes of a file with these tensors, at most.
pub(crate) fn file_size(states: &[Resident], which: Which) -> Bytes {
    let chosen = states.iter().filter(|state| which.has(state.kind));
    // An entry of the header: dtype, shape, offsets.
    chosen.map(|state| state.size + Bytes(state.name.len() as u64 + 160)).sum::<Bytes>() + Bytes(256)
}

/// Writes the tensors to a new file, without syncing it.
pub(crate) fn write(executor: &Executor, which: Which, file: &File, path: &Path) -> Result<Written> {
    write_with(executor, which, file, path, None)
}

/// Metadata is a key and its text.
fn write_with(executor: &Executor, which: Which, file: &File, path: &Path, metadata: Option<(&str, String)>) -> Result<Written> {
    let whole = chosen(executor, which).into_iter().filter(|(_, state)| state.shard.is_none());
    let stored = |(id, State { name, ty, .. }): (StateId, State)| Stored { id, name, dtype: ty.dtype, shape: ty.shape.bind(1) };
    write_tensors(executor, &whole.map(stored).collect::<Vec<_>>(), file, path, metadata.into_iter().collect())
}

/// Writes a rank's parts of the tensors that are divided over all ranks to a new file, without syncing it. An index in
/// its metadata has the elements of each tensor that the file has.
pub(crate) fn write_part(executor: &Executor, of: RankOf, file: &File, path: &Path) -> Result<Written> {
    let (mut parts, mut index) = (Vec::new(), String::new());
    for (id, State { name, ty, shard, .. }) in chosen(executor, Which::Everything) {
        let Some(whole) = shard else { continue };
        let own = shard::range(whole.shape.elements().factor(), of.ranks, of.rank);
        writeln!(index, "{}..{} {name}", own.start, own.end).expect("written to memory");
        parts.push(Stored { id, name, dtype: ty.dtype, shape: vec![own.len()] });
    }
    let metadata = vec![(PART, format!("rank {} of {}", of.rank, of.ranks)), (INDEX, index)];
    write_tensors(executor, &parts, file, path, metadata)
}

/// Metadata are keys and their texts.
fn write_tensors(executor: &Executor, tensors: &[Stored], file: &File, path: &Path, metadata: Vec<(&str, String)>) -> Result<Written> {
    let error = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
    let mut described = Map::from_iter([(CHECKSUM.to_string(), json!(NO_CHECKSUM))]);
    described.extend(metadata.into_iter().map(|(key, text)| (key.to_string(), Value::String(text))));
    // Written as text: a document in memory would take a kilobyte per tensor.
    let mut header = format!("{{\"__metadata__\":{}", Value::Object(described));
    let mut end = 0;
    for stored in tensors {
        let start = end;
        end += stored.bytes();
        let (name, dtype, shape) = (json!(stored.name), dtype_name(stored.dtype), &stored.shape);
        write!(header, ",{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}")
            .expect("written to memory");
    }
    header.push('}');
    // Padded so that the tensors begin at a multiple of eight.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let digits = 8 + checksum_digits(header.as_bytes()).expect("just inserted").start as u64;

    let mut checksum = crc32fast::Hasher::new();
    let mut out = BufWriter::with_capacity(PIECE, file);
    let (mut at, mut checked) = (0, 0);
    let mut put = |bytes: &[u8]| {
        checksum.update(bytes);
        out.write_all(bytes).map_err(error)?;
        at += bytes.len();
        if at - checked >= page_cache::PIECE {
            page_cache::written(file, checked as u64, at - checked);
            checked = at;
        }
        Ok::<(), Error>(())
    };
    let length = (header.len() as u64).to_le_bytes();
    put(&length)?;
    put(header.as_bytes())?;
    let mut piece = [0; PIECE];
    for stored in tensors {
        let (mut done, size) = (0, stored.bytes() as usize);
        while done < size {
            let piece = &mut piece[..PIECE.min(size - done)];
            executor.read_state_part(stored.id, Bytes(done as u64), piece)?;
            put(piece)?;
            done += piece.len();
        }
    }
    out.flush().map_err(error)?;
    drop(out);
    let written = Written { bytes: 8 + header.len() as u64 + end, checksum: checksum.finalize() };
    file.write_all_at(format!("{:08x}", written.checksum).as_bytes(), digits).map_err(error)?;
    Ok(written)
}

/// Where a header has the digits of the checksum. A tensor's name cannot be taken for it: quotes inside names are
/// escaped.
fn checksum_digits(header: &[u8]) -> Option<Range<usize>> {
    let key = format!("\"{CHECKSUM}\":\"");
    let start = key.len() + header.windows(key.len()).position(|bytes| bytes == key.as_bytes())?;
    (start + NO_CHECKSUM.len() <= header.len()).then_some(start..start + NO_CHECKSUM.len())
}

/// Writes all weights; a file of this name is complete. Metadata is a key and its text.
pub(crate) fn save_weights(executor: &Executor, path: &Path, metadata: Option<(&str, String)>) -> Result<()> {
    files::replace(path, |file| write_with(executor, Which::Weights, file, path, metadata.clone())).map(drop)
}

/// The metadata of a file of tensors under a key.
pub(crate) fn metadata(path: &Path, key: &str) -> Result<Option<String>> {
    let file = TensorFile::open(path).map_err(|unusable| unusable.about(path))?;
    Ok(file.header.metadata.get(key).cloned())
}

/// Loads all weights; the file must have all of the model's.
pub(crate) fn load_weights(executor: &mut Executor, path: &Path) -> Result<()> {
    let load = |executor: &mut Executor| {
        let mut file = TensorFile::open(path)?;
        let tensors = chosen(executor, Which::Weights);
        tensors.iter().try_for_each(|(_, state)| check_tensor(state, &file.header))?;
        tensors.iter().try_for_each(|(id, state)| file.load(executor, *id, state))
    };
    load(executor).map_err(|unusable: Unusable| unusable.about(path))
}

/// Loads the weights of a teacher, whose names begin with `prefix` in the run but not in the file; nothing if the run
/// has none.
pub(crate) fn load_teacher(executor: &mut Executor, path: &Path, prefix: &str) -> Result<()> {
    let own = |state: State| {
        let name = state.name.strip_prefix(prefix).and_then(|name| name.strip_prefix('/')).map(str::to_string);
        State { name: name.unwrap_or_default(), ..state }
    };
    let of_teacher = chosen(executor, Which::Everything).into_iter().filter(|(_, state)| state.kind == StateKind::Teacher);
    let weights: Vec<(StateId, State)> = of_teacher.map(|(id, state)| (id, own(state))).collect();
    if weights.is_empty() {
        return Ok(());
    }
    let load = |executor: &mut Executor| {
        let mut file = TensorFile::open(path)?;
        weights.iter().try_for_each(|(_, state)| check_tensor(state, &file.header))?;
        weights.iter().try_for_each(|(id, state)| file.load(executor, *id, state))
    };
    load(executor).map_err(|unusable: Unusable| unusable.about(path))
}

/// The names and shapes of the tensors of a file.
pub(crate) fn shapes(path: &Path) -> Result<Vec<(String, Vec<usize>)>> {
    let file = TensorFile::open(path).map_err(|unusable| unusable.about(path))?;
    Ok(file.header.tensors.iter().map(|(name, entry)| (name.to_string(), entry.shape.to_vec())).collect())
}

/// Loads the weights whose name and shape match the model's; gives the names of those that are not loaded.
pub(crate) fn load_matching_weights(executor: &mut Executor, path: &Path) -> Result<Vec<String>> {
    let load = |executor: &mut Executor| -> Result<Vec<String>, Unusable> {
        let mut file = TensorFile::open(path)?;
        let (fitting, others): (Vec<_>, Vec<_>) =
            chosen(executor, Which::Weights).into_iter().partition(|(_, state)| check_tensor(state, &file.header).is_ok());
        if fitting.is_empty() {
            return Err(Unusable::OtherModel("none of them is there with the same name and shape".to_string()));
        }
        fitting.iter().try_for_each(|(id, state)| file.load(executor, *id, state))?;
        Ok(others.into_iter().map(|(_, state)| state.name).collect())
    };
    load(executor).map_err(|unusable| unusable.about(path))
}

/// Opens the file that was written as `written`; nothing is loaded yet.
pub(crate) fn open_written(path: &Path, written: Written) -> Result<TensorFile, Unusable> {
    let file = TensorFile::open(path)?;
    if file.length != written.bytes {
        return Err(Unusable::Damaged(format!("it has {} bytes, but {} were written", file.length, written.bytes)));
    }
    match file.checksum == Some(written.checksum) {
        true => Ok(file),
        false => Err(Unusable::Damaged("it is not the file that was written with its document".to_string())),
    }
}

/// An open file of tensors, its header parsed.
pub(crate) struct TensorFile {
    path: PathBuf,
    file: File,
    header: Header,
    /// The offset of the tensors, and the length of the file.
    start: u64,
    length: u64,
    /// The checksum, if it has one.
    checksum: Option<u32>,
}

/// The text of a header. The file is then at its first tensor.
fn header_text(file: &mut File, length: u64, path: &Path) -> Result<Vec<u8>, Unusable> {
    let damaged = |what: &str| Unusable::Damaged(what.to_string());
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes).map_err(|_| damaged("it is shorter than any safetensors file"))?;
    let bytes = u64::from_le_bytes(bytes);
    if bytes > MAX_HEADER.min(length.saturating_sub(8)) {
        return Err(damaged("it is not a safetensors file, or it is cut off"));
    }
    let mut header = vec![0; bytes as usize];
    file.read_exact(&mut header).map_err(|source| Unusable::Failed(Error::Io { action: "read", path: path.to_path_buf(), source }))?;
    Ok(header)
}

/// Whether a file was written here: it has a checksum.
pub(crate) fn is_own(path: &Path) -> bool {
    let header = || {
        let mut file = File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        header_text(&mut file, length, path).ok()
    };
    header().is_some_and(|header| checksum_digits(&header).is_some())
}

impl TensorFile {
    /// Opens a file and, if it has a checksum, checks all of its bytes.
    fn open(path: &Path) -> Result<TensorFile, Unusable> {
        let failed = |source| Unusable::Failed(Error::Io { action: "read", path: path.to_path_buf(), source });
        let damaged = |what: &str| Unusable::Damaged(what.to_string());
        let mut file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut header = header_text(&mut file, length, path)?;
        let bytes = header.len() as u64;
        let checksum = match checksum_digits(&header) {
            None => None,
            Some(digits) => {
                let stated = std::str::from_utf8(&header[digits.clone()]).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
                header[digits].copy_from_slice(NO_CHECKSUM.as_bytes());
                let mut hasher = crc32fast::Hasher::new();
                hasher.update(&bytes.to_le_bytes());
                hasher.update(&header);
                let mut piece = [0; PIECE];
                loop {
                    match file.read(&mut piece).map_err(failed)? {
                        0 => break,
                        length => hasher.update(&piece[..length]),
                    }
                }
                let found = hasher.finalize();
                if stated != Some(found) {
                    return Err(damaged("its bytes are not those that were written (the checksum differs)"));
                }
                stated
            }
        };
        let header = serde_json::from_slice(&header).map_err(|_| damaged("its header does not describe tensors"))?;
        Ok(TensorFile { path: path.to_path_buf(), file, header, start: 8 + bytes, length, checksum })
    }

    /// Loads all tensors of a checkpoint; the file must have these and no others. Of a state that is a rank's part of a
    /// tensor, it has the whole tensor, of which the part is read. Gives the states that the file has not, if ranks
    /// have written parts of them.
    pub fn load_all(mut self, executor: &mut Executor, which: Which, of: RankOf, has_parts: bool) -> Result<Missing, Unusable> {
        let mut missing = Missing { states: Vec::new() };
        let tensors = chosen(executor, which);
        for (id, state) in &tensors {
            let part = StatePart::new(*id, state, of);
            if has_parts && !self.header.tensors.contains_key(&*state.name) && state.kind == StateKind::Optimizer {
                missing.states.push(part);
            } else {
                check_tensor(&State { ty: part.whole.clone(), ..state.clone() }, &self.header)?;
            }
        }
        let known: HashSet<&str> = tensors.iter().map(|(_, state)| &*state.name).collect();
        if let Some(name) = self.header.tensors.keys().find(|name| !known.contains(&***name)) {
            return Err(Unusable::OtherModel(format!("the file has `{name}`, which the model has not")));
        }
        for (id, state) in tensors.iter().filter(|(id, _)| missing.states.iter().all(|part| part.id != *id)) {
            let part = StatePart::new(*id, state, of);
            let elements = part.whole.shape.elements().factor();
            self.load_range(executor, &part, 0..elements)?;
        }
        Ok(missing)
    }

    /// Loads what the file has of a tensor, `elements` of it, as far as a state is a part of them; gives their number.
    fn load_range(&mut self, executor: &mut Executor, part: &StatePart, elements: Range<usize>) -> Result<usize, Unusable> {
        let failed = |source| Unusable::Failed(Error::Io { action: "read", path: self.path.clone(), source });
        let size = part.whole.dtype.size();
        let (from, to) = (part.elements.start.max(elements.start), part.elements.end.min(elements.end));
        match self.header.tensors.get(&*part.name).map(|entry| entry.offsets) {
            Some([start, end]) if end.checked_sub(start) == Some((elements.len() * size) as u64) && end <= self.length - self.start => {
                if from >= to {
                    return Ok(0);
                }
                let skipped = ((from - elements.start) * size) as u64;
                self.file.seek(SeekFrom::Start(self.start + start + skipped)).map_err(failed)?;
            }
            _ => return Err(Unusable::Damaged(format!("`{}` is truncated", part.name))),
        }
        let (mut piece, mut done, end) = ([0; PIECE], (from - part.elements.start) * size, (to - part.elements.start) * size);
        while done < end {
            let piece = &mut piece[..PIECE.min(end - done)];
            self.file.read_exact(piece).map_err(failed)?;
            executor.write_state_part(part.id, Bytes(done as u64), piece).map_err(|error| Unusable::Failed(error.into()))?;
            done += piece.len();
        }
        Ok(to - from)
    }

    /// Loads a tensor that the header has into a state, chunk by chunk.
    fn load(&mut self, executor: &mut Executor, id: StateId, state: &State) -> Result<(), Unusable> {
        let part = StatePart::new(id, state, RankOf::ALONE);
        let elements = part.whole.shape.elements().factor();
        self.load_range(executor, &part, 0..elements).map(drop)
    }
}

/// A tensor and its elements in a file, from a line of the index.
fn indexed(line: &str) -> Option<(&str, Range<usize>)> {
    let (range, name) = line.split_once(' ')?;
    let (from, to) = range.split_once("..")?;
    let range = from.parse().ok()?..to.parse().ok()?;
    (range.start <= range.end).then_some((name, range))
}

/// A state, and the elements that it has of a tensor: all of them, unless the tensor is divided over ranks.
#[derive(Debug)]
struct StatePart {
    id: StateId,
    name: String,
    /// The type of the tensor.
    whole: TensorType,
    elements: Range<usize>,
    /// How many of them are loaded.
    loaded: usize,
}

impl StatePart {
    fn new(id: StateId, state: &State, of: RankOf) -> StatePart {
        let shape = state.shard.as_ref().map_or(&state.ty.shape, |shard| &shard.shape);
        let count = shape.elements().factor();
        let elements = if state.shard.is_some() { shard::range(count, of.ranks, of.rank) } else { 0..count };
        StatePart { id, name: state.name.clone(), whole: TensorType::new(state.ty.dtype, shape.clone()), elements, loaded: 0 }
    }
}

/// States of a checkpoint whose tensors are in the files of ranks.
#[derive(Debug)]
pub(crate) struct Missing {
    states: Vec<StatePart>,
}

impl Missing {
    /// Whether the file of a rank has an element of any of them.
    pub fn needs(&self, of: RankOf) -> bool {
        let meets = |part: &StatePart| {
            let stored = shard::range(part.whole.shape.elements().factor(), of.ranks, of.rank);
            stored.start.max(part.elements.start) < stored.end.min(part.elements.end)
        };
        self.states.iter().any(meets)
    }

    /// Loads what the file of a rank has of them.
    pub fn load(&mut self, executor: &mut Executor, mut file: TensorFile) -> Result<(), Unusable> {
        let damaged = || Unusable::Damaged("it has no index of the elements of its tensors".to_string());
        let index = file.header.metadata.remove(INDEX).ok_or_else(damaged)?;
        for line in index.lines() {
            let (name, elements) = indexed(line).ok_or_else(damaged)?;
            let Some(part) = self.states.iter_mut().find(|part| part.name == name) else {
                return Err(Unusable::OtherModel(format!("the file has `{name}`, which the model has not")));
            };
            let (count, dtype) = (part.whole.shape.elements().factor(), dtype_name(part.whole.dtype));
            let entry = file.header.tensors.get(name);
            if elements.end > count || entry.is_none_or(|entry| &*entry.dtype != dtype || *entry.shape != [elements.len()]) {
                let there = entry.map_or_else(|| "not there".to_string(), ToString::to_string);
                return Err(Unusable::OtherModel(format!(
                    "elements {} to {} of `{name}`, {there}, do not belong to {} in the model",
                    elements.start, elements.end, part.whole
                )));
            }
            part.loaded += file.load_range(executor, part, elements)?;
        }
        Ok(())
    }

    /// Checks that all of them were loaded, each element once.
    pub fn complete(self) -> Result<(), Unusable> {
        match self.states.iter().find(|part| part.loaded != part.elements.len()) {
            Some(part) => Err(Unusable::OtherModel(format!(
                "the files of the ranks have {} of the {} elements of `{}` that this rank needs",
                part.loaded,
                part.elements.len(),
                part.name
            ))),
            None => Ok(()),
        }
    }
}

/// That the file has this tensor; says how it differs.
fn check_tensor(state: &State, header: &Header) -> Result<(), Unusable> {
    let (name, here) = (&state.name, format!("{} {}", dtype_name(state.ty.dtype), state.ty.shape));
    let Some(entry) = header.tensors.get(&**name) else {
        return Err(Unusable::OtherModel(format!("the file has no `{name}`, which is {here} in the model")));
    };
    let there = entry.to_string();
    if there != here {
        return Err(Unusable::OtherModel(format!("`{name}` is {there} in the file and {here} in the model")));
    }
    Ok(())
}
