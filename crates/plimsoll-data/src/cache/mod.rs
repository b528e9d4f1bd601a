//! Decoded rows kept for later epochs: in memory, or in a file that later runs find again.

mod file;
mod fingerprint;
mod memory;

use crate::DataError;
use crate::dataset::Dataset;
use crate::recipe::Recipe;
use plimsoll_core::Bytes;
use std::path::{Path, PathBuf};

use file::{FileStore, OnFull};
use memory::MemoryStore;

pub(crate) use fingerprint::Fingerprint;
pub(crate) use memory::Place;

/// Where decoded rows are kept after they were made for the first time. See [`Dataset::cache`](crate::Dataset::cache).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// In memory where that can be: after everything that is the same in each epoch, as bytes, and as many rows as the plan has room for.
    /// Where nothing is decoded, or what is decoded differs from epoch to epoch before all are of one size, nothing is kept.
    Auto,
    /// In memory, as many rows as the plan has room for; the others are decoded each time. A picture that needs more than the plan keeps for
    /// decoding takes it from the cache, whose rows come back as they are made again.
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
            Cache::Auto | Cache::Memory => None,
            Cache::File(path) | Cache::FileIfRoom(path) => Some(path),
        }
    }
}

/// The file a data set is cached in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFile {
    /// Where it is, or will be.
    pub path: PathBuf,
    /// Rows it has when it is whole.
    pub rows: u64,
    /// Bytes it has then.
    pub bytes: Bytes,
    /// Whether it is there, whole, and of this very data.
    pub whole: bool,
}

impl Dataset {
    /// The file this data set, or what it is made of, is cached in, if there is one.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Split};
    /// assert_eq!(Dataset::digits(Split::Test).cache_file()?, None);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn cache_file(&self) -> Result<Option<CacheFile>, DataError> {
        if let Some(spec) = &self.stream {
            for input in spec.inputs() {
                if let Some(found) = input.cache_file()? {
                    return Ok(Some(found));
                }
            }
            return Ok(None);
        }
        let recipe = self.recipe()?;
        let (Some(path), Some(item)) = (recipe.cache.as_ref().and_then(Cache::path), recipe.item()) else { return Ok(None) };
        let (rows, row_bytes) = (recipe.span.end - recipe.span.start, item.output.row_bytes().get());
        let whole = file::is_there(path, recipe.fingerprint()?, rows, row_bytes)?;
        Ok(Some(CacheFile { path: path.to_path_buf(), rows, bytes: file::length(rows, row_bytes), whole }))
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
        Store::Memory(MemoryStore::new(first, rows, row_bytes))
    }

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

    /// Why nothing is kept any more, if so.
    pub fn given_up(&self) -> Option<String> {
        match self {
            Store::Memory(_) => None,
            Store::File(store) => store.given_up(),
        }
    }

    /// Keeps a row, if there is a place for it. A dear one is among the last to give way.
    pub fn write(&self, row: u64, bytes: &[u8], dear: bool) -> Result<Place, DataError> {
        match self {
            Store::Memory(store) => Ok(store.write(row, bytes, dear)),
            Store::File(store) => store.write(row, bytes).map(|()| Place::Done),
        }
    }

    /// Takes the memory that a row said it needs; not if it is there.
    pub fn begin(&self, row: u64) -> bool {
        match self {
            Store::Memory(store) => store.begin(row),
            Store::File(_) => false,
        }
    }

    /// Gives up rows until so many bytes are free, or none is left; says how many bytes they were.
    pub fn give_way(&self, bytes: u64) -> u64 {
        match self {
            Store::Memory(store) => store.give_way(bytes),
            Store::File(_) => 0,
        }
    }
}
