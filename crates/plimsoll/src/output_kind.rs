//! What the outputs of a model mean: probabilities of classes, or values.

use crate::error::Result;
use crate::graphs::ProgramInterface;
use crate::nn::Activation;
use crate::output_loss::OutputLosses;
use crate::spec::RunSpec;
use serde::{Deserialize, Serialize};

/// What the numbers of an output are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// A score per class in the last dimension.
    Classes {
        /// The number of classes.
        count: usize,
        /// Whether the scores are logits, of which softmax makes probabilities.
        logits: bool,
    },
    /// Scores of independent yes-or-no questions.
    Binary {
        /// Whether the scores are logits, of which the logistic function makes probabilities.
        logits: bool,
    },
    /// Values.
    Values,
}

impl OutputKind {
    /// The kinds of a model's outputs, by their losses and last activations.
    pub(crate) fn of(spec: &RunSpec, interface: &ProgramInterface) -> Result<Vec<OutputKind>> {
        OutputKind::by_loss(&spec.losses, &interface.outputs, &interface.activations)
    }

    /// The kinds of outputs of these names and shapes.
    pub(crate) fn by_loss(
        losses: &OutputLosses,
        outputs: &[(String, Vec<usize>)],
        activations: &[Option<Activation>],
    ) -> Result<Vec<OutputKind>> {
        let names: Vec<&str> = outputs.iter().map(|(name, _)| name.as_str()).collect();
        let losses = losses.of(&names)?;
        let kinds = losses.iter().zip(outputs).zip(activations).map(|((loss, (_, shape)), activation)| {
            let loss = &loss.objective.loss;
            match shape.last() {
                Some(&count) if loss.is_categorical() && count > 1 => {
                    OutputKind::Classes { count, logits: *activation != Some(Activation::Softmax) }
                }
                // Such as of a Dice loss.
                Some(&count) if count > 1 && *activation == Some(Activation::Softmax) => OutputKind::Classes { count, logits: false },
                _ if loss.is_binary() && loss.is_cross_entropy() => OutputKind::Binary { logits: *activation != Some(Activation::Sigmoid) },
                _ => OutputKind::Values,
            }
        });
        Ok(kinds.collect())
    }

    /// Replaces scores by probabilities, in place.
    pub fn to_probabilities(self, values: &mut [f32]) {
        match self {
            OutputKind::Classes { count, logits: true } => values.chunks_exact_mut(count).for_each(softmax),
            OutputKind::Binary { logits: true } => {
                values.iter_mut().for_each(|value| *value = (1.0 / (1.0 + (-f64::from(*value)).exp())) as f32)
            }
            _ => {}
        }
    }
}

fn softmax(values: &mut [f32]) {
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = values.iter().map(|value| f64::from(value - most).exp()).sum();
    values.iter_mut().for_each(|value| *value = (f64::from(*value - most).exp() / sum) as f32);
}

/// The class of a single probability, that of the second of two classes; and the probability of that class.
pub fn binary(probability: f32) -> (usize, f32) {
    if probability >= 0.5 { (1, probability) } else { (0, 1.0 - probability) }
}

/// The `k` largest of some numbers, largest first; the first of equal ones comes first.
pub fn top(values: &[f32], k: usize) -> Vec<(usize, f32)> {
    let mut best: Vec<(usize, f32)> = Vec::with_capacity(k + 1);
    for (index, &value) in values.iter().enumerate() {
        let at = best.partition_point(|(_, other)| *other >= value);
        if at < k {
            best.insert(at, (index, value));
            best.truncate(k);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_become_probabilities_and_are_ranked() {
        let mut values = [0.0, 1.0, 2.0, 1000.0, 0.0, 0.0];
        OutputKind::Classes { count: 3, logits: true }.to_probabilities(&mut values);
        assert!((values[2] - 0.665_241).abs() < 1e-6 && values[3..] == [1.0, 0.0, 0.0]);
        assert_eq!(top(&values[..3], 2).iter().map(|(class, _)| *class).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(top(&[0.5, 0.5], 5), [(0, 0.5), (1, 0.5)]);
        let mut value = [0.0, 40.0];
        OutputKind::Binary { logits: true }.to_probabilities(&mut value);
        assert_eq!(value, [0.5, 1.0]);
        OutputKind::Classes { count: 2, logits: false }.to_probabilities(&mut value);
        assert_eq!(value, [0.5, 1.0]);
    }
}
