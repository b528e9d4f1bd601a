//! Attention as batched products and a softmax.

use super::builder::TensorIndex;
use super::{ExportProblem, TfliteExporter};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::Attention;
use plimsoll_core::{Dim, Shape};
use plimsoll_formats::tensor::DType as Stored;
use plimsoll_formats::tflite::{BuiltinOp, OptionValue};

/// Added to the score of a key that a query does not see: its weight is zero in single precision.
const HIDDEN: f32 = -1e9;

impl TfliteExporter<'_> {
    pub(super) fn attention(&mut self, node: &Node, op: &Attention) -> Result<TensorIndex, ExportProblem> {
        let graph = self.builder.graph;
        if self.walk.readers.contains_key(&node.outputs[1]) {
            return Err(ExportProblem::unsupported("the log-sum-exp of attention scores"));
        }
        let tensors = op.packing.tensors();
        let shapes: Vec<&Shape> = node.inputs[..tensors].iter().map(|value| graph.shape(*value)).collect();
        let dims = op.shape(&shapes).map_err(ExportProblem::Unsupported)?;
        let (heads, kv_heads, depth) = (op.heads, op.kv_heads, dims.depth);
        let group = heads / kv_heads;
        let batch = shapes[0].dims()[0];
        let wide = [heads * depth, kv_heads * depth, kv_heads * depth];
        let steps = [dims.queries, dims.keys, dims.keys];
        // [batch, key heads, steps, depth]; the queries of a key head follow each other.
        let mut parts = Vec::with_capacity(3);
        for (i, (tensor, offset)) in op.parts(depth).into_iter().enumerate() {
            let mut part = self.read(node.inputs[tensor]);
            if self.builder.shape(part).dims()[2].factor() != wide[i] {
                part = self.builder.slice(part, 2, offset, wide[i]);
            }
            if i == 0 && group > 1 {
                let split = Shape::new([batch, steps[0].into(), kv_heads.into(), group.into(), depth.into()]);
                let split = self.builder.reshape(part, split);
                let moved = self.builder.transpose(split, &[0, 2, 3, 1, 4]);
                parts.push(self.builder.reshape(moved, Shape::new([batch, kv_heads.into(), (group * steps[0]).into(), depth.into()])));
                continue;
            }
            let split = self.builder.reshape(part, Shape::new([batch, steps[i].into(), kv_heads.into(), depth.into()]));
            parts.push(self.builder.transpose(split, &[0, 2, 1, 3]));
        }
        let rows = group * dims.queries;
        let scale = self.builder.number(op.scale());
        let shape = self.builder.shape(parts[0]).clone();
        let queries = self.builder.op(BuiltinOp::Mul, &[parts[0], scale], &[], shape.clone());
        let scores_shape = Shape::new([batch, kv_heads.into(), rows.into(), dims.keys.into()]);
        let mut scores =
            self.builder.op(BuiltinOp::BatchMatmul, &[queries, parts[1]], &[("adj_y", OptionValue::Byte(1))], scores_shape.clone());
        if op.causal {
            let hidden = |row: usize, key: usize| if key <= row % dims.queries { 0.0 } else { HIDDEN };
            let mask = (0..rows).flat_map(|row| (0..dims.keys).map(move |key| hidden(row, key))).collect();
            let mask = self.builder.numbers("causal_mask", &[rows, dims.keys], mask);
            scores = self.builder.op(BuiltinOp::Add, &[scores, mask], &[], scores_shape.clone());
        }
        let visible = match node.inputs.get(tensors) {
            Some(mask) => {
                // 1 where a key is seen, 0 where not, whatever the type of the mask.
                let mask = self.read(*mask);
                let seen = self.builder.cast(mask, Stored::Bool);
                let seen = self.builder.cast(seen, Stored::F32);
                Some(self.builder.reshape(seen, Shape::new([batch, Dim::fixed(1), Dim::fixed(1), dims.keys.into()])))
            }
            None => None,
        };
        if let Some(visible) = visible {
            let (one, low) = (self.builder.number(1.0), self.builder.number(-HIDDEN));
            let shape = self.builder.shape(visible).clone();
            let hidden = self.builder.op(BuiltinOp::Sub, &[visible, one], &[], shape.clone());
            let hidden = self.builder.op(BuiltinOp::Mul, &[hidden, low], &[], shape);
            scores = self.builder.op(BuiltinOp::Add, &[scores, hidden], &[], scores_shape.clone());
        }
        let mut weights = self.builder.op(BuiltinOp::Softmax, &[scores], &[("beta", OptionValue::Float(1.0))], scores_shape.clone());
        if let Some(visible) = visible {
            // A query without visible keys gives zeros.
            weights = self.builder.op(BuiltinOp::Mul, &[weights, visible], &[], scores_shape);
        }
        let mut result = self.builder.op(BuiltinOp::BatchMatmul, &[weights, parts[2]], &[], shape);
        if group > 1 {
            let split = Shape::new([batch, kv_heads.into(), group.into(), dims.queries.into(), depth.into()]);
            result = self.builder.reshape(result, split);
            result = self.builder.transpose(result, &[0, 3, 1, 2, 4]);
        } else {
            result = self.builder.transpose(result, &[0, 2, 1, 3]);
        }
        Ok(self.builder.reshape(result, Shape::new([batch, dims.queries.into(), wide[0].into()])))
    }
}
