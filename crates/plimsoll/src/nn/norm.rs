//! Normalization over the batch, over features, over groups of channels. Defaults are those of Keras.

use super::keras::{KerasLayer, gamma_and_beta};
use super::{Int8, Layer, LayerDef, Lowering, single_input};
use plimsoll_core::expr::{Expr, Unary};
use plimsoll_core::graph::Init;
use plimsoll_core::ops::Reduction;
use plimsoll_core::shape::Shape;
use plimsoll_core::{GraphError, ValueId};
use serde_json::json;
use std::sync::Arc;

/// Batch normalization: normalizes every channel with the mean and variance of the micro-batch, then scales and shifts
/// it. Training updates moving averages of both; inference and frozen layers use those.
///
/// Statistics are over a micro-batch, so micro-batches change the result of training; see
/// [`Model::has_batch_statistics`](super::Model::has_batch_statistics).
#[derive(Clone, Debug)]
pub struct BatchNorm {
    momentum: f32,
    epsilon: f32,
    scale: bool,
    center: bool,
    unbiased: bool,
    fixed: bool,
}

impl BatchNorm {
    /// Momentum 0.99, epsilon 0.001, with scale and offset.
    pub fn new() -> BatchNorm {
        BatchNorm { momentum: 0.99, epsilon: 1e-3, scale: true, center: true, unbiased: false, fixed: false }
    }

    /// PyTorch's defaults: momentum 0.9 (0.1 in its convention), epsilon 1e-5, and an unbiased moving variance.
    pub fn torch() -> BatchNorm {
        BatchNorm { momentum: 0.9, epsilon: 1e-5, unbiased: true, ..BatchNorm::new() }
    }

    /// Sets the momentum of the moving averages.
    pub fn momentum(self, momentum: f32) -> BatchNorm {
        BatchNorm { momentum, ..self }
    }

    /// Sets the number that is added to the variance.
    pub fn epsilon(self, epsilon: f32) -> BatchNorm {
        BatchNorm { epsilon, ..self }
    }

    /// Whether to multiply by the trainable scale `gamma`.
    pub fn scale(self, scale: bool) -> BatchNorm {
        BatchNorm { scale, ..self }
    }

    /// Whether to add the trainable offset `beta`.
    pub fn center(self, center: bool) -> BatchNorm {
        BatchNorm { center, ..self }
    }

    /// Whether the moving variance divides by `n - 1` instead of `n`.
    pub fn unbiased(self, unbiased: bool) -> BatchNorm {
        BatchNorm { unbiased, ..self }
    }

    /// Whether training too normalizes with the moving statistics and leaves them as they are, as `training=False` in
    /// Keras.
    pub fn fixed_statistics(self, fixed: bool) -> BatchNorm {
        BatchNorm { fixed, ..self }
    }
}

impl Default for BatchNorm {
    fn default() -> BatchNorm {
        BatchNorm::new()
    }
}

/// The size of the last axis.
fn channels(lowering: &Lowering<'_>, x: ValueId) -> Result<usize, GraphError> {
    let shape = lowering.graph.shape(x);
    match shape.last().and_then(|dim| dim.as_fixed()).filter(|n| *n > 0 && shape.rank() >= 2) {
        Some(channels) => Ok(channels),
        None => Err(lowering.graph.error(format!("expects an input of shape [batch, …, features], but received {shape}"))),
    }
}

/// The trainable scale and offset per channel, if any.
struct Affine {
    gamma: Option<ValueId>,
    beta: Option<ValueId>,
}

impl Affine {
    fn declare(lowering: &mut Lowering<'_>, channels: usize, scale: bool, center: bool) -> Result<Affine, GraphError> {
        let gamma = scale.then(|| lowering.parameter("gamma", [channels], Init::Constant(1.0))).transpose()?;
        let beta = center.then(|| lowering.parameter("beta", [channels], Init::Constant(0.0))).transpose()?;
        Ok(Affine { gamma, beta })
    }

    /// `(x - mean) · scale · gamma + beta`, where `scale` may already include gamma.
    fn apply(&self, lowering: &mut Lowering<'_>, x: ValueId, mean: Option<ValueId>, scale: ValueId) -> Result<ValueId, GraphError> {
        let mut inputs = vec![x, scale];
        let mut place = |value: Option<ValueId>| {
            value.map(|value| {
                inputs.push(value);
                inputs.len() as u16 - 1
            })
        };
        let (mean, gamma, beta) = (place(mean), place(self.gamma), place(self.beta));
        let expr = Expr::build(|e| {
            let centred = mean.map_or(e.input(0), |mean| e.sub(e.input(0), e.input(mean)));
            let scaled = e.mul(centred, e.input(1));
            let scaled = gamma.map_or(scaled, |gamma| e.mul(scaled, e.input(gamma)));
            beta.map_or(scaled, |beta| e.add(scaled, e.input(beta)))
        });
        let shape = lowering.graph.shape(x).clone();
        lowering.graph.pointwise_over(expr, &inputs, shape)
    }
}

/// `1 / √(x + epsilon)`.
fn reciprocal_root(lowering: &mut Lowering<'_>, variance: ValueId, epsilon: f32) -> Result<ValueId, GraphError> {
    lowering.graph.map(variance, |e, x| e.unary(Unary::Recip, e.unary(Unary::Sqrt, e.add(x, e.constant(epsilon)))))
}

/// The sum of squared deviations along axes. The gradient through the mean is zero, so it is stopped.
fn squares(lowering: &mut Lowering<'_>, x: ValueId, mean: ValueId, axes: &[usize]) -> Result<ValueId, GraphError> {
    let g = &mut *lowering.graph;
    let mean = g.stop_gradient(mean)?;
    let squared = Expr::build(|e| {
        let centred = e.sub(e.input(0), e.input(1));
        e.mul(centred, centred)
    });
    let squared = g.pointwise(squared, &[x, mean])?;
    g.reduce(Reduction::Sum, squared, axes)
}

/// `type = "batch_norm"`.
pub(super) const BATCH_NORM: LayerDef = LayerDef {
    name: "batch_norm",
    about: "Batch normalization; `unbiased` as in PyTorch; `fixed_statistics` trains scale and offset only.",
    example: "",
    from_config: |config| {
        let norm = BatchNorm::new().momentum(config.number_or("momentum", 0.99)?).epsilon(config.number_or("epsilon", 1e-3)?);
        let norm = norm.scale(config.flag_or("scale", true)?).center(config.flag_or("center", true)?);
        let norm = norm.unbiased(config.flag_or("unbiased", false)?);
        Ok(Arc::new(norm.fixed_statistics(config.flag_or("fixed_statistics", false)?)))
    },
};

impl Layer for BatchNorm {
    fn kind(&self) -> &'static str {
        BATCH_NORM.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let config = json!({
            "axis": -1, "momentum": self.momentum, "epsilon": self.epsilon, "center": self.center, "scale": self.scale
        });
        let mut names = gamma_and_beta(self.scale, self.center);
        names.extend(["moving_mean", "moving_variance"]);
        Some(vec![KerasLayer::new("BatchNormalization", config).weights(&names)])
    }

    fn int8(&self) -> Int8 {
        Int8::Norm
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let channels = channels(lowering, x)?;
        let affine = Affine::declare(lowering, channels, self.scale, self.center)?;
        let moving_mean = lowering.statistic("moving_mean", [channels], Init::Constant(0.0))?;
        let moving_variance = lowering.statistic("moving_variance", [channels], Init::Constant(1.0))?;
        if !lowering.training || !lowering.trainable || self.fixed {
            let scale = reciprocal_root(lowering, moving_variance, self.epsilon)?;
            return affine.apply(lowering, x, Some(moving_mean), scale);
        }
        let shape = lowering.graph.shape(x).clone();
        let axes: Vec<usize> = (0..shape.rank() - 1).collect();
        // One over the number of elements per channel; the host sets the rows of the micro-batch, or of all ranks'
        // rows.
        let rows = lowering.micro_batch_reciprocal();
        let places = (shape.elements().factor() / channels) as f32;
        let share = lowering.graph.map(rows, |e, x| e.mul(x, e.constant(1.0 / places)))?;
        let sum = lowering.graph.reduce(Reduction::Sum, x, &axes)?;
        let sum = lowering.sum_over_ranks(sum)?;
        let mean = lowering.graph.times(sum, share)?;
        let squares = squares(lowering, x, mean, &axes)?;
        let squares = lowering.sum_over_ranks(squares)?;
        let variance = lowering.graph.times(squares, share)?;
        let mut scale = reciprocal_root(lowering, variance, self.epsilon)?;
        if let Some(gamma) = affine.gamma {
            scale = lowering.graph.times(scale, gamma)?;
        }
        let y = Affine { gamma: None, beta: affine.beta }.apply(lowering, x, Some(mean), scale)?;
        self.update_moving_average(lowering, (moving_mean, mean), share, false)?;
        self.update_moving_average(lowering, (moving_variance, variance), share, self.unbiased)?;
        Ok(y)
    }

    fn uses_batch_statistics(&self) -> bool {
        !self.fixed
    }

    fn synchronizes_statistics(&self) -> bool {
        true
    }
}

impl BatchNorm {
    /// Updates a moving average with the statistic of this micro-batch.
    fn update_moving_average(
        &self,
        lowering: &mut Lowering<'_>,
        (statistic, now): (ValueId, ValueId),
        share: ValueId,
        unbiased: bool,
    ) -> Result<(), GraphError> {
        let g = &mut *lowering.graph;
        let shape = g.shape(statistic).clone();
        let now = g.reshape(now, shape.clone())?;
        let moved = Expr::build(|e| {
            let momentum = self.momentum;
            let mut now = e.input(1);
            if unbiased {
                // n / (n - 1); the variance of a single number is zero either way.
                let left = e.binary(plimsoll_core::expr::Binary::Max, e.sub(e.constant(1.0), e.input(2)), e.constant(1e-12));
                now = e.div(now, left);
            }
            e.add(e.mul(e.constant(momentum), e.input(0)), e.mul(e.constant(1.0 - momentum), now))
        });
        let moved = g.pointwise_over(moved, &[statistic, now, share], shape)?;
        lowering.update(statistic, moved)
    }
}

/// Layer normalization over the last axis.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    epsilon: f32,
    scale: bool,
    center: bool,
}

impl LayerNorm {
    /// Epsilon 0.001, with scale and offset.
    pub fn new() -> LayerNorm {
        LayerNorm { epsilon: 1e-3, scale: true, center: true }
    }

    /// Sets the number that is added to the variance.
    pub fn epsilon(self, epsilon: f32) -> LayerNorm {
        LayerNorm { epsilon, ..self }
    }

    /// Whether to multiply by the trainable scale `gamma`.
    pub fn scale(self, scale: bool) -> LayerNorm {
        LayerNorm { scale, ..self }
    }

    /// Whether to add the trainable offset `beta`.
    pub fn center(self, center: bool) -> LayerNorm {
        LayerNorm { center, ..self }
    }
}

impl Default for LayerNorm {
    fn default() -> LayerNorm {
        LayerNorm::new()
    }
}

/// Mean and reciprocal standard deviation along axes that hold `count` numbers.
fn moments(lowering: &mut Lowering<'_>, x: ValueId, axes: &[usize], count: usize, epsilon: f32) -> Result<(ValueId, ValueId), GraphError> {
    let share = 1.0 / count.max(1) as f32;
    let sum = lowering.graph.reduce(Reduction::Sum, x, axes)?;
    let mean = lowering.graph.map(sum, |e, x| e.mul(x, e.constant(share)))?;
    let squares = squares(lowering, x, mean, axes)?;
    let variance = lowering.graph.map(squares, |e, x| e.mul(x, e.constant(share)))?;
    Ok((mean, reciprocal_root(lowering, variance, epsilon)?))
}

/// `type = "layer_norm"`.
pub(super) const LAYER_NORM: LayerDef = LayerDef {
    name: "layer_norm",
    about: "Layer normalization over the last axis.",
    example: "",
    from_config: |config| {
        let norm = LayerNorm::new().epsilon(config.number_or("epsilon", 1e-3)?);
        Ok(Arc::new(norm.scale(config.flag_or("scale", true)?).center(config.flag_or("center", true)?)))
    },
};

impl Layer for LayerNorm {
    fn kind(&self) -> &'static str {
        LAYER_NORM.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let config = json!({ "axis": -1, "epsilon": self.epsilon, "center": self.center, "scale": self.scale });
        let names = gamma_and_beta(self.scale, self.center);
        Some(vec![KerasLayer::new("LayerNormalization", config).weights(&names)])
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let channels = channels(lowering, x)?;
        let affine = Affine::declare(lowering, channels, self.scale, self.center)?;
        let last = lowering.graph.shape(x).rank() - 1;
        let (mean, scale) = moments(lowering, x, &[last], channels, self.epsilon)?;
        affine.apply(lowering, x, Some(mean), scale)
    }
}

/// Group normalization.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    groups: usize,
    epsilon: f32,
    scale: bool,
    center: bool,
}

impl GroupNorm {
    /// The number of groups; epsilon 0.001, with scale and offset.
    pub fn new(groups: usize) -> GroupNorm {
        GroupNorm { groups, epsilon: 1e-3, scale: true, center: true }
    }

    /// Sets the number that is added to the variance.
    pub fn epsilon(self, epsilon: f32) -> GroupNorm {
        GroupNorm { epsilon, ..self }
    }

    /// Whether to multiply by the trainable scale `gamma`.
    pub fn scale(self, scale: bool) -> GroupNorm {
        GroupNorm { scale, ..self }
    }

    /// Whether to add the trainable offset `beta`.
    pub fn center(self, center: bool) -> GroupNorm {
        GroupNorm { center, ..self }
    }
}

/// `type = "group_norm"`.
pub(super) const GROUP_NORM: LayerDef = LayerDef {
    name: "group_norm",
    about: "Group normalization.",
    example: "",
    from_config: |config| {
        let norm = GroupNorm::new(config.count_or("groups", 32)?).epsilon(config.number_or("epsilon", 1e-3)?);
        Ok(Arc::new(norm.scale(config.flag_or("scale", true)?).center(config.flag_or("center", true)?)))
    },
};

impl Layer for GroupNorm {
    fn kind(&self) -> &'static str {
        GROUP_NORM.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let config = json!({ "groups": self.groups, "axis": -1, "epsilon": self.epsilon, "center": self.center, "scale": self.scale });
        let names = gamma_and_beta(self.scale, self.center);
        Some(vec![KerasLayer::new("GroupNormalization", config).weights(&names)])
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let channels = channels(lowering, x)?;
        let shape = lowering.graph.shape(x).clone();
        if self.groups == 0 || !channels.is_multiple_of(self.groups) {
            return Err(lowering.graph.error(format!("the channels ({channels}) are not divisible by {} groups", self.groups)));
        }
        if shape.dims()[1..].iter().any(|dim| dim.is_batch()) {
            return Err(lowering.graph.error(format!("expects an input of shape [batch, …, channels], but received {shape}")));
        }
        let affine = Affine::declare(lowering, channels, self.scale, self.center)?;
        let each = channels / self.groups;
        let places = Shape::new(shape.dims()[1..shape.rank() - 1].iter().copied()).elements().factor();
        let apart = Shape::new([shape.dims()[0], places.into(), self.groups.into(), each.into()]);
        let x = lowering.graph.reshape(x, apart)?;
        let (mean, scale) = moments(lowering, x, &[1, 3], places.saturating_mul(each), self.epsilon)?;
        let per_group = |lowering: &mut Lowering<'_>, value: Option<ValueId>| {
            value.map(|value| lowering.graph.reshape(value, Shape::fixed([self.groups, each]))).transpose()
        };
        let affine = Affine { gamma: per_group(lowering, affine.gamma)?, beta: per_group(lowering, affine.beta)? };
        let y = affine.apply(lowering, x, Some(mean), scale)?;
        lowering.graph.reshape(y, shape)
    }
}

/// Root-mean-square normalization over the last axis.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    epsilon: f32,
}

impl RmsNorm {
    /// Epsilon 1e-6.
    pub fn new() -> RmsNorm {
        RmsNorm { epsilon: 1e-6 }
    }

    /// Sets the number that is added to the mean square.
    pub fn epsilon(self, epsilon: f32) -> RmsNorm {
        RmsNorm { epsilon }
    }
}

impl Default for RmsNorm {
    fn default() -> RmsNorm {
        RmsNorm::new()
    }
}

/// `type = "rms_norm"`.
pub(super) const RMS_NORM: LayerDef = LayerDef {
    name: "rms_norm",
    about: "Root-mean-square normalization over the last axis.",
    example: "",
    from_config: |config| Ok(Arc::new(RmsNorm::new().epsilon(config.number_or("epsilon", 1e-6)?))),
};

impl Layer for RmsNorm {
    fn kind(&self) -> &'static str {
        RMS_NORM.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let channels = channels(lowering, x)?;
        let affine = Affine::declare(lowering, channels, true, false)?;
        let g = &mut *lowering.graph;
        let last = g.shape(x).rank() - 1;
        let squared = g.map(x, |e, x| e.mul(x, x))?;
        let sum = g.reduce(Reduction::Sum, squared, &[last])?;
        let mean = g.map(sum, |e, x| e.mul(x, e.constant(1.0 / channels as f32)))?;
        let scale = reciprocal_root(lowering, mean, self.epsilon)?;
        affine.apply(lowering, x, None, scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Dense, Model, Sequential};
    use plimsoll_core::graph::{Phase, StateId};
    use plimsoll_core::shape::TensorType;
    use plimsoll_core::{Op, autodiff, passes};

    /// The reductions in a layer's backward pass, and the activations that it reads.
    fn backward(layer: impl Layer + 'static) -> (usize, usize) {
        let model: Model = Sequential::new().add(Dense::new(6).bias(false)).add(layer).into();
        let (mut g, lowered) = model.graph(&[TensorType::f32(Shape::batch_of([4, 5]))], true).unwrap();
        let pull = g.input("pull", TensorType::f32(Shape::batch_of([4, 6])));
        let product = g.times(lowered.outputs[0].value, pull).unwrap();
        let loss = g.sum(product).unwrap();
        let states: Vec<ValueId> = (0..g.states().len() as u32).filter_map(|i| g.state_value(StateId(i))).collect();
        for (i, gradient) in autodiff::gradients(&mut g, loss, &states).unwrap().into_iter().enumerate() {
            g.output(&format!("gradient {i}"), gradient);
        }
        let g = passes::optimize(&g).unwrap();
        let later = || g.nodes().map(|(_, node)| node).filter(|node| node.phase == Phase::Backward);
        // Reductions over the batch only; those per channel are cheap.
        let sums = later().filter(|node| matches!(&node.op, Op::Reduce(sum) if sum.shape.has_batch())).count();
        let mut kept: Vec<ValueId> = later().flat_map(|node| node.inputs.iter().copied()).collect();
        kept.sort_unstable();
        kept.dedup();
        let whole = |value: &&ValueId| {
            let producer = g.producer(**value);
            producer.phase == Phase::Forward && !producer.op.is_leaf() && g.shape(**value).elements() == Shape::batch_of([4, 6]).elements()
        };
        (sums, kept.iter().filter(whole).count())
    }

    #[test]
    fn backward_passes_of_normalization_save_only_their_inputs() {
        assert_eq!(backward(BatchNorm::new()), (2, 1), "of the gradient, and of it times what went in");
        assert_eq!(backward(LayerNorm::new()), (4, 1), "the same along the rows and, for scale and shift, along the batch");
        assert_eq!(backward(RmsNorm::new()), (2, 1));
    }
}
