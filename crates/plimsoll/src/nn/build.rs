//! Builders of models: the functional API and sequential stacks.

use super::Layer;
use super::model::{LayerCall, Model};
use super::tensor::{Source, SymbolicTensor};
use std::collections::HashMap;
use std::sync::Arc;

/// The default input: the column of features.
pub(super) const FEATURES: &str = "x";

/// A stack of layers, each with one input and one output.
///
/// ```
/// use plimsoll::nn::{Conv2D, Dense, Flatten, Model, Sequential};
/// let model: Model = Sequential::new().add(Conv2D::new(32, 3).relu()).add(Flatten).add(Dense::new(10)).into();
/// assert_eq!(model.layer_names(), ["conv2d", "flatten", "dense"]);
/// ```
#[derive(Clone, Debug)]
pub struct Sequential {
    net: Functional,
    last: SymbolicTensor,
}

/// The functional API: branches, residual connections, shared layers, several inputs and outputs.
///
/// ```
/// use plimsoll::nn::{Add, Conv2D, Functional, GlobalAveragePool, Padding};
/// let mut net = Functional::new("residual");
/// let x = net.input();
/// let stem = net.add(Conv2D::new(8, 3).padding(Padding::Same).relu(), [x]);
/// let sum = net.block("body", |net| {
///     let branch = net.add(Conv2D::new(8, 3).padding(Padding::Same), [stem]);
///     let twice = net.reuse(branch, [branch]);
///     net.add(Add, [stem, twice])
/// });
/// let pooled = net.named("head", GlobalAveragePool, [sum]);
/// let model = net.build(pooled);
/// assert_eq!(model.layer_names(), ["conv2d", "body/conv2d", "body/conv2d", "body/add", "head"]);
/// ```
#[derive(Clone, Debug)]
pub struct Functional {
    name: String,
    inputs: Vec<String>,
    layers: Vec<LayerCall>,
    scope: Vec<String>,
    /// The number of layers of each type so far, by full name.
    numbered: HashMap<String, usize>,
}

impl Functional {
    /// An empty network.
    pub fn new(name: &str) -> Functional {
        Functional { name: name.to_string(), inputs: Vec::new(), layers: Vec::new(), scope: Vec::new(), numbered: HashMap::new() }
    }

    /// The only input of the model: the column of features.
    pub fn input(&mut self) -> SymbolicTensor {
        self.input_named(FEATURES)
    }

    /// An input of the model: the column of this name. The same name gives the same tensor.
    pub fn input_named(&mut self, name: &str) -> SymbolicTensor {
        let known = self.inputs.iter().position(|known| known == name).unwrap_or_else(|| {
            self.inputs.push(name.to_string());
            self.inputs.len() - 1
        });
        SymbolicTensor(Source::Input(known))
    }

    /// Adds a layer on these inputs, named after its type with a number.
    pub fn add(&mut self, layer: impl Layer + 'static, inputs: impl IntoIterator<Item = SymbolicTensor>) -> SymbolicTensor {
        self.add_layer(None, Arc::new(layer), inputs)
    }

    /// Adds a layer under a name, which prefixes the names of its weights.
    pub fn named(&mut self, name: &str, layer: impl Layer + 'static, inputs: impl IntoIterator<Item = SymbolicTensor>) -> SymbolicTensor {
        self.add_layer(Some(name), Arc::new(layer), inputs)
    }

    /// Calls the layer whose output is `result` again, with the same weights.
    ///
    /// # Panics
    /// If `result` is an input of the model.
    pub fn reuse(&mut self, result: SymbolicTensor, inputs: impl IntoIterator<Item = SymbolicTensor>) -> SymbolicTensor {
        let layer = Arc::clone(&self.maker(result).layer);
        self.call_shared(result, layer, inputs)
    }

    /// Adds a layer that shares the weights of equal names with the layer whose output is `result`.
    ///
    /// # Panics
    /// If `result` is an input of the model.
    pub fn tied(
        &mut self,
        result: SymbolicTensor,
        layer: impl Layer + 'static,
        inputs: impl IntoIterator<Item = SymbolicTensor>,
    ) -> SymbolicTensor {
        self.call_shared(result, Arc::new(layer), inputs)
    }

    pub(crate) fn tie_layer(
        &mut self,
        result: SymbolicTensor,
        layer: Arc<dyn Layer>,
        inputs: impl IntoIterator<Item = SymbolicTensor>,
    ) -> SymbolicTensor {
        self.call_shared(result, layer, inputs)
    }

    /// Whether it is the output of a layer.
    pub(crate) fn is_layer(&self, result: SymbolicTensor) -> bool {
        matches!(result.0, Source::Layer(_))
    }

    /// The layers that `body` adds have names that begin with `name/`.
    pub fn block<T>(&mut self, name: &str, body: impl FnOnce(&mut Functional) -> T) -> T {
        self.scope.push(name.to_string());
        let result = body(self);
        self.scope.pop();
        result
    }

    /// Freezes the layer whose output is `result`.
    ///
    /// # Panics
    /// If `result` is an input of the model.
    pub fn freeze(&mut self, result: SymbolicTensor) {
        let name = self.maker(result).name.clone();
        self.layers.iter_mut().filter(|call| call.name == name).for_each(|call| call.trainable = false);
    }

    pub(crate) fn add_layer(
        &mut self,
        name: Option<&str>,
        layer: Arc<dyn Layer>,
        inputs: impl IntoIterator<Item = SymbolicTensor>,
    ) -> SymbolicTensor {
        let name = match name {
            Some(name) => self.full_name(name),
            None => self.free_name(layer.kind()),
        };
        self.place(LayerCall { name, layer, inputs: inputs.into_iter().collect(), trainable: true, shared: false })
    }

    fn call_shared(
        &mut self,
        result: SymbolicTensor,
        layer: Arc<dyn Layer>,
        inputs: impl IntoIterator<Item = SymbolicTensor>,
    ) -> SymbolicTensor {
        let (name, trainable) = (self.maker(result).name.clone(), self.maker(result).trainable);
        self.place(LayerCall { name, layer, inputs: inputs.into_iter().collect(), trainable, shared: true })
    }

    fn place(&mut self, call: LayerCall) -> SymbolicTensor {
        self.layers.push(call);
        SymbolicTensor(Source::Layer(self.layers.len() - 1))
    }

    fn maker(&self, result: SymbolicTensor) -> &LayerCall {
        match result.0 {
            Source::Layer(i) => &self.layers[i],
            Source::Input(i) => panic!("`{}` is an input of the model; it has no layer", self.inputs[i]),
        }
    }

    fn full_name(&self, name: &str) -> String {
        self.scope.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("/")
    }

    fn free_name(&mut self, kind: &str) -> String {
        let kind = self.full_name(kind);
        loop {
            let count = self.numbered.entry(kind.clone()).or_default();
            let name = if *count == 0 { kind.clone() } else { format!("{kind}_{count}") };
            *count += 1;
            if !self.layers.iter().any(|call| call.name == name) {
                return name;
            }
        }
    }

    /// The model whose output is `output`.
    pub fn build(self, output: SymbolicTensor) -> Model {
        self.build_many([("prediction", output)])
    }

    /// The model with several outputs, by name. Each has its own loss; see [`Trainer::losses`](crate::Trainer::losses).
    ///
    /// # Panics
    /// If there are none.
    pub fn build_many<'n>(self, outputs: impl IntoIterator<Item = (&'n str, SymbolicTensor)>) -> Model {
        let outputs: Vec<(String, SymbolicTensor)> = outputs.into_iter().map(|(name, tensor)| (name.to_string(), tensor)).collect();
        assert!(!outputs.is_empty(), "a model has at least one result");
        let inputs = if self.inputs.is_empty() { vec![FEATURES.to_string()] } else { self.inputs };
        Model::new(self.name, inputs, self.layers, outputs)
    }
}

impl Sequential {
    /// No layers yet.
    pub fn new() -> Sequential {
        let mut net = Functional::new("sequential");
        let last = net.input();
        Sequential { net, last }
    }

    /// Appends a layer.
    #[allow(clippy::should_implement_trait, reason = "the word everybody knows from Keras")]
    pub fn add(mut self, layer: impl Layer + 'static) -> Sequential {
        self.last = self.net.add(layer, [self.last]);
        self
    }

    /// Appends a layer under a name.
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
