//! Where rows come from. An indexed source knows how many rows it has and gives any of them, in blocks.

mod composed;
mod csv;
mod deferred;
mod digits;
mod folder;
mod function;
mod generator;
mod list;
mod npy;
mod parquet;
mod random;
mod range;
mod sequential;
mod shapes;
mod tensors;
mod text;
mod tfrecord;
mod webdataset;

pub(crate) use composed::{concatenated, zipped};
pub use csv::{Csv, CsvSpec, CsvType, Standardize, Window};
pub(crate) use deferred::{DeferredDecode, REFERENCE_BYTES, referenced_row, without_reference};
pub use digits::{Digits, Split};
pub use folder::ImageFolder;
pub use function::{Function, RowMut};
pub use generator::Elements;
pub(crate) use generator::Generator;
pub use list::{ImageFiles, files};
pub use npy::Npy;
pub use parquet::ParquetSpec;
pub use random::{Random, RandomSpec};
pub use range::Counted;

pub(crate) use sequential::{Opened, RowIterator, SequentialSource};
pub use shapes::{Shapes, ShapesSpec};
pub use tensors::{Tensor, Tensors};
pub use text::{Text, Vocabulary};
pub use tfrecord::{Feature, RecordFeature, RecordValues, TfRecord};
pub(crate) use tfrecord::{PackedRecords, RecordPosition, RecordReader, is_packed};
pub use webdataset::WebDataset;

use crate::block::BlockMut;
use crate::{DataError, Schema};
use plimsoll_core::Bytes;
use std::fs::{self, File, Metadata};
use std::hash::Hasher;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows with random access. Reading is a function of the row's number alone, so that any order and any number of
/// threads gives the same rows; values are converted to the schema's types while they are written to their destination.
pub trait Source: Send + Sync {
    /// The columns as the consumer gets them.
    fn schema(&self) -> &Schema;

    /// How many rows there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The scratch memory that reading or gathering `rows` rows in one call needs.
    fn scratch_bytes(&self, rows: usize) -> Bytes;

    /// Writes the rows from `first_row` on into `out`; `scratch` has at least [`scratch_bytes`](Self::scratch_bytes)
    /// of `out.rows()`, and the rows exist.
    fn read(&self, first_row: u64, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError>;

    /// Writes the chosen rows into `out` in the order asked for; otherwise as [`read`](Self::read).
    fn gather(&self, rows: Gather<'_>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError>;

    /// Whether [`gather`](Self::gather) uses [`Gather::ascending`]; working it out costs more than a small row.
    fn wants_ascending(&self) -> bool {
        false
    }

    /// The memory the source itself holds from the moment it is made, such as a list of names.
    fn held_bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    /// What that memory is, for the plan.
    fn held_name(&self) -> &'static str {
        "names"
    }

    /// What all rows would take in memory as they are delivered, for a source that can be quicker so; nothing for others.
    fn resident_bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    /// The same rows from memory. Asked only after [`resident_bytes`](Self::resident_bytes) were reserved.
    fn resident(&self) -> Result<Arc<dyn Source>, DataError> {
        unreachable!("this source does not say what its rows take in memory")
    }

    /// Puts the path of a row's file into `path`. Asked only where a column holds [files](crate::Extent::Files).
    fn file(&self, _row: u64, _path: &mut PathBuf) {
        unreachable!("this source has no column of files")
    }

    /// The part of that file the row is, where it is not the whole.
    fn file_part(&self, _row: u64) -> Result<Option<Range<u64>>, DataError> {
        Ok(None)
    }

    /// The file that a column of a row comes from and the byte it begins at, for errors.
    fn locate(&self, _row: u64, _column: usize) -> Option<(PathBuf, u64)> {
        None
    }

    /// Feeds `hash` with all that the contents of these rows depend on, so that it changes when they do, and says whether that is all:
    /// behind a source that cannot say so, such as user code, a cache in a file needs a [version](crate::Dataset::version).
    fn fingerprint(&self, _rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        hash.write(self.describe().as_bytes());
        Ok(false)
    }

    /// What the labels 0, 1, 2 … stand for, if the source knows.
    fn class_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// What lies among its files and is none of its rows, in words, if the source has seen any.
    fn skipped_files(&self) -> Option<String> {
        None
    }

    /// The characters that numbers stand for, if the source is a text.
    fn vocabulary(&self) -> Option<&Vocabulary> {
        None
    }

    /// What and where this is, in a few words.
    fn describe(&self) -> String;
}

/// A kind of source and its files, in a few words however many there are.
pub(crate) fn named<'p>(kind: &str, mut files: impl ExactSizeIterator<Item = &'p Path>) -> String {
    match files.len() {
        0..=4 => format!("{kind} {}", files.map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")),
        count => match (files.next(), files.last()) {
            (Some(first), Some(last)) => format!("{kind} {} … {} ({count} files)", first.display(), last.display()),
            _ => kind.to_string(),
        },
    }
}

/// The name of a file, its size and when it changed: all that a cache knows it by.
pub(crate) fn identify(path: &Path, metadata: &Metadata, hash: &mut dyn Hasher) {
    hash.write(path.as_os_str().as_encoded_bytes());
    for number in [metadata.size() as i64, metadata.mtime(), metadata.mtime_nsec()] {
        hash.write(&number.to_le_bytes());
    }
}

/// The same of a file that is open: what is read is what is known, whatever has taken its name since.
pub(crate) fn identify_open(path: &Path, file: &File, hash: &mut dyn Hasher) -> Result<(), DataError> {
    identify(path, &file.metadata().map_err(|error| DataError::io("examine", path, error))?, hash);
    Ok(())
}

/// The same of one that is opened from scratch each time.
pub(crate) fn identify_named(path: &Path, hash: &mut dyn Hasher) -> Result<(), DataError> {
    identify(path, &fs::metadata(path).map_err(|error| DataError::io("examine", path, error))?, hash);
    Ok(())
}

/// Rows to be gathered.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    /// The row that goes to each place of the block.
    pub rows: &'a [u64],
    /// The places of the block, by ascending row: the order in which a file is best read. Worked out once for all
    /// columns; empty unless the source [wants it](Source::wants_ascending).
    pub ascending: &'a [u32],
}
