//! The `[train]` and `[budget]` tables.

use super::reader::{Reader, choose};
use crate::error::{Error, Result};
use crate::loss::{Loss, Metric};
use crate::optim::{Adam, AdamW, Optimizer, Sgd};
use crate::run::{CheckpointSettings, Settings};
use crate::trainer::EarlyStopping;
use plimsoll_core::{Budget, Bytes};
use std::sync::Arc;
use toml::Value;

/// More threads than any machine has cores for.
const MOST_THREADS: u64 = 1024;

const OPTIMIZERS: [(&str, u8); 3] = [("sgd", 0), ("adam", 1), ("adamw", 2)];

/// How to train, and under which lines.
pub(super) fn settings(root: &Reader<'_>) -> Result<Settings> {
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
        settings.loss = train.choice("loss", &Loss::NAMES)?.unwrap_or(settings.loss);
        settings.metrics = metrics(&train)?;
        if let Some(optimizer) = optimizer(&train)? {
            settings.optimizer = optimizer;
        }
        settings.early_stopping = early_stopping(&train)?;
        settings.csv_log = train.flag("csv_log")?.unwrap_or(false);
        settings.device = train.text("device")?.unwrap_or("cpu").parse()?;
        settings.device_profile = train.text("device_profile")?.map(str::to_string);
        train.finish()?;
    }
    settings.checkpoint = checkpoint(root)?;
    if let Some(budget) = root.section("budget")? {
        settings.budget = Budget { host: size(&budget, "host")?, device: size(&budget, "device")? };
        budget.finish()?;
    }
    Ok(settings)
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

fn metrics(train: &Reader<'_>) -> Result<Option<Vec<Metric>>> {
    let Some(value) = train.value("metrics") else { return Ok(None) };
    let list = value.as_array().ok_or_else(|| train.wrong("metrics", value, "a list, such as [\"accuracy\"]"))?;
    let metric = |item: &Value| {
        let word = item.as_str().ok_or_else(|| train.wrong("metrics", value, "a list, such as [\"accuracy\"]"))?;
        choose(&train.name("metrics"), word, &[(Metric::Accuracy.name(), Metric::Accuracy)])
    };
    list.iter().map(metric).collect::<Result<Vec<_>>>().map(Some)
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

/// A name, or a table with a type and its numbers.
fn optimizer(train: &Reader<'_>) -> Result<Option<Arc<dyn Optimizer>>> {
    let (kind, table) = match train.value("optimizer") {
        None => return Ok(None),
        Some(Value::String(word)) => (choose(&train.name("optimizer"), word, &OPTIMIZERS)?, None),
        Some(Value::Table(_)) => {
            let table = train.section("optimizer")?.expect("just seen");
            let Some(kind) = table.choice("type", &OPTIMIZERS)? else { return Err(table.missing("type", "one of sgd, adam, adamw")) };
            (kind, Some(table))
        }
        Some(other) => return Err(train.wrong("optimizer", other, "a name or a table such as { type = \"adam\", lr = 1e-3 }")),
    };
    let empty = toml::Table::new();
    let table = table.unwrap_or_else(|| Reader::root(&empty));
    // Checked as the numbers they become: 1e300 is finite, but not in single precision.
    let between = |key: &'static str, usual: f32, most: f32, wanted: &str| match table.number(key)?.map(|number| number as f32) {
        None => Ok(usual),
        Some(number) if number.is_finite() && (0.0..most).contains(&number) => Ok(number),
        Some(number) => Err(Error::Config(format!("`{}` is {number}, but should be {wanted}", table.name(key)))),
    };
    let number = |key: &'static str, usual: f32| between(key, usual, f32::INFINITY, "a number of at least 0");
    let share = |key: &'static str, usual: f32| between(key, usual, 1.0, "a number from 0 to below 1");
    let optimizer: Arc<dyn Optimizer> = match kind {
        0 => Arc::new(Sgd::new(number("lr", 0.01)?).momentum(share("momentum", 0.0)?).nesterov(table.flag("nesterov")?.unwrap_or(false))),
        1 => Arc::new(Adam::new(number("lr", 1e-3)?).betas(share("beta1", 0.9)?, share("beta2", 0.999)?).epsilon(number("epsilon", 1e-7)?)),
        _ => {
            let adam = AdamW::new(number("lr", 1e-3)?, number("weight_decay", 4e-3)?);
            Arc::new(adam.betas(share("beta1", 0.9)?, share("beta2", 0.999)?).epsilon(number("epsilon", 1e-7)?))
        }
    };
    table.finish()?;
    Ok(Some(optimizer))
}
