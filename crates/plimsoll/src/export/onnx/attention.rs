//! Attention as products and a softmax.

use super::builder::ImageLayout;
use super::{ExportProblem, Exporter};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::Attention;
use plimsoll_core::{DType, Shape};
use plimsoll_formats::onnx::Attribute;
use plimsoll_formats::tensor::DType as Stored;

/// The score of a key that a query does not see: its weight is zero in single precision, and not NaN where a query sees
/// no key.
const HIDDEN: f32 = -1e30;

impl Exporter<'_> {
    pub(super) fn attention(&mut self, node: &Node, op: &Attention) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let tensors = op.packing.tensors();
        let shapes: Vec<&Shape> = node.inputs[..tensors].iter().map(|value| graph.shape(*value)).collect();
        let dims = op.shape(&shapes).map_err(ExportProblem::Unsupported)?;
        let (heads, kv_heads, depth) = (op.heads, op.kv_heads, dims.depth);
        let group = heads / kv_heads;
        let read: Vec<String> = node.inputs.iter().map(|value| self.read(*value)).collect();
        let wide = [heads * depth, kv_heads * depth, kv_heads * depth];
        let steps = [dims.queries, dims.keys, dims.keys];
        // [batch, key heads, queries of a key head, steps, depth]; of the keys, the last two are swapped.
        let orders: [&[usize]; 3] = [&[0, 2, 3, 1, 4], &[0, 2, 3, 4, 1], &[0, 2, 3, 1, 4]];
        let mut parts = Vec::with_capacity(3);
        for (i, (tensor, offset)) in op.parts(depth).into_iter().enumerate() {
            let mut name = read[tensor].clone();
            if graph.shape(node.inputs[tensor]).dims()[2].factor() != wide[i] {
                name = self.builder.slice(&name, 2, offset, offset + wide[i]);
            }
            let split = [-1, steps[i] as i64, kv_heads as i64, if i == 0 { group as i64 } else { 1 }, depth as i64];
            let name = self.builder.reshape_to(&name, &split);
            parts.push(self.builder.transpose(&name, orders[i]));
        }
        let scale = self.builder.number(op.scale());
        let queries = self.builder.node("Mul", &[&parts[0], &scale], &[]);
        let mut scores = self.builder.node("MatMul", &[&queries, &parts[1]], &[]);
        let causal = op.causal.then(|| {
            let (queries, keys) = (dims.queries, dims.keys);
            let seen = (0..queries).flat_map(|query| (0..keys).map(move |key| u8::from(key <= query))).collect();
            self.builder.constant(Stored::Bool, &[queries as u64, keys as u64], seen)
        });
        let mask = read.get(tensors).cloned().map(|mask| {
            let mask = self.builder.reshape_to(&mask, &[-1, 1, 1, 1, dims.keys as i64]);
            match graph.ty(node.inputs[tensors]).dtype {
                DType::U8 | DType::F32 | DType::I32 => self.builder.cast(&mask, Stored::Bool),
                _ => mask,
            }
        });
        let visible = match (causal, &mask) {
            (Some(causal), Some(mask)) => Some(self.builder.node("And", &[&causal, mask], &[])),
            (causal, mask) => causal.or_else(|| mask.clone()),
        };
        if let Some(visible) = &visible {
            let hidden = self.builder.number(HIDDEN);
            scores = self.builder.node("Where", &[visible, &scores, &hidden], &[]);
        }
        let mut weights = self.builder.node("Softmax", &[&scores], &[("axis", Attribute::Int(-1))]);
        if let (Some(visible), Some(_)) = (&visible, &mask) {
            // A query without visible keys gives zeros.
            let zero = self.builder.number(0.0);
            weights = self.builder.node("Where", &[visible, &weights, &zero], &[]);
        }
        let seen = self.builder.node("MatMul", &[&weights, &parts[2]], &[]);
        let seen = self.builder.transpose(&seen, &[0, 3, 1, 2, 4]);
        let result = self.builder.reshape_to(&seen, &[-1, dims.queries as i64, wide[0] as i64]);
        self.builder.define(node.outputs[0], ImageLayout::Plain, result);
        if self.walk.readers.contains_key(&node.outputs[1]) {
            return Err(ExportProblem::unsupported("the log-sum-exp of attention scores"));
        }
        Ok(())
    }
}
