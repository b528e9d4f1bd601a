//! Rows cached in a file. It is written under a temporary name and renamed when complete, so an incomplete cache is
//! never read.

use super::{CacheBypass, Unfinished, open_cache};
use crate::DataError;
use crate::span::Span;
use plimsoll_core::Bytes;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A file of rows, open for reading, or for writing and reading.
pub(crate) struct FileStore {
    path: PathBuf,
    /// The temporary file until it is complete.
    unfinished: Option<Unfinished>,
    file: File,
    header: [u8; HEADER],
    span: Span,
    row_bytes: usize,
    present: Vec<AtomicBool>,
    missing: AtomicU64,
    whole: AtomicBool,
    on_full: OnFull,
    /// Set before the file is truncated, so that a reader of a truncated file sees it set.
    given_up: AtomicBool,
    bypass: Arc<CacheBypass>,
}

/// What happens if a row cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFull {
    /// Return an error.
    Stop,
    /// Disable the cache.
    Continue,
}

impl OnFull {
    /// The error for a row that cannot be written, or the reason why the cache is disabled.
    pub fn unwritten(self, row: u64, path: &Path, error: &io::Error) -> Result<String, DataError> {
        if self == OnFull::Continue {
            return Ok(format!("row {row} cannot be written to {} ({error}), so rows are made each time", path.display()));
        }
        let remedy = "make space for it, leave the cache out, or continue without it (on_full)";
        Err(DataError::Cache { path: path.to_path_buf(), problem: format!("row {row} cannot be written ({error}); {remedy}") })
    }
}

pub(super) const MAGIC: &[u8; 16] = b"plimsoll-cache1\n";
pub(super) const HEADER: usize = 48;

/// Bytes of a checksum.
pub(crate) const CHECK: usize = size_of::<u32>();

/// The checksum that follows the bytes of a row.
pub(crate) fn checksum(row: &[u8]) -> [u8; CHECK] {
    crc32c::crc32c(row).to_le_bytes()
}

/// File offset of the first row: one page, so that a row touches as few pages as possible.
pub(super) const DATA: u64 = 4096;

impl FileStore {
    /// Opens the cache with this fingerprint, or creates a new file in its place.
    pub fn open(
        path: &Path,
        fingerprint: [u8; 16],
        span: Span,
        row_bytes: usize,
        on_full: OnFull,
        bypass: Arc<CacheBypass>,
    ) -> Result<FileStore, DataError> {
        let rows = span.rows;
        let header = header(fingerprint, rows, row_bytes);
        let found = find(path, &header, length(rows, row_bytes).0)?;
        let whole = found.is_some();
        let (file, unfinished) = found.map_or_else(|| Unfinished::create(path), |file| Ok((file, None)))?;
        let store = FileStore {
            path: path.to_path_buf(),
            unfinished,
            file,
            header,
            span,
            row_bytes,
            present: (0..rows).map(|_| AtomicBool::new(whole)).collect(),
            missing: AtomicU64::new(if whole { 0 } else { rows }),
            whole: AtomicBool::new(whole),
            on_full,
            given_up: AtomicBool::new(false),
            bypass,
        };
        if rows == 0 && !whole {
            store.file.set_len(DATA).and_then(|()| store.complete()).map_err(|error| DataError::io("make the cache", path, error))?;
        }
        Ok(store)
    }

    /// Copies a row to `out` if it is cached; verifies its checksum.
    pub fn read(&self, row: u64, out: &mut [u8]) -> Result<bool, DataError> {
        let (Some(place), mut check) = (self.place(row), [0; CHECK]) else { return Ok(false) };
        let found = self.read_parts(place, [&mut *out, &mut check])?;
        if found && check != checksum(out) {
            return Err(self.damaged(place));
        }
        Ok(found)
    }

    /// The position of a row in the file, if it is cached.
    pub fn place(&self, row: u64) -> Option<u64> {
        self.span.position(row).filter(|&place| self.present[place as usize].load(Ordering::Acquire))
    }

    /// The position of a row in the file, whether or not it is cached.
    pub fn place_for(&self, row: u64) -> Option<u64> {
        self.span.position(row)
    }

    /// Bytes of a row in the file, including its checksum.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The error for a row with a wrong checksum.
    pub fn damaged(&self, place: u64) -> DataError {
        let problem = format!("its row {place} does not match its checksum; the file is damaged: remove it, and it is recomputed");
        DataError::Cache { path: self.path.clone(), problem }
    }

    /// Reads whole rows with their checksums, starting at position `place`; the first and the last must be cached.
    /// `false` if the cache was disabled.
    pub fn read_from(&self, place: u64, out: &mut [u8]) -> Result<bool, DataError> {
        self.read_parts(place, [out])
    }

    fn read_parts<const PARTS: usize>(&self, place: u64, parts: [&mut [u8]; PARTS]) -> Result<bool, DataError> {
        if self.given_up.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let mut from = self.offset(place);
        let read = parts.into_iter().try_for_each(|part| {
            self.file.read_exact_at(part, from)?;
            from += part.len() as u64;
            Ok(())
        });
        if self.given_up.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let row = self.row(place);
        read.map_err(|error: io::Error| DataError::io(format!("read row {row} of the cache"), &self.path, error))?;
        Ok(true)
    }

    pub fn write(&self, row: u64, bytes: &[u8]) -> Result<(), DataError> {
        self.place_for(row).map_or(Ok(()), |place| self.write_parts(place, &[bytes, &checksum(bytes)]))
    }

    /// Writes whole rows, each followed by its checksum, starting at position `place`.
    pub fn write_from(&self, place: u64, bytes: &[u8]) -> Result<(), DataError> {
        self.write_parts(place, &[bytes])
    }

    fn write_parts(&self, place: u64, parts: &[&[u8]]) -> Result<(), DataError> {
        if self.given_up.load(Ordering::SeqCst) {
            return Ok(());
        }
        let Err(error) = self.try_write(place, parts) else { return Ok(()) };
        let reason = self.on_full.unwritten(self.row(place), &self.path, &error)?;
        // Disables the cache and frees its disk space at once.
        if !self.given_up.swap(true, Ordering::SeqCst) {
            self.bypass.set(reason);
            // Errors do not matter: a file of this name is never read.
            let _ = self.file.set_len(0);
            self.unfinished.iter().for_each(Unfinished::remove);
        }
        Ok(())
    }

    fn try_write(&self, place: u64, parts: &[&[u8]]) -> io::Result<()> {
        let mut bytes = 0;
        for part in parts {
            self.file.write_all_at(part, self.offset(place) + bytes as u64)?;
            bytes += part.len();
        }
        let rows = bytes / self.row_bytes;
        let new = self.present[place as usize..][..rows].iter().filter(|present| !present.swap(true, Ordering::AcqRel)).count() as u64;
        if new > 0 && self.missing.fetch_sub(new, Ordering::AcqRel) == new {
            self.complete()?;
        }
        Ok(())
    }

    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    /// Called when every row is written: writes the header and syncs, then renames the file.
    fn complete(&self) -> io::Result<()> {
        self.file.write_all_at(&self.header, 0)?;
        self.unfinished.as_ref().map_or(Ok(()), |unfinished| unfinished.finish(&self.file, &self.path))?;
        self.whole.store(true, Ordering::Release);
        Ok(())
    }

    fn row(&self, place: u64) -> u64 {
        self.span.row(place)
    }

    fn offset(&self, place: u64) -> u64 {
        DATA + place * self.row_bytes as u64
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if !self.is_whole() {
            self.unfinished.iter().for_each(Unfinished::remove);
        }
    }
}

fn header(fingerprint: [u8; 16], rows: u64, row_bytes: usize) -> [u8; HEADER] {
    header_of(MAGIC, fingerprint, [rows, row_bytes as u64])
}

/// The fields that every header starts with.
pub(super) fn header_of(magic: &[u8; 16], fingerprint: [u8; 16], numbers: [u64; 2]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..16].copy_from_slice(magic);
    header[16..32].copy_from_slice(&fingerprint);
    header[32..].copy_from_slice(numbers.map(u64::to_le_bytes).as_flattened());
    header
}

/// Whether a complete cache of this data exists.
pub(super) fn is_there(path: &Path, fingerprint: [u8; 16], rows: u64, row_bytes: usize) -> Result<bool, DataError> {
    Ok(find(path, &header(fingerprint, rows, row_bytes), length(rows, row_bytes).0)?.is_some())
}

/// Bytes of a complete cache.
pub(super) fn length(rows: u64, row_bytes: usize) -> Bytes {
    Bytes(rows.saturating_mul(row_bytes as u64).saturating_add(DATA))
}

/// The file if it is a cache with this header; `None` if it is missing or a cache of other data.
fn find(path: &Path, header: &[u8; HEADER], length: u64) -> Result<Option<File>, DataError> {
    let Some((file, found, bytes)) = open_cache::<HEADER>(path)? else { return Ok(None) };
    Ok((found == *header && bytes == length).then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Rows with their checksums.
    fn records(rows: &[&[u8; 3]]) -> Vec<u8> {
        rows.iter().flat_map(|row| [&row[..], &checksum(*row)].concat()).collect()
    }

    /// Four rows of three bytes, starting at row 10.
    fn open(path: &Path, on_full: OnFull) -> (FileStore, Arc<CacheBypass>) {
        let bypass = Arc::new(CacheBypass::default());
        let span = Span { part: None, first: 10, step: 1, rows: 4 };
        (FileStore::open(path, [7; 16], span, 3 + CHECK, on_full, Arc::clone(&bypass)).unwrap(), bypass)
    }

    /// The same store, but writes fail after the first row, as on a full disk.
    fn full(path: &Path, on_full: OnFull) -> (FileStore, Arc<CacheBypass>) {
        let (mut store, bypass) = open(path, on_full);
        store.write(10, b"abc").unwrap();
        store.file = File::open(store.unfinished.as_ref().unwrap().path()).unwrap();
        (store, bypass)
    }

    #[test]
    fn a_full_disk_stops_or_continues_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.plc");
        let mut row = [0; 3];

        let (store, _) = full(&path, OnFull::Stop);
        let error = store.write(11, b"def").unwrap_err().to_string();
        assert!(error.contains("rows.plc cannot be used as a cache: row 11 cannot be written ("), "{error}");
        assert!(store.read(10, &mut row).unwrap() && &row == b"abc", "what was written is still there");
        assert!(!store.read(11, &mut row).unwrap());
        drop(store);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

        let (store, bypass) = full(&path, OnFull::Continue);
        store.write(11, b"def").unwrap();
        assert!(bypass.reason().unwrap().contains("row 11 cannot be written"), "{:?}", bypass.reason());
        for row_number in 10..14 {
            store.write(row_number, b"xyz").unwrap();
            assert!(!store.read(row_number, &mut row).unwrap(), "nothing is served any more");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "its space is given back at once");
        assert!(!store.is_whole());
    }

    #[test]
    fn rows_written_together_are_found_one_by_one_and_make_it_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.plc");
        let (store, _) = open(&path, OnFull::Stop);
        store.write_from(1, &records(&[b"bbb", b"ccc"])).unwrap();
        store.write(13, b"ddd").unwrap();
        let mut row = [0; 3];
        assert!(!store.read(10, &mut row).unwrap() && !store.is_whole() && !path.exists());
        store.write_from(0, &records(&[b"aaa", b"bbb"])).unwrap();
        assert!(store.is_whole() && path.exists());
        for (number, bytes) in [(10, b"aaa"), (11, b"bbb"), (12, b"ccc"), (13, b"ddd")] {
            assert!(store.read(number, &mut row).unwrap() && row == *bytes);
        }
        assert!(!store.read(14, &mut row).unwrap() && !store.read(9, &mut row).unwrap());
        drop(store);
        assert!(open(&path, OnFull::Stop).0.is_whole(), "and found again");
    }

    #[test]
    fn no_changed_bit_of_a_row_is_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.plc");
        let (store, _) = open(&path, OnFull::Stop);
        (10..14).for_each(|row| store.write(row, b"abc").unwrap());
        drop(store);
        let whole = fs::read(&path).unwrap();
        let second = DATA as usize + 3 + CHECK;
        for bit in 0..8 * (3 + CHECK) {
            let mut damaged = whole.clone();
            damaged[second + bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, damaged).unwrap();
            let (store, _) = open(&path, OnFull::Stop);
            let mut row = [0; 3];
            assert!(store.read(10, &mut row).unwrap() && &row == b"abc", "the others are");
            let told = store.read(11, &mut row).unwrap_err().to_string();
            assert!(
                told.ends_with("its row 1 does not match its checksum; the file is damaged: remove it, and it is recomputed"),
                "{told}"
            );
        }
    }
}
