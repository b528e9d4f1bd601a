//! `train.loss`, what goes with it, and `train.metrics`.

use super::optimizers::{number, share};
use super::reader::{Reader, choose};
use crate::error::{Error, Result};
use crate::loss::{Loss, Objective};
use crate::metrics::Metric;
use toml::Value;

/// The loss by its name or as a table with its numbers, with softened labels, weights of classes and a class that does not count.
pub(super) fn objective(train: &Reader<'_>) -> Result<Option<Objective>> {
    let loss = match train.value("loss") {
        None => None,
        Some(Value::String(word)) => Some(choose(&train.name("loss"), word, &Loss::NAMES)?),
        Some(Value::Table(_)) => {
            let table = train.section("loss")?.expect("just seen");
            let Some(loss) = table.choice("type", &Loss::NAMES)? else { return Err(table.missing("type", "the name of a loss")) };
            let loss = with_numbers(loss, &table)?;
            table.finish()?;
            Some(loss)
        }
        Some(other) => return Err(train.wrong("loss", other, "a name or a table such as { type = \"huber\", delta = 1.0 }")),
    };
    let smoothing = share(train, "label_smoothing", 0.0)?;
    let weights = train.numbers("class_weights")?;
    let ignored = match train.value("ignore_class") {
        None => None,
        Some(Value::Integer(class)) => match i32::try_from(*class) {
            Ok(class) => Some(class),
            Err(_) => return Err(train.wrong("ignore_class", &Value::Integer(*class), "a class number")),
        },
        Some(other) => return Err(train.wrong("ignore_class", other, "a class number, such as 255 or -1")),
    };
    if loss.is_none() && smoothing == 0.0 && weights.is_none() && ignored.is_none() {
        return Ok(None);
    }
    let mut objective = Objective::from(loss.unwrap_or(Loss::SoftmaxCrossEntropy)).smoothing(smoothing);
    if let Some(weights) = weights {
        if let Some(wrong) = weights.iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
            return Err(Error::Config(format!("`{}` has the number {wrong}, but weights are 0 or more", train.name("class_weights"))));
        }
        objective = objective.class_weights(weights);
    }
    if let Some(class) = ignored {
        objective = objective.ignore_class(class);
    }
    Ok(Some(objective))
}

fn with_numbers(loss: Loss, table: &Reader<'_>) -> Result<Loss> {
    Ok(match loss {
        Loss::Huber { delta } => Loss::Huber { delta: number(table, "delta", delta)? },
        Loss::CategoricalFocal { alpha, gamma } => {
            Loss::CategoricalFocal { alpha: number(table, "alpha", alpha)?, gamma: number(table, "gamma", gamma)? }
        }
        Loss::BinaryFocal { gamma, .. } => {
            let alpha = table.number("alpha")?.map(|alpha| alpha as f32);
            Loss::BinaryFocal { alpha, gamma: number(table, "gamma", gamma)? }
        }
        other => other,
    })
}

pub(super) fn metrics(train: &Reader<'_>) -> Result<Option<Vec<Metric>>> {
    let Some(value) = train.value("metrics") else { return Ok(None) };
    let wrong = || train.wrong("metrics", value, "a list, such as [\"accuracy\", \"top5\"]");
    let metric = |item: &Value| {
        let word = item.as_str().ok_or_else(wrong)?;
        word.parse().or_else(|()| choose(&train.name("metrics"), word, &Metric::NAMES))
    };
    value.as_array().ok_or_else(wrong)?.iter().map(metric).collect::<Result<Vec<_>>>().map(Some)
}
