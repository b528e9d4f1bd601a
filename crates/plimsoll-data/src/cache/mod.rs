//! Rows kept for later epochs: in memory, or in a file that later runs find again.
//!
//! Rows with numbers are kept one by one: pictures once they are of one size (the decoder has them), others whole (`rows`). Of rows that
//! come one after the other a whole epoch is kept, or nothing (`epoch`, and the stage in `stream/cache.rs`).

mod epoch;
mod file;
mod fingerprint;
mod identity;
mod memory;
mod rows;
mod unfinished;

use crate::DataError;
use crate::dataset::{Dataset, Stage};
use crate::recipe::Recipe;
use crate::stream::Spec;
use plimsoll_core::Bytes;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use file::{FileStore, OnFull};
use memory::MemoryStore;
use unfinished::{Unfinished, open_cache};

pub(crate) use epoch::{EpochFile, EpochMemory};
pub(crate) use fingerprint::Fingerprint;
pub(crate) use identity::unknown;
pub(crate) use memory::Place;
pub(crate) use rows::{Keeper, KeptRows};

/// What the files begin with.
const MAGICS: [&[u8; 16]; 2] = [file::MAGIC, epoch::MAGIC];

/// Where rows are kept after they were made for the first time. See [`Dataset::cache`](crate::Dataset::cache).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Pictures in memory where that can be: after everything that is the same in each epoch, as bytes, and as many rows as the plan has
    /// room for. Where nothing is decoded, or what is decoded differs from epoch to epoch before all are of one size, nothing is kept.
    Auto,
    /// In memory, as many rows as the plan has room for; the others are made each time. A picture that needs more than the plan keeps for
    /// decoding takes it from the cache, whose rows come back as they are made again. Of a [stream](crate::Dataset#streams) it is a whole
    /// epoch or nothing; the most rows it can have must be known.
    Memory,
    /// The same, but never more than this. A stream whose epoch turns out to take more is not kept.
    MemoryUpTo(Bytes),
    /// In a file, which is served only to the data it was made from.
    File(PathBuf),
    /// The same, and if the file cannot be written (the disk is full), every row is made again instead of stopping.
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
            Cache::FileIfRoom(path) => write!(f, "cache({}, if there is room)", path.display()),
        }
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

impl Dataset {
    /// Keeps rows for the epochs that follow, as they are where this stands: what is done before is done once, what follows each time.
    ///
    /// - Rows with numbers are kept by their number, so that a shuffle before or after makes no difference: the order is another each
    ///   epoch. In memory there may be a part of them, and the others are made each time; a file is whole once every row was made. Take a
    ///   [`shard`](Dataset::shard) before a shuffle, or a part never sees all rows that its file is to have.
    /// - Pictures are kept after they were decoded and brought to size, wherever it is said. They are kept as u8, and so that every epoch is
    ///   the same, `resize` then rounds to whole numbers also where a row is not in the cache.
    /// - Of a [stream](Dataset#streams) a whole epoch is kept or nothing. Every epoch behind it is the first of what is before, kept or not,
    ///   so put shuffles after it.
    ///
    /// What draws lots each epoch cannot stand before. No result depends on how much was kept. A file is served only to the same files,
    /// columns, stages and version of this library, and is found again by later runs; behind user code it needs a
    /// [`version`](Dataset::version). With [`ignore_errors`](Dataset::ignore_errors), rows that are left out are not kept, and a file of
    /// rows with numbers does not become whole.
    ///
    /// ```
    /// use plimsoll_core::Bytes;
    /// use plimsoll_data::{Cache, Dataset, Shuffle, Split, ops::scale};
    /// let data = Dataset::digits(Split::Train).map("x", [scale(0.0625)]).cache(Cache::Memory).shuffle(Shuffle::seed(7)).batch(32);
    /// assert_eq!(data.plan(None)?.cached_rows(), 1438);
    /// let sevens = Dataset::digits(Split::Train).filter(|row| row.int("y") == 7).cache(Cache::MemoryUpTo(Bytes::kib(16))).batch(32);
    /// assert!(sevens.plan(None)?.to_string().contains("cache (≤ 16.0 KiB)"));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn cache(self, cache: Cache) -> Dataset {
        match (&self.stream, cache) {
            // A stream takes its time only where someone asked for it to be kept.
            (Some(_), Cache::Auto) => self,
            (Some(_), cache) => Dataset::flow(Spec::Cache { input: self, cache, note: Arc::default() }),
            (None, cache) => self.stage(Stage::Cache(cache, Arc::default())),
        }
    }

    /// Says which version of user code (closures, generators, sources of one's own) makes the rows up to here. It tells apart what a cache
    /// in a file cannot see: change the text whenever the code changes, and what was kept of it is made anew.
    ///
    /// ```
    /// use plimsoll_data::{Cache, Dataset, ops::apply};
    /// let folder = std::env::temp_dir().join(format!("plimsoll-doc-{}", std::process::id()));
    /// std::fs::create_dir_all(&folder).unwrap();
    /// let square = || apply("square", [], |_, x, out| Ok(out[0] = x[0] * x[0]));
    /// let squares = || Dataset::range(0, 8, 1).unwrap().map("x", [square()]);
    /// let file = Cache::File(folder.join("squares.plc"));
    /// assert!(squares().cache(file.clone()).cache_file().unwrap_err().to_string().contains("say which version"));
    /// assert!(squares().version("2").cache(file).cache_file()?.is_some());
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn version(self, version: impl Into<String>) -> Dataset {
        self.stage(Stage::Version(version.into()))
    }

    /// The file this data set, or what it is made of, is cached in, if there is one; the last, if there are several.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Split};
    /// assert_eq!(Dataset::digits(Split::Test).cache_file()?, None);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn cache_file(&self) -> Result<Option<CacheFile>, DataError> {
        if let Some(spec) = &self.stream {
            if let Spec::Cache { input, cache, .. } = &**spec
                && let Some(path) = cache.path()
            {
                return EpochFile::look(path, input).map(Some);
            }
            for input in spec.inputs() {
                if let Some(found) = input.cache_file()? {
                    return Ok(Some(found));
                }
            }
            return Ok(None);
        }
        let recipe = self.recipe()?;
        let Some((path, row)) = recipe.kept_row().and_then(|(cache, row)| Some((cache.path()?, row))) else { return Ok(None) };
        let (rows, row_bytes) = (recipe.span.rows, row.get() + file::CHECK);
        let whole = file::is_there(path, recipe.fingerprint()?, rows, row_bytes)?;
        Ok(Some(CacheFile { path: path.to_path_buf(), rows: Some(rows), bytes: Some(file::length(rows, row_bytes)), whole }))
    }
}

/// Why a cache is not used, for whoever asks.
#[derive(Default)]
pub(crate) struct Note(Mutex<Option<String>>);

impl Note {
    /// What was said first.
    pub fn said(&self) -> Option<String> {
        self.lock().clone()
    }

    pub fn say(&self, why: String) {
        self.lock().get_or_insert(why);
    }

    /// Another run begins.
    pub fn clear(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
        Store::Memory(MemoryStore::new(crate::order::Span { first, step: 1, rows }, row_bytes))
    }

    /// Opens the cache of a data set for the first `rows` rows it covers.
    pub fn open(cache: &Cache, recipe: &Recipe, row_bytes: usize, rows: u64) -> Result<Store, DataError> {
        let (span, note) = (recipe.span.take(rows), recipe.note.clone().unwrap_or_default());
        note.clear();
        let Some(path) = cache.path() else { return Ok(Store::Memory(MemoryStore::new(span, row_bytes))) };
        Ok(Store::File(FileStore::open(path, recipe.fingerprint()?, span, row_bytes + file::CHECK, cache.on_full(), note)?))
    }

    /// Copies a row to `out` if it is there.
    pub fn read(&self, row: u64, out: &mut [u8]) -> Result<bool, DataError> {
        match self {
            Store::Memory(store) => Ok(store.read(row, out)),
            Store::File(store) => store.read(row, out),
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
