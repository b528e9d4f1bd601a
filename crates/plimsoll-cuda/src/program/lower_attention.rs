//! The kernels of attention. They follow from the graph alone, and take longest to compile, so that this can begin
//! before the plan is known.

use crate::kernels::{self, AttentionShape, Kernel};
use crate::libraries::nvrtc::{LONG_KERNEL, ModuleSource};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::Attention;
use plimsoll_core::{Op, Shape, ValueId};
use std::collections::HashSet;

/// The kernels of a node for some rows; none if it is no attention.
pub(super) fn attention_kernels(graph: &Graph, node: &Node, rows: usize, tensor_cores: bool) -> Vec<Kernel> {
    let inputs = &node.inputs;
    match &node.op {
        Op::Attention(op) => vec![kernels::attention(&shape(graph, op, inputs, 0, (rows, tensor_cores)))],
        Op::AttentionGrad(op) => {
            let dy = graph.ty(inputs[inputs.len() - 1]).dtype;
            kernels::attention_grad(&shape(graph, &op.attention, inputs, 3, (rows, tensor_cores)), dy)
        }
        _ => vec![],
    }
}

/// The modules that a program of this graph has for the long ones of these kernels, each once.
pub(crate) fn attention_modules(graph: &Graph, rows: usize, tensor_cores: bool) -> Vec<ModuleSource> {
    let mut known = HashSet::new();
    let kernels = graph.nodes().flat_map(|(_, node)| attention_kernels(graph, node, rows, tensor_cores));
    let long = kernels.filter_map(|kernel| {
        let text = kernel.source("");
        let mut source = ModuleSource::new();
        source.add(&kernel, kernel.name.to_string(), &text);
        (text.len() > LONG_KERNEL && known.insert(text)).then_some(source)
    });
    long.collect()
}

/// An attention whose inputs are the packing's tensors, optionally a mask, and further inputs.
fn shape<'a>(
    graph: &Graph,
    op: &'a Attention,
    inputs: &[ValueId],
    behind: usize,
    (rows, tensor_cores): (usize, bool),
) -> AttentionShape<'a> {
    let tensors = &inputs[..op.packing.tensors()];
    let shapes: Vec<&Shape> = tensors.iter().map(|tensor| graph.shape(*tensor)).collect();
    let shape = op.shape(&shapes).expect("checked when the node was added");
    let mask = inputs[tensors.len()..inputs.len() - behind].first();
    AttentionShape {
        op,
        batch: shape.batch.bind(rows),
        queries: shape.queries,
        keys: shape.keys,
        depth: shape.depth,
        types: tensors.iter().map(|tensor| graph.ty(*tensor).dtype).collect(),
        mask: mask.map(|mask| graph.ty(*mask).dtype),
        sequences: shape.batch.factor(),
        tensor_cores,
    }
}
