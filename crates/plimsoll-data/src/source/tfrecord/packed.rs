//! Records of files compressed with gzip: a stream, as nothing says where in them a record is.
//!
//! A record is held whole while its values are taken out of it and its picture, if it has one, is decoded. So it has a longest length, and
//! what makes pictures alike in size is done here, where they are.

use super::frame::{self, FRAME, HEAD, Head};
use super::{Feature, Kind, LONGEST_PACKED, broken, columns, cut, example, picture};
use crate::dataset::{Dataset, Stage};
use crate::decode_room::DecodeRoom;
use crate::fault::{Fault, Loss};
use crate::geometry::{item_bound, item_room};
use crate::item::{Entered, ItemCap, ItemKernel};
use crate::meter::Meter;
use crate::ops::Op;
use crate::source::{RowIterator, SequentialSource, identify_named, named};
use crate::stream::{Held, Room, Spec};
use crate::{Column, DataError, Schema};
use flate2::read::MultiGzDecoder;
use plimsoll_core::Bytes;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufReader, ErrorKind, Read};
use std::ops::Range;
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
    let open = move || Records {
        reader: RecordReader::new(Arc::clone(&packed)),
        maker: RecordMaker { packed: Arc::clone(&packed), kernels: Vec::new() },
    };
    Ok(Dataset::from_sequential(SequentialSource::new(name, schema, HOLDING, open).identified(identity)))
}

impl Packed {
    /// Feeds `hash` with the files and what is taken out of them.
    fn identify(&self, hash: &mut dyn Hasher) -> Result<(), DataError> {
        hash.write(format!("{:?}", self.features).as_bytes());
        self.paths.iter().try_for_each(|path| identify_named(path, hash))
    }

    fn name(&self) -> String {
        named("tfrecord", self.paths.iter().map(PathBuf::as_path))
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

    /// The files.
    pub fn records(&self) -> String {
        self.packed.name()
    }

    pub fn name(&self) -> String {
        self.rows.stages.iter().fold(self.packed.name(), |name, stage| format!("{name} → {stage}"))
    }

    /// What it holds where one thread makes rows.
    pub fn cost(&self, room: Room) -> Result<Vec<Held>, DataError> {
        let decode = item_room(self.max_item, room);
        Ok(vec![
            Held::here(format!("packed records (each ≤ {LONGEST_PACKED})"), HOLDING),
            Held::here(format!("decode (each ≤ {decode})"), decode + self.maker_bytes()?),
        ])
    }

    /// What each thread holds beside that.
    pub fn maker_bytes(&self) -> Result<Bytes, DataError> {
        Ok(self.rows.recipe()?.maps.iter().filter_map(|map| Some(map.item.as_ref()?.kernel_bytes())).sum())
    }

    /// The records, and what makes rows of them.
    pub fn open(&self, room: Room) -> Result<Box<dyn RowIterator>, DataError> {
        let (reader, mut makers) = self.open_shared(room, 1, &Arc::default())?;
        let maker = makers.pop().expect("one was asked for");
        Ok(Box::new(Records { reader, maker }))
    }

    /// The records, and what makes rows of them on each of some threads. Allocates what is counted; what is decoded in, as pictures need it.
    pub fn open_shared(&self, room: Room, threads: usize, meter: &Arc<Meter>) -> Result<(RecordReader, Vec<RecordMaker>), DataError> {
        let (recipe, cap) = (self.rows.recipe()?, item_room(self.max_item, room));
        let decode_room = Arc::new(DecodeRoom::new(cap, Bytes::ZERO, threads, None));
        let kernel = |item: &crate::item::ItemRecipe| {
            let cap = ItemCap { said: item_bound(self.max_item), here: cap };
            ItemKernel::new(Arc::clone(&recipe.source), item.clone(), cap, Arc::clone(&decode_room), Arc::clone(meter))
        };
        let maker = |_| {
            let kernels = recipe.maps.iter().zip(recipe.schema.columns()).map(|(map, column)| Some((kernel(map.item.as_ref()?), column)));
            let kernels = kernels.map(|of| of.map(|(kernel, column)| (kernel, column.row_bytes().get()))).collect();
            RecordMaker { packed: Arc::clone(&self.packed), kernels }
        };
        Ok((RecordReader::new(Arc::clone(&self.packed)), (0..threads).map(maker).collect()))
    }
}

/// Makes rows of records.
pub(crate) struct RecordMaker {
    packed: Arc<Packed>,
    /// For each column, what decodes its pictures, and how large those are then; none at all where there are none.
    kernels: Vec<Option<(ItemKernel, usize)>>,
}

/// A picture whose record somebody else may read over.
pub(crate) struct BegunRecord {
    entered: Entered,
    column: usize,
    /// Where the column is in its row.
    at: Range<usize>,
    /// The record: its number, its file and where it begins there.
    row: u64,
    file: usize,
    start: u64,
}

impl RecordMaker {
    pub fn set_epoch(&mut self, epoch: u64) {
        self.kernels.iter_mut().flatten().for_each(|(kernel, _)| kernel.set_epoch(epoch));
    }

    /// Writes the record that was read last as a row, but for its last picture, which is let into the room: the record is not needed any more.
    pub fn begin(&mut self, reader: &RecordReader, out: &mut [u8]) -> Result<Option<BegunRecord>, Fault> {
        let (file, start) = (reader.next - 1, reader.start);
        let packed = Arc::clone(&self.packed);
        let path = &packed.paths[file];
        let name = |problem: String| Fault::row(broken(path, start, problem));
        let record = frame::record(&reader.record).map_err(name)?;
        let (mut at, mut begun) = (0, None);
        for (index, (feature, column)) in packed.features.iter().enumerate() {
            // Nobody waits for room while holding some.
            if self.kernels.get(index).is_some_and(Option::is_some)
                && let Some(before) = begun.take()
            {
                self.end(before, out)?;
            }
            let kernel = self.kernels.get(index).and_then(Option::as_ref);
            let bytes = kernel.map_or(column.row_bytes().get(), |(_, bytes)| *bytes);
            let part = at..at + bytes;
            at += bytes;
            let Some((kernel, _)) = kernel else {
                example::write(record, feature, column, &mut out[part]).map_err(name)?;
                continue;
            };
            let found = picture::find(&record, 0..record.len() as u64, &feature.key).map_err(name)?;
            let encoded = &record[found.start as usize..found.end as usize];
            let entered = kernel.enter(path, encoded).map_err(|error| in_record(path, start, error))?;
            begun = Some(BegunRecord { entered, column: index, at: part, row: reader.row, file, start });
        }
        Ok(begun)
    }

    /// Writes the picture of a row.
    pub fn end(&mut self, begun: BegunRecord, out: &mut [u8]) -> Result<(), Fault> {
        let BegunRecord { entered, column, at, row, file, start } = begun;
        let (kernel, _) = self.kernels[column].as_mut().expect("it let the picture in");
        let path = &self.packed.paths[file];
        kernel.decode(row, path, entered, &mut out[at]).map(|_| ()).map_err(|error| in_record(path, start, error))
    }
}

/// Reads the records of one epoch after each other.
pub(crate) struct RecordReader {
    packed: Arc<Packed>,
    /// The file after the one that is open.
    next: usize,
    open: Option<BufReader<MultiGzDecoder<BufReader<File>>>>,
    /// Where the record begins in what is unpacked, and where the next.
    start: u64,
    at: u64,
    record: Vec<u8>,
    /// The number of the record, as if all files were unpacked, and of the next.
    row: u64,
    next_row: u64,
}

impl RecordReader {
    fn new(packed: Arc<Packed>) -> RecordReader {
        // As long as any will be, so that it never grows.
        let record = Vec::with_capacity((LONGEST_PACKED.0 + FRAME) as usize);
        RecordReader { next: packed.paths.len(), packed, open: None, start: 0, at: 0, record, row: 0, next_row: 0 }
    }

    pub fn begin(&mut self) {
        (self.next, self.open, self.next_row) = (0, None, 0);
    }

    /// Reads the next record; `false` at the end of the last file.
    pub fn next(&mut self) -> Result<bool, Fault> {
        loop {
            if self.open.is_none() {
                let Some(path) = self.packed.paths.get(self.next) else { return Ok(false) };
                self.next += 1;
                self.at = 0;
                let file = File::open(path).map_err(|error| Fault::part(DataError::io("open", path, error)))?;
                self.open = Some(BufReader::new(MultiGzDecoder::new(BufReader::new(file))));
            }
            let read = self.read();
            match &read {
                Ok(false) => self.open = None,
                Err(fault) if fault.loss != Loss::Row => {
                    // Nothing says where a record begins after damage, but for the next file.
                    self.open = None;
                    return read;
                }
                _ => {
                    (self.row, self.next_row) = (self.next_row, self.next_row + 1);
                    return read;
                }
            }
        }
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
}

/// What is wrong with a picture, with its record instead of a file of its own.
fn in_record(path: &Path, at: u64, error: DataError) -> Fault {
    Fault::row(error).told_as(|error| {
        if let DataError::Image { problem, .. } = error {
            return broken(path, at, format!("its picture cannot be decoded: {problem}"));
        }
        let text = error.to_string();
        let rest = text.strip_prefix(&path.display().to_string()).map_or(format!(": {text}"), str::to_string);
        broken(path, at, format!("its picture{rest}"))
    })
}

/// The records of one epoch as rows, made by one thread.
struct Records {
    reader: RecordReader,
    maker: RecordMaker,
}

impl RowIterator for Records {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.reader.begin();
        self.maker.set_epoch(epoch);
        Ok(())
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        if !self.reader.next()? {
            return Ok(false);
        }
        let begun = self.maker.begin(&self.reader, out)?;
        begun.map_or(Ok(()), |picture| self.maker.end(picture, out)).map(|()| true)
    }
}
