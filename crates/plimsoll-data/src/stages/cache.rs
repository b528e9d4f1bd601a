//! `cache`: caches rows for later epochs. Indexed rows are cached one by one, while they are read; of a stream, the
//! whole first epoch is cached.
//!
//! Every epoch of a cached stream is the first epoch of its input, whether it is read from the cache or recomputed.
//! So the output depends neither on the available memory nor on where a run was resumed.

use super::filter::of_one_size;
use super::kind::{Arg, Key, KeyKind, StageKind, Validation};
use crate::cache::{Cache, CacheBypass, CacheFile, EpochFile, EpochMemory};
use crate::dataset::{BlockIterator, Dataset, Holding, Input, Opening, Recipe, Stage, StreamBudget, fingerprint};
use crate::fault::Fault;
use crate::{DataError, Schema};
use plimsoll_core::Bytes;
use std::sync::Arc;

struct CacheStage {
    cache: Cache,
    bypass: Arc<CacheBypass>,
    /// Whether indexed rows are cached, fused with reading them; otherwise an epoch of a stream.
    by_index: bool,
}

pub(super) const KIND: StageKind = StageKind {
    name: "cache",
    summary: "caches rows for later epochs; `in` is as the key `cache`",
    keys: &[Key::required(
        "in",
        KeyKind::Cache,
        "\"memory\", \"auto\" or a table such as { file = \"cache.plc\" } or { memory = \"256MiB\" }",
    )],
    has_short_form: true,
    // The file has the rows of the training data.
    validation: Validation::Changed("yes, in memory where it is a file", |args| {
        if args.cache("in") != Some(Cache::Auto) {
            args.insert("in", Arg::Cache(Cache::Memory));
        }
    }),
    build: |data, args| Ok(data.cache(args.cache("in").unwrap_or(Cache::Auto))),
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Caches rows for later epochs: the stages before it run once, those after it in every epoch.
    ///
    /// - Indexed rows are cached by index, so a shuffle may come before or after, and the order still differs in each
    ///   epoch. In memory, some of the rows may be cached, and the others are recomputed; a file is complete once
    ///   every row was computed. Put [`shard`](Dataset::shard) before a shuffle, or a shard never sees all rows of
    ///   its file.
    /// - Images are cached after they are decoded and resized, wherever the stage is. They are cached as u8; so that
    ///   every epoch is the same, `resize` then rounds to integers even for rows that are not cached.
    /// - For a [stream](Dataset#streams), the whole epoch is cached or nothing. Every epoch is the first epoch of the
    ///   input, cached or not, so put shuffles after the cache.
    ///
    /// Random operations cannot come before it. Results do not depend on how much is cached. A file is reused by
    /// later runs with the same files, columns, stages and version of this library; after user code it needs a
    /// [`version`](Dataset::version). With [`ignore_errors`](Dataset::ignore_errors), dropped rows are not cached,
    /// and a file of indexed rows does not become complete.
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
        // An epoch of a stream is cached only on request.
        if self.node.is_some() && cache == Cache::Auto {
            return self;
        }
        let by_index = self.node.is_none();
        self.then(CacheStage { cache, bypass: Arc::default(), by_index })
    }

    /// The cache file of this data set or of one of its inputs, if there is one; the last, if there are several.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Split};
    /// assert_eq!(Dataset::digits(Split::Test).cache_file()?, None);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn cache_file(&self) -> Result<Option<CacheFile>, DataError> {
        if let Some(node) = &self.node {
            if let Some(CacheStage { cache, .. }) = self.last_node()
                && let Some(path) = cache.path()
            {
                let data = &node.inputs[0];
                let row = data.output_schema()?.row_bytes().get();
                return EpochFile::inspect(path, fingerprint(data)?, row, data.size()).map(Some);
            }
            let mut files = node.inputs.iter().map(Dataset::cache_file);
            return files.find(|file| !matches!(file, Ok(None))).unwrap_or(Ok(None));
        }
        let recipe = self.recipe()?;
        let Some((path, row)) = recipe.cached_row().and_then(|(cache, row)| Some((cache.path()?, row))) else { return Ok(None) };
        CacheFile::of_rows(path, recipe.fingerprint()?, recipe.span.rows, row).map(Some)
    }
}

impl Stage for CacheStage {
    /// Where rows of a stream are cached affects neither the rows nor a saved position.
    fn describe(&self) -> String {
        if self.by_index { self.cache.to_string() } else { "cache".into() }
    }

    fn is_inline(&self) -> bool {
        self.by_index
    }

    fn compile(&self, recipe: &mut Recipe, _data: &Dataset) -> Result<(), DataError> {
        recipe.cache_here()
    }

    fn cache(&self) -> Option<(&Cache, &Arc<CacheBypass>)> {
        Some((&self.cache, &self.bypass))
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        let (schema, cache) = (of_one_size(inputs, "cache")?, &self.cache);
        if let Some((op, column)) = inputs[0].all_stages().iter().find_map(|stage| stage.random_op()) {
            let problem = "it differs from epoch to epoch and stands before the cache; put it after".into();
            return Err(DataError::Op { op, column, problem });
        }
        if cache.path().is_none() {
            max_bytes(cache, &inputs[0], schema.row_bytes())?;
        }
        Ok(schema)
    }

    /// Every epoch is the first one of the input.
    fn input_epochs(&self, _epoch: u64) -> Vec<u64> {
        vec![0]
    }

    fn holdings(&self, inputs: &[Dataset], row: Bytes, budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        let cache = &self.cache;
        if cache.path().is_some() {
            return Ok(vec![Holding::here("cache (file)", EpochFile::bytes(row))]);
        }
        let most = max_bytes(cache, &inputs[0], row)?;
        Ok(vec![match budget.can_cache(most) {
            true => Holding::here(format!("cache (≤ {most})"), most),
            false => Holding::here(format!("cache (no space for {most})"), Bytes::ZERO),
        }])
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        Ok(Box::new(Caching::open(self, inputs)?))
    }
}

/// A larger number of bytes is a mistake.
const ABSURD: Bytes = Bytes(1 << 50);

/// Maximum bytes of a cache in memory for a stream with rows of this size.
fn max_bytes(cache: &Cache, data: &Dataset, row: Bytes) -> Result<Bytes, DataError> {
    let known = Some(data.len()).filter(|rows| *rows < u64::MAX).and_then(|rows| rows.checked_mul(row.0)).map(Bytes);
    let bound = match (cache.most(), known) {
        (Some(most), known) => Some(known.map_or(most, |known| known.min(most))),
        (None, known) => known,
    };
    match bound {
        Some(bound) if bound > ABSURD => {
            Err(DataError::Stage(format!("a cache behind {} would take up to {bound} of memory; ask for less", data.describe())))
        }
        Some(bound) => Ok(bound),
        None => Err(DataError::Stage(format!(
            "how many rows come out of {} is not known beforehand, so a cache in memory behind it needs a limit: say how much it may hold \
                 (Cache::MemoryUpTo, in a configuration {{ memory = \"256MiB\" }}) or how many rows there are (assert_cardinality), or keep it in a file",
            data.describe()
        ))),
    }
}

/// A stream that caches the first epoch and repeats it.
struct Caching {
    /// Description of the input.
    data: String,
    bypass: Arc<CacheBypass>,
    row: usize,
    store: EpochStore,
    /// Opened only if rows have to be computed.
    input: Option<Input>,
    /// The next row of the epoch.
    at: u64,
    over: bool,
    /// Whether a row of the epoch failed, so that the epoch is not cached.
    spoilt: bool,
    /// The fault that follows the rows returned last.
    fault: Option<Fault>,
}

enum EpochStore {
    Nothing,
    /// Being filled, until it is complete.
    Memory {
        epoch: EpochMemory,
        most: Bytes,
        whole: bool,
    },
    File(Box<EpochFile>),
}

impl Caching {
    fn open(stage: &CacheStage, inputs: &Opening<'_>) -> Result<Caching, DataError> {
        let CacheStage { cache, bypass, .. } = stage;
        let data = &inputs.node.inputs[0];
        bypass.clear();
        let row = data.output_schema()?.row_bytes();
        let store = match cache.path() {
            Some(path) => EpochStore::File(Box::new(EpochFile::open(path, fingerprint(data)?, cache, row.get())?)),
            None => {
                let most = max_bytes(cache, data, row)?;
                if inputs.budget.can_cache(most) {
                    EpochStore::Memory { epoch: EpochMemory::new(most, row.get()), most, whole: false }
                } else {
                    bypass.set(format!("the limit leaves no space for the {most} that a cache of {} may take", data.describe()));
                    EpochStore::Nothing
                }
            }
        };
        let bypass = Arc::clone(bypass);
        let mut caching =
            Caching { data: data.describe(), bypass, row: row.get(), store, input: None, at: 0, over: true, spoilt: false, fault: None };
        // Open the input now if it will be read, so that errors are reported at the start.
        if !caching.is_whole() {
            caching.input = Some(inputs.input(0)?);
        }
        Ok(caching)
    }

    fn is_whole(&self) -> bool {
        match &self.store {
            EpochStore::Nothing => false,
            EpochStore::Memory { whole, .. } => *whole,
            EpochStore::File(file) => file.is_whole(),
        }
    }

    /// Appends computed rows to the cache.
    fn keep(&mut self, rows: &[u8]) -> Result<(), DataError> {
        let kept = match &mut self.store {
            _ if self.spoilt => true,
            EpochStore::Nothing => true,
            EpochStore::Memory { epoch, most, .. } => {
                let fits = epoch.append(rows);
                if !fits {
                    let what = &self.data;
                    self.bypass.set(format!("an epoch of {what} takes more than the {most} of its cache, so rows are made each time"));
                }
                fits
            }
            EpochStore::File(file) => file.append(rows, &self.bypass)?,
        };
        if !kept {
            self.store = EpochStore::Nothing;
        }
        Ok(())
    }

    /// Abandons the cache for an epoch with a failed row: a later stage that ignores errors needs the errors in each
    /// epoch.
    fn spoil(&mut self, fault: &Fault) {
        if !self.spoilt && !matches!(self.store, EpochStore::Nothing) {
            self.bypass
                .set(format!("not every row of an epoch could be made, so it is not kept; put ignore_errors before the cache ({fault})"));
        }
        self.spoilt = true;
    }

    /// Completes the cache after the last row.
    fn finish(&mut self) -> Result<(), DataError> {
        let kept = match &mut self.store {
            _ if self.spoilt => true,
            EpochStore::Nothing => true,
            EpochStore::Memory { whole, .. } => {
                *whole = true;
                true
            }
            EpochStore::File(file) => file.finish(&self.bypass)?,
        };
        if !kept {
            self.store = EpochStore::Nothing;
        }
        if self.is_whole() {
            // The input is no longer needed.
            self.input = None;
        }
        Ok(())
    }
}

impl BlockIterator for Caching {
    fn begin(&mut self, _epoch: u64) -> Result<(), Fault> {
        (self.at, self.over, self.spoilt, self.fault) = (0, false, false, None);
        if self.is_whole() {
            return Ok(());
        }
        match &mut self.store {
            EpochStore::Nothing => {}
            EpochStore::Memory { epoch, .. } => epoch.clear(),
            EpochStore::File(file) => file.restart(),
        }
        self.input.as_mut().expect("opened, as the cache is not whole").begin(0)
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        if self.over {
            return Ok(0);
        }
        let wanted = out.len() / self.row;
        let out = &mut out[..wanted * self.row];
        let rows = match (&mut self.store, self.input.as_mut()) {
            (EpochStore::Memory { epoch, whole: true, .. }, _) => epoch.read(self.at * self.row as u64, out) / self.row,
            (EpochStore::File(file), _) if file.is_whole() => file.read(self.at, out)?,
            (_, Some(input)) => {
                let (mut rows, mut fault) = (0, None);
                while rows < wanted && !self.over && fault.is_none() {
                    match input.copy(&mut out[rows * self.row..][..self.row]) {
                        Ok(true) => rows += 1,
                        Ok(false) => self.over = true,
                        Err(came) => fault = Some(came),
                    }
                }
                self.keep(&out[..rows * self.row])?;
                if let Some(fault) = fault {
                    self.spoil(&fault);
                    if rows == 0 {
                        return Err(fault);
                    }
                    self.fault = Some(fault);
                }
                if self.over {
                    self.finish()?;
                }
                rows
            }
            (_, None) => unreachable!("opened, as the cache is not whole"),
        };
        self.at += rows as u64;
        self.over |= rows == 0;
        Ok(rows)
    }

    fn close(&mut self) {
        self.over = true;
        self.input.iter_mut().for_each(Input::close);
    }
}
