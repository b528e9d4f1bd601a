//! What a pipeline will hold, stage by stage, before it runs; and the geometry that keeps it under a limit.

use crate::block::BlockLayout;
use crate::dataset::{Dataset, Prefetch};
use crate::memory::ALIGNMENT;
use crate::recipe::Recipe;
use crate::{DataError, Schema};
use plimsoll_core::Bytes;
use std::fmt;

/// The stack of the thread that makes batches. Sources and operations work in planned buffers and call no deeper than this.
pub const PRODUCER_STACK: Bytes = Bytes::kib(512);

/// Handing a slot over costs a lock and sometimes a wake-up; this many bytes make that cheap beside filling it.
const SLOT_TARGET: Bytes = Bytes::kib(512);

/// What is read, mapped and written at a time should stay in the second-level cache.
const CHUNK_TARGET: Bytes = Bytes::kib(128);

/// One slot with the consumer, one ready, one being filled.
const AUTO_SLOTS: usize = 3;

/// Past this the numbers are a mistake; below it they can be added and multiplied without a thought.
const ABSURD: u128 = 1 << 50;

/// How a pipeline uses memory, exactly: a [`Feed`](crate::Feed) started with it reserves these bytes and no others.
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
}

/// What a plan is free to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub slots: usize,
    pub batches_per_slot: usize,
    /// Rows that fit a slot: whole batches, or all rows of a small data set.
    pub slot_rows: usize,
    /// Rows read and mapped at a time.
    pub chunk_rows: usize,
}

impl PipelinePlan {
    /// Each stage and what it holds.
    pub fn stages(&self) -> &[(String, Bytes)] {
        &self.stages
    }

    /// All stages together.
    pub fn total(&self) -> Bytes {
        self.total
    }

    /// The smallest limit this data set can be planned in.
    pub fn minimum(&self) -> Bytes {
        self.minimum
    }

    /// How many slots the staging ring has.
    pub fn slots(&self) -> usize {
        self.geometry.slots
    }

    /// How many batches a slot holds.
    pub fn batches_per_slot(&self) -> usize {
        self.geometry.batches_per_slot
    }

    /// Batches that can be ready while the consumer holds one slot.
    pub fn batches_ahead(&self) -> usize {
        (self.geometry.slots - 1) * self.geometry.batches_per_slot
    }
}

impl fmt::Display for PipelinePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.stages.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max("total".len());
        for (name, bytes) in &self.stages {
            writeln!(f, "{name:width$}  {bytes:>9}")?;
        }
        let (slots, batches) = (self.geometry.slots, self.geometry.batches_per_slot);
        write!(f, "{:width$}  {:>9}  ({slots} slots of {batches} × {} rows; ", "total", self.total, self.batch)?;
        write!(f, "least that works: {})", self.minimum)
    }
}

impl Dataset {
    /// Chooses how the pipeline uses memory: sized for speed without a limit, and as close to that as fits with one.
    /// The same data set and limit always give the same plan.
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
        let recipe = self.recipe()?;
        let batch = recipe.batch()?;
        let mut geometry = geometry_for_speed(&recipe, batch)?;
        let smallest = cost(&recipe, Geometry { slots: 1, batches_per_slot: 1, slot_rows: slot_rows(&recipe, batch, 1), chunk_rows: 1 });
        let minimum = total(&smallest);
        let mut stages = cost(&recipe, geometry);
        if let Some(limit) = limit {
            if minimum > limit {
                return Err(DataError::OverLimit { limit, minimum, stages: smallest });
            }
            while total(&stages) > limit {
                geometry = shrink(&recipe, batch, geometry);
                stages = cost(&recipe, geometry);
            }
        }
        Ok(PipelinePlan { total: total(&stages), stages, minimum, geometry, batch })
    }
}

/// What each stage holds in this geometry. The feed allocates by the same rules.
pub(crate) fn cost(recipe: &Recipe, geometry: Geometry) -> Vec<(String, Bytes)> {
    let Geometry { slots, slot_rows, chunk_rows, .. } = geometry;
    let mut stages = vec![("producer stack".to_string(), PRODUCER_STACK)];
    let mut hold = |name: String, bytes: Bytes| {
        if bytes > Bytes::ZERO {
            stages.push((name, bytes));
        }
    };
    hold("read".into(), padded(recipe.source.scratch_bytes(chunk_rows)));
    if recipe.is_shuffled() {
        let per_row = size_of::<u64>() + if recipe.source.wants_ascending() { size_of::<u32>() } else { 0 };
        hold("shuffle".into(), Bytes((chunk_rows * per_row) as u64));
    }
    for (steps, column) in recipe.maps.iter().zip(recipe.schema.columns()) {
        let bytes = steps.iter().map(|step| {
            let buffer = if step.in_place { Bytes::ZERO } else { padded(step.input.row_bytes() * chunk_rows as u64) };
            buffer + step.op.kernel_bytes(&step.input)
        });
        hold(format!("map {}", column.name), bytes.sum());
    }
    hold("staging ring".into(), slot_bytes(&recipe.schema, slot_rows) * slots as u64);
    stages
}

pub(crate) fn total(stages: &[(String, Bytes)]) -> Bytes {
    stages.iter().map(|(_, bytes)| *bytes).sum()
}

fn padded(bytes: Bytes) -> Bytes {
    bytes.align_up(ALIGNMENT as u64)
}

fn slot_bytes(schema: &Schema, rows: usize) -> Bytes {
    BlockLayout::new(schema, rows).bytes()
}

/// A slot never holds more than one epoch.
fn slot_rows(recipe: &Recipe, batch: usize, batches: usize) -> usize {
    (batches as u128 * batch as u128).min(u128::from(recipe.rows)) as usize
}

fn geometry_for_speed(recipe: &Recipe, batch: usize) -> Result<Geometry, DataError> {
    let work_row = row_of_work(recipe);
    let batch_rows = slot_rows(recipe, batch, 1).max(1);
    let batch_bytes = batch_rows as u128 * u128::from((recipe.schema.row_bytes() + work_row).0);
    let absurd = |what: String| {
        let problem = format!("{what} would take more than {}; ask for less", Bytes(ABSURD as u64));
        Err(DataError::Stage(problem))
    };
    if batch_bytes > ABSURD {
        return absurd(format!("batch({batch})"));
    }

    let per_batch = slot_bytes(&recipe.schema, batch_rows).0.max(1);
    let in_epoch = recipe.rows.div_ceil(batch as u64).max(1);
    let batches = (SLOT_TARGET.0 / per_batch).clamp(1, in_epoch) as usize;
    let (slots, batches_per_slot) = match recipe.prefetch {
        Prefetch::Auto => (AUTO_SLOTS, batches),
        // One slot more than is asked for: the consumer holds it.
        Prefetch::Batches(ahead) => {
            let batches = batches.min(ahead.max(1));
            (ahead.div_ceil(batches).saturating_add(1), batches)
        }
    };
    if slots as u128 * batches_per_slot as u128 * batch_bytes > ABSURD {
        return absurd(format!("the ring for {:?} of batch({batch})", recipe.prefetch));
    }
    let slot_rows = slot_rows(recipe, batch, batches_per_slot);
    let chunk_rows = (CHUNK_TARGET.0 / work_row.0.max(1)).clamp(1, slot_rows.max(1) as u64) as usize;
    Ok(Geometry { slots, batches_per_slot, slot_rows, chunk_rows })
}

/// Bytes that pass through the caches for one row on its way to the slot.
fn row_of_work(recipe: &Recipe) -> Bytes {
    let maps = recipe.maps.iter().flatten().filter(|step| !step.in_place).map(|step| step.input.row_bytes()).sum();
    recipe.source.scratch_bytes(1) + maps + recipe.schema.row_bytes()
}

/// The next smaller geometry: of the ring and the work buffers, the larger gives way. Ends at the smallest there is.
fn shrink(recipe: &Recipe, batch: usize, geometry: Geometry) -> Geometry {
    let ring = slot_bytes(&recipe.schema, geometry.slot_rows) * geometry.slots as u64;
    let work = row_of_work(recipe) * geometry.chunk_rows as u64;
    let ring_can = geometry.batches_per_slot > 1 || geometry.slots > 1;
    if geometry.chunk_rows > 1 && (work > ring || !ring_can) {
        return Geometry { chunk_rows: geometry.chunk_rows / 2, ..geometry };
    }
    if geometry.slots > AUTO_SLOTS {
        return Geometry { slots: (geometry.slots / 2).max(AUTO_SLOTS), ..geometry };
    }
    if geometry.batches_per_slot > 1 {
        let batches_per_slot = geometry.batches_per_slot / 2;
        let slot_rows = slot_rows(recipe, batch, batches_per_slot);
        return Geometry { batches_per_slot, slot_rows, chunk_rows: geometry.chunk_rows.min(slot_rows.max(1)), ..geometry };
    }
    Geometry { slots: geometry.slots - 1, ..geometry }
}
