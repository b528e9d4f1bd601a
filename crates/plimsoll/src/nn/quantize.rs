//! Quantization-aware training: the forward pass rounds kernels and activations as an int8 model does, and gradients
//! pass straight through.
//!
//! Kernels have one symmetric scale per output channel, activations one range per tensor. Symmetric scales per channel
//! commute with the factors of batch normalization: rounding the kernel is the same as rounding the kernel with the
//! normalization folded into it.

use super::int8::{Int8, Quantize};
use super::layer_pattern::matches_layer;
use super::model::{LayerCall, Model};
use super::tensor::Source;
use super::{Activation, Lowering};
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::Init;
use plimsoll_core::ops::Reduction;
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, Graph, GraphError, ValueId};

/// The scalar that is 1 in the first micro-batch of a batch, otherwise 0.
pub(crate) const FIRST_MICRO_BATCH: &str = "first_micro_batch";

/// The scalar that is 1 in the last micro-batch of a batch, otherwise 0.
pub(crate) const LAST_MICRO_BATCH: &str = "last_micro_batch";

/// The largest integer of an activation, counted from 0, and that of a weight.
const LEVELS: f32 = 255.0;
const LARGEST_WEIGHT: f32 = 127.0;

impl Model {
    /// Trains the model as an int8 model computes: see [`Quantize`].
    ///
    /// # Errors
    /// If a pattern matches no layer, or no layer has an int8 operator.
    pub fn quantize(mut self, quantize: Quantize) -> Result<Model, GraphError> {
        let refused = |what: String| GraphError { scope: String::new(), what };
        if !(0.0..1.0).contains(&quantize.momentum) {
            return Err(refused(format!("quantization: the momentum is {}, but should be at least 0 and below 1", quantize.momentum)));
        }
        let matches = |pattern: &str| self.layers().iter().any(|call| matches_layer(pattern, &call.name));
        if let Some(pattern) = quantize.keep_float.iter().find(|pattern| !matches(pattern)) {
            let mut known: Vec<&str> = self.layers().iter().map(|call| call.name.split('/').next().unwrap_or_default()).collect();
            known.dedup();
            let more = if known.len() > 8 { ", …" } else { "" };
            known.truncate(8);
            return Err(refused(format!("quantization: no layer matches `{pattern}`; the model has {}{more}", known.join(", "))));
        }
        let kernel = |call: &LayerCall| matches!(call.layer.int8(), Int8::Kernel { .. }) && !quantize.keeps(&call.name);
        if !self.layers().iter().any(kernel) {
            return Err(refused("quantization: the model has no convolution or dense layer that could be int8".to_string()));
        }
        self.set_quantize(quantize);
        Ok(self)
    }

    /// The layers that stay in single precision in an int8 model, with the reasons; empty if the model is not trained
    /// for one.
    pub fn float_layers(&self) -> Vec<(String, &'static str)> {
        let Some(quantize) = self.quantization() else { return Vec::new() };
        let reason = |call: &LayerCall| match call.layer.int8() {
            _ if quantize.keeps(&call.name) => Some("kept by a pattern"),
            Int8::Float(why) => Some(why),
            _ => None,
        };
        self.layers().iter().filter_map(|call| Some((call.name.clone(), reason(call)?))).collect()
    }

    /// How many layers have int8 weights.
    pub fn int8_kernels(&self) -> usize {
        let Some(quantize) = self.quantization() else { return 0 };
        let kernel = |call: &&LayerCall| matches!(call.layer.int8(), Int8::Kernel { .. }) && !quantize.keeps(&call.name);
        self.layers().iter().filter(kernel).count()
    }

    /// For each layer, whether its result gets a range of its own: not where the next layer is part of the same
    /// operator, and not between layers in single precision.
    pub(super) fn observed_layers(&self) -> Vec<bool> {
        let Some(quantize) = self.quantization() else { return vec![false; self.layers().len()] };
        let kind = |call: &LayerCall| match (call.layer.int8(), call.layer.last_activation()) {
            _ if quantize.keeps(&call.name) => Int8::Float(""),
            (Int8::Kernel { .. }, Some(Activation::Softmax | Activation::Sigmoid | Activation::Tanh)) => Int8::FixedScale,
            (kind, _) => kind,
        };
        let kinds: Vec<Int8> = self.layers().iter().map(kind).collect();
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); kinds.len()];
        for (i, call) in self.layers().iter().enumerate() {
            for tensor in &call.inputs {
                if let Source::Layer(from) = tensor.0 {
                    readers[from].push(i);
                }
            }
        }
        let mut is_output = vec![false; kinds.len()];
        for tensor in self.output_tensors() {
            if let Source::Layer(from) = tensor.0 {
                is_output[from] = true;
            }
        }
        let observed = |i: usize| {
            let next = match readers[i][..] {
                [only] if !is_output[i] => Some(kinds[only]),
                _ => None,
            };
            match (kinds[i], next) {
                (Int8::Kernel { linear: true }, Some(Int8::Norm | Int8::Rectifier)) => false,
                (Int8::Norm | Int8::Operator, Some(Int8::Rectifier)) => false,
                (Int8::SameScale | Int8::FixedScale, _) => false,
                (Int8::Float(_), _) => readers[i].iter().any(|reader| !matches!(kinds[*reader], Int8::Float(_))),
                _ => true,
            }
        };
        (0..kinds.len()).map(observed).collect()
    }
}

impl Lowering<'_> {
    /// A kernel, rounded as int8 with one symmetric scale per index of `axis` if the model is trained for that.
    pub fn int8_kernel(&mut self, kernel: ValueId, axis: usize) -> Result<ValueId, GraphError> {
        if self.quantize.is_none() {
            return Ok(kernel);
        }
        let g = &mut *self.graph;
        let others: Vec<usize> = (0..g.shape(kernel).rank()).filter(|other| *other != axis).collect();
        let size = g.unary(Unary::Abs, kernel)?;
        let largest = g.reduce(Reduction::Max, size, &others)?;
        let rounded = Expr::build(|e| {
            let scale = e.div(e.input(1), e.constant(LARGEST_WEIGHT));
            let integer = e.unary(Unary::Floor, e.add(e.div(e.input(0), scale), e.constant(0.5)));
            e.select(e.input(1), e.mul(integer, scale), e.input(0))
        });
        let rounded = g.pointwise(rounded, &[kernel, largest])?;
        straight_through(g, kernel, rounded)
    }

    /// A tensor whose range is known in an int8 model: rounded to 256 numbers of that range if the model is trained for
    /// that. In training the range follows the smallest and largest number of every batch; a step rounds with the range
    /// before it, so that micro-batches do not matter.
    pub fn observe(&mut self, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let own = |number: usize| if number == 0 { name.to_string() } else { format!("{name}_{}", number + 1) };
        let taken = |name: &String| self.observed.iter().any(|(known, _)| *known == format!("{}/{name}", self.name));
        let name = (0..).map(own).find(|name| !taken(name)).expect("some number is free");
        let full = format!("{}/{name}", self.name);
        self.observed.push((full, x));
        let Some(momentum) = self.quantize.map(|quantize| quantize.momentum) else { return Ok(x) };
        let mut states = Vec::with_capacity(RANGE.len());
        for part in RANGE {
            states.push(self.statistic(&format!("{name}/{part}"), [], Init::Constant(0.0))?);
        }
        let [min, max, batch_min, batch_max] = states[..] else { unreachable!("a range has four numbers") };
        let rounded = fake_quantize(self.graph, x, min, max)?;
        if self.training {
            let g = &mut *self.graph;
            let axes: Vec<usize> = (0..g.shape(x).rank()).collect();
            let negative = g.unary(Unary::Neg, x)?;
            let [low, high] = [negative, x].map(|x| g.reduce(Reduction::Max, x, &axes).and_then(|most| g.reshape(most, Shape::scalar())));
            let (low, high) = (g.stop_gradient(low?)?, g.stop_gradient(high?)?);
            let (first, last) = (g.scalar(FIRST_MICRO_BATCH), g.scalar(LAST_MICRO_BATCH));
            let moved = Expr::build_many(|e| {
                let (first, last, min, max) = (e.input(0), e.input(1), e.input(2), e.input(3));
                let zero = e.constant(0.0);
                // A range includes zero.
                let low = e.binary(Binary::Min, e.unary(Unary::Neg, e.input(6)), zero);
                let high = e.binary(Binary::Max, e.input(7), zero);
                let low = e.select(first, low, e.binary(Binary::Min, low, e.input(4)));
                let high = e.select(first, high, e.binary(Binary::Max, high, e.input(5)));
                let known = e.binary(Binary::Less, min, max);
                let mix = |old, new| {
                    let mixed = e.add(e.mul(e.constant(momentum), old), e.mul(e.constant(1.0 - momentum), new));
                    e.select(last, e.select(known, mixed, new), old)
                };
                vec![mix(min, low), mix(max, high), low, high]
            });
            let inputs = [first, last, min, max, batch_min, batch_max, low, high];
            let new = g.pointwise_many(moved, &inputs, Shape::scalar(), vec![DType::F32; 4])?;
            for (state, new) in states.into_iter().zip(new) {
                self.update(state, new)?;
            }
        }
        Ok(rounded)
    }
}

/// The numbers of a range: those of the moving average, and those of the batch so far.
const RANGE: [&str; 4] = ["min", "max", "batch_min", "batch_max"];

/// The names of the smallest and largest number of an observed tensor among the weights.
pub(crate) fn range_names(observed: &str) -> [String; 2] {
    [format!("{observed}/{}", RANGE[0]), format!("{observed}/{}", RANGE[1])]
}

/// `tf.quantization.fake_quant_with_min_max_vars`: the nearest of 256 numbers from `min` to `max`, moved so that zero
/// is one of them. Gradients pass inside of the range only. An empty range changes nothing.
pub(super) fn fake_quantize(g: &mut Graph, x: ValueId, min: ValueId, max: ValueId) -> Result<ValueId, GraphError> {
    let grid = Expr::build_many(|e| {
        let (min, max, zero) = (e.input(0), e.input(1), e.constant(0.0));
        let known = e.binary(Binary::Less, min, max);
        let scale = e.select(known, e.div(e.sub(max, min), e.constant(LEVELS)), zero);
        let place = e.select(known, e.unary(Unary::Neg, e.div(min, scale)), zero);
        let place = e.unary(Unary::Floor, e.add(place, e.constant(0.5)));
        let place = e.binary(Binary::Min, e.binary(Binary::Max, place, zero), e.constant(LEVELS));
        vec![scale, place]
    });
    let grid = g.pointwise_many(grid, &[min, max], Shape::scalar(), vec![DType::F32; 2])?;
    let inputs = [x, grid[0], grid[1]];
    let bounds = |e: &plimsoll_core::expr::ExprBuilder| {
        let (scale, place) = (e.input(1), e.input(2));
        (e.unary(Unary::Neg, e.mul(place, scale)), e.mul(e.sub(e.constant(LEVELS), place), scale))
    };
    let shape = g.shape(x).clone();
    let passed = Expr::build(|e| {
        let ((low, high), x) = (bounds(e), e.input(0));
        let inside = e.mul(e.binary(Binary::LessEq, low, x), e.binary(Binary::LessEq, x, high));
        e.select(e.input(1), e.select(inside, x, e.constant(0.0)), x)
    });
    let rounded = Expr::build(|e| {
        let ((low, high), (x, scale, place)) = (bounds(e), (e.input(0), e.input(1), e.input(2)));
        let clamped = e.binary(Binary::Max, e.binary(Binary::Min, x, high), low);
        let level = e.add(e.sub(e.div(e.sub(clamped, low), scale), place), e.constant(0.5));
        e.select(scale, e.mul(e.unary(Unary::Floor, level), scale), x)
    });
    let passed = g.pointwise_over(passed, &inputs, shape.clone())?;
    let rounded = g.pointwise_over(rounded, &inputs, shape)?;
    straight_through(g, passed, rounded)
}

/// The number `rounded`, with the gradient of `passed`: `(passed - passed) + rounded`, where only the first has a
/// gradient.
fn straight_through(g: &mut Graph, passed: ValueId, rounded: ValueId) -> Result<ValueId, GraphError> {
    let (constant, rounded) = (g.stop_gradient(passed)?, g.stop_gradient(rounded)?);
    g.pointwise(Expr::build(|e| e.add(e.sub(e.input(0), e.input(1)), e.input(2))), &[passed, constant, rounded])
}
