//! Records of compressed files, and samples of compressed tar files: a sequential source, because compressed data has
//! no random access. A record is buffered whole while it is parsed, so its length is limited.

use super::frame::{self, FRAME, HEAD, RecordHeader};
use super::{Feature, FeatureKind, LONGEST_PACKED, broken, columns, cut, encoded_image, example};
use crate::fault::{Fault, Loss};
use crate::source::unpack::{Packing, Unpacked};
use crate::source::webdataset::{LABEL, TarFault, TarSamples};
use crate::source::{RowIterator, SequentialSource, TfRecord, identify_named, named};
use crate::{Column, DataError, Schema};
use plimsoll_core::Bytes;
use std::hash::Hasher;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory for decompression in addition to the record: the window, and the input and output buffers.
const UNPACKING: Bytes = Bytes::kib(192);

/// The files, and the features that are read.
pub(crate) struct PackedRecords {
    paths: Vec<PathBuf>,
    features: Vec<(Feature, Column)>,
    /// Whether records are samples of tar files: a class, then an image.
    tar: bool,
}

/// The position of a record: its index, its file, and its offset there.
#[derive(Clone, Copy)]
pub(crate) struct RecordPosition {
    pub row: u64,
    file: usize,
    start: u64,
}

/// A record without its frame.
#[derive(Clone, Copy)]
pub(crate) struct Record<'r> {
    bytes: &'r [u8],
    pub position: RecordPosition,
}

impl PackedRecords {
    /// Maximum size of a record, and the total memory for reading.
    pub const LONGEST: Bytes = LONGEST_PACKED;
    pub const HELD: Bytes = Bytes(LONGEST_PACKED.0 + FRAME + UNPACKING.0);

    /// Opens files; also returns the columns of their records.
    pub fn open(paths: &[PathBuf], features: &[(&str, Feature)]) -> Result<(Schema, Arc<PackedRecords>), DataError> {
        let (schema, features) = columns(features)?;
        for path in paths {
            TfRecord::packing(path)?;
        }
        Ok((schema, Arc::new(PackedRecords { paths: paths.to_vec(), features, tar: false })))
    }

    /// Opens compressed tar files of images with their classes.
    pub fn open_tar(paths: &[PathBuf]) -> Result<(Schema, Arc<PackedRecords>), DataError> {
        let (schema, features) = columns(&[("x", Feature::image("image")), ("y", Feature::i32("cls", []))])?;
        Ok((schema, Arc::new(PackedRecords { paths: paths.to_vec(), features, tar: true })))
    }

    fn unpack(&self, path: &Path) -> Result<OpenFile, DataError> {
        if self.tar {
            let file = BufReader::new(Unpacked::open(path, Packing::Gzip)?);
            return Ok(OpenFile::Samples(TarSamples::new(file, LONGEST_PACKED)));
        }
        // A file that lost its compression since it was opened is read as it is.
        Ok(OpenFile::Records(BufReader::new(Unpacked::open(path, TfRecord::packing(path)?)?)))
    }

    pub fn has_images(&self) -> bool {
        self.features.iter().any(|(feature, _)| feature.kind == FeatureKind::Picture)
    }

    /// The records as a source, if there are no images.
    pub fn source(self: Arc<Self>, schema: Schema) -> SequentialSource {
        let (known, name) = (Arc::clone(&self), self.name());
        let open = move || RecordRows { records: Arc::clone(&self), reader: RecordReader::new(Arc::clone(&self)) };
        SequentialSource::new(name, schema, PackedRecords::HELD, open).identified(move |hash| known.identify(hash))
    }

    /// Hashes the files and the features that are read.
    pub fn identify(&self, hash: &mut dyn Hasher) -> Result<(), DataError> {
        hash.write(format!("{:?}", self.features).as_bytes());
        self.paths.iter().try_for_each(|path| identify_named(path, hash))
    }

    pub fn name(&self) -> String {
        named(if self.tar { "webdataset" } else { "tfrecord" }, self.paths.iter().map(PathBuf::as_path))
    }

    /// The columns of a row; an image has no size yet.
    pub fn columns(&self) -> impl Iterator<Item = &Column> {
        self.features.iter().map(|(_, column)| column)
    }

    /// The file of a record.
    pub fn path(&self, at: RecordPosition) -> &Path {
        &self.paths[at.file]
    }

    /// The error of a corrupt record.
    pub fn damaged(&self, at: RecordPosition, problem: String) -> DataError {
        broken(self.path(at), at.start, problem)
    }

    /// Writes the values of a column of a record.
    pub fn write(&self, record: Record<'_>, column: usize, out: &mut [u8]) -> Result<(), Fault> {
        if self.tar {
            out.copy_from_slice(&record.bytes[..LABEL]);
            return Ok(());
        }
        let (feature, of) = &self.features[column];
        example::write(record.bytes, feature, of, out).map_err(|problem| Fault::row(self.damaged(record.position, problem)))
    }

    /// The encoded bytes of an image of a record.
    pub fn image<'r>(&self, record: Record<'r>, column: usize) -> Result<&'r [u8], Fault> {
        let Record { bytes, position } = record;
        if self.tar {
            return Ok(&bytes[LABEL..]);
        }
        let found = encoded_image::find(&bytes, 0..bytes.len() as u64, &self.features[column].0.key);
        let found = found.map_err(|problem| Fault::row(self.damaged(position, problem)))?;
        Ok(&bytes[found.start as usize..found.end as usize])
    }
}

/// The records of one epoch as rows.
struct RecordRows {
    records: Arc<PackedRecords>,
    reader: RecordReader,
}

impl RowIterator for RecordRows {
    fn begin(&mut self, _epoch: u64) -> Result<(), Fault> {
        self.reader.begin();
        Ok(())
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        if !self.reader.next()? {
            return Ok(false);
        }
        let (record, mut rest) = (self.reader.record()?, out);
        for (index, column) in self.records.columns().enumerate() {
            let (out, after) = rest.split_at_mut(column.row_bytes().get());
            self.records.write(record, index, out)?;
            rest = after;
        }
        Ok(true)
    }
}

/// The file that is read.
enum OpenFile {
    Records(BufReader<Unpacked>),
    Samples(TarSamples<BufReader<Unpacked>>),
}

/// Reads the records of one epoch in sequence.
pub(crate) struct RecordReader {
    records: Arc<PackedRecords>,
    /// The index of the next file.
    next: usize,
    open: Option<OpenFile>,
    /// Offset of the record in the decompressed data, and of the next one.
    start: u64,
    at: u64,
    record: Vec<u8>,
    /// Index of the record over all files, and of the next one.
    row: u64,
    next_row: u64,
}

impl RecordReader {
    pub fn new(records: Arc<PackedRecords>) -> RecordReader {
        // The maximum size, so that it is never reallocated.
        let record = Vec::with_capacity((LONGEST_PACKED.0 + FRAME) as usize);
        RecordReader { next: records.paths.len(), records, open: None, start: 0, at: 0, record, row: 0, next_row: 0 }
    }

    /// The record read last, after its checksum is verified.
    pub fn record(&self) -> Result<Record<'_>, Fault> {
        let position = RecordPosition { row: self.row, file: self.next - 1, start: self.start };
        if self.records.tar {
            return Ok(Record { bytes: &self.record, position });
        }
        let bytes = frame::record(&self.record).map_err(|problem| Fault::row(self.records.damaged(position, problem)))?;
        Ok(Record { bytes, position })
    }

    pub fn begin(&mut self) {
        (self.next, self.open, self.next_row) = (0, None, 0);
    }

    /// Reads the next record; `false` at the end of the last file.
    pub fn next(&mut self) -> Result<bool, Fault> {
        loop {
            if self.open.is_none() {
                let Some(path) = self.records.paths.get(self.next) else { return Ok(false) };
                self.next += 1;
                self.at = 0;
                self.open = Some(self.records.unpack(path).map_err(Fault::part)?);
            }
            let read = if self.records.tar { self.sample() } else { self.read() };
            match &read {
                Ok(false) => self.open = None,
                Err(fault) if fault.loss != Loss::Row => {
                    // After corrupt data the next record cannot be found, except in the next file.
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

    /// Reads the next sample of a tar file; `false` at its end.
    fn sample(&mut self) -> Result<bool, Fault> {
        let Some(OpenFile::Samples(samples)) = &mut self.open else { unreachable!("a tar file is open") };
        let read = samples.next(&mut self.record);
        self.start = samples.start;
        let path = &self.records.paths[self.next - 1];
        read.map_err(|fault| match fault {
            TarFault::Sample(problem) => Fault::row(broken(path, self.start, problem)),
            TarFault::File(problem) => Fault::part(broken(path, self.start, problem)),
        })
    }

    /// Reads the next record with its frame; `false` at the end of the file.
    fn read(&mut self) -> Result<bool, Fault> {
        let (path, at) = (&self.records.paths[self.next - 1], self.at);
        let Some(OpenFile::Records(reader)) = &mut self.open else { unreachable!("a file of records is open") };
        let unpack = |error: io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => Fault::part(cut(path, at)),
            _ => Fault::part(broken(path, at, format!("it cannot be unpacked ({error}); write the file again"))),
        };
        let mut head = [0; HEAD];
        // No bytes at all is the end of the file; a partial header is a truncated file.
        if reader.read(&mut head[..1]).map_err(unpack)? == 0 {
            return Ok(false);
        }
        reader.read_exact(&mut head[1..]).map_err(unpack)?;
        let head_of = RecordHeader::read(&head).map_err(|problem| Fault::part(broken(path, at, problem)))?;
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
