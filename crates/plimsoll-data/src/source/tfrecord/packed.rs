//! Records of files compressed with gzip: a stream, as nothing says where in them a record is.
//!
//! A record is held whole while its values are taken out of it and its picture, if it has one, is decoded. So it has a longest length, and
//! what makes pictures alike in size is done here, where they are.

use super::frame::{self, FRAME, HEAD, Head};
use super::{Feature, Kind, LONGEST_PACKED, broken, columns, cut, example, picture};
use crate::dataset::{Dataset, Stage};
use crate::decode_room::DecodeRoom;
use crate::geometry::{item_bound, item_room};
use crate::item::{ItemCap, ItemKernel};
use crate::meter::Meter;
use crate::ops::Op;
use crate::source::identify_named;
use crate::stream::{Fault, Held, Loss, PerRow, Room, Spec};
use crate::{Column, DataError, Schema};
use flate2::read::MultiGzDecoder;
use plimsoll_core::Bytes;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What unpacking takes beside the record: a window, and the buffers before and after it.
const UNPACKING: Bytes = Bytes::kib(192);

/// What a record is held in, and what unpacking it takes.
const HOLDING: Bytes = Bytes(LONGEST_PACKED.0 + FRAME + UNPACKING.0);

struct Packed {
    paths: Vec<PathBuf>,
    features: Vec<(Feature, Column)>,
}

/// The records of packed files.
pub(crate) fn gzipped(paths: &[PathBuf], features: &[(&str, Feature)]) -> Result<Dataset, DataError> {
    let (schema, features) = columns(features)?;
    for path in paths {
        File::open(path).map_err(|error| DataError::io("open", path, error))?;
    }
    let with_pictures = features.iter().any(|(feature, _)| feature.kind == Kind::Picture);
    let packed = Arc::new(Packed { paths: paths.to_vec(), features });
    if with_pictures {
        // Never asked for a row: it only knows what becomes of the columns.
        let rows = Dataset::from_fn(schema, 0, |_, _| Ok(()));
        return Ok(Dataset::flow(Spec::Pictures(Pictures { packed, rows, max_item: None })));
    }
    let (known, name) = (Arc::clone(&packed), packed.name());
    let identity = move |hash: &mut dyn Hasher| known.identify(hash);
    let open = move || Records::new(Arc::clone(&packed), Vec::new());
    Ok(Dataset::from_rows(name, schema, HOLDING, Some(Arc::new(identity)), open))
}

impl Packed {
    /// Feeds `hash` with the files and what is taken out of them.
    fn identify(&self, hash: &mut dyn Hasher) -> Result<(), DataError> {
        hash.write(format!("{:?}", self.features).as_bytes());
        self.paths.iter().try_for_each(|path| identify_named(path, hash))
    }

    fn name(&self) -> String {
        let names: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        format!("tfrecord {}", names.join(", "))
    }
}

/// Packed records with pictures in them, and what is done to those until they are alike in size.
#[derive(Clone)]
pub(crate) struct Pictures {
    packed: Arc<Packed>,
    rows: Dataset,
    max_item: Option<Bytes>,
}

impl Pictures {
    pub fn schema(&self) -> Result<Schema, DataError> {
        self.rows.output_schema()
    }

    /// Feeds `hash` with the files; what is done to the pictures is part of the name.
    pub fn identify(&self, hash: &mut dyn Hasher) -> Result<(), DataError> {
        self.packed.identify(hash)
    }

    /// What decoding a picture may take, if that was said.
    pub fn max_item(&self) -> Option<Bytes> {
        self.max_item
    }

    /// What is done to the rows here.
    pub fn stages(&self) -> &[Stage] {
        &self.rows.stages
    }

    /// The same with one more operation.
    pub fn map(&self, column: &str, op: &Arc<dyn Op>) -> Pictures {
        let rows = self.rows.clone().stage(Stage::Map { column: column.into(), ops: vec![Arc::clone(op)] });
        Pictures { packed: Arc::clone(&self.packed), rows, max_item: self.max_item }
    }

    /// The same with the most that decoding a picture may take.
    pub fn with_max_item(&self, bytes: Bytes) -> Pictures {
        Pictures { max_item: Some(bytes), ..self.clone() }
    }

    pub fn name(&self) -> String {
        self.rows.stages.iter().fold(self.packed.name(), |name, stage| format!("{name} → {stage}"))
    }

    /// What it holds.
    pub fn cost(&self, room: Room) -> Result<Vec<Held>, DataError> {
        let recipe = self.rows.recipe()?;
        let (decode, kernels) = (item_room(self.max_item, room), recipe.maps.iter().filter_map(|map| map.item.as_ref()));
        Ok(vec![
            Held::here(format!("packed records (each ≤ {LONGEST_PACKED})"), HOLDING),
            Held::here(format!("decode (each ≤ {decode})"), decode + kernels.map(|item| item.kernel_bytes()).sum()),
        ])
    }

    /// Allocates what is counted; what is decoded in, as pictures need it.
    pub fn open(&self, room: Room) -> Result<Box<dyn PerRow>, DataError> {
        let (recipe, cap) = (self.rows.recipe()?, item_room(self.max_item, room));
        let decode_room = Arc::new(DecodeRoom::new(cap, Bytes::ZERO, 1, None));
        let meter = Arc::new(Meter::default());
        let kernel = |item: &crate::item::ItemRecipe| {
            let cap = ItemCap { said: item_bound(self.max_item), here: cap };
            ItemKernel::new(Arc::clone(&recipe.source), item.clone(), cap, Arc::clone(&decode_room), Arc::clone(&meter))
        };
        let kernels = recipe.maps.iter().zip(recipe.schema.columns()).map(|(map, column)| Some((kernel(map.item.as_ref()?), column)));
        let kernels = kernels.map(|of| of.map(|(kernel, column)| (kernel, column.row_bytes().get()))).collect();
        Ok(Box::new(Records::new(Arc::clone(&self.packed), kernels)))
    }
}

/// The records of one epoch.
struct Records {
    packed: Arc<Packed>,
    /// For each column, what decodes its pictures, and how large those are then; none at all where there are none.
    kernels: Vec<Option<(ItemKernel, usize)>>,
    /// The file after the one that is open.
    next: usize,
    open: Option<BufReader<MultiGzDecoder<BufReader<File>>>>,
    /// Where the record begins in what is unpacked, and where the next.
    start: u64,
    at: u64,
    record: Vec<u8>,
    /// The number of the record, as if all files were unpacked.
    row: u64,
}

impl Records {
    fn new(packed: Arc<Packed>, kernels: Vec<Option<(ItemKernel, usize)>>) -> Records {
        // As long as any will be, so that it never grows.
        let record = Vec::with_capacity((LONGEST_PACKED.0 + FRAME) as usize);
        Records { next: packed.paths.len(), packed, kernels, open: None, start: 0, at: 0, record, row: 0 }
    }

    /// Reads the next record with its frame; `false` at the end of the file.
    fn read(&mut self) -> Result<bool, Fault> {
        let (path, at) = (&self.packed.paths[self.next - 1], self.at);
        let reader = self.open.as_mut().expect("a file is open");
        let unpack = |error: io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => Fault::part(cut(path, at)),
            _ => Fault::part(broken(path, at, format!("it cannot be unpacked ({error}); write the file again"))),
        };
        let mut head = [0; HEAD];
        // Nothing at all is the end of the file; a part of a head is a file that was cut off.
        if reader.read(&mut head[..1]).map_err(unpack)? == 0 {
            return Ok(false);
        }
        reader.read_exact(&mut head[1..]).map_err(unpack)?;
        let head_of = Head::read(&head).map_err(|problem| Fault::part(broken(path, at, problem)))?;
        (self.start, self.at) = (at, at.saturating_add(FRAME).saturating_add(head_of.bytes));
        if let Err(problem) = head_of.check(LONGEST_PACKED) {
            let rest = head_of.bytes.saturating_add(FRAME - HEAD as u64);
            let passed = io::copy(&mut reader.take(rest), &mut io::sink()).map_err(unpack)?;
            return Err(if passed == rest { Fault::row(broken(path, at, problem)) } else { Fault::part(cut(path, at)) });
        }
        self.record.clear();
        self.record.extend_from_slice(&head);
        self.record.resize((head_of.bytes + FRAME) as usize, 0);
        reader.read_exact(&mut self.record[HEAD..]).map_err(unpack)?;
        Ok(true)
    }

    /// Writes the record that was read as a row.
    fn write(&mut self, row: u64, out: &mut [u8]) -> Result<(), Fault> {
        let (path, at) = (&self.packed.paths[self.next - 1], self.start);
        let name = |problem: String| Fault::row(broken(path, at, problem));
        let record = frame::record(&self.record).map_err(name)?;
        let mut rest = out;
        for (index, (feature, column)) in self.packed.features.iter().enumerate() {
            let kernel = self.kernels.get_mut(index).and_then(Option::as_mut);
            let bytes = kernel.as_ref().map_or(column.row_bytes().get(), |(_, bytes)| *bytes);
            let (part, after) = rest.split_at_mut(bytes);
            match kernel {
                None => example::write(record, feature, column, part).map_err(name)?,
                Some((kernel, _)) => {
                    let found = picture::find(&record, 0..record.len() as u64, &feature.key).map_err(name)?;
                    let encoded = &record[found.start as usize..found.end as usize];
                    let made = kernel.run_held(row, path, encoded, part);
                    made.map_err(|error| Fault::row(error).told_as(|error| in_record(path, at, error)))?;
                }
            }
            rest = after;
        }
        Ok(())
    }
}

/// What is wrong with a picture, with its record instead of a file of its own.
fn in_record(path: &Path, at: u64, error: &DataError) -> DataError {
    if let DataError::Image { problem, .. } = error {
        return broken(path, at, format!("its picture cannot be decoded: {problem}"));
    }
    let text = error.to_string();
    let rest = text.strip_prefix(&path.display().to_string()).map_or(format!(": {text}"), str::to_string);
    broken(path, at, format!("its picture{rest}"))
}

impl PerRow for Records {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.next, self.open, self.row) = (0, None, 0);
        self.kernels.iter_mut().flatten().for_each(|(kernel, _)| kernel.set_epoch(epoch));
        Ok(())
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        loop {
            if self.open.is_none() {
                let Some(path) = self.packed.paths.get(self.next) else { return Ok(false) };
                self.next += 1;
                self.at = 0;
                let file = File::open(path).map_err(|error| Fault::part(DataError::io("open", path, error)))?;
                self.open = Some(BufReader::new(MultiGzDecoder::new(BufReader::new(file))));
            }
            let row = self.row;
            match self.read() {
                Ok(true) => {
                    self.row += 1;
                    return self.write(row, out).map(|()| true);
                }
                Ok(false) => self.open = None,
                Err(fault) => {
                    match fault.loss {
                        Loss::Row => self.row += 1,
                        // Nothing says where a record begins after damage, but for the next file.
                        _ => self.open = None,
                    }
                    return Err(fault);
                }
            }
        }
    }
}
