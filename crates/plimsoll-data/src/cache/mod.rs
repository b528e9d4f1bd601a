//! Storage for cached rows: in memory, or in a file that later runs reuse.
//!
//! Indexed rows are stored one by one (`memory`, `file`): images once they have a fixed size, others as whole rows.
//! Of a stream, a whole epoch is stored or nothing (`epoch`).

mod epoch;
mod file;
mod fingerprint;
mod memory;
mod unfinished;

use crate::DataError;
use crate::span::Span;
use plimsoll_core::Bytes;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use file::OnFull;
use memory::MemoryStore;
use unfinished::{Unfinished, open_cache};

pub(crate) use epoch::{EpochFile, EpochMemory};
pub(crate) use file::{CHECK, FileStore, checksum};
pub(crate) use fingerprint::Fingerprint;
pub(crate) use memory::Insertion;

/// The magic numbers of cache files.
const MAGICS: [&[u8; 16]; 2] = [file::MAGIC, epoch::MAGIC];

/// Where rows are cached after they are produced for the first time. See [`Dataset::cache`](crate::Dataset::cache).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Caches images in memory where possible: after all operations that are the same in each epoch, as u8, and as
    /// many rows as the plan has memory for. Caches nothing if no images are decoded, or if they have no fixed size
    /// before the first random operation.
    Auto,
    /// In memory, as many rows as the plan has memory for; the others are recomputed each epoch. An image that needs
    /// more than the decode pool borrows from the cache; evicted rows are cached again when they are recomputed. For
    /// a [stream](crate::Dataset#streams), the whole epoch is cached or nothing; its maximum number of rows must be
    /// known.
    Memory,
    /// Like `Memory`, but at most this many bytes. A stream whose epoch turns out to be larger is not cached.
    MemoryUpTo(Bytes),
    /// In a file, which is valid only for the data it was created from.
    File(PathBuf),
    /// Like `File`, but if the file cannot be written (the disk is full), rows are recomputed each epoch instead of
    /// failing.
    FileIfSpace(PathBuf),
}

impl Cache {
    /// The path of the file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Cache::Auto | Cache::Memory | Cache::MemoryUpTo(_) => None,
            Cache::File(path) | Cache::FileIfSpace(path) => Some(path),
        }
    }

    /// The maximum bytes in memory, if set.
    pub(crate) fn most(&self) -> Option<Bytes> {
        match self {
            Cache::MemoryUpTo(bytes) => Some(*bytes),
            _ => None,
        }
    }

    fn on_full(&self) -> OnFull {
        if matches!(self, Cache::FileIfSpace(_)) { OnFull::Continue } else { OnFull::Stop }
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cache::Auto => write!(f, "cache(auto)"),
            Cache::Memory => write!(f, "cache(memory)"),
            Cache::MemoryUpTo(bytes) => write!(f, "cache(memory, up to {bytes})"),
            Cache::File(path) => write!(f, "cache({})", path.display()),
            Cache::FileIfSpace(path) => write!(f, "cache({}, if there is space)", path.display()),
        }
    }
}

impl CacheFile {
    /// Describes a cache file of indexed rows without reading its rows.
    pub(crate) fn of_rows(path: &Path, fingerprint: [u8; 16], rows: u64, row: Bytes) -> Result<CacheFile, DataError> {
        let row_bytes = row.get() + CHECK;
        let whole = file::is_there(path, fingerprint, rows, row_bytes)?;
        Ok(CacheFile { path: path.to_path_buf(), rows: Some(rows), bytes: Some(file::length(rows, row_bytes)), whole })
    }
}

/// The cache file of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFile {
    /// Its path; the file may not exist yet.
    pub path: PathBuf,
    /// Rows of the complete file, if known.
    pub rows: Option<u64>,
    /// Bytes of the complete file, if known.
    pub bytes: Option<Bytes>,
    /// Whether the file exists, is complete and belongs to this data.
    pub whole: bool,
}

/// The reason why a cache was disabled, if it was.
#[derive(Default)]
pub(crate) struct CacheBypass(Mutex<Option<String>>);

impl CacheBypass {
    /// The first reason.
    pub fn reason(&self) -> Option<String> {
        self.lock().clone()
    }

    pub fn set(&self, why: String) {
        self.lock().get_or_insert(why);
    }

    /// Resets it for a new run.
    pub fn clear(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The error for a file cache after user code without a version, whose changes it could not detect.
pub(crate) fn unversioned(code: &str) -> DataError {
    DataError::Stage(format!(
        "a cache in a file behind {code} would not notice when that code changes; say which version it is (.version(\"1\") before the \
         cache), or keep it in memory"
    ))
}

/// An open cache, shared by all workers.
pub(crate) enum Store {
    Memory(MemoryStore),
    File(FileStore),
}

impl Cache {
    /// Bytes of memory per cached row.
    pub(crate) fn row_bytes(&self, row: Bytes) -> Bytes {
        // One more byte for the flag that says whether the row is cached.
        self.kept_bytes(row) + Bytes(1)
    }

    /// Bytes of memory per cached row, without its flag.
    pub(crate) fn kept_bytes(&self, row: Bytes) -> Bytes {
        if self.path().is_some() { Bytes::ZERO } else { row }
    }
}

impl Store {
    /// A cache in memory, for tests.
    #[cfg(all(test, loom))]
    pub fn in_memory(first: u64, rows: u64, row_bytes: usize) -> Store {
        Store::Memory(MemoryStore::new(Span { first, step: 1, rows }, row_bytes))
    }

    /// Opens a cache for these rows. The fingerprint is used only for files.
    pub fn open(
        cache: &Cache,
        span: Span,
        row_bytes: usize,
        bypass: Arc<CacheBypass>,
        fingerprint: impl FnOnce() -> Result<[u8; 16], DataError>,
    ) -> Result<Store, DataError> {
        bypass.clear();
        let Some(path) = cache.path() else { return Ok(Store::Memory(MemoryStore::new(span, row_bytes))) };
        Ok(Store::File(FileStore::open(path, fingerprint()?, span, row_bytes + file::CHECK, cache.on_full(), bypass)?))
    }

    /// Copies a row to `out` if it is cached.
    pub fn read(&self, row: u64, out: &mut [u8]) -> Result<bool, DataError> {
        match self {
            Store::Memory(store) => Ok(store.read(row, out)),
            Store::File(store) => store.read(row, out),
        }
    }

    /// Inserts a row, if it is one of the cached rows. A row that is expensive to recompute is evicted last.
    pub fn write(&self, row: u64, bytes: &[u8], expensive: bool) -> Result<Insertion, DataError> {
        match self {
            Store::Memory(store) => Ok(store.write(row, bytes, expensive)),
            Store::File(store) => store.write(row, bytes).map(|()| Insertion::Done),
        }
    }

    /// Allocates the memory that `write` asked for; `false` if it is already allocated.
    pub fn begin(&self, row: u64) -> bool {
        match self {
            Store::Memory(store) => store.begin(row),
            Store::File(_) => false,
        }
    }

    /// Evicts rows until this many bytes are free, or none are left; returns the bytes freed.
    pub fn evict(&self, bytes: u64) -> u64 {
        match self {
            Store::Memory(store) => store.evict(bytes),
            Store::File(_) => 0,
        }
    }
}
