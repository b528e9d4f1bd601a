//! The `[train]` and `[budget]` tables.

use super::objective::{losses, metrics};
use super::optimizers::{average, clip, optimizer, schedule};
use crate::allow::Allow;
use crate::callbacks::EarlyStopping;
use crate::error::{Error, Result};
use crate::fit::FirstWeights;
use crate::precision::Precision;
use crate::reader::Reader;
use crate::run::{CheckpointSettings, Settings};
use plimsoll_core::{Budget, Bytes};
use std::path::Path;
use toml::Value;

/// More threads than any machine has cores for.
const MOST_THREADS: u64 = 1024;

/// How to train, and under which lines.
pub(super) fn settings(root: &Reader<'_>, folder: &Path) -> Result<Settings> {
    let mut settings = Settings::default();
    if let Some(train) = root.section("train")? {
        settings.batch = train.count("batch", 1)?.map(|rows| rows as usize);
        settings.micro_batch = match train.value("micro_batch") {
            None => None,
            Some(Value::String(word)) if word == "auto" => None,
            Some(Value::Integer(rows)) if *rows >= 1 => Some(*rows as usize),
            Some(other) => return Err(train.wrong("micro_batch", other, "\"auto\" or a whole number of 1 or more")),
        };
        settings.epochs = train.count("epochs", 1)?.unwrap_or(settings.epochs);
        settings.seed = train.count("seed", 0)?.unwrap_or(settings.seed);
        settings.threads = match train.count("threads", 1)? {
            Some(threads) if threads > MOST_THREADS => {
                return Err(Error::Config(format!("`train.threads` is {threads}, but should be at most {MOST_THREADS}")));
            }
            threads => threads.map(|threads| threads as usize),
        };
        if let Some(targets) = losses(&train)? {
            (settings.targets, settings.loss_given) = (targets, true);
        }
        settings.metrics = metrics(&train)?;
        settings.clip = clip(&train)?;
        settings.schedule = schedule(&train)?.unwrap_or_default();
        settings.average = average(&train)?;
        settings.precision = train.choice("precision", &Precision::NAMES)?.unwrap_or_default();
        if let Some(optimizer) = optimizer(&train)? {
            settings.optimizer = optimizer;
        }
        settings.early_stopping = early_stopping(&train)?;
        settings.csv_log = train.flag("csv_log")?.unwrap_or(false);
        settings.first = first_weights(&train, folder)?;
        settings.device = train.text("device")?.unwrap_or("cpu").parse()?;
        settings.device_profile = train.text("device_profile")?.map(str::to_string);
        train.finish()?;
    }
    settings.checkpoint = checkpoint(root)?;
    if let Some(budget) = root.section("budget")? {
        settings.budget = Budget { host: size(&budget, "host")?, device: size(&budget, "device")? };
        settings.allow = allow(&budget)?;
        budget.finish()?;
    }
    Ok(settings)
}

/// Weights to begin with: a file, or a table that says more.
fn first_weights(train: &Reader<'_>, folder: &Path) -> Result<Option<FirstWeights>> {
    match train.value("weights") {
        None => Ok(None),
        Some(Value::String(path)) => Ok(Some(FirstWeights::new(folder.join(path)))),
        Some(Value::Table(_)) => {
            let Some(table) = train.section("weights")? else { unreachable!("it is a table") };
            let Some(path) = table.text("path")? else { return Err(table.missing("path", "a safetensors file")) };
            let partial = table.flag("partial")?.unwrap_or(false);
            table.finish()?;
            Ok(Some(FirstWeights::new(folder.join(path)).partial(partial)))
        }
        Some(other) => Err(train.wrong("weights", other, "a safetensors file, or { path = \"FILE\", partial = true }")),
    }
}

/// What the planner may do: a list of names.
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

/// When checkpoints are written and which are kept.
fn checkpoint(root: &Reader<'_>) -> Result<CheckpointSettings> {
    let usual = CheckpointSettings::default();
    let Some(table) = root.section("checkpoint")? else { return Ok(usual) };
    let settings = CheckpointSettings {
        enabled: table.flag("enabled")?.unwrap_or(usual.enabled),
        keep: table.count("keep", 1)?.map_or(usual.keep, |keep| keep as usize),
        seconds: table.count("every_seconds", 1)?.unwrap_or(usual.seconds),
        steps: table.count("every_steps", 1)?,
        best: table.text("best")?.map(str::to_string),
        restore_best: table.flag("restore_best")?.unwrap_or(false),
    };
    if settings.restore_best && settings.best.is_none() {
        return Err(table.missing("best", "the score to restore the best epoch of, such as \"val_loss\""));
    }
    table.finish()?;
    Ok(settings)
}

/// A table with the score to follow.
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
