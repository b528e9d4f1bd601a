//! Metrics: what is counted beside the loss. Everything is kept as sums, so that pieces of any size add up to the whole.

mod board;
mod counters;
mod scores;

use crate::loss::Loss;
use crate::named::named;
pub(crate) use board::{Board, Compared};
pub use scores::Scores;

/// What is counted beside the loss.
///
/// ```
/// use plimsoll::Metric;
/// assert_eq!("top5".parse(), Ok(Metric::TopK(5)));
/// assert_eq!(Metric::F1.to_string(), "f1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// The share of right answers.
    Accuracy,
    /// The share of answers whose label is among the classes with the highest scores.
    TopK(usize),
    /// Of the answers that name a class, the share that is right; the mean over classes.
    Precision,
    /// Of the labels that name a class, the share that is found; the mean over classes.
    Recall,
    /// The harmonic mean of both; the mean over classes.
    F1,
    /// Of answers and labels that name a class, the share that both name; the mean over the classes that occur.
    MeanIou,
    /// The exponential of the mean cross-entropy, of unsoftened and unweighted labels.
    Perplexity,
    /// The mean of differences without their signs.
    MeanAbsoluteError,
    /// The mean of squared differences.
    MeanSquaredError,
    /// The share of the labels' variance that is explained, all outputs together.
    R2,
}

named!(Metric {
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
    /// Whether it is a mean over classes, each of which is counted by itself.
    pub(crate) fn is_per_class(self) -> bool {
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
        Metric::NAMES.iter().find(|(name, _)| *name == word).map(|(_, metric)| *metric).ok_or(())
    }
}

/// Whether a monitored metric such as `val_loss` improves as it decreases, judged by its name.
pub(crate) fn lower_is_better(monitor: &str) -> bool {
    // With several outputs, the output's name and a `_` come first.
    let name = monitor.rsplit('_').next().unwrap_or(monitor);
    matches!(name, "loss" | "mae" | "mse" | "perplexity")
}

impl Loss {
    /// The metrics that are counted unless others are asked for.
    pub fn default_metrics(self) -> Vec<Metric> {
        match self {
            Loss::SoftmaxCrossEntropy | Loss::CategoricalFocal { .. } | Loss::BinaryCrossEntropy | Loss::BinaryFocal { .. } => {
                vec![Metric::Accuracy]
            }
            _ => vec![],
        }
    }
}
