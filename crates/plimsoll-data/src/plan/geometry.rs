//! The free parameters of a plan: chosen for speed, and shrunk until they fit the limit.

use super::slot_bytes;
use crate::DataError;
use crate::cache::Cache;
use crate::dataset::{Parallelism, Prefetch, Recipe, StreamBudget};
use crate::decode::{AUTO_ITEM, MIN_ITEM};
use plimsoll_core::Bytes;
use std::thread;

/// Passing on a slot costs a lock and sometimes a wake-up; with this many bytes that is cheap compared to filling it.
const SLOT_TARGET: Bytes = Bytes::kib(512);

/// Rows gathered from all over a file are read in file order, many at a time. More rows means smaller gaps and fewer
/// calls, so such slots are large.
const SWEEP_TARGET: Bytes = Bytes::mib(14);

/// A chunk that is read, mapped and written should fit in the L2 cache.
const CHUNK_TARGET: Bytes = Bytes::kib(128);

/// For rows that are slow to produce: the number of rows per slot, and per claim.
const SLOW_ROWS: usize = 1024;
const SLOW_SHARE: usize = 16;

/// One slot with the consumer, one ready, one being filled.
const AUTO_SLOTS: usize = 3;

/// Numbers above this are a mistake; below it, sums and products cannot overflow.
const ABSURD: u128 = 1 << 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub slots: usize,
    /// Number of groups per slot. A group is one batch, or several that must stay together.
    pub groups_per_slot: usize,
    /// Rows per slot: those of all groups, or all rows of a small data set.
    pub slot_rows: usize,
    /// Rows read and mapped at a time.
    pub chunk_rows: usize,
    /// Number of worker threads.
    pub workers: usize,
    /// Bytes of the decode pool, shared by all workers; zero without files.
    pub decode: Bytes,
    /// Maximum bytes for a single file: at most the decode pool plus what a cache in memory can release.
    pub max_item: Bytes,
    /// Number of rows that the cache can hold.
    pub cache_rows: u64,
    /// Whether the source's rows are loaded into memory first.
    pub resident: bool,
    /// For a stream: whether to use the minimum, and the limit shared by its stages.
    pub budget: StreamBudget,
}

impl Geometry {
    /// For the maps after a stream that run on the calling thread, in blocks of `rows` rows.
    pub fn of_block(recipe: &Recipe, rows: usize, budget: StreamBudget) -> Geometry {
        let decode = if recipe.item().is_some() { budget.item_bytes(recipe.sizes(), 1) } else { Bytes::ZERO };
        let budget = StreamBudget { parallel_inputs: 0, ..budget };
        Geometry { slots: 0, slot_rows: rows, chunk_rows: rows, decode, cache_rows: 0, budget, ..smallest(recipe, 1) }.bounded(recipe)
    }

    /// This geometry with a single worker.
    pub fn alone(self, recipe: &Recipe) -> Geometry {
        Geometry { workers: 1, decode: decode_bytes(recipe, 1, AUTO_ITEM), ..self }.bounded(recipe)
    }

    /// This geometry with `max_item` bounded by the available memory.
    pub fn bounded(self, recipe: &Recipe) -> Geometry {
        let there = self.decode + cached_bytes(recipe, self.cache_rows);
        Geometry { max_item: if recipe.item().is_some() { recipe.sizes().cap().min(there) } else { Bytes::ZERO }, ..self }
    }

    /// Rows per claim. A single worker claims a whole slot, which saves locking.
    pub fn claim_rows(&self) -> usize {
        if self.workers == 1 { self.slot_rows.max(1) } else { self.chunk_rows }
    }
}

/// The minimum.
pub(crate) fn smallest(recipe: &Recipe, group: usize) -> Geometry {
    Geometry {
        slots: 1,
        groups_per_slot: 1,
        slot_rows: slot_rows(recipe, group, 1),
        chunk_rows: 1,
        workers: 1,
        decode: decode_bytes(recipe, 1, MIN_ITEM),
        max_item: Bytes::ZERO,
        cache_rows: flags_only(recipe),
        resident: false,
        budget: StreamBudget { ignores_errors: recipe.settings.ignores_errors(), ..StreamBudget::MINIMUM },
    }
    .bounded(recipe)
}

/// The fastest geometry, regardless of memory.
pub(crate) fn for_speed(recipe: &Recipe, group: usize) -> Result<Geometry, DataError> {
    let work_row = row_of_work(recipe);
    let group_rows = slot_rows(recipe, group, 1).max(1);
    let group_bytes = group_rows as u128 * u128::from((recipe.schema.row_bytes() + work_row).0);
    let absurd = |what: String| {
        let problem = format!("{what} would take more than {}; ask for less", Bytes(ABSURD as u64));
        Err(DataError::Stage(problem))
    };
    if group_bytes > ABSURD {
        return absurd(format!("batch({group})"));
    }

    // Slots of images are sized in bytes.
    let slow = recipe.item().is_none() && recipe.takes_long();
    let per_group = slot_bytes(&recipe.schema, group_rows).0.max(1);
    let in_epoch = recipe.rows.div_ceil(group as u64).max(1);
    let sweeps = sweeps(recipe);
    let target = if sweeps { SWEEP_TARGET } else { SLOT_TARGET };
    let at_most = if slow { in_epoch.min((SLOW_ROWS / group_rows).max(1) as u64) } else { in_epoch };
    let groups = (target.0 / per_group).clamp(1, at_most) as usize;
    let (slots, groups_per_slot) = match recipe.settings.prefetch {
        Prefetch::Auto => (AUTO_SLOTS, groups),
        // An empty data set has nothing to prefetch.
        Prefetch::Batches(_) if recipe.rows == 0 => (1, 1),
        // One slot more than requested: the consumer holds it.
        Prefetch::Batches(ahead) => {
            let ahead = ahead.div_ceil((group / recipe.settings.batch.unwrap_or(group)).max(1));
            let groups = groups.min(ahead.max(1));
            (ahead.div_ceil(groups).saturating_add(1), groups)
        }
    };
    if slots as u128 * groups_per_slot as u128 * group_bytes > ABSURD {
        return absurd(format!("the ring for {:?} of batch({group})", recipe.settings.prefetch));
    }
    let slot_rows = slot_rows(recipe, group, groups_per_slot);
    let workers = match recipe.settings.parallelism {
        // Workers take turns at a stream, so more than one helps only if there are maps.
        _ if recipe.node.is_some() && !recipe.is_mapped() => 1,
        Parallelism::Threads(threads) => threads,
        Parallelism::Auto if sweeps => thread::available_parallelism().map_or(1, usize::from).min(AUTO_SLOTS - 1),
        Parallelism::Auto if recipe.takes_long() => thread::available_parallelism().map_or(1, usize::from),
        Parallelism::Auto => 1,
    };
    // Each file is a claim of its own and goes to a free worker. Other rows of a slot are divided among all workers.
    let share = match workers {
        1 => slot_rows,
        _ if slow => SLOW_SHARE,
        _ => slot_rows.div_ceil(2 * workers),
    };
    let chunk_rows = match recipe.item() {
        Some(_) => 1,
        None if sweeps => slot_rows.max(1),
        None => (CHUNK_TARGET.0 / work_row.0.max(1)).clamp(1, share.clamp(1, slot_rows.max(1)) as u64) as usize,
    };
    if let Some((_, row)) = recipe.cached_row()
        && u128::from(recipe.span.rows) * u128::from(row.0 + 64) > ABSURD
    {
        return absurd(format!("a cache of {} rows", recipe.span.rows));
    }
    let each = if recipe.item().is_some() { recipe.sizes().cap() } else { Bytes::ZERO };
    if workers as u128 * (u128::from(each.0) + chunk_rows as u128 * u128::from(work_row.0)) > ABSURD {
        return absurd(format!("{workers} threads with their buffers"));
    }
    let geometry = Geometry {
        slots,
        groups_per_slot,
        slot_rows,
        chunk_rows,
        workers,
        decode: decode_bytes(recipe, workers, AUTO_ITEM),
        budget: StreamBudget { minimal: false, ignores_errors: recipe.settings.ignores_errors(), ..StreamBudget::MINIMUM },
        ..smallest(recipe, group)
    };
    Ok(geometry.bounded(recipe))
}

/// Whether rows are small, scattered over a file and written straight to the slot, so that many can be read in one
/// sweep.
fn sweeps(recipe: &Recipe) -> bool {
    let straight = recipe.maps.iter().flat_map(|map| &map.steps).all(|step| step.in_place);
    recipe.is_gathered()
        && recipe.source.wants_ascending()
        && straight
        && recipe.cached_rows.is_none()
        && recipe.source.schema().row_bytes() < Bytes::kib(4)
}

/// The decode pool for this many workers with at most `each` bytes each, and at least what one image requires.
fn decode_bytes(recipe: &Recipe, workers: usize, each: Bytes) -> Bytes {
    if recipe.item().is_some() { recipe.sizes().pool(workers, each) } else { Bytes::ZERO }
}

/// The rows of a cache in a file: all of them, with only a flag each in memory.
fn flags_only(recipe: &Recipe) -> u64 {
    match recipe.cache.as_ref().and_then(Cache::path) {
        Some(_) => recipe.span.rows,
        None => 0,
    }
}

/// Bytes of memory for this many cached rows, without their flags.
pub(crate) fn cached_bytes(recipe: &Recipe, rows: u64) -> Bytes {
    recipe.cached_row().map_or(Bytes::ZERO, |(cache, row)| cache.kept_bytes(row) * rows)
}

/// Without a limit, a source whose rows take more than this is not loaded into memory.
const AUTO_RESIDENT: Bytes = Bytes::mib(256);

/// Whether the source's rows fit in what is left of the limit. If rows are cached, the cache has priority.
pub(crate) fn resident(recipe: &Recipe, left: Option<Bytes>) -> bool {
    let bytes = recipe.source.resident_bytes();
    recipe.cached_rows.is_none() && bytes > Bytes::ZERO && bytes <= left.unwrap_or(AUTO_RESIDENT)
}

/// Rows per slot, at most one epoch.
fn slot_rows(recipe: &Recipe, group: usize, groups: usize) -> usize {
    (groups as u128 * group as u128).min(u128::from(recipe.rows)) as usize
}

/// Bytes that one row moves through the CPU caches on its way to the slot.
fn row_of_work(recipe: &Recipe) -> Bytes {
    let before = recipe.cached_rows.iter().flat_map(|kept| &kept.maps);
    let steps = recipe.maps.iter().chain(before).flat_map(|map| &map.steps);
    let maps = steps.filter(|step| !step.in_place).map(|step| step.input.row_bytes()).sum();
    let made = recipe.cached_rows.as_ref().map_or(Bytes::ZERO, |kept| kept.schema.row_bytes());
    // The fixed part of a source's scratch memory is no reason to read fewer rows.
    let scratch = |rows| recipe.source.scratch_bytes(rows).0;
    Bytes(scratch(2).saturating_sub(scratch(1))) + maps + made + recipe.schema.row_bytes()
}

/// The next smaller geometry. The sequence ends at the minimum, which must not be passed.
pub(crate) fn shrink(recipe: &Recipe, group: usize, geometry: Geometry) -> Geometry {
    if recipe.item().is_some() {
        return shrink_files(recipe, group, geometry);
    }
    let ring = slot_bytes(&recipe.schema, geometry.slot_rows) * geometry.slots as u64;
    let work = match sweeps(recipe) {
        true => recipe.source.scratch_bytes(geometry.chunk_rows),
        false => row_of_work(recipe) * geometry.chunk_rows as u64,
    };
    // Shrinks the larger of the ring and the work buffers. Automatic workers are kept longer than prefetched slots,
    // but not longer than double buffering; a number of threads set by the user shrinks last.
    if recipe.settings.parallelism == Parallelism::Auto && geometry.workers > 1 && geometry.groups_per_slot == 1 && geometry.slots <= 2 {
        return Geometry { workers: geometry.workers - 1, ..geometry };
    }
    if geometry.chunk_rows > 1 && (work > ring || !ring_can(geometry)) {
        return Geometry { chunk_rows: geometry.chunk_rows / 2, ..geometry };
    }
    if !ring_can(geometry) && recipe.node.is_some() && !geometry.budget.minimal {
        return Geometry { budget: StreamBudget { minimal: true, ..geometry.budget }, ..geometry };
    }
    if !ring_can(geometry) {
        return Geometry { workers: geometry.workers - 1, ..geometry };
    }
    shrink_ring(recipe, group, geometry)
}

/// Decoding dominates the time, so all workers are kept as long as possible. Shrinks in this order: memory only
/// needed by unusually large files, prefetched slots, memory needed by large files, double buffering.
fn shrink_files(recipe: &Recipe, group: usize, geometry: Geometry) -> Geometry {
    let floors = [Bytes::mib(16), Bytes::mib(8), MIN_ITEM];
    let slots = [AUTO_SLOTS, 2, 1];
    for (each, slots) in floors.into_iter().zip(slots) {
        let floor = decode_bytes(recipe, geometry.workers, each);
        if geometry.decode > floor {
            return Geometry { decode: Bytes(geometry.decode.0 / 2).max(floor), ..geometry }.bounded(recipe);
        }
        if geometry.slots > slots || geometry.groups_per_slot > 1 {
            return shrink_ring(recipe, group, geometry);
        }
    }
    if geometry.workers == 1 && recipe.node.is_some() {
        return Geometry { budget: StreamBudget { minimal: true, ..geometry.budget }, ..geometry };
    }
    let workers = geometry.workers - 1;
    Geometry { workers, decode: decode_bytes(recipe, workers, MIN_ITEM), ..geometry }.bounded(recipe)
}

fn ring_can(geometry: Geometry) -> bool {
    geometry.groups_per_slot > 1 || geometry.slots > 1
}

fn shrink_ring(recipe: &Recipe, group: usize, geometry: Geometry) -> Geometry {
    if geometry.slots > AUTO_SLOTS {
        return Geometry { slots: (geometry.slots / 2).max(AUTO_SLOTS), ..geometry };
    }
    if geometry.groups_per_slot > 1 {
        let groups_per_slot = geometry.groups_per_slot / 2;
        let slot_rows = slot_rows(recipe, group, groups_per_slot);
        return Geometry { groups_per_slot, slot_rows, chunk_rows: geometry.chunk_rows.min(slot_rows.max(1)), ..geometry };
    }
    Geometry { slots: geometry.slots - 1, ..geometry }
}

/// Whether the sizes of some images are not known, and no cache in memory could make way for a large one.
pub(crate) fn has_unknown_images(recipe: &Recipe) -> bool {
    recipe.item().is_some() && recipe.sizes().complete().is_none() && recipe.cached_row().is_none()
}

/// Assigns what is left of a limit to the decode pool, up to what it has without a limit.
pub(crate) fn with_larger_pool(recipe: &Recipe, group: usize, geometry: Geometry, left: Bytes) -> Result<Geometry, DataError> {
    let most = for_speed(recipe, group)?.decode.max(geometry.decode);
    Ok(Geometry { decode: (geometry.decode + left).min(most), ..geometry }.bounded(recipe))
}

/// Assigns what is left of a limit to the cache. A cached row takes a tenth of the time of a decoded one, so a cache
/// that can hold all rows gets its memory before extra slots and unusually large files (for which it evicts rows if
/// needed). A cache that cannot hold all rows gets what large files would.
pub(crate) fn with_cache(recipe: &Recipe, geometry: Geometry, left: impl Fn(Geometry) -> Option<Bytes>) -> Geometry {
    let Some((cache, row)) = recipe.cached_row().filter(|(cache, _)| cache.path().is_none()) else { return geometry };
    let row = cache.row_bytes(row).0.max(1);
    let rows = cache.most().map_or(recipe.span.rows, |most| recipe.span.rows.min(most.0 / row));
    if recipe.cached_rows.is_some() {
        return Geometry { cache_rows: left(geometry).map_or(rows, |left| rows.min(left.0 / row)), ..geometry };
    }
    let fill = |each: Bytes, slots: usize| {
        // Settings of the user are kept, and the memory for one file must be available in the pool or the cache.
        let slots = if recipe.settings.prefetch == Prefetch::Auto { geometry.slots.min(slots) } else { geometry.slots };
        let decode = geometry.decode.min(recipe.sizes().together(geometry.workers, each));
        let leaner = Geometry { slots, decode, ..geometry };
        let cache_rows = left(leaner).map_or(rows, |left| rows.min(left.0 / row));
        let filled = Geometry { cache_rows, ..leaner }.bounded(recipe);
        (filled.max_item >= recipe.sizes().required()).then_some(filled)
    };
    let all = geometry.slots;
    let steps = [(AUTO_ITEM, all), (Bytes::mib(16), all), (Bytes::mib(8), all), (Bytes::mib(8), 2), (MIN_ITEM, 2), (MIN_ITEM, 1)];
    let filled = steps.map(|(each, slots)| fill(each, slots));
    let whole = filled.iter().flatten().find(|filled| filled.cache_rows == rows);
    let first_that_works = || [filled[2], filled[1], filled[0]].into_iter().flatten().next();
    whole.copied().or_else(first_that_works).unwrap_or(geometry)
}
