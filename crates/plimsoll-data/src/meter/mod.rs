//! Where the time of producing rows goes, summed over all threads.

mod stage;

pub(crate) use stage::{InputTimer, StageTimer};

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Nanoseconds by kind of work.
#[derive(Default)]
pub(crate) struct Meter {
    pub read: AtomicU64,
    /// Waiting for memory of the decode pool.
    pub pool: AtomicU64,
    pub decode: AtomicU64,
    pub resize: AtomicU64,
    pub cache: AtomicU64,
    pub map: AtomicU64,
    /// Mixing rows of batches.
    pub mix: AtomicU64,
    /// Writing rows of a stream without maps.
    pub stream: AtomicU64,
    /// Rows produced.
    pub rows: AtomicU64,
    /// The timer of the last stage, for a stream.
    pub stage: OnceLock<Arc<StageTimer>>,
    /// What each thread did when, if that is recorded.
    pub spans: OnceLock<Mutex<Vec<WorkerSpan>>>,
}

/// Rows that one worker thread produced without a pause.
#[derive(Clone, Copy, Debug)]
pub struct WorkerSpan {
    /// The number of the thread, from 0.
    pub worker: usize,
    /// Number of rows.
    pub rows: usize,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
}

/// The time of one kind of work, or of one stage of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The kind of work or the stage.
    pub name: String,
    /// The sum over all threads.
    pub time: Duration,
    /// Number of rows.
    pub rows: u64,
    /// Number of threads that can do it in parallel.
    pub threads: usize,
}

impl Meter {
    /// Adds the time since `start`.
    pub fn add(counter: &AtomicU64, start: Instant) {
        Meter::lap(counter, start);
    }

    /// Adds the time since `start` and returns the end of it.
    pub fn lap(counter: &AtomicU64, start: Instant) -> Instant {
        let now = Instant::now();
        counter.fetch_add((now - start).as_nanos() as u64, Relaxed);
        now
    }

    /// Notes rows that a worker has produced since `start`, as long as there is space for spans.
    pub fn note(&self, worker: usize, rows: usize, start: Option<Instant>) {
        if let (Some(spans), Some(start)) = (self.spans.get(), start) {
            let mut spans = spans.lock().unwrap_or_else(PoisonError::into_inner);
            if spans.len() < spans.capacity() {
                spans.push(WorkerSpan { worker, rows, start, end: Instant::now() });
            }
        }
    }

    /// The nonzero times, in pipeline order, for this many threads.
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
