//! The `[train]` and `[budget]` tables.

use super::objective::{losses, metrics};
use super::optimizers::{average, clip, optimizer, schedule};
use crate::allow::Allow;
use crate::callbacks::EarlyStopping;
use crate::checkpoint::Checkpoints;
use crate::error::{Error, Result};
use crate::precision::Precision;
use crate::reader::Reader;
use crate::spec::{InitialWeights, RunSpec};
use plimsoll_core::{Budget, Bytes};
use std::path::Path;
use std::time::Duration;
use toml::Value;

/// Upper limit on threads.
const MOST_THREADS: u64 = 1024;

/// Keys of `[train]` that other tables depend on.
#[derive(Default)]
pub(super) struct TrainKeys {
    /// The batch size, unless the data has one.
    pub batch: Option<usize>,
    /// Whether the loss is set; a network of the zoo has its own default.
    pub loss_given: bool,
}

/// Reads the `[train]`, `[checkpoint]` and `[budget]` tables into the description of a run.
pub(super) fn read(root: &Reader<'_>, folder: &Path, spec: &mut RunSpec) -> Result<TrainKeys> {
    let mut keys = TrainKeys::default();
    if let Some(train) = root.section("train")? {
        keys.batch = train.count("batch", 1)?.map(|rows| rows as usize);
        spec.micro_batch = match train.value("micro_batch") {
            None => None,
            Some(Value::String(word)) if word == "auto" => None,
            Some(Value::Integer(rows)) if *rows >= 1 => Some(*rows as usize),
            Some(other) => return Err(train.wrong("micro_batch", other, "\"auto\" or an integer of 1 or more")),
        };
        spec.fit.epochs = train.count("epochs", 1)?.unwrap_or(spec.fit.epochs);
        spec.seed = train.count("seed", 0)?.unwrap_or(spec.seed);
        spec.threads = match train.count("threads", 1)? {
            Some(threads) if threads > MOST_THREADS => {
                return Err(Error::Config(format!("`train.threads` is {threads}, but should be at most {MOST_THREADS}")));
            }
            threads => threads.map(|threads| threads as usize),
        };
        if let Some(losses) = losses(&train)? {
            (spec.losses, keys.loss_given) = (losses, true);
        }
        spec.metrics = metrics(&train)?;
        spec.optimization.clip = clip(&train)?;
        spec.optimization.schedule = schedule(&train)?.unwrap_or_default();
        spec.optimization.average = average(&train)?;
        spec.optimization.precision = train.choice("precision", &Precision::NAMES)?.unwrap_or_default();
        if let Some(optimizer) = optimizer(&train)? {
            spec.optimization.optimizer = optimizer;
        }
        spec.fit.early_stopping = early_stopping(&train)?;
        spec.fit.csv_log = train.flag("csv_log")?.unwrap_or(false).then(|| "log.csv".into());
        spec.fit.initial_weights = initial_weights(&train, folder)?;
        spec.device = train.text("device")?.unwrap_or("cpu").parse()?;
        spec.device_profile = train.text("device_profile")?.map(str::to_string);
        train.finish()?;
    }
    checkpoint(root, spec)?;
    if let Some(budget) = root.section("budget")? {
        spec.budget = Budget { host: size(&budget, "host")?, device: size(&budget, "device")? };
        spec.allow = allow(&budget)?;
        budget.finish()?;
    }
    Ok(keys)
}

/// Weights to start from: a file, or a table with more keys.
fn initial_weights(train: &Reader<'_>, folder: &Path) -> Result<Option<InitialWeights>> {
    match train.value("weights") {
        None => Ok(None),
        Some(Value::String(path)) => Ok(Some(InitialWeights::new(folder.join(path)))),
        Some(Value::Table(_)) => {
            let Some(table) = train.section("weights")? else { unreachable!("it is a table") };
            let Some(path) = table.text("path")? else { return Err(table.missing("path", "a safetensors file")) };
            let partial = table.flag("partial")?.unwrap_or(false);
            table.finish()?;
            Ok(Some(InitialWeights::new(folder.join(path)).partial(partial)))
        }
        Some(other) => Err(train.wrong("weights", other, "a safetensors file, or { path = \"FILE\", partial = true }")),
    }
}

/// The allowed strategies: a list of names.
fn allow(budget: &Reader<'_>) -> Result<Allow> {
    let wanted = "a list, such as [\"recompute\", \"microbatch\"]";
    match budget.value("allow") {
        None => Ok(Allow::default()),
        Some(Value::String(names)) => Ok(names.parse()?),
        Some(value) => {
            let list = value.as_array().ok_or_else(|| budget.wrong("allow", value, wanted))?;
            let names = list.iter().map(|name| name.as_str().ok_or_else(|| budget.wrong("allow", value, wanted)));
            Ok(names.collect::<Result<Vec<_>>>()?.join(",").parse()?)
        }
    }
}

/// When checkpoints are written and how many are retained. Their folder is inside the run folder.
fn checkpoint(root: &Reader<'_>, spec: &mut RunSpec) -> Result<()> {
    let mut checkpoints = Checkpoints::new("checkpoints");
    let mut enabled = true;
    if let Some(table) = root.section("checkpoint")? {
        enabled = table.flag("enabled")?.unwrap_or(enabled);
        if let Some(keep) = table.count("keep", 1)? {
            checkpoints = checkpoints.keep(keep as usize);
        }
        if let Some(seconds) = table.count("every_seconds", 1)? {
            checkpoints = checkpoints.every(Duration::from_secs(seconds));
        }
        if let Some(steps) = table.count("every_steps", 1)? {
            checkpoints = checkpoints.every_steps(steps);
        }
        if let Some(score) = table.text("best")? {
            checkpoints = checkpoints.best(score);
        }
        spec.fit.restore_best = table.flag("restore_best")?.unwrap_or(false);
        if spec.fit.restore_best && checkpoints.best_score().is_none() {
            return Err(table.missing("best", "the score to restore the best epoch of, such as \"val_loss\""));
        }
        table.finish()?;
    }
    spec.fit.checkpoints = enabled.then_some(checkpoints);
    Ok(())
}

/// A table with the monitored score.
fn early_stopping(train: &Reader<'_>) -> Result<Option<EarlyStopping>> {
    let Some(table) = train.section("early_stopping")? else { return Ok(None) };
    let Some(score) = table.text("score")? else { return Err(table.missing("score", "a score, such as \"val_loss\"")) };
    let mut stopping = EarlyStopping::new(score).patience(table.count("patience", 0)?.unwrap_or(0));
    if let Some(least) = table.number("min_delta")? {
        stopping = stopping.min_delta(least);
    }
    table.finish()?;
    Ok(Some(stopping))
}

fn size(budget: &Reader<'_>, key: &'static str) -> Result<Option<Bytes>> {
    match budget.value(key) {
        None => Ok(None),
        Some(Value::Integer(bytes)) if *bytes > 0 => Ok(Some(Bytes(*bytes as u64))),
        Some(Value::String(text)) => match text.parse() {
            Ok(size) => Ok(Some(size)),
            Err(error) => Err(Error::Config(format!("`{}`: {error}", budget.name(key)))),
        },
        Some(other) => Err(budget.wrong(key, other, "a size, such as \"256MiB\"")),
    }
}
