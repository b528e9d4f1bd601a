//! Losses: how wrong a prediction is, and the metrics that go with each.

use crate::nn::Activation;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::ops::Reduction;
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, Graph, GraphError, ValueId};

/// How wrong a prediction is, as one number per row; a batch's loss is their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The mean of squared differences.
    MeanSquaredError,
    /// Classes, one of which is right. Labels are class numbers (integers) or a probability per class. The model's result is scores;
    /// if it ends in softmax, the scores before it are used.
    SoftmaxCrossEntropy,
    /// Independent yes/no answers. Labels are 0 to 1. The model's result is scores; if it ends in sigmoid, the scores before it are used.
    BinaryCrossEntropy,
}

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// The share of right answers.
    Accuracy,
}

impl Metric {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Accuracy => "accuracy",
        }
    }
}

/// A model's result, and what it was before its last activation.
#[derive(Clone, Copy)]
pub(crate) struct Prediction {
    pub output: ValueId,
    pub before_activation: Option<(Activation, ValueId)>,
}

impl Loss {
    /// All of them by the names configurations use.
    pub const NAMES: [(&'static str, Loss); 3] = [
        ("mse", Loss::MeanSquaredError),
        ("softmax_cross_entropy", Loss::SoftmaxCrossEntropy),
        ("binary_cross_entropy", Loss::BinaryCrossEntropy),
    ];

    /// The name in configurations and reports.
    pub fn name(self) -> &'static str {
        Loss::NAMES.iter().find(|(_, loss)| *loss == self).map_or("", |(name, _)| name)
    }

    /// The metrics that are counted unless others are asked for.
    pub fn default_metrics(self) -> Vec<Metric> {
        match self {
            Loss::MeanSquaredError => vec![],
            Loss::SoftmaxCrossEntropy | Loss::BinaryCrossEntropy => vec![Metric::Accuracy],
        }
    }

    /// The sum over the rows of each row's loss.
    pub(crate) fn sum_of_rows(self, g: &mut Graph, prediction: Prediction, labels: ValueId) -> Result<ValueId, GraphError> {
        match self {
            Loss::MeanSquaredError => {
                let labels = like(g, labels, prediction.output)?;
                let share = 1.0 / per_row(g, prediction.output) as f32;
                let squares = Expr::build(|e| {
                    let difference = e.sub(e.input(0), e.input(1));
                    e.mul(e.mul(difference, difference), e.constant(share))
                });
                let squares = g.pointwise(squares, &[prediction.output, labels])?;
                g.sum(squares)
            }
            Loss::SoftmaxCrossEntropy => {
                let (scores, classes) = class_scores(g, prediction.scores(Activation::Softmax))?;
                let share = 1.0 / answers_per_row(g, scores) as f32;
                let log_sum = g.reduce(Reduction::LogSumExp, scores, &[1])?;
                let right = match label_kind(g, labels, scores, classes)? {
                    Labels::Numbers(labels) => {
                        let chosen = Expr::build(|e| {
                            let here = e.binary(Binary::Equal, e.coordinate(1), e.input(1));
                            let entropy = e.select(here, e.sub(e.input(2), e.input(0)), e.constant(0.0));
                            e.mul(entropy, e.constant(share))
                        });
                        g.pointwise(chosen, &[scores, labels, log_sum])?
                    }
                    Labels::Shares(labels) => {
                        let weighted = Expr::build(|e| {
                            let entropy = e.mul(e.input(1), e.sub(e.input(2), e.input(0)));
                            e.mul(entropy, e.constant(share))
                        });
                        g.pointwise(weighted, &[scores, labels, log_sum])?
                    }
                };
                g.sum(right)
            }
            Loss::BinaryCrossEntropy => {
                let scores = prediction.scores(Activation::Sigmoid);
                let labels = like(g, labels, scores)?;
                let share = 1.0 / per_row(g, scores) as f32;
                let entropy = Expr::build(|e| {
                    let entropy = e.sub(e.unary(Unary::Softplus, e.input(0)), e.mul(e.input(0), e.input(1)));
                    e.mul(entropy, e.constant(share))
                });
                let entropy = g.pointwise(entropy, &[scores, labels])?;
                g.sum(entropy)
            }
        }
    }

    /// The number of right answers, and how many answers a row has.
    pub(crate) fn right_answers(self, g: &mut Graph, prediction: Prediction, labels: ValueId) -> Result<(ValueId, usize), GraphError> {
        match self {
            Loss::SoftmaxCrossEntropy | Loss::MeanSquaredError => {
                let (scores, classes) = class_scores(g, prediction.scores(Activation::Softmax))?;
                let chosen = g.reduce(Reduction::ArgMax, scores, &[1])?;
                let right = match label_kind(g, labels, scores, classes)? {
                    Labels::Numbers(labels) => labels,
                    Labels::Shares(labels) => g.reduce(Reduction::ArgMax, labels, &[1])?,
                };
                let answers = answers_per_row(g, scores);
                let equal = g.binary(Binary::Equal, chosen, right)?;
                Ok((g.sum(equal)?, answers))
            }
            Loss::BinaryCrossEntropy => {
                let scores = prediction.scores(Activation::Sigmoid);
                let labels = like(g, labels, scores)?;
                let right = Expr::build(|e| {
                    let yes = e.binary(Binary::Less, e.constant(0.0), e.input(0));
                    let wanted = e.binary(Binary::Less, e.constant(0.5), e.input(1));
                    e.binary(Binary::Equal, yes, wanted)
                });
                let answers = per_row(g, scores);
                let right = g.pointwise(right, &[scores, labels])?;
                Ok((g.sum(right)?, answers))
            }
        }
    }

    /// How many classes labels may name, if they are class numbers.
    pub(crate) fn classes(self, g: &Graph, prediction: Prediction, labels: ValueId) -> Option<usize> {
        let classes = g.shape(prediction.output).last()?.as_fixed()?;
        let numbers = matches!(g.ty(labels).dtype, DType::I32 | DType::U8);
        (self == Loss::SoftmaxCrossEntropy && numbers).then_some(classes)
    }
}

impl Prediction {
    /// The result before `activation`, if that was the last one; else the result.
    fn scores(&self, activation: Activation) -> ValueId {
        match self.before_activation {
            Some((last, before)) if last == activation => before,
            _ => self.output,
        }
    }
}

/// How many numbers one row of a value has.
fn per_row(g: &Graph, value: ValueId) -> usize {
    g.shape(value).elements().factor().max(1)
}

/// How many answers one row gives, when scores are rows of classes: one, or one per place of a sequence or image.
fn answers_per_row(g: &Graph, scores: ValueId) -> usize {
    g.shape(scores).dims()[0].factor().max(1)
}

/// The labels as numbers in the prediction's shape.
fn like(g: &mut Graph, labels: ValueId, prediction: ValueId) -> Result<ValueId, GraphError> {
    let (have, want) = (g.shape(labels).clone(), g.shape(prediction).clone());
    if have.elements() != want.elements() {
        return Err(g.error(format!("the loss compares predictions {want} with labels {have}; they need the same number of elements")));
    }
    let labels = g.cast(labels, DType::F32)?;
    g.reshape(labels, want)
}

/// Scores as rows of classes, and how many classes there are.
fn class_scores(g: &mut Graph, scores: ValueId) -> Result<(ValueId, usize), GraphError> {
    let shape = g.shape(scores).clone();
    let Some(classes) = shape.last().and_then(|dim| dim.as_fixed()).filter(|_| shape.rank() >= 2) else {
        return Err(g.error(format!("a loss over classes takes predictions [batch, classes], but got the shape {shape}")));
    };
    let rows = Shape::new(shape.dims()[..shape.rank() - 1].iter().copied()).elements();
    Ok((g.reshape(scores, Shape::new([rows, classes.into()]))?, classes))
}

enum Labels {
    /// Class numbers, `[rows, 1]`.
    Numbers(ValueId),
    /// A probability per class, `[rows, classes]`.
    Shares(ValueId),
}

fn label_kind(g: &mut Graph, labels: ValueId, scores: ValueId, classes: usize) -> Result<Labels, GraphError> {
    let answers = g.shape(scores).dims()[0];
    let ty = g.ty(labels).clone();
    let elements = ty.shape.elements();
    if ty.dtype == DType::I32 || ty.dtype == DType::U8 {
        if elements != answers {
            let what = format!("class numbers {ty} do not go with predictions of {answers} answers; there must be one for each");
            return Err(g.error(what));
        }
        let labels = g.reshape(labels, Shape::new([elements, 1.into()]))?;
        return Ok(Labels::Numbers(labels));
    }
    if ty.shape.last().and_then(|dim| dim.as_fixed()) != Some(classes) {
        let what = format!("labels {ty} are neither whole class numbers nor a probability for each of {classes} classes");
        return Err(g.error(what));
    }
    let rows = Shape::new(ty.shape.dims()[..ty.shape.rank() - 1].iter().copied()).elements();
    let labels = g.cast(labels, DType::F32)?;
    Ok(Labels::Shares(g.reshape(labels, Shape::new([rows, classes.into()]))?))
}
