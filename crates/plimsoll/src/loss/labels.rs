//! Labels: values, class IDs, or a probability per class.

use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::op::Op;
use plimsoll_core::ops::Concat;
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, Graph, GraphError, ValueId};

pub(crate) enum Labels {
    /// Class IDs, `[rows, 1]`.
    ClassIds(ValueId),
    /// A probability per class, `[rows, classes]`.
    Probabilities(ValueId),
}

/// Elements per row.
pub(crate) fn per_row(g: &Graph, value: ValueId) -> usize {
    g.shape(value).elements().factor().max(1)
}

/// Predictions per row, when logits are rows of classes: one, or one per position of a sequence or image.
pub(crate) fn predictions_per_row(g: &Graph, scores: ValueId) -> usize {
    g.shape(scores).dims()[0].factor().max(1)
}

/// Labels as floats in the shape of the predictions.
pub(crate) fn labels_like(g: &mut Graph, labels: ValueId, prediction: ValueId) -> Result<ValueId, GraphError> {
    let (have, want) = (g.shape(labels).clone(), g.shape(prediction).clone());
    if have.elements() != want.elements() {
        return Err(g.error(format!("predictions {want} and labels {have} have different numbers of elements")));
    }
    let labels = g.cast(labels, DType::F32)?;
    g.reshape(labels, want)
}

/// Logits as `[predictions, classes]`, and the number of classes.
pub(crate) fn class_logits(g: &mut Graph, scores: ValueId) -> Result<(ValueId, usize), GraphError> {
    let shape = g.shape(scores).clone();
    let Some(classes) = shape.last().and_then(|dim| dim.as_fixed()).filter(|_| shape.rank() >= 2) else {
        return Err(g.error(format!("a categorical loss expects predictions of shape [batch, …, classes], but received {shape}")));
    };
    let rows = Shape::new(shape.dims()[..shape.rank() - 1].iter().copied()).elements();
    Ok((g.reshape(scores, Shape::new([rows, classes.into()]))?, classes))
}

/// The same for losses of a softmax, which is 1 for a single output whatever the model predicts.
pub(crate) fn several_classes(g: &mut Graph, scores: ValueId) -> Result<(ValueId, usize), GraphError> {
    match class_logits(g, scores)? {
        (_, 1) => Err(g.error(
            "the loss is a softmax over classes, which is always 1 for a single output; for numbers, choose a loss such as \"mse\"; for \
             two classes, \"binary_cross_entropy\" or two outputs",
        )),
        several => Ok(several),
    }
}

pub(crate) fn label_format(g: &mut Graph, labels: ValueId, scores: ValueId, classes: usize) -> Result<Labels, GraphError> {
    let predictions = g.shape(scores).dims()[0];
    let ty = g.ty(labels).clone();
    let elements = ty.shape.elements();
    if ty.dtype == DType::I32 || ty.dtype == DType::U8 {
        if elements != predictions {
            let what = format!("class IDs {ty} do not match {predictions} predictions; there must be one ID for each");
            return Err(g.error(what + &remedy(g, scores, per_row(g, labels))));
        }
        let labels = g.reshape(labels, Shape::new([elements, 1.into()]))?;
        return Ok(Labels::ClassIds(labels));
    }
    if ty.shape.last().and_then(|dim| dim.as_fixed()) != Some(classes) {
        let remedy = if elements == predictions { "; convert class IDs to integers, such as i32" } else { "" };
        let what = format!("labels {ty} are neither integer class IDs nor a probability for each of {classes} classes{remedy}");
        return Err(g.error(what));
    }
    let rows = Shape::new(ty.shape.dims()[..ty.shape.rank() - 1].iter().copied()).elements();
    let labels = g.cast(labels, DType::F32)?;
    Ok(Labels::Probabilities(g.reshape(labels, Shape::new([rows, classes.into()]))?))
}

/// What to do where a model makes a prediction for each position, and rows have fewer labels: nothing for other
/// outputs.
fn remedy(g: &Graph, scores: ValueId, labels: usize) -> String {
    let producer = g.producer(scores);
    let output = if matches!(producer.op, Op::Reshape(_)) { g.shape(producer.inputs[0]) } else { g.shape(scores) };
    if output.rank() < 3 || predictions_per_row(g, scores) <= labels {
        return String::new();
    }
    let row = Shape::new(output.dims()[1..].iter().copied());
    format!(
        ". The output of the model has shape {row} for each row; for one prediction per row, add `flatten` or a global pooling layer \
         before the last dense layer"
    )
}

/// A constant row vector `[1, numbers]`, as an expression of the coordinate.
pub(crate) fn constants(g: &mut Graph, numbers: &[f32]) -> Result<ValueId, GraphError> {
    const AT_ONCE: usize = 24;
    let mut parts = Vec::new();
    for part in numbers.chunks(AT_ONCE) {
        let choose = Expr::build(|e| {
            part.iter().enumerate().rev().fold(e.constant(0.0), |rest, (i, number)| {
                let here = e.binary(Binary::Equal, e.coordinate(1), e.constant(i as f32));
                e.select(here, e.constant(*number), rest)
            })
        });
        parts.push(g.pointwise_over(choose, &[], Shape::fixed([1, part.len()]))?);
    }
    if parts.len() == 1 { Ok(parts[0]) } else { g.add_one(Op::Concat(Concat { axis: 1 }), &parts) }
}
