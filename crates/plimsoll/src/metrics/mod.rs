//! Metrics. They accumulate as sums, so that micro-batches of any size add up to the same result.

mod accumulators;
mod model_metrics;
mod scores;

use crate::loss::{CustomRows, Loss};
use crate::named::named;
pub(crate) use model_metrics::{LabelledOutput, ModelMetrics};
pub use scores::Scores;

/// A metric.
///
/// ```
/// use plimsoll::Metric;
/// assert_eq!("top5".parse(), Ok(Metric::TopK(5)));
/// assert_eq!(Metric::F1.to_string(), "f1");
/// ```
///
/// [`Metric::custom`] makes one from a closure over eager tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum Metric {
    /// The fraction of correct predictions.
    Accuracy,
    /// The fraction of predictions whose label is among the k highest logits.
    TopK(usize),
    /// True positives over predictions; the mean over classes (macro average).
    Precision,
    /// True positives over labels; the mean over classes (macro average).
    Recall,
    /// The harmonic mean of precision and recall; the mean over classes (macro average).
    F1,
    /// Intersection over union; the mean over classes that occur.
    MeanIou,
    /// The exponential of the mean cross-entropy, without label smoothing and class weights.
    Perplexity,
    /// Mean absolute error.
    MeanAbsoluteError,
    /// Mean squared error.
    MeanSquaredError,
    /// The coefficient of determination, over all elements.
    R2,
    /// A metric that code supplies, such as [`Metric::custom`]: the mean over rows.
    Custom(CustomRows),
}

named!(Metric, Custom {
    "accuracy" => Accuracy,
    "top5" => TopK(5),
    "precision" => Precision,
    "recall" => Recall,
    "f1" => F1,
    "iou" => MeanIou,
    "perplexity" => Perplexity,
    "mae" => MeanAbsoluteError,
    "mse" => MeanSquaredError,
    "r2" => R2,
});

impl Metric {
    /// Whether it improves as it decreases.
    fn lower_is_better(&self) -> bool {
        match self {
            Metric::Perplexity | Metric::MeanAbsoluteError | Metric::MeanSquaredError => true,
            Metric::Accuracy | Metric::TopK(_) | Metric::Precision | Metric::Recall | Metric::F1 | Metric::MeanIou | Metric::R2 => false,
            Metric::Custom(own) => falls(own.name()),
        }
    }

    /// Whether it is a macro average with counts per class.
    pub(crate) fn is_per_class(&self) -> bool {
        matches!(self, Metric::Precision | Metric::Recall | Metric::F1 | Metric::MeanIou)
    }
}

impl std::fmt::Display for Metric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Metric::TopK(k) => f.pad(&format!("top{k}")),
            other => f.pad(other.name()),
        }
    }
}

impl std::str::FromStr for Metric {
    type Err = ();

    fn from_str(word: &str) -> Result<Metric, ()> {
        if let Some(k) = word.strip_prefix("top").and_then(|k| k.parse().ok()).filter(|k| *k > 0) {
            return Ok(Metric::TopK(k));
        }
        Metric::NAMES.iter().find(|(name, _)| *name == word).map(|(_, metric)| metric.clone()).ok_or(())
    }
}

/// Whether the name of a metric says that it improves as it decreases.
fn falls(name: &str) -> bool {
    name.ends_with("loss") || name.ends_with("error")
}

/// Whether a monitored metric such as `val_loss` improves as it decreases, judged by its name.
pub(crate) fn lower_is_better(monitor: &str) -> bool {
    // With several outputs, the output's name and a `_` come first.
    let name = monitor.rsplit('_').next().unwrap_or(monitor);
    falls(name) || name.parse().is_ok_and(|metric: Metric| metric.lower_is_better())
}

impl Loss {
    /// The default metrics of a loss.
    pub fn default_metrics(&self) -> Vec<Metric> {
        if self.is_cross_entropy() { vec![Metric::Accuracy] } else { vec![] }
    }
}
