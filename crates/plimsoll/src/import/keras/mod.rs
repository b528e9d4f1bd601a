//! Keras models as models of [`nn`](crate::nn): the graph of layer calls, with nested models and shared layers.

mod attention;
mod compile;
mod json;
mod layers;
mod naming;
mod ops;
mod optimizer_state;
mod recurrent;

use super::{Assembly, Imported, ImportedInput, ImportedWeights};
use crate::nn::{Functional, Layer, SymbolicTensor};
use json::{Fields, Parsed};
use layers::Built;
pub(crate) use naming::Numbered;
use plimsoll_formats::keras::{KerasModel, Weights};
use plimsoll_formats::tensor::Tensor;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A tensor of the Keras graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    tensor: SymbolicTensor,
    /// The mask that Keras carries along with it.
    mask: Option<SymbolicTensor>,
}

/// The outputs of one call of a layer.
type Outputs = Vec<Symbol>;

/// The weights of one layer, to be found when all layers are known.
struct Pending {
    /// Its position among the layers, outermost first.
    order: Vec<usize>,
    /// The outermost layer, under whose name legacy files have the weights.
    outermost: String,
    /// The layer's path in the model and in the file.
    layer: String,
    path: String,
    trainable: bool,
    built: Built,
}

/// One call of a layer: what it reads.
pub(super) struct KerasCall<'a> {
    pub inputs: Vec<Symbol>,
    pub args: &'a [Value],
    pub kwargs: &'a Value,
    /// Whether it said `training=False`. Keras 3 notes that of every call, and fit does not heed it; Keras 2 does.
    pub inference: bool,
}

/// Where a layer is.
#[derive(Clone, Default)]
struct Place {
    /// Names of the models around it, ending in `/`.
    scope: String,
    path: String,
    order: Vec<usize>,
    outermost: Option<String>,
    trainable: bool,
    /// Whether a call of a model around it said `training=False`.
    inference: bool,
}

pub(super) struct Importer {
    net: Functional,
    pending: Vec<Pending>,
    /// The first output of each layer, by its path in the model: a second call shares its weights.
    called: HashMap<String, SymbolicTensor>,
    inputs: Vec<ImportedInput>,
    problems: Vec<String>,
    notes: Vec<String>,
}

/// The model of a file, or everything about it that cannot be imported.
pub(super) fn model(saved: &KerasModel) -> Result<Imported, Vec<String>> {
    let config = &saved.config;
    let name = config["config"]["name"].as_str().unwrap_or("model");
    let mut importer = Importer {
        net: Functional::new(name),
        pending: Vec::new(),
        called: HashMap::new(),
        inputs: Vec::new(),
        problems: Vec::new(),
        notes: Vec::new(),
    };
    let place = Place { trainable: true, ..Place::default() };
    let outputs = importer.outermost(config, place).map_err(|problem| importer.with_problem(problem))?;
    if !importer.problems.is_empty() {
        return Err(std::mem::take(&mut importer.problems));
    }
    let tensors = importer.tensors(&saved.weights).map_err(|problem| vec![problem])?;
    let layers: Vec<(&Pending, Vec<Tensor>)> = importer.pending.iter().zip(tensors).collect();
    let weights = assembled(&layers);
    let state = optimizer_state::read(saved, &layers);
    let named: Vec<(&str, SymbolicTensor)> = outputs.iter().map(|(name, symbol)| (name.as_str(), symbol.tensor)).collect();
    let names: Vec<String> = outputs.iter().map(|(name, _)| name.clone()).collect();
    let compiled = compile::read(saved.compile_config.as_ref(), &names, &mut importer.notes);
    let optimizer_state = state.unwrap_or_else(|note| {
        importer.notes.push(note);
        None
    });
    let Importer { net, inputs, notes, .. } = importer;
    let model = net.build_many(named).without_unused_layers();
    let heap = super::heap_of(saved.metadata_bytes);
    Ok(Imported { model, inputs, optimizer: compiled.optimizer, losses: compiled.losses, notes, weights, optimizer_state, heap })
}

impl Importer {
    fn with_problem(&mut self, problem: String) -> Vec<String> {
        let mut all = std::mem::take(&mut self.problems);
        all.push(problem);
        all
    }

    /// The outermost model, with its inputs; gives its outputs by name.
    fn outermost(&mut self, config: &Value, place: Place) -> Parsed<Vec<(String, Symbol)>> {
        let layers = layers_of(config)?;
        let given = match config["class_name"].as_str() {
            Some("Sequential") => {
                let first = layers.first().ok_or("the model has no layers")?;
                let build = config["config"].get("build_input_shape").or_else(|| config["build_config"].get("input_shape"));
                let input = self.input(first, build, 1)?;
                vec![input]
            }
            Some("Functional" | "Model") => {
                let names = history_list(&config["config"]["input_layers"]);
                let find = |name: &str| layers.iter().find(|layer| layer_name(layer) == name);
                let several = names.len();
                let layers: Vec<&Value> = names.iter().filter_map(|(name, ..)| find(name)).collect();
                layers.into_iter().map(|layer| self.input(layer, None, several)).collect::<Parsed<Vec<Symbol>>>()?
            }
            other => {
                let class = other.unwrap_or("nothing");
                return Err(format!("the model is of the class {class}; Sequential and Functional models are imported"));
            }
        };
        let (outputs, names) = self.submodel(config, &given, &place)?;
        let mut used: BTreeMap<String, usize> = BTreeMap::new();
        let single = outputs.len() == 1;
        let name = |name: String| {
            let count = used.entry(name.clone()).or_default();
            *count += 1;
            match (single, *count) {
                (true, _) => "prediction".to_string(),
                (false, 1) => name,
                (false, count) => format!("{name}_{}", count - 1),
            }
        };
        let names: Vec<String> = names.into_iter().map(name).collect();
        Ok(names.into_iter().zip(outputs).collect())
    }

    /// An input of the outermost model.
    fn input(&mut self, layer: &Value, build: Option<&Value>, several: usize) -> Parsed<Symbol> {
        let config = &layer["config"];
        let name = layer_name(layer);
        let shapes = [config.get("batch_shape"), config.get("batch_input_shape"), layer["build_config"].get("input_shape"), build];
        let Some(Value::Array(shape)) = shapes.into_iter().flatten().find(|shape| shape.is_array()) else {
            return Err(format!("the input shape is unknown: `{name}` has none (begin the model with keras.Input)"));
        };
        let row = shape.iter().skip(1).map(|dim| dim.as_u64().map(|dim| dim as usize)).collect::<Option<Vec<usize>>>();
        let Some(row) = row else {
            return Err(format!(
                "the input `{name}` has axes of unknown length ({}); save the model with a fixed input shape",
                layer["config"]["batch_shape"]
            ));
        };
        let dtype = config["dtype"].as_str().unwrap_or("float32");
        let embedded = layer["class_name"] == "Embedding";
        let column = if several == 1 { "x".to_string() } else { name.to_string() };
        let tensor = self.net.input_named(&column);
        self.inputs.push(ImportedInput {
            column,
            name: name.to_string(),
            row,
            integers: embedded || dtype.contains("int"),
            channels_first: false,
        });
        Ok(Symbol { tensor, mask: None })
    }

    /// A model inside another, or the outermost one: calls its layers. Gives its outputs and the names of the layers
    /// they come from.
    fn submodel(&mut self, config: &Value, given: &[Symbol], place: &Place) -> Parsed<(Outputs, Vec<String>)> {
        match config["class_name"].as_str() {
            Some("Sequential") => self.sequential(config, given, place),
            _ => self.functional(config, given, place),
        }
    }

    fn sequential(&mut self, config: &Value, given: &[Symbol], place: &Place) -> Parsed<(Outputs, Vec<String>)> {
        let mut numbered = Numbered::default();
        let mut current = given.to_vec();
        let mut last = String::new();
        for (index, layer) in layers_of(config)?.iter().enumerate() {
            if layer["class_name"] == "InputLayer" {
                continue;
            }
            let call = KerasCall { inputs: current.clone(), args: &[], kwargs: &Value::Null, inference: false };
            let place = self.place_of(layer, index, &mut numbered, place);
            current = self.call(layer, &call, &place)?;
            last = layer_name(layer).to_string();
        }
        Ok((current, vec![last]))
    }

    fn functional(&mut self, config: &Value, given: &[Symbol], place: &Place) -> Parsed<(Outputs, Vec<String>)> {
        let layers = layers_of(config)?;
        let mut results: HashMap<(String, usize), Outputs> = HashMap::new();
        for ((name, ..), symbol) in history_list(&config["config"]["input_layers"]).into_iter().zip(given) {
            results.insert((name, 0), vec![*symbol]);
        }
        let mut numbered = Numbered::default();
        // Models in files of Keras 2 count a call of their own first: references begin at 1.
        let mut calls: HashMap<String, usize> = HashMap::new();
        let inbound = layers.iter().map(|layer| &layer["inbound_nodes"]).chain([&config["config"]["output_layers"]]);
        for (name, node, _) in inbound.flat_map(referenced) {
            let most = calls.entry(name).or_default();
            *most = (*most).max(node + 1);
        }
        // Every call of every layer; a shared layer has several.
        let mut open: Vec<(&Value, Place, usize, &Value)> = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            let place = self.place_of(layer, index, &mut numbered, place);
            let nodes = layer["inbound_nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
            let first = calls.get(layer_name(layer)).map_or(0, |calls| calls.saturating_sub(nodes.len()));
            open.extend(nodes.iter().enumerate().map(|(node, call)| (layer, place.clone(), first + node, call)));
        }
        while !open.is_empty() {
            let before = open.len();
            let mut waiting = Vec::new();
            for (layer, place, node, inbound) in open {
                let Some(inputs) = read_symbols(inbound, &results) else {
                    waiting.push((layer, place, node, inbound));
                    continue;
                };
                let args = inbound["args"].as_array().map(Vec::as_slice).unwrap_or_default();
                let kwargs = if inbound.is_array() { legacy_kwargs(inbound) } else { &inbound["kwargs"] };
                let inference = inbound.is_array() && kwargs["training"] == Value::Bool(false);
                let outputs = match self.call(layer, &KerasCall { inputs: inputs.clone(), args, kwargs, inference }, &place) {
                    Ok(outputs) => outputs,
                    // All problems are listed at once: the graph continues with the input in its place.
                    Err(problem) => {
                        self.problems.push(problem);
                        inputs
                    }
                };
                results.insert((layer_name(layer).to_string(), node), outputs);
            }
            if waiting.len() == before {
                let names: Vec<&str> = waiting.iter().map(|(layer, ..)| layer_name(layer)).take(3).collect();
                return Err(format!("the layers {} read tensors that no layer computes", names.join(", ")));
            }
            open = waiting;
        }
        let wanted = history_list(&config["config"]["output_layers"]);
        let mut outputs = Vec::with_capacity(wanted.len());
        for (name, node, index) in &wanted {
            match results.get(&(name.clone(), *node)).and_then(|outputs| outputs.get(*index).or(outputs.first())) {
                Some(symbol) => outputs.push(*symbol),
                None => return Err(format!("the output `{name}` is not computed by any layer")),
            }
        }
        if outputs.is_empty() {
            return Err("the model has no outputs".to_string());
        }
        Ok((outputs, wanted.into_iter().map(|(name, ..)| name).collect()))
    }

    /// Where a layer of a model is.
    fn place_of(&self, layer: &Value, index: usize, numbered: &mut Numbered, model: &Place) -> Place {
        let class = layer["class_name"].as_str().unwrap_or_default();
        // Ops are no layers: they have no groups.
        let group = if is_op(layer) { String::new() } else { numbered.next(class) };
        let mut order = model.order.clone();
        order.push(index);
        Place {
            scope: model.scope.clone(),
            path: format!("{}layers/{group}", model.path),
            order,
            outermost: Some(model.outermost.clone().unwrap_or_else(|| layer_name(layer).to_string())),
            trainable: model.trainable && layer["config"]["trainable"].as_bool().unwrap_or(true),
            inference: model.inference,
        }
    }

    /// Calls a layer, an op or a model.
    fn call(&mut self, layer: &Value, call: &KerasCall<'_>, place: &Place) -> Parsed<Outputs> {
        let (name, class) = (layer_name(layer), layer["class_name"].as_str().unwrap_or_default());
        let fields = Fields { name, class, config: &layer["config"] };
        let inference = place.inference || call.inference;
        if matches!(class, "Functional" | "Sequential" | "Model") {
            let inner = Place { scope: format!("{}{name}/", place.scope), path: format!("{}/", place.path), inference, ..place.clone() };
            return self.submodel(layer, &call.inputs, &inner).map(|(outputs, _)| outputs);
        }
        let full = format!("{}{name}", place.scope);
        if is_op(layer) {
            return self.op(&fields, call, &full);
        }
        let Some(built) = self.layer(&fields, call, &full, inference)? else {
            // The identity, such as an InputLayer or dropout that is switched off.
            return Ok(call.inputs.clone());
        };
        let mask = built.mask(call);
        let inputs = built.inputs(call);
        let known = self.called.get(&full).copied();
        let tensor = self.place(&full, Arc::clone(&built.layer), &inputs, place.trainable);
        if known.is_none() {
            let outermost = place.outermost.clone().unwrap_or_default();
            let Place { order, path, trainable, .. } = place.clone();
            self.notes.extend(fields.unused(&UNUSED));
            self.pending.push(Pending { order, outermost, layer: full, path, trainable, built });
        }
        Ok(vec![Symbol { tensor, mask }])
    }

    /// Adds a layer to the network; under a name that was there before it shares its weights.
    fn place(&mut self, name: &str, layer: Arc<dyn Layer>, inputs: &[SymbolicTensor], trainable: bool) -> SymbolicTensor {
        let inputs = inputs.iter().copied();
        if let Some(first) = self.called.get(name) {
            return self.net.tie_layer(*first, layer, inputs);
        }
        let tensor = self.net.add_layer(Some(name), layer, inputs);
        if !trainable {
            self.net.freeze(tensor);
        }
        self.called.insert(name.to_string(), tensor);
        tensor
    }

    /// Adds a layer without weights.
    fn plain(&mut self, name: &str, layer: impl Layer + 'static, inputs: &[SymbolicTensor]) -> SymbolicTensor {
        self.place(name, Arc::new(layer), inputs, true)
    }

    /// Finds the tensors of all layers, in the order of layers; none in a bare configuration.
    fn tensors(&mut self, source: &Weights) -> Parsed<Vec<Vec<Tensor>>> {
        self.pending.sort_by(|a, b| a.order.cmp(&b.order));
        match source {
            Weights::None => Ok(Vec::new()),
            Weights::Paths(file) => {
                let of = |pending: &Pending| {
                    let tensor = |(slot, _): &(String, bool)| {
                        let path = format!("{}/{slot}", pending.path);
                        file.dataset(&path).cloned().ok_or_else(|| format!("`{}`: the file has no weight at `{path}`", pending.layer))
                    };
                    pending.built.slots.iter().map(tensor).collect::<Parsed<Vec<Tensor>>>()
                };
                self.pending.iter().map(of).collect()
            }
            Weights::Legacy(file) => {
                let mut tensors = Vec::with_capacity(self.pending.len());
                for own in self.pending.chunk_by(|a, b| a.outermost == b.outermost) {
                    let name = &own[0].outermost;
                    let stored = file.of(name);
                    // Trainable weights of all layers come first.
                    let flags: Vec<bool> = own.iter().flat_map(Pending::trained).collect();
                    if flags.len() != stored.len() {
                        return Err(format!("`{name}`: the file has {} weights, but the layer has {}", stored.len(), flags.len()));
                    }
                    let trainable = flags.iter().filter(|flag| **flag).count();
                    let (mut first, mut second) = (0, trainable);
                    let mut order = flags.iter().map(|flag| {
                        let next = if *flag { &mut first } else { &mut second };
                        *next += 1;
                        *next - 1
                    });
                    for pending in own {
                        let indices = order.by_ref().take(pending.built.slots.len());
                        tensors.push(indices.map(|index| stored[index].1.clone()).collect());
                    }
                }
                Ok(tensors)
            }
        }
    }
}

impl Pending {
    /// Whether each of its weights is trained.
    fn trained(&self) -> impl Iterator<Item = bool> {
        self.built.slots.iter().map(|(_, trained)| *trained && self.trainable)
    }
}

/// The weights of layers from those of Keras.
fn assembled(layers: &[(&Pending, Vec<Tensor>)]) -> ImportedWeights {
    let mut weights = ImportedWeights::default();
    for (pending, tensors) in layers {
        let made: Vec<(String, Assembly)> = (pending.built.assemble)(tensors);
        made.into_iter().for_each(|(name, weight)| weights.insert(format!("{}/{name}", pending.layer), weight));
    }
    weights
}

/// Settings of layers that have no counterpart.
const UNUSED: [&str; 8] = [
    "kernel_constraint",
    "bias_constraint",
    "depthwise_constraint",
    "pointwise_constraint",
    "bias_regularizer",
    "activity_regularizer",
    "recurrent_regularizer",
    "embeddings_constraint",
];

fn layers_of(config: &Value) -> Parsed<&[Value]> {
    match &config["config"] {
        // The oldest files have a list in place of a table.
        Value::Array(layers) => Ok(layers),
        table => table["layers"].as_array().map(Vec::as_slice).ok_or_else(|| "the configuration has no list of layers".to_string()),
    }
}

fn layer_name(layer: &Value) -> &str {
    layer["config"]["name"].as_str().or(layer["name"].as_str()).unwrap_or("unnamed")
}

/// Whether a node of the graph is an operation such as `x + y`, not a layer. Legacy files have no modules; layers have
/// a type there.
fn is_op(layer: &Value) -> bool {
    match layer["module"].as_str() {
        Some(module) => module.starts_with("keras.src.ops") || module.starts_with("keras.ops"),
        None => {
            let config = &layer["config"];
            config.is_object() && ["trainable", "dtype", "layers"].iter().all(|key| config.get(key).is_none())
        }
    }
}

/// Layer, call and output of tensors: `["dense", 0, 0]` or a list of those.
fn history_list(value: &Value) -> Vec<(String, usize, usize)> {
    match (history(value), value) {
        (Some(one), _) => vec![one],
        (None, Value::Array(items)) => items.iter().flat_map(history_list).collect(),
        (None, Value::Object(fields)) => fields.values().flat_map(history_list).collect(),
        _ => Vec::new(),
    }
}

fn history(value: &Value) -> Option<(String, usize, usize)> {
    match value.as_array().map(Vec::as_slice) {
        Some([Value::String(name), node, index, ..]) => Some((name.clone(), node.as_u64()? as usize, index.as_u64()? as usize)),
        _ => None,
    }
}

/// The tensors that a call reads, in order, with the masks that it names; none if one is not computed yet.
fn read_symbols(inbound: &Value, results: &HashMap<(String, usize), Outputs>) -> Option<Vec<Symbol>> {
    let find = |(name, node, index): (String, usize, usize)| results.get(&(name, node))?.get(index).copied();
    let all = |value: &Value| referenced(value).into_iter().map(find).collect::<Option<Vec<Symbol>>>();
    if inbound.is_array() {
        return all(inbound);
    }
    let kwargs = inbound["kwargs"].as_object();
    let mut found = all(&inbound["args"])?;
    // The arguments of attention, in its order, then others.
    let known = ["query", "value", "key"];
    let others = kwargs.into_iter().flatten().map(|(key, _)| key.as_str()).filter(|key| !known.contains(key) && !key.ends_with("mask"));
    for key in known.into_iter().chain(others) {
        found.extend(all(&inbound["kwargs"][key])?);
    }
    for (key, index) in [("mask", 0), ("query_mask", 0), ("value_mask", 1), ("key_mask", 2)] {
        let Some(value) = kwargs.and_then(|kwargs| kwargs.get(key)) else { continue };
        let masks = all(value)?;
        if let (Some(input), [] | [_]) = (found.get_mut(index), &masks[..]) {
            input.mask = masks.first().map(|mask| mask.tensor);
        }
    }
    Some(found)
}

/// Every tensor that stands in a value, in order.
fn referenced(value: &Value) -> Vec<(String, usize, usize)> {
    match value {
        Value::Object(_) if value["class_name"] == "__keras_tensor__" => history(&value["config"]["keras_history"]).into_iter().collect(),
        Value::Object(fields) => fields.values().flat_map(referenced).collect(),
        Value::Array(items) => history(value).map_or_else(|| items.iter().flat_map(referenced).collect(), |one| vec![one]),
        _ => Vec::new(),
    }
}

/// The arguments by name of a call in a file of Keras 2.
fn legacy_kwargs(inbound: &Value) -> &Value {
    let first = inbound.as_array().and_then(|list| list.first());
    first.and_then(|entry| entry.get(3)).unwrap_or(&Value::Null)
}
