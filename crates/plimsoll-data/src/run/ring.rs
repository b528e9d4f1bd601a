//! The hand-over between the threads that fill slots and the one that uses them.
//!
//! A fixed number of slots goes round: free → open → filled → free. The rows of an open slot are claimed piece by piece, in order, by any
//! number of workers, which write to where their rows belong; the worker that finishes a slot's last piece hands it on. So batches come out in
//! order whatever the number of workers. Where nobody knows how many rows there are, workers take turns: one claims rows and finds out
//! how many come, the next claims those that follow, and what is done to them they do side by side. Nobody allocates, and a wake-up is sent
//! only to those that sleep.

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
    pub fill: Fill,
}

/// What a slot holds.
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    pub epoch: u64,
    /// The place of the first row in the epoch.
    pub place: u64,
    pub rows: usize,
    pub ends_epoch: bool,
}

/// Who works at a ring.
#[derive(Clone, Copy)]
pub(crate) struct Crew {
    pub workers: usize,
    pub adapts: Adapts,
    /// Whether slots are handed on in the order of their rows.
    pub ordered: bool,
    /// Whether a whole slot goes to a worker once more before it is handed on.
    pub seals: bool,
    /// Whether workers wait for [another epoch](Ring::another_epoch) after the last.
    pub stays: bool,
}

pub(crate) struct Ring {
    layout: Arc<BlockLayout>,
    /// Whether a whole slot goes to a worker once more before it is handed on.
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
    /// In the order they will be handed on.
    open: VecDeque<Open>,
    filled: VecDeque<Slot>,
    /// How many slots were opened.
    opened: u64,
    exhausted: bool,
    /// The failure of the earliest row.
    failure: Option<Failure>,
    /// Claims that are neither finished nor failed.
    in_flight: usize,
    /// Whether someone is finding out how many rows there are.
    turn_taken: bool,
    /// How many wait until it is their turn, and how many until there is something to do.
    in_line: usize,
    sleeping_workers: usize,
    consumer_sleeps: bool,
    slots: usize,
    tuner: Tuner,
}

/// How busy both sides were since the ring was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    pub elapsed: Duration,
    pub consumer_waited: Duration,
    /// All workers together.
    pub workers_waited: Duration,
    pub active_workers: usize,
    pub slots_in_use: usize,
}

struct Failure {
    slot: u64,
    row: usize,
    error: DataError,
}

struct Open {
    /// Which of all slots that were opened.
    number: u64,
    slot: Slot,
    /// The slot's memory, taken once when it was opened: while it is open, only claims touch it.
    memory: Memory,
    /// Rows that are made, those that will be dropped included; how many of them were claimed, and by how many that have not finished.
    rows: usize,
    claimed: usize,
    working: usize,
    /// Whether nothing is left to be done to it once all its rows are there.
    sealed: bool,
}

#[derive(Clone, Copy)]
struct Memory(*mut u8);

// SAFETY: the pointer is to the memory of a `Slot`, which is `Send`; it is dereferenced only through claims, which never overlap.
unsafe impl Send for Memory {}

/// Rows of an open slot that one worker, and nobody else, writes.
pub(crate) struct Claim<'r> {
    slot: u64,
    memory: Memory,
    /// The first row's place in the slot.
    at: usize,
    pub rows: usize,
    pub epoch: u64,
    /// The first row's place in the epoch.
    pub place: u64,
    layout: &'r BlockLayout,
    ring: PhantomData<&'r Ring>,
}

impl Claim<'_> {
    /// The memory of `rows` of the claimed rows from the claim's row `from` on, column by column.
    pub fn columns(&mut self, from: usize, rows: usize) -> impl Iterator<Item = &mut [u8]> {
        assert!(from + rows <= self.rows, "a claim is written where it is");
        // SAFETY: the memory is as large as the layout says (checked when the ring was made) and stays in its slot until the claim is
        // finished, which takes the claim. The rows were claimed once, so no other claim covers them, and `&mut self` means this one is
        // not lent twice.
        unsafe { self.layout.split_raw(self.memory.0, self.at + from, rows) }
    }
}

impl Ring {
    /// # Panics
    /// If a slot's memory is smaller than the layout.
    pub fn new(slots: Vec<Slot>, layout: Arc<BlockLayout>, schedule: Schedule, crew: Crew) -> Ring {
        assert!(slots.iter().all(|slot| slot.memory.bytes().len() >= layout.bytes().get()), "slots are as large as was asked for");
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

    /// Worker number `worker`: rows to make, or `None` if there are no more to be made. Where nobody knows how many there are, the worker has
    /// its turn until it has [said](Self::settle) so.
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
                // It may have been called when it was its turn, and be asked to rest.
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
            // An epoch without rows is done when it is begun.
            state = self.hand_on(state);
            self.wake_all(&state);
        }
    }

    /// Worker: how many of the claimed rows there are, and whether they are the last of the epoch. Only where that was not known; then it is
    /// the next one's turn.
    pub fn settle(&self, claim: &mut Claim<'_>, rows: usize, ends_epoch: bool) {
        assert!(rows <= claim.rows, "no more rows than were claimed");
        let mut state = self.lock();
        let whole_batches = state.schedule.whole_batches;
        state.schedule.pass(rows as u64, ends_epoch);
        state.turn_taken = false;
        let open = state.opened_as(claim.slot);
        claim.rows = rows;
        open.claimed = claim.at + rows;
        if ends_epoch {
            open.rows = open.claimed;
            let kept = open.rows - whole_batches.map_or(0, |batch| open.rows % batch);
            open.slot.fill = Fill { rows: kept, ends_epoch, ..open.slot.fill };
            open.sealed |= kept == 0;
        }
        if state.in_line > 0 {
            self.turn.notify_one();
        }
    }

    /// Worker: how a claim went. Where slots are to be sealed, the worker that finishes one gets it as a whole, and [seals](Self::seal) it.
    pub fn finish(&self, claim: Claim<'_>, result: Result<(), DataError>) -> Option<Claim<'_>> {
        let mut state = self.lock();
        state.in_flight -= 1;
        let mut whole = None;
        match result {
            Ok(()) => {
                state.opened_as(claim.slot).working -= 1;
                whole = state.whole(claim.slot, &self.layout);
            }
            // Claims are given out in order, so every row before a failed one has been claimed: the earliest failure is always the same.
            Err(error) => {
                state.fail(&claim, error);
                self.wake_all(&state);
            }
        }
        drop(self.hand_on(state));
        whole
    }

    /// Worker: a whole slot is as it should be, or why not.
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

    /// Moves slots that are whole to the consumer.
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

    /// Consumer: the next filled slot; `None` after the last. A failure comes after all that was filled before it, and again each time.
    pub fn take_filled(&self) -> Result<Option<Slot>, DataError> {
        let mut state = self.lock();
        let ready = state.filled.len();
        if state.tuner.came(ready, Instant::now()) && state.sleeping_workers > 0 {
            self.to_do.notify_all();
        }
        loop {
            if let Some(slot) = state.filled.pop_front() {
                return Ok(Some(slot));
            }
            if state.is_over() {
                return state.failure.as_ref().map_or(Ok(None), |failure| Err(failure.error.clone()));
            }
            let since = Instant::now();
            state.consumer_sleeps = true;
            state = self.filled.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            state.consumer_sleeps = false;
            state.tuner.consumer_waited(since.elapsed());
        }
    }

    /// Consumer: a slot to be filled again.
    pub fn put_free(&self, slot: Slot) {
        let mut state = self.lock();
        state.free.push(slot);
        self.wake_workers(state);
    }

    /// Consumer: of those that were to be filled, none is left; now there is one more.
    pub fn another_epoch(&self) {
        let mut state = self.lock();
        state.schedule.left = state.schedule.left.map(|left| left + 1);
        state.exhausted = false;
        self.wake_workers(state);
    }

    /// Consumer: it wants no more. Workers find out at their next claim or chunk.
    pub fn stop(&self) {
        let state = self.lock();
        self.stopping.store(true, Ordering::Relaxed);
        self.wake_all(&state);
    }

    /// Worker: whether to give up in the middle of a claim.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// How busy both sides were so far.
    pub fn busy(&self) -> Busy {
        let state = self.lock();
        let (consumer_waited, workers_waited, elapsed) = state.tuner.waited(Instant::now());
        let (active_workers, slots_in_use) = (state.tuner.active(), state.tuner.depth());
        Busy { elapsed, consumer_waited, workers_waited, active_workers, slots_in_use }
    }

    /// All have to look again: there may be nothing more to do.
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

    /// Each method leaves the lists whole, so a panic elsewhere is no reason to stop.
    fn lock(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Open {
    /// Whether all its rows are there. One that failed never is: its claim is not given back.
    fn is_made(&self) -> bool {
        self.claimed == self.rows && self.working == 0
    }
}

impl RingState {
    /// The next rows nobody has claimed. Only the slot opened last can have any.
    fn claim<'r>(&mut self, layout: &'r BlockLayout) -> Option<Claim<'r>> {
        let (slot, claim_rows) = (self.opened.wrapping_sub(1), self.schedule.claim_rows);
        let open = self.open.back_mut()?;
        let rows = claim_rows.min(open.rows - open.claimed);
        if rows == 0 {
            return None;
        }
        let Fill { epoch, place, .. } = open.slot.fill;
        let at = open.claimed;
        open.claimed += rows;
        open.working += 1;
        self.in_flight += 1;
        self.turn_taken = self.schedule.epoch_rows.is_none();
        Some(Claim { slot, memory: open.memory, at, rows, epoch, place: place + at as u64, layout, ring: PhantomData })
    }

    /// All rows of a slot, if they are there and it is still to be sealed. Nobody else has a claim on them any more.
    fn whole<'r>(&mut self, slot: u64, layout: &'r BlockLayout) -> Option<Claim<'r>> {
        let open = self.opened_as(slot);
        let Fill { epoch, place, rows, .. } = open.slot.fill;
        if open.sealed || !open.is_made() {
            return None;
        }
        let memory = open.memory;
        self.in_flight += 1;
        Some(Claim { slot, memory, at: 0, rows, epoch, place, layout, ring: PhantomData })
    }

    fn opened_as(&mut self, number: u64) -> &mut Open {
        self.open.iter_mut().find(|open| open.number == number).expect("a slot with a claim on it is open")
    }

    /// Which of the open slots is to be handed on next, if one is whole. In any order, epochs still follow each other, and the slot that
    /// ends one is its last.
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
                self.open.push_back(Open { number: self.opened, slot, memory, rows, claimed: 0, working: 0, sealed });
                self.opened += 1;
            }
        }
    }

    /// Whether nothing more will be filled.
    fn is_over(&self) -> bool {
        self.in_flight == 0 && (self.failure.is_some() || (self.exhausted && self.open.is_empty()))
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
