//! Where the time of making rows goes, added up over all threads.

mod stage;

pub(crate) use stage::{InputTimer, StageTimer};

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Nanoseconds by what was done.
#[derive(Default)]
pub(crate) struct Meter {
    pub read: AtomicU64,
    /// Waiting until there is memory to decode a file in.
    pub pool: AtomicU64,
    pub decode: AtomicU64,
    pub resize: AtomicU64,
    pub cache: AtomicU64,
    pub map: AtomicU64,
    /// Rows of batches mixed with each other.
    pub mix: AtomicU64,
    /// Rows of a stream that has no maps, written to where they go.
    pub stream: AtomicU64,
    /// Rows that were made.
    pub rows: AtomicU64,
    /// Where rows come from that come one after the other.
    pub stage: OnceLock<Arc<StageTimer>>,
}

/// What one kind of work took, or one stage of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spent {
    /// What was done.
    pub name: String,
    /// The time of all threads that did it.
    pub time: Duration,
    /// How many rows it was done for.
    pub rows: u64,
    /// How many threads can do it at a time.
    pub threads: usize,
}

impl Meter {
    /// Adds the time since `start`.
    pub fn add(counter: &AtomicU64, start: Instant) {
        counter.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
    }

    pub fn lap_read(&self, start: Instant) -> Instant {
        lap(&self.read, start)
    }

    pub fn lap_pool(&self, start: Instant) -> Instant {
        lap(&self.pool, start)
    }

    pub fn lap_decode(&self, start: Instant) -> Instant {
        lap(&self.decode, start)
    }

    pub fn lap_map(&self, start: Instant) -> Instant {
        lap(&self.map, start)
    }

    pub fn lap_resize(&self, start: Instant) -> Instant {
        lap(&self.resize, start)
    }

    /// What took time at all, in the order in which it is done by so many threads.
    pub fn spent(&self, threads: usize) -> Vec<Spent> {
        let (mut all, rows) = (Vec::new(), self.rows.load(Relaxed));
        self.stage.get().iter().for_each(|stage| stage.spent(&mut all));
        all.extend(self.times().into_iter().map(|(name, time)| Spent { name: name.to_string(), time, rows, threads }));
        all
    }

    pub fn times(&self) -> Vec<(&'static str, Duration)> {
        let counters = [
            ("read", &self.read),
            ("waiting for space", &self.pool),
            ("decode", &self.decode),
            ("resize", &self.resize),
            ("cache", &self.cache),
            ("map", &self.map),
            ("mix", &self.mix),
            ("stream", &self.stream),
        ];
        let times = counters.map(|(name, counter)| (name, Duration::from_nanos(counter.load(Relaxed))));
        times.into_iter().filter(|(_, time)| !time.is_zero()).collect()
    }
}

fn lap(counter: &AtomicU64, start: Instant) -> Instant {
    let now = Instant::now();
    counter.fetch_add((now - start).as_nanos() as u64, Relaxed);
    now
}
