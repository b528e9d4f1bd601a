//! Attention with all weights materialized, one query at a time.

use super::Setting;
use super::tensor::Tensor;
use crate::base::shape::Shape;
use crate::ir::ops::{Attention, Packing};

/// The operands by sequence, position and head.
struct Heads<'a> {
    op: &'a Attention,
    tensors: &'a [&'a Tensor],
    mask: Option<&'a Tensor>,
    batch: usize,
    queries: usize,
    keys: usize,
    depth: usize,
    setting: &'a Setting<'a>,
}

/// One of the three operands.
#[derive(Clone, Copy)]
enum Operand {
    Query,
    Key,
    Value,
}

impl<'a> Heads<'a> {
    fn new(op: &'a Attention, operands: &'a [&'a Tensor], behind: usize, setting: &'a Setting<'a>) -> Heads<'a> {
        let count = op.packing.tensors();
        let shapes: Vec<Shape> = operands[..count].iter().map(|tensor| Shape::fixed(tensor.dims.clone())).collect();
        let shape = op.shape(&shapes.iter().collect::<Vec<_>>()).expect("checked when the node was added");
        let mask = operands[count..operands.len() - behind].first().copied();
        let batch = shape.batch.bind(1);
        Heads { op, tensors: &operands[..count], mask, batch, queries: shape.queries, keys: shape.keys, depth: shape.depth, setting }
    }

    /// The tensor and the index in it of element `c` of a head.
    fn place(&self, part: Operand, b: usize, t: usize, head: usize, c: usize) -> (usize, [usize; 3]) {
        let (q, kv) = (self.op.heads * self.depth, self.op.kv_heads * self.depth);
        let (tensor, start) = match (self.op.packing, part) {
            (_, Operand::Query) => (0, 0),
            (Packing::Separate, Operand::Key) => (1, 0),
            (Packing::Separate, Operand::Value) => (2, 0),
            (Packing::KeysValues, Operand::Key) => (1, 0),
            (Packing::KeysValues, Operand::Value) => (1, kv),
            (Packing::All, Operand::Key) => (0, q),
            (Packing::All, Operand::Value) => (0, q + kv),
        };
        (tensor, [b, t, start + head * self.depth + c])
    }

    fn at(&self, part: Operand, b: usize, t: usize, head: usize, c: usize) -> f64 {
        let (tensor, place) = self.place(part, b, t, head, c);
        self.tensors[tensor].at(&place)
    }

    fn kv_head(&self, head: usize) -> usize {
        head / (self.op.heads / self.op.kv_heads)
    }

    fn is_visible(&self, b: usize, i: usize, j: usize) -> bool {
        self.mask.is_none_or(|mask| mask.at(&[b, j]) != 0.0) && (!self.op.causal || j <= i)
    }

    /// The scores of a query over its visible keys.
    fn scores(&self, b: usize, head: usize, i: usize) -> Vec<(usize, f64)> {
        let product = |j| -> f64 {
            let pairs =
                (0..self.depth).map(|c| self.at(Operand::Query, b, i, head, c) * self.at(Operand::Key, b, j, self.kv_head(head), c));
            pairs.sum::<f64>() * f64::from(self.op.scale())
        };
        (0..self.keys).filter(|j| self.is_visible(b, i, *j)).map(|j| (j, product(j))).collect()
    }

    /// The dropout factor of a weight.
    fn kept(&self, b: usize, head: usize, i: usize, j: usize) -> f64 {
        let Some(dropout) = self.op.dropout else { return 1.0 };
        // A row of the batch has an integer number of sequences.
        let before = self.setting.random.first_row * (self.batch / self.setting.rows) as u64;
        let row = ((before + b as u64) * self.op.heads as u64 + head as u64) * self.queries as u64 + i as u64;
        f64::from(dropout.factor(self.setting.random.uniform(dropout.stream, row * self.keys as u64 + j as u64)))
    }

    fn each_query(&self, mut visit: impl FnMut(usize, usize, usize)) {
        for b in 0..self.batch {
            for head in 0..self.op.heads {
                (0..self.queries).for_each(|i| visit(b, head, i));
            }
        }
    }
}

/// The result and the log-sum-exp.
pub(super) fn forward(op: &Attention, operands: &[&Tensor], setting: &Setting<'_>) -> [Vec<f64>; 2] {
    let heads = Heads::new(op, operands, 0, setting);
    let depth = heads.depth;
    let mut o = Tensor::zeros(&[heads.batch, heads.queries, op.heads * depth]);
    let mut lse = Tensor::zeros(&[heads.batch, op.heads, heads.queries]);
    heads.each_query(|b, head, i| {
        let scores = heads.scores(b, head, i);
        if scores.is_empty() {
            return;
        }
        let largest = scores.iter().fold(f64::NEG_INFINITY, |largest, (_, score)| largest.max(*score));
        let logarithm = largest + scores.iter().map(|(_, score)| (score - largest).exp()).sum::<f64>().ln();
        *lse.at_mut(&[b, head, i]) = logarithm;
        for c in 0..depth {
            let value = |j| heads.at(Operand::Value, b, j, heads.kv_head(head), c);
            *o.at_mut(&[b, i, head * depth + c]) =
                scores.iter().map(|(j, score)| (score - logarithm).exp() * heads.kept(b, head, i, *j) * value(*j)).sum();
        }
    });
    [o.elements, lse.elements]
}

/// The gradients of the tensors of the packing.
pub(super) fn gradient(op: &Attention, operands: &[&Tensor], setting: &Setting<'_>) -> Vec<Vec<f64>> {
    let heads = Heads::new(op, operands, 3, setting);
    let [.., o, lse, dy] = operands else { unreachable!("checked when the node was added") };
    let mut gradients: Vec<Tensor> = heads.tensors.iter().map(|tensor| Tensor::zeros(&tensor.dims)).collect();
    let scale = f64::from(op.scale());
    heads.each_query(|b, head, i| {
        let kv = heads.kv_head(head);
        let at = |tensor: &Tensor, c: usize| tensor.at(&[b, i, head * heads.depth + c]);
        let delta: f64 = (0..heads.depth).map(|c| at(dy, c) * at(o, c)).sum();
        for (j, score) in heads.scores(b, head, i) {
            let weight = (score - lse.at(&[b, head, i])).exp();
            let slope: f64 = (0..heads.depth).map(|c| at(dy, c) * heads.at(Operand::Value, b, j, kv, c)).sum();
            let kept = heads.kept(b, head, i, j);
            let d_score = weight * (kept * slope - delta) * scale;
            for c in 0..heads.depth {
                let mut add = |part, t, head, amount: f64| {
                    let (tensor, place) = heads.place(part, b, t, head, c);
                    *gradients[tensor].at_mut(&place) += amount;
                };
                add(Operand::Query, i, head, d_score * heads.at(Operand::Key, b, j, kv, c));
                add(Operand::Key, j, kv, d_score * heads.at(Operand::Query, b, i, head, c));
                add(Operand::Value, j, kv, weight * kept * at(dy, c));
            }
        }
    });
    gradients.into_iter().map(|gradient| gradient.elements).collect()
}
