//! The feed: batches, made by one or more threads ahead of the consumer.

use super::input::Opener;
use super::path::{decode_pool, row_store};
use super::ring::{Claim, Crew, Fill, Ring, Schedule, Slot};
use super::shared::SharedWork;
use super::tuner::Adapts;
use super::work::Work;
use crate::block::BlockLayout;
use crate::dataset::{Parallelism, Prefetch, Recipe};
use crate::memory::AlignedBuf;
use crate::meter::{Meter, Spent};
use crate::ops::{Mixer, Padder, Padding};
use crate::plan::{self, PRODUCER_STACK, PipelinePlan};
use crate::{DataError, Dataset, Schema};
use plimsoll_core::budget::{Owner, SlotMemory};
use plimsoll_core::{Bytes, Ledger, Reservation};
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Batches of a data set, epoch after epoch. All memory is reserved and allocated when it starts; dropping it stops
/// its threads and gives everything back.
pub struct Feed {
    recipe: Recipe,
    layout: Arc<BlockLayout>,
    batch: usize,
    ring: Arc<Ring>,
    workers: Vec<JoinHandle<()>>,
    meter: Arc<Meter>,
    padder: Option<Arc<Padder>>,
    /// The slot batches are being handed out from.
    current: Option<Slot>,
    /// Rows of it already handed out, and how many of them last.
    used: usize,
    last: usize,
    /// Rows of the first slot that were handed out before the feed was started.
    passed: usize,
    epoch: u64,
    /// Batches of the epoch already handed out.
    batches: u64,
    // Last, so that the books say free only when it is.
    _reserved: Vec<Reservation>,
}

/// Where a feed begins and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The epoch to begin with; it chooses the order of shuffled rows.
    pub first_epoch: u64,
    /// Rows of that epoch that were consumed before by another number of shards, all together.
    pub first_row: u64,
    /// Batches of that epoch to leave out after those, because they were consumed before.
    pub first_batch: u64,
    /// How many epochs to feed, the first included; without end if `None`.
    pub epochs: Option<u64>,
}

/// A position between two batches. Small, and all that a checkpoint needs: see [`Options::resume`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedState {
    /// The epoch of the next batch.
    pub epoch: u64,
    /// Batches of that epoch already consumed.
    pub batches: u64,
    /// Rows of the epoch consumed before those batches, by another number of shards.
    #[serde(default)]
    pub first_row: u64,
    /// How many shards there are.
    #[serde(default = "one")]
    pub shards: u64,
    /// Rows in a batch.
    pub batch: usize,
    /// Rows in an epoch of all shards together.
    pub rows: u64,
    /// How rows are reordered, seeds included.
    pub order: String,
}

fn one() -> u64 {
    1
}

/// Some rows of one epoch. It borrows the feed: the next batch may reuse its memory.
pub struct Batch<'a> {
    /// The epoch it belongs to.
    pub epoch: u64,
    /// The place of its first row in the epoch.
    pub first_row: u64,
    /// How many rows it has; fewer than the batch size only at the end of an epoch.
    pub rows: usize,
    memory: &'a [u8],
    layout: &'a BlockLayout,
    schema: &'a Schema,
    padder: Option<&'a Padder>,
    /// Where it begins in the slot.
    offset: usize,
}

/// What a feed did since it was started.
#[derive(Clone, Debug)]
pub struct Activity {
    /// Rows that were made, also those not yet handed out.
    pub rows: u64,
    /// How long ago it was started.
    pub elapsed: Duration,
    /// Threads that make rows.
    pub workers: usize,
    /// How many of them are at work now: fewer where the consumer is slower than they are.
    pub active_workers: usize,
    /// How many slots of the ring are in use now, likewise.
    pub slots_in_use: usize,
    /// How long the consumer waited for batches.
    pub consumer_waited: Duration,
    /// How long threads waited for a free slot, added up.
    pub workers_waited: Duration,
    /// Where the time of the threads went, in the order in which rows pass through it; of a [stream](Dataset#streams) stage by stage.
    pub times: Vec<Spent>,
    /// Why a cache is not used, if so: a full disk, or a limit.
    pub cache_given_up: Option<String>,
}

impl Options {
    /// The rest of the run `state` was taken from; the remaining batches are exactly those it would have given. With another number of
    /// shards than it was taken with (each of them at this position), the rows that are left of the epoch are shared out from scratch: every row of
    /// it comes once. Of a [stream](Dataset#streams) that needs `shard` to be the last stage but for maps.
    ///
    /// ```
    /// use plimsoll_core::Ledger;
    /// use plimsoll_data::{Dataset, Feed, Options, Shuffle, Split};
    /// let data = Dataset::digits(Split::Train).shuffle(Shuffle::seed(7)).batch(32);
    /// let (plan, ledger) = (data.plan(None)?, Ledger::new("host", None));
    /// let mut feed = Feed::start(&data, &plan, &ledger, Options::default())?;
    /// feed.next()?;
    /// let state = feed.state();
    /// let second = feed.next()?.unwrap().column(0).to_vec();
    ///
    /// let mut resumed = Feed::start(&data, &plan, &ledger, Options { epochs: Some(1), ..Options::resume(&state, &data)? })?;
    /// assert_eq!(resumed.next()?.unwrap().column(0), second);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn resume(state: &FeedState, dataset: &Dataset) -> Result<Options, DataError> {
        let recipe = dataset.recipe()?;
        let compare = |what, saved: String, now: String| {
            if saved == now { Ok(()) } else { Err(DataError::OtherState { what, saved, now }) }
        };
        compare("an epoch of", format!("{} rows", state.rows), format!("{} rows", recipe.rows_of_all_shards()))?;
        compare("a batch size of", state.batch.to_string(), recipe.batch()?.to_string())?;
        compare("the row order", state.order.clone(), recipe.order())?;
        if !recipe.settings.is_ordered() && state.batches > 0 {
            let problem = "the saved position is inside an epoch whose batches came in any order, so it does not say which are left; \
                           save at the end of an epoch, or leave out deterministic(false)";
            return Err(DataError::Stage(problem.into()));
        }
        let (first_epoch, shards) = (state.epoch, recipe.shard().0);
        if state.shards == shards {
            return Ok(Options { first_epoch, first_row: state.first_row, first_batch: state.batches, epochs: None });
        }
        // Shards take turns, so what all of them have consumed together is the beginning of the epoch.
        let consumed = state.batches.saturating_mul(state.batch as u64).saturating_mul(state.shards).saturating_add(state.first_row);
        Ok(Options { first_epoch, first_row: consumed.min(state.rows), first_batch: 0, epochs: None })
    }
}

impl Feed {
    /// Reserves the plan's bytes in `ledger`, allocates them in host memory, and starts making batches.
    pub fn start(dataset: &Dataset, plan: &PipelinePlan, ledger: &Ledger, options: Options) -> Result<Feed, DataError> {
        Feed::start_in(dataset, plan, ledger, options, &mut |bytes| Ok(Box::new(AlignedBuf::new(bytes.get()))))
    }

    /// The same, with the slots in memory that `slot_memory` supplies, such as memory pinned for a device. It is asked
    /// once for each slot, after the bytes are reserved.
    pub fn start_in(
        dataset: &Dataset,
        plan: &PipelinePlan,
        ledger: &Ledger,
        options: Options,
        slot_memory: &mut dyn FnMut(Bytes) -> Result<Box<dyn SlotMemory>, DataError>,
    ) -> Result<Feed, DataError> {
        Feed::start_metered(dataset, plan, ledger, options, slot_memory, Inside::default())
    }

    /// One that makes rows for a stage of another, which goes on counting where a feed before it ended. After the epochs that were asked for
    /// it can be asked for [another](Self::another_epoch).
    pub(crate) fn start_inside(
        dataset: &Dataset,
        plan: &PipelinePlan,
        ledger: &Ledger,
        options: Options,
        meter: &Arc<Meter>,
    ) -> Result<Feed, DataError> {
        let host = &mut |bytes: Bytes| Ok(Box::new(AlignedBuf::new(bytes.get())) as Box<dyn SlotMemory>);
        Feed::start_metered(dataset, plan, ledger, options, host, Inside { meter: Arc::clone(meter), stays: true })
    }

    /// The epoch after the last is wanted, too.
    pub(crate) fn another_epoch(&mut self) {
        self.ring.another_epoch();
    }

    fn start_metered(
        dataset: &Dataset,
        plan: &PipelinePlan,
        ledger: &Ledger,
        options: Options,
        slot_memory: &mut dyn FnMut(Bytes) -> Result<Box<dyn SlotMemory>, DataError>,
        inside: Inside,
    ) -> Result<Feed, DataError> {
        let Inside { meter, stays } = &inside;
        let mut recipe = dataset.recipe()?;
        let stages = plan::cost(&recipe, plan.geometry)?;
        if stages != plan.stages() || (recipe.batch()?, recipe.group()?) != (plan.batch, plan.group) {
            return Err(DataError::OtherPlan { planned: plan.total(), needed: plan::total(&stages) });
        }
        // What inner feeds hold they reserve themselves.
        let here = plan::holdings(&recipe, plan.geometry)?.into_iter().filter(|held| !held.reserved_elsewhere);
        let reserved =
            here.map(|held| ledger.reserve(Owner::Stage(format!("data: {}", held.name)), held.bytes)).collect::<Result<Vec<_>, _>>()?;
        if plan.geometry.resident {
            let start = Instant::now();
            recipe.source = recipe.source.resident()?;
            Meter::add(&meter.read, start);
        }

        let layout = Arc::new(BlockLayout::new(&recipe.schema, plan.geometry.slot_rows));
        let nothing = Fill { epoch: 0, place: 0, rows: 0, ends_epoch: false };
        let slots = (0..plan.geometry.slots)
            .map(|_| Ok(Slot { memory: slot_memory(layout.bytes())?, fill: nothing }))
            .collect::<Result<Vec<_>, DataError>>()?;
        let rows = recipe.rows;
        if options.first_row > 0 {
            recipe.begin_after(options.first_epoch, options.first_row);
        }
        let (shards, shard) = recipe.shard();
        let left = recipe.rows_of_all_shards().saturating_sub(options.first_row).saturating_sub(shard).div_ceil(shards);
        let first_rows = match (options.first_row, recipe.settings.whole_batches()) {
            (0, _) => rows,
            (_, Some(batch)) => left - left % batch.max(1) as u64,
            (_, None) => left,
        };
        let first = options.first_batch.saturating_mul(plan.batch as u64).min(first_rows);
        // Slots begin where rows that belong together begin; the first may then hold some that were handed out before.
        let passed = if first < first_rows { first % plan.group as u64 } else { 0 };
        let schedule = Schedule {
            epoch: options.first_epoch,
            left: options.epochs,
            place: first - passed,
            epoch_rows: recipe.node.is_none().then_some(first_rows),
            later_rows: recipe.node.is_none().then_some(rows),
            whole_batches: recipe.settings.whole_batches(),
            slot_rows: plan.geometry.slot_rows,
            claim_rows: plan.geometry.claim_rows(),
        };
        let mut work = Vec::with_capacity(plan.geometry.workers);
        if recipe.node.is_some() {
            let all = SharedWork::new(&recipe, plan.geometry, schedule.place, ledger, meter, &Opener)?;
            work.extend(all.into_iter().map(|work| Worker::Stream(Box::new(work))));
        } else {
            let (pool, store) = (decode_pool(&recipe, plan.geometry)?, row_store(&recipe, plan.geometry)?);
            let rows = |_| Worker::Rows(Box::new(Work::new(&recipe, plan.geometry, pool.as_ref(), store.as_ref(), meter)));
            work.extend((0..plan.geometry.workers).map(rows));
        }
        let mixer = recipe.settings.mix.as_ref().map(|(mix, batch)| mix.mixer(&recipe.schema, batch.unwrap_or(plan.batch)));
        let mixer = mixer.transpose()?.map(Arc::new);
        let adapts =
            Adapts { workers: recipe.settings.parallelism == Parallelism::Auto, slots: recipe.settings.prefetch == Prefetch::Auto };
        let padder = Padder::new(&recipe.schema, recipe.settings.pad, plan.batch).map(Arc::new);
        let crew = Crew {
            workers: work.len(),
            adapts,
            ordered: recipe.settings.is_ordered(),
            seals: mixer.is_some() || padder.is_some(),
            stays: *stays,
        };
        // Made first: if a thread cannot be started, dropping it stops those that could.
        let mut feed = Feed {
            ring: Arc::new(Ring::new(slots, Arc::clone(&layout), schedule, crew)),
            recipe,
            layout,
            batch: plan.batch,
            workers: Vec::with_capacity(work.len()),
            meter: Arc::clone(meter),
            padder,
            current: None,
            used: 0,
            last: 0,
            passed: passed as usize,
            epoch: options.first_epoch,
            batches: options.first_batch,
            _reserved: reserved,
        };
        let (begun, all_begun) = mpsc::channel::<()>();
        for (number, work) in work.into_iter().enumerate() {
            let begun = begun.clone();
            let (ring, meter) = (Arc::clone(&feed.ring), Arc::clone(&feed.meter));
            let seal = Seal { mixer: mixer.clone(), padder: feed.padder.clone() };
            let worker = thread::Builder::new()
                .name("plimsoll-data".into())
                .stack_size(PRODUCER_STACK.get())
                .spawn(move || {
                    drop(begun);
                    produce(number, work, &seal, &meter, &ring)
                })
                .map_err(|error| DataError::Stage(format!("a thread that prepares batches could not be started: {error}; set a smaller `parallelism`, or raise the limit on processes (`ulimit -u`)")))?;
            feed.workers.push(worker);
        }
        // A thread takes some memory of its own when it begins: that is over, however late the system lets it, before anyone relies on it.
        drop(begun);
        let _ = all_begun.recv();
        Ok(feed)
    }

    /// The columns of a batch.
    pub fn schema(&self) -> &Schema {
        &self.recipe.schema
    }

    /// The next batch; `None` at the end of each epoch, after which the next epoch follows, and again and again after
    /// the last. Waits if the batch is not ready; allocates nothing.
    // Not an iterator: a batch borrows the feed, and errors differ from the ends of epochs.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Batch<'_>>, DataError> {
        while self.current.as_ref().is_none_or(|slot| self.used == slot.fill.rows) {
            if let Some(slot) = self.current.take() {
                let fill = slot.fill;
                self.ring.put_free(slot);
                if fill.ends_epoch {
                    self.epoch = fill.epoch.wrapping_add(1);
                    self.batches = 0;
                    return Ok(None);
                }
            }
            let Some(slot) = self.ring.take_filled()? else { return Ok(None) };
            self.used = std::mem::take(&mut self.passed).min(slot.fill.rows);
            self.current = Some(slot);
        }
        let there = self.current.as_ref().map_or(0, |slot| slot.fill.rows);
        self.last = self.batch.min(there - self.used);
        self.used += self.last;
        self.batches += 1;
        Ok(self.last())
    }

    /// The batch that was handed out last, until the next is asked for.
    pub(crate) fn last(&self) -> Option<Batch<'_>> {
        let (slot, offset) = (self.current.as_ref()?, self.used - self.last);
        Some(Batch {
            epoch: slot.fill.epoch,
            first_row: slot.fill.place + offset as u64,
            rows: self.last,
            memory: slot.memory.bytes(),
            layout: &self.layout,
            schema: &self.recipe.schema,
            padder: self.padder.as_deref(),
            offset,
        })
    }

    /// How busy everyone was so far, and where the time of making rows has gone.
    pub fn activity(&self) -> Activity {
        let busy = self.ring.busy();
        Activity {
            rows: self.meter.rows.load(Relaxed),
            elapsed: busy.elapsed,
            workers: self.workers.len(),
            active_workers: busy.active_workers,
            slots_in_use: busy.slots_in_use,
            consumer_waited: busy.consumer_waited,
            workers_waited: busy.workers_waited,
            times: self.meter.spent(self.workers.len()),
            cache_given_up: self.recipe.cache_bypass(),
        }
    }

    /// The epoch of the next batch, and how many of that were handed out.
    pub(crate) fn stands(&self) -> (u64, u64) {
        (self.epoch, self.batches)
    }

    /// Where the feed stands: after the batch handed out last.
    pub fn state(&self) -> FeedState {
        FeedState {
            epoch: self.epoch,
            batches: self.batches,
            first_row: self.recipe.consumed.filter(|(epoch, _)| *epoch == self.epoch).map_or(0, |(_, rows)| rows),
            shards: self.recipe.shard().0,
            batch: self.batch,
            rows: self.recipe.rows_of_all_shards(),
            order: self.recipe.order(),
        }
    }
}

impl Dataset {
    /// Reads the first epoch to count its rows.
    pub fn count_rows(&self) -> Result<u64, DataError> {
        let plan = self.plan(None)?;
        let mut feed = Feed::start(self, &plan, &Ledger::new("count", None), Options { epochs: Some(1), ..Options::default() })?;
        let mut rows = 0;
        while let Some(batch) = feed.next()? {
            rows += batch.rows as u64;
        }
        Ok(rows)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.ring.stop();
        for worker in self.workers.drain(..) {
            // It catches its panics, so there is nothing left to train on how it ended.
            let _ = worker.join();
        }
    }
}

impl<'a> Batch<'a> {
    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.layout.columns()
    }

    /// The bytes of one column: `rows` rows, one after the other, in the schema's type.
    pub fn column(&self, index: usize) -> &'a [u8] {
        let rows = self.layout.column(self.memory, index, self.offset, self.rows);
        self.padding(index).map_or(rows, |padding| padding.of_batch(rows).0)
    }

    /// The shape of one column: how many rows, and the shape of each. Padded to the longest row of the batch, it differs from batch to
    /// batch.
    pub fn shape(&self, index: usize) -> Vec<usize> {
        let mut shape = vec![self.rows];
        shape.extend_from_slice(&self.schema.columns()[index].shape);
        if let Some(padding) = self.padding(index) {
            shape[1] = padding.of_batch(self.layout.column(self.memory, index, self.offset, self.rows)).1;
        }
        shape
    }

    fn padding(&self, index: usize) -> Option<&'a Padding> {
        self.padder?.padding(index)
    }
}

/// How a feed stands inside another.
#[derive(Default)]
struct Inside {
    /// What counts its times.
    meter: Arc<Meter>,
    /// Whether its threads wait after the last epoch.
    stays: bool,
}

/// What a thread does.
enum Worker {
    Rows(Box<Work>),
    Stream(Box<SharedWork>),
}

/// What is done to the batches of a whole slot before it is handed on.
struct Seal {
    mixer: Option<Arc<Mixer>>,
    padder: Option<Arc<Padder>>,
}

impl Seal {
    fn run(&self, slot: &mut Claim<'_>) {
        let rows = slot.rows;
        self.mixer.iter().for_each(|mixer| mixer.run(slot.epoch, slot.place, slot.columns(0, rows)));
        self.padder.iter().for_each(|padder| padder.run(slot.columns(0, rows)));
    }
}

/// Makes rows until there are no more to be made.
fn produce(number: usize, mut worker: Worker, seal: &Seal, meter: &Meter, ring: &Ring) {
    while let Some(mut claim) = ring.claim(number) {
        let made = catch_unwind(AssertUnwindSafe(|| match &mut worker {
            Worker::Rows(work) => work.fill(&mut claim, || ring.stopping()),
            Worker::Stream(work) => work.fill(&mut claim, ring),
        }));
        let whole = match made.unwrap_or_else(|panic| Err(DataError::from_panic(panic))) {
            Ok(true) => ring.finish(claim, Ok(())),
            // The consumer has gone.
            Ok(false) => return,
            Err(error) => ring.finish(claim, Err(error)),
        };
        if let Some(mut slot) = whole {
            let start = Instant::now();
            let sealed = catch_unwind(AssertUnwindSafe(|| seal.run(&mut slot)));
            Meter::add(&meter.mix, start);
            ring.seal(slot, sealed.map_err(DataError::from_panic));
        }
    }
}
