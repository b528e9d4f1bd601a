//! How many of the workers and slots that the plan reserved are in use.
//!
//! Nothing is taken or given back: what is not in use rests. A consumer that waits wakes all that may work; one that is slower than the
//! workers needs fewer of them, and fewer slots, which then stay in the processor's caches. What comes out is the same.

use std::time::{Duration, Instant};

/// Looks at a window of time after the other.
pub(crate) struct Tuner {
    workers: usize,
    slots: usize,
    /// What may rest: not where a number was asked for.
    adapts: Adapts,
    active: usize,
    depth: usize,
    window: TuningInterval,
    begun: Instant,
    consumer_waited: Duration,
    workers_waited: Duration,
}

/// What the tuner is free to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adapts {
    pub workers: bool,
    pub slots: bool,
}

/// What happened lately.
#[derive(Clone, Copy)]
struct TuningInterval {
    since: Instant,
    slots: u32,
    consumer_waited: Duration,
    workers_waited: Duration,
    /// How long workers waited for each other.
    in_line: Duration,
    /// The fewest slots that were ready when the consumer came.
    spare: usize,
}

impl TuningInterval {
    fn new(since: Instant) -> TuningInterval {
        TuningInterval {
            since,
            slots: 0,
            consumer_waited: Duration::ZERO,
            workers_waited: Duration::ZERO,
            in_line: Duration::ZERO,
            spare: usize::MAX,
        }
    }
}

/// A window is long enough to tell one consumer from another, and short beside an epoch.
const SLOTS: u32 = 8;
const TIME: Duration = Duration::from_millis(50);

/// A consumer that waits for more than this share of the time is waiting for the pipeline, not for a lock.
const STARVED: f64 = 0.02;

/// A worker rests when all together are idle for this much more than one worker's time.
const MARGIN: f64 = 1.25;

/// Where workers wait for each other for more than this much of one worker's time, another one would only wait with them.
const ENOUGH: f64 = 0.25;

/// One slot with the consumer, one being filled.
const LEAST_DEPTH: usize = 2;

impl Tuner {
    pub fn new(workers: usize, slots: usize, adapts: Adapts, now: Instant) -> Tuner {
        Tuner {
            workers,
            slots,
            adapts,
            active: workers,
            depth: slots,
            window: TuningInterval::new(now),
            begun: now,
            consumer_waited: Duration::ZERO,
            workers_waited: Duration::ZERO,
        }
    }

    /// How many workers may work.
    pub fn active(&self) -> usize {
        self.active
    }

    /// So many may work, whatever was seen.
    #[cfg(all(test, loom))]
    pub fn set_active(&mut self, workers: usize) {
        self.active = workers;
    }

    /// How many slots may be in use.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// How long the consumer, and how long all workers together, have waited since the beginning, and how long ago that was.
    pub fn waited(&self, now: Instant) -> (Duration, Duration, Duration) {
        (self.consumer_waited, self.workers_waited, now - self.begun)
    }

    pub fn consumer_waited(&mut self, time: Duration) {
        self.consumer_waited += time;
        self.window.consumer_waited += time;
    }

    /// A worker had nothing to do because there was no slot for it.
    pub fn worker_waited(&mut self, time: Duration) {
        self.workers_waited += time;
        self.window.workers_waited += time;
    }

    /// A worker had nothing to do because it was the turn of another to take rows out of a stream.
    pub fn waited_in_line(&mut self, time: Duration) {
        self.window.in_line += time;
    }

    /// The consumer came for a slot and found some ready. Says whether more may work than before.
    pub fn came(&mut self, ready: usize, now: Instant) -> bool {
        self.window.slots += 1;
        self.window.spare = self.window.spare.min(ready);
        let elapsed = now - self.window.since;
        if self.window.slots < SLOTS || elapsed < TIME {
            return false;
        }
        let window = std::mem::replace(&mut self.window, TuningInterval::new(now));
        let before = (self.active, self.depth);
        let share = |time: Duration| time.as_secs_f64() / elapsed.as_secs_f64();
        let (in_line, starved) = (share(window.in_line), share(window.consumer_waited) > STARVED);
        let idle = if starved { in_line } else { in_line + share(window.workers_waited) };
        if self.adapts.workers && self.active > 1 && idle > MARGIN {
            self.active -= 1;
        } else if starved && in_line <= ENOUGH {
            self.active = self.workers;
        }
        if starved {
            self.depth = self.slots;
        } else if self.adapts.slots && self.depth > LEAST_DEPTH && window.spare >= 2 {
            self.depth -= 1;
        }
        self.active > before.0 || self.depth > before.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Adapts = Adapts { workers: true, slots: true };

    /// One window in which the consumer and the workers waited for some shares of the time.
    fn window(tuner: &mut Tuner, now: &mut Instant, consumer: f64, workers: f64, ready: usize) -> bool {
        let time = Duration::from_millis(100);
        tuner.consumer_waited(time.mul_f64(consumer));
        tuner.worker_waited(time.mul_f64(workers));
        *now += time;
        (0..SLOTS).any(|_| tuner.came(ready, *now))
    }

    #[test]
    fn a_slow_consumer_needs_fewer_and_a_fast_one_gets_all_again() {
        let mut now = Instant::now();
        let mut tuner = Tuner::new(4, 5, BOTH, now);
        let mut seen = Vec::new();
        // All that the consumer takes is made by one worker in two thirds of its time.
        for _ in 0..6 {
            let idle = tuner.active() as f64 - 0.67;
            assert!(!window(&mut tuner, &mut now, 0.0, idle, 3));
            seen.push((tuner.active(), tuner.depth()));
        }
        assert_eq!(seen, [(3, 4), (2, 3), (1, 2), (1, 2), (1, 2), (1, 2)]);
        assert!(window(&mut tuner, &mut now, 0.3, 0.0, 0), "those that rest are woken");
        assert_eq!((tuner.active(), tuner.depth()), (4, 5));
        // Three workers are just what it takes.
        for _ in 0..4 {
            let idle = tuner.active() as f64 - 2.5;
            window(&mut tuner, &mut now, 0.0, idle, 1);
        }
        assert_eq!((tuner.active(), tuner.depth()), (3, 5));
    }

    /// Rows come out of a stream so slowly that three workers wait for each other for most of their time.
    #[test]
    fn workers_that_wait_for_each_other_rest_however_hungry_the_consumer_is() {
        let mut now = Instant::now();
        let mut tuner = Tuner::new(4, 3, BOTH, now);
        let mut seen = Vec::new();
        for _ in 0..5 {
            tuner.waited_in_line(Duration::from_millis(100).mul_f64((tuner.active() as f64 - 1.3).max(0.0)));
            window(&mut tuner, &mut now, 0.5, 0.0, 0);
            seen.push(tuner.active());
        }
        assert_eq!(seen, [3, 2, 2, 2, 2]);
        // What is done to each row takes longer now.
        window(&mut tuner, &mut now, 0.5, 0.0, 0);
        assert_eq!(tuner.active(), 4);
    }

    #[test]
    fn what_was_asked_for_is_left_alone() {
        let mut now = Instant::now();
        for (adapts, expected) in [
            (Adapts { workers: false, slots: false }, (4, 5)),
            (Adapts { workers: true, slots: false }, (3, 5)),
            (Adapts { workers: false, slots: true }, (4, 4)),
        ] {
            let mut tuner = Tuner::new(4, 5, adapts, now);
            window(&mut tuner, &mut now, 0.0, 3.9, 4);
            assert_eq!((tuner.active(), tuner.depth()), expected);
        }
    }

    #[test]
    fn one_worker_and_one_slot_stay() {
        let mut now = Instant::now();
        let mut tuner = Tuner::new(1, 1, BOTH, now);
        for _ in 0..5 {
            window(&mut tuner, &mut now, 0.0, 1.0, 1);
        }
        assert_eq!((tuner.active(), tuner.depth()), (1, 1));
        assert_eq!(tuner.waited(now).2, Duration::from_millis(500));
    }
}
