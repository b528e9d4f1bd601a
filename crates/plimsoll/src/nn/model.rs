//! Models: layers and how they are connected. Shapes are found when the data is known.

use super::{Activation, Layer, Lowering};
use plimsoll_core::shape::TensorType;
use plimsoll_core::{DType, Graph, GraphError, ValueId};
use std::sync::Arc;

/// A model: layers in an order in which they can run, each with the results it reads.
#[derive(Clone, Debug)]
pub struct Model {
    name: String,
    layers: Vec<Placed>,
    output: Tensor,
}

#[derive(Clone, Debug)]
struct Placed {
    name: String,
    layer: Arc<dyn Layer>,
    inputs: Vec<Tensor>,
}

/// The result of a layer of a model, or its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor(Option<usize>);

/// Layers one after another.
///
/// ```
/// use plimsoll::nn::{Conv2D, Dense, Flatten, Model, Sequential};
/// let model: Model = Sequential::new().add(Conv2D::new(32, 3).relu()).add(Flatten).add(Dense::new(10)).into();
/// assert_eq!(model.layer_names(), ["conv2d", "flatten", "dense"]);
/// ```
#[derive(Clone, Debug)]
pub struct Sequential {
    net: Functional,
    last: Tensor,
}

/// Layers connected freely: branches, residuals, several readers of one result.
///
/// ```
/// use plimsoll::nn::{Add, Conv2D, Functional, GlobalAveragePool, Padding};
/// let mut net = Functional::new("residual");
/// let x = net.input();
/// let stem = net.add(Conv2D::new(8, 3).padding(Padding::Same).relu(), [x]);
/// let branch = net.add(Conv2D::new(8, 3).padding(Padding::Same), [stem]);
/// let sum = net.add(Add, [stem, branch]);
/// let pooled = net.named("head", GlobalAveragePool, [sum]);
/// let model = net.build(pooled);
/// assert_eq!(model.layer_names(), ["conv2d", "conv2d_1", "add", "head"]);
/// ```
#[derive(Clone, Debug)]
pub struct Functional {
    name: String,
    layers: Vec<Placed>,
}

impl Functional {
    /// An empty network.
    pub fn new(name: &str) -> Functional {
        Functional { name: name.to_string(), layers: Vec::new() }
    }

    /// The model's input.
    pub fn input(&mut self) -> Tensor {
        Tensor(None)
    }

    /// Adds a layer that reads the given results, named after its kind and numbered.
    pub fn add(&mut self, layer: impl Layer + 'static, inputs: impl IntoIterator<Item = Tensor>) -> Tensor {
        self.add_shared(None, Arc::new(layer), inputs)
    }

    /// Adds a layer under a name of its own, which its weights carry and messages use.
    pub fn named(&mut self, name: &str, layer: impl Layer + 'static, inputs: impl IntoIterator<Item = Tensor>) -> Tensor {
        self.add_shared(Some(name), Arc::new(layer), inputs)
    }

    pub(crate) fn add_shared(&mut self, name: Option<&str>, layer: Arc<dyn Layer>, inputs: impl IntoIterator<Item = Tensor>) -> Tensor {
        let name = name.map_or_else(|| self.free_name(layer.kind()), str::to_string);
        self.layers.push(Placed { name, layer, inputs: inputs.into_iter().collect() });
        Tensor(Some(self.layers.len() - 1))
    }

    fn free_name(&self, kind: &str) -> String {
        let taken = |name: &str| self.layers.iter().any(|placed| placed.name == name);
        std::iter::once(kind.to_string())
            .chain((1..).map(|n| format!("{kind}_{n}")))
            .find(|name| !taken(name))
            .expect("names do not run out")
    }

    /// The model that ends in `output`.
    pub fn build(self, output: Tensor) -> Model {
        Model { name: self.name, layers: self.layers, output }
    }
}

impl Sequential {
    /// No layers yet.
    pub fn new() -> Sequential {
        Sequential { net: Functional::new("sequential"), last: Tensor(None) }
    }

    /// One more layer at the end.
    #[allow(clippy::should_implement_trait, reason = "the word everybody knows from Keras")]
    pub fn add(mut self, layer: impl Layer + 'static) -> Sequential {
        self.last = self.net.add(layer, [self.last]);
        self
    }

    /// One more layer at the end, under a name of its own.
    pub fn named(mut self, name: &str, layer: impl Layer + 'static) -> Sequential {
        self.last = self.net.named(name, layer, [self.last]);
        self
    }
}

impl Default for Sequential {
    fn default() -> Sequential {
        Sequential::new()
    }
}

impl From<Sequential> for Model {
    fn from(sequential: Sequential) -> Model {
        sequential.net.build(sequential.last)
    }
}

/// What a model writes into a graph.
pub(crate) struct Lowered {
    /// The prediction.
    pub output: ValueId,
    /// What the prediction was before its last activation, if that was one.
    pub before_activation: Option<(Activation, ValueId)>,
}

impl Model {
    /// Another name, for reports.
    pub fn name(self, name: &str) -> Model {
        Model { name: name.to_string(), ..self }
    }

    /// Its name.
    pub fn title(&self) -> &str {
        &self.name
    }

    /// The layers' names in the order they run.
    pub fn layer_names(&self) -> Vec<&str> {
        self.layers.iter().map(|placed| placed.name.as_str()).collect()
    }

    /// Writes the model into a graph.
    pub(crate) fn lower(&self, graph: &mut Graph, input: ValueId, training: bool) -> Result<Lowered, GraphError> {
        // Pixels and labels arrive as they are stored; arithmetic begins here.
        let input = graph.cast(input, DType::F32)?;
        let mut results: Vec<ValueId> = Vec::with_capacity(self.layers.len());
        for placed in &self.layers {
            let inputs: Vec<ValueId> = placed.inputs.iter().map(|tensor| tensor.0.map_or(input, |i| results[i])).collect();
            let result = graph.in_scope(&placed.name, |graph| placed.layer.lower(&mut Lowering { graph, training }, &inputs))?;
            results.push(result);
        }
        let output = self.output.0.map_or(input, |i| results[i]);
        let last = self.output.0.and_then(|i| self.layers[i].layer.last_activation());
        let before_activation = last.and_then(|activation| Some((activation, before(graph, activation, output)?)));
        Ok(Lowered { output, before_activation })
    }

    /// Its weights, in order, for inputs of the given type.
    pub fn weights(&self, input: &TensorType) -> Result<Vec<(String, TensorType)>, GraphError> {
        let mut graph = Graph::new();
        let x = graph.input("x", input.clone());
        self.lower(&mut graph, x, false)?;
        Ok(graph.states().iter().map(|state| (state.name.clone(), state.ty.clone())).collect())
    }
}

/// The value an activation was applied to. Sigmoid reads it directly; softmax reads it through the difference to its log-sum.
fn before(graph: &Graph, activation: Activation, output: ValueId) -> Option<ValueId> {
    let through = |value: ValueId| graph.producer(value).inputs.first().copied();
    match activation {
        Activation::Sigmoid => through(output),
        Activation::Softmax => through(output).and_then(through),
        _ => None,
    }
}
