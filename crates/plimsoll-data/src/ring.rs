//! The hand-over between the thread that fills slots and the one that uses them.
//!
//! A fixed number of slots goes round: free → filled → free. A slot is owned by whoever has taken it, so nothing but
//! the two lists is shared. Neither side allocates, and a wake-up is sent only to a side that sleeps.

use crate::DataError;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

pub(crate) struct Ring<S> {
    state: Mutex<State<S>>,
    filled: Condvar,
    freed: Condvar,
    stopping: AtomicBool,
}

struct State<S> {
    free: Vec<S>,
    filled: VecDeque<S>,
    /// How the producer ended, once it has.
    end: Option<Result<(), DataError>>,
    producer_sleeps: bool,
    consumer_sleeps: bool,
}

impl<S> Ring<S> {
    pub fn new(slots: Vec<S>) -> Ring<S> {
        let filled = VecDeque::with_capacity(slots.len());
        Ring {
            state: Mutex::new(State { free: slots, filled, end: None, producer_sleeps: false, consumer_sleeps: false }),
            filled: Condvar::new(),
            freed: Condvar::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Producer: a slot to fill, or `None` if the consumer has gone.
    pub fn take_free(&self) -> Option<S> {
        let mut state = self.lock();
        loop {
            if self.stopping() {
                return None;
            }
            if let Some(slot) = state.free.pop() {
                return Some(slot);
            }
            state.producer_sleeps = true;
            state = self.freed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            state.producer_sleeps = false;
        }
    }

    /// Producer: a slot for the consumer, after those already filled.
    pub fn put_filled(&self, slot: S) {
        let mut state = self.lock();
        state.filled.push_back(slot);
        self.wake_consumer(state);
    }

    /// Producer: nothing more will come, and why.
    pub fn end(&self, result: Result<(), DataError>) {
        let mut state = self.lock();
        state.end = Some(result);
        self.wake_consumer(state);
    }

    /// Consumer: the next filled slot; `None` after the last. An error of the producer comes after all it had filled,
    /// and again each time.
    pub fn take_filled(&self) -> Result<Option<S>, DataError> {
        let mut state = self.lock();
        loop {
            if let Some(slot) = state.filled.pop_front() {
                return Ok(Some(slot));
            }
            if let Some(end) = &state.end {
                return end.clone().map(|()| None);
            }
            state.consumer_sleeps = true;
            state = self.filled.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            state.consumer_sleeps = false;
        }
    }

    /// Consumer: a slot to be filled again.
    pub fn put_free(&self, slot: S) {
        let mut state = self.lock();
        state.free.push(slot);
        self.wake_producer(state);
    }

    /// Consumer: it wants no more. The producer finds out at its next slot or chunk.
    pub fn stop(&self) {
        let state = self.lock();
        self.stopping.store(true, Ordering::Relaxed);
        self.wake_producer(state);
    }

    /// Producer: whether to give up in the middle of a slot.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn wake_consumer(&self, state: MutexGuard<'_, State<S>>) {
        if state.consumer_sleeps {
            drop(state);
            self.filled.notify_one();
        }
    }

    fn wake_producer(&self, state: MutexGuard<'_, State<S>>) {
        if state.producer_sleeps {
            drop(state);
            self.freed.notify_one();
        }
    }

    /// Each method leaves the lists whole, so a panic elsewhere is no reason to stop.
    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn slots_arrive_in_the_order_they_were_filled() {
        for slots in 1..4 {
            let ring = Ring::new(vec![0u64; slots]);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for number in 0..10_000 {
                        let mut slot = ring.take_free().unwrap();
                        slot = number.max(slot);
                        ring.put_filled(slot);
                    }
                    ring.end(Ok(()));
                });
                for number in 0..10_000 {
                    let slot = ring.take_filled().unwrap().unwrap();
                    assert_eq!(slot, number);
                    ring.put_free(slot);
                }
                assert!(ring.take_filled().unwrap().is_none());
            });
        }
    }

    #[test]
    fn a_consumer_that_leaves_frees_a_waiting_producer() {
        let ring = Ring::new(vec![1]);
        thread::scope(|scope| {
            let producer = scope.spawn(|| {
                let slot = ring.take_free().unwrap();
                ring.put_filled(slot);
                ring.take_free()
            });
            let _held = ring.take_filled().unwrap();
            ring.stop();
            assert_eq!(producer.join().unwrap(), None);
        });
    }

    #[test]
    fn an_error_comes_after_what_was_filled_and_stays() {
        let ring = Ring::new(vec![1]);
        let slot = ring.take_free().unwrap();
        ring.put_filled(slot);
        ring.end(Err(DataError::Stage("broken".into())));
        assert_eq!(ring.take_filled().unwrap(), Some(1));
        for _ in 0..2 {
            assert_eq!(ring.take_filled().unwrap_err().to_string(), "broken");
        }
    }
}
