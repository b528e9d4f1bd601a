//! `train.loss`, or one for each of the model's results, what goes with it, and `train.metrics`.

use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::metrics::Metric;
use crate::output_loss::{OutputLoss, OutputLosses};
use crate::reader::{Reader, choose};
use toml::Value;

/// The loss by its name or as a table, or a table with one for each of the model's results.
pub(super) fn targets(train: &Reader<'_>) -> Result<Option<OutputLosses>> {
    let wanted = "a name, a table such as { type = \"huber\", delta = 1.0 }, or one loss for each result, such as { digit = \"mse\" }";
    let plain = beside(train)?;
    let target = match train.value("loss") {
        None if plain == Beside::default() => return Ok(None),
        None => plain.onto(OutputLoss::new(Loss::SoftmaxCrossEntropy)),
        Some(Value::String(word)) => plain.onto(OutputLoss::new(choose(&train.name("loss"), word, Loss::NAMES)?)),
        Some(Value::Table(table)) => {
            let reader = train.section("loss")?.expect("just seen");
            let tables = table.values().all(|value| value.is_table() || value.is_str());
            // Numbers of a loss whose name is missing are not the names of results.
            if table.contains_key("type") || !tables || table.is_empty() {
                plain.onto(target(reader)?)
            } else {
                if plain != Beside::default() {
                    let what = "`train.label_smoothing`, `class_weights` and `ignore_class` go with one loss; with several, put them beside the \
                                `type` of the one they are for";
                    return Err(Error::Config(what.to_string()));
                }
                let named = reader.entries().map(|(name, value, inner)| {
                    let target = match (value, inner) {
                        (Value::String(word), _) => OutputLoss::new(choose(&reader.name(name), word, Loss::NAMES)?),
                        (_, Some(inner)) => target(inner)?,
                        (other, None) => return Err(reader.wrong(name, other, wanted)),
                    };
                    Ok((name.to_string(), target))
                });
                return Ok(Some(OutputLosses::Named(named.collect::<Result<_>>()?)));
            }
        }
        Some(other) => return Err(train.wrong("loss", other, wanted)),
    };
    Ok(Some(OutputLosses::Only(target)))
}

/// One loss as a table: its numbers, its weight, what it is compared with and what is counted.
fn target(table: Reader<'_>) -> Result<OutputLoss> {
    let Some(loss) = table.choice("type", Loss::NAMES)? else { return Err(table.missing("type", "the name of a loss")) };
    let mut target = beside(&table)?.onto(OutputLoss::new(loss.from_config(&table)?)).weight(table.non_negative_or("weight", 1.0)?);
    if let Some(column) = table.text("labels")? {
        target = target.labels(column);
    }
    if let Some(metrics) = metrics(&table)? {
        target = target.metrics(metrics);
    }
    table.finish()?;
    Ok(target)
}

/// What may go with a loss.
#[derive(Default, PartialEq)]
struct Beside {
    smoothing: f32,
    class_weights: Option<Vec<f32>>,
    ignored: Option<i32>,
}

impl Beside {
    fn onto(self, mut target: OutputLoss) -> OutputLoss {
        if self.smoothing != 0.0 {
            target.objective = target.objective.smoothing(self.smoothing);
        }
        if let Some(weights) = self.class_weights {
            target.objective = target.objective.class_weights(weights);
        }
        if let Some(class) = self.ignored {
            target.objective = target.objective.ignore_class(class);
        }
        target
    }
}

/// Softened labels, weights of classes and a class that does not count.
fn beside(table: &Reader<'_>) -> Result<Beside> {
    let smoothing = table.fraction_or("label_smoothing", 0.0)?;
    let class_weights = table.numbers("class_weights")?;
    if let Some(wrong) = class_weights.iter().flatten().find(|weight| !weight.is_finite() || **weight < 0.0) {
        return Err(Error::Config(format!("`{}` has the number {wrong}, but weights are 0 or more", table.name("class_weights"))));
    }
    let ignored = match table.value("ignore_class") {
        None => None,
        Some(Value::Integer(class)) => match i32::try_from(*class) {
            Ok(class) => Some(class),
            Err(_) => return Err(table.wrong("ignore_class", &Value::Integer(*class), "a class number")),
        },
        Some(other) => return Err(table.wrong("ignore_class", other, "a class number, such as 255 or -1")),
    };
    Ok(Beside { smoothing, class_weights, ignored })
}

pub(super) fn metrics(train: &Reader<'_>) -> Result<Option<Vec<Metric>>> {
    let Some(value) = train.value("metrics") else { return Ok(None) };
    let wrong = || train.wrong("metrics", value, "a list, such as [\"accuracy\", \"top5\"]");
    let metric = |item: &Value| {
        let word = item.as_str().ok_or_else(wrong)?;
        word.parse().or_else(|()| choose(&train.name("metrics"), word, Metric::NAMES))
    };
    value.as_array().ok_or_else(wrong)?.iter().map(metric).collect::<Result<Vec<_>>>().map(Some)
}
