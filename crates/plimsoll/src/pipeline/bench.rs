//! How fast a pipeline is when nothing holds it up, and what it holds meanwhile.

use super::{Explain, Pipeline};
use crate::error::Result;
use crate::system;
use plimsoll_core::Bytes;
use serde_json::{Value, json};
use std::fmt;
use std::time::Instant;

/// What came of reading a data set as fast as it goes.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The pipeline in words.
    pub pipeline: String,
    /// Its epochs.
    pub epochs: Vec<BenchEpoch>,
    /// Seconds that all of them took, from when threads began to make rows.
    pub seconds: f64,
    /// The most resident memory the process had, as the system counts it.
    pub peak: Bytes,
    /// What was stated for the whole process before it ran.
    pub planned: Bytes,
    /// The line.
    pub line: Bytes,
    /// The smallest line that works.
    pub least: Bytes,
    /// Threads that made rows.
    pub workers: usize,
    /// What each stage holds, the process itself included.
    pub stages: Vec<(String, Bytes)>,
    /// Seconds until the first epoch could begin: files listed, memory taken, threads started.
    pub start_seconds: f64,
    /// Rows that were left out and why, a hundred at most.
    pub left_out: Vec<String>,
    /// Where the time of those threads went, and what held them up.
    pub explain: Explain,
}

/// Of an epoch that takes less, a part or all is made before it is read, and its own time says little.
const SHORT: f64 = 0.05;

/// So many rows that were left out are named.
const TOLD: usize = 100;

/// One pass over the data.
#[derive(Clone, Copy, Debug)]
pub struct BenchEpoch {
    /// Rows that came out.
    pub examples: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Rows that could not be read and were left out.
    pub left_out: u64,
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
            line: planned.line,
            least: planned.process + planned.plan.minimum(),
            workers: planned.plan.workers(),
            stages: [("process".to_string(), planned.process)].into_iter().chain(planned.plan.stages().iter().cloned()).collect(),
            start_seconds: begun.elapsed().as_secs_f64(),
            left_out: Vec::new(),
            explain: Explain::default(),
        };
        for epoch in 0..epochs {
            let (start, mut examples) = (Instant::now(), 0);
            while let Some(batch) = feed.next()? {
                examples += batch.rows as u64;
            }
            let (left_out, names) = self.data.ignored_in(epoch);
            let new = names.into_iter().filter(|name| !bench.left_out.contains(name)).take(TOLD.saturating_sub(bench.left_out.len()));
            let new: Vec<String> = new.collect();
            bench.left_out.extend(new);
            bench.epochs.push(BenchEpoch { examples, seconds: start.elapsed().as_secs_f64(), left_out });
        }
        bench.seconds = started.elapsed().as_secs_f64();
        bench.explain = Explain::new(&bench.stages, planned.plan.slots(), &feed.activity());
        bench.peak = system::peak_resident();
        Ok(bench)
    }
}

impl Pipeline {
    /// Reads the data once and says what each stage takes, what it holds, and what limits the pipeline.
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
                let (rate, left_out) = (epoch.examples_per_s(), epoch.left_out);
                json!({ "examples": epoch.examples, "seconds": epoch.seconds, "examples_per_s": rate, "left_out": left_out })
            })
            .collect();
        let held = self.stages.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes.0 }));
        let times = self.explain.stages.iter().filter_map(|stage| Some((stage, stage.per_row?, stage.share?)));
        let busy = times.map(|(stage, time, share)| {
            json!({ "name": stage.time, "us_per_example": time.as_secs_f64() * 1e6, "utilisation": share, "threads": stage.threads })
        });
        json!({
            "pipeline": self.pipeline,
            "epochs": epochs,
            "examples_per_s": self.examples_per_s(),
            "peak_rss_bytes": self.peak.0,
            "planned_bytes": self.planned.0,
            "host_budget_bytes": self.line.0,
            "min_bytes": self.least.0,
            "workers": self.workers,
            "active_workers": self.explain.active_workers,
            "consumer_waited": self.explain.consumer_waited,
            "limit": self.explain.limit,
            "note": self.explain.note,
            "left_out": self.left_out,
            "start_s": self.start_seconds,
            "stages": held.chain(busy).collect::<Vec<_>>(),
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
        if self.epochs.iter().any(|epoch| epoch.seconds < SHORT) {
            let rate = self.examples_per_s();
            writeln!(f, "  together  {rate:>12.0} examples/s  (from when threads began: epochs this short are made ahead)")?;
        }
        if let Some(most) = self.epochs.iter().map(|epoch| epoch.left_out).max().filter(|most| *most > 0) {
            writeln!(f, "  left out  {most} {} of an epoch:", if most == 1 { "row" } else { "rows" })?;
            self.left_out.iter().try_for_each(|name| writeln!(f, "    {name}"))?;
        }
        writeln!(f, "  memory    {} planned, {} measured at most, line {}", self.planned, self.peak, self.line)?;
        write!(f, "{}", self.explain)
    }
}
