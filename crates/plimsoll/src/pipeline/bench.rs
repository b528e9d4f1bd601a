//! The throughput of a pipeline whose consumer does nothing, and its memory.

use super::{Explain, Pipeline};
use crate::error::Result;
use crate::system;
use plimsoll_core::Bytes;
use serde_json::{Value, json};
use std::fmt;
use std::time::Instant;

/// The result of reading a dataset as fast as possible.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The pipeline in words.
    pub pipeline: String,
    /// Its epochs.
    pub epochs: Vec<BenchEpoch>,
    /// Seconds of all epochs, from the start of the threads.
    pub seconds: f64,
    /// The peak resident memory of the process, as the system counts it.
    pub peak: Bytes,
    /// The planned memory of the whole process.
    pub planned: Bytes,
    /// The budget.
    pub budget: Bytes,
    /// The smallest budget that works.
    pub minimum: Bytes,
    /// Threads that produce rows.
    pub workers: usize,
    /// The memory of each stage, including the process itself.
    pub stages: Vec<(String, Bytes)>,
    /// Seconds before the first epoch: listing files, allocating memory, starting threads.
    pub start_seconds: f64,
    /// Skipped rows and why they were skipped, at most a hundred.
    pub skipped: Vec<String>,
    /// The time of each stage, and the bottleneck.
    pub explain: Explain,
}

/// Shorter epochs are mostly prefetched before they begin, so their own time says little.
const SHORT_EPOCH: f64 = 0.05;

/// Skipped rows that are named.
const MAX_NAMED: usize = 100;

/// One pass over the data.
#[derive(Clone, Copy, Debug)]
pub struct BenchEpoch {
    /// Rows it had.
    pub examples: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Rows that could not be read and were skipped.
    pub skipped: u64,
}

impl BenchEpoch {
    /// Rows per second.
    pub fn examples_per_s(&self) -> f64 {
        self.examples as f64 / self.seconds.max(1e-9)
    }
}

impl Pipeline {
    /// Reads the data `epochs` times.
    pub fn bench(&self, epochs: u64) -> Result<Bench> {
        let begun = Instant::now();
        let planned = self.plan(&self.data)?;
        let started = Instant::now();
        let mut feed = planned.start(&self.data, epochs)?;
        let mut bench = Bench {
            pipeline: self.data.describe(),
            epochs: Vec::with_capacity(epochs.min(1 << 16) as usize),
            seconds: 0.0,
            peak: Bytes::ZERO,
            planned: planned.total(),
            budget: planned.budget,
            minimum: planned.process + planned.plan.minimum(),
            workers: planned.plan.workers(),
            stages: [("process".to_string(), planned.process)].into_iter().chain(planned.plan.stages().iter().cloned()).collect(),
            start_seconds: begun.elapsed().as_secs_f64(),
            skipped: Vec::new(),
            explain: Explain::default(),
        };
        for epoch in 0..epochs {
            let (start, mut examples) = (Instant::now(), 0);
            while let Some(batch) = feed.next()? {
                examples += batch.rows as u64;
            }
            let (skipped, names) = self.data.ignored_in(epoch);
            let new = names.into_iter().filter(|name| !bench.skipped.contains(name)).take(MAX_NAMED.saturating_sub(bench.skipped.len()));
            let new: Vec<String> = new.collect();
            bench.skipped.extend(new);
            bench.epochs.push(BenchEpoch { examples, seconds: start.elapsed().as_secs_f64(), skipped });
        }
        bench.seconds = started.elapsed().as_secs_f64();
        bench.explain = Explain::new(&bench.stages, planned.plan.slots(), &feed.activity());
        bench.peak = system::peak_resident();
        Ok(bench)
    }
}

impl Pipeline {
    /// Reads the data once and reports the time and memory of each stage, and the bottleneck.
    ///
    /// ```
    /// let explained = plimsoll::config::Config::digits().pipeline()?.explain()?;
    /// assert!(explained.to_string().contains("limit"));
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn explain(&self) -> Result<Explain> {
        Ok(self.bench(1)?.explain)
    }
}

impl Bench {
    /// Rows per second over all epochs.
    pub fn examples_per_s(&self) -> f64 {
        let examples: u64 = self.epochs.iter().map(|epoch| epoch.examples).sum();
        examples as f64 / self.seconds.max(1e-9)
    }

    /// All of it as one JSON object.
    pub fn to_json(&self) -> Value {
        let epochs: Vec<Value> = self
            .epochs
            .iter()
            .map(|epoch| {
                let (rate, skipped) = (epoch.examples_per_s(), epoch.skipped);
                json!({ "examples": epoch.examples, "seconds": epoch.seconds, "examples_per_s": rate, "left_out": skipped })
            })
            .collect();
        let held = self.stages.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes.0 }));
        let times = self.explain.stages.iter().filter_map(|stage| Some((stage, stage.per_row?, stage.share?)));
        let timed = times.map(|(stage, time, share)| {
            json!({ "name": stage.time, "us_per_example": time.as_secs_f64() * 1e6, "utilisation": share, "threads": stage.threads })
        });
        json!({
            "pipeline": self.pipeline,
            "epochs": epochs,
            "examples_per_s": self.examples_per_s(),
            "peak_rss_bytes": self.peak.0,
            "planned_bytes": self.planned.0,
            "host_budget_bytes": self.budget.0,
            "min_bytes": self.minimum.0,
            "workers": self.workers,
            "active_workers": self.explain.active_workers,
            "consumer_waited": self.explain.consumer_waited,
            "limit": self.explain.limit,
            "note": self.explain.note,
            "left_out": self.skipped,
            "start_s": self.start_seconds,
            "stages": held.chain(timed).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.pipeline)?;
        for (index, epoch) in self.epochs.iter().enumerate() {
            let (rows, seconds) = (epoch.examples, epoch.seconds);
            writeln!(f, "  epoch {:<3} {:>12.0} examples/s  ({rows} in {seconds:.2} s)", index + 1, epoch.examples_per_s())?;
        }
        if self.epochs.iter().any(|epoch| epoch.seconds < SHORT_EPOCH) {
            let rate = self.examples_per_s();
            writeln!(f, "  overall   {rate:>12.0} examples/s  (from the start of the threads: epochs this short are prefetched)")?;
        }
        if let Some(most) = self.epochs.iter().map(|epoch| epoch.skipped).max().filter(|most| *most > 0) {
            writeln!(f, "  skipped   {most} {} of an epoch:", if most == 1 { "row" } else { "rows" })?;
            self.skipped.iter().try_for_each(|name| writeln!(f, "    {name}"))?;
        }
        writeln!(f, "  memory    {} planned, {} measured peak, budget {}", self.planned, self.peak, self.budget)?;
        write!(f, "{}", self.explain)
    }
}
