//! The record of a run, epoch by epoch.

use crate::metrics::Scores;
use crate::pipeline::Explain;
use crate::start_times::StartTimes;
use plimsoll_core::Bytes;
use serde_json::{Value, json};
use std::iter;

/// One epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    /// Its number, counted from 1.
    pub epoch: u64,
    /// Over the training data, during training.
    pub training: Scores,
    /// Over the validation data, after the epoch.
    pub validation: Option<Scores>,
    /// The learning rate of its last step.
    pub learning_rate: f64,
    /// Seconds, including validation.
    pub seconds: f64,
    /// Training rows per second, without validation.
    pub examples_per_s: f64,
    /// Rows that could not be read and were skipped.
    pub left_out: u64,
}

impl Epoch {
    /// A score by its name in reports, such as `loss` or `val_accuracy`.
    pub fn score(&self, name: &str) -> Option<f64> {
        match name.strip_prefix("val_") {
            Some(name) => self.validation.as_ref()?.get(name),
            None => self.training.get(name),
        }
    }

    /// The names of all scores it has.
    pub fn score_names(&self) -> Vec<String> {
        let held_out = self.validation.iter().flat_map(|scores| scores.iter().map(|(name, _)| format!("val_{name}")));
        self.training.iter().map(|(name, _)| name.to_string()).chain(held_out).collect()
    }

    /// From the object [`Epoch::to_json`] gives.
    pub(crate) fn from_json(object: &Value) -> Option<Epoch> {
        let scores = |prefix: &str| Scores::from_json(object, prefix);
        Some(Epoch {
            epoch: object["epoch"].as_u64()?,
            training: scores("")?,
            validation: scores("val_"),
            learning_rate: object["learning_rate"].as_f64().unwrap_or_default(),
            seconds: object["seconds"].as_f64()?,
            examples_per_s: object["examples_per_s"].as_f64()?,
            left_out: object["left_out"].as_u64().unwrap_or_default(),
        })
    }
}

/// The record of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// Its epochs; of a very long run, the last thousand. Only the last one has values per class: those of a run with
    /// many classes and epochs would fill the memory. [`Event::EpochEnd`](crate::Event::EpochEnd) and the log of a run
    /// folder have them for every epoch.
    pub epochs: Vec<Epoch>,
    /// Optimizer steps done.
    pub steps: u64,
    /// Training rows per second over the whole run, without validation.
    pub examples_per_s: f64,
    /// Seconds the run took.
    pub seconds: f64,
    /// The planned peak of host memory.
    pub planned: Bytes,
    /// The host memory budget.
    pub host_budget: Bytes,
    /// The planned peak of device memory, if the device has memory of its own.
    pub planned_on_device: Option<Bytes>,
    /// Memory in use on the device at the end of the run, by all processes.
    pub in_use_on_device: Option<Bytes>,
    /// The peak resident memory of the process.
    pub measured: Bytes,
    /// Predicted seconds of a whole batch.
    pub predicted_step_s: f64,
    /// Measured seconds of a whole batch: the median of the last 511 steps, in which time spent waiting for rows or for
    /// a busy processor does not count; and the fastest of all. Neither the first step nor batches that are not full
    /// count.
    pub measured_step_s: Option<(f64, f64)>,
    /// The stages of the input pipeline, with their memory and the time they took.
    pub pipeline: Option<Explain>,
    /// Seconds of training, without validation, that were spent waiting for the input pipeline; and all others. On a
    /// device that runs asynchronously, it may compute while the host waits.
    pub waiting_s: f64,
    /// See [`waiting_s`](History::waiting_s).
    pub computing_s: f64,
    /// Where the time until the first step went.
    pub start: StartTimes,
    /// The weights that were pruned.
    pub sparsity: Vec<WeightSparsity>,
    /// Whether a [`StopHandle`](crate::StopHandle) ended the run before its last epoch.
    pub stopped: bool,
}

/// How many numbers of a weight are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSparsity {
    /// Its name.
    pub name: String,
    /// Numbers that are zero.
    pub zeros: u64,
    /// All of its numbers.
    pub numbers: u64,
}

impl WeightSparsity {
    /// The share of zeros.
    pub fn share(&self) -> f64 {
        self.zeros as f64 / self.numbers.max(1) as f64
    }

    /// The share of zeros of several weights; none if there are no weights.
    pub fn overall(weights: &[WeightSparsity]) -> Option<f64> {
        let sum = |of: fn(&WeightSparsity) -> u64| weights.iter().map(of).sum::<u64>();
        (!weights.is_empty()).then(|| sum(|weight| weight.zeros) as f64 / sum(|weight| weight.numbers).max(1) as f64)
    }

    /// As a JSON object.
    pub fn to_json(&self) -> Value {
        json!({ "weight": self.name, "zeros": self.zeros, "numbers": self.numbers })
    }
}

/// How many epochs a history has at most: the memory of a run must not grow with its length.
pub(crate) const MAX_EPOCHS: usize = 1000;

/// Heap of an epoch, of each of its scalars, and of each of its values and counts per class: in memory, as JSON and as
/// text. Counts are one text, in checkpoints only.
const PER_EPOCH: u64 = 768;
const PER_SCALAR: u64 = 320;
const PER_CLASS_VALUE: u64 = 104;
const PER_CLASS_COUNT: u64 = 40;

/// Buffers through which the report of a run folder is put together from its files.
const REPORT_BUFFERS: u64 = 64 << 10;

impl History {
    /// Heap of the history of a run with this many scalars, values per class and counts per class in each epoch. Values
    /// per class are held for the last epoch only.
    pub(crate) fn footprint(epochs: u64, scalars: usize, class_values: usize, class_counts: usize) -> Bytes {
        let epoch = PER_EPOCH + PER_SCALAR * scalars as u64;
        let counts = PER_CLASS_COUNT.saturating_mul(class_counts as u64);
        let classes = PER_CLASS_VALUE.saturating_mul(class_values as u64).saturating_add(counts).saturating_add(REPORT_BUFFERS);
        Bytes(epochs.min(MAX_EPOCHS as u64).saturating_mul(epoch).saturating_add(classes)).align_up(4096)
    }

    /// Appends an epoch. Earlier ones lose their values per class, and the earliest goes if there are too many.
    pub(crate) fn push(&mut self, epoch: Epoch) {
        if self.epochs.len() == MAX_EPOCHS {
            self.epochs.remove(0);
        }
        for scores in self.epochs.last_mut().into_iter().flat_map(|last| iter::once(&mut last.training).chain(&mut last.validation)) {
            scores.per_class = Vec::new();
        }
        self.epochs.push(epoch);
    }

    /// The last epoch.
    pub fn last(&self) -> Option<&Epoch> {
        self.epochs.last()
    }
}

impl Epoch {
    /// The epoch as one JSON object.
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "epoch": self.epoch,
            "loss": self.training.loss,
            "learning_rate": self.learning_rate,
            "seconds": self.seconds,
            "examples_per_s": self.examples_per_s,
        });
        if self.left_out > 0 {
            object["left_out"] = json!(self.left_out);
        }
        put_scores(&mut object, "", &self.training);
        if !self.training.more.is_empty() {
            // Names the metrics among the other keys.
            object["metrics"] = self.training.more.iter().map(|(name, _)| name.as_str()).collect();
        }
        if let Some(scores) = &self.validation {
            put_scores(&mut object, "val_", scores);
        }
        object
    }
}

impl History {
    /// The record as one JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "epochs": self.epochs.iter().map(Epoch::to_json).collect::<Vec<_>>(),
            "steps": self.steps,
            "seconds": self.seconds,
            "examples_per_s": self.examples_per_s,
            "planned_bytes": self.planned.0,
            "measured_peak_rss_bytes": self.measured.0,
            "host_budget_bytes": self.host_budget.0,
            "planned_device_bytes": self.planned_on_device.map(|bytes| bytes.0),
            "device_in_use_bytes": self.in_use_on_device.map(|bytes| bytes.0),
            "computing_s": self.computing_s,
            "waiting_for_input_s": self.waiting_s,
            "pipeline": self.pipeline.as_ref().map(Explain::to_json),
            "start": self.start.to_json(),
            "sparsity": (!self.sparsity.is_empty()).then(|| self.sparsity.iter().map(WeightSparsity::to_json).collect::<Vec<_>>()),
            "stopped": self.stopped,
            "predicted_step_s": self.predicted_step_s,
            "measured_step_s": self.measured_step_s.map(|(median, _)| median),
            "fastest_step_s": self.measured_step_s.map(|(_, fastest)| fastest),
            "measured_over_predicted": self.measured_step_s.map(|(median, _)| median / self.predicted_step_s),
        })
    }
}

/// Adds all scores to an object, with a prefix before their names.
fn put_scores(object: &mut Value, prefix: &str, scores: &Scores) {
    for (name, value) in scores.iter() {
        object[format!("{prefix}{name}")] = json!(value);
    }
    for (name, values) in &scores.per_class {
        object[format!("{prefix}{name}_per_class")] = json!(values);
    }
}
