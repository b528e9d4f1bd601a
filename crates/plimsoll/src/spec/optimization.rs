//! How parameters are updated: optimizer, gradient clipping, learning-rate schedule, weight average, pruning and
//! precision; and their keys in `[train]` and `[prune]`.

use crate::error::{Error, Result};
use crate::optim::{Adam, Clip, EMA_MOMENTUM, Ema, OPTIMIZERS, Optimizer, OptimizerDef};
use crate::precision::Precision;
use crate::prune::Prune;
use crate::reader::{Reader, choose};
use crate::schedule::{SCHEDULES, Schedule, ScheduleDef};
use plimsoll_core::loss_scale::LossScaling;
use std::sync::Arc;
use toml::{Table, Value};

/// How parameters are updated.
#[derive(Clone, Debug)]
pub struct Optimization {
    /// The optimizer.
    pub optimizer: Arc<dyn Optimizer>,
    /// How gradients are clipped.
    pub clip: Option<Clip>,
    /// The learning-rate schedule.
    pub schedule: Schedule,
    /// A moving average of the weights.
    pub average: Option<Ema>,
    /// Which weights are pruned, and how many.
    pub prune: Option<Prune>,
    /// The data type of activations.
    pub precision: Precision,
    /// Loss scaling, instead of what the precision implies.
    pub loss_scaling: Option<LossScaling>,
}

impl Default for Optimization {
    fn default() -> Optimization {
        Optimization {
            optimizer: Arc::new(Adam::default()),
            clip: None,
            schedule: Schedule::default(),
            average: None,
            prune: None,
            precision: Precision::default(),
            loss_scaling: None,
        }
    }
}

impl Optimization {
    /// Reads its keys of `[train]`.
    pub(crate) fn read(&mut self, train: &Reader<'_>) -> Result<()> {
        self.clip = clip(train)?;
        self.schedule = schedule(train)?.unwrap_or_default();
        self.average = average(train)?;
        self.precision = train.choice("precision", &Precision::NAMES)?.unwrap_or_default();
        if let Some(optimizer) = optimizer(train)? {
            self.optimizer = optimizer;
        }
        Ok(())
    }

    /// How the loss is scaled, if it is.
    pub(crate) fn loss_scaling(&self) -> Option<LossScaling> {
        self.loss_scaling.or(self.precision.scaling())
    }

    /// The names of the scalars that a step reads.
    pub(crate) fn scalar_names(&self) -> Vec<&'static str> {
        let average = self.average.map(|_| EMA_MOMENTUM);
        self.optimizer.scalar_names().iter().copied().chain(average).collect()
    }

    /// The values of those scalars in a step, counted from 1 without skipped steps, at a learning rate.
    pub(crate) fn scalars(&self, step: u64, learning_rate: f64, values: &mut [f32]) {
        let own = self.optimizer.scalar_names().len();
        self.optimizer.scalars(step, learning_rate, &mut values[..own]);
        if let Some(average) = self.average {
            values[own] = average.keep(step);
        }
    }
}

/// A name, or a table with a `type` and its keys.
fn typed<K: Copy, T>(
    train: &Reader<'_>,
    key: &'static str,
    names: &[(&'static str, K)],
    example: &str,
    read: impl FnOnce(K, &Reader<'_>) -> Result<T>,
) -> Result<Option<T>> {
    let empty = Table::new();
    let (kind, table) = match train.value(key) {
        None => return Ok(None),
        Some(Value::String(word)) => (choose(&train.name(key), word, names)?, Reader::root(&empty)),
        Some(Value::Table(_)) => {
            let table = train.section(key)?.expect("just seen");
            let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            let Some(kind) = table.choice("type", names)? else {
                return Err(table.missing("type", &format!("one of {}", known.join(", "))));
            };
            (kind, table)
        }
        Some(other) => return Err(train.wrong(key, other, &format!("a name or a table such as {example}"))),
    };
    let result = read(kind, &table)?;
    table.finish()?;
    Ok(Some(result))
}

fn optimizer(train: &Reader<'_>) -> Result<Option<Arc<dyn Optimizer>>> {
    let names: Vec<(&'static str, &OptimizerDef)> = OPTIMIZERS.iter().map(|def| (def.name, def)).collect();
    typed(train, "optimizer", &names, "{ type = \"adam\", lr = 1e-3 }", |def, table| (def.from_config)(table))
}

fn schedule(train: &Reader<'_>) -> Result<Option<Schedule>> {
    let names: Vec<(&'static str, &ScheduleDef)> = SCHEDULES.iter().map(|def| (def.name, def)).collect();
    typed(train, "schedule", &names, "{ type = \"cosine\", warm_up = 100 }", |def, table| def.build(table))
}

fn clip(train: &Reader<'_>) -> Result<Option<Clip>> {
    let Some(table) = train.section("clip")? else { return Ok(None) };
    let bound = |key: &'static str| match table.number(key)?.map(|bound| bound as f32) {
        None => Ok(None),
        Some(bound) if bound.is_finite() && bound > 0.0 => Ok(Some(bound)),
        Some(other) => Err(Error::Config(format!("`{}` is {other}, but should be a number above 0", table.name(key)))),
    };
    let found = [bound("value")?.map(Clip::Value), bound("norm")?.map(Clip::Norm), bound("global_norm")?.map(Clip::GlobalNorm)];
    let mut found = found.into_iter().flatten();
    let clip = found.next();
    if clip.is_none() || found.next().is_some() {
        let what = "give one of value, norm and global_norm, such as clip = { global_norm = 1.0 }";
        return Err(Error::Config(format!("`{}`: {what}", train.name("clip"))));
    }
    table.finish()?;
    Ok(clip)
}

fn average(train: &Reader<'_>) -> Result<Option<Ema>> {
    match train.value("ema") {
        None => Ok(None),
        Some(_) => train.fraction_or("ema", 0.99).map(|momentum| Some(Ema::new(momentum))),
    }
}
