//! The elementwise formulas of losses.

use super::labels::{Labels, class_logits, label_format, labels_like, per_row, predictions_per_row, several_classes};
use super::{Loss, ModelOutput, Objective};
use crate::nn::Activation;
use plimsoll_core::expr::{Binary, Expr, ExprBuilder, TermId, Unary};
use plimsoll_core::ops::Reduction;
use plimsoll_core::shape::Shape;
use plimsoll_core::{Graph, GraphError, ValueId};

/// Keeps logarithms and divisions finite, as in Keras.
const EPSILON: f32 = 1e-7;

impl Objective {
    /// The elementwise loss, scaled such that the elements of a row sum to the row's loss.
    pub(super) fn elements(&self, g: &mut Graph, prediction: ModelOutput, labels: ValueId) -> Result<ValueId, GraphError> {
        match &self.loss {
            Loss::MeanSquaredError => mean(g, prediction.output, labels, |e, p, y| {
                let difference = e.sub(p, y);
                e.mul(difference, difference)
            }),
            Loss::MeanAbsoluteError => mean(g, prediction.output, labels, |e, p, y| e.unary(Unary::Abs, e.sub(p, y))),
            Loss::Huber { delta } => mean(g, prediction.output, labels, |e, p, y| huber(e, e.sub(p, y), *delta)),
            Loss::LogCosh => mean(g, prediction.output, labels, |e, p, y| {
                let difference = e.sub(p, y);
                let bend = e.unary(Unary::Softplus, e.mul(difference, e.constant(-2.0)));
                e.sub(e.add(difference, bend), e.constant(std::f32::consts::LN_2))
            }),
            Loss::Hinge => mean(g, prediction.output, labels, |e, p, y| {
                let sign = e.select(e.binary(Binary::Less, e.constant(0.0), y), y, e.constant(-1.0));
                e.binary(Binary::Max, e.sub(e.constant(1.0), e.mul(sign, p)), e.constant(0.0))
            }),
            Loss::Poisson => {
                mean(g, prediction.output, labels, |e, p, y| e.sub(p, e.mul(y, e.unary(Unary::Log, e.add(p, e.constant(EPSILON))))))
            }
            Loss::BinaryCrossEntropy => {
                let softened = self.softened_binary();
                mean(g, prediction.logits(Activation::Sigmoid), labels, |e, z, y| binary_entropy(e, z, softened(e, y)))
            }
            Loss::BinaryFocal { alpha, gamma } => {
                let (alpha, gamma, softened) = (*alpha, *gamma, self.softened_binary());
                mean(g, prediction.logits(Activation::Sigmoid), labels, |e, z, y| {
                    let (one, y) = (e.constant(1.0), softened(e, y));
                    let both = |yes: TermId, no: TermId| e.add(e.mul(y, yes), e.mul(e.sub(one, y), no));
                    let p = e.unary(Unary::Sigmoid, z);
                    let missing = e.sub(one, both(p, e.sub(one, p)));
                    let focal = e.mul(e.binary(Binary::Pow, missing, e.constant(gamma)), binary_entropy(e, z, y));
                    alpha.map_or(focal, |alpha| e.mul(focal, both(e.constant(alpha), e.constant(1.0 - alpha))))
                })
            }
            Loss::SoftmaxCrossEntropy => self.over_classes(g, prediction, labels, |e, entropy, _| entropy(e)),
            Loss::CategoricalFocal { alpha, gamma } => self.over_classes(g, prediction, labels, |e, entropy, log_share| {
                let missing = e.sub(e.constant(1.0), e.unary(Unary::Exp, log_share));
                let focus = e.mul(e.binary(Binary::Pow, missing, e.constant(*gamma)), e.constant(*alpha));
                e.mul(focus, entropy(e))
            }),
            Loss::KlDivergence => kl_divergence(g, prediction, labels),
            Loss::Dice => dice(g, prediction, labels),
            Loss::Custom(function) => function.rows(g, prediction.output, labels),
        }
    }

    /// Label smoothing of binary labels.
    fn softened_binary(&self) -> impl Fn(&ExprBuilder, TermId) -> TermId + use<> {
        let smoothing = self.smoothing;
        move |e, y| e.add(e.mul(y, e.constant(1.0 - smoothing)), e.constant(0.5 * smoothing))
    }

    /// A categorical loss: `body` gets the cross-entropy of one class and its log-probability.
    fn over_classes(
        &self,
        g: &mut Graph,
        prediction: ModelOutput,
        labels: ValueId,
        body: impl Fn(&ExprBuilder, &dyn Fn(&ExprBuilder) -> TermId, TermId) -> TermId,
    ) -> Result<ValueId, GraphError> {
        let (scores, classes) = several_classes(g, prediction.logits(Activation::Softmax))?;
        let share = 1.0 / predictions_per_row(g, scores) as f32;
        let log_sum = g.reduce(Reduction::LogSumExp, scores, &[1])?;
        let spread = self.smoothing / classes as f32;
        let (labels, numbers) = match label_format(g, labels, scores, classes)? {
            Labels::ClassIds(labels) => (labels, true),
            Labels::Probabilities(labels) => (labels, false),
        };
        let loss = Expr::build(|e| {
            let missing = e.sub(e.input(2), e.input(0));
            let log_share = e.sub(e.input(0), e.input(2));
            let entropy = |e: &ExprBuilder| {
                if numbers {
                    let here = e.binary(Binary::Equal, e.coordinate(1), e.input(1));
                    let sure = e.mul(missing, e.constant(1.0 - self.smoothing + spread));
                    // A select, not a product with 0: logits that are not finite must not spread to other classes.
                    let rest = if spread > 0.0 { e.mul(missing, e.constant(spread)) } else { e.constant(0.0) };
                    e.select(here, sure, rest)
                } else {
                    let soft = e.add(e.mul(e.input(1), e.constant(1.0 - self.smoothing)), e.constant(spread));
                    e.mul(soft, missing)
                }
            };
            e.mul(body(e, &entropy, log_share), e.constant(share))
        });
        g.pointwise(loss, &[scores, labels, log_sum])
    }
}

/// The mean over a row of a function of prediction and label.
fn mean(
    g: &mut Graph,
    prediction: ValueId,
    labels: ValueId,
    body: impl FnOnce(&ExprBuilder, TermId, TermId) -> TermId,
) -> Result<ValueId, GraphError> {
    let labels = labels_like(g, labels, prediction)?;
    let share = 1.0 / per_row(g, prediction) as f32;
    let expr = Expr::build(|e| e.mul(body(e, e.input(0), e.input(1)), e.constant(share)));
    g.pointwise(expr, &[prediction, labels])
}

fn huber(e: &ExprBuilder, difference: TermId, delta: f32) -> TermId {
    let size = e.unary(Unary::Abs, difference);
    let near = e.mul(e.mul(difference, difference), e.constant(0.5));
    let far = e.mul(e.sub(size, e.constant(0.5 * delta)), e.constant(delta));
    e.select(e.binary(Binary::LessEq, size, e.constant(delta)), near, far)
}

/// Binary cross-entropy from a logit.
fn binary_entropy(e: &ExprBuilder, score: TermId, label: TermId) -> TermId {
    e.sub(e.unary(Unary::Softplus, score), e.mul(score, label))
}

fn kl_divergence(g: &mut Graph, prediction: ModelOutput, labels: ValueId) -> Result<ValueId, GraphError> {
    let from_scores = prediction.ends_in(Activation::Softmax);
    let (scores, classes) = several_classes(g, prediction.logits(Activation::Softmax))?;
    let share = 1.0 / predictions_per_row(g, scores) as f32;
    let Labels::Probabilities(labels) = label_format(g, labels, scores, classes)? else {
        return Err(g.error("KL divergence expects labels as a probability per class; apply one_hot to class IDs"));
    };
    let log_sum = g.reduce(Reduction::LogSumExp, scores, &[1])?;
    let loss = Expr::build(|e| {
        let clipped = |x| e.binary(Binary::Min, e.binary(Binary::Max, x, e.constant(EPSILON)), e.constant(1.0));
        let label = clipped(e.input(1));
        let log_share = if from_scores { e.sub(e.input(0), e.input(2)) } else { e.unary(Unary::Log, clipped(e.input(0))) };
        e.mul(e.mul(label, e.sub(e.unary(Unary::Log, label), log_share)), e.constant(share))
    });
    g.pointwise(loss, &[scores, labels, log_sum])
}

/// One number per row.
fn dice(g: &mut Graph, prediction: ModelOutput, labels: ValueId) -> Result<ValueId, GraphError> {
    let p = prediction.output;
    let same = g.shape(labels).elements() == g.shape(p).elements();
    let (p, y) = if same {
        (p, labels_like(g, labels, p)?)
    } else {
        let (p, classes) = class_logits(g, p)?;
        match label_format(g, labels, p, classes)? {
            Labels::Probabilities(labels) => (p, labels),
            Labels::ClassIds(labels) => {
                let shape = g.shape(p).clone();
                let hot = Expr::build(|e| e.binary(Binary::Equal, e.coordinate(1), e.input(0)));
                (p, g.pointwise_over(hot, &[labels], shape)?)
            }
        }
    };
    let rows = Shape::batch_of([per_row(g, p)]);
    let (p, y) = (g.reshape(p, rows.clone())?, g.reshape(y, rows)?);
    let both = g.times(p, y)?;
    let overlap = g.reduce(Reduction::Sum, both, &[1])?;
    let areas = g.plus(p, y)?;
    let areas = g.reduce(Reduction::Sum, areas, &[1])?;
    let loss = Expr::build(|e| {
        let twice = e.add(e.mul(e.input(0), e.constant(2.0)), e.constant(EPSILON));
        e.sub(e.constant(1.0), e.div(twice, e.add(e.input(1), e.constant(EPSILON))))
    });
    g.pointwise(loss, &[overlap, areas])
}
