//! The ring buffer between the workers that fill slots and the consumer that empties them.
//!
//! A fixed number of slots cycles through the states free → open → filled → free. Any number of workers claim chunks
//! of rows of an open slot, in order, and write them in place; the worker that finishes the last chunk passes the
//! slot on. So the order of batches does not depend on the number of workers. If the number of rows is unknown,
//! workers take turns: one claims rows and determines how many there are, then the next claims the following ones,
//! and the maps run in parallel. No thread allocates, and wake-ups are sent only to sleeping threads.

mod schedule;

pub(crate) use schedule::Schedule;

use super::tuner::{Adapts, Tuner};
use crate::DataError;
use crate::block::BlockLayout;
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard};
use plimsoll_core::budget::SlotMemory;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(crate) struct Slot {
    pub memory: Box<dyn SlotMemory>,
    pub fill: SlotRows,
}

/// A flag that a signal handler may set.
pub(crate) type StopFlag = std::sync::atomic::AtomicBool;

/// How often a blocked consumer looks at its flag.
const STOP_CHECK: Duration = Duration::from_millis(20);

/// What the consumer gets.
pub(crate) enum NextSlot {
    Slot(Slot),
    /// There will be no more.
    End,
    /// None is filled, and the flag is set.
    Stopped,
}

/// The rows of a slot.
#[derive(Clone, Copy)]
pub(crate) struct SlotRows {
    pub epoch: u64,
    /// The position of the first row in the epoch.
    pub place: u64,
    pub rows: usize,
    pub ends_epoch: bool,
}

/// The workers of a ring.
#[derive(Clone, Copy)]
pub(crate) struct Crew {
    pub workers: usize,
    pub adapts: Adapts,
    /// Whether slots are passed on in the order of their rows.
    pub ordered: bool,
    /// Whether a filled slot is given to a worker for sealing before it is passed on.
    pub seals: bool,
    /// Whether workers wait for [another epoch](Ring::another_epoch) after the last one.
    pub stays: bool,
}

pub(crate) struct Ring {
    layout: Arc<BlockLayout>,
    /// Whether a filled slot is given to a worker for sealing before it is passed on.
    seals: bool,
    ordered: bool,
    stays: bool,
    state: Mutex<RingState>,
    filled: Condvar,
    to_do: Condvar,
    turn: Condvar,
    stopping: AtomicBool,
}

struct RingState {
    schedule: Schedule,
    free: Vec<Slot>,
    /// In the order in which they are passed on.
    open: VecDeque<OpenSlot>,
    filled: VecDeque<Slot>,
    /// Number of slots opened so far.
    opened: u64,
    exhausted: bool,
    /// The failure of the earliest row.
    failure: Option<Failure>,
    /// Claims that have neither finished nor failed.
    in_flight: usize,
    /// Whether a worker has the turn to determine the number of rows.
    turn_taken: bool,
    /// Number of workers waiting for their turn, and number of workers waiting for work.
    in_line: usize,
    sleeping_workers: usize,
    consumer_sleeps: bool,
    slots: usize,
    tuner: Tuner,
}

/// Wait times of both sides since the ring was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    pub elapsed: Duration,
    pub consumer_waited: Duration,
    /// Summed over all workers.
    pub workers_waited: Duration,
    pub active_workers: usize,
    pub slots_in_use: usize,
}

struct Failure {
    slot: u64,
    row: usize,
    error: DataError,
}

struct OpenSlot {
    /// Sequence number of the slot, counted over all slots opened.
    number: u64,
    slot: Slot,
    /// The slot's memory, borrowed once when it is opened: while it is open, only claims access it.
    memory: Memory,
    /// Rows to produce, including those that will be dropped; the number claimed; and the number of unfinished
    /// claims.
    rows: usize,
    claimed: usize,
    working: usize,
    /// Whether the slot needs no further work once all its rows are written.
    sealed: bool,
}

#[derive(Clone, Copy)]
struct Memory(*mut u8);

// SAFETY: the pointer is to the memory of a `Slot`, which is `Send`; it is dereferenced only through claims, which
// never overlap.
unsafe impl Send for Memory {}

/// Rows of an open slot that one worker has exclusive access to.
pub(crate) struct Claim<'r> {
    slot: u64,
    memory: Memory,
    /// The position of the first row in the slot.
    at: usize,
    rows: usize,
    pub epoch: u64,
    /// The position of the first row in the epoch.
    pub place: u64,
    layout: &'r BlockLayout,
    ring: PhantomData<&'r Ring>,
}

impl Claim<'_> {
    /// Number of claimed rows. Not a public field: a claim with more rows than were claimed would reach those of
    /// others.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The memory of `rows` claimed rows, starting at row `from` of the claim, one slice per column.
    pub fn columns(&mut self, from: usize, rows: usize) -> impl Iterator<Item = &mut [u8]> {
        assert!(from <= self.rows && rows <= self.rows - from, "a claim is written where it is");
        // SAFETY: the memory has the size of the layout (checked whenever the ring receives a slot), and the ring keeps
        // the slot until the claim is finished, which consumes the claim. The contract of `SlotMemory` keeps the
        // address valid wherever the slot is moved. The rows were claimed once, so no other claim covers them, and
        // `&mut self` prevents a second borrow through this one.
        unsafe { self.layout.split_raw(self.memory.0, self.at + from, rows) }
    }
}

impl Ring {
    /// # Panics
    /// If a slot's memory is smaller than the layout.
    pub fn new(slots: Vec<Slot>, layout: Arc<BlockLayout>, schedule: Schedule, crew: Crew) -> Ring {
        slots.iter().for_each(|slot| check_size(slot, &layout));
        let state = RingState {
            schedule,
            open: VecDeque::with_capacity(slots.len()),
            filled: VecDeque::with_capacity(slots.len()),
            slots: slots.len(),
            tuner: Tuner::new(crew.workers, slots.len(), crew.adapts, Instant::now()),
            free: slots,
            opened: 0,
            exhausted: false,
            failure: None,
            in_flight: 0,
            turn_taken: false,
            in_line: 0,
            sleeping_workers: 0,
            consumer_sleeps: false,
        };
        Ring {
            layout,
            seals: crew.seals,
            ordered: crew.ordered,
            stays: crew.stays,
            state: Mutex::new(state),
            filled: Condvar::new(),
            to_do: Condvar::new(),
            turn: Condvar::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// For worker number `worker`: claims rows to produce; `None` if none are left. If the number of rows is unknown,
    /// the worker has the turn until it calls [`settle`](Self::settle).
    pub fn claim(&self, worker: usize) -> Option<Claim<'_>> {
        let mut state = self.lock();
        loop {
            if self.stopping() || state.failure.is_some() {
                return None;
            }
            let rests = worker >= state.tuner.active();
            if !rests && state.turn_taken {
                let since = Instant::now();
                state.in_line += 1;
                state = self.turn.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                state.in_line -= 1;
                state.tuner.waited_in_line(since.elapsed());
                continue;
            }
            if !rests && let Some(claim) = state.claim(&self.layout) {
                return Some(claim);
            }
            if state.exhausted && !self.stays {
                return None;
            }
            if rests || state.exhausted || state.free.is_empty() || state.slots - state.free.len() >= state.tuner.depth() {
                // This worker may have been woken for its turn and then been paused, so wake another one.
                if state.in_line > 0 && !state.turn_taken {
                    self.turn.notify_one();
                }
                let since = Instant::now();
                state.sleeping_workers += 1;
                state = self.to_do.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                state.sleeping_workers -= 1;
                if !rests {
                    state.tuner.worker_waited(since.elapsed());
                }
                continue;
            }
            state.open_next(self.seals);
            // An epoch without rows is complete as soon as it starts.
            state = self.hand_on(state);
            self.wake_all(&state);
        }
    }

    /// For workers: sets how many of the claimed rows exist, and whether they are the last of the epoch. Called only
    /// if that was unknown; it passes the turn to the next worker.
    pub fn settle(&self, claim: &mut Claim<'_>, rows: usize, ends_epoch: bool) {
        assert!(rows <= claim.rows, "no more rows than were claimed");
        let mut state = self.lock();
        // Rows that are given back must not have been claimed again.
        let has_turn = state.turn_taken && state.opened_as(claim.slot).claimed == claim.at + claim.rows;
        assert!(has_turn, "the number of rows is set once, in turn");
        let whole_batches = state.schedule.whole_batches;
        state.schedule.pass(rows as u64, ends_epoch);
        state.turn_taken = false;
        let open = state.opened_as(claim.slot);
        claim.rows = rows;
        open.claimed = claim.at + rows;
        if ends_epoch {
            open.rows = open.claimed;
            let kept = open.rows - whole_batches.map_or(0, |batch| open.rows % batch);
            open.slot.fill = SlotRows { rows: kept, ends_epoch, ..open.slot.fill };
            open.sealed |= kept == 0;
        }
        if state.in_line > 0 {
            self.turn.notify_one();
        }
    }

    /// For workers: finishes a claim. If slots are sealed, the worker that completes a slot receives all of it and
    /// must [seal](Self::seal) it.
    pub fn finish(&self, claim: Claim<'_>, result: Result<(), DataError>) -> Option<Claim<'_>> {
        let mut state = self.lock();
        state.in_flight -= 1;
        let mut whole = None;
        match result {
            Ok(()) => {
                state.opened_as(claim.slot).working -= 1;
                whole = state.whole(claim.slot, &self.layout);
            }
            // Claims are handed out in order, so every row before a failed one has been claimed: the earliest failure
            // is deterministic.
            Err(error) => {
                state.fail(&claim, error);
                self.wake_all(&state);
            }
        }
        drop(self.hand_on(state));
        whole
    }

    /// For workers: marks a filled slot as sealed, or as failed.
    pub fn seal(&self, slot: Claim<'_>, result: Result<(), DataError>) {
        let mut state = self.lock();
        state.in_flight -= 1;
        match result {
            Ok(()) => {
                state.opened_as(slot.slot).sealed = true;
            }
            Err(error) => {
                state.fail(&slot, error);
                self.wake_all(&state);
            }
        }
        drop(self.hand_on(state));
    }

    /// Passes completed slots to the consumer.
    fn hand_on<'s>(&self, mut state: MutexGuard<'s, RingState>) -> MutexGuard<'s, RingState> {
        while let Some(next) = state.next_whole(self.ordered) {
            let open = state.open.remove(next).expect("just seen");
            state.filled.push_back(open.slot);
        }
        if state.consumer_sleeps && (!state.filled.is_empty() || state.is_over()) {
            self.filled.notify_one();
        }
        state
    }

    /// For the consumer: the next filled slot; `None` after the last one. A failure is returned after all slots
    /// filled before it, and on every later call.
    #[cfg(test)]
    pub fn take_filled(&self) -> Result<Option<Slot>, DataError> {
        match self.take_filled_unless(None)? {
            NextSlot::Slot(slot) => Ok(Some(slot)),
            NextSlot::End | NextSlot::Stopped => Ok(None),
        }
    }

    /// Like [`take_filled`](Self::take_filled), but gives up when none is filled and `stop` is set. A signal handler
    /// can set a flag but wake no thread, so a consumer with a flag wakes up from time to time.
    pub fn take_filled_unless(&self, stop: Option<&StopFlag>) -> Result<NextSlot, DataError> {
        let mut state = self.lock();
        let ready = state.filled.len();
        if state.tuner.came(ready, Instant::now()) && state.sleeping_workers > 0 {
            self.to_do.notify_all();
        }
        loop {
            if let Some(slot) = state.filled.pop_front() {
                return Ok(NextSlot::Slot(slot));
            }
            if state.is_over() {
                return state.failure.as_ref().map_or(Ok(NextSlot::End), |failure| Err(failure.error.clone()));
            }
            if stop.is_some_and(|stop| stop.load(Ordering::SeqCst)) {
                return Ok(NextSlot::Stopped);
            }
            let since = Instant::now();
            state.consumer_sleeps = true;
            state = match stop {
                None => self.filled.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
                Some(_) => self.filled.wait_timeout(state, STOP_CHECK).unwrap_or_else(|poisoned| poisoned.into_inner()).0,
            };
            state.consumer_sleeps = false;
            state.tuner.consumer_waited(since.elapsed());
        }
    }

    /// For the consumer: returns a slot to the free list.
    ///
    /// # Panics
    /// If the slot's memory is smaller than the layout.
    pub fn put_free(&self, slot: Slot) {
        check_size(&slot, &self.layout);
        let mut state = self.lock();
        state.free.push(slot);
        self.wake_workers(state);
    }

    /// For the consumer, after the last scheduled epoch: schedules one more.
    pub fn another_epoch(&self) {
        let mut state = self.lock();
        state.schedule.left = state.schedule.left.map(|left| left + 1);
        state.exhausted = false;
        self.wake_workers(state);
    }

    /// For the consumer: stops the ring. Workers notice at their next claim or chunk.
    pub fn stop(&self) {
        let state = self.lock();
        self.stopping.store(true, Ordering::Relaxed);
        self.wake_all(&state);
    }

    /// For workers: whether to abandon a claim.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Wait times of both sides so far.
    pub fn busy(&self) -> Busy {
        let state = self.lock();
        let (consumer_waited, workers_waited, elapsed) = state.tuner.waited(Instant::now());
        let (active_workers, slots_in_use) = (state.tuner.active(), state.tuner.depth());
        Busy { elapsed, consumer_waited, workers_waited, active_workers, slots_in_use }
    }

    /// Wakes every waiting thread, because there may be no work left.
    fn wake_all(&self, state: &RingState) {
        if state.sleeping_workers > 0 {
            self.to_do.notify_all();
        }
        if state.in_line > 0 {
            self.turn.notify_all();
        }
    }

    fn wake_workers(&self, state: MutexGuard<'_, RingState>) {
        if state.sleeping_workers > 0 {
            drop(state);
            self.to_do.notify_all();
        }
    }

    /// Every method leaves the state consistent, so a poisoned lock can be used.
    fn lock(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Workers write a slot through its address alone, so its size is checked before they can.
fn check_size(slot: &Slot, layout: &BlockLayout) {
    assert!(slot.memory.bytes().len() >= layout.bytes().get(), "slots are as large as was asked for");
}

impl OpenSlot {
    /// Whether all its rows are written. Never true for a slot with a failed row, whose claim is not returned.
    fn is_made(&self) -> bool {
        self.claimed == self.rows && self.working == 0
    }
}

impl RingState {
    /// Claims the next unclaimed rows. Only the slot opened last can have any.
    fn claim<'r>(&mut self, layout: &'r BlockLayout) -> Option<Claim<'r>> {
        let (slot, claim_rows) = (self.opened.wrapping_sub(1), self.schedule.claim_rows);
        let open = self.open.back_mut()?;
        let rows = claim_rows.min(open.rows - open.claimed);
        if rows == 0 {
            return None;
        }
        let SlotRows { epoch, place, .. } = open.slot.fill;
        let at = open.claimed;
        open.claimed += rows;
        open.working += 1;
        self.in_flight += 1;
        self.turn_taken = self.schedule.epoch_rows.is_none();
        Some(Claim { slot, memory: open.memory, at, rows, epoch, place: place + at as u64, layout, ring: PhantomData })
    }

    /// A claim on all rows of a slot, if they are written and the slot is not sealed. No other claim on them is left.
    fn whole<'r>(&mut self, slot: u64, layout: &'r BlockLayout) -> Option<Claim<'r>> {
        let open = self.opened_as(slot);
        let SlotRows { epoch, place, rows, .. } = open.slot.fill;
        if open.sealed || !open.is_made() {
            return None;
        }
        let memory = open.memory;
        self.in_flight += 1;
        Some(Claim { slot, memory, at: 0, rows, epoch, place, layout, ring: PhantomData })
    }

    fn opened_as(&mut self, number: u64) -> &mut OpenSlot {
        self.open.iter_mut().find(|open| open.number == number).expect("a slot with a claim on it is open")
    }

    /// The index of the next open slot to pass on, if one is complete. Without ordering, epochs still follow each
    /// other, and the slot that ends an epoch comes last.
    fn next_whole(&self, ordered: bool) -> Option<usize> {
        let epoch = self.open.front()?.slot.fill.epoch;
        self.open.iter().take(if ordered { 1 } else { self.open.len() }).enumerate().position(|(at, open)| {
            let fill = &open.slot.fill;
            open.sealed && open.is_made() && fill.epoch == epoch && (at == 0 || !fill.ends_epoch)
        })
    }

    fn fail(&mut self, claim: &Claim<'_>, error: DataError) {
        let earlier = self.failure.as_ref().is_none_or(|known| (claim.slot, claim.at) < (known.slot, known.row));
        if earlier {
            self.failure = Some(Failure { slot: claim.slot, row: claim.at, error });
        }
    }

    /// Opens a free slot for the next rows.
    fn open_next(&mut self, seals: bool) {
        match self.schedule.next() {
            None => self.exhausted = true,
            Some(fill) => {
                let mut slot = self.free.pop().expect("asked for only when there is one");
                slot.fill = fill;
                let memory = Memory(slot.memory.bytes_mut().as_mut_ptr());
                let (rows, sealed) = (fill.rows, !seals || fill.rows == 0);
                self.open.push_back(OpenSlot { number: self.opened, slot, memory, rows, claimed: 0, working: 0, sealed });
                self.opened += 1;
            }
        }
    }

    /// Whether no further slot will be filled.
    fn is_over(&self) -> bool {
        self.in_flight == 0 && (self.failure.is_some() || (self.exhausted && self.open.is_empty()))
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
