//! Models: layers and their connections. Shapes are inferred when the inputs are known.

use super::tensor::{Source, SymbolicTensor};
use super::{Activation, Layer, Lowering, Quantize};
use plimsoll_core::shape::TensorType;
use plimsoll_core::{DType, Graph, GraphError, ValueId};
use std::sync::Arc;

/// What the names of a teacher's weights begin with.
pub(crate) const TEACHER: &str = "teacher";

/// The scope of the ranges of inputs.
const QUANTIZED_INPUTS: &str = "quantized_inputs";

/// A model: layers in execution order, each with its inputs.
#[derive(Clone, Debug)]
pub struct Model {
    name: String,
    inputs: Vec<String>,
    layers: Vec<LayerCall>,
    outputs: Vec<(String, SymbolicTensor)>,
    /// How it is trained for int8, if it is.
    quantize: Option<Quantize>,
    /// Whether it computes as an int8 model does: the forward pass rounds.
    rounds: bool,
    /// Whether it is the teacher of another model.
    is_teacher: bool,
    /// The ranks that batch normalization is synchronized over, if it is.
    synchronized: Option<u32>,
}

/// A call of a layer.
#[derive(Clone, Debug)]
pub(super) struct LayerCall {
    pub name: String,
    pub layer: Arc<dyn Layer>,
    pub inputs: Vec<SymbolicTensor>,
    pub trainable: bool,
    /// Whether a layer of the same name comes before, whose weights it shares.
    pub shared: bool,
}

/// An output of a model in a graph.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    pub value: ValueId,
    /// Its value before the final activation, if that can be undone.
    pub before_activation: Option<(Activation, ValueId)>,
}

/// A model in a graph.
pub(crate) struct Lowered {
    /// The outputs, in order.
    pub outputs: Vec<Output>,
    /// The regularization loss, to be added to the loss of a batch.
    pub penalty: Option<ValueId>,
    /// The output of each layer, in order.
    pub results: Vec<ValueId>,
    /// Tensors that have a range in an int8 model, by name.
    pub observed: Vec<(String, ValueId)>,
}

impl Model {
    pub(super) fn new(name: String, inputs: Vec<String>, layers: Vec<LayerCall>, outputs: Vec<(String, SymbolicTensor)>) -> Model {
        Model { name, inputs, layers, outputs, quantize: None, rounds: false, is_teacher: false, synchronized: None }
    }

    /// Sets the name, for reports.
    pub fn name(self, name: &str) -> Model {
        Model { name: name.to_string(), ..self }
    }

    /// Its name.
    pub fn title(&self) -> &str {
        &self.name
    }

    /// The names of its inputs: columns of the data.
    pub fn inputs(&self) -> &[String] {
        &self.inputs
    }

    /// The names of its outputs.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = &str> {
        self.outputs.iter().map(|(name, _)| name.as_str())
    }

    /// The names of the layers in execution order. A shared layer occurs once per call.
    pub fn layer_names(&self) -> Vec<&str> {
        self.layers.iter().map(|call| call.name.as_str()).collect()
    }

    /// The integer inputs that a layer looks up in a table, with the number of its rows.
    pub(crate) fn bounded_inputs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.layers.iter().flat_map(|call| {
            let bound = call.layer.input_bound();
            let inputs = call.inputs.iter().filter_map(|tensor| match tensor.0 {
                Source::Input(i) => Some(i),
                Source::Layer(_) => None,
            });
            inputs.filter_map(move |i| Some((i, bound?)))
        })
    }

    /// The name of the layer whose weight of this name pruning may mask.
    pub(crate) fn layer_pruned<'a>(&'a self, weight: &str) -> Option<&'a str> {
        let rest = |call: &LayerCall| weight.strip_prefix(call.name.as_str()).and_then(|rest| rest.strip_prefix('/')).map(str::to_string);
        let owner = self.layers.iter().filter_map(|call| Some((call, rest(call)?))).max_by_key(|(call, _)| call.name.len());
        owner.filter(|(call, rest)| call.trainable && call.layer.prunes(rest)).map(|(call, _)| call.name.as_str())
    }

    /// How it is trained for int8, if it is.
    pub(super) fn quantization(&self) -> Option<&Quantize> {
        self.quantize.as_ref()
    }

    pub(super) fn set_quantize(&mut self, quantize: Quantize) {
        (self.quantize, self.rounds) = (Some(quantize), true);
    }

    /// The same model as the teacher of another one: frozen, its weights under names of their own.
    pub(crate) fn into_teacher(mut self) -> Model {
        for call in &mut self.layers {
            (call.name, call.trainable) = (format!("{TEACHER}/{}", call.name), false);
        }
        Model { is_teacher: true, ..self }
    }

    /// The same model in single precision; it still knows which tensors have a range in an int8 model.
    pub(crate) fn without_rounding(self) -> Model {
        Model { rounds: false, ..self }
    }

    pub(super) fn output_tensors(&self) -> impl Iterator<Item = SymbolicTensor> {
        self.outputs.iter().map(|(_, tensor)| *tensor)
    }

    pub(super) fn layers(&self) -> &[LayerCall] {
        &self.layers
    }

    pub(super) fn layers_mut(&mut self) -> &mut [LayerCall] {
        &mut self.layers
    }

    pub(super) fn outputs_mut(&mut self) -> &mut [(String, SymbolicTensor)] {
        &mut self.outputs
    }

    /// The final activation of each output, if a layer has one.
    pub(crate) fn last_activations(&self) -> impl Iterator<Item = Option<Activation>> {
        self.outputs.iter().map(|(_, tensor)| match tensor.0 {
            Source::Layer(i) => self.layers[i].layer.last_activation(),
            Source::Input(_) => None,
        })
    }

    /// Whether training depends on which rows are computed together, so that micro-batches change the result.
    pub fn has_batch_statistics(&self) -> bool {
        self.layers.iter().any(|call| call.trainable && call.layer.uses_batch_statistics())
    }

    /// The same, for layers whose statistics are always those of a rank's own rows.
    pub(crate) fn has_local_statistics(&self) -> bool {
        let local = |layer: &Arc<dyn Layer>| layer.uses_batch_statistics() && !layer.synchronizes_statistics();
        self.layers.iter().any(|call| call.trainable && local(&call.layer))
    }

    /// The same model with statistics of the rows of all ranks, if there are several.
    pub(crate) fn synchronized(self, ranks: Option<u32>) -> Model {
        Model { synchronized: ranks, ..self }
    }

    /// Freezes or unfreezes the layers of a name or block.
    ///
    /// ```
    /// use plimsoll::nn::{Dense, Model, Sequential};
    /// let model: Model = Sequential::new().named("body", Dense::new(8).relu()).named("head", Dense::new(2)).into();
    /// let model = model.trainable("body", false)?;
    /// let error = model.trainable("tail", false).unwrap_err();
    /// assert_eq!(error.to_string(), "there is no layer or block `tail`; the model has body, head");
    /// # Ok::<(), plimsoll_core::GraphError>(())
    /// ```
    pub fn trainable(mut self, name: &str, trainable: bool) -> Result<Model, GraphError> {
        let inside = |layer: &str| layer.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let mut found = false;
        for call in self.layers.iter_mut().filter(|call| inside(&call.name)) {
            call.trainable = trainable;
            found = true;
        }
        if found {
            return Ok(self);
        }
        let mut known: Vec<&str> = self.layers.iter().map(|call| call.name.split('/').next().unwrap_or_default()).collect();
        known.dedup();
        let what = format!("there is no layer or block `{name}`; the model has {}", known.join(", "));
        Err(GraphError { scope: String::new(), what })
    }

    /// Adds the model's nodes to a graph; `inputs` are its inputs in order.
    pub(crate) fn lower(&self, graph: &mut Graph, inputs: &[ValueId], training: bool) -> Result<Lowered, GraphError> {
        self.check_connected()?;
        let mut converted: Vec<Option<ValueId>> = vec![None; inputs.len()];
        let mut results: Vec<ValueId> = Vec::with_capacity(self.layers.len());
        let mut masks: Vec<Option<ValueId>> = Vec::with_capacity(self.layers.len());
        let (mut penalties, mut observed) = (Vec::new(), Vec::new());
        let ranged = self.observed_layers();
        for (i, call) in self.layers.iter().enumerate() {
            let quantize = self.quantize.as_ref().filter(|quantize| self.rounds && !quantize.keeps(&call.name));
            let mut read = Vec::with_capacity(call.inputs.len());
            for tensor in &call.inputs {
                read.push(match tensor.0 {
                    Source::Layer(i) => results[i],
                    Source::Input(i) if call.layer.reads_integers() => inputs[i],
                    Source::Input(i) => self.real(graph, inputs, &mut converted, &mut observed, (i, training))?,
                });
            }
            let of_input = |tensor: &SymbolicTensor| if let Source::Layer(i) = tensor.0 { masks[i] } else { None };
            let mask = call.inputs.iter().find_map(of_input);
            let (result, new_mask) = graph.in_scope(&call.name, |graph| {
                let LayerCall { name, layer, trainable, shared, .. } = call;
                let (trainable, shared, new_mask) = (*trainable, *shared, None);
                let (penalties, observed, is_teacher) = (&mut penalties, &mut observed, self.is_teacher);
                let synchronized = self.synchronized;
                let mut lowering = Lowering {
                    graph,
                    training,
                    trainable,
                    name,
                    shared,
                    mask,
                    new_mask,
                    penalties,
                    quantize,
                    observed,
                    is_teacher,
                    synchronized,
                };
                let mut result = layer.lower(&mut lowering, &read)?;
                if ranged[i] {
                    // A layer in single precision may be followed by one in int8.
                    lowering.quantize = self.quantize.as_ref().filter(|_| self.rounds);
                    result = lowering.observe("output", result)?;
                }
                Ok((result, lowering.new_mask))
            })?;
            // A mask stays with a sequence as long as its steps are the same ones.
            let kept = mask.filter(|mask| same_steps(graph, *mask, result));
            masks.push(new_mask.or(kept));
            results.push(result);
        }
        let mut total = None;
        for penalty in penalties {
            total = Some(match total {
                Some(before) => graph.plus(before, penalty)?,
                None => penalty,
            });
        }
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for (_, tensor) in &self.outputs {
            let (value, last) = match tensor.0 {
                Source::Layer(i) => (results[i], self.layers[i].layer.last_activation()),
                Source::Input(i) => (self.real(graph, inputs, &mut converted, &mut observed, (i, training))?, None),
            };
            let before_activation = last.and_then(|activation| Some((activation, before(graph, activation, value)?)));
            outputs.push(Output { value, before_activation });
        }
        Ok(Lowered { outputs, penalty: total, results, observed })
    }

    /// Casts an input from its stored type to float, once.
    fn real(
        &self,
        graph: &mut Graph,
        inputs: &[ValueId],
        converted: &mut [Option<ValueId>],
        observed: &mut Vec<(String, ValueId)>,
        (i, training): (usize, bool),
    ) -> Result<ValueId, GraphError> {
        if let Some(known) = converted[i] {
            return Ok(known);
        }
        let mut value = graph.cast(inputs[i], DType::F32)?;
        if self.quantize.is_some() {
            let quantize = self.quantize.as_ref().filter(|_| self.rounds);
            let scope = if self.is_teacher { format!("{TEACHER}/{QUANTIZED_INPUTS}") } else { QUANTIZED_INPUTS.to_string() };
            value = graph.in_scope(&scope, |graph| {
                let (mut penalties, is_teacher) = (Vec::new(), self.is_teacher);
                let lowering = Lowering::to_infer(graph, &scope, &mut penalties, observed);
                Lowering { training, quantize, is_teacher, ..lowering }.observe(&self.inputs[i], value)
            })?;
        }
        converted[i] = Some(value);
        Ok(value)
    }

    /// The same model without layers that reach no output.
    pub(crate) fn without_unused_layers(mut self) -> Model {
        let used = self.used_layers();
        let mut places = Vec::with_capacity(used.len());
        let mut kept = 0;
        for used in &used {
            places.push(kept);
            kept += usize::from(*used);
        }
        let moved = |tensor: &mut SymbolicTensor| {
            if let Source::Layer(i) = &mut tensor.0 {
                *i = places[*i];
            }
        };
        let mut index = 0;
        self.layers.retain(|_| {
            index += 1;
            used[index - 1]
        });
        self.layers.iter_mut().flat_map(|call| &mut call.inputs).for_each(moved);
        self.outputs.iter_mut().for_each(|(_, tensor)| moved(tensor));
        self
    }

    /// Which layers reach an output.
    fn used_layers(&self) -> Vec<bool> {
        let mut reaches = vec![false; self.layers.len()];
        let mut open: Vec<SymbolicTensor> = self.outputs.iter().map(|(_, tensor)| *tensor).collect();
        while let Some(tensor) = open.pop() {
            if let Source::Layer(i) = tensor.0
                && !std::mem::replace(&mut reaches[i], true)
            {
                open.extend(&self.layers[i].inputs);
            }
        }
        reaches
    }

    /// An error if a layer does not reach an output.
    fn check_connected(&self) -> Result<(), GraphError> {
        let reaches = self.used_layers();
        match reaches.iter().position(|reaches| !reaches) {
            None => Ok(()),
            Some(i) => {
                let what = "does not reach an output of the model; connect or remove it".to_string();
                Err(GraphError { scope: self.layers[i].name.clone(), what })
            }
        }
    }

    /// Its weights, in order, for an input of the given type.
    pub fn weights(&self, input: &TensorType) -> Result<Vec<(String, TensorType)>, GraphError> {
        self.weights_for(std::slice::from_ref(input))
    }

    /// Its weights, in order, for inputs of the given types.
    pub fn weights_for(&self, inputs: &[TensorType]) -> Result<Vec<(String, TensorType)>, GraphError> {
        let (graph, _) = self.graph(inputs, false)?;
        Ok(graph.states().iter().map(|state| (state.name.clone(), state.ty.clone())).collect())
    }

    /// The model by itself, as a graph.
    pub(crate) fn graph(&self, inputs: &[TensorType], training: bool) -> Result<(Graph, Lowered), GraphError> {
        if inputs.len() != self.inputs.len() {
            let what =
                format!("the model expects {} inputs ({}), but received {}", self.inputs.len(), self.inputs.join(", "), inputs.len());
            return Err(GraphError { scope: String::new(), what });
        }
        let mut graph = Graph::new();
        let values: Vec<ValueId> = self.inputs.iter().zip(inputs).map(|(name, ty)| graph.input(name, ty.clone())).collect();
        let lowered = self.lower(&mut graph, &values, training)?;
        Ok((graph, lowered))
    }
}

/// Whether a value is a sequence of as many steps as a mask has.
fn same_steps(graph: &Graph, mask: ValueId, value: ValueId) -> bool {
    let (mask, value) = (graph.shape(mask), graph.shape(value));
    value.rank() == 3 && value.dims()[..2] == mask.dims()[..2]
}

/// The value an activation was applied to. Sigmoid reads it directly; softmax reads it through the difference to its
/// log-sum.
fn before(graph: &Graph, activation: Activation, output: ValueId) -> Option<ValueId> {
    let through = |value: ValueId| graph.producer(value).inputs.first().copied();
    match activation {
        Activation::Sigmoid => through(output),
        Activation::Softmax => through(output).and_then(through),
        _ => None,
    }
}
