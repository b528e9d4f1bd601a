//! Layers from closures.

use super::add_to_graph;
use crate::eager::error::Result;
use crate::eager::tensor::Tensor;
use crate::nn::{Initializer, Layer, Lowering};
use plimsoll_core::{GraphError, Shape, ValueId};
use std::fmt;
use std::sync::Arc;

/// A layer from a closure over eager tensors. The closure computes the output from inputs and weights; it is traced
/// into the graph of the model and differentiated there.
///
/// ```
/// use plimsoll::eager::{CustomLayer, LayerCall, Result, Tensor};
/// use plimsoll::nn::{Dense, Initializer, Sequential};
///
/// /// Also runs eagerly, on tensors with values.
/// fn gated(x: &Tensor, w: &[Tensor]) -> Result<Tensor> {
///     x.matmul(&w[0])?.sigmoid()?.mul(&x.matmul(&w[1])?.add(&w[2])?)
/// }
/// let gated = CustomLayer::new("gated_dense", |call: &LayerCall<'_>| gated(&call.inputs[0], call.weights))
///     .weight("gate", |inputs| vec![inputs[0][1], 32], Initializer::GlorotUniform)
///     .weight("kernel", |inputs| vec![inputs[0][1], 32], Initializer::GlorotUniform)
///     .weight("bias", |_| vec![32], Initializer::Zeros);
/// let model = Sequential::new().add(gated).add(Dense::new(10));
/// # let _ = model;
/// ```
#[derive(Clone)]
pub struct CustomLayer {
    kind: &'static str,
    weights: Vec<Weight>,
    integers: bool,
    closure: Arc<Closure>,
}

type Closure = dyn Fn(&LayerCall<'_>) -> Result<Tensor> + Send + Sync;
type WeightShape = dyn Fn(&[Vec<usize>]) -> Vec<usize> + Send + Sync;

#[derive(Clone)]
struct Weight {
    name: &'static str,
    shape: Arc<WeightShape>,
    initializer: Initializer,
}

/// What the closure of a [`CustomLayer`] computes its output from.
pub struct LayerCall<'a> {
    /// The inputs. Their first dimension is the batch, which has no number in the graph of a model.
    pub inputs: &'a [Tensor],
    /// The weights, in the order of their declaration.
    pub weights: &'a [Tensor],
    /// Whether the layer is trained; dropout is the identity otherwise.
    pub training: bool,
}

impl CustomLayer {
    /// A layer of this type without weights.
    pub fn new(kind: &'static str, closure: impl Fn(&LayerCall<'_>) -> Result<Tensor> + Send + Sync + 'static) -> CustomLayer {
        CustomLayer { kind, weights: Vec::new(), integers: false, closure: Arc::new(closure) }
    }

    /// Declares a weight. Its shape follows from those of the inputs, in which the batch is 1; `initializer` takes the
    /// last dimension as the outputs and the others as the inputs.
    pub fn weight(
        mut self,
        name: &'static str,
        shape: impl Fn(&[Vec<usize>]) -> Vec<usize> + Send + Sync + 'static,
        initializer: Initializer,
    ) -> CustomLayer {
        self.weights.push(Weight { name, shape: Arc::new(shape), initializer });
        self
    }

    /// Reads its inputs as stored, such as token IDs, instead of cast to real numbers.
    pub fn reads_integers(self) -> CustomLayer {
        CustomLayer { integers: true, ..self }
    }
}

impl fmt::Debug for CustomLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weights: Vec<&str> = self.weights.iter().map(|weight| weight.name).collect();
        f.debug_struct("CustomLayer").field("kind", &self.kind).field("weights", &weights).finish_non_exhaustive()
    }
}

impl Layer for CustomLayer {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn reads_integers(&self) -> bool {
        self.integers
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|input| lowering.graph.shape(*input).bind(1)).collect();
        let mut values = inputs.to_vec();
        for weight in &self.weights {
            let shape = (weight.shape)(&shapes);
            let (fan_out, others) = shape.split_last().map_or((1, &[][..]), |(last, others)| (*last, others));
            let init = weight.initializer.init(others.iter().product(), fan_out);
            values.push(lowering.parameter(weight.name, shape, init)?);
        }
        let training = lowering.training;
        let outputs = add_to_graph(lowering.graph, &values, |tensors| {
            let (inputs, weights) = tensors.split_at(inputs.len());
            Ok(vec![(self.closure)(&LayerCall { inputs, weights, training })?])
        })?;
        let shape: &Shape = lowering.graph.shape(outputs[0]);
        if !shape.dims().first().is_some_and(|first| first.is_batch()) {
            let what = format!("returns rows [batch, …], but the closure returned {shape}");
            return Err(lowering.graph.error(what));
        }
        Ok(outputs[0])
    }
}
