//! Times of sequential stages. One thread pulls rows through the chain of stages, so a stage's self time is its total
//! time minus the time it was blocked on its inputs.

use super::{Meter, Spent};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Maximum number of inputs that are reported separately. Of more, such as the files of an interleave, the first
/// represents all.
const MAX_INPUTS: usize = 4;

/// The timer of one stage of a stream.
pub(crate) struct StageTimer {
    name: String,
    /// Total nanoseconds, including everything upstream.
    waited: AtomicU64,
    rows: AtomicU64,
    inputs: Vec<Arc<InputTimer>>,
}

/// The timer of an input.
#[derive(Default)]
pub(crate) struct InputTimer {
    /// Nanoseconds that the stage was blocked on this input.
    waited: AtomicU64,
    /// Whether the input has maps.
    mapped: bool,
    /// Threads that read ahead: the current number, and the maximum so far.
    threads: AtomicUsize,
    most: AtomicUsize,
    /// Times of the work on its rows, by those threads or by the calling one.
    pub meter: Arc<Meter>,
}

impl StageTimer {
    /// For a stage with these inputs; each states whether it has maps.
    pub fn new(name: String, mapped: impl ExactSizeIterator<Item = bool>) -> Arc<StageTimer> {
        let apart = if mapped.len() <= MAX_INPUTS { mapped.len() } else { 1 };
        let inputs = mapped.take(apart).map(|mapped| Arc::new(InputTimer { mapped, ..InputTimer::default() })).collect();
        Arc::new(StageTimer { name, waited: AtomicU64::new(0), rows: AtomicU64::new(0), inputs })
    }

    /// The timer of an input.
    pub fn input(&self, input: usize) -> Arc<InputTimer> {
        self.inputs.get(input).or(self.inputs.last()).cloned().unwrap_or_default()
    }

    /// Records rows that were requested at `start`.
    pub fn add(&self, rows: usize, start: Instant) {
        Meter::add(&self.waited, start);
        self.rows.fetch_add(rows as u64, Relaxed);
    }

    /// Appends the times of this stage and everything upstream, in pipeline order.
    pub fn spent(&self, all: &mut Vec<Spent>) {
        let elsewhere: Duration = self.inputs.iter().map(|input| input.spent(all)).sum();
        let waited = nanos(&self.waited);
        all.push(Spent { name: self.name.clone(), time: waited.saturating_sub(elsewhere), rows: self.rows.load(Relaxed), threads: 1 });
    }
}

impl InputTimer {
    /// Records rows that were requested at `start`.
    pub fn add(&self, start: Instant) {
        Meter::add(&self.waited, start);
    }

    /// Records that this many threads started to read ahead.
    pub fn begin(&self, threads: usize) {
        let now = self.threads.fetch_add(threads, Relaxed) + threads;
        self.most.fetch_max(now, Relaxed);
    }

    /// Records that this many threads ended.
    pub fn end(&self, threads: usize) {
        self.threads.fetch_sub(threads, Relaxed);
    }

    /// Appends the times of its rows. Returns how much of the stage's time is reported there or was spent blocked.
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
