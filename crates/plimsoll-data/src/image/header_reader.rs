//! Reads headers a few bytes at a time.

use super::ReadAt;
use crate::DataError;
use std::path::Path;

/// Bytes per read; enough for the header of most files.
pub(super) const WINDOW: usize = 2048;

/// Reads the header of an image a few bytes at a time.
pub(crate) struct HeaderReader<'a> {
    file: &'a dyn ReadAt,
    /// Offset of the image in the file.
    base: u64,
    pub path: &'a Path,
    window: [u8; WINDOW],
    /// The range of the file in the window.
    start: u64,
    length: usize,
}

impl<'a> HeaderReader<'a> {
    pub fn new(file: &'a dyn ReadAt, path: &'a Path, base: u64) -> HeaderReader<'a> {
        HeaderReader { file, base, path, window: [0; WINDOW], start: 0, length: 0 }
    }

    /// `count` bytes at `offset`, at most a window.
    pub fn at(&mut self, offset: u64, count: usize) -> Result<&[u8], DataError> {
        let end = self.base.checked_add(offset).and_then(|at| at.checked_add(count as u64));
        if end.is_none() {
            return Err(DataError::image(self.path, "its header refers to bytes that no file has"));
        }
        if offset < self.start || offset + count as u64 > self.start + self.length as u64 {
            (self.start, self.length) = (offset, 0);
            while self.length < count {
                let read = self.file.read_at(&mut self.window[self.length..], self.base + offset + self.length as u64);
                match read.map_err(|error| DataError::io("read", self.path, error))? {
                    0 => return Err(DataError::image(self.path, "it ends in the middle of its header")),
                    more => self.length += more,
                }
            }
        }
        Ok(&self.window[(offset - self.start) as usize..][..count])
    }
}

/// Parses the header of a whole image in memory again, for its decoder.
pub(super) fn header<T>(
    file: &&[u8],
    path: &Path,
    read: impl FnOnce(&mut HeaderReader<'_>) -> Result<T, DataError>,
) -> Result<T, DataError> {
    read(&mut HeaderReader::new(file, path, 0))
}
