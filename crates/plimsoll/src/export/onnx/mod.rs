//! The prediction graph of a network as an ONNX model: one rule per op. Batch normalization is folded, dropout is gone,
//! the batch is symbolic, and images have their channels first between the convolutions.

mod attention;
mod builder;
mod convolution;
mod pointwise;
mod recurrent;

use super::recipe::Recipe;
use super::walk::{ExportProblem, GraphWalk};
use super::{TrainedNetwork, fold};
use crate::error::{Error, Result};
use crate::files;
use builder::{FIRST_AXIS, GraphBuilder, ImageLayout, stored};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::{Gather, MatMul, Reshape};
use plimsoll_core::passes::remove_dead;
use plimsoll_core::{DType, Graph, Op, TensorType, ValueId};
use plimsoll_formats::onnx::{self, Attribute, Dim, OnnxModel, ValueInfo, WriteOptions, WrittenTensor};
use plimsoll_formats::tensor::{DType as Stored, Tensor};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// A version of the ONNX operator set that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opset {
    /// Opset 18 with version 8 of the file format: read by every runtime since 2023.
    #[default]
    V18,
    /// Opset 23 with version 11 of the file format.
    V23,
}

impl Opset {
    fn versions(self) -> (i64, i64) {
        match self {
            Opset::V18 => (18, 8),
            Opset::V23 => (23, 11),
        }
    }
}

/// Weights of this many bytes and more are written to a file of their own: an ONNX file has at most 2 GiB.
const EXTERNAL_FROM: u64 = (2 << 30) - (64 << 20);

/// An ONNX model whose weights are not written yet.
pub(super) struct Converted {
    model: OnnxModel,
    weights: Vec<(WrittenTensor, Recipe)>,
}

struct Exporter<'a> {
    builder: GraphBuilder<'a>,
    walk: GraphWalk<'a>,
}

/// Converts a network, or lists all nodes that ONNX has no counterpart for.
pub(super) fn convert(network: &TrainedNetwork, opset: Opset) -> Result<Converted> {
    let (mut graph, lowered) = network.model.graph(&network.types(), false)?;
    for (name, output) in network.model.outputs().zip(&lowered.outputs) {
        graph.output(name, output.value);
    }
    let graph = remove_dead(&graph);
    let mut exporter = Exporter::new(&graph, &network.weights);
    let (mut inputs, mut problems) = (Vec::new(), Vec::new());
    for (_, node) in graph.nodes() {
        if exporter.builder.is_defined(node.outputs[0]) || exporter.walk.folded.contains(&node.outputs[0]) {
            continue;
        }
        if let Op::Input(id) = node.op {
            let name = exporter.builder.unique(&network.inputs[id.0 as usize].name);
            inputs.push(value_info(&name, graph.ty(node.outputs[0])));
            exporter.builder.define(node.outputs[0], ImageLayout::Plain, name);
            continue;
        }
        exporter.builder.scope = node.scope.to_string();
        match exporter.node(node) {
            Ok(()) => {}
            Err(ExportProblem::Failed(error)) => return Err(error),
            Err(ExportProblem::Unsupported(what)) => {
                problems.push(format!("`{}`: {what}", node.scope));
                // What follows is read too, so that all of it is listed.
                for value in &node.outputs {
                    exporter.builder.define(*value, ImageLayout::Plain, String::new());
                }
            }
        }
    }
    if !problems.is_empty() {
        problems.dedup();
        return Err(Error::Config(format!("ONNX has no counterpart for:\n  {}", problems.join("\n  "))));
    }
    let mut outputs = Vec::new();
    exporter.builder.scope = String::new();
    for (name, value) in graph.outputs() {
        let found = exporter.read(*value);
        let named = exporter.builder.unique(name);
        let identity = onnx::Node {
            name: exporter.builder.unique(&format!("output/{name}")),
            op: "Identity".to_string(),
            inputs: vec![found],
            outputs: vec![named.clone()],
            ..onnx::Node::default()
        };
        exporter.builder.nodes.push(identity);
        outputs.push(value_info(&named, graph.ty(*value)));
    }
    let GraphBuilder { nodes, mut constants, mut weights, .. } = exporter.builder;
    let nodes = without_dead(without_identities(nodes), &outputs);
    let read: HashSet<&str> = nodes.iter().flat_map(|node| &node.inputs).map(String::as_str).collect();
    constants.retain(|name, _| read.contains(name.as_str()));
    weights.retain(|(weight, _)| read.contains(weight.name.as_str()));
    let (version, ir_version) = opset.versions();
    let graph = onnx::Graph { name: network.model.title().to_string(), nodes, initializers: constants, inputs, outputs };
    let model = OnnxModel {
        ir_version,
        producer: "plimsoll".to_string(),
        opsets: BTreeMap::from([(String::new(), version)]),
        metadata: network.metadata.clone(),
        graph,
        functions: Vec::new(),
        metadata_bytes: 0,
    };
    Ok(Converted { model, weights })
}

impl Converted {
    /// The model with zeros for weights.
    pub fn without_data(self) -> OnnxModel {
        let mut model = self.model;
        let zeros = |(weight, _): (WrittenTensor, Recipe)| (weight.name, Tensor::zeros(weight.dtype, weight.shape));
        model.graph.initializers.extend(self.weights.into_iter().map(zeros));
        model
    }

    /// Writes the model; large weights to `NAME.data` beside it. Gives the name of that file.
    pub fn write(&self, network: &TrainedNetwork, path: &Path) -> Result<Option<String>> {
        self.write_within(network, path, EXTERNAL_FROM)
    }

    /// The same with weights of `limit` bytes and more in a file of their own.
    pub fn write_within(&self, network: &TrainedNetwork, path: &Path, limit: u64) -> Result<Option<String>> {
        let weights: Vec<WrittenTensor> = self.weights.iter().map(|(written, _)| written.clone()).collect();
        let bytes: u64 = weights.iter().map(WrittenTensor::bytes).sum();
        let external = (bytes >= limit).then(|| format!("{}.data", path.file_name().unwrap_or_default().to_string_lossy()));
        let recipes: HashMap<&str, &Recipe> = self.weights.iter().map(|(written, recipe)| (written.name.as_str(), recipe)).collect();
        let mut failed = None;
        let mut data = |weight: &WrittenTensor, out: &mut dyn Write| match recipes[weight.name.as_str()].write(&network.weights, out) {
            Ok(written) => written,
            Err(error) => {
                failed = Some(error);
                Err(io::Error::other("a weight cannot be read"))
            }
        };
        let options = WriteOptions { external: external.clone() };
        let about = |path: &Path| {
            let path = path.to_path_buf();
            move |source| Error::Io { action: "write", path, source }
        };
        let mut written = Ok(());
        if let Some(name) = &external {
            let beside = path.with_file_name(name);
            written = files::replace(&beside, |file| {
                let mut out = BufWriter::new(file);
                onnx::external_file(&weights, &mut out, &mut data).and_then(|()| out.flush()).map_err(about(&beside))
            });
        }
        let written = written.and_then(|()| {
            files::replace(path, |file| {
                let mut out = BufWriter::new(file);
                onnx::write(&self.model, &weights, &options, &mut out, &mut data).and_then(|()| out.flush()).map_err(about(path))
            })
        });
        match failed {
            Some(error) => Err(error),
            None => written.map(|()| external),
        }
    }
}

/// Gives graph outputs to the nodes that compute them, where the only reader is the output.
fn without_identities(nodes: Vec<onnx::Node>) -> Vec<onnx::Node> {
    let mut readers: HashMap<String, usize> = HashMap::new();
    nodes.iter().flat_map(|node| &node.inputs).for_each(|name| *readers.entry(name.clone()).or_default() += 1);
    let made: HashMap<String, usize> =
        nodes.iter().enumerate().flat_map(|(i, node)| node.outputs.iter().map(move |name| (name.clone(), i))).collect();
    let mut nodes: Vec<Option<onnx::Node>> = nodes.into_iter().map(Some).collect();
    for i in 0..nodes.len() {
        let Some(node) = nodes[i].as_ref().filter(|node| node.op == "Identity") else { continue };
        let (from, to) = (node.inputs[0].clone(), node.outputs[0].clone());
        if readers[&from] == 1
            && let Some(maker) = made.get(&from).and_then(|i| nodes[*i].as_mut())
        {
            maker.outputs.iter_mut().filter(|name| **name == from).for_each(|name| *name = to.clone());
            nodes[i] = None;
        }
    }
    nodes.into_iter().flatten().collect()
}

/// Nodes that an output depends on: the projection of a recurrent layer, for example, is part of its node.
fn without_dead(nodes: Vec<onnx::Node>, outputs: &[ValueInfo]) -> Vec<onnx::Node> {
    let mut read: HashSet<String> = outputs.iter().map(|output| output.name.clone()).collect();
    let mut kept: Vec<onnx::Node> = Vec::with_capacity(nodes.len());
    for node in nodes.into_iter().rev() {
        if node.outputs.iter().any(|name| read.contains(name)) {
            read.extend(node.inputs.iter().cloned());
            kept.push(node);
        }
    }
    kept.reverse();
    kept
}

/// An input or output; its first dimension is symbolic where it is the batch.
fn value_info(name: &str, ty: &TensorType) -> ValueInfo {
    let dim = |dim: &plimsoll_core::Dim| match (dim.is_batch(), dim.factor()) {
        (false, extent) => Dim::Fixed(extent as i64),
        (true, 1) => Dim::Symbolic("batch".to_string()),
        (true, factor) => Dim::Symbolic(format!("{factor}*batch")),
    };
    ValueInfo { name: name.to_string(), dtype: Some(stored(ty.dtype)), shape: Some(ty.shape.dims().iter().map(dim).collect()) }
}

impl<'a> Exporter<'a> {
    fn new(graph: &'a Graph, weights: &'a crate::import::ImportedWeights) -> Exporter<'a> {
        Exporter { builder: GraphBuilder::new(graph), walk: GraphWalk::new(graph, weights) }
    }

    /// The name of a value, weights included.
    fn read(&mut self, value: ValueId) -> String {
        match self.builder.graph.producer(value).op {
            Op::State(_) => self.state(value),
            _ => self.builder.plain(value),
        }
    }

    /// A weight as it is.
    fn state(&mut self, value: ValueId) -> String {
        let graph = self.builder.graph;
        let state = &graph.states()[graph.as_state(value).expect("a weight").0 as usize];
        let shape = state.ty.shape.bind(1);
        let order = (0..shape.len()).collect();
        self.builder.weight(&state.name, &shape, Recipe::Weight { name: state.name.clone(), shape: shape.clone(), order, scale: None })
    }

    /// The name of the weight that a value is.
    fn weight_name(&self, value: ValueId) -> Option<String> {
        self.walk.weight_name(value)
    }

    fn node(&mut self, node: &'a Node) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let one = |exporter: &mut Exporter<'_>, name: String| {
            exporter.builder.define(node.outputs[0], ImageLayout::Plain, name);
            Ok(())
        };
        match &node.op {
            Op::Input(_) | Op::State(_) => Ok(()),
            Op::Pointwise(op) => self.pointwise(node, op),
            Op::Reduce(op) if !op.onto => self.reduce(node, op),
            Op::MatMul(op) if op.epilogue.is_none() && !op.onto => self.matmul(node, op),
            Op::Conv2d(op) if op.epilogue.is_none() => self.convolution(node, op),
            Op::Conv2dGradInput(op) => self.transposed_convolution(node, op),
            Op::MaxPool(op) => self.max_pool(node, &op.window),
            Op::AvgPool(op) => {
                self.average_pool(node, &op.window);
                Ok(())
            }
            Op::Attention(op) => self.attention(node, op),
            Op::Recurrent(op) => self.recurrent(node, op),
            Op::Reshape(op) => {
                self.reshape(node, op);
                Ok(())
            }
            Op::Transpose(op) => {
                let name = self.read(node.inputs[0]);
                let name = self.builder.transpose(&name, &op.order);
                one(self, name)
            }
            Op::Slice(op) => {
                let layout = if self.is_state(node.inputs[0]) { ImageLayout::Plain } else { self.builder.layout_of(node.inputs[0]) };
                let name = self.read_in(node.inputs[0], layout);
                let axis = if layout == ImageLayout::First { FIRST_AXIS[op.axis] } else { op.axis };
                let name = self.builder.slice(&name, axis, op.start, op.start + op.length);
                self.builder.define(node.outputs[0], layout, name);
                Ok(())
            }
            Op::Pad(op) => {
                let layout = self.builder.layout_of(node.inputs[0]);
                let name = self.read_in(node.inputs[0], layout);
                let axis = if layout == ImageLayout::First { FIRST_AXIS[op.axis] } else { op.axis };
                let rank = graph.shape(node.inputs[0]).rank();
                let mut pads = vec![0; 2 * rank];
                (pads[axis], pads[rank + axis]) = (op.before as i64, op.after as i64);
                let pads = self.builder.integers(&pads);
                let name = self.builder.node("Pad", &[&name, &pads], &[]);
                self.builder.define(node.outputs[0], layout, name);
                Ok(())
            }
            Op::Concat(op) => {
                let first = node.inputs.iter().any(|value| self.builder.layout_of(*value) == ImageLayout::First);
                let layout =
                    if first && !node.inputs.iter().any(|value| self.is_state(*value)) { ImageLayout::First } else { ImageLayout::Plain };
                let names: Vec<String> = node.inputs.iter().map(|value| self.read_in(*value, layout)).collect();
                let axis = if layout == ImageLayout::First { FIRST_AXIS[op.axis] } else { op.axis };
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let name = self.builder.node("Concat", &names, &[("axis", Attribute::Int(axis as i64))]);
                self.builder.define(node.outputs[0], layout, name);
                Ok(())
            }
            Op::Gather(Gather { dtype: DType::F32 }) => {
                let (table, mut indices) = (self.read(node.inputs[0]), self.read(node.inputs[1]));
                if graph.ty(node.inputs[1]).dtype == DType::U8 {
                    indices = self.builder.cast(&indices, Stored::I32);
                }
                let name = self.builder.node("Gather", &[&table, &indices], &[("axis", Attribute::Int(0))]);
                one(self, name)
            }
            other => Err(ExportProblem::Unsupported(format!("the operation {}", other.rules().name()))),
        }
    }

    fn is_state(&self, value: ValueId) -> bool {
        self.walk.is_state(value)
    }

    fn read_in(&mut self, value: ValueId, layout: ImageLayout) -> String {
        if layout == ImageLayout::Plain { self.read(value) } else { self.builder.read(value, layout) }
    }

    fn reshape(&mut self, node: &Node, op: &Reshape) {
        let graph = self.builder.graph;
        let (from, to) = (node.inputs[0], node.outputs[0]);
        let name = if self.is_state(from) { self.state(from) } else { self.builder.read_any(from) };
        if self.builder.one_pixel(to) {
            // Convolutions over one pixel, as in squeeze and excitation, need no transposition.
            let dims = op.shape.dims();
            let name = self.builder.reshape_to(&name, &[builder::extent(dims[0]), builder::extent(dims[3]), 1, 1]);
            self.builder.define(to, ImageLayout::First, name);
        } else if graph.shape(from) == graph.shape(to) && !self.is_state(from) {
            self.builder.alias(to, from);
        } else {
            let name = self.builder.reshape(&name, &op.shape);
            self.builder.define(to, ImageLayout::Plain, name);
        }
    }

    /// A matrix product, with a bias and a folded scale where they follow.
    fn matmul(&mut self, node: &'a Node, op: &MatMul) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let (a, b) = (node.inputs[0], node.inputs[1]);
        let weight = self.weight_name(b).filter(|_| !op.transpose_b && !self.is_state(a));
        let Some(weight) = weight else {
            let (a, b) = (self.read(a), self.read(b));
            let flags = [("transA", Attribute::Int(op.transpose_a.into())), ("transB", Attribute::Int(op.transpose_b.into()))];
            let name = if op.transpose_a || op.transpose_b {
                self.builder.node("Gemm", &[&a, &b], &flags)
            } else {
                self.builder.node("MatMul", &[&a, &b], &[])
            };
            self.builder.define(node.outputs[0], ImageLayout::Plain, name);
            return Ok(());
        };
        let shape = graph.shape(b).bind(1);
        let followed = self.walk.followed(node.outputs[0], shape[1])?;
        let input = self.read(a);
        let kernel = Recipe::Weight { name: weight.clone(), shape: shape.clone(), order: vec![0, 1], scale: followed.scale };
        let kernel = self.builder.weight(&weight, &shape, kernel);
        let flags = [("transA", Attribute::Int(op.transpose_a.into()))];
        let name = match followed.offset {
            Some(offset) => {
                let bias = self.builder.numbers(&format!("{}/bias", self.builder.scope), &[shape[1]], offset);
                self.builder.node("Gemm", &[&input, &kernel, &bias], &flags)
            }
            None if op.transpose_a => self.builder.node("Gemm", &[&input, &kernel], &flags),
            None => self.builder.node("MatMul", &[&input, &kernel], &[]),
        };
        let name = followed.rest.map_or(name.clone(), |rest| self.expression_of(&rest, &name));
        self.builder.define(followed.value, ImageLayout::Plain, name);
        Ok(())
    }
}
