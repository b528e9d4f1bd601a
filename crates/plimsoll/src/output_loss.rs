//! The loss of each output of a model, with its weight, label column and metrics.

use crate::loss::{Loss, Objective};
use crate::metrics::Metric;
use plimsoll_core::GraphError;
use std::borrow::Cow;

/// The loss of one output of a model, with its weight, label column and metrics.
///
/// ```
/// use plimsoll::{Loss, Metric, OutputLoss};
/// let plain: OutputLoss = Loss::SoftmaxCrossEntropy.into();
/// let other = OutputLoss::new(Loss::MeanSquaredError).weight(0.3).labels("size").metrics([Metric::MeanAbsoluteError]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct OutputLoss {
    pub(crate) objective: Objective,
    pub(crate) weight: f32,
    pub(crate) labels: Option<String>,
    pub(crate) metrics: Option<Vec<Metric>>,
}

impl OutputLoss {
    /// This loss with weight 1, on the label column of the output's name.
    pub fn new(loss: impl Into<Objective>) -> OutputLoss {
        OutputLoss { objective: loss.into(), weight: 1.0, labels: None, metrics: None }
    }

    /// Sets the weight in the total loss.
    pub fn weight(self, weight: f32) -> OutputLoss {
        OutputLoss { weight, ..self }
    }

    /// Sets the label column.
    pub fn labels(self, column: &str) -> OutputLoss {
        OutputLoss { labels: Some(column.to_string()), ..self }
    }

    /// Sets the metrics, instead of the loss's default ones.
    pub fn metrics(self, metrics: impl IntoIterator<Item = Metric>) -> OutputLoss {
        OutputLoss { metrics: Some(metrics.into_iter().collect()), ..self }
    }

    pub(crate) fn counted(&self) -> Cow<'_, [Metric]> {
        match &self.metrics {
            Some(metrics) => Cow::Borrowed(metrics),
            None => Cow::Owned(self.objective.loss().default_metrics()),
        }
    }
}

impl From<Objective> for OutputLoss {
    fn from(objective: Objective) -> OutputLoss {
        OutputLoss::new(objective)
    }
}

impl From<Loss> for OutputLoss {
    fn from(loss: Loss) -> OutputLoss {
        OutputLoss::new(loss)
    }
}

/// The losses of a model's outputs.
#[derive(Clone, Debug)]
pub enum OutputLosses {
    /// The only output.
    Only(OutputLoss),
    /// One per output, by name.
    Named(Vec<(String, OutputLoss)>),
}

impl OutputLosses {
    /// The loss of each output, in order. Every output has exactly one.
    pub(crate) fn of<'a>(&'a self, outputs: &[&str]) -> Result<Vec<&'a OutputLoss>, GraphError> {
        let error = |what: String| Err(GraphError { scope: String::new(), what });
        let all = outputs.join(", ");
        for (i, name) in outputs.iter().enumerate() {
            if outputs[..i].contains(name) {
                return error(format!("the model has two outputs named `{name}`; names should be unique"));
            }
            if outputs.len() > 1 && (name.is_empty() || name.starts_with("val_")) {
                return error(format!("the model has an output named `{name}`; names should not be empty or begin with val_"));
            }
        }
        let targets = match self {
            OutputLosses::Only(target) if outputs.len() == 1 => vec![target],
            OutputLosses::Only(_) => {
                return error(format!(
                    "the model has {} outputs ({all}), but there is one loss; give one for each output by name",
                    outputs.len()
                ));
            }
            OutputLosses::Named(named) => {
                if let Some((i, (name, _))) = named.iter().enumerate().find(|(i, (name, _))| named[..*i].iter().any(|(n, _)| n == name)) {
                    return error(format!("loss {} is for the output `{name}`, which already has one", i + 1));
                }
                if let Some((name, _)) = named.iter().find(|(name, _)| !outputs.contains(&name.as_str())) {
                    return error(format!("there is a loss for `{name}`, but the model has no such output; it has {all}"));
                }
                let mut targets = Vec::with_capacity(outputs.len());
                for output in outputs {
                    match named.iter().find(|(name, _)| name == output) {
                        Some((_, target)) => targets.push(target),
                        None => return error(format!("the output `{output}` has no loss; give one for each of {all}")),
                    }
                }
                targets
            }
        };
        for (name, target) in outputs.iter().zip(&targets) {
            if !(target.weight.is_finite() && target.weight >= 0.0) {
                return error(format!("the loss of `{name}` has the weight {}, but weights should be at least 0", target.weight));
            }
            if targets.len() > 1 && target.objective.ignored_class().is_some() {
                // Each loss would have its own divisor, known only at the end of the batch, when the
                // gradients of all losses are already summed.
                return error(format!("the loss of `{name}` has ignore_class, which works with a single output only; remove it"));
            }
        }
        Ok(targets)
    }
}
