//! `train.optimizer`, `train.clip`, `train.schedule` and `train.ema`.

use crate::error::{Error, Result};
use crate::optim::{Adafactor, Adagrad, Adam, AdamW, Average, Clip, Lion, Nadam, Optimizer, RmsProp, Sgd};
use crate::reader::{Reader, choose};
use crate::schedule::{Plateau, Schedule};
use std::sync::Arc;
use toml::{Table, Value};

#[derive(Clone, Copy)]
enum Kind {
    Sgd,
    Adam,
    AdamW,
    RmsProp,
    Adagrad,
    Adafactor,
    Lion,
    Nadam,
}

const OPTIMIZERS: [(&str, Kind); 8] = [
    ("sgd", Kind::Sgd),
    ("adam", Kind::Adam),
    ("adamw", Kind::AdamW),
    ("rmsprop", Kind::RmsProp),
    ("adagrad", Kind::Adagrad),
    ("adafactor", Kind::Adafactor),
    ("lion", Kind::Lion),
    ("nadam", Kind::Nadam),
];

const SCHEDULES: [(&str, u8); 7] =
    [("constant", 0), ("step", 1), ("cosine", 2), ("polynomial", 3), ("exponential", 4), ("one_cycle", 5), ("plateau", 6)];

/// A name, or a table with a type and its numbers; `read` is given the type and the table.
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

/// A number as the single precision it becomes: 1e300 is finite, but not then.
fn between(table: &Reader<'_>, key: &'static str, usual: f32, most: f32, wanted: &str) -> Result<f32> {
    match table.number(key)?.map(|number| number as f32) {
        None => Ok(usual),
        Some(number) if number.is_finite() && (0.0..most).contains(&number) => Ok(number),
        Some(number) => Err(Error::Config(format!("`{}` is {number}, but should be {wanted}", table.name(key)))),
    }
}

pub(super) fn number(table: &Reader<'_>, key: &'static str, usual: f32) -> Result<f32> {
    between(table, key, usual, f32::INFINITY, "a number of at least 0")
}

pub(super) fn share(table: &Reader<'_>, key: &'static str, usual: f32) -> Result<f32> {
    between(table, key, usual, 1.0, "a number from 0 to below 1")
}

pub(super) fn optimizer(train: &Reader<'_>) -> Result<Option<Arc<dyn Optimizer>>> {
    typed(train, "optimizer", &OPTIMIZERS, "{ type = \"adam\", lr = 1e-3 }", |kind, table| {
        let number = |key: &'static str, usual: f32| number(table, key, usual);
        let share = |key: &'static str, usual: f32| share(table, key, usual);
        let flag = |key: &'static str| table.flag(key).map(|flag| flag.unwrap_or(false));
        let eight_bits = || match table.count("state_bits", 8)? {
            None | Some(32) => Ok(false),
            Some(8) => Ok(true),
            Some(other) => Err(Error::Config(format!("`{}` is {other}, but should be 8 or 32", table.name("state_bits")))),
        };
        Ok(match kind {
            Kind::Sgd => Arc::new(Sgd::new(number("lr", 0.01)?).momentum(share("momentum", 0.0)?).nesterov(flag("nesterov")?)),
            Kind::Adam => {
                let adam = Adam::new(number("lr", 1e-3)?).betas(share("beta1", 0.9)?, share("beta2", 0.999)?);
                let adam = adam.epsilon(number("epsilon", 1e-7)?);
                if eight_bits()? { Arc::new(adam.eight_bit()) } else { Arc::new(adam) as Arc<dyn Optimizer> }
            }
            Kind::AdamW => {
                let adam = AdamW::new(number("lr", 1e-3)?, number("weight_decay", 4e-3)?);
                let adam = adam.betas(share("beta1", 0.9)?, share("beta2", 0.999)?).epsilon(number("epsilon", 1e-7)?);
                if eight_bits()? { Arc::new(adam.eight_bit()) } else { Arc::new(adam) as Arc<dyn Optimizer> }
            }
            Kind::RmsProp => {
                let rmsprop = RmsProp::new(number("lr", 1e-3)?).rho(share("rho", 0.9)?).momentum(share("momentum", 0.0)?);
                Arc::new(rmsprop.epsilon(number("epsilon", 1e-7)?).centered(flag("centered")?))
            }
            Kind::Adagrad => Arc::new(Adagrad::new(number("lr", 1e-3)?).first(number("first", 0.1)?).epsilon(number("epsilon", 1e-7)?)),
            Kind::Adafactor => {
                let decay = table.number("beta2_decay")?.unwrap_or(-0.8);
                if !(-10.0..0.0).contains(&decay) {
                    return Err(Error::Config(format!("`{}` is {decay}, but should be below 0, such as -0.8", table.name("beta2_decay"))));
                }
                let adafactor = Adafactor::new(number("lr", 1e-3)?).beta2_decay(decay as f32);
                Arc::new(adafactor.clip_threshold(number("clip_threshold", 1.0)?))
            }
            Kind::Lion => {
                let lion = Lion::new(number("lr", 1e-3)?).betas(share("beta1", 0.9)?, share("beta2", 0.99)?);
                Arc::new(lion.weight_decay(number("weight_decay", 0.0)?))
            }
            Kind::Nadam => {
                let nadam = Nadam::new(number("lr", 1e-3)?).betas(share("beta1", 0.9)?, share("beta2", 0.999)?);
                Arc::new(nadam.epsilon(number("epsilon", 1e-7)?))
            }
        })
    })
}

pub(super) fn clip(train: &Reader<'_>) -> Result<Option<Clip>> {
    let Some(table) = train.section("clip")? else { return Ok(None) };
    let bound = |key: &'static str| match number(&table, key, f32::NAN)? {
        none if none.is_nan() => Ok(None),
        most if most > 0.0 => Ok(Some(most)),
        zero => Err(Error::Config(format!("`{}` is {zero}, but should be above 0: nothing would be learnt", table.name(key)))),
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

pub(super) fn schedule(train: &Reader<'_>) -> Result<Option<Schedule>> {
    typed(train, "schedule", &SCHEDULES, "{ type = \"cosine\", warm_up = 100 }", |kind, table| {
        let number = |key: &'static str, usual: f32| number(table, key, usual).map(f64::from);
        let need = |key: &'static str| table.count(key, 1)?.ok_or_else(|| table.missing(key, "a number of steps"));
        let length = |schedule: fn(u64) -> Schedule| -> Result<Schedule> {
            Ok(table.count("steps", 1)?.map_or_else(|| schedule(1).open_ended(), schedule))
        };
        let schedule = match kind {
            0 => Schedule::constant(),
            1 => Schedule::step(need("every")?, number("factor", 0.1)?),
            2 => length(Schedule::cosine)?.floor(number("floor", 0.0)?),
            3 => {
                let (end, power) = (number("end", 0.1)?, number("power", 1.0)?);
                match table.count("steps", 1)? {
                    Some(steps) => Schedule::polynomial(steps, end, power),
                    None => Schedule::polynomial(1, end, power).open_ended(),
                }
            }
            4 => {
                let schedule = Schedule::exponential(need("steps")?, number("rate", 0.96)?);
                if table.flag("staircase")?.unwrap_or(false) { schedule.staircase() } else { schedule }
            }
            5 => length(Schedule::one_cycle)?.cycle(number("rising", 0.3)?, number("first", 0.04)?, number("last", 4e-6)?),
            _ => {
                let usual = Plateau::default();
                Schedule::plateau(Plateau {
                    factor: number("factor", 0.1)?,
                    patience: table.count("patience", 0)?.unwrap_or(usual.patience),
                    min_delta: number("min_delta", 1e-4)?,
                    cooldown: table.count("cooldown", 0)?.unwrap_or(usual.cooldown),
                    floor: number("floor", 0.0)?,
                    monitor: table.text("monitor")?.map_or(usual.monitor, str::to_string),
                })
            }
        };
        Ok(schedule.warm_up(table.count("warm_up", 0)?.unwrap_or(0)))
    })
}

pub(super) fn average(train: &Reader<'_>) -> Result<Option<Average>> {
    match train.value("ema") {
        None => Ok(None),
        Some(_) => share(train, "ema", 0.99).map(|momentum| Some(Average::new(momentum))),
    }
}
