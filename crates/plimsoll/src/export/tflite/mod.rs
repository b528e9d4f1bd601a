//! The prediction graph of a network as a TFLite model: one rule per op, with the operators that TensorFlow's converter
//! writes. Batch normalization is folded, activations are fused, and images have their channels last, as in the
//! network.

mod attention;
mod builder;
mod convolution;
mod pointwise;
mod recurrent;
mod simplify;
mod small;
#[cfg(test)]
mod tests;

pub(super) use small::write_small;
pub use small::{SmallReport, TensorReport};

use super::recipe::Recipe;
use super::walk::{ExportProblem, GraphWalk};
use super::{TrainedNetwork, fold};
use crate::error::{Error, Result};
use crate::files;
use builder::{TensorIndex, TfliteBuilder, stored};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::{Gather, MatMul};
use plimsoll_core::passes::remove_dead;
use plimsoll_core::{DType, Dim, Op, Shape, ValueId};
use plimsoll_formats::tensor::DType as Stored;
use plimsoll_formats::tflite::{self, BuiltinOp, OptionValue, TfliteModel, TfliteTensor};
use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// A TFLite model whose weights are not written yet.
pub(super) struct ConvertedTflite {
    pub model: TfliteModel,
    recipes: HashMap<String, Recipe>,
    /// Of a model that was trained for int8: the smallest and largest number of its tensors, by their names.
    pub ranges: HashMap<String, (f32, f32)>,
}

/// What the names of outputs begin with that are only there to find a tensor again.
const RANGED: &str = "range of ";

struct TfliteExporter<'a> {
    builder: TfliteBuilder<'a>,
    walk: GraphWalk<'a>,
}

/// Converts a network, or lists all nodes that TFLite has no counterpart for.
pub(super) fn convert(network: &TrainedNetwork) -> Result<ConvertedTflite> {
    let (mut graph, lowered) = network.model.graph(&network.types(), false)?;
    for (name, output) in network.model.outputs().zip(&lowered.outputs) {
        graph.output(name, output.value);
    }
    for (name, value) in lowered.observed.iter().filter(|(name, _)| network.ranges.contains_key(name)) {
        graph.output(&format!("{RANGED}{name}"), *value);
    }
    let graph = remove_dead(&graph);
    let walk = GraphWalk::new(&graph, &network.weights);
    let one_row = recurrent::has_fused(&walk);
    let mut exporter = TfliteExporter { builder: TfliteBuilder::new(&graph, one_row), walk };
    let mut problems = Vec::new();
    let mut inputs = Vec::new();
    for (i, input) in network.inputs.iter().enumerate() {
        let value = graph.nodes().find(|(_, node)| matches!(node.op, Op::Input(id) if id.0 as usize == i)).map(|(_, node)| node.outputs[0]);
        let Some(dtype) = stored(input.ty.dtype) else {
            problems.push(format!("input `{}`: elements of {}", input.name, input.ty.dtype));
            continue;
        };
        let tensor = exporter.builder.tensor(&input.name, dtype, input.ty.shape.clone());
        inputs.push(tensor as i32);
        if let Some(value) = value {
            exporter.builder.define(value, tensor);
        }
    }
    for (_, node) in graph.nodes() {
        if exporter.builder.place(node.outputs[0]).is_some() || exporter.walk.folded.contains(&node.outputs[0]) {
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
                    let tensor = exporter.builder.tensor("missing", Stored::F32, graph.shape(*value).clone());
                    exporter.builder.define(*value, tensor);
                }
            }
        }
    }
    if !problems.is_empty() {
        problems.dedup();
        return Err(Error::Config(format!("TFLite has no counterpart for:\n  {}", problems.join("\n  "))));
    }
    let (computed, ranged) = graph.outputs().split_at(network.model.outputs().len());
    let outputs: Vec<i32> = computed.iter().map(|(_, value)| exporter.read(*value) as i32).collect();
    let names = computed.iter().map(|(name, _)| name.to_string()).collect();
    let ranges = ranged.iter().filter_map(|(name, value)| {
        let range = network.ranges.get(name.strip_prefix(RANGED)?)?;
        Some((exporter.builder.tensors[exporter.builder.place(*value)?].name.clone(), *range))
    });
    let ranges = ranges.collect();
    let TfliteBuilder { tensors, operators, recipes, .. } = exporter.builder;
    let metadata =
        network.metadata.iter().chain(&network.preparation).map(|(key, text)| (key.clone(), text.clone().into_bytes())).collect();
    let signature = Some((network.inputs.iter().map(|input| input.name.clone()).collect(), names));
    let description = format!("{}, exported by Plimsoll", network.model.title());
    let mut model = TfliteModel { description, tensors, operators, inputs, outputs, signature, metadata, metadata_bytes: 0 };
    simplify::simplify(&mut model);
    crate::tflite::set_versions(&mut model);
    Ok(ConvertedTflite { model, recipes, ranges })
}

impl ConvertedTflite {
    /// Writes the model; one weight at a time is in memory.
    pub fn write(&self, network: &TrainedNetwork, path: &Path) -> Result<()> {
        let mut failed = None;
        let mut data = |tensor: &TfliteTensor, out: &mut dyn Write| match self.recipes[&tensor.name].write(&network.weights, out) {
            Ok(written) => written,
            Err(error) => {
                failed = Some(error);
                Err(io::Error::other("a weight cannot be read"))
            }
        };
        let written = files::replace(path, |file| {
            let mut out = BufWriter::new(file);
            let about = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
            tflite::write(&self.model, &mut out, &mut data).and_then(|()| out.flush()).map_err(about)
        });
        match failed {
            Some(error) => Err(error),
            None => written,
        }
    }
}

impl<'a> TfliteExporter<'a> {
    /// The tensor of a value, weights included.
    fn read(&mut self, value: ValueId) -> TensorIndex {
        let graph = self.builder.graph;
        match graph.as_state(value) {
            Some(id) => {
                let state = &graph.states()[id.0 as usize];
                let shape = state.ty.shape.bind(1);
                let order = (0..shape.len()).collect();
                self.builder.weight(
                    &state.name,
                    &shape,
                    Recipe::Weight { name: state.name.clone(), shape: shape.clone(), order, scale: None },
                )
            }
            None => self.builder.place(value).expect("values are computed before they are read"),
        }
    }

    fn node(&mut self, node: &'a Node) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let shape = || graph.shape(node.outputs[0]).clone();
        let result = match &node.op {
            Op::Input(_) | Op::State(_) => return Ok(()),
            Op::Pointwise(op) => return self.pointwise(node, op),
            Op::Reduce(op) if !op.onto => return self.reduce(node, op),
            Op::MatMul(op) if op.epilogue.is_none() && !op.onto => return self.matmul(node, op),
            Op::Conv2d(op) if op.epilogue.is_none() => return self.convolution(node, op),
            Op::Conv2dGradInput(op) => self.transposed_convolution(node, op)?,
            Op::MaxPool(op) => self.max_pool(node, &op.window)?,
            Op::AvgPool(op) => self.average_pool(node, &op.window)?,
            Op::Attention(op) => self.attention(node, op)?,
            Op::Recurrent(op) => return self.recurrent(node, op),
            Op::Reshape(_) => {
                let tensor = self.read(node.inputs[0]);
                self.builder.reshape(tensor, shape())
            }
            Op::Transpose(op) => {
                let tensor = self.read(node.inputs[0]);
                self.builder.transpose(tensor, &op.order)
            }
            Op::Slice(op) => {
                let tensor = self.read(node.inputs[0]);
                self.builder.slice(tensor, op.axis, op.start, op.length)
            }
            Op::Pad(op) => {
                let tensor = self.read(node.inputs[0]);
                let mut pads = vec![0; 2 * shape().rank()];
                (pads[2 * op.axis], pads[2 * op.axis + 1]) = (op.before as i32, op.after as i32);
                self.pad(tensor, &pads, shape(), None)
            }
            Op::Concat(op) => {
                let tensors: Vec<TensorIndex> = node.inputs.iter().map(|value| self.read(*value)).collect();
                self.builder.op(BuiltinOp::Concatenation, &tensors, &[("axis", OptionValue::Int(op.axis as i32))], shape())
            }
            Op::Gather(Gather { dtype: DType::F32 }) => {
                let (table, indices) = (self.read(node.inputs[0]), self.read(node.inputs[1]));
                let indices = self.builder.cast(indices, Stored::I32);
                self.builder.op(BuiltinOp::Gather, &[table, indices], &[("axis", OptionValue::Int(0))], shape())
            }
            other => return Err(ExportProblem::Unsupported(format!("the operation {}", other.rules().name()))),
        };
        self.builder.define(node.outputs[0], result);
        Ok(())
    }

    /// Pads with zeros, or with a number.
    fn pad(&mut self, tensor: TensorIndex, pads: &[i32], shape: Shape, with: Option<f32>) -> TensorIndex {
        let pads = self.builder.integers_of(pads, &[pads.len() / 2, 2]);
        match with {
            None => self.builder.op(BuiltinOp::Pad, &[tensor, pads], &[], shape),
            Some(number) => {
                let number = self.builder.number(number);
                self.builder.op(BuiltinOp::PadV2, &[tensor, pads, number], &[], shape)
            }
        }
    }

    /// A matrix product: `FULLY_CONNECTED` with a weight, and the bias that follows.
    fn matmul(&mut self, node: &'a Node, op: &MatMul) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let (a, b) = (node.inputs[0], node.inputs[1]);
        let weight = self.walk.weight_name(b).filter(|_| !op.transpose_a && !self.walk.is_state(a));
        let Some(weight) = weight else {
            let (a, b) = (self.read(a), self.read(b));
            let flag = |flag: bool| OptionValue::Byte(flag.into());
            let options = [("adj_x", flag(op.transpose_a)), ("adj_y", flag(op.transpose_b))];
            let result = self.builder.op(BuiltinOp::BatchMatmul, &[a, b], &options, graph.shape(node.outputs[0]).clone());
            self.builder.define(node.outputs[0], result);
            return Ok(());
        };
        let shape = graph.shape(b).bind(1);
        let units = if op.transpose_b { shape[0] } else { shape[1] };
        let followed = self.walk.followed(node.outputs[0], units)?;
        let (moved, scale) = if op.transpose_b { (shape.clone(), None) } else { (vec![shape[1], shape[0]], followed.scale.clone()) };
        let order = if op.transpose_b { vec![0, 1] } else { vec![1, 0] };
        let late = followed.scale.filter(|_| op.transpose_b);
        let kernel = self.builder.weight(&weight, &moved, Recipe::Weight { name: weight.clone(), shape, order, scale });
        let input = self.read(a);
        let bias = match (&followed.offset, &late) {
            (Some(offset), None) => Some(offset.clone()),
            _ => None,
        };
        let mut result = self.fully_connected(input, kernel, bias, graph.shape(node.outputs[0]).clone());
        if let Some(scale) = late {
            // A tied weight stays as it is, so the scale comes behind the product.
            result = self.affine(result, &scale, followed.offset.as_deref());
        }
        if let Some(rest) = &followed.rest {
            result = self.expression_of(rest, result)?;
        }
        self.builder.define(followed.value, result);
        Ok(())
    }

    /// `FULLY_CONNECTED` of a kernel `[units, features]`.
    fn fully_connected(&mut self, input: TensorIndex, kernel: TensorIndex, bias: Option<Vec<f32>>, shape: Shape) -> TensorIndex {
        let units = self.builder.shape(kernel).bind(1)[0];
        let bias = bias.map(|bias| self.builder.numbers(&format!("{}/bias", self.builder.scope), &[units], bias));
        let result = self.builder.op(BuiltinOp::FullyConnected, &[input, kernel], &[], shape);
        let operator = self.builder.operators.last_mut().expect("just added");
        operator.inputs.push(bias.map_or(-1, |bias| bias as i32));
        result
    }

    /// One product and one sum with constants per channel.
    fn affine(&mut self, mut tensor: TensorIndex, scale: &[f32], offset: Option<&[f32]>) -> TensorIndex {
        let shape = self.builder.shape(tensor).clone();
        let scope = self.builder.scope.clone();
        if scale.iter().any(|number| *number != 1.0) {
            let scale = self.builder.numbers(&format!("{scope}/scale"), &[scale.len()], scale.to_vec());
            tensor = self.builder.op(BuiltinOp::Mul, &[tensor, scale], &[], shape.clone());
        }
        if let Some(offset) = offset.filter(|offset| offset.iter().any(|number| *number != 0.0)) {
            let offset = self.builder.numbers(&format!("{scope}/offset"), &[offset.len()], offset.to_vec());
            tensor = self.builder.op(BuiltinOp::Add, &[tensor, offset], &[], shape);
        }
        tensor
    }
}

/// A shape with one more extent of an axis.
fn with_extent(shape: &Shape, axis: usize, extent: usize) -> Shape {
    shape.with(axis, Dim::fixed(extent))
}
