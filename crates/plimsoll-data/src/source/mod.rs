//! Sources of rows. An indexed source has a known number of rows and random access, in blocks.

mod arrow;
mod columnar;
mod composed;
mod csv;
mod deferred;
mod digits;
mod file_use;
mod folder;
mod function;
mod generator;
mod image_scan;
mod list;
mod npy;
mod parquet;
mod pattern;
mod random;
mod range;
mod selection;
mod sequential;
mod shapes;
mod tensors;
mod text;
mod tfrecord;
mod unpack;
mod webdataset;
mod window;
mod windows;

pub use crate::table::{
    BytePairs, ColumnKind, ColumnOptions, ColumnScale, Encode, Encoding, Fill, FittedColumn, Missing, Output, Standardize, TableSpec,
    TextOutput, TextSplit, TextStandardize, Tokenization, VocabularyOptions,
};
pub use arrow::{ArrowSpec, arrow_files};
pub(crate) use composed::{concatenated, merge_use, zipped};
pub use csv::{Csv, CsvSpec, CsvType, table_files};
pub(crate) use deferred::{DeferredDecode, REFERENCE_BYTES, referenced_row, without_reference};
pub use digits::{Digits, Split};
pub use file_use::FileUse;
pub(crate) use file_use::TableFacts;
pub use folder::{ImageFolder, ImageMasks, LabelFile, LabelKind, LabelledImages};
pub use function::{Function, RowMut};
pub use generator::Elements;
pub(crate) use generator::Generator;
pub use image_scan::{ImageScan, ImageScans};
pub use list::ImageFiles;
pub use npy::Npy;
pub use parquet::{ParquetSpec, parquet_files};
pub use pattern::files;
pub use random::{Random, RandomSpec};
pub use range::Counted;

pub(crate) use sequential::{ColumnVisitor, Opened, RowIterator, SequentialSource};
pub use shapes::{Shapes, ShapesSpec};
pub use tensors::{Tensor, Tensors};
pub use text::{Text, Vocabulary};
pub use tfrecord::{Feature, RecordFeature, RecordValues, TfRecord};
pub(crate) use tfrecord::{PackedRecords, RecordPosition, RecordReader};
pub(crate) use unpack::Packing;
pub use webdataset::WebDataset;
pub use window::Window;

use crate::block::{BlockMut, ColumnMut, Rows};
use crate::image::{begins_like_one, is_image_name};
use crate::{Column, DataError, Extent, Schema};
use plimsoll_core::{Bytes, DType};
use std::fs::{self, File, Metadata};
use std::hash::Hasher;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the memory for fitting columns in plans.
pub(crate) const FITTING: &str = "fitting";

/// Rows with random access. A row must depend only on its index, so that any order and any number of threads read the
/// same rows. Values are converted to the schema's dtypes while they are written to `out`.
pub trait Source: Send + Sync {
    /// The columns of its rows.
    fn schema(&self) -> &Schema;

    /// Number of rows.
    fn len(&self) -> u64;

    /// Whether there are no rows.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sources that it takes the columns of its rows from, if it is composed of others. The methods that follow
    /// have defaults for those.
    fn parts(&self) -> &[Arc<dyn Source>] {
        &[]
    }

    /// Bytes of scratch memory for writing `rows` rows in one call.
    fn scratch_bytes(&self, rows: usize) -> Bytes {
        self.parts().iter().map(|part| part.scratch_bytes(rows)).max().unwrap_or_default()
    }

    /// Writes the given rows to `out`, in the given order. The rows exist, and `scratch` has at least
    /// [`scratch_bytes`](Self::scratch_bytes) of `out.rows()`. Called only by the defaults of [`read`](Self::read) and
    /// [`gather`](Self::gather), which a source implements instead if it has a faster way for each.
    fn write_rows(&self, _rows: Rows<'_>, _scratch: &mut [u8], _out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        unreachable!("this source reads and gathers its rows")
    }

    /// Writes consecutive rows to `out`, starting at `first_row`.
    fn read(&self, first_row: u64, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.write_rows(Rows::From(first_row), scratch, out)
    }

    /// Writes rows from all over the source to `out`.
    fn gather(&self, rows: Gather<'_>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.write_rows(Rows::At(rows.rows), scratch, out)
    }

    /// Whether [`gather`](Self::gather) uses [`Gather::ascending`]; sorting costs more than copying a small row.
    fn wants_ascending(&self) -> bool {
        self.parts().iter().any(|part| part.wants_ascending())
    }

    /// Memory that the source owns from its creation on, such as a list of names.
    fn held_bytes(&self) -> Bytes {
        self.parts().iter().map(|part| part.held_bytes()).sum()
    }

    /// The name of that memory in the plan.
    fn held_name(&self) -> &'static str {
        "names"
    }

    /// Memory that fitting the columns of a table took when it was opened, beyond what is held since.
    fn fitting_bytes(&self) -> Bytes {
        self.parts().iter().map(|part| part.fitting_bytes()).sum()
    }

    /// Bytes of all rows in memory, for a source that is faster with them loaded; zero for others.
    fn resident_bytes(&self) -> Bytes {
        Bytes::ZERO
    }

    /// Loads all rows into memory. Called only after [`resident_bytes`](Self::resident_bytes) are reserved.
    fn resident(&self) -> Result<Arc<dyn Source>, DataError> {
        unreachable!("this source does not say what its rows take in memory")
    }

    /// Sets `path` to the file of a column of a row. Called only if that column holds [files](crate::Extent::Files).
    fn file(&self, row: u64, column: usize, path: &mut PathBuf) {
        part_with_files(self.parts()).expect("called only if a column holds files").file(row, column, path);
    }

    /// Whether reading its rows takes little stack: it neither decompresses nor runs user code.
    fn takes_little_stack(&self) -> bool {
        !self.parts().is_empty() && self.parts().iter().all(|part| part.takes_little_stack())
    }

    /// The byte range of the row in that file, if it is not the whole file.
    fn file_part(&self, row: u64, column: usize) -> Result<Option<Range<u64>>, DataError> {
        part_with_files(self.parts()).map_or(Ok(None), |part| part.file_part(row, column))
    }

    /// The column of the images that a column of files has the masks of; both are of the same size.
    fn masked_column(&self, column: usize) -> Option<usize> {
        part_with_files(self.parts())?.masked_column(column)
    }

    /// The source that the [files](Self::file) come from, and what is known about them as images. Sources without it
    /// are not scanned before planning.
    fn image_scans(&self) -> Option<(&dyn Source, &ImageScans)> {
        part_with_files(self.parts())?.image_scans()
    }

    /// The file and byte offset of a column of a row, for errors.
    fn locate(&self, _row: u64, _column: usize) -> Option<(PathBuf, u64)> {
        None
    }

    /// Hashes everything that the contents of these rows depend on. Returns whether the hash is complete: for a
    /// source that cannot tell, such as user code, a cache file needs a [version](crate::Dataset::version).
    fn fingerprint(&self, rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        if self.parts().is_empty() {
            hash.write(self.describe().as_bytes());
            return Ok(false);
        }
        self.parts().iter().try_fold(true, |known, part| Ok(part.fingerprint(rows.clone(), hash)? && known))
    }

    /// The class names of labels 0, 1, 2 …, if the source has them.
    fn class_names(&self) -> Vec<String> {
        self.parts().iter().map(|part| part.class_names()).find(|names| !names.is_empty()).unwrap_or_default()
    }

    /// Calls `visit` with the class of every row, in order, if rows have one integer each as their label and it can be
    /// read without the other columns; returns whether it did. The label is column `y`, or the only integer.
    fn classes(&self, _visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        Ok(false)
    }

    /// Calls `visit` with the value of a column for every row, in order: its bytes, or its text where a file has that.
    /// Columns of the file may be named that are not among those of the rows. Returns whether there is such a column.
    fn visit_column(&self, name: &str, visit: &mut dyn FnMut(&[u8])) -> Result<bool, DataError> {
        visit_rows(self, name, visit)
    }

    /// A row in words, for errors: its file and line, or its index and the source.
    fn row_name(&self, row: u64) -> String {
        format!("row {row} of {}", self.describe())
    }

    /// Which columns of its file are read, and which are not.
    fn file_use(&self) -> FileUse {
        FileUse::default()
    }

    /// The statistics that columns are standardized with.
    fn scales(&self) -> Vec<ColumnScale> {
        Vec::new()
    }

    /// The columns of a table as they were fitted: part of a model that is trained on them.
    fn fitted_columns(&self) -> Vec<FittedColumn> {
        self.parts().iter().map(|part| part.fitted_columns()).find(|columns| !columns.is_empty()).unwrap_or_default()
    }

    /// Describes files that were skipped, if there are any.
    fn skipped_files(&self) -> Option<String> {
        self.parts().iter().find_map(|part| part.skipped_files())
    }

    /// The vocabulary, if the source is a text.
    fn vocabulary(&self) -> Option<&Vocabulary> {
        None
    }

    /// A short description of the source and its location.
    fn describe(&self) -> String;
}

/// Reads the rows of a source for the values of one column.
fn visit_rows<S: Source + ?Sized>(source: &S, name: &str, visit: &mut dyn FnMut(&[u8])) -> Result<bool, DataError> {
    /// Rows that are read at a time.
    const ROWS: usize = 64;
    let schema = source.schema();
    let Some(at) = schema.index_of(name).filter(|at| schema.columns()[*at].extent == Extent::Fixed) else { return Ok(false) };
    let mut scratch = vec![0; source.scratch_bytes(ROWS).get()];
    let sizes: Vec<usize> = schema.columns().iter().map(|column| column.row_bytes().get()).collect();
    let mut memory: Vec<Vec<u8>> = sizes.iter().map(|bytes| vec![0; bytes * ROWS]).collect();
    let mut row = 0;
    while row < source.len() {
        let rows = ROWS.min((source.len() - row) as usize);
        let mut columns: Vec<ColumnMut<'_>> =
            memory.iter_mut().zip(&sizes).map(|(memory, bytes)| ColumnMut::new(&mut memory[..bytes * rows])).collect();
        source.read(row, &mut scratch, &mut BlockMut::new(schema, rows, &mut columns))?;
        memory[at][..rows * sizes[at]].chunks_exact(sizes[at]).for_each(&mut *visit);
        row += rows as u64;
    }
    Ok(true)
}

fn part_with_files(parts: &[Arc<dyn Source>]) -> Option<&dyn Source> {
    let has_files = |part: &&Arc<dyn Source>| part.schema().columns().iter().any(|column| column.extent == Extent::Files);
    parts.iter().find(has_files).map(|part| &**part)
}

/// Whether a file has the extension of an image.
pub fn is_image_file(path: &Path) -> bool {
    is_image_name(path.extension().unwrap_or_default().as_encoded_bytes())
}

/// Whether bytes start with the signature of a supported image format.
pub fn begins_like_an_image(head: &[u8]) -> bool {
    begins_like_one(head)
}

/// A short description of a kind of source and its files.
pub(crate) fn named<'p>(kind: &str, mut files: impl ExactSizeIterator<Item = &'p Path>) -> String {
    match files.len() {
        0..=4 => format!("{kind} {}", files.map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")),
        count => match (files.next(), files.last()) {
            (Some(first), Some(last)) => format!("{kind} {} … {} ({count} files)", first.display(), last.display()),
            _ => kind.to_string(),
        },
    }
}

/// Hashes the name, size and modification time of a file, which identify it to a cache.
pub(crate) fn identify(path: &Path, metadata: &Metadata, hash: &mut dyn Hasher) {
    hash.write(path.as_os_str().as_encoded_bytes());
    for number in [metadata.size() as i64, metadata.mtime(), metadata.mtime_nsec()] {
        hash.write(&number.to_le_bytes());
    }
}

/// Like `identify`, for an open file: the hash describes the file that is read, even if its name was reused.
pub(crate) fn identify_open(path: &Path, file: &File, hash: &mut dyn Hasher) -> Result<(), DataError> {
    identify(path, &file.metadata().map_err(|error| DataError::io("examine", path, error))?, hash);
    Ok(())
}

/// Like `identify`, for a file that is opened by name each time.
pub(crate) fn identify_named(path: &Path, hash: &mut dyn Hasher) -> Result<(), DataError> {
    identify(path, &fs::metadata(path).map_err(|error| DataError::io("examine", path, error))?, hash);
    Ok(())
}

/// The index of the column with the class of each row: `y`, or the only integer.
pub(crate) fn class_column(schema: &Schema) -> Option<usize> {
    let is_class =
        |column: &Column| column.extent == Extent::Fixed && column.shape.is_empty() && matches!(column.dtype, DType::I32 | DType::U8);
    let columns = schema.columns();
    let named = columns.iter().position(|column| column.name == "y" && is_class(column));
    let mut integers = columns.iter().enumerate().filter(|(_, column)| is_class(column)).map(|(index, _)| index);
    let only = integers.next().filter(|_| integers.next().is_none());
    named.or(only.filter(|_| columns.iter().all(|column| column.name != "y")))
}

/// Row indices to gather.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    /// The row for each position of the block.
    pub rows: &'a [u64],
    /// Positions of the block, sorted by row: the best order for reading a file. Computed once for all columns; empty
    /// unless the source [wants it](Source::wants_ascending).
    pub ascending: &'a [u32],
}
