//! The time and memory of each stage of a pipeline, and its bottleneck, on one screen.

use plimsoll_core::Bytes;
use plimsoll_data::Activity;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// A profile of a pipeline that has run, stage by stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explain {
    /// The stages in order, including those that only hold memory.
    pub stages: Vec<ExplainedStage>,
    /// Threads that produce rows.
    pub workers: usize,
    /// As many of them as this consumer needs.
    pub active_workers: usize,
    /// Slots of the ring.
    pub slots: usize,
    /// As many of them as are in use.
    pub slots_in_use: usize,
    /// The fraction of the time that the consumer waited for a batch.
    pub consumer_waited: f64,
    /// The fraction of their time that threads waited for a free slot.
    pub workers_waited: f64,
    /// The bottleneck, in words.
    pub limit: String,
    /// A problem that did not stop it.
    pub note: Option<String>,
}

/// One stage.
#[derive(Clone, Debug, PartialEq)]
pub struct ExplainedStage {
    /// Its name in the plan.
    pub name: String,
    /// Its name where its time is measured; empty where it takes none.
    pub time: String,
    /// Time per row, on one thread.
    pub per_row: Option<Duration>,
    /// The fraction of the time of its threads that it takes.
    pub share: Option<f64>,
    /// The threads that run it; none where it takes no time.
    pub threads: usize,
    /// The memory it holds.
    pub bytes: Option<Bytes>,
}

/// Stages of indexed rows; all others that take time are stages of a stream.
const INDEXED_STAGES: [&str; 7] = ["read", "waiting for space", "decode", "resize", "cache", "map", "mix"];

/// A consumer that waits for a smaller fraction of the time is the bottleneck itself.
const BLOCKED: f64 = 0.05;

impl Explain {
    pub(crate) fn new(held: &[(String, Bytes)], slots: usize, activity: &Activity) -> Explain {
        let elapsed = activity.elapsed.as_secs_f64().max(1e-9);
        let all = elapsed * activity.workers.max(1) as f64;
        let only_holds = |(name, bytes): &(String, Bytes)| ExplainedStage {
            name: name.clone(),
            time: String::new(),
            per_row: None,
            share: None,
            threads: 0,
            bytes: Some(*bytes),
        };
        let mut stages: Vec<ExplainedStage> = held.iter().map(only_holds).collect();
        let is_for = |stage: &ExplainedStage, time: &str| stage.name == time || stage.name.split(' ').next() == Some(time);
        // A stage that only takes time is listed in processing order: before the first later stage that also holds
        // memory, or last. A stage of a stream is listed after the buffers of its input and before those of its output.
        let is_stream = |stage: &ExplainedStage| stage.name == "stream";
        let takes_time = |stage: &ExplainedStage| is_stream(stage) || activity.times.iter().any(|spent| is_for(stage, &spent.name));
        let mut next = stages.iter().position(takes_time).unwrap_or(stages.len().saturating_sub(1));
        for (index, spent) in activity.times.iter().enumerate() {
            let found = (next..stages.len()).find(|&at| is_for(&stages[at], &spent.name));
            let is_later = |at: usize| activity.times[index..].iter().any(|later| is_for(&stages[at], &later.name));
            let followed = |at: &usize| is_stream(&stages[*at]) || is_later(*at);
            let at = match found {
                None if !INDEXED_STAGES.contains(&spent.name.as_str()) => (next..stages.len()).find(followed).unwrap_or(next),
                found => found.unwrap_or(next),
            };
            if found.is_none() {
                stages.insert(at, ExplainedStage { bytes: None, ..only_holds(&(spent.name.clone(), Bytes::ZERO)) });
            }
            let stage = &mut stages[at];
            stage.time = spent.name.clone();
            stage.per_row = Some(spent.time.div_f64(spent.rows.max(1) as f64));
            stage.threads = spent.threads.max(1);
            stage.share = Some(spent.time.as_secs_f64() / (elapsed * stage.threads as f64));
            next = at + 1;
        }
        let mut explain = Explain {
            stages,
            workers: activity.workers,
            active_workers: activity.active_workers,
            slots,
            slots_in_use: activity.slots_in_use,
            consumer_waited: activity.consumer_waited.as_secs_f64() / elapsed,
            workers_waited: activity.workers_waited.as_secs_f64() / all,
            limit: String::new(),
            note: activity.cache_given_up.clone(),
        };
        explain.limit = explain.bottleneck();
        explain
    }

    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        let stage = |stage: &ExplainedStage| {
            json!({
                "name": stage.name,
                "bytes": stage.bytes.map(|bytes| bytes.0),
                "row_s": stage.per_row.map(|time| time.as_secs_f64()),
                "busy": stage.share,
                "threads": stage.threads,
            })
        };
        json!({
            "stages": self.stages.iter().map(stage).collect::<Vec<_>>(),
            "workers": self.workers,
            "active_workers": self.active_workers,
            "slots": self.slots,
            "slots_in_use": self.slots_in_use,
            "consumer_waited": self.consumer_waited,
            "workers_waited": self.workers_waited,
            "limit": self.limit,
            "note": self.note,
        })
    }

    fn bottleneck(&self) -> String {
        let slowest = self
            .stages
            .iter()
            .filter(|stage| stage.share.is_some())
            .max_by(|a, b| a.share.unwrap_or(0.0).total_cmp(&b.share.unwrap_or(0.0)));
        match slowest {
            _ if self.consumer_waited < BLOCKED => "the consumer: batches were ready before it asked for them".to_string(),
            Some(stage) => {
                let share = 100.0 * stage.share.unwrap_or(0.0);
                format!("{}: {share:.0} % of the time of {}, and the consumer waited", stage.time, threads(stage.threads))
            }
            None => "no stage that was measured".to_string(),
        }
    }
}

fn threads(count: usize) -> String {
    if count == 1 { "1 thread".to_string() } else { format!("{count} threads") }
}

/// A duration in about three digits.
fn short(time: Duration) -> String {
    match time.as_nanos() {
        nanos @ 0..1000 => format!("{nanos} ns"),
        nanos @ 1000..10_000_000 => format!("{:.1} µs", nanos as f64 / 1e3),
        nanos => format!("{:.1} ms", nanos as f64 / 1e6),
    }
}

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.stages.iter().map(|stage| stage.name.chars().count()).max().unwrap_or(0).max("stage".len());
        writeln!(f, "    {:width$}  {:>9}  {:>9}  {:>5}  {:>7}", "stage", "memory", "time/row", "busy", "threads")?;
        for stage in &self.stages {
            let bytes = stage.bytes.map_or(String::new(), |bytes| bytes.to_string());
            let per_row = stage.per_row.map_or(String::new(), short);
            let share = stage.share.map_or(String::new(), |share| format!("{:.0} %", 100.0 * share));
            let threads = if stage.threads > 0 { stage.threads.to_string() } else { String::new() };
            writeln!(f, "{}", format!("    {:width$}  {bytes:>9}  {per_row:>9}  {share:>5}  {threads:>7}", stage.name).trim_end())?;
        }
        let (waited, idle) = (100.0 * self.consumer_waited, 100.0 * self.workers_waited);
        writeln!(f, "  waiting   the consumer {waited:.0} % of the time, {} for a free slot {idle:.0} %", threads(self.workers))?;
        writeln!(f, "  in use    {} of {} threads, {} of {} slots", self.active_workers, self.workers, self.slots_in_use, self.slots)?;
        if let Some(note) = &self.note {
            writeln!(f, "  note      {note}")?;
        }
        write!(f, "  limit     {}", self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_data::Spent;

    fn activity(consumer_waited: u64, workers_waited: u64) -> Activity {
        let ms = Duration::from_millis;
        Activity {
            rows: 1000,
            elapsed: ms(1000),
            workers: 2,
            active_workers: 1,
            slots_in_use: 2,
            consumer_waited: ms(consumer_waited),
            workers_waited: ms(workers_waited),
            times: [("read", 30), ("decode", 1500), ("resize", 200), ("map", 100), ("mix", 20)]
                .map(|(name, time)| Spent { name: name.to_string(), time: ms(time), rows: 1000, threads: 2 })
                .to_vec(),
            cache_given_up: None,
        }
    }

    fn held() -> Vec<(String, Bytes)> {
        let held = [("process", 12), ("2 worker stacks", 1), ("decode (each ≤ 16.0 MiB)", 32), ("map x", 2), ("staging ring", 3)];
        held.into_iter().map(|(name, mib)| (name.to_string(), Bytes::mib(mib))).collect()
    }

    /// Two threads decode images ahead of a filter that runs on one thread.
    #[test]
    fn stages_of_a_stream_are_listed_one_by_one() {
        let held = [
            "producer stack",
            "2 worker stacks",
            "decode (each ≤ 16.0 MiB)",
            "staging ring",
            "shuffle(seed 7, 16.0 MiB)",
            "stream",
            "staging ring",
        ];
        let held = held.map(|name| (name.to_string(), Bytes::mib(1)));
        let spent = |name: &str, time: u64, rows: u64, threads: usize| Spent {
            name: name.into(),
            time: Duration::from_millis(time),
            rows,
            threads,
        };
        let mut activity = activity(900, 0);
        activity.workers = 1;
        activity.times = vec![
            spent("decode", 1900, 1000, 2),
            spent("filter(y below 5)", 1, 500, 1),
            spent("shuffle(seed 7, 16.0 MiB)", 20, 500, 1),
            spent("stream", 5, 500, 1),
        ];
        let explain = Explain::new(&held, 3, &activity);
        let names: Vec<&str> = explain.stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names[2..6], ["decode (each ≤ 16.0 MiB)", "staging ring", "filter(y below 5)", "shuffle(seed 7, 16.0 MiB)"]);
        assert_eq!(explain.stages[5].per_row, Some(Duration::from_micros(40)));
        assert_eq!(explain.limit, "decode: 95 % of the time of 2 threads, and the consumer waited");
    }

    /// Two threads take turns at a filter, and map its output.
    #[test]
    fn output_buffers_are_listed_after_their_stream() {
        let held = ["2 worker stacks", "columns", "block", "stream", "map x", "staging ring"].map(|name| (name.to_string(), Bytes::mib(1)));
        let mut activity = activity(900, 0);
        let spent =
            |name: &str, time: u64, threads: usize| Spent { name: name.into(), time: Duration::from_millis(time), rows: 500, threads };
        activity.times = vec![spent("read", 10, 1), spent("filter(y below 5)", 200, 1), spent("map", 1600, 2)];
        let explain = Explain::new(&held, 3, &activity);
        let names: Vec<&str> = explain.stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names[2..], ["block", "read", "filter(y below 5)", "stream", "map x", "staging ring"]);
        assert_eq!(explain.limit, "map: 80 % of the time of 2 threads, and the consumer waited");
        let shown = explain.to_string();
        assert!(shown.contains("filter(y below 5)              400.0 µs   20 %        1\n"), "{shown}");
        assert!(shown.contains("map x               1.00 MiB  3200.0 µs   80 %        2\n"), "{shown}");
    }

    #[test]
    fn one_screen_shows_time_memory_and_the_bottleneck() {
        let shown = Explain::new(&held(), 3, &activity(900, 60)).to_string();
        let order = ["process", "read", "decode (each", "resize", "map x", "mix", "staging ring", "waiting", "in use", "limit"];
        let places: Vec<usize> =
            order.iter().map(|word| shown.find(&format!(" {word}")).unwrap_or_else(|| panic!("{word}: {shown}"))).collect();
        assert!(places.is_sorted(), "{shown}");
        for said in [
            "  waiting   the consumer 90 % of the time, 2 threads for a free slot 3 %\n",
            "  in use    1 of 2 threads, 2 of 3 slots\n",
            "  limit     decode: 75 % of the time of 2 threads, and the consumer waited",
        ] {
            assert!(shown.contains(said), "{said} in {shown}");
        }
        let mut slow = activity(10, 1700);
        slow.cache_given_up = Some("row 7 cannot be written".into());
        let shown = Explain::new(&held(), 3, &slow).to_string();
        assert!(
            shown.ends_with("  note      row 7 cannot be written\n  limit     the consumer: batches were ready before it asked for them"),
            "{shown}"
        );
    }
}
