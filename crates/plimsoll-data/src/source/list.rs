//! Images by pattern.

use super::{ImageScans, Source, files};
use crate::block::{BlockMut, Rows};
use crate::{Column, DataError, Schema};
use plimsoll_core::Bytes;
use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The images that match a pattern: `x` is the file. There are no labels; [`zip`](crate::Dataset::zip) can join known
/// labels with decoded images.
pub struct ImageFiles {
    pattern: PathBuf,
    files: Vec<PathBuf>,
    schema: Schema,
    scans: ImageScans,
}

impl ImageFiles {
    /// Lists the files, sorted by name. They are opened only when their rows are read.
    pub fn open(pattern: &Path) -> Result<ImageFiles, DataError> {
        ImageFiles::new(pattern.to_path_buf(), files(pattern)?)
    }

    /// These files, in this order.
    pub fn list(files: Vec<PathBuf>) -> Result<ImageFiles, DataError> {
        let name = match &files[..] {
            [] => return Err(DataError::Stage("there are no images in an empty list of files; name at least one".into())),
            [file] => file.display().to_string(),
            [first, .., last] => format!("{} … {} ({} files)", first.display(), last.display(), files.len()),
        };
        ImageFiles::new(name.into(), files)
    }

    fn new(pattern: PathBuf, mut files: Vec<PathBuf>) -> Result<ImageFiles, DataError> {
        files.shrink_to_fit();
        files.iter_mut().for_each(PathBuf::shrink_to_fit);
        let schema = Schema::new(vec![Column::files("x")])?;
        Ok(ImageFiles { pattern, files, schema, scans: ImageScans::default() })
    }
}

impl Source for ImageFiles {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.files.len() as u64
    }

    fn held_bytes(&self) -> Bytes {
        // Each path is a separate allocation with its overhead.
        let names: usize = self.files.iter().map(|path| path.capacity().next_multiple_of(16) + 16).sum();
        Bytes((names + self.files.capacity() * size_of::<PathBuf>()) as u64)
    }

    fn write_rows(&self, _rows: Rows<'_>, _scratch: &mut [u8], _out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        Ok(())
    }

    fn image_scans(&self) -> Option<(&dyn Source, &ImageScans)> {
        Some((self, &self.scans))
    }

    fn file(&self, row: u64, _column: usize, path: &mut PathBuf) {
        path.as_mut_os_string().clear();
        path.push(&self.files[row as usize]);
    }

    fn row_name(&self, row: u64) -> String {
        self.files[row as usize].display().to_string()
    }

    fn fingerprint(&self, rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        self.files[rows.start as usize..rows.end as usize].iter().try_for_each(|path| super::identify_named(path, hash))?;
        Ok(true)
    }

    fn describe(&self) -> String {
        format!("image_files {}", self.pattern.display())
    }
}
