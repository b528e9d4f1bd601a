//! The feed: worker threads that produce batches ahead of the consumer.

use super::input::Opener;
use super::path::{decode_pool, row_store};
use super::ring::{Claim, Crew, NextSlot, Ring, Schedule, Slot, SlotRows};
use super::shared::SharedWork;
use super::tuner::Adapts;
use super::work::Work;
use crate::block::BlockLayout;
use crate::dataset::{Parallelism, Prefetch, Recipe};
use crate::memory::AlignedBuf;
use crate::meter::{Meter, Spent, WorkerSpan};
use crate::ops::{Mixer, Padder, Padding};
use crate::plan::{self, PipelinePlan};
use crate::{DataError, Dataset, Schema};
use plimsoll_core::budget::{Owner, SlotMemory};
use plimsoll_core::{Bytes, Ledger, Reservation};
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Iterates over the batches of a data set, epoch after epoch. `start` reserves and allocates all memory; dropping
/// the feed stops its threads and frees everything.
pub struct Feed {
    recipe: Recipe,
    layout: Arc<BlockLayout>,
    batch: usize,
    ring: Arc<Ring>,
    workers: Vec<JoinHandle<()>>,
    meter: Arc<Meter>,
    padder: Option<Arc<Padder>>,
    /// The slot that the current batches come from.
    current: Option<Slot>,
    /// Rows of it already returned, and the size of the last batch returned.
    used: usize,
    last: usize,
    /// Rows of the first slot that were consumed before the feed was started.
    passed: usize,
    epoch: u64,
    /// Batches of the epoch already returned.
    batches: u64,
    // Dropped last, so that the ledger releases the bytes only after the memory is freed.
    _reserved: Vec<Reservation>,
}

/// Where a feed starts and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The first epoch; it determines the order of shuffled rows.
    pub first_epoch: u64,
    /// Rows of the first epoch already consumed with a different number of shards, summed over the shards.
    pub first_row: u64,
    /// Batches of the first epoch to skip after those rows, because they were already consumed.
    pub first_batch: u64,
    /// Number of epochs, including the first; infinite if `None`.
    pub epochs: Option<u64>,
    /// For a profile: how many spans of its worker threads to record, at most; see [`Feed::spans`].
    pub recorded_spans: usize,
}

/// A position between two batches: everything a checkpoint has to save. See [`Options::resume`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedState {
    /// The epoch of the next batch.
    pub epoch: u64,
    /// Batches of the epoch already consumed.
    pub batches: u64,
    /// Rows of the epoch consumed before those batches, with a different number of shards.
    #[serde(default)]
    pub first_row: u64,
    /// Number of shards.
    #[serde(default = "one")]
    pub shards: u64,
    /// Rows in a batch.
    pub batch: usize,
    /// Rows in an epoch, summed over all shards.
    pub rows: u64,
    /// The order of rows, including the seeds of shuffles.
    pub order: String,
}

fn one() -> u64 {
    1
}

/// Some rows of one epoch. A batch borrows the feed, because the next batch may reuse its memory.
pub struct Batch<'a> {
    /// The epoch it belongs to.
    pub epoch: u64,
    /// The position of its first row in the epoch.
    pub first_row: u64,
    /// Number of rows; less than the batch size only at the end of an epoch.
    pub rows: usize,
    memory: &'a [u8],
    layout: &'a BlockLayout,
    schema: &'a Schema,
    padder: Option<&'a Padder>,
    /// The row of the slot at which the batch starts.
    offset: usize,
}

/// What [`Feed::next_or_stop`] returns.
pub enum NextBatch<'a> {
    /// The next batch.
    Batch(Batch<'a>),
    /// The end of an epoch.
    EpochEnd,
    /// No batch was ready, and the flag is set.
    Stopped,
}

/// Statistics of a feed since it was started.
#[derive(Clone, Debug)]
pub struct Activity {
    /// Rows produced, including those not yet consumed.
    pub rows: u64,
    /// How long ago it was started.
    pub elapsed: Duration,
    /// Number of worker threads.
    pub workers: usize,
    /// Worker threads active now; fewer than `workers` if the consumer is the bottleneck.
    pub active_workers: usize,
    /// Slots of the ring in use now; fewer than planned if the consumer is the bottleneck.
    pub slots_in_use: usize,
    /// Time the consumer was blocked waiting for batches.
    pub consumer_waited: Duration,
    /// Time the workers were blocked waiting for a free slot, summed over threads.
    pub workers_waited: Duration,
    /// Time the threads spent, by step in pipeline order; for a [stream](Dataset#streams), by stage.
    pub times: Vec<Spent>,
    /// Why a cache was disabled (a full disk, or a limit), if it was.
    pub cache_given_up: Option<String>,
}

impl Options {
    /// Resumes the run that `state` was saved from: the remaining batches are the same. If the number of shards
    /// changed (and every shard saved this position), the remaining rows of the epoch are sharded again, and each row
    /// still comes exactly once. For a [stream](Dataset#streams) this requires that only maps follow `shard`.
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
            return Ok(Options { first_epoch, first_row: state.first_row, first_batch: state.batches, ..Options::default() });
        }
        // Shards take rows round-robin, so the rows that all of them consumed are a prefix of the epoch.
        let consumed = state.batches.saturating_mul(state.batch as u64).saturating_mul(state.shards).saturating_add(state.first_row);
        Ok(Options { first_epoch, first_row: consumed.min(state.rows), ..Options::default() })
    }
}

impl Feed {
    /// Reserves the plan's bytes in `ledger`, allocates them in host memory and starts the worker threads.
    pub fn start(dataset: &Dataset, plan: &PipelinePlan, ledger: &Ledger, options: Options) -> Result<Feed, DataError> {
        Feed::start_in(dataset, plan, ledger, options, &mut |bytes| Ok(Box::new(AlignedBuf::new(bytes.get()))))
    }

    /// Like [`start`](Self::start), but with slots allocated by `slot_memory`, for example in pinned memory. It is
    /// called once per slot, after the bytes are reserved.
    pub fn start_in(
        dataset: &Dataset,
        plan: &PipelinePlan,
        ledger: &Ledger,
        options: Options,
        slot_memory: &mut dyn FnMut(Bytes) -> Result<Box<dyn SlotMemory>, DataError>,
    ) -> Result<Feed, DataError> {
        Feed::start_metered(dataset, plan, ledger, options, slot_memory, &Arc::default(), false)
    }

    /// Starts a feed that reads ahead for a stage of another feed and continues the counters of an earlier one. After
    /// its epochs, it can be extended by [one more](Self::another_epoch).
    pub(crate) fn start_inside(
        dataset: &Dataset,
        plan: &PipelinePlan,
        ledger: &Ledger,
        options: Options,
        meter: &Arc<Meter>,
    ) -> Result<Feed, DataError> {
        let host = &mut |bytes: Bytes| Ok(Box::new(AlignedBuf::new(bytes.get())) as Box<dyn SlotMemory>);
        Feed::start_metered(dataset, plan, ledger, options, host, meter, true)
    }

    /// Extends the feed by one epoch.
    pub(crate) fn another_epoch(&mut self) {
        self.ring.another_epoch();
    }

    /// `meter` collects its times; if it `stays`, its threads wait for another epoch after the last one.
    fn start_metered(
        dataset: &Dataset,
        plan: &PipelinePlan,
        ledger: &Ledger,
        options: Options,
        slot_memory: &mut dyn FnMut(Bytes) -> Result<Box<dyn SlotMemory>, DataError>,
        meter: &Arc<Meter>,
        stays: bool,
    ) -> Result<Feed, DataError> {
        let mut recipe = dataset.recipe()?;
        let held = plan::holdings(&recipe, plan.geometry)?;
        let stages = plan::named(&held);
        if stages != plan.stages() || (recipe.batch()?, recipe.group()?) != (plan.batch, plan.group) {
            return Err(DataError::OtherPlan { planned: plan.total(), needed: plan::total(&stages) });
        }
        // Inner feeds make their own reservations.
        let here = held.into_iter().filter(|held| !held.reserved_elsewhere);
        let reserved =
            here.map(|held| ledger.reserve(Owner::Stage(format!("data: {}", held.name)), held.bytes)).collect::<Result<Vec<_>, _>>()?;
        if plan.geometry.resident {
            let start = Instant::now();
            recipe.source = recipe.source.resident()?;
            Meter::add(&meter.read, start);
        }

        let layout = Arc::new(BlockLayout::new(&recipe.schema, plan.geometry.slot_rows));
        let nothing = SlotRows { epoch: 0, place: 0, rows: 0, ends_epoch: false };
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
        // A slot starts at a group boundary, so the first one may contain rows that were already consumed.
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
        let crew =
            Crew { workers: work.len(), adapts, ordered: recipe.settings.is_ordered(), seals: mixer.is_some() || padder.is_some(), stays };
        // Created before the threads: if one cannot be spawned, dropping the feed stops the others.
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
        let stack = plan::stack(&feed.recipe);
        if options.recorded_spans > 0 {
            let _ = feed.meter.spans.set(Mutex::new(Vec::with_capacity(options.recorded_spans)));
        }
        let (begun, all_begun) = mpsc::channel::<()>();
        for (number, work) in work.into_iter().enumerate() {
            let begun = begun.clone();
            let (ring, meter) = (Arc::clone(&feed.ring), Arc::clone(&feed.meter));
            let seal = Seal { mixer: mixer.clone(), padder: feed.padder.clone() };
            let worker = thread::Builder::new()
                .name("plimsoll-data".into())
                .stack_size(stack.get())
                .spawn(move || {
                    drop(begun);
                    produce(number, work, &seal, &meter, &ring)
                })
                .map_err(|error| DataError::Stage(format!("a thread that prepares batches could not be started: {error}; set a smaller `parallelism`, or raise the limit on processes (`ulimit -u`)")))?;
            feed.workers.push(worker);
        }
        // A thread allocates some memory when it starts. Wait for that, so that later measurements do not see it.
        drop(begun);
        let _ = all_begun.recv();
        Ok(feed)
    }

    /// The columns of a batch.
    pub fn schema(&self) -> &Schema {
        &self.recipe.schema
    }

    /// Returns the next batch; `None` at the end of each epoch, and on every call after the last one. Blocks until
    /// the batch is ready. Does not allocate.
    // Not an `Iterator`: a batch borrows the feed, and an error is distinct from the end of an epoch.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Batch<'_>>, DataError> {
        match self.next_unless(None)? {
            NextBatch::Batch(batch) => Ok(Some(batch)),
            NextBatch::EpochEnd | NextBatch::Stopped => Ok(None),
        }
    }

    /// Like [`next`](Self::next), but returns [`NextBatch::Stopped`] instead of blocking once `stop` is set, for
    /// example by a signal handler.
    ///
    /// ```
    /// use plimsoll_core::Ledger;
    /// use plimsoll_data::{Dataset, Feed, NextBatch, Options, Split};
    /// use std::sync::atomic::AtomicBool;
    /// let data = Dataset::digits(Split::Test).batch(32);
    /// let mut feed = Feed::start(&data, &data.plan(None)?, &Ledger::new("host", None), Options::default())?;
    /// let stop = AtomicBool::new(false);
    /// match feed.next_or_stop(&stop)? {
    ///     NextBatch::Batch(batch) => assert_eq!(batch.rows, 32),
    ///     NextBatch::EpochEnd => unreachable!("there are rows"),
    ///     NextBatch::Stopped => unreachable!("nobody set the flag"),
    /// }
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn next_or_stop(&mut self, stop: &AtomicBool) -> Result<NextBatch<'_>, DataError> {
        self.next_unless(Some(stop))
    }

    fn next_unless(&mut self, stop: Option<&AtomicBool>) -> Result<NextBatch<'_>, DataError> {
        while self.current.as_ref().is_none_or(|slot| self.used == slot.fill.rows) {
            if let Some(slot) = self.current.take() {
                let fill = slot.fill;
                self.ring.put_free(slot);
                if fill.ends_epoch {
                    self.epoch = fill.epoch.wrapping_add(1);
                    self.batches = 0;
                    return Ok(NextBatch::EpochEnd);
                }
            }
            let slot = match self.ring.take_filled_unless(stop)? {
                NextSlot::Slot(slot) => slot,
                NextSlot::End => return Ok(NextBatch::EpochEnd),
                NextSlot::Stopped => return Ok(NextBatch::Stopped),
            };
            self.used = std::mem::take(&mut self.passed).min(slot.fill.rows);
            self.current = Some(slot);
        }
        let there = self.current.as_ref().map_or(0, |slot| slot.fill.rows);
        self.last = self.batch.min(there - self.used);
        self.used += self.last;
        self.batches += 1;
        Ok(self.last().map_or(NextBatch::EpochEnd, NextBatch::Batch))
    }

    /// Stops the feed without waiting for its threads, one of which may be blocked in a read. They end when that read
    /// returns; their memory is freed then.
    pub fn abandon(mut self) {
        self.ring.stop();
        // Dropping a handle detaches its thread.
        self.workers.clear();
    }

    /// The batch returned last, until the next call of `next`.
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

    /// Statistics of the feed so far.
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

    /// When its worker threads produced rows: the first spans, in the order in which they ended.
    ///
    /// ```
    /// use plimsoll_core::Ledger;
    /// use plimsoll_data::{Dataset, Feed, Options, Split};
    /// let data = Dataset::digits(Split::Test).batch(32);
    /// let options = Options { recorded_spans: 64, ..Options::default() };
    /// let mut feed = Feed::start(&data, &data.plan(None)?, &Ledger::new("host", None), options)?;
    /// while feed.next()?.is_some() {}
    /// let rows: usize = feed.spans().iter().map(|span| span.rows).sum();
    /// assert!(rows as u64 >= data.len());
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn spans(&self) -> Vec<WorkerSpan> {
        let spans = self.meter.spans.get().map(|spans| spans.lock().unwrap_or_else(PoisonError::into_inner).clone());
        spans.unwrap_or_default()
    }

    /// The epoch of the next batch, and the number of its batches already returned.
    pub(crate) fn stands(&self) -> (u64, u64) {
        (self.epoch, self.batches)
    }

    /// The position after the batch returned last.
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
    /// Reads the first epoch and counts its rows.
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
            // The worker catches its own panics, so the result carries no information.
            let _ = worker.join();
        }
    }
}

impl<'a> Batch<'a> {
    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.layout.columns()
    }

    /// The bytes of one column: `rows` consecutive rows in the dtype of the schema.
    pub fn column(&self, index: usize) -> &'a [u8] {
        let rows = self.layout.column(self.memory, index, self.offset, self.rows);
        self.padding(index).map_or(rows, |padding| padding.of_batch(rows).0)
    }

    /// The shape of one column: the number of rows, then the shape of a row. A padded column has the length of the
    /// longest row of the batch.
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

/// The work of one thread.
enum Worker {
    Rows(Box<Work>),
    Stream(Box<SharedWork>),
}

/// Steps applied to the batches of a filled slot before it is passed to the consumer.
struct Seal {
    mixer: Option<Arc<Mixer>>,
    padder: Option<Arc<Padder>>,
}

impl Seal {
    fn run(&self, slot: &mut Claim<'_>) {
        let rows = slot.rows();
        self.mixer.iter().for_each(|mixer| mixer.run(slot.epoch, slot.place, slot.columns(0, rows)));
        self.padder.iter().for_each(|padder| padder.run(slot.columns(0, rows)));
    }
}

/// Produces rows until the schedule is exhausted.
fn produce(number: usize, mut worker: Worker, seal: &Seal, meter: &Meter, ring: &Ring) {
    while let Some(mut claim) = ring.claim(number) {
        let begun = meter.spans.get().map(|_| Instant::now());
        let made = catch_unwind(AssertUnwindSafe(|| match &mut worker {
            Worker::Rows(work) => work.fill(&mut claim, || ring.stopping()),
            Worker::Stream(work) => work.fill(&mut claim, ring),
        }));
        meter.note(number, claim.rows(), begun);
        let whole = match made.unwrap_or_else(|panic| Err(DataError::from_panic(panic))) {
            Ok(true) => ring.finish(claim, Ok(())),
            // The consumer was dropped.
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
