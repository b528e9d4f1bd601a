//! Losses.

mod formulas;
pub(crate) mod labels;
mod row_function;

use crate::named::named;
use crate::nn::{Activation, Output};
use crate::reader::Reader;
use labels::{Labels, class_logits, constants, label_format, labels_like, predictions_per_row};
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::ops::Reduction;
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_core::{DType, Graph, GraphError, ValueId};
use std::sync::Arc;

pub use row_function::{CustomRows, RowFunction};

/// A loss. The loss of a batch is the mean over its rows. The formulas are those of Keras.
///
/// Methods add label smoothing and weights, which makes an [`Objective`]:
///
/// ```
/// use plimsoll::{Loss, Objective};
/// let plain: Objective = Loss::MeanSquaredError.into();
/// let soft = Loss::SoftmaxCrossEntropy.smoothing(0.1).class_weights([1.0, 5.0]).ignore_class(255);
/// ```
///
/// [`Loss::custom`] makes one from a closure over eager tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// Mean squared error.
    MeanSquaredError,
    /// Mean absolute error.
    MeanAbsoluteError,
    /// Huber loss: quadratic up to `delta`, linear beyond.
    Huber {
        /// Where quadratic becomes linear.
        delta: f32,
    },
    /// Log-cosh loss.
    LogCosh,
    /// Kullback–Leibler divergence. Labels are a probability per class.
    KlDivergence,
    /// Categorical cross-entropy. Labels are class IDs (integers) or a probability per class. Predictions are logits;
    /// if the model ends in softmax, the logits before it are used.
    SoftmaxCrossEntropy,
    /// Binary cross-entropy. Labels are 0 to 1. Predictions are logits; if the model ends in sigmoid, the logits before
    /// it are used.
    BinaryCrossEntropy,
    /// Categorical focal cross-entropy (Lin et al.), which down-weights easy examples.
    CategoricalFocal {
        /// The weight of every class.
        alpha: f32,
        /// The focusing parameter.
        gamma: f32,
    },
    /// Binary focal cross-entropy.
    BinaryFocal {
        /// The weight of the positive class; that of the negative class is `1 - alpha`. None weights neither.
        alpha: Option<f32>,
        /// The focusing parameter.
        gamma: f32,
    },
    /// Dice loss per row. Predictions are probabilities; labels too, or class
    /// IDs.
    Dice,
    /// Hinge loss. Labels above zero are +1, others -1.
    Hinge,
    /// Poisson loss; the prediction is the rate.
    Poisson,
    /// A loss that code supplies, such as [`Loss::custom`].
    Custom(CustomRows),
}

/// What the predictions of a loss are.
enum Family {
    /// Classes, compared by cross-entropy.
    CategoricalCrossEntropy,
    /// Classes.
    Categorical,
    /// Independent binary predictions, compared by cross-entropy.
    BinaryCrossEntropy,
    /// Independent binary predictions.
    Binary,
    /// Values.
    Elementwise,
}

/// A loss with its label smoothing, class weights and ignored class.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    pub(crate) loss: Loss,
    smoothing: f32,
    class_weights: Option<Arc<[f32]>>,
    ignored: Option<i32>,
}

/// An output of a model, with its value before the final activation.
#[derive(Clone, Copy)]
pub(crate) struct ModelOutput {
    pub output: ValueId,
    pub before_activation: Option<(Activation, ValueId)>,
}

/// The loss of a micro-batch, as values of a graph.
pub(crate) struct BatchLoss {
    /// The sum of the rows' losses.
    pub loss: ValueId,
    /// The sum over rows of the fraction of predictions that count; none if all do. The batch's loss is divided by its
    /// mean.
    pub counted: Option<ValueId>,
}

named!(Loss, Custom {
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
    /// With the arguments of a table in place of the defaults.
    pub(crate) fn with_config(&self, config: &Reader<'_>) -> crate::error::Result<Loss> {
        Ok(match *self {
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
            | Loss::Poisson
            | Loss::Custom(_) => self.clone(),
        })
    }

    /// Whether predictions are over exclusive classes.
    pub fn is_categorical(&self) -> bool {
        matches!(self.family(), Family::CategoricalCrossEntropy | Family::Categorical)
    }

    /// Whether predictions are binary.
    pub fn is_binary(&self) -> bool {
        matches!(self.family(), Family::BinaryCrossEntropy | Family::Binary)
    }

    /// Whether it is a cross-entropy, which takes label smoothing and has the accuracy as default metric.
    pub(crate) fn is_cross_entropy(&self) -> bool {
        matches!(self.family(), Family::CategoricalCrossEntropy | Family::BinaryCrossEntropy)
    }

    fn family(&self) -> Family {
        match self {
            Loss::SoftmaxCrossEntropy | Loss::CategoricalFocal { .. } => Family::CategoricalCrossEntropy,
            Loss::KlDivergence => Family::Categorical,
            Loss::BinaryCrossEntropy | Loss::BinaryFocal { .. } => Family::BinaryCrossEntropy,
            Loss::Hinge => Family::Binary,
            Loss::MeanSquaredError
            | Loss::MeanAbsoluteError
            | Loss::Huber { .. }
            | Loss::LogCosh
            | Loss::Dice
            | Loss::Poisson
            | Loss::Custom(_) => Family::Elementwise,
        }
    }

    /// Sets label smoothing: this much probability is spread evenly over all classes.
    pub fn smoothing(self, smoothing: f32) -> Objective {
        Objective::from(self).smoothing(smoothing)
    }

    /// Sets class weights.
    pub fn class_weights(self, weights: impl IntoIterator<Item = f32>) -> Objective {
        Objective::from(self).class_weights(weights)
    }

    /// Ignores predictions with this label; the loss is the mean over the others of the batch.
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
    /// Sets label smoothing: this much probability is spread evenly over all classes.
    pub fn smoothing(self, smoothing: f32) -> Objective {
        Objective { smoothing, ..self }
    }

    /// Sets class weights, as Keras' `class_weight`: the mean is over rows, not over weights.
    pub fn class_weights(self, weights: impl IntoIterator<Item = f32>) -> Objective {
        Objective { class_weights: Some(weights.into_iter().collect()), ..self }
    }

    /// Ignores predictions with this label; the loss is the mean over the others of the batch.
    pub fn ignore_class(self, class: i32) -> Objective {
        Objective { ignored: Some(class), ..self }
    }

    /// The same without class weights.
    pub(crate) fn without_class_weights(self) -> Objective {
        Objective { class_weights: None, ..self }
    }

    /// The loss.
    pub fn loss(&self) -> &Loss {
        &self.loss
    }

    /// The ignored class, if any.
    pub fn ignored_class(&self) -> Option<i32> {
        self.ignored
    }

    /// The sum of the rows' losses; `weights` are sample weights, one per row.
    pub(crate) fn batch_loss(
        &self,
        g: &mut Graph,
        prediction: ModelOutput,
        labels: ValueId,
        weights: Option<ValueId>,
    ) -> Result<BatchLoss, GraphError> {
        self.check(g)?;
        let mut elements = self.elements(g, prediction, labels)?;
        let mut counted = None;
        if self.class_weights.is_some() || self.ignored.is_some() {
            let factor = self.prediction_weights(g, prediction, labels)?;
            if self.ignored.is_some() {
                let (here, share) = (self.count_mask(g, prediction, labels)?, 1.0 / self.predictions(g, prediction)? as f32);
                let shares = g.map(here, |e, here| e.mul(here, e.constant(share)))?;
                counted = Some(g.sum(shares)?);
            }
            // One weight per prediction; elements have the shape of the logits or one entry per prediction.
            let shape = g.shape(elements).clone();
            elements = match g.shape(factor).broadcasts_to(&shape) {
                true => g.times(elements, factor)?,
                false => return Err(g.error("class weights and ignore_class need a categorical loss")),
            };
        }
        if let Some(weights) = weights {
            let rows = by_rows(g, elements)?;
            let ty = g.ty(weights).clone();
            if ty.shape.elements() != Dim::BATCH {
                return Err(g.error(format!("sample weights should be one number per row, but the column is {ty}")));
            }
            let weights = g.cast(weights, DType::F32)?;
            let weights = g.reshape(weights, Shape::batch_of([1]))?;
            elements = g.times(rows, weights)?;
        }
        Ok(BatchLoss { loss: sum_by_rows(g, elements)?, counted })
    }

    fn check(&self, g: &Graph) -> Result<(), GraphError> {
        let (loss, name) = (&self.loss, self.loss.name());
        if self.smoothing != 0.0 && !loss.is_cross_entropy() {
            return Err(g.error(format!("label smoothing needs a categorical or binary loss, but the loss is {name}")));
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(g.error(format!("label smoothing should be from 0 to below 1, but is {}", self.smoothing)));
        }
        if self.class_weights.is_some() && !(loss.is_categorical() || loss.is_cross_entropy()) {
            return Err(g.error(format!("class weights need a categorical or binary loss, but the loss is {name}")));
        }
        if self.ignored.is_some() && !loss.is_categorical() {
            return Err(g.error(format!("ignore_class needs a categorical loss, but the loss is {name}")));
        }
        Ok(())
    }

    /// Predictions per row.
    pub(crate) fn predictions(&self, g: &mut Graph, prediction: ModelOutput) -> Result<usize, GraphError> {
        if self.loss.is_binary() {
            return Ok(labels::per_row(g, prediction.output));
        }
        let (scores, _) = class_logits(g, prediction.logits(Activation::Softmax))?;
        Ok(predictions_per_row(g, scores))
    }

    /// Class IDs `[predictions, 1]`, for either kind of labels.
    pub(crate) fn class_ids(&self, g: &mut Graph, prediction: ModelOutput, labels: ValueId) -> Result<ValueId, GraphError> {
        let (scores, classes) = class_logits(g, prediction.logits(Activation::Softmax))?;
        match label_format(g, labels, scores, classes)? {
            Labels::ClassIds(labels) => Ok(labels),
            Labels::Probabilities(labels) => g.reduce(Reduction::ArgMax, labels, &[1]),
        }
    }

    /// A mask `[predictions, 1]`: zero where the label is the ignored class.
    pub(crate) fn count_mask(&self, g: &mut Graph, prediction: ModelOutput, labels: ValueId) -> Result<ValueId, GraphError> {
        let numbers = self.class_ids(g, prediction, labels)?;
        let ignored = self.ignored.map_or(f32::NAN, |class| class as f32);
        g.map(numbers, |e, label| e.sub(e.constant(1.0), e.binary(Binary::Equal, label, e.constant(ignored))))
    }

    /// The weight of every prediction: its class weight, or zero for the ignored class.
    fn prediction_weights(&self, g: &mut Graph, prediction: ModelOutput, labels: ValueId) -> Result<ValueId, GraphError> {
        if self.loss.is_binary() {
            let scores = prediction.logits(Activation::Sigmoid);
            let labels = labels_like(g, labels, scores)?;
            let Some([no, yes]) = self.class_weights.as_deref() else {
                return Err(g.error("a binary loss takes two class weights: negative, positive"));
            };
            let (no, yes) = (*no, *yes);
            return g.map(labels, |e, label| e.select(e.binary(Binary::Less, e.constant(0.5), label), e.constant(yes), e.constant(no)));
        }
        let counts = self.count_mask(g, prediction, labels)?;
        let Some(weights) = self.class_weights.as_deref() else { return Ok(counts) };
        let (scores, classes) = class_logits(g, prediction.logits(Activation::Softmax))?;
        if weights.len() != classes {
            return Err(g.error(format!("there are {} class weights, but the model has {classes} classes", weights.len())));
        }
        let table = constants(g, weights)?;
        let numbers = self.class_ids(g, prediction, labels)?;
        let shape = g.shape(scores).clone();
        let own = Expr::build(|e| {
            let here = e.binary(Binary::Equal, e.coordinate(1), e.input(0));
            e.select(here, e.input(1), e.constant(0.0))
        });
        let own = g.pointwise_over(own, &[numbers, table], shape)?;
        let weight = g.reduce(Reduction::Sum, own, &[1])?;
        if self.ignored.is_some() { g.times(weight, counts) } else { Ok(weight) }
    }

    /// The number of classes, if labels are class IDs.
    pub(crate) fn classes(&self, g: &Graph, prediction: ModelOutput, labels: ValueId) -> Option<usize> {
        let classes = g.shape(prediction.output).last()?.as_fixed()?;
        let numbers = matches!(g.ty(labels).dtype, DType::I32 | DType::U8);
        let named =
            self.loss.is_categorical() || (self.loss == Loss::Dice && g.shape(labels).elements() != g.shape(prediction.output).elements());
        (named && numbers).then_some(classes)
    }
}

impl From<Output> for ModelOutput {
    fn from(output: Output) -> ModelOutput {
        ModelOutput { output: output.value, before_activation: output.before_activation }
    }
}

impl ModelOutput {
    /// The value before `activation`, if that is the final one; else the output.
    pub(crate) fn logits(&self, activation: Activation) -> ValueId {
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

/// `[batch, elements]`.
fn by_rows(g: &mut Graph, x: ValueId) -> Result<ValueId, GraphError> {
    let width = labels::per_row(g, x);
    g.reshape(x, Shape::batch_of([width]))
}

/// From this many elements on, a row's loss is reduced by itself first, so that splitting the batch does not change the
/// result.
const WIDE: usize = 1024;

/// The sum of all elements.
pub(crate) fn sum_by_rows(g: &mut Graph, elements: ValueId) -> Result<ValueId, GraphError> {
    let dims = g.shape(elements).dims();
    let wide = dims.first().is_some_and(|first| first.is_batch()) && dims[1..].iter().map(|dim| dim.factor()).product::<usize>() >= WIDE;
    let axes: Vec<usize> = (1..dims.len()).collect();
    let rows = if wide { g.reduce(Reduction::Sum, elements, &axes)? } else { elements };
    g.sum(rows)
}
