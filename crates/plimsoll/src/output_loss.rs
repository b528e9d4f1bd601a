//! What the results of a model are taught: a loss for each, with its weight, its column of labels and its metrics.

use crate::loss::{Loss, Objective};
use crate::metrics::Metric;
use plimsoll_core::GraphError;
use std::borrow::Cow;

/// What one result of a model is taught: a loss and how much it counts, the column of labels, and what is counted beside it.
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
    /// This loss, counted once, over the column that is named like the result.
    pub fn new(loss: impl Into<Objective>) -> OutputLoss {
        OutputLoss { objective: loss.into(), weight: 1.0, labels: None, metrics: None }
    }

    /// Counts this much towards the total loss.
    pub fn weight(self, weight: f32) -> OutputLoss {
        OutputLoss { weight, ..self }
    }

    /// Is compared with this column of the data.
    pub fn labels(self, column: &str) -> OutputLoss {
        OutputLoss { labels: Some(column.to_string()), ..self }
    }

    /// With these metrics instead of those usual for the loss.
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

/// What a model is taught.
#[derive(Clone, Debug)]
pub(crate) enum OutputLosses {
    /// Its only result.
    Only(OutputLoss),
    /// Each of its results, by name.
    Named(Vec<(String, OutputLoss)>),
}

impl OutputLosses {
    /// The target of each result, in the order of the results. Every result has exactly one.
    pub fn of<'a>(&'a self, outputs: &[&str]) -> Result<Vec<&'a OutputLoss>, GraphError> {
        let error = |what: String| Err(GraphError { scope: String::new(), what });
        let all = outputs.join(", ");
        for (i, name) in outputs.iter().enumerate() {
            if outputs[..i].contains(name) {
                return error(format!("the model has two results named `{name}`; give each a name of its own"));
            }
            if outputs.len() > 1 && (name.is_empty() || name.starts_with("val_")) {
                return error(format!("the model has a result named `{name}`; a name is not empty and does not begin with val_"));
            }
        }
        let targets = match self {
            OutputLosses::Only(target) if outputs.len() == 1 => vec![target],
            OutputLosses::Only(_) => {
                return error(format!(
                    "the model has {} results ({all}), but there is one loss; give one for each by its name",
                    outputs.len()
                ));
            }
            OutputLosses::Named(named) => {
                if let Some((i, (name, _))) = named.iter().enumerate().find(|(i, (name, _))| named[..*i].iter().any(|(n, _)| n == name)) {
                    return error(format!("loss {} is for `{name}`, which has one already", i + 1));
                }
                if let Some((name, _)) = named.iter().find(|(name, _)| !outputs.contains(&name.as_str())) {
                    return error(format!("there is a loss for `{name}`, but the model has no such result; it has {all}"));
                }
                let mut targets = Vec::with_capacity(outputs.len());
                for output in outputs {
                    match named.iter().find(|(name, _)| name == output) {
                        Some((_, target)) => targets.push(target),
                        None => return error(format!("the model's result `{output}` has no loss; give each of {all} one")),
                    }
                }
                targets
            }
        };
        for (name, target) in outputs.iter().zip(&targets) {
            if !(target.weight.is_finite() && target.weight >= 0.0) {
                return error(format!("the loss of `{name}` has the weight {}, but weights are 0 or more", target.weight));
            }
            if targets.len() > 1 && target.objective.ignored().is_some() {
                // Each loss would be divided by a number of its own that is known only when the whole batch has been seen, and by then
                // the pieces' gradients are one sum.
                return error(format!(
                    "the loss of `{name}` leaves a class out, which goes with a single loss only; take ignore_class away, or teach one result"
                ));
            }
        }
        Ok(targets)
    }
}
