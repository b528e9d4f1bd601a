//! Lists of files by pattern.

use super::{ImageScans, Source};
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
        let mut files = files(pattern)?;
        files.shrink_to_fit();
        files.iter_mut().for_each(PathBuf::shrink_to_fit);
        let schema = Schema::new(vec![Column::files("x")])?;
        Ok(ImageFiles { pattern: pattern.to_path_buf(), files, schema, scans: ImageScans::default() })
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

    fn file(&self, row: u64, path: &mut PathBuf) {
        path.as_mut_os_string().clear();
        path.push(&self.files[row as usize]);
    }

    fn fingerprint(&self, rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        self.files[rows.start as usize..rows.end as usize].iter().try_for_each(|path| super::identify_named(path, hash))?;
        Ok(true)
    }

    fn describe(&self) -> String {
        format!("image_files {}", self.pattern.display())
    }
}

/// The files that match a pattern with `*`, `?`, `[abc]` and `**`, sorted by name. A pattern without matches is an
/// error.
///
/// ```
/// let none = plimsoll_data::source::files("no/such/*.tar");
/// assert_eq!(none.unwrap_err().to_string(), "no file matches no/such/*.tar; correct the path or the pattern");
/// ```
pub fn files(pattern: impl AsRef<Path>) -> Result<Vec<PathBuf>, DataError> {
    let text = pattern.as_ref().to_string_lossy();
    let refuse = |problem: String| DataError::Stage(problem);
    let found =
        glob::glob(&text).map_err(|error| refuse(format!("the pattern {text} is wrong at character {}: {}", error.pos, error.msg)))?;
    let mut files = Vec::new();
    for path in found {
        let path = path.map_err(|error| {
            let path = error.path().to_path_buf();
            DataError::io("list", &path, error.into())
        })?;
        if !path.is_dir() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(refuse(format!("no file matches {text}; correct the path or the pattern")));
    }
    files.sort_unstable();
    Ok(files)
}
