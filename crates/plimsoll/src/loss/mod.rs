//! Losses: how wrong a prediction is.

mod formulas;
pub(crate) mod labels;

use crate::named::named;
use crate::nn::{Activation, Output};
use crate::reader::Reader;
use labels::{Labels, answers_per_row, class_scores, constants, label_kind, like};
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::ops::Reduction;
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_core::{DType, Graph, GraphError, ValueId};
use std::sync::Arc;

/// How wrong a prediction is, as one number per row; a batch's loss is their mean. The formulas are Keras'.
///
/// What goes with a loss is said on it, which makes an [`Objective`]:
///
/// ```
/// use plimsoll::{Loss, Objective};
/// let plain: Objective = Loss::MeanSquaredError.into();
/// let soft = Loss::SoftmaxCrossEntropy.smoothing(0.1).class_weights([1.0, 5.0]).ignore_class(255);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// The mean of squared differences.
    MeanSquaredError,
    /// The mean of differences without their signs.
    MeanAbsoluteError,
    /// Squared where differences are small, straight where they are larger than `delta`.
    Huber {
        /// Where the one becomes the other.
        delta: f32,
    },
    /// The mean of the logarithm of the hyperbolic cosine of differences.
    LogCosh,
    /// How far the predicted shares of classes are from the labels' (Kullback and Leibler). Labels are a probability per class.
    KlDivergence,
    /// Classes, one of which is right. Labels are class numbers (integers) or a probability per class. The model's result is scores;
    /// if it ends in softmax, the scores before it are used.
    SoftmaxCrossEntropy,
    /// Independent yes/no answers. Labels are 0 to 1. The model's result is scores; if it ends in sigmoid, the scores before it are used.
    BinaryCrossEntropy,
    /// Cross-entropy over classes in which answers that are already good count less (Lin et al.).
    CategoricalFocal {
        /// What every class is weighted by.
        alpha: f32,
        /// How much less.
        gamma: f32,
    },
    /// The same for yes/no answers.
    BinaryFocal {
        /// The weight of yes; that of no is the rest to one. None leaves both alone.
        alpha: Option<f32>,
        /// How much less good answers count.
        gamma: f32,
    },
    /// One less twice the overlap over the sum of areas (Dice), row by row. The model's result is probabilities; labels are too, or class
    /// numbers.
    Dice,
    /// For answers with a sign: what is missing to being right by 1. Labels are yes above zero, else no.
    Hinge,
    /// For counts: the model's result is the rate.
    Poisson,
}

/// A loss and what goes with it: softened labels, weights of classes, a class that does not count.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    pub(crate) loss: Loss,
    smoothing: f32,
    class_weights: Option<Arc<[f32]>>,
    ignored: Option<i32>,
}

/// A model's result, and what it was before its last activation.
#[derive(Clone, Copy)]
pub(crate) struct Prediction {
    pub output: ValueId,
    pub before_activation: Option<(Activation, ValueId)>,
}

/// The loss of some rows, as values of a graph.
pub(crate) struct Sum {
    /// The sum over the rows of each row's loss.
    pub loss: ValueId,
    /// Over the rows, the share of each row's answers that count; none if all do. The batch's loss is divided by its mean.
    pub counted: Option<ValueId>,
}

named!(Loss {
    "mse" => MeanSquaredError,
    "mae" => MeanAbsoluteError,
    "huber" => Huber { delta: 1.0 },
    "log_cosh" => LogCosh,
    "kl_divergence" => KlDivergence,
    "softmax_cross_entropy" => SoftmaxCrossEntropy,
    "binary_cross_entropy" => BinaryCrossEntropy,
    "categorical_focal" => CategoricalFocal { alpha: 0.25, gamma: 2.0 },
    "binary_focal" => BinaryFocal { alpha: None, gamma: 2.0 },
    "dice" => Dice,
    "hinge" => Hinge,
    "poisson" => Poisson,
});

impl Loss {
    /// With the numbers that a table gives in place of the defaults.
    pub(crate) fn from_config(self, config: &Reader<'_>) -> crate::error::Result<Loss> {
        Ok(match self {
            Loss::Huber { delta } => Loss::Huber { delta: config.non_negative_or("delta", delta)? },
            Loss::CategoricalFocal { alpha, gamma } => {
                Loss::CategoricalFocal { alpha: config.non_negative_or("alpha", alpha)?, gamma: config.non_negative_or("gamma", gamma)? }
            }
            Loss::BinaryFocal { gamma, .. } => Loss::BinaryFocal {
                alpha: config.number("alpha")?.map(|alpha| alpha as f32),
                gamma: config.non_negative_or("gamma", gamma)?,
            },
            Loss::MeanSquaredError
            | Loss::MeanAbsoluteError
            | Loss::LogCosh
            | Loss::KlDivergence
            | Loss::SoftmaxCrossEntropy
            | Loss::BinaryCrossEntropy
            | Loss::Dice
            | Loss::Hinge
            | Loss::Poisson => self,
        })
    }

    /// Whether answers are classes, one of which is right.
    pub fn is_over_classes(self) -> bool {
        matches!(self, Loss::SoftmaxCrossEntropy | Loss::CategoricalFocal { .. } | Loss::KlDivergence)
    }

    /// Whether answers are yes or no.
    pub fn is_binary(self) -> bool {
        matches!(self, Loss::BinaryCrossEntropy | Loss::BinaryFocal { .. } | Loss::Hinge)
    }

    /// Softens labels: this much of the certainty is spread over all classes.
    pub fn smoothing(self, smoothing: f32) -> Objective {
        Objective::from(self).smoothing(smoothing)
    }

    /// Weights rows by the class of their label.
    pub fn class_weights(self, weights: impl IntoIterator<Item = f32>) -> Objective {
        Objective::from(self).class_weights(weights)
    }

    /// Leaves answers out whose label is this number; the loss is the mean over the others of the batch.
    pub fn ignore_class(self, class: i32) -> Objective {
        Objective::from(self).ignore_class(class)
    }
}

impl From<Loss> for Objective {
    fn from(loss: Loss) -> Objective {
        Objective { loss, smoothing: 0.0, class_weights: None, ignored: None }
    }
}

impl Objective {
    /// Softens labels: this much of the certainty is spread over all classes.
    pub fn smoothing(self, smoothing: f32) -> Objective {
        Objective { smoothing, ..self }
    }

    /// Weights rows by the class of their label, as Keras' `class_weight`: the mean is over rows, not over weights.
    pub fn class_weights(self, weights: impl IntoIterator<Item = f32>) -> Objective {
        Objective { class_weights: Some(weights.into_iter().collect()), ..self }
    }

    /// Leaves answers out whose label is this number; the loss is the mean over the others of the batch.
    pub fn ignore_class(self, class: i32) -> Objective {
        Objective { ignored: Some(class), ..self }
    }

    /// The same without weights of classes.
    pub(crate) fn even(self) -> Objective {
        Objective { class_weights: None, ..self }
    }

    /// The loss it is about.
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// The label that does not count, if there is one.
    pub fn ignored(&self) -> Option<i32> {
        self.ignored
    }

    /// The sum over the rows of each row's loss. `weights` is a number per row by which it counts.
    pub(crate) fn sum_of_rows(
        &self,
        g: &mut Graph,
        prediction: Prediction,
        labels: ValueId,
        weights: Option<ValueId>,
    ) -> Result<Sum, GraphError> {
        self.check(g)?;
        let mut elements = self.elements(g, prediction, labels)?;
        let mut counted = None;
        if self.class_weights.is_some() || self.ignored.is_some() {
            let factor = self.factors(g, prediction, labels)?;
            if self.ignored.is_some() {
                let (here, share) = (self.counts(g, prediction, labels)?, 1.0 / self.answers(g, prediction)? as f32);
                let shares = g.map(here, |e, here| e.mul(here, e.constant(share)))?;
                counted = Some(g.sum(shares)?);
            }
            // One factor per answer; elements are in the scores' shape or one per answer already.
            let shape = g.shape(elements).clone();
            elements = match g.shape(factor).broadcasts_to(&shape) {
                true => g.times(elements, factor)?,
                false => return Err(g.error("weights of classes and classes that do not count go with losses over classes")),
            };
        }
        if let Some(weights) = weights {
            let rows = by_rows(g, elements)?;
            let ty = g.ty(weights).clone();
            if ty.shape.elements() != Dim::BATCH {
                return Err(g.error(format!("sample weights are one number per row, but the column is {ty}")));
            }
            let weights = g.cast(weights, DType::F32)?;
            let weights = g.reshape(weights, Shape::batch_of([1]))?;
            elements = g.times(rows, weights)?;
        }
        Ok(Sum { loss: sum_by_rows(g, elements)?, counted })
    }

    fn check(&self, g: &Graph) -> Result<(), GraphError> {
        let (loss, name) = (self.loss, self.loss.name());
        let soft = loss.is_over_classes() || matches!(loss, Loss::BinaryCrossEntropy | Loss::BinaryFocal { .. });
        if self.smoothing != 0.0 && (!soft || loss == Loss::KlDivergence) {
            return Err(g.error(format!("label smoothing goes with losses over classes and yes/no answers, not with {name}")));
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(g.error(format!("label smoothing is {}, but should be from 0 to below 1", self.smoothing)));
        }
        let classes = loss.is_over_classes() || matches!(loss, Loss::BinaryCrossEntropy | Loss::BinaryFocal { .. });
        if self.class_weights.is_some() && !classes {
            return Err(g.error(format!("class weights go with losses over classes, not with {name}")));
        }
        if self.ignored.is_some() && !loss.is_over_classes() {
            return Err(g.error(format!("a class that does not count goes with losses over classes, not with {name}")));
        }
        Ok(())
    }

    /// How many answers a row has.
    pub(crate) fn answers(&self, g: &mut Graph, prediction: Prediction) -> Result<usize, GraphError> {
        if self.loss.is_binary() {
            return Ok(labels::per_row(g, prediction.output));
        }
        let (scores, _) = class_scores(g, prediction.scores(Activation::Softmax))?;
        Ok(answers_per_row(g, scores))
    }

    /// Class numbers `[answers, 1]`, whatever the labels are.
    pub(crate) fn numbers(&self, g: &mut Graph, prediction: Prediction, labels: ValueId) -> Result<ValueId, GraphError> {
        let (scores, classes) = class_scores(g, prediction.scores(Activation::Softmax))?;
        match label_kind(g, labels, scores, classes)? {
            Labels::Numbers(labels) => Ok(labels),
            Labels::Shares(labels) => g.reduce(Reduction::ArgMax, labels, &[1]),
        }
    }

    /// One for every answer that counts, else zero, `[answers, 1]`.
    pub(crate) fn counts(&self, g: &mut Graph, prediction: Prediction, labels: ValueId) -> Result<ValueId, GraphError> {
        let numbers = self.numbers(g, prediction, labels)?;
        let ignored = self.ignored.map_or(f32::NAN, |class| class as f32);
        g.map(numbers, |e, label| e.sub(e.constant(1.0), e.binary(Binary::Equal, label, e.constant(ignored))))
    }

    /// What every answer is multiplied by: the weight of its label's class, and zero where the label does not count.
    fn factors(&self, g: &mut Graph, prediction: Prediction, labels: ValueId) -> Result<ValueId, GraphError> {
        if self.loss.is_binary() {
            let scores = prediction.scores(Activation::Sigmoid);
            let labels = like(g, labels, scores)?;
            let Some([no, yes]) = self.class_weights.as_deref() else {
                return Err(g.error("yes/no answers have two class weights, that of no and that of yes"));
            };
            let (no, yes) = (*no, *yes);
            return g.map(labels, |e, label| e.select(e.binary(Binary::Less, e.constant(0.5), label), e.constant(yes), e.constant(no)));
        }
        let counts = self.counts(g, prediction, labels)?;
        let Some(weights) = self.class_weights.as_deref() else { return Ok(counts) };
        let (scores, classes) = class_scores(g, prediction.scores(Activation::Softmax))?;
        if weights.len() != classes {
            return Err(g.error(format!("there are {} class weights, but the model tells {classes} classes apart", weights.len())));
        }
        let table = constants(g, weights)?;
        let numbers = self.numbers(g, prediction, labels)?;
        let shape = g.shape(scores).clone();
        let own = Expr::build(|e| {
            let here = e.binary(Binary::Equal, e.coordinate(1), e.input(0));
            e.select(here, e.input(1), e.constant(0.0))
        });
        let own = g.pointwise_over(own, &[numbers, table], shape)?;
        let weight = g.reduce(Reduction::Sum, own, &[1])?;
        if self.ignored.is_some() { g.times(weight, counts) } else { Ok(weight) }
    }

    /// How many classes labels may name, if they are class numbers.
    pub(crate) fn classes(&self, g: &Graph, prediction: Prediction, labels: ValueId) -> Option<usize> {
        let classes = g.shape(prediction.output).last()?.as_fixed()?;
        let numbers = matches!(g.ty(labels).dtype, DType::I32 | DType::U8);
        let named =
            self.loss.is_over_classes() || (self.loss == Loss::Dice && g.shape(labels).elements() != g.shape(prediction.output).elements());
        (named && numbers).then_some(classes)
    }
}

impl From<Output> for Prediction {
    fn from(output: Output) -> Prediction {
        Prediction { output: output.value, before_activation: output.before_activation }
    }
}

impl Prediction {
    /// The result before `activation`, if that was the last one; else the result.
    pub(crate) fn scores(&self, activation: Activation) -> ValueId {
        match self.before_activation {
            Some((last, before)) if last == activation => before,
            _ => self.output,
        }
    }

    /// Whether the model ends in this activation.
    fn ends_in(&self, activation: Activation) -> bool {
        self.before_activation.is_some_and(|(last, _)| last == activation)
    }
}

#[cfg(test)]
mod tests;

/// `[B, everything else]`.
fn by_rows(g: &mut Graph, x: ValueId) -> Result<ValueId, GraphError> {
    let width = labels::per_row(g, x);
    g.reshape(x, Shape::batch_of([width]))
}

/// From this many elements on, a row's loss is summed by itself first: then rows can be computed some at a time, with the same result.
const WIDE: usize = 1024;

/// The sum of all elements.
fn sum_by_rows(g: &mut Graph, elements: ValueId) -> Result<ValueId, GraphError> {
    let dims = g.shape(elements).dims();
    let wide = dims.first().is_some_and(|first| first.is_batch()) && dims[1..].iter().map(|dim| dim.factor()).product::<usize>() >= WIDE;
    let axes: Vec<usize> = (1..dims.len()).collect();
    let rows = if wide { g.reduce(Reduction::Sum, elements, &axes)? } else { elements };
    g.sum(rows)
}
