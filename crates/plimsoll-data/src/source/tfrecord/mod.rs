//! TFRecord files of `tf.train.Example`. The CRC-32C of every length and every record is verified.

mod encoded_image;
mod example;
mod frame;
mod packed;

pub(crate) use packed::{PackedRecords, RecordPosition, RecordReader};

use super::unpack::{Packing, Unpacked};
use super::{ImageScans, Source, identify_open, named};
use crate::block::{BlockMut, Rows};
use crate::{Column, DataError, Schema};
use frame::{FRAME, HEAD, RecordHeader};
use plimsoll_core::{Bytes, DType};
use std::fs::File;
use std::hash::Hasher;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A feature of an example, and how it becomes a column.
#[derive(Clone, Debug, PartialEq)]
pub struct Feature {
    key: String,
    dtype: DType,
    shape: Vec<usize>,
    kind: FeatureKind,
}

/// A feature of the first record of a file, see [`TfRecord::features`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFeature {
    /// Its name.
    pub name: String,
    /// The type of its values.
    pub values: RecordValues,
    /// The number of values, or of bytes.
    pub count: usize,
    /// Whether its bytes start like an image.
    pub is_image: bool,
}

/// The type of the values of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordValues {
    /// A byte string.
    Bytes,
    /// Floats.
    Floats,
    /// Integers.
    Ints,
}

/// How a feature becomes a column.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FeatureKind {
    /// All values must be present.
    Whole,
    /// Missing values are replaced by this number.
    Padded(f32),
    /// Of variable length, with its length.
    UpTo,
    /// An encoded image.
    Picture,
}

impl Feature {
    /// A list of floats, or of integers converted to floats.
    pub fn f32(key: impl Into<String>, shape: impl Into<Vec<usize>>) -> Feature {
        Feature { key: key.into(), dtype: DType::F32, shape: shape.into(), kind: FeatureKind::Whole }
    }

    /// A list of integers that fit in an i32.
    pub fn i32(key: impl Into<String>, shape: impl Into<Vec<usize>>) -> Feature {
        Feature { dtype: DType::I32, ..Feature::f32(key, shape) }
    }

    /// A byte string, such as raw pixels.
    pub fn u8(key: impl Into<String>, shape: impl Into<Vec<usize>>) -> Feature {
        Feature { dtype: DType::U8, ..Feature::f32(key, shape) }
    }

    /// An encoded image: the column holds files, for [`decode`](crate::ops::decode).
    pub fn image(key: impl Into<String>) -> Feature {
        Feature { key: key.into(), dtype: DType::U8, shape: Vec::new(), kind: FeatureKind::Picture }
    }

    /// Pads missing values with 0, so that batches have a fixed shape.
    pub fn padded(self) -> Feature {
        self.padded_with(0.0)
    }

    /// Pads missing values with this number.
    pub fn padded_with(self, value: f32) -> Feature {
        Feature { kind: FeatureKind::Padded(value), ..self }
    }

    /// Allows a variable number of values, up to the first dimension of the shape, see [`Column::up_to`].
    pub fn up_to(self) -> Feature {
        Feature { kind: FeatureKind::UpTo, ..self }
    }

    fn column(&self, name: &str) -> Column {
        match self.kind {
            FeatureKind::Whole | FeatureKind::Padded(_) => Column::new(name, self.dtype, self.shape.clone()),
            FeatureKind::UpTo => Column::up_to(name, self.dtype, self.shape.clone()),
            FeatureKind::Picture => Column::files(name),
        }
    }
}

/// Records of one or more uncompressed files, with random access: their offsets are indexed once, 8 bytes each.
pub struct TfRecord {
    schema: Schema,
    features: Vec<(Feature, Column)>,
    files: Vec<RecordFile>,
    /// The offset of each record in its file.
    places: Vec<u64>,
    /// Bytes of the longest record.
    longest: usize,
    scans: ImageScans,
}

struct RecordFile {
    path: PathBuf,
    file: File,
    /// One past its last row.
    end: u64,
}

/// Maximum size of a record. Compressed records are buffered whole before they can be verified, so their limit is
/// lower.
const LONGEST: Bytes = Bytes::mib(256);
const LONGEST_PACKED: Bytes = Bytes::mib(4);

impl TfRecord {
    /// Opens the files; features are given with their column names.
    pub fn open<P: AsRef<Path>>(paths: &[P], features: &[(&str, Feature)]) -> Result<TfRecord, DataError> {
        let (schema, features) = columns(features)?;
        let mut records = TfRecord { schema, features, files: Vec::new(), places: Vec::new(), longest: 0, scans: ImageScans::default() };
        for path in paths {
            records.index(path.as_ref())?;
        }
        records.places.shrink_to_fit();
        Ok(records)
    }

    /// The features of the first record of the first file that matches a pattern, by name; compressed files are
    /// decompressed.
    pub fn features(pattern: impl AsRef<Path>) -> Result<Vec<RecordFeature>, DataError> {
        let path = &super::files(pattern)?[0];
        let packing = TfRecord::packing(path)?;
        let mut unpacked = Unpacked::open(path, packing)?;
        let mut read = |bytes: &mut [u8]| unpacked.read_exact(bytes);
        let mut head = [0; HEAD];
        read(&mut head).map_err(|_| cut(path, 0))?;
        let longest = if packing == Packing::None { LONGEST } else { LONGEST_PACKED };
        let bytes = RecordHeader::read(&head).and_then(|head| head.check(longest)).map_err(|problem| broken(path, 0, problem))?.bytes;
        let mut frame = vec![0; (bytes + FRAME) as usize];
        frame[..HEAD].copy_from_slice(&head);
        read(&mut frame[HEAD..]).map_err(|_| cut(path, 0))?;
        frame::record(&frame).and_then(example::features).map_err(|problem| broken(path, 0, problem))
    }

    /// How a file is compressed, by its first bytes.
    pub(crate) fn packing(path: &Path) -> Result<Packing, DataError> {
        Packing::of(path, frame::begins)
    }

    /// Indexes the records of one file.
    fn index(&mut self, path: &Path) -> Result<(), DataError> {
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let length = file.metadata().map_err(|error| DataError::io("examine", path, error))?.len();
        let mut at = 0;
        while at < length {
            let mut head = [0; HEAD];
            file.read_exact_at(&mut head, at).map_err(|_| cut(path, at))?;
            let RecordHeader { bytes } =
                RecordHeader::read(&head).and_then(|head| head.check(LONGEST)).map_err(|problem| broken(path, at, problem))?;
            let after = at.checked_add(FRAME + bytes).filter(|after| *after <= length).ok_or_else(|| cut(path, at))?;
            self.longest = self.longest.max(bytes as usize);
            self.places.push(at);
            at = after;
        }
        self.files.push(RecordFile { path: path.to_path_buf(), file, end: self.places.len() as u64 });
        Ok(())
    }

    fn part(&self, row: u64) -> &RecordFile {
        &self.files[self.files.partition_point(|part| part.end <= row)]
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
    let with_columns = features.iter().map(|(name, feature)| (feature.clone(), feature.column(name)));
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

    fn write_rows(&self, rows: Rows<'_>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (index, row) in rows.iter(out.rows()).enumerate() {
            let part = self.part(row);
            let at = self.places[row as usize];
            // Up to the next record of the file, or the length of the longest one.
            let next = self.places.get(row as usize + 1).filter(|_| row + 1 < part.end);
            let bytes = next.map_or(self.longest + FRAME as usize, |next| (next - at) as usize);
            let read = read_up_to(&part.file, &mut scratch[..bytes], at);
            let read = read.map_err(|error| DataError::io(format!("read byte {at} of"), &part.path, error))?;
            let record = frame::record(read).map_err(|problem| broken(&part.path, at, problem))?;
            for (at_column, (feature, column)) in self.features.iter().enumerate() {
                if feature.kind == FeatureKind::Picture {
                    continue;
                }
                let row_bytes = column.row_bytes().get();
                let out = &mut out.column(at_column)[index * row_bytes..][..row_bytes];
                example::write(record, feature, column, out).map_err(|problem| broken(&part.path, at, problem))?;
            }
        }
        Ok(())
    }

    fn held_bytes(&self) -> Bytes {
        Bytes(size_of_val(&self.places[..]) as u64)
    }

    fn held_name(&self) -> &'static str {
        "index"
    }

    fn image_scans(&self) -> Option<(&dyn Source, &ImageScans)> {
        Some((self, &self.scans))
    }

    fn file(&self, row: u64, _column: usize, path: &mut PathBuf) {
        path.as_mut_os_string().clear();
        path.push(&self.part(row).path);
    }

    /// The byte range of the image. The record was verified when the row's other columns were read.
    fn file_part(&self, row: u64, column: usize) -> Result<Option<Range<u64>>, DataError> {
        let (part, at) = (self.part(row), self.places[row as usize]);
        let is_image = |feature: &&(Feature, Column)| feature.0.kind == FeatureKind::Picture;
        let image = self.features.get(column).filter(is_image).or_else(|| self.features.iter().find(is_image));
        let Some((feature, _)) = image else { return Ok(None) };
        let mut head = [0; HEAD];
        part.file.read_exact_at(&mut head, at).map_err(|_| cut(&part.path, at))?;
        let RecordHeader { bytes } =
            RecordHeader::read(&head).and_then(|head| head.check(LONGEST)).map_err(|problem| broken(&part.path, at, problem))?;
        let record = at + HEAD as u64..at + HEAD as u64 + bytes;
        let found = encoded_image::find(&part.file, record, &feature.key).map_err(|problem| broken(&part.path, at, problem))?;
        Ok(Some(found))
    }

    fn locate(&self, row: u64, _column: usize) -> Option<(PathBuf, u64)> {
        Some((self.part(row).path.clone(), self.places[row as usize]))
    }

    fn fingerprint(&self, rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        hash.write(format!("{:?}", self.features).as_bytes());
        [rows.start, rows.end].iter().for_each(|number| hash.write(&number.to_le_bytes()));
        self.files.iter().try_for_each(|part| identify_open(&part.path, &part.file, hash))?;
        Ok(true)
    }

    fn describe(&self) -> String {
        named("tfrecord", self.files.iter().map(|part| part.path.as_path()))
    }
}
