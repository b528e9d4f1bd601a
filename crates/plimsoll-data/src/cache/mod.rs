//! Decoded rows kept for later epochs: in memory, or in a file that later runs find again.

mod file;
mod fingerprint;
mod memory;

use crate::DataError;
use crate::recipe::Recipe;
use plimsoll_core::Bytes;
use std::path::{Path, PathBuf};

use file::{FileStore, OnFull};
use memory::MemoryStore;

pub(crate) use fingerprint::Fingerprint;

/// Where decoded rows are kept after they were made for the first time. See [`Dataset::cache`](crate::Dataset::cache).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// In memory, as many rows as the plan has room for; the others are decoded each time.
    Memory,
    /// In a file, which is served only to the data it was made from.
    File(PathBuf),
    /// The same, and if the file cannot be written (the disk is full), every row is decoded again instead of stopping.
    FileIfRoom(PathBuf),
}

impl Cache {
    /// The file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Cache::Memory => None,
            Cache::File(path) | Cache::FileIfRoom(path) => Some(path),
        }
    }
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
        if self.path().is_some() { Bytes(1) } else { row + Bytes(1) }
    }
}

impl Store {
    /// Opens the cache of a data set for the first `rows` rows it covers.
    pub fn open(cache: &Cache, recipe: &Recipe, row_bytes: usize, rows: u64) -> Result<Store, DataError> {
        let first = recipe.span.start;
        let Some(path) = cache.path() else { return Ok(Store::Memory(MemoryStore::new(first, rows, row_bytes))) };
        let on_full = if matches!(cache, Cache::FileIfRoom(_)) { OnFull::Continue } else { OnFull::Stop };
        Ok(Store::File(FileStore::open(path, recipe.fingerprint()?, first, rows, row_bytes, on_full)?))
    }

    /// Copies a row to `out` if it is there.
    pub fn read(&self, row: u64, out: &mut [u8]) -> Result<bool, DataError> {
        match self {
            Store::Memory(store) => Ok(store.read(row, out)),
            Store::File(store) => store.read(row, out),
        }
    }

    /// Whether every row is in a file that later runs find.
    pub fn is_whole(&self) -> bool {
        matches!(self, Store::File(store) if store.is_whole())
    }

    /// Why nothing is kept any more, if so.
    pub fn given_up(&self) -> Option<String> {
        match self {
            Store::Memory(_) => None,
            Store::File(store) => store.given_up(),
        }
    }

    /// Keeps a row, if there is a place for it.
    pub fn write(&self, row: u64, bytes: &[u8]) -> Result<(), DataError> {
        match self {
            Store::Memory(store) => {
                store.write(row, bytes);
                Ok(())
            }
            Store::File(store) => store.write(row, bytes),
        }
    }
}
