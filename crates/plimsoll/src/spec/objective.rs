//! `train.loss`, for one output or several, and `train.metrics`.

use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::metrics::Metric;
use crate::output_loss::{OutputLoss, OutputLosses};
use crate::reader::{Reader, choose};
use toml::Value;

/// One loss by name or as a table, or a table of losses by output.
pub(super) fn losses(train: &Reader<'_>) -> Result<Option<OutputLosses>> {
    let wanted = "a name, a table such as { type = \"huber\", delta = 1.0 }, or one loss per output, such as { digit = \"mse\" }";
    let arguments = loss_arguments(train)?;
    let target = match train.value("loss") {
        None if arguments == LossArguments::default() => return Ok(None),
        None => arguments.apply(OutputLoss::new(Loss::SoftmaxCrossEntropy)),
        Some(Value::String(word)) => arguments.apply(OutputLoss::new(choose(&train.name("loss"), word, Loss::NAMES)?)),
        Some(Value::Table(table)) => {
            let reader = train.section("loss")?.expect("just seen");
            let tables = table.values().all(|value| value.is_table() || value.is_str());
            // Arguments of a loss without `type` are not names of outputs.
            if table.contains_key("type") || !tables || table.is_empty() {
                arguments.apply(loss_table(reader)?)
            } else {
                if arguments != LossArguments::default() {
                    let what = "`train.label_smoothing`, `class_weights` and `ignore_class` apply to a single loss; with several, put them beside the \
                                `type` of their loss";
                    return Err(Error::Config(what.to_string()));
                }
                let named = reader.entries().map(|(name, value, inner)| {
                    let target = match (value, inner) {
                        (Value::String(word), _) => OutputLoss::new(choose(&reader.name(name), word, Loss::NAMES)?),
                        (_, Some(inner)) => loss_table(inner)?,
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

/// One loss as a table: its arguments, weight, label column and metrics.
fn loss_table(table: Reader<'_>) -> Result<OutputLoss> {
    let Some(loss) = table.choice("type", Loss::NAMES)? else { return Err(table.missing("type", "the name of a loss")) };
    let mut target =
        loss_arguments(&table)?.apply(OutputLoss::new(loss.with_config(&table)?)).weight(table.non_negative_or("weight", 1.0)?);
    if let Some(column) = table.text("labels")? {
        target = target.labels(column);
    }
    if let Some(metrics) = metrics(&table)? {
        target = target.metrics(metrics);
    }
    table.finish()?;
    Ok(target)
}

/// The optional arguments of every loss.
#[derive(Default, PartialEq)]
struct LossArguments {
    smoothing: f32,
    class_weights: Option<Vec<f32>>,
    ignored: Option<i32>,
}

impl LossArguments {
    fn apply(self, mut target: OutputLoss) -> OutputLoss {
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

/// Label smoothing, class weights and the ignored class.
fn loss_arguments(table: &Reader<'_>) -> Result<LossArguments> {
    let smoothing = table.fraction_or("label_smoothing", 0.0)?;
    let class_weights = table.numbers("class_weights")?;
    if let Some(wrong) = class_weights.iter().flatten().find(|weight| !weight.is_finite() || **weight < 0.0) {
        return Err(Error::Config(format!("`{}` has the weight {wrong}, but weights should be at least 0", table.name("class_weights"))));
    }
    let ignored = match table.value("ignore_class") {
        None => None,
        Some(Value::Integer(class)) => match i32::try_from(*class) {
            Ok(class) => Some(class),
            Err(_) => return Err(table.wrong("ignore_class", &Value::Integer(*class), "a class ID")),
        },
        Some(other) => return Err(table.wrong("ignore_class", other, "a class ID, such as 255 or -1")),
    };
    Ok(LossArguments { smoothing, class_weights, ignored })
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
