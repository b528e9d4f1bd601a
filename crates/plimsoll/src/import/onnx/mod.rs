//! ONNX graphs as models of [`nn`](crate::nn): every node becomes a layer, or numbers that are known at import.
//!
//! Images are `[batch, channels, height, width]` in the file and have their channels last in memory here. Each tensor
//! carries the order of its axes in memory, so a transposition in the file only changes that order; elements move where
//! an operator needs another one.

mod call;
mod fold;
mod layer;
mod layout;
mod ops;
mod split_attention;
#[cfg(test)]
mod tests;
mod values;

use super::{Assembly, Imported, ImportedInput, ImportedWeights};
use crate::nn::{Functional, Layer, Lowering, SymbolicTensor};
use call::NodeCall;
use layer::NodeLayer;
use plimsoll_core::graph::Init;
use plimsoll_core::shape::{Dim, Shape, TensorType};
use plimsoll_core::{Bytes, DType, Graph, GraphError, ValueId};
use plimsoll_formats::onnx::{Dim as FileDim, Node, OnnxModel, ValueInfo};
use plimsoll_formats::tensor::{DType as FileType, Tensor};
use split_attention::SplitAttention;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use values::{Computed, Constant, ElementKind, Found, LARGEST_CONSTANT, Value, Weight, is_identity};

#[cfg(test)]
pub(crate) use ops::names as operators;

/// The versions of ONNX' operator set that are read.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=27;

/// Larger numbers in a constant that is added or multiplied are those of a mask, which is not trained.
const LARGEST_WEIGHT: f32 = 1e4;

/// Dimensions of a tensor.
const MOST_DIMENSIONS: usize = 64;

/// Elements of a row of an input.
const LARGEST_ROW: usize = 1 << 40;

/// Bytes of all constants that are kept in memory until a run starts.
const MOST_CONSTANTS: usize = 16 << 20;

/// The shapes of the inputs.
pub(super) enum Shapes {
    /// As declared; the first dimension is the batch.
    Declared,
    /// These, none of which depends on a batch.
    #[cfg(test)]
    Exact(BTreeMap<String, Vec<usize>>),
}

pub(super) struct OnnxImporter {
    /// None while constants are folded.
    net: Option<Functional>,
    /// All layers so far, to infer shapes.
    graph: Graph,
    /// While constants are folded: the elements of the graph's inputs.
    held: Vec<Vec<f64>>,
    values: HashMap<String, Value>,
    /// Names that a node reads, or that are outputs, with how often.
    uses: HashMap<String, usize>,
    weights: ImportedWeights,
    /// The layers of weights that are not part of another layer.
    weight_layers: HashMap<String, Computed>,
    /// Tensors in another order of axes.
    reordered: HashMap<(ValueId, Vec<usize>), Computed>,
    names: HashSet<String>,
    /// The name of the current node, and its domain of layer names.
    current: String,
    /// The size of the batch that the file has fixed.
    file_batch: Option<usize>,
    /// Bias nodes that the product before them includes, by the name of that product's output.
    fused_bias: HashMap<String, FusedBias>,
    /// Attentions of several steps, by the product that ends them.
    split_attentions: HashMap<String, SplitAttention>,
    constants_kept: usize,
    opset: i64,
}

/// The addition behind a product.
struct FusedBias {
    bias: String,
    result: String,
}

/// The model of a file, or everything about it that cannot be imported.
pub(super) fn model(saved: &OnnxModel, title: &str) -> Result<Imported, Vec<String>> {
    let mut importer = OnnxImporter::new(saved, title).map_err(|problem| vec![problem])?;
    let mut problems = Vec::new();
    let inputs = match importer.inputs(saved, &Shapes::Declared, &BTreeMap::new()) {
        Ok(inputs) => inputs,
        Err(problem) => {
            problems.push(problem);
            Vec::new()
        }
    };
    importer.nodes(saved, &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    let outputs = importer.outputs(saved).map_err(|problem| vec![problem])?;
    let named: Vec<(&str, SymbolicTensor)> = outputs.iter().filter_map(|(name, output)| Some((name.as_str(), output.symbol?))).collect();
    let net = importer.net.take().expect("a model is being built");
    let heap = super::heap_of(saved.metadata_bytes) + Bytes(importer.constants_kept as u64);
    let model = net.build_many(named).without_unused_layers();
    Ok(Imported { model, inputs, optimizer: None, losses: None, notes: Vec::new(), weights: importer.weights, optimizer_state: None, heap })
}

impl OnnxImporter {
    fn new(saved: &OnnxModel, title: &str) -> Found<OnnxImporter> {
        let opset = saved.opsets.get("").copied().unwrap_or(1);
        if !OPSETS.contains(&opset) {
            return Err(format!("it has version {opset} of ONNX' operators; versions 7 to 27 are read"));
        }
        let mut uses: HashMap<String, usize> = HashMap::new();
        // PyTorch writes equal weights once, and the others as their identity: those are weights of their own.
        let nodes = saved.graph.nodes.iter().filter(|node| node.op != "Identity");
        let read = nodes.flat_map(|node| &node.inputs).chain(saved.graph.outputs.iter().map(|output| &output.name));
        read.for_each(|name| *uses.entry(name.clone()).or_default() += 1);
        Ok(OnnxImporter {
            net: Some(Functional::new(title)),
            graph: Graph::new(),
            held: Vec::new(),
            values: HashMap::new(),
            uses,
            weights: ImportedWeights::default(),
            weight_layers: HashMap::new(),
            reordered: HashMap::new(),
            names: HashSet::new(),
            current: String::new(),
            file_batch: None,
            fused_bias: HashMap::new(),
            split_attentions: HashMap::new(),
            constants_kept: 0,
            opset,
        })
    }

    /// Declares inputs and initializers.
    fn inputs(&mut self, saved: &OnnxModel, shapes: &Shapes, constants: &BTreeMap<String, Tensor>) -> Found<Vec<ImportedInput>> {
        let graph = &saved.graph;
        for (name, tensor) in graph.initializers.iter().chain(constants) {
            let value = self.initializer(name, tensor).map_err(|problem| format!("the initializer `{name}`: {problem}"))?;
            self.values.insert(name.clone(), value);
        }
        let given: Vec<&ValueInfo> = graph.inputs.iter().filter(|input| !self.values.contains_key(&input.name)).collect();
        let several = given.len() > 1;
        let mut inputs = Vec::with_capacity(given.len());
        for info in given {
            let name = &info.name;
            let Some(dtype) = info.dtype else {
                return Err(format!("the input `{name}` is not a tensor of numbers; sequences, optionals and strings are not imported"));
            };
            let dims = match shapes {
                Shapes::Declared => self.declared(info)?,
                #[cfg(test)]
                Shapes::Exact(known) => known[name].iter().map(|dim| Dim::fixed(*dim)).collect(),
            };
            let kind = ElementKind::of(dtype);
            let stored = if kind == ElementKind::Float { DType::F32 } else { DType::I32 };
            let column = if several { name.clone() } else { "x".to_string() };
            let value = self.graph.input(&column, TensorType::new(stored, Shape::new(dims.iter().copied())));
            let symbol = self.net.as_mut().map(|net| net.input_named(&column));
            let order = (0..dims.len()).collect();
            let mut tensor = Computed { symbol, value, order, kind, raw: true };
            let row: Vec<usize> = dims.iter().skip(1).map(|dim| dim.factor()).collect();
            let image =
                matches!(shapes, Shapes::Declared) && dims.len() == 4 && kind == ElementKind::Float && reaches_window(&graph.nodes, name);
            if image {
                self.current = format!("{}_layout", clean(name));
                tensor = self.image(&tensor, &row)?;
            }
            self.values.insert(name.clone(), tensor.into());
            inputs.push(ImportedInput { column, name: name.clone(), row, integers: kind != ElementKind::Float, channels_first: image });
        }
        Ok(inputs)
    }

    /// The shape of an input as declared, with the batch first.
    fn declared(&mut self, info: &ValueInfo) -> Found<Vec<Dim>> {
        let name = &info.name;
        let Some([batch, row @ ..]) = info.shape.as_deref() else {
            return Err(format!("the input `{name}` has no batch dimension, or an unknown rank"));
        };
        if let FileDim::Fixed(size) = batch {
            let size = usize::try_from(*size).unwrap_or(0);
            if self.file_batch.is_some_and(|known| known != size) {
                return Err(format!("the first dimensions of the inputs differ (`{name}` has {size}), so they are not the batch"));
            }
            self.file_batch = Some(size);
        }
        let mut dims = vec![Dim::BATCH];
        for dim in row {
            match dim {
                FileDim::Fixed(size @ 1..=0xFFFF_FFFF) => dims.push(Dim::fixed(*size as usize)),
                FileDim::Fixed(size) => return Err(format!("the input `{name}` has an axis of length {size}")),
                FileDim::Symbolic(_) => {
                    let text: Vec<String> = info.shape.iter().flatten().map(dim_text).collect();
                    let shape = text.join(", ");
                    return Err(format!("the input `{name}` has axes of unknown length ([{shape}]); export the model with a fixed shape"));
                }
            }
        }
        let elements = Shape::new(dims.iter().copied()).elements().factor();
        if elements > LARGEST_ROW || dims.len() > MOST_DIMENSIONS {
            return Err(format!("a row of the input `{name}` has {elements} elements in {} dimensions", dims.len()));
        }
        Ok(dims)
    }

    fn initializer(&mut self, name: &str, tensor: &Tensor) -> Found<Value> {
        let elements = tensor.elements() as usize;
        let kind = ElementKind::of(tensor.dtype);
        // An empty tensor may claim any other dimensions.
        let extents = tensor.shape.iter().fold(1, |all: u64, dim| all.saturating_mul((*dim).max(1)));
        if extents > LARGEST_ROW as u64 || tensor.shape.len() > MOST_DIMENSIONS {
            return Err(format!("it has the shape {:?}", tensor.shape));
        }
        if elements <= LARGEST_CONSTANT && (kind != ElementKind::Float || elements <= 1) {
            return self.counted(call::read(tensor)?);
        }
        let stored: Vec<usize> = tensor.shape.iter().map(|dim| *dim as usize).collect();
        let order = (0..stored.len()).collect();
        Ok(Value::Weight(Weight { name: name.to_string(), tensor: tensor.clone(), stored, order }))
    }

    /// Counts a constant that is held.
    fn counted(&mut self, constant: Constant) -> Found<Value> {
        self.constants_kept = self.constants_kept.saturating_add(constant.numbers.len() * 8);
        if self.constants_kept > MOST_CONSTANTS {
            return Err(format!("constants that nodes compute take more than {} MiB", MOST_CONSTANTS >> 20));
        }
        Ok(Value::Constant(constant))
    }

    /// Maps all nodes; everything that cannot be imported is added to `problems`.
    fn nodes(&mut self, saved: &OnnxModel, problems: &mut Vec<String>) {
        self.find_biases(&saved.graph.nodes);
        self.find_attentions(&saved.graph.nodes);
        for node in &saved.graph.nodes {
            self.opset = saved.opsets.get(&node.domain).copied().unwrap_or(self.opset);
            let Some(mapping) = ops::find(node) else {
                problems.push(format!("`{}` ({}): {}", title(node), node.op, ops::why_not(node, saved)));
                continue;
            };
            let inputs: Option<Vec<Option<Value>>> = node
                .inputs
                .iter()
                .map(|name| if name.is_empty() { Some(None) } else { self.values.get(name).cloned().map(Some) })
                .collect();
            // A node behind one that cannot be imported has no inputs; it is not a problem of its own.
            let Some(inputs) = inputs else {
                let unknown = |name: &&String| !name.is_empty() && !self.values.contains_key(*name);
                if problems.is_empty() {
                    let name = node.inputs.iter().find(unknown).cloned().unwrap_or_default();
                    problems.push(format!("`{}` ({}): nothing computes its input `{name}`", title(node), node.op));
                }
                continue;
            };
            if node.outputs.iter().all(|name| self.values.contains_key(name)) && !node.outputs.is_empty() {
                // A bias that the product before it has included.
                continue;
            }
            self.current = title(node);
            let call = NodeCall { node, opset: self.opset, inputs };
            match self.map(&call, mapping) {
                Ok(outputs) => {
                    for (name, value) in node.outputs.iter().zip(outputs).filter(|(name, _)| !name.is_empty()) {
                        self.values.insert(name.clone(), value);
                    }
                }
                Err(problem) => problems.push(format!("`{}` ({}): {problem}", self.current, node.op)),
            }
        }
    }

    fn map(&mut self, call: &NodeCall<'_>, mapping: ops::Mapping) -> Found<Vec<Value>> {
        if let Some(folded) = self.folded(call, mapping)? {
            return Ok(folded);
        }
        mapping(self, call)
    }

    /// The outputs by name, as stored in the file.
    fn outputs(&mut self, saved: &OnnxModel) -> Found<Vec<(String, Computed)>> {
        let single = saved.graph.outputs.len() == 1;
        let mut outputs = Vec::new();
        for info in &saved.graph.outputs {
            let value = self.values.get(&info.name).cloned().ok_or_else(|| format!("nothing computes the output `{}`", info.name))?;
            self.current = clean(&info.name);
            let tensor = self.computed(&value)?;
            let mut tensor = self.plain(&tensor)?;
            if tensor.raw {
                tensor = self.node("identity", &[&tensor], |g, x| g.cast(x[0], DType::F32))?;
            }
            outputs.push((if single { "prediction".to_string() } else { clean(&info.name) }, tensor));
        }
        if outputs.is_empty() {
            return Err("the model has no outputs".to_string());
        }
        Ok(outputs)
    }

    /// Finds additions of a vector behind a product with a matrix of the file: both are one fully connected layer.
    fn find_biases(&mut self, nodes: &[Node]) {
        let products: HashMap<&str, &Node> = nodes
            .iter()
            .filter(|node| node.op == "MatMul" && node.outputs.len() == 1 && self.uses.get(&node.outputs[0]) == Some(&1))
            .map(|node| (node.outputs[0].as_str(), node))
            .collect();
        for node in nodes.iter().filter(|node| node.op == "Add" && node.inputs.len() == 2 && node.outputs.len() == 1) {
            for (product, bias) in [(0, 1), (1, 0)] {
                let (product, bias) = (&node.inputs[product], &node.inputs[bias]);
                let Some(before) = products.get(product.as_str()) else { continue };
                let matrix = before.inputs.get(1).and_then(|name| self.values.get(name));
                let (Some(Value::Weight(matrix)), Some(Value::Weight(vector))) = (matrix, self.values.get(bias)) else { continue };
                let fits = matrix.stored.len() == 2 && vector.stored.len() == 1 && matrix.stored[1] == vector.stored[0];
                if fits && self.uses.get(&matrix.name) == Some(&1) && self.uses.get(&vector.name) == Some(&1) {
                    let fused = FusedBias { bias: bias.clone(), result: node.outputs[0].clone() };
                    self.fused_bias.insert(product.clone(), fused);
                }
            }
        }
    }

    /// A name for a layer that no other one has.
    fn unique(&mut self, name: &str) -> String {
        let mut unique = name.to_string();
        let mut number = 1;
        while !self.names.insert(unique.clone()) {
            unique = format!("{name}_{number}");
            number += 1;
        }
        unique
    }

    /// Adds a layer under a name.
    fn layer(&mut self, name: &str, layer: Arc<dyn Layer>, inputs: &[&Computed]) -> Found<Computed> {
        let name = self.unique(name);
        let mut read = Vec::with_capacity(inputs.len());
        for input in inputs {
            let real = input.raw && !layer.reads_integers();
            read.push(if real { self.graph.cast(input.value, DType::F32).map_err(words)? } else { input.value });
        }
        let lower = |graph: &mut Graph| layer.lower(&mut Lowering::to_infer(graph, &name, &mut Vec::new(), &mut Vec::new()), &read);
        let value = self.graph.in_scope(&name, lower).map_err(words)?;
        let symbol = match &mut self.net {
            Some(net) => {
                let symbols = inputs.iter().filter_map(|input| input.symbol).collect::<Vec<_>>();
                Some(net.add_layer(Some(&name), layer, symbols))
            }
            None => None,
        };
        let rank = self.graph.shape(value).rank();
        if rank > MOST_DIMENSIONS {
            return Err(format!("its result has {rank} dimensions"));
        }
        Ok(Computed { symbol, value, order: (0..rank).collect(), kind: ElementKind::Float, raw: false })
    }

    /// Adds a layer without weights, named after the current node.
    fn node(
        &mut self,
        kind: &'static str,
        inputs: &[&Computed],
        lower: impl Fn(&mut Graph, &[ValueId]) -> Result<ValueId, GraphError> + Send + Sync + 'static,
    ) -> Found<Computed> {
        let layer = NodeLayer::new(kind, move |lowering: &mut Lowering<'_>, inputs: &[ValueId]| lower(lowering.graph, inputs));
        let name = self.current.clone();
        self.layer(&name, Arc::new(layer), inputs)
    }

    /// A value as a tensor of the model.
    fn computed(&mut self, value: &Value) -> Found<Computed> {
        match value {
            Value::Tensor(tensor) => Ok(tensor.clone()),
            Value::Constant(constant) => self.constant_tensor(constant),
            Value::Weight(weight) => {
                let stored = match self.weight_layers.get(&weight.name) {
                    Some(known) => known.clone(),
                    None => self.weight_layer(weight)?,
                };
                // The elements are those of the file; a reshaped weight has other axes.
                let target = Shape::fixed(weight.stored.iter().copied());
                let tensor = match *self.graph.shape(stored.value) == target {
                    true => stored,
                    false => self.node("reshape", &[&stored], move |g, x| g.reshape(x[0], target.clone()))?,
                };
                Ok(tensor.laid_out(values::inverse(&weight.order)).of(ElementKind::of(weight.tensor.dtype)))
            }
        }
    }

    /// A weight by itself.
    fn weight_layer(&mut self, weight: &Weight) -> Found<Computed> {
        let trainable = ElementKind::of(weight.tensor.dtype) == ElementKind::Float && !is_mask(&weight.tensor)?;
        let dims: Vec<usize> = weight.tensor.shape.iter().map(|dim| *dim as usize).collect();
        let name = self.unique_weight(&weight.name);
        self.weights.insert(format!("{name}/weight"), Assembly::Whole(weight.tensor.clone()));
        let lower = move |lowering: &mut Lowering<'_>, _: &[ValueId]| match trainable {
            true => lowering.parameter("weight", dims.iter().copied(), Init::Constant(0.0)),
            false => lowering.statistic("weight", dims.iter().copied(), Init::Constant(0.0)),
        };
        let tensor = self.layer(&name, Arc::new(NodeLayer::new("weight", lower)), &[])?;
        self.weight_layers.insert(weight.name.clone(), tensor.clone());
        Ok(tensor)
    }

    /// The name that the layer of a weight will have.
    fn unique_weight(&mut self, name: &str) -> String {
        let name = self.unique(&clean(name));
        self.names.remove(&name);
        name
    }

    /// A constant as a tensor of the model: one number everywhere, or a fixed weight.
    fn constant_tensor(&mut self, constant: &Constant) -> Found<Computed> {
        let dims = constant.dims.clone();
        if self.net.is_none() {
            let value = self.graph.input("constant", TensorType::f32(Shape::fixed(dims.iter().copied())));
            self.held.push(constant.fixed()?.to_vec());
            let order = (0..dims.len()).collect();
            return Ok(Computed { symbol: None, value, order, kind: constant.kind, raw: false });
        }
        let name = format!("{}_constant", self.current);
        if let Some(number) = constant.uniform() {
            let lower =
                move |lowering: &mut Lowering<'_>, _: &[ValueId]| lowering.graph.full(number as f32, Shape::fixed(dims.iter().copied()));
            return Ok(self.layer(&name, Arc::new(NodeLayer::new("constant", lower)), &[])?.of(constant.kind));
        }
        let bytes: Vec<u8> = constant.fixed()?.iter().flat_map(|number| (*number as f32).to_le_bytes()).collect();
        self.constants_kept = self.constants_kept.saturating_add(bytes.len());
        if self.constants_kept > MOST_CONSTANTS {
            return Err(format!("constants that nodes compute take more than {} MiB", MOST_CONSTANTS >> 20));
        }
        let shape = dims.iter().map(|dim| *dim as u64).collect();
        let tensor = Tensor::in_memory(FileType::F32, shape, bytes).map_err(|error| error.to_string())?;
        let name = self.unique_weight(&name);
        self.weights.insert(format!("{name}/value"), Assembly::Whole(tensor));
        let lower =
            move |lowering: &mut Lowering<'_>, _: &[ValueId]| lowering.statistic("value", dims.iter().copied(), Init::Constant(0.0));
        Ok(self.layer(&name, Arc::new(NodeLayer::new("constant", lower)), &[])?.of(constant.kind))
    }

    /// Inserts a weight of a layer that will have this name: the elements of a weight of the file, with permuted axes.
    fn insert_weight(&mut self, layer: &str, own: &str, weight: &Weight, order: &[usize]) {
        let permuted = weight.permuted(order);
        let assembly = match is_identity(&permuted.order) {
            true => Assembly::Whole(permuted.tensor),
            false => Assembly::Permuted { stored: permuted.stored.clone(), order: permuted.order.clone(), tensor: permuted.tensor },
        };
        self.weights.insert(format!("{layer}/{own}"), assembly);
    }

    /// A weight that only this node reads, so that its layer can own it.
    fn own_weight(&self, value: Option<&Value>, rank: usize) -> Option<Weight> {
        match value {
            Some(Value::Weight(weight)) if weight.order.len() == rank && self.uses.get(&weight.name) == Some(&1) => Some(weight.clone()),
            _ => None,
        }
    }

    /// The dimensions of a tensor in the file's graph.
    fn dims(&self, tensor: &Computed) -> Vec<Dim> {
        let stored = self.graph.shape(tensor.value).dims();
        values::inverse(&tensor.order).iter().map(|place| stored[*place]).collect()
    }

    /// The dimensions of any value.
    fn shape_of(&self, value: &Value) -> Vec<Dim> {
        match value {
            Value::Constant(constant) => constant.dims.iter().map(|dim| Dim::fixed(*dim)).collect(),
            Value::Weight(weight) => weight.dims().into_iter().map(Dim::fixed).collect(),
            Value::Tensor(tensor) => self.dims(tensor),
        }
    }
}

/// Whether a constant is a mask: it has numbers that no weight has.
fn is_mask(tensor: &Tensor) -> Found<bool> {
    let mut piece = [0.0; 4 << 10];
    let mut reader = tensor.reader();
    let (mut at, all) = (0, tensor.elements());
    while at < all {
        let count = (all - at).min(piece.len() as u64) as usize;
        reader.f32s(at, &mut piece[..count]).map_err(|error| error.to_string())?;
        if piece[..count].iter().any(|number| !number.is_finite() || number.abs() > LARGEST_WEIGHT) {
            return Ok(true);
        }
        at += count as u64;
    }
    Ok(false)
}

/// Whether a tensor reaches a convolution or a pooling through operators that work on every element by itself.
fn reaches_window(nodes: &[Node], name: &str) -> bool {
    let mut reached: HashSet<&str> = HashSet::from([name]);
    for node in nodes {
        if !node.inputs.iter().take(1).any(|input| reached.contains(input.as_str())) {
            continue;
        }
        match node.op.as_str() {
            "Conv" | "MaxPool" | "AveragePool" | "ConvTranspose" | "GlobalAveragePool" | "GlobalMaxPool" => return true,
            "Add" | "Sub" | "Mul" | "Div" | "Identity" | "Cast" | "Clip" | "BatchNormalization" | "InstanceNormalization" | "Pad" => {
                reached.extend(node.outputs.iter().map(String::as_str));
            }
            _ => {}
        }
    }
    false
}

fn words(error: GraphError) -> String {
    error.what
}

fn dim_text(dim: &FileDim) -> String {
    match dim {
        FileDim::Fixed(size) => size.to_string(),
        FileDim::Symbolic(name) if name.is_empty() => "?".to_string(),
        FileDim::Symbolic(name) => name.clone(),
    }
}

/// The name of a node.
fn title(node: &Node) -> String {
    let name = [&node.name].into_iter().chain(&node.outputs).find(|name| !name.is_empty());
    name.map_or_else(|| node.op.to_lowercase(), |name| clean(name))
}

/// A name of the file as the name of a layer or an output.
fn clean(name: &str) -> String {
    let name: String = name.chars().map(|letter| if letter.is_whitespace() || letter.is_control() { '_' } else { letter }).collect();
    let name = name.trim_matches('/').replace("//", "/");
    if name.is_empty() { "unnamed".to_string() } else { name }
}

/// The layer that a weight belongs to, by its name: `layer1.0.conv1` for `layer1.0.conv1.weight`.
fn owner(weight: &str) -> Option<String> {
    let (layer, last) = weight.rsplit_once(['.', '/'])?;
    matches!(last, "weight" | "kernel" | "W" | "w").then(|| clean(layer)).filter(|name| name != "unnamed")
}
