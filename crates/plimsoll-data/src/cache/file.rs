//! Rows kept in a file. It is written under another name and renamed when it is whole, so that a half cache is never read.

use crate::DataError;
use plimsoll_core::Bytes;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A file of rows, being read, or being written and read.
pub(crate) struct FileStore {
    path: PathBuf,
    /// Its name until it is whole.
    part: PathBuf,
    file: File,
    header: [u8; HEADER],
    first: u64,
    row_bytes: usize,
    present: Vec<AtomicBool>,
    missing: AtomicU64,
    whole: AtomicBool,
    on_full: OnFull,
    /// Set before the file is emptied, so that whoever reads afterwards what is no longer there finds it set.
    given_up: AtomicBool,
    problem: Mutex<Option<String>>,
}

/// What happens when a row cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFull {
    /// It is an error.
    Stop,
    /// Nothing is kept any more.
    Continue,
}

const MAGIC: &[u8; 16] = b"plimsoll-cache1\n";
const HEADER: usize = 48;

/// Where rows begin: a page, so that reading one touches no more pages than it must.
const DATA: u64 = 4096;

/// Tells the unfinished files of one process apart.
static PARTS: AtomicU64 = AtomicU64::new(0);

impl FileStore {
    /// Finds the cache for this fingerprint, or begins a new one in its place.
    pub fn open(
        path: &Path,
        fingerprint: [u8; 16],
        first: u64,
        rows: u64,
        row_bytes: usize,
        on_full: OnFull,
    ) -> Result<FileStore, DataError> {
        let header = header(fingerprint, rows, row_bytes);
        let found = find(path, &header, length(rows, row_bytes).0)?;
        let whole = found.is_some();
        let part = part(path);
        if !whole {
            sweep(path);
        }
        let file = match found {
            Some(file) => file,
            None => File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&part)
                .map_err(|error| DataError::io("make the cache", &part, error))?,
        };
        Ok(FileStore {
            path: path.to_path_buf(),
            part,
            file,
            header,
            first,
            row_bytes,
            present: (0..rows).map(|_| AtomicBool::new(whole)).collect(),
            missing: AtomicU64::new(if whole { 0 } else { rows }),
            whole: AtomicBool::new(whole),
            on_full,
            given_up: AtomicBool::new(false),
            problem: Mutex::new(None),
        })
    }

    pub fn read(&self, row: u64, out: &mut [u8]) -> Result<bool, DataError> {
        let Some(index) = self.index(row).filter(|&index| self.present[index].load(Ordering::Acquire)) else { return Ok(false) };
        if self.given_up.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let read = self.file.read_exact_at(out, DATA + (index * self.row_bytes) as u64);
        if self.given_up.load(Ordering::SeqCst) {
            return Ok(false);
        }
        read.map_err(|error| DataError::io(format!("read row {row} of the cache"), &self.path, error))?;
        Ok(true)
    }

    pub fn write(&self, row: u64, bytes: &[u8]) -> Result<(), DataError> {
        let Some(index) = self.index(row).filter(|_| !self.given_up.load(Ordering::SeqCst)) else { return Ok(()) };
        match (self.try_write(index, bytes), self.on_full) {
            (Ok(()), _) => Ok(()),
            (Err(error), OnFull::Stop) => Err(DataError::Cache {
                path: self.path.clone(),
                problem: format!(
                    "row {row} cannot be written ({error}); make room for it, leave the cache out, or go on without it (on_full)"
                ),
            }),
            (Err(error), OnFull::Continue) => {
                self.give_up(row, &error);
                Ok(())
            }
        }
    }

    fn try_write(&self, index: usize, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, DATA + (index * self.row_bytes) as u64)?;
        if !self.present[index].swap(true, Ordering::AcqRel) && self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.complete()?;
        }
        Ok(())
    }

    /// Gives the room back at once: others may need it more than a cache that cannot become whole.
    fn give_up(&self, row: u64, error: &io::Error) {
        let mut problem = self.problem.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if problem.is_none() {
            self.given_up.store(true, Ordering::SeqCst);
            *problem = Some(format!("row {row} cannot be written to {} ({error}), so rows are decoded each time", self.path.display()));
            // Whatever becomes of it, the file of this name is never read.
            let _ = self.file.set_len(0);
            let _ = fs::remove_file(&self.part);
        }
    }

    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    pub fn given_up(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Every row is there: the header, then the name. What is not on the disk before that is not a cache.
    fn complete(&self) -> io::Result<()> {
        self.file.write_all_at(&self.header, 0)?;
        self.file.sync_data()?;
        fs::rename(&self.part, &self.path)?;
        self.whole.store(true, Ordering::Release);
        Ok(())
    }

    fn index(&self, row: u64) -> Option<usize> {
        let index = row.checked_sub(self.first)? as usize;
        (index < self.present.len()).then_some(index)
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if !self.is_whole() {
            // Nobody can be told any more, and nobody reads a file of this name.
            let _ = fs::remove_file(&self.part);
        }
    }
}

fn header(fingerprint: [u8; 16], rows: u64, row_bytes: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..16].copy_from_slice(MAGIC);
    header[16..32].copy_from_slice(&fingerprint);
    header[32..40].copy_from_slice(&rows.to_le_bytes());
    header[40..].copy_from_slice(&(row_bytes as u64).to_le_bytes());
    header
}

/// Whether the whole cache of this data is there.
pub(super) fn is_there(path: &Path, fingerprint: [u8; 16], rows: u64, row_bytes: usize) -> Result<bool, DataError> {
    Ok(find(path, &header(fingerprint, rows, row_bytes), length(rows, row_bytes).0)?.is_some())
}

/// Bytes of a whole cache.
pub(super) fn length(rows: u64, row_bytes: usize) -> Bytes {
    Bytes(DATA + rows * row_bytes as u64)
}

/// Removes what processes that were killed have left of this cache.
fn sweep(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let other = entry.file_name();
        let process = other.as_encoded_bytes().strip_prefix(name.as_encoded_bytes()).and_then(|rest| rest.strip_prefix(b".part-"));
        let process = process.and_then(|rest| str::from_utf8(rest).ok()?.split_once('-')?.0.parse::<u32>().ok());
        // Where the system does not list processes, nothing is known to be dead.
        let alive = |process: u32| !Path::new("/proc/self").exists() || Path::new("/proc").join(process.to_string()).exists();
        if process.is_some_and(|process| !alive(process)) {
            // It may be gone already; nobody reads a file of this name.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The file, if it is a cache with this header; nothing if there is none or one of something else.
fn find(path: &Path, header: &[u8; HEADER], length: u64) -> Result<Option<File>, DataError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DataError::io("open the cache", path, error)),
    };
    let metadata = file.metadata().map_err(|error| DataError::io("examine the cache", path, error))?;
    let mut found = [0; HEADER];
    let read = file.read_exact_at(&mut found, 0);
    // Only what is known to be a cache is ever replaced.
    if read.is_err() || found[..16] != MAGIC[..] {
        let problem = "there is already a file of another kind; give the cache a name of its own".to_string();
        return Err(DataError::Cache { path: path.to_path_buf(), problem });
    }
    Ok((found == *header && metadata.len() == length).then_some(file))
}

fn part(path: &Path) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(format!(".part-{}-{}", std::process::id(), PARTS.fetch_add(1, Ordering::Relaxed)));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store whose rows can no longer be written, as on a full disk, after the first.
    fn full(path: &Path, on_full: OnFull) -> FileStore {
        let mut store = FileStore::open(path, [7; 16], 10, 4, 3, on_full).unwrap();
        store.write(10, b"abc").unwrap();
        store.file = File::open(&store.part).unwrap();
        store
    }

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.plc");
        // No process has this number: the largest is 2²².
        for name in ["rows.plc.part-4194399-0", "rows.plc.part-1-0", "rows.plc.part-x", "other.plc.part-4194399-0"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        drop(FileStore::open(&path, [7; 16], 0, 1, 1, OnFull::Stop).unwrap());
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["other.plc.part-4194399-0", "rows.plc.part-1-0", "rows.plc.part-x"]);
    }

    #[test]
    fn without_room_it_stops_or_goes_on_as_asked_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.plc");
        let mut row = [0; 3];

        let store = full(&path, OnFull::Stop);
        let error = store.write(11, b"def").unwrap_err().to_string();
        assert!(error.contains("rows.plc cannot be used as a cache: row 11 cannot be written ("), "{error}");
        assert!(store.read(10, &mut row).unwrap() && &row == b"abc", "what was written is still there");
        assert!(!store.read(11, &mut row).unwrap());
        drop(store);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

        let store = full(&path, OnFull::Continue);
        store.write(11, b"def").unwrap();
        assert!(store.given_up().unwrap().contains("row 11 cannot be written"), "{:?}", store.given_up());
        for row_number in 10..14 {
            store.write(row_number, b"xyz").unwrap();
            assert!(!store.read(row_number, &mut row).unwrap(), "nothing is served any more");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "its room is given back at once");
        assert!(!store.is_whole());
    }
}
