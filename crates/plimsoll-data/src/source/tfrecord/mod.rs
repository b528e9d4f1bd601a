//! TFRecord files of `tf.train.Example`: every length and every record is checked against its CRC-32C.

mod example;
mod frame;

use super::{Gather, Source};
use crate::block::BlockMut;
use crate::dataset::Dataset;
use crate::{Column, DataError, Schema, Tensor};
use flate2::read::MultiGzDecoder;
use frame::{FRAME, HEAD, Head};
use plimsoll_core::{Bytes, DType};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A feature of an example, and the column it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    key: String,
    dtype: DType,
    shape: Vec<usize>,
    pad: bool,
}

impl Feature {
    /// A list of floats, or of whole numbers to be read as floats.
    pub fn f32(key: impl Into<String>, shape: impl Into<Vec<usize>>) -> Feature {
        Feature { key: key.into(), dtype: DType::F32, shape: shape.into(), pad: false }
    }

    /// A list of whole numbers, each of which has to fit an i32.
    pub fn i32(key: impl Into<String>, shape: impl Into<Vec<usize>>) -> Feature {
        Feature { dtype: DType::I32, ..Feature::f32(key, shape) }
    }

    /// A string of bytes, such as raw pixels.
    pub fn u8(key: impl Into<String>, shape: impl Into<Vec<usize>>) -> Feature {
        Feature { dtype: DType::U8, ..Feature::f32(key, shape) }
    }

    /// The same, filled with 0 where a record has fewer values: rows of differing length in batches of one shape.
    pub fn padded(mut self) -> Feature {
        self.pad = true;
        self
    }
}

/// Records of one or several uncompressed files, by number: their places are found once, 8 bytes each.
pub struct TfRecord {
    schema: Schema,
    features: Vec<(Feature, Column)>,
    files: Vec<Part>,
    /// Where each record's length stands in its file.
    places: Vec<u64>,
    /// The longest record.
    longest: usize,
}

struct Part {
    path: PathBuf,
    file: File,
    /// The row after its last.
    end: u64,
}

/// No record may be longer; one that is packed is held whole before its end is seen, so it may be less.
const LONGEST: Bytes = Bytes::mib(256);
const LONGEST_PACKED: Bytes = Bytes::mib(4);

/// What unpacking takes beside the record: a window, and the buffers before and after it.
const UNPACKING: Bytes = Bytes::kib(192);

impl TfRecord {
    /// Opens the files; each feature is named by the column it becomes.
    pub fn open<P: AsRef<Path>>(paths: &[P], features: &[(&str, Feature)]) -> Result<TfRecord, DataError> {
        let (schema, features) = columns(features)?;
        let mut records = TfRecord { schema, features, files: Vec::new(), places: Vec::new(), longest: 0 };
        for path in paths {
            records.index(path.as_ref())?;
        }
        records.places.shrink_to_fit();
        Ok(records)
    }

    /// Finds the records of one file.
    fn index(&mut self, path: &Path) -> Result<(), DataError> {
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let length = file.metadata().map_err(|error| DataError::io("examine", path, error))?.len();
        let mut at = 0;
        while at < length {
            let mut head = [0; HEAD];
            file.read_exact_at(&mut head, at).map_err(|_| cut(path, at))?;
            let Head { bytes } = Head::read(&head, LONGEST).map_err(|problem| broken(path, at, problem))?;
            let after = at.checked_add(FRAME + bytes).filter(|after| *after <= length).ok_or_else(|| cut(path, at))?;
            self.longest = self.longest.max(bytes as usize);
            self.places.push(at);
            at = after;
        }
        self.files.push(Part { path: path.to_path_buf(), file, end: self.places.len() as u64 });
        Ok(())
    }

    fn write(&self, rows: impl Iterator<Item = u64>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (index, row) in rows.enumerate() {
            let part = &self.files[self.files.partition_point(|part| part.end <= row)];
            let at = self.places[row as usize];
            // Up to the next record of the file, or as far as the longest one reaches.
            let next = self.places.get(row as usize + 1).filter(|_| row + 1 < part.end);
            let bytes = next.map_or(self.longest + FRAME as usize, |next| (next - at) as usize);
            let read = read_up_to(&part.file, &mut scratch[..bytes], at);
            let read = read.map_err(|error| DataError::io(format!("read byte {at} of"), &part.path, error))?;
            let record = frame::record(read).map_err(|problem| broken(&part.path, at, problem))?;
            for (at_column, (feature, column)) in self.features.iter().enumerate() {
                let row_bytes = column.row_bytes().get();
                let out = &mut out.column(at_column)[index * row_bytes..][..row_bytes];
                example::write(record, feature, column, out).map_err(|problem| broken(&part.path, at, problem))?;
            }
        }
        Ok(())
    }
}

/// Reads until the buffer is full or the file ends.
fn read_up_to<'b>(file: &File, buffer: &'b mut [u8], at: u64) -> std::io::Result<&'b [u8]> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(&buffer[..read])
}

fn columns(features: &[(&str, Feature)]) -> Result<(Schema, Vec<(Feature, Column)>), DataError> {
    let with_columns = features.iter().map(|(name, feature)| (feature.clone(), Column::new(*name, feature.dtype, feature.shape.clone())));
    let features: Vec<(Feature, Column)> = with_columns.collect();
    Ok((Schema::new(features.iter().map(|(_, column)| column.clone()).collect())?, features))
}

fn broken(path: &Path, at: u64, problem: impl Into<String>) -> DataError {
    DataError::Record { path: path.to_path_buf(), at, problem: problem.into() }
}

fn cut(path: &Path, at: u64) -> DataError {
    broken(path, at, "the file ends inside it; copy or write the file again")
}

impl Source for TfRecord {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.places.len() as u64
    }

    fn scratch_bytes(&self, _rows: usize) -> Bytes {
        Bytes(self.longest as u64 + FRAME)
    }

    fn read(&self, first_row: u64, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.write(first_row..first_row + out.rows() as u64, scratch, out)
    }

    fn gather(&self, rows: Gather<'_>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.write(rows.rows.iter().copied(), scratch, out)
    }

    fn held_bytes(&self) -> Bytes {
        Bytes(size_of_val(&self.places[..]) as u64)
    }

    fn held_name(&self) -> &'static str {
        "index"
    }

    fn describe(&self) -> String {
        let files: Vec<String> = self.files.iter().map(|part| part.path.display().to_string()).collect();
        format!("tfrecord {}", files.join(", "))
    }
}

/// Records of files compressed with gzip: a stream, as nothing says where in them a record is.
pub(crate) fn gzipped(paths: &[PathBuf], features: &[(&str, Feature)]) -> Result<Dataset, DataError> {
    let (schema, features) = columns(features)?;
    for path in paths {
        File::open(path).map_err(|error| DataError::io("open", path, error))?;
    }
    let paths: Arc<[PathBuf]> = paths.into();
    let features: Arc<[_]> = features.into();
    let held = LONGEST_PACKED + UNPACKING;
    Ok(Dataset::from_generator_holding(schema, held, move |_epoch| Gzipped {
        paths: Arc::clone(&paths),
        features: Arc::clone(&features),
        next: 0,
        open: None,
        at: 0,
        record: Vec::new(),
    }))
}

struct Gzipped {
    paths: Arc<[PathBuf]>,
    features: Arc<[(Feature, Column)]>,
    next: usize,
    open: Option<BufReader<MultiGzDecoder<BufReader<File>>>>,
    /// Where the record begins in what is unpacked.
    at: u64,
    record: Vec<u8>,
}

impl Iterator for Gzipped {
    type Item = Result<Vec<Tensor>, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.open.is_none() {
                let path = self.paths.get(self.next)?;
                self.next += 1;
                match File::open(path) {
                    Ok(file) => self.open = Some(BufReader::new(MultiGzDecoder::new(BufReader::new(file)))),
                    Err(error) => return Some(Err(DataError::io("open", path, error))),
                }
                self.at = 0;
            }
            match self.record() {
                Ok(true) => return Some(self.tensors()),
                Ok(false) => self.open = None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl Gzipped {
    /// Reads the next record with its frame; `false` at the end of the file.
    fn record(&mut self) -> Result<bool, DataError> {
        let (path, at) = (&self.paths[self.next - 1], self.at);
        let reader = self.open.as_mut().expect("a file is open");
        let unpack = |error: std::io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => cut(path, at),
            _ => broken(path, at, format!("it cannot be unpacked ({error}); write the file again")),
        };
        let mut head = [0; HEAD];
        // Nothing at all is the end of the file; a part of a head is a file that was cut off.
        if reader.read(&mut head[..1]).map_err(unpack)? == 0 {
            return Ok(false);
        }
        reader.read_exact(&mut head[1..]).map_err(unpack)?;
        let Head { bytes } = Head::read(&head, LONGEST_PACKED).map_err(|problem| broken(path, at, problem))?;
        self.record.resize((bytes + FRAME) as usize, 0);
        self.record[..HEAD].copy_from_slice(&head);
        reader.read_exact(&mut self.record[HEAD..]).map_err(unpack)?;
        self.at += bytes + FRAME;
        Ok(true)
    }

    fn tensors(&self) -> Result<Vec<Tensor>, DataError> {
        let at = self.at - self.record.len() as u64;
        let path = &self.paths[self.next - 1];
        let record = frame::record(&self.record).map_err(|problem| broken(path, at, problem))?;
        let tensor = |(feature, column): &(Feature, Column)| {
            let mut bytes = vec![0; column.row_bytes().get()];
            example::write(record, feature, column, &mut bytes).map_err(|problem| broken(path, at, problem))?;
            Tensor::from_bytes(column, &bytes)
        };
        self.features.iter().map(tensor).collect()
    }
}
