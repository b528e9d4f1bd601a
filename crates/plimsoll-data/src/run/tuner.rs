//! Adapts how many of the planned workers and slots are in use.
//!
//! No memory is allocated or freed: unused workers and slots are idle. If the consumer waits, all workers become
//! active. If it is the bottleneck, fewer workers and slots are used, and the slots stay in the CPU caches. The
//! output is the same.

use std::time::{Duration, Instant};

/// Adapts once per time window.
pub(crate) struct Tuner {
    workers: usize,
    slots: usize,
    /// What may be adapted; a number set by the user is fixed.
    adapts: Adapts,
    active: usize,
    depth: usize,
    window: TuningInterval,
    begun: Instant,
    consumer_waited: Duration,
    workers_waited: Duration,
}

/// What the tuner may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adapts {
    pub workers: bool,
    pub slots: bool,
}

/// Statistics of the current window.
#[derive(Clone, Copy)]
struct TuningInterval {
    since: Instant,
    slots: u32,
    consumer_waited: Duration,
    workers_waited: Duration,
    /// Time workers waited for their turn.
    in_line: Duration,
    /// The minimum number of filled slots when the consumer took one.
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

/// Slots per window: enough for a stable estimate, and short compared to an epoch.
const SLOTS: u32 = 8;
const TIME: Duration = Duration::from_millis(50);

/// A consumer blocked for more than this share of the time is limited by the pipeline, not by lock contention.
const STARVED: f64 = 0.02;

/// A worker is paused if the total idle time exceeds this multiple of one worker's time.
const MARGIN: f64 = 1.25;

/// If workers wait for their turn for more than this share of one worker's time, another worker would not help.
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

    /// Number of active workers.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Sets the number of active workers.
    #[cfg(all(test, loom))]
    pub fn set_active(&mut self, workers: usize) {
        self.active = workers;
    }

    /// Number of slots in use.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Wait time of the consumer, total wait time of the workers, and elapsed time since the start.
    pub fn waited(&self, now: Instant) -> (Duration, Duration, Duration) {
        (self.consumer_waited, self.workers_waited, now - self.begun)
    }

    pub fn consumer_waited(&mut self, time: Duration) {
        self.consumer_waited += time;
        self.window.consumer_waited += time;
    }

    /// A worker waited for a free slot.
    pub fn worker_waited(&mut self, time: Duration) {
        self.workers_waited += time;
        self.window.workers_waited += time;
    }

    /// A worker waited for its turn to read from a stream.
    pub fn waited_in_line(&mut self, time: Duration) {
        self.window.in_line += time;
    }

    /// The consumer took a slot, with `ready` slots filled. Returns whether the number of active workers or of slots
    /// in use grew.
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

    /// One window in which the consumer and the workers waited for these shares of the time.
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
        // One worker at two thirds of its time keeps up with the consumer.
        for _ in 0..6 {
            let idle = tuner.active() as f64 - 0.67;
            assert!(!window(&mut tuner, &mut now, 0.0, idle, 3));
            seen.push((tuner.active(), tuner.depth()));
        }
        assert_eq!(seen, [(3, 4), (2, 3), (1, 2), (1, 2), (1, 2), (1, 2)]);
        assert!(window(&mut tuner, &mut now, 0.3, 0.0, 0), "those that rest are woken");
        assert_eq!((tuner.active(), tuner.depth()), (4, 5));
        // Three workers just keep up.
        for _ in 0..4 {
            let idle = tuner.active() as f64 - 2.5;
            window(&mut tuner, &mut now, 0.0, idle, 1);
        }
        assert_eq!((tuner.active(), tuner.depth()), (3, 5));
    }

    /// The stream is so slow that three workers wait for their turn most of the time.
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
        // The maps become slower.
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
