//! The feed: batches, made by one thread ahead of the consumer.

use crate::block::BlockLayout;
use crate::memory::{AlignedBuf, SlotMemory};
use crate::plan::{self, PRODUCER_STACK, PipelinePlan};
use crate::recipe::Recipe;
use crate::ring::Ring;
use crate::work::Work;
use crate::{DataError, Dataset, Schema};
use plimsoll_core::{Bytes, Ledger, Reservation};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Batches of a data set, epoch after epoch. All memory is reserved and allocated when it starts; dropping it stops
/// its thread and gives everything back.
pub struct Feed {
    recipe: Recipe,
    layout: Arc<BlockLayout>,
    batch: usize,
    ring: Arc<Ring<Slot>>,
    producer: Option<JoinHandle<()>>,
    /// The slot batches are being handed out from.
    current: Option<Slot>,
    /// Rows of it already handed out.
    used: usize,
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
    /// Batches of that epoch to leave out, because they were consumed before.
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
    /// Rows in a batch.
    pub batch: usize,
    /// Rows in an epoch.
    pub rows: u64,
    /// How rows are reordered, seeds included.
    pub order: String,
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
    /// Where it begins in the slot.
    offset: usize,
}

struct Slot {
    memory: Box<dyn SlotMemory>,
    fill: Fill,
}

/// What a slot holds.
#[derive(Clone, Copy)]
struct Fill {
    epoch: u64,
    /// The place of the first row in the epoch.
    place: u64,
    rows: usize,
    ends_epoch: bool,
}

impl Options {
    /// The rest of the run `state` was taken from; the remaining batches are exactly those it would have given.
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
        compare("an epoch of", format!("{} rows", state.rows), format!("{} rows", recipe.rows))?;
        compare("a batch size of", state.batch.to_string(), recipe.batch()?.to_string())?;
        compare("the row order", state.order.clone(), recipe.order())?;
        Ok(Options { first_epoch: state.epoch, first_batch: state.batches, epochs: None })
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
        let recipe = dataset.recipe()?;
        let stages = plan::cost(&recipe, plan.geometry);
        if stages != plan.stages() || recipe.batch()? != plan.batch {
            return Err(DataError::OtherPlan { planned: plan.total(), needed: plan::total(&stages) });
        }
        let reserved =
            stages.iter().map(|(name, bytes)| ledger.reserve(&format!("data: {name}"), *bytes)).collect::<Result<Vec<_>, _>>()?;

        let layout = Arc::new(BlockLayout::new(&recipe.schema, plan.geometry.slot_rows));
        let nothing = Fill { epoch: 0, place: 0, rows: 0, ends_epoch: false };
        let slots = (0..plan.geometry.slots)
            .map(|_| Ok(Slot { memory: slot_memory(layout.bytes())?, fill: nothing }))
            .collect::<Result<Vec<_>, DataError>>()?;
        let ring = Arc::new(Ring::new(slots));
        let start = Start { options, batch: plan.batch, slot_rows: plan.geometry.slot_rows };
        let mut work = Work::new(&recipe, plan.geometry, Arc::clone(&layout));
        let producer = {
            let ring = Arc::clone(&ring);
            thread::Builder::new()
                .name("plimsoll-data".into())
                .stack_size(PRODUCER_STACK.get())
                .spawn(move || {
                    let outcome = catch_unwind(AssertUnwindSafe(|| produce(&mut work, &ring, start)));
                    // The buffers go before the end is announced: once it is, the consumer may give their bytes back.
                    drop(work);
                    ring.end(outcome.unwrap_or_else(|panic| Err(DataError::Panic { message: message_of(panic) })));
                })
                .map_err(|error| DataError::Stage(format!("the thread that makes batches could not be started: {error}")))?
        };
        Ok(Feed {
            recipe,
            layout,
            batch: plan.batch,
            ring,
            producer: Some(producer),
            current: None,
            used: 0,
            epoch: options.first_epoch,
            batches: options.first_batch,
            _reserved: reserved,
        })
    }

    /// The columns of a batch.
    pub fn schema(&self) -> &Schema {
        &self.recipe.schema
    }

    /// The next batch; `None` at the end of each epoch, after which the next epoch follows, and again and again after
    /// the last. Waits if the batch is not ready; allocates nothing.
    // Not an iterator: a batch borrows the feed, and errors and epoch ends are told apart.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Batch<'_>>, DataError> {
        if let Some(slot) = self.current.take_if(|slot| self.used == slot.fill.rows) {
            let fill = slot.fill;
            self.ring.put_free(slot);
            if fill.ends_epoch {
                self.epoch = fill.epoch + 1;
                self.batches = 0;
                return Ok(None);
            }
        }
        if self.current.is_none() {
            let Some(slot) = self.ring.take_filled()? else { return Ok(None) };
            self.used = 0;
            if slot.fill.rows == 0 {
                self.epoch = slot.fill.epoch + 1;
                self.batches = 0;
                self.ring.put_free(slot);
                return Ok(None);
            }
            self.current = Some(slot);
        }
        let slot = self.current.as_ref().expect("a slot was taken");
        let offset = self.used;
        let rows = self.batch.min(slot.fill.rows - offset);
        self.used += rows;
        self.batches += 1;
        Ok(Some(Batch {
            epoch: slot.fill.epoch,
            first_row: slot.fill.place + offset as u64,
            rows,
            memory: slot.memory.bytes(),
            layout: &self.layout,
            offset,
        }))
    }

    /// Where the feed stands: after the batch handed out last.
    pub fn state(&self) -> FeedState {
        FeedState { epoch: self.epoch, batches: self.batches, batch: self.batch, rows: self.recipe.rows, order: self.recipe.order() }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.ring.stop();
        if let Some(producer) = self.producer.take() {
            // It catches its panics, so there is nothing left to learn from how it ended.
            let _ = producer.join();
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
        self.layout.column(self.memory, index, self.offset, self.rows)
    }
}

#[derive(Clone, Copy)]
struct Start {
    options: Options,
    batch: usize,
    slot_rows: usize,
}

/// Fills slots, epoch after epoch, until the last or until the consumer leaves.
fn produce(work: &mut Work, ring: &Ring<Slot>, start: Start) -> Result<(), DataError> {
    let Start { options, batch, slot_rows } = start;
    let rows = work.rows();
    let mut place = options.first_batch.saturating_mul(batch as u64).min(rows);
    let mut epoch = options.first_epoch;
    let mut left = options.epochs;
    while left != Some(0) {
        work.set_epoch(epoch);
        loop {
            let Some(mut slot) = ring.take_free() else { return Ok(()) };
            let count = (rows - place).min(slot_rows as u64) as usize;
            if !work.fill(slot.memory.bytes_mut(), place, count, || ring.stopping())? {
                return Ok(());
            }
            let ends_epoch = place + count as u64 == rows;
            slot.fill = Fill { epoch, place, rows: count, ends_epoch };
            ring.put_filled(slot);
            place += count as u64;
            if ends_epoch {
                break;
            }
        }
        place = 0;
        epoch += 1;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

fn message_of(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".into())
}
