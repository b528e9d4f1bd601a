//! Rows kept in a file. It is written under another name and renamed when it is whole, so that a half cache is never read.

use crate::DataError;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
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
}

const MAGIC: &[u8; 16] = b"plimsoll-cache1\n";
const HEADER: usize = 48;

/// Where rows begin: a page, so that reading one touches no more pages than it must.
const DATA: u64 = 4096;

/// Tells the unfinished files of one process apart.
static PARTS: AtomicU64 = AtomicU64::new(0);

impl FileStore {
    /// Finds the cache for this fingerprint, or begins a new one in its place.
    pub fn open(path: &Path, fingerprint: [u8; 16], first: u64, rows: u64, row_bytes: usize) -> Result<FileStore, DataError> {
        let mut header = [0; HEADER];
        header[..16].copy_from_slice(MAGIC);
        header[16..32].copy_from_slice(&fingerprint);
        header[32..40].copy_from_slice(&rows.to_le_bytes());
        header[40..].copy_from_slice(&(row_bytes as u64).to_le_bytes());
        let found = find(path, &header, DATA + rows * row_bytes as u64)?;
        let whole = found.is_some();
        let part = part(path);
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
        })
    }

    pub fn read(&self, row: u64, out: &mut [u8]) -> Result<bool, DataError> {
        let Some(index) = self.index(row).filter(|&index| self.present[index].load(Ordering::Acquire)) else { return Ok(false) };
        let read = self.file.read_exact_at(out, DATA + (index * self.row_bytes) as u64);
        read.map_err(|error| DataError::io(format!("read row {row} of the cache"), &self.path, error))?;
        Ok(true)
    }

    pub fn write(&self, row: u64, bytes: &[u8]) -> Result<(), DataError> {
        let Some(index) = self.index(row) else { return Ok(()) };
        let failed = |error: io::Error| DataError::Cache {
            path: self.path.clone(),
            problem: format!("row {row} cannot be written ({error}); make room for it or leave the cache out"),
        };
        self.file.write_all_at(bytes, DATA + (index * self.row_bytes) as u64).map_err(failed)?;
        if !self.present[index].swap(true, Ordering::AcqRel) && self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.complete().map_err(failed)?;
        }
        Ok(())
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
        if !self.whole.load(Ordering::Acquire) {
            // Nobody can be told any more, and nobody reads a file of this name.
            let _ = fs::remove_file(&self.part);
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
