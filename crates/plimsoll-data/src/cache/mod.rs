//! Decoded rows kept for later epochs: in memory, or in a file that later runs find again.

mod file;
mod fingerprint;
mod memory;

use crate::DataError;
use crate::recipe::Recipe;
use plimsoll_core::Bytes;
use std::path::PathBuf;

use file::FileStore;
use memory::MemoryStore;

pub(crate) use fingerprint::Fingerprint;

/// Where decoded rows are kept after they were made for the first time. See [`Dataset::cache`](crate::Dataset::cache).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// In memory, as many rows as the plan has room for; the others are decoded each time.
    Memory,
    /// In a file, which is served only to the data it was made from.
    File(PathBuf),
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
        match self {
            Cache::Memory => row + Bytes(1),
            Cache::File(_) => Bytes(1),
        }
    }
}

impl Store {
    /// Opens the cache of a data set for the first `rows` rows it covers.
    pub fn open(cache: &Cache, recipe: &Recipe, row_bytes: usize, rows: u64) -> Result<Store, DataError> {
        let first = recipe.span.start;
        Ok(match cache {
            Cache::Memory => Store::Memory(MemoryStore::new(first, rows, row_bytes)),
            Cache::File(path) => Store::File(FileStore::open(path, recipe.fingerprint()?, first, rows, row_bytes)?),
        })
    }

    /// Copies a row to `out` if it is there.
    pub fn read(&self, row: u64, out: &mut [u8]) -> Result<bool, DataError> {
        match self {
            Store::Memory(store) => Ok(store.read(row, out)),
            Store::File(store) => store.read(row, out),
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
