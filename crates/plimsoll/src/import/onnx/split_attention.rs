//! Attention that a file has as a product, a softmax and another product: one fused op computes it without the matrix
//! of scores.
//!
//! Scores that are masked in between keep their three steps.

use super::OnnxImporter;
use super::ops::attended;
use super::values::{Computed, Found, Value};
use plimsoll_core::ops::{Attention, Packing};
use plimsoll_formats::onnx::{Attribute, Node};
use std::collections::HashMap;

/// The parts of an attention, by their names in the file.
pub(super) struct SplitAttention {
    queries: String,
    /// `[batch, heads, depth, length]`.
    transposed_keys: String,
    /// What the scores are multiplied with, or divided by.
    factor: Option<(String, Factor)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Factor {
    Multiplied,
    Divided,
}

impl OnnxImporter {
    /// Finds products whose left operand is the softmax of another product, scaled or not.
    pub(super) fn find_attentions(&mut self, nodes: &[Node]) {
        let steps = nodes.iter().filter(|node| matches!(node.op.as_str(), "MatMul" | "Softmax" | "Mul" | "Div"));
        let made: HashMap<&str, &Node> = steps.filter_map(|node| Some((node.outputs.first()?.as_str(), node))).collect();
        let maker = |name: &String, op: &str| made.get(name.as_str()).filter(|node| node.op == op).copied();
        let product = |name: &String| maker(name, "MatMul").filter(|node| node.inputs.len() == 2);
        for node in nodes.iter().filter(|node| node.op == "MatMul" && node.inputs.len() == 2 && node.outputs.len() == 1) {
            let Some(softmax) = maker(&node.inputs[0], "Softmax").filter(|softmax| self.is_over_keys(softmax)) else { continue };
            let Some(scores) = softmax.inputs.first() else { continue };
            let scaled = |op: &str, at: usize, kind: Factor| {
                let step = maker(scores, op).filter(|step| step.inputs.len() == 2)?;
                Some((product(&step.inputs[at])?, Some((step.inputs[1 - at].clone(), kind))))
            };
            let found = product(scores).map(|product| (product, None));
            let found = found.or_else(|| scaled("Div", 0, Factor::Divided)).or_else(|| scaled("Mul", 0, Factor::Multiplied));
            let Some((first, factor)) = found.or_else(|| scaled("Mul", 1, Factor::Multiplied)) else { continue };
            let parts = SplitAttention { queries: first.inputs[0].clone(), transposed_keys: first.inputs[1].clone(), factor };
            self.split_attentions.insert(node.outputs[0].clone(), parts);
        }
    }

    /// Whether a softmax is over the last of four axes.
    fn is_over_keys(&self, softmax: &Node) -> bool {
        match softmax.attributes.get("axis") {
            Some(Attribute::Int(axis)) => matches!(axis, -1 | 3),
            Some(_) => false,
            None => self.opset >= 13,
        }
    }

    /// The attention that ends with this product, if it is one of several heads without a mask.
    pub(super) fn split_attention(&mut self, product: &str, values: &Value) -> Found<Option<Computed>> {
        let Some(parts) = self.split_attentions.remove(product) else { return Ok(None) };
        let scale = match &parts.factor {
            None => 1.0,
            Some((name, kind)) => match (self.values.get(name), kind) {
                (Some(Value::Constant(constant)), kind) if constant.numbers.len() == 1 => {
                    let number = constant.numbers[0] as f32;
                    if *kind == Factor::Divided { 1.0 / number } else { number }
                }
                _ => return Ok(None),
            },
        };
        let tensor = |name: &String| match self.values.get(name) {
            Some(Value::Tensor(tensor)) if tensor.order.len() == 4 => Some(tensor.clone()),
            _ => None,
        };
        let (Some(q), Some(flipped), Value::Tensor(v)) = (tensor(&parts.queries), tensor(&parts.transposed_keys), values) else {
            return Ok(None);
        };
        let order = flipped.order.iter().map(|axis| [0, 1, 3, 2][*axis]).collect();
        let k = flipped.laid_out(order);
        let (queries, keys) = (self.dims(&q), self.dims(&k));
        let (same, heads) = ([0, 1, 3].iter().all(|axis| queries[*axis] == keys[*axis]), queries[1].as_fixed());
        let fixed = queries[2].as_fixed().is_some() && keys[2].as_fixed().is_some() && keys[3].as_fixed().is_some();
        let Some(heads) = heads.filter(|_| same && fixed && v.order.len() == 4 && self.dims(v) == keys) else { return Ok(None) };
        let (packing, dropout) = (Packing::Separate, None);
        let op = Attention { heads, kv_heads: heads, causal: false, scale: scale.to_bits(), packing, dropout };
        attended(self, [&q, &k, v], op).map(Some)
    }
}
