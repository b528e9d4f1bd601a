//! Computes the memory of a pipeline, stage by stage, before it runs.

mod geometry;
mod stream;

pub(crate) use geometry::{Geometry, cached_bytes};
pub(crate) use stream::{InputPlan, Route, block_rows, input_holdings};

use crate::block::{BlockLayout, column_bytes};
use crate::cache::{CHECK, Cache};
use crate::dataset::{CachedRows, Dataset, Holding, Node, Recipe, StreamBudget};
use crate::memory::ALIGNMENT;
use crate::source::FITTING;
use crate::stages::PackedImages;
use crate::{DataError, Schema};
use plimsoll_core::Bytes;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The largest stack of a worker thread: that of pipelines with user code. Sources and operations work in planned
/// buffers and need no more stack than this.
pub const PRODUCER_STACK: Bytes = Bytes::kib(512);

/// The stack of a worker thread that decodes images.
const DECODER_STACK: Bytes = if cfg!(debug_assertions) { PRODUCER_STACK } else { Bytes::kib(256) };

/// The stack of a worker thread that reads rows of a fixed size and applies inexpensive operations.
const READER_STACK: Bytes = if cfg!(debug_assertions) { PRODUCER_STACK } else { Bytes::kib(128) };

/// Code and tables of the image decoders, which are resident only where images are decoded; debug builds count all
/// code.
const DECODER_CODE: Bytes = if cfg!(debug_assertions) { Bytes::ZERO } else { Bytes::kib(384) };

/// The memory of a pipeline: a [`Feed`](crate::Feed) started with this plan reserves exactly these bytes.
///
/// ```
/// use plimsoll_data::{Dataset, Split};
/// let plan = Dataset::digits(Split::Train).batch(32).plan(None)?;
/// assert_eq!(plan.total(), plan.stages().iter().map(|(_, bytes)| *bytes).sum());
/// assert!(plan.minimum() <= plan.total());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelinePlan {
    stages: Vec<(String, Bytes)>,
    total: Bytes,
    minimum: Bytes,
    pub(crate) geometry: Geometry,
    pub(crate) batch: usize,
    /// Rows that must stay in one slot. The geometry states how many such groups a slot has.
    pub(crate) group: usize,
}

impl PipelinePlan {
    /// The bytes of each stage.
    pub fn stages(&self) -> &[(String, Bytes)] {
        &self.stages
    }

    /// The sum over all stages.
    pub fn total(&self) -> Bytes {
        self.total
    }

    /// The smallest limit that this data set can be planned in.
    pub fn minimum(&self) -> Bytes {
        self.minimum
    }

    /// Number of slots of the staging ring.
    pub fn slots(&self) -> usize {
        self.geometry.slots
    }

    /// Batches per slot.
    pub fn batches_per_slot(&self) -> usize {
        self.geometry.groups_per_slot * (self.group / self.batch)
    }

    /// Number of worker threads.
    pub fn workers(&self) -> usize {
        self.geometry.workers
    }

    /// Rows of the data set that fit in its cache.
    pub fn cached_rows(&self) -> u64 {
        self.geometry.cache_rows
    }

    /// Batches that can be ready while the consumer holds one slot.
    pub fn batches_ahead(&self) -> usize {
        (self.geometry.slots - 1) * self.batches_per_slot()
    }
}

impl fmt::Display for PipelinePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.stages.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max("total".len());
        for (name, bytes) in &self.stages {
            writeln!(f, "{name:width$}  {bytes:>9}")?;
        }
        let (slots, batches) = (self.geometry.slots, self.batches_per_slot());
        write!(f, "{:width$}  {:>9}  ({slots} slots of {batches} × {} rows; ", "total", self.total, self.batch)?;
        write!(f, "minimum: {})", self.minimum)
    }
}

impl Dataset {
    /// Plans the memory of the pipeline: without a limit for speed, with one as close to that as fits. Deterministic:
    /// the same data set and limit always give the same plan.
    ///
    /// ```
    /// use plimsoll_core::Bytes;
    /// use plimsoll_data::{Dataset, Split};
    /// let data = Dataset::digits(Split::Train).batch(256);
    /// assert_eq!(
    ///     data.plan(Some(Bytes::kib(500))).unwrap_err().to_string(),
    ///     "the input pipeline cannot run in 500 KiB: it needs at least 529 KiB (producer stack 512 KiB, \
    ///      staging ring 17.0 KiB); raise the limit or lower the batch size"
    /// );
    /// ```
    pub fn plan(&self, limit: Option<Bytes>) -> Result<PipelinePlan, DataError> {
        self.plan_keeping(limit, Keep::Rest, None)
    }

    /// Memory that datasets hold since they were opened, such as the names of columns and the rows that are held out. A
    /// source that several of them read is counted once.
    pub fn held_bytes<'a>(datasets: impl IntoIterator<Item = &'a Dataset>) -> Result<Bytes, DataError> {
        let recipes = datasets.into_iter().map(Dataset::recipe).collect::<Result<Vec<_>, _>>()?;
        let same = |a: &Recipe, b: &Recipe| Arc::ptr_eq(&a.source, &b.source);
        let sources = recipes.iter().enumerate().filter(|(number, recipe)| !recipes[..*number].iter().any(|other| same(other, recipe)));
        let of_sources = sources.map(|(_, recipe)| recipe.source.held_bytes()).sum::<Bytes>();
        Ok(of_sources + recipes.iter().map(Recipe::split_bytes).sum::<Bytes>())
    }

    /// Like [`plan`](Self::plan), with the memory for caches and, if set, for decoding one image.
    pub(crate) fn plan_keeping(&self, limit: Option<Bytes>, keep: Keep, item: Option<Bytes>) -> Result<PipelinePlan, DataError> {
        let recipe = self.recipe()?;
        recipe.check_padded()?;
        let (batch, group) = (recipe.batch()?, recipe.group()?);
        let mut geometry = geometry::for_speed(&recipe, group)?;
        (geometry.budget.limit, geometry.budget.item) = (limit, item);
        let mut costs = Costs { recipe: &recipe, streams: Vec::new() };
        let smallest = costs.of(geometry::smallest(&recipe, group))?;
        let minimum = total(&smallest);
        let mut stages = costs.of(geometry)?;
        if let Some(limit) = limit {
            if minimum > limit {
                return Err(DataError::OverLimit { limit, minimum, stages: smallest });
            }
            while total(&stages) > limit {
                geometry = geometry::shrink(&recipe, group, geometry);
                stages = costs.of(geometry)?;
            }
        }
        if let Some(limit) = limit
            && geometry::has_unknown_images(&recipe)
        {
            geometry = geometry::with_larger_pool(&recipe, group, geometry, limit - total(&stages))?;
            stages = costs.of(geometry)?;
        }
        // What no other stage can use.
        let left = limit.map(|limit| limit - total(&stages));
        geometry.resident = geometry::resident(&recipe, left);
        let left = match keep {
            Keep::Rest => left.map(|left| if geometry.resident { left - recipe.source.resident_bytes() } else { left }),
            Keep::UpTo(bytes) => bytes,
        };
        geometry = geometry::with_cache(&recipe, geometry, |leaner| Some(left? + saved(&recipe, geometry, leaner)));
        geometry.budget.cache = share(&mut costs, geometry, left)?;
        stages = costs.of(geometry)?;
        Ok(PipelinePlan { total: total(&stages), stages, minimum, geometry, batch, group })
    }
}

/// The memory that caches may use.
pub(crate) enum Keep {
    /// What is left of the limit.
    Rest,
    /// This much in addition to the limit, or any amount.
    UpTo(Option<Bytes>),
}

/// The largest per-cache size with which all caches of a stream fit in `left` together.
fn share(costs: &mut Costs<'_>, geometry: Geometry, left: Option<Bytes>) -> Result<Option<Bytes>, DataError> {
    let Some(node) = &costs.recipe.node else { return Ok(None) };
    let all = node.memory_caches();
    if all == 0 {
        return Ok(geometry.budget.cache);
    }
    let Some(left) = left else { return Ok(None) };
    if all > 1 {
        let without = total(&costs.of(geometry)?);
        for caches in 1..all {
            let each = Some(Bytes(left.0 / caches as u64));
            let with = Geometry { budget: StreamBudget { cache: each, ..geometry.budget }, ..geometry };
            if total(&costs.of(with)?) <= without + left {
                return Ok(each);
            }
        }
    }
    Ok(Some(Bytes(left.0 / all as u64)))
}

/// Memoizes the cost of geometries. Sequential stages are planned recursively for a budget, and most shrink steps
/// leave that budget unchanged.
struct Costs<'r> {
    recipe: &'r Recipe,
    streams: Vec<(StreamBudget, Vec<Holding>)>,
}

impl Costs<'_> {
    fn of(&mut self, geometry: Geometry) -> Result<Vec<(String, Bytes)>, DataError> {
        let stream = match (&self.recipe.node, self.streams.iter().find(|(budget, _)| *budget == geometry.budget)) {
            (None, _) => Vec::new(),
            (Some(_), Some((_, known))) => known.clone(),
            (Some(node), None) => {
                let held = stream::node_holdings(node, geometry.budget)?;
                self.streams.push((geometry.budget, held.clone()));
                held
            }
        };
        Ok(named(&holdings_with(self.recipe, geometry, stream)?))
    }
}

pub(crate) fn named(all: &[Holding]) -> Vec<(String, Bytes)> {
    all.iter().map(|held| (held.name.clone(), held.bytes)).collect()
}

/// The bytes of each stage for this geometry. The feed allocates by the same rules.
pub(crate) fn holdings(recipe: &Recipe, geometry: Geometry) -> Result<Vec<Holding>, DataError> {
    let stream = recipe.node.as_ref().map(|node| stream::node_holdings(node, geometry.budget)).transpose()?;
    holdings_with(recipe, geometry, stream.unwrap_or_default())
}

/// Like `holdings`, with the holdings of the stream already computed.
fn holdings_with(recipe: &Recipe, geometry: Geometry, stream: Vec<Holding>) -> Result<Vec<Holding>, DataError> {
    let Geometry { slots, slot_rows, chunk_rows, workers, decode, max_item, cache_rows, resident, .. } = geometry;
    let each = workers as u64;
    let stacks = if workers == 1 { "producer stack".to_string() } else { format!("{workers} worker stacks") };
    let mut stages = vec![Holding::here(stacks, stack(recipe) * each)];
    if let Some(node) = &recipe.node {
        stages.extend(stream);
        stages.push(Holding::here("stream", recipe.stream_row_bytes() * chunk_rows as u64 * each));
        if let Some(images) = packed_images(node)
            && workers > 1
        {
            stages.push(Holding::here("decode on other threads", images.decoder_bytes()? * (each - 1)));
        }
    }
    let mut hold = |name: String, bytes: Bytes| {
        if bytes > Bytes::ZERO {
            stages.push(Holding::here(name, bytes));
        }
    };
    hold(recipe.source.held_name().into(), recipe.source.held_bytes());
    hold(FITTING.into(), recipe.source.fitting_bytes());
    if resident {
        hold("rows in memory".into(), recipe.source.resident_bytes());
    }
    hold("read".into(), padded(recipe.source.scratch_bytes(chunk_rows)) * each);
    if recipe.is_gathered() {
        let per_row = size_of::<u64>() + if recipe.source.wants_ascending() { size_of::<u32>() } else { 0 };
        hold("shuffle".into(), Bytes((chunk_rows * per_row) as u64) * each);
    }
    hold("holdout".into(), recipe.split_bytes());
    if recipe.item().is_some() {
        hold("decoder code".into(), DECODER_CODE);
        hold(format!("decode (each ≤ {max_item})"), decode);
    }
    if let (Some(kept), Some(cache)) = (&recipe.cached_rows, &recipe.cache) {
        for (map, column) in kept.maps.iter().zip(kept.schema.columns()) {
            hold(format!("map {} (kept)", column.name), map.bytes(chunk_rows) * each);
        }
        hold("rows made to be kept".into(), row_cache_bytes(recipe, kept, cache, chunk_rows) * each);
    }
    let cache = recipe.cached_row().map(|(cache, row)| cache.row_bytes(row) * cache_rows).unwrap_or_default();
    let name = format!("cache ({cache_rows} of {} rows)", recipe.span.rows);
    if recipe.cached_rows.is_some() {
        hold(name.clone(), cache);
    }
    for (map, column) in recipe.maps.iter().zip(recipe.schema.columns()) {
        hold(format!("map {}", column.name), map.bytes(chunk_rows) * each);
    }
    // Images are cached after the first part of their map.
    if recipe.cached_rows.is_none() {
        hold(name, cache);
    }
    hold("staging ring".into(), slot_bytes(&recipe.schema, slot_rows) * slots as u64);
    Ok(stages)
}

/// The stack of each worker thread. Frames are larger without optimizations.
pub(crate) fn stack(recipe: &Recipe) -> Bytes {
    let maps = recipe.maps.iter().chain(recipe.cached_rows.iter().flat_map(|kept| &kept.maps));
    if recipe.node.is_some() || maps.flat_map(|map| &map.steps).any(|step| step.op.takes_long()) {
        PRODUCER_STACK
    } else if recipe.item().is_some() {
        DECODER_STACK
    } else if recipe.source.takes_little_stack() {
        READER_STACK
    } else {
        PRODUCER_STACK
    }
}

/// Bytes of the ring and the decode pool saved by the second geometry.
fn saved(recipe: &Recipe, geometry: Geometry, leaner: Geometry) -> Bytes {
    let ring = slot_bytes(&recipe.schema, geometry.slot_rows) * (geometry.slots - leaner.slots) as u64;
    ring + (geometry.decode - leaner.decode)
}

pub(crate) fn total(stages: &[(String, Bytes)]) -> Bytes {
    stages.iter().map(|(_, bytes)| *bytes).sum()
}

pub(crate) fn padded(bytes: Bytes) -> Bytes {
    bytes.align_up(ALIGNMENT as u64)
}

pub(crate) fn slot_bytes(schema: &Schema, rows: usize) -> Bytes {
    BlockLayout::new(schema, rows).bytes()
}

/// The compressed records that a node reads, if it reads any.
pub(crate) fn packed_images(node: &Node) -> Option<&PackedImages> {
    (&*node.stage as &dyn Any).downcast_ref()
}

/// Bytes per thread for caching whole rows, without the buffers of maps.
fn row_cache_bytes(recipe: &Recipe, cached: &CachedRows, cache: &Cache, rows: usize) -> Bytes {
    let in_file = cache.path().is_some();
    let lists = size_of::<u64>()
        + size_of::<u32>()
        + if recipe.source.wants_ascending() { size_of::<u32>() } else { 0 }
        + if in_file { size_of::<(u64, u32)>() } else { 0 };
    let window = row_cache_window(cached.schema.row_bytes().get(), in_file);
    column_bytes(&cached.schema, rows) + Bytes((rows * lists + window) as u64)
}

/// Bytes read or written per call, unless a row is larger.
const WINDOW: usize = 64 << 10;

/// The size of the buffer for some rows with their checksums, or for one row of a cache in memory.
pub(crate) fn row_cache_window(row: usize, in_file: bool) -> usize {
    let record = row + CHECK;
    if in_file { (WINDOW / record).max(1) * record } else { row }
}
