//! Where the time of a stream goes, stage by stage. One thread asks a stage for rows, which asks the one before it: what a stage took itself is
//! what it took less what it waited for.

use super::Spec;
use crate::dataset::Stage;
use crate::meter::{Meter, Spent};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Inputs that are told apart. The many files of an interleave are alike, and so is what is said of them.
const APART: usize = 4;

/// One stage of a stream.
pub(crate) struct Station {
    name: String,
    /// Nanoseconds until its rows were there, with all that comes before it.
    waited: AtomicU64,
    rows: AtomicU64,
    inlets: Vec<Arc<Inlet>>,
}

/// What a stage reads.
#[derive(Default)]
pub(crate) struct Inlet {
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

impl Station {
    /// The station of a stage, with those of all before it.
    pub fn of(spec: &Spec) -> Arc<Station> {
        Station::named(spec, spec.name())
    }

    /// The same, told as something else.
    pub fn named(spec: &Spec, name: String) -> Arc<Station> {
        let inputs = spec.inputs();
        let apart = if inputs.len() <= APART { inputs } else { &inputs[..1] };
        let inlets = apart.iter().map(|input| {
            let mapped = input.stages.iter().any(|stage| matches!(stage, Stage::Map { .. }));
            Arc::new(Inlet { mapped, ..Inlet::default() })
        });
        Arc::new(Station { name, waited: AtomicU64::new(0), rows: AtomicU64::new(0), inlets: inlets.collect() })
    }

    /// Where the rows of an input are counted.
    pub fn inlet(&self, input: usize) -> Arc<Inlet> {
        self.inlets.get(input).or(self.inlets.last()).cloned().unwrap_or_default()
    }

    /// Rows came that were asked for at `start`.
    pub fn came(&self, rows: usize, start: Instant) {
        Meter::add(&self.waited, start);
        self.rows.fetch_add(rows as u64, Relaxed);
    }

    /// What it and all before it took, the first stage first.
    pub fn spent(&self, all: &mut Vec<Spent>) {
        let elsewhere: Duration = self.inlets.iter().map(|inlet| inlet.spent(all)).sum();
        let waited = nanos(&self.waited);
        all.push(Spent { name: self.name.clone(), time: waited.saturating_sub(elsewhere), rows: self.rows.load(Relaxed), threads: 1 });
    }
}

impl Inlet {
    /// Rows came that were asked for at `start`.
    pub fn came(&self, start: Instant) {
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

    /// What was done for its rows. Returns how much of the time that the stage waited is told with that, or was only waiting.
    fn spent(&self, all: &mut Vec<Spent>) -> Duration {
        let (waited, threads) = (nanos(&self.waited), self.most.load(Relaxed));
        let first = all.len();
        all.extend(self.meter.spent(threads.max(1)));
        match self.meter.station.get() {
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
