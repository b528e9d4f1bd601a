//! Where cached rows are stored: in memory, or in a file that later runs find again.
//!
//! Indexed rows are stored one by one (`memory`, `file`): images once they are of one size, others whole. Of rows that come one after the
//! other a whole epoch is stored, or nothing (`epoch`).

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

/// What the files begin with.
const MAGICS: [&[u8; 16]; 2] = [file::MAGIC, epoch::MAGIC];

/// Where rows are kept after they were made for the first time. See [`Dataset::cache`](crate::Dataset::cache).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Images in memory where that can be: after everything that is the same in each epoch, as bytes, and as many rows as the plan has
    /// memory for. Where nothing is decoded, or what is decoded differs from epoch to epoch before all are of one size, nothing is kept.
    Auto,
    /// In memory, as many rows as the plan has memory for; the others are made each time. An image that needs more than the plan keeps for
    /// decoding takes it from the cache, whose rows come back as they are recomputed. Of a [stream](crate::Dataset#streams) it is a whole
    /// epoch or nothing; the most rows it can have must be known.
    Memory,
    /// The same, but never more than this. A stream whose epoch turns out to take more is not kept.
    MemoryUpTo(Bytes),
    /// In a file, which is served only to the data it was made from.
    File(PathBuf),
    /// The same, and if the file cannot be written (the disk is full), every row is recomputed instead of stopping.
    FileIfRoom(PathBuf),
}

impl Cache {
    /// The file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Cache::Auto | Cache::Memory | Cache::MemoryUpTo(_) => None,
            Cache::File(path) | Cache::FileIfRoom(path) => Some(path),
        }
    }

    /// The most it may hold in memory, if that was said.
    pub(crate) fn most(&self) -> Option<Bytes> {
        match self {
            Cache::MemoryUpTo(bytes) => Some(*bytes),
            _ => None,
        }
    }

    fn on_full(&self) -> OnFull {
        if matches!(self, Cache::FileIfRoom(_)) { OnFull::Continue } else { OnFull::Stop }
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cache::Auto => write!(f, "cache(auto)"),
            Cache::Memory => write!(f, "cache(memory)"),
            Cache::MemoryUpTo(bytes) => write!(f, "cache(memory, up to {bytes})"),
            Cache::File(path) => write!(f, "cache({})", path.display()),
            Cache::FileIfRoom(path) => write!(f, "cache({}, if there is space)", path.display()),
        }
    }
}

impl CacheFile {
    /// What is known of a file of indexed rows, without reading its rows.
    pub(crate) fn of_rows(path: &Path, fingerprint: [u8; 16], rows: u64, row: Bytes) -> Result<CacheFile, DataError> {
        let row_bytes = row.get() + CHECK;
        let whole = file::is_there(path, fingerprint, rows, row_bytes)?;
        Ok(CacheFile { path: path.to_path_buf(), rows: Some(rows), bytes: Some(file::length(rows, row_bytes)), whole })
    }
}

/// The file a data set is cached in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFile {
    /// Where it is, or will be.
    pub path: PathBuf,
    /// Rows it has when it is whole, where that is known.
    pub rows: Option<u64>,
    /// Bytes it has then.
    pub bytes: Option<Bytes>,
    /// Whether it is there, whole, and of this very data.
    pub whole: bool,
}

/// Why a cache is not used, if so.
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

    /// Another run begins.
    pub fn clear(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The error of a cache in a file that would not notice when user code changes.
pub(crate) fn unversioned(code: &str) -> DataError {
    DataError::Stage(format!(
        "a cache in a file behind {code} would not notice when that code changes; say which version it is (.version(\"1\") before the \
         cache), or keep it in memory"
    ))
}

/// A cache at work; shared by all workers.
pub(crate) enum Store {
    Memory(MemoryStore),
    File(FileStore),
}

impl Cache {
    /// What keeping one row takes in memory.
    pub(crate) fn row_bytes(&self, row: Bytes) -> Bytes {
        // A flag that says whether it is there.
        self.kept_bytes(row) + Bytes(1)
    }

    /// The row itself of that.
    pub(crate) fn kept_bytes(&self, row: Bytes) -> Bytes {
        if self.path().is_some() { Bytes::ZERO } else { row }
    }
}

impl Store {
    /// One in memory, by itself.
    #[cfg(all(test, loom))]
    pub fn in_memory(first: u64, rows: u64, row_bytes: usize) -> Store {
        Store::Memory(MemoryStore::new(Span { first, step: 1, rows }, row_bytes))
    }

    /// Opens a cache for these rows, whose fingerprint matters to a file alone.
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

    /// Copies a row to `out` if it is there.
    pub fn read(&self, row: u64, out: &mut [u8]) -> Result<bool, DataError> {
        match self {
            Store::Memory(store) => Ok(store.read(row, out)),
            Store::File(store) => store.read(row, out),
        }
    }

    /// Keeps a row, if there is a place for it. A dear one is among the last to give way.
    pub fn write(&self, row: u64, bytes: &[u8], dear: bool) -> Result<Insertion, DataError> {
        match self {
            Store::Memory(store) => Ok(store.write(row, bytes, dear)),
            Store::File(store) => store.write(row, bytes).map(|()| Insertion::Done),
        }
    }

    /// Takes the memory that a row said it needs; not if it is there.
    pub fn begin(&self, row: u64) -> bool {
        match self {
            Store::Memory(store) => store.begin(row),
            Store::File(_) => false,
        }
    }

    /// Gives up rows until this many bytes are free, or none is left; says how many bytes they were.
    pub fn give_way(&self, bytes: u64) -> u64 {
        match self {
            Store::Memory(store) => store.give_way(bytes),
            Store::File(_) => 0,
        }
    }
}
