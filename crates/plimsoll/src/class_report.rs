//! How well classes are distinguished: a confusion matrix, and precision, recall, F1 and AUC of every class.

use crate::output_kind::{OutputKind, top};
use plimsoll_core::{Bytes, DType};
use plimsoll_data::{Column, numbers};
use serde_json::{Value, json};

/// Counts of labels and predictions, and what follows from them.
#[derive(Clone, Debug)]
pub struct ClassReport {
    names: Vec<String>,
    classes: usize,
    kind: OutputKind,
    dtype: DType,
    /// Labels of a row.
    per_row: usize,
    /// By label, then prediction.
    matrix: Vec<u64>,
    /// By class, histograms of its log-odds: of rows of the class, and of others. Empty if there are many classes.
    odds: Vec<[Vec<u32>; 2]>,
    scratch: Vec<f32>,
}

/// Bins of a histogram of log-odds, from -`ODDS` to `ODDS`.
const BINS: usize = 4096;
const ODDS: f64 = 24.0;

/// With more classes, there is no AUC; with still more, no matrix.
const MOST_WITH_AUC: usize = 64;
const MOST: usize = 4096;

/// Scores of one class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassScores {
    /// Rows of the class.
    pub support: u64,
    /// The share of rows predicted as this class that are of it.
    pub precision: f64,
    /// The share of rows of this class that are predicted as it.
    pub recall: f64,
    /// The harmonic mean of both.
    pub f1: f64,
    /// The area under the ROC curve against all other classes.
    pub auc: Option<f64>,
}

impl ClassReport {
    /// For an output of class scores and a column of class labels; none otherwise.
    pub(crate) fn new(names: Vec<String>, kind: OutputKind, shape: &[usize], labels: &Column) -> Option<ClassReport> {
        let elements: usize = shape.iter().product();
        let (classes, per_row) = match kind {
            OutputKind::Classes { count, .. } => (count, elements / count),
            OutputKind::Binary { .. } => (2, elements),
            OutputKind::Values => return None,
        };
        let is_class = matches!(labels.dtype, DType::I32 | DType::U8) || matches!(kind, OutputKind::Binary { .. });
        if !is_class || labels.elements() != per_row || classes > MOST || (matches!(kind, OutputKind::Binary { .. }) && elements != 1) {
            return None;
        }
        let with_auc = if classes <= MOST_WITH_AUC { classes } else { 0 };
        let scored = if classes == 2 { with_auc / 2 } else { with_auc };
        Some(ClassReport {
            names,
            classes,
            kind,
            dtype: labels.dtype,
            per_row,
            matrix: vec![0; classes * classes],
            odds: (0..scored).map(|_| [vec![0; BINS], vec![0; BINS]]).collect(),
            scratch: vec![0.0; elements],
        })
    }

    /// The memory it takes.
    pub(crate) fn footprint(&self) -> Bytes {
        Bytes((8 * self.matrix.len() + self.odds.len() * 2 * BINS * 4 + 4 * self.scratch.len()) as u64)
    }

    /// Counts rows: their scores, and the bytes of their labels.
    pub(crate) fn add(&mut self, rows: usize, values: &[f32], labels: &[u8]) {
        let (per_row, bytes) = (self.scratch.len(), self.per_row * self.dtype.size());
        for row in 0..rows {
            let mut scores = std::mem::take(&mut self.scratch);
            scores.copy_from_slice(&values[row * per_row..][..per_row]);
            self.kind.to_probabilities(&mut scores);
            let width = per_row / self.per_row.max(1);
            for (scores, label) in scores.chunks_exact(width).zip(numbers(self.dtype, &labels[row * bytes..][..bytes])) {
                self.count(scores, label);
            }
            self.scratch = scores;
        }
    }

    fn count(&mut self, scores: &[f32], label: f64) {
        // Ignored labels are outside the classes.
        if label < 0.0 || label >= self.classes as f64 {
            return;
        }
        let label = label.round() as usize;
        let (predicted, second) = match scores {
            [single] => (usize::from(*single >= 0.5), Some(*single)),
            several => (top(several, 1).first().map_or(0, |(class, _)| *class), several.get(1).copied().filter(|_| self.classes == 2)),
        };
        self.matrix[label * self.classes + predicted] += 1;
        for (class, odds) in self.odds.iter_mut().enumerate() {
            // Of two classes, the second alone is scored.
            let (score, is_class) = match second {
                Some(score) => (score, label == 1),
                None => (scores[class], label == class),
            };
            let score = f64::from(score).clamp(1e-12, 1.0 - 1e-12);
            let odd = (score / (1.0 - score)).ln().clamp(-ODDS, ODDS);
            let bin = (((odd + ODDS) / (2.0 * ODDS)) * (BINS - 1) as f64).round() as usize;
            odds[usize::from(!is_class)][bin] = odds[usize::from(!is_class)][bin].saturating_add(1);
        }
    }

    /// The name of a class, or its number.
    pub fn name(&self, class: usize) -> String {
        self.names.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// How many labels of a class were predicted as another.
    pub fn count_of(&self, label: usize, predicted: usize) -> u64 {
        self.matrix[label * self.classes + predicted]
    }

    /// The scores of a class.
    pub fn scores(&self, class: usize) -> ClassScores {
        let support: u64 = (0..self.classes).map(|predicted| self.count_of(class, predicted)).sum();
        let predicted: u64 = (0..self.classes).map(|label| self.count_of(label, class)).sum();
        let right = self.count_of(class, class) as f64;
        let share = |all: u64| if all == 0 { 0.0 } else { right / all as f64 };
        let (precision, recall) = (share(predicted), share(support));
        let f1 = if precision + recall == 0.0 { 0.0 } else { 2.0 * precision * recall / (precision + recall) };
        let odds = self.odds.get(if self.classes == 2 { 0 } else { class });
        ClassScores { support, precision, recall, f1, auc: odds.and_then(area) }
    }

    /// The mean over classes that have rows: precision, recall, F1, and AUC.
    pub fn mean(&self) -> ClassScores {
        let scores: Vec<ClassScores> = (0..self.classes).map(|class| self.scores(class)).filter(|scores| scores.support > 0).collect();
        let mean = |of: &dyn Fn(&ClassScores) -> f64| scores.iter().map(of).sum::<f64>() / scores.len().max(1) as f64;
        let areas: Vec<f64> = scores.iter().filter_map(|scores| scores.auc).collect();
        ClassScores {
            support: scores.iter().map(|scores| scores.support).sum(),
            precision: mean(&|scores| scores.precision),
            recall: mean(&|scores| scores.recall),
            f1: mean(&|scores| scores.f1),
            auc: (!areas.is_empty()).then(|| areas.iter().sum::<f64>() / areas.len() as f64),
        }
    }

    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        let of = |scores: ClassScores| json!({ "support": scores.support, "precision": scores.precision, "recall": scores.recall, "f1": scores.f1, "auc": scores.auc });
        let classes = (0..self.classes).map(|class| {
            let mut object = of(self.scores(class));
            object["name"] = json!(self.name(class));
            object
        });
        let matrix: Vec<&[u64]> = self.matrix.chunks(self.classes.max(1)).collect();
        json!({ "classes": classes.collect::<Vec<_>>(), "mean": of(self.mean()), "confusion_matrix": matrix })
    }
}

/// The area under the ROC curve of two histograms: the chance that a row of the class has a higher score than another
/// row. Rows in the same bin count half.
fn area([of_class, others]: &[Vec<u32>; 2]) -> Option<f64> {
    let sum = |counts: &[u32]| counts.iter().map(|count| f64::from(*count)).sum::<f64>();
    let pairs = sum(of_class) * sum(others);
    let (mut below, mut wins) = (0.0, 0.0);
    for (of_class, others) in of_class.iter().zip(others) {
        wins += f64::from(*of_class) * (below + f64::from(*others) / 2.0);
        below += f64::from(*others);
    }
    (pairs > 0.0).then(|| wins / pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(labels: &[i32]) -> Vec<u8> {
        labels.iter().flat_map(|label| label.to_ne_bytes()).collect()
    }

    #[test]
    fn scores_are_those_of_scikit_learn() {
        // sklearn.metrics: precision_recall_fscore_support and roc_auc_score(multi_class="ovr") of these rows.
        let column = Column::new("y", DType::I32, []);
        let kind = OutputKind::Classes { count: 3, logits: false };
        let mut report = ClassReport::new(vec!["a".into(), "b".into()], kind, &[3], &column).unwrap();
        let scores = [
            [0.8, 0.1, 0.1],
            [0.4, 0.5, 0.1],
            [0.2, 0.7, 0.1],
            [0.1, 0.6, 0.3],
            [0.3, 0.3, 0.4],
            [0.2, 0.2, 0.6],
            [0.6, 0.3, 0.1],
            [0.9, 0.05, 0.05],
        ];
        report.add(8, scores.as_flattened(), &labels(&[0, 0, 1, 1, 2, 2, 2, -1]));
        assert_eq!((report.name(1), report.name(2)), ("b".to_string(), "2".to_string()));
        assert_eq!((report.count_of(0, 1), report.count_of(2, 0), report.mean().support), (1, 1, 7));
        let [a, b, c] = [0, 1, 2].map(|class| report.scores(class));
        assert_eq!((a.precision, a.recall, a.f1), (0.5, 0.5, 0.5));
        assert!((b.precision - 2.0 / 3.0).abs() < 1e-12 && b.recall == 1.0 && (b.f1 - 0.8).abs() < 1e-12);
        assert!(c.precision == 1.0 && (c.recall - 2.0 / 3.0).abs() < 1e-12);
        // Of the ten pairs of a row of class 0 with another, nine are ranked right.
        assert_eq!([a.auc, b.auc], [Some(0.9), Some(1.0)]);
        assert!((c.auc.unwrap() - 9.5 / 12.0).abs() < 1e-12, "{:?}", c.auc);
    }

    #[test]
    fn two_classes_share_one_area_and_masks_count_pixels() {
        let column = Column::new("y", DType::U8, [2, 2, 1]);
        let kind = OutputKind::Classes { count: 2, logits: true };
        let mut report = ClassReport::new(Vec::new(), kind, &[2, 2, 2], &column).unwrap();
        report.add(1, &[1.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 3.0], &[0, 0, 0, 1]);
        assert_eq!((report.count_of(0, 0), report.count_of(0, 1), report.count_of(1, 1)), (2, 1, 1));
        assert_eq!((report.scores(0).auc, report.scores(1).auc), (Some(1.0), Some(1.0)));
        let values = Column::new("y", DType::F32, [1]);
        assert!(ClassReport::new(Vec::new(), OutputKind::Values, &[1], &values).is_none());
        let mut binary = ClassReport::new(Vec::new(), OutputKind::Binary { logits: true }, &[1], &values).unwrap();
        binary.add(2, &[-1.0, 2.0], &[0.0f32, 1.0].map(f32::to_ne_bytes).concat());
        assert_eq!((binary.count_of(0, 0), binary.count_of(1, 1), binary.scores(1).auc), (1, 1, Some(1.0)));
    }
}
