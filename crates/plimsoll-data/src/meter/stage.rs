//! Where the time of sequential stages goes. One thread asks a stage for rows, which asks the one before it: a stage's self time is its total
//! time minus the time it was blocked on its inputs.

use super::{Meter, Spent};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Inputs that are reported separately. Of more, such as the many files of an interleave, the first stands for all.
const MAX_INPUTS: usize = 4;

/// One stage of a stream.
pub(crate) struct StageTimer {
    name: String,
    /// Nanoseconds until its rows were there, with all that comes before it.
    waited: AtomicU64,
    rows: AtomicU64,
    inputs: Vec<Arc<InputTimer>>,
}

/// What a stage reads.
#[derive(Default)]
pub(crate) struct InputTimer {
    /// Nanoseconds that the stage waited for rows.
    waited: AtomicU64,
    /// Whether rows are mapped on the way.
    mapped: bool,
    /// Threads of its own that make rows ahead: now, and the most there were.
    threads: AtomicUsize,
    most: AtomicUsize,
    /// What was done for its rows, by those threads or by the one that waits.
    pub meter: Arc<Meter>,
}

impl StageTimer {
    /// For a stage whose inputs are mapped on the way or not.
    pub fn new(name: String, mapped: impl ExactSizeIterator<Item = bool>) -> Arc<StageTimer> {
        let apart = if mapped.len() <= MAX_INPUTS { mapped.len() } else { 1 };
        let inputs = mapped.take(apart).map(|mapped| Arc::new(InputTimer { mapped, ..InputTimer::default() })).collect();
        Arc::new(StageTimer { name, waited: AtomicU64::new(0), rows: AtomicU64::new(0), inputs })
    }

    /// Where the rows of an input are counted.
    pub fn input(&self, input: usize) -> Arc<InputTimer> {
        self.inputs.get(input).or(self.inputs.last()).cloned().unwrap_or_default()
    }

    /// Rows came that were asked for at `start`.
    pub fn add(&self, rows: usize, start: Instant) {
        Meter::add(&self.waited, start);
        self.rows.fetch_add(rows as u64, Relaxed);
    }

    /// What it and all before it took, the first stage first.
    pub fn spent(&self, all: &mut Vec<Spent>) {
        let elsewhere: Duration = self.inputs.iter().map(|input| input.spent(all)).sum();
        let waited = nanos(&self.waited);
        all.push(Spent { name: self.name.clone(), time: waited.saturating_sub(elsewhere), rows: self.rows.load(Relaxed), threads: 1 });
    }
}

impl InputTimer {
    /// Rows came that were asked for at `start`.
    pub fn add(&self, start: Instant) {
        Meter::add(&self.waited, start);
    }

    /// So many threads began to make rows ahead.
    pub fn begin(&self, threads: usize) {
        let now = self.threads.fetch_add(threads, Relaxed) + threads;
        self.most.fetch_max(now, Relaxed);
    }

    /// So many of them are no more.
    pub fn end(&self, threads: usize) {
        self.threads.fetch_sub(threads, Relaxed);
    }

    /// What was done for its rows. Returns how much of the time that the stage waited is reported with that, or was only waiting.
    fn spent(&self, all: &mut Vec<Spent>) -> Duration {
        let (waited, threads) = (nanos(&self.waited), self.most.load(Relaxed));
        let first = all.len();
        all.extend(self.meter.spent(threads.max(1)));
        match self.meter.stage.get() {
            _ if threads > 0 => waited,
            Some(before) if self.mapped => {
                let rows = before.rows.load(Relaxed);
                all.push(Spent { name: "map".into(), time: waited.saturating_sub(nanos(&before.waited)), rows, threads: 1 });
                waited
            }
            Some(before) => nanos(&before.waited),
            None => all[first..].iter().map(|spent| spent.time).sum(),
        }
    }
}

fn nanos(counter: &AtomicU64) -> Duration {
    Duration::from_nanos(counter.load(Relaxed))
}
