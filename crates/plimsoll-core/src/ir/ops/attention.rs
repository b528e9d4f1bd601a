//! Fused attention (FlashAttention): softmax(q·kᵀ·scale)·v for several heads, and its gradient.
//!
//! The kernel iterates over tiles of keys and saves only the log-sum-exp of each query's scores. The backward pass
//! recomputes the tiles from it, so no memory is proportional to the product of the two lengths.

use crate::DType;
use crate::base::shape::{Dim, Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules, expect_real};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Layout of queries, keys and values. Packed operands are read in place from the output of a joint projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// `q [b, tq, heads·d]`, `k [b, tk, kv_heads·d]`, `v [b, tk, kv_heads·d]`.
    Separate,
    /// `q [b, tq, heads·d]`, `kv [b, tk, 2·kv_heads·d]`: at each position the keys of all heads, then the values.
    KeysValues,
    /// `qkv [b, t, (heads + 2·kv_heads)·d]`: at each position the queries of all heads, then the keys, then the values.
    All,
}

impl Packing {
    /// Number of tensors.
    pub const fn tensors(self) -> usize {
        match self {
            Packing::Separate => 3,
            Packing::KeysValues => 2,
            Packing::All => 1,
        }
    }
}

/// Multi-head attention. Inputs are the tensors of [`Packing`] and optionally a mask `[b, tk]` over keys (any type;
/// nonzero means visible). Outputs are the result `[b, tq, heads·d]` in the queries' type and the log-sum-exp `f32[b,
/// heads, tq]`.
///
/// A query without visible keys yields zeros for both outputs. The result may overwrite the first operand: a kernel
/// reads a query's whole row before it writes there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// Layout of the operands.
    pub packing: Packing,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key/value heads; each serves `heads / kv_heads` consecutive query heads.
    pub kv_heads: usize,
    /// Causal masking: query `i` sees keys `j ≤ i`.
    pub causal: bool,
    /// Bits of the `f32` scale of the scores.
    pub scale: u32,
    /// Dropout of the attention weights.
    pub dropout: Option<WeightDropout>,
}

/// Dropout of attention weights; the others are scaled up to preserve the expected sum. The log-sum-exp covers all
/// weights. Nothing is stored: the backward pass regenerates the same random numbers. The weight of key `j` for query
/// `i` of a head uses element `((sequence·heads + head)·queries + i)·keys + j` of the stream, with sequences counted
/// from the first row of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightDropout {
    /// Bits of the `f32` dropout rate.
    pub rate: u32,
    /// The random stream; see [`Graph::stream`].
    pub stream: u32,
}

impl WeightDropout {
    /// Dropout with a rate in [0, 1) and a random stream.
    pub fn new(rate: f32, stream: u32) -> WeightDropout {
        WeightDropout { rate: rate.to_bits(), stream }
    }

    /// The dropout rate.
    pub fn rate(&self) -> f32 {
        f32::from_bits(self.rate)
    }

    /// The scale of weights that are not dropped.
    pub fn kept(&self) -> f32 {
        1.0 / (1.0 - self.rate())
    }

    /// The factor of a weight for this random number.
    pub fn factor(&self, drawn: f32) -> f32 {
        if drawn < self.rate() { 0.0 } else { self.kept() }
    }
}

/// The gradients of [`Attention`] with respect to the tensors of its packing, each in that tensor's type. Inputs are
/// these tensors, the mask if any, the result, the log-sum-exp, and the gradient of the result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGrad {
    /// The attention.
    pub attention: Attention,
}

/// The dimensions of an attention; the batch is symbolic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: Dim,
    /// Queries in a sequence.
    pub queries: usize,
    /// Keys in a sequence.
    pub keys: usize,
    /// Head dimension.
    pub depth: usize,
}

impl Attention {
    /// As many key heads as query heads, no mask, and the usual scale 1/√depth.
    ///
    /// ```
    /// use plimsoll_core::ops::{Attention, Packing};
    /// let attention = Attention::new(Packing::All, 6, 64);
    /// assert_eq!((attention.kv_heads, attention.causal, attention.scale()), (6, false, 0.125));
    /// ```
    pub fn new(packing: Packing, heads: usize, depth: usize) -> Attention {
        let scale = (1.0 / (depth as f32).sqrt()).to_bits();
        Attention { packing, heads, kv_heads: heads, causal: false, scale, dropout: None }
    }

    /// The scale of the scores.
    pub fn scale(&self) -> f32 {
        f32::from_bits(self.scale)
    }

    /// For queries, keys and values: the tensor and the offset within a position.
    pub fn parts(&self, depth: usize) -> [(usize, usize); 3] {
        let (q, kv) = (self.heads.saturating_mul(depth), self.kv_heads.saturating_mul(depth));
        match self.packing {
            Packing::Separate => [(0, 0), (1, 0), (2, 0)],
            Packing::KeysValues => [(0, 0), (1, 0), (1, kv)],
            Packing::All => [(0, 0), (0, q), (0, q + kv)],
        }
    }

    /// The dimensions, or why the tensors are incompatible.
    pub fn shape(&self, tensors: &[&Shape]) -> Result<AttentionShape, String> {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 {
            return Err(format!("cannot share {kv_heads} heads of keys among {heads} heads of queries"));
        }
        let sequence = |shape: &Shape, parts: usize| match *shape.dims() {
            [batch, length, width] => match (length.as_fixed(), width.as_fixed()) {
                (Some(length @ 1..), Some(width @ 1..)) if width % parts == 0 => Ok((batch, length, width / parts)),
                _ => Err(format!("cannot cut the shape {shape} into {parts} parts of equal depth")),
            },
            _ => Err(format!("takes sequences [batch, length, width], but got the shape {shape}")),
        };
        let (batch, queries, depth, others) = match (self.packing, tensors) {
            (Packing::Separate, [q, k, v]) => {
                let (batch, queries, depth) = sequence(q, heads)?;
                (batch, queries, depth, vec![sequence(k, kv_heads)?, sequence(v, kv_heads)?])
            }
            (Packing::KeysValues, [q, kv]) => {
                let (batch, queries, depth) = sequence(q, heads)?;
                (batch, queries, depth, vec![sequence(kv, kv_heads.saturating_mul(2))?])
            }
            (Packing::All, [qkv]) => {
                let (batch, queries, depth) = sequence(qkv, heads.saturating_add(kv_heads.saturating_mul(2)))?;
                (batch, queries, depth, vec![(batch, queries, depth)])
            }
            (packing, _) => return Err(format!("takes {} sequences, but got {}", packing.tensors(), tensors.len())),
        };
        let keys = others[0].1;
        if others.iter().any(|other| *other != (batch, keys, depth)) {
            let shapes: Vec<String> = tensors.iter().map(|shape| shape.to_string()).collect();
            return Err(format!("shapes {} do not go together ({heads} heads of queries, {kv_heads} of keys)", shapes.join(", ")));
        }
        Ok(AttentionShape { batch, queries, keys, depth })
    }

    fn text(&self) -> String {
        let heads = match (self.heads, self.kv_heads) {
            (1, 1) => "1 head".to_string(),
            (heads, kv_heads) if heads == kv_heads => format!("{heads} heads"),
            (heads, kv_heads) => format!("{heads} heads on {kv_heads}"),
        };
        let packing = match self.packing {
            Packing::Separate => "",
            Packing::KeysValues => ", kv packed",
            Packing::All => ", qkv packed",
        };
        let dropout = self.dropout.map_or(String::new(), |dropout| format!(", dropout {} from #{}", dropout.rate(), dropout.stream));
        format!("{heads}{packing}{}, scale {}{dropout}", if self.causal { ", causal" } else { "" }, self.scale())
    }

    /// The dimensions from an op's inputs, of which `behind` follow the operands and the mask.
    fn checked(&self, inputs: &[&TensorType], behind: usize) -> Result<AttentionShape, String> {
        let count = self.packing.tensors();
        let masks = inputs.len().checked_sub(count + behind).filter(|masks| *masks <= 1);
        let Some(masks) = masks else {
            let (least, given) = (count + behind, inputs.len());
            return Err(format!("takes {least} tensors, or {} with a mask of the keys, but got {given}", least + 1));
        };
        expect_real(&inputs[..count])?;
        if let Some(dropout) = self.dropout.filter(|dropout| !(0.0..1.0).contains(&dropout.rate())) {
            return Err(format!("drops a share of weights from 0 to below 1, but got {}", dropout.rate()));
        }
        let shape = self.shape(&inputs[..count].iter().map(|input| &input.shape).collect::<Vec<_>>())?;
        if self.dropout.is_some() && shape.batch.as_fixed().is_some() {
            return Err("drops weights of sequences that the batch has, but their number is fixed".to_string());
        }
        let visible = Shape::new([shape.batch, shape.keys.into()]);
        match inputs[count..count + masks] {
            [mask] if mask.shape != visible => Err(format!("takes a mask {visible} of the keys, but got {mask}")),
            _ => Ok(shape),
        }
    }

    /// Operations of `products` matrix products and of the softmax, over the unmasked pairs.
    fn cost(&self, inputs: &[&TensorType], rows: usize, products: u64, beside: u64) -> u64 {
        let count = self.packing.tensors();
        let tensors: Vec<&Shape> = inputs[..count].iter().map(|input| &input.shape).collect();
        let shape = self.shape(&tensors).expect("checked when the node was added");
        let (queries, keys) = (shape.queries as u64, shape.keys as u64);
        let pairs = if self.causal {
            // A triangle over the first keys, then full rows.
            let steps = queries.min(keys);
            (steps.saturating_mul(steps.saturating_add(1)) / 2).saturating_add((queries - steps).saturating_mul(keys))
        } else {
            queries.saturating_mul(keys)
        };
        let each = (shape.depth as u64).saturating_mul(2 * products).saturating_add(beside);
        (shape.batch.bind(rows).saturating_mul(self.heads) as u64).saturating_mul(pairs).saturating_mul(each)
    }
}

impl AttentionShape {
    fn results(&self, attention: &Attention, dtype: DType) -> [TensorType; 2] {
        let width = attention.heads.saturating_mul(self.depth);
        [
            TensorType::new(dtype, Shape::new([self.batch, self.queries.into(), width.into()])),
            TensorType::f32(Shape::new([self.batch, attention.heads.into(), self.queries.into()])),
        ]
    }
}

impl OpRules for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn precision(&self) -> Precision {
        Precision::Window
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        self.text()
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let shape = self.checked(inputs, 0)?;
        Ok(shape.results(self, inputs[0].dtype).into())
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        if adjoint.gradients[1].is_some() {
            return Err(adjoint.graph.error("the log-sum-exp of attention is a statistic; a loss cannot depend on it"));
        }
        let dy = adjoint.output_gradient(0)?;
        let operands: Vec<ValueId> = adjoint.inputs.iter().chain(&adjoint.outputs).copied().chain([dy]).collect();
        let found = adjoint.graph.add(Op::AttentionGrad(AttentionGrad { attention: self.clone() }), &operands)?;
        let mut gradients: Vec<Option<ValueId>> = found.into_iter().map(Some).collect();
        gradients.resize(adjoint.inputs.len(), None);
        Ok(gradients)
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        self.cost(inputs, rows, 2, 4)
    }

    /// Only separate queries can be overwritten.
    fn in_place(&self, input: usize, output: usize) -> bool {
        self.packing != Packing::All && input == 0 && output == 0
    }
}

impl OpRules for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn precision(&self) -> Precision {
        Precision::Window
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        self.attention.text()
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let shape = self.attention.checked(inputs, 3)?;
        let behind = &inputs[inputs.len() - 3..];
        let [result, logarithms] = shape.results(&self.attention, inputs[0].dtype);
        let [o, lse, dy] = behind else { unreachable!("three were counted") };
        expect_real(&[dy])?;
        if **o != result || **lse != logarithms || dy.shape != o.shape {
            return Err(format!("result {o}, logarithms {lse} and gradient {dy} do not belong to this attention, which gives {result}"));
        }
        Ok(inputs[..self.attention.packing.tensors()].iter().map(|input| (*input).clone()).collect())
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("the gradient of attention cannot be differentiated again"))
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        self.attention.cost(inputs, rows, 5, 6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causality_halves_the_work() {
        let cost = |queries: usize, keys: usize, causal: bool| {
            let sequence = |length: usize| TensorType::f32(Shape::batch_of([length, 8]));
            let (q, kv) = (sequence(queries), sequence(keys));
            let op = Attention { causal, ..Attention::new(Packing::Separate, 2, 4) };
            op.flops(&[&q, &kv, &kv], &[], 3)
        };
        // Three sequences of two heads, two products of depth four and the softmax.
        let each = 3 * 2 * (2 * 2 * 4 + 4);
        assert_eq!((cost(100, 100, false), cost(100, 100, true)), (each * 100 * 100, each * 5050));
        assert_eq!((cost(10, 100, true), cost(100, 10, true)), (each * 55, each * (55 + 90 * 10)));
    }
}
