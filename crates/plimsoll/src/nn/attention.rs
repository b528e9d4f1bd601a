//! Multi-head attention.

use super::dropout::drops;
use super::embedding::sequence_dims;
use super::{Initializer, Layer, LayerDef, Lowering};
use plimsoll_core::graph::Init;
use plimsoll_core::ops::{Attention, Packing, WeightDropout};
use plimsoll_core::shape::Shape;
use plimsoll_core::{GraphError, Op, ValueId};
use std::sync::Arc;

/// Multi-head self-attention, or cross-attention with a second sequence.
///
/// The input is `[batch, time, width]`; with [`cross`](MultiHeadAttention::cross) also a second sequence; with
/// [`masked`](MultiHeadAttention::masked) also a mask `[batch, time]` of the keys. Memory is linear in the sequence
/// length.
///
/// ```
/// use plimsoll::nn::MultiHeadAttention;
/// let layer = MultiHeadAttention::new(8).causal();
/// ```
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    heads: usize,
    kv_heads: Option<usize>,
    depth: Option<usize>,
    causal: bool,
    masked: bool,
    cross: bool,
    bias: bool,
    dropout: f32,
    initializer: Initializer,
    output_initializer: Option<Initializer>,
}

impl MultiHeadAttention {
    /// The number of heads; the size of a head is the width divided by it.
    pub fn new(heads: usize) -> MultiHeadAttention {
        MultiHeadAttention {
            heads,
            kv_heads: None,
            depth: None,
            causal: false,
            masked: false,
            cross: false,
            bias: true,
            dropout: 0.0,
            initializer: Initializer::default(),
            output_initializer: None,
        }
    }

    /// Causal attention: a query attends to no later key.
    pub fn causal(self) -> MultiHeadAttention {
        MultiHeadAttention { causal: true, ..self }
    }

    /// The last input is a mask of the keys; zero hides a key.
    pub fn masked(self) -> MultiHeadAttention {
        MultiHeadAttention { masked: true, ..self }
    }

    /// Cross-attention: the second input provides keys and values.
    pub fn cross(self) -> MultiHeadAttention {
        MultiHeadAttention { cross: true, ..self }
    }

    /// Sets the size of a head.
    pub fn depth(self, depth: usize) -> MultiHeadAttention {
        MultiHeadAttention { depth: Some(depth), ..self }
    }

    /// Grouped-query attention: the number of key/value heads, each shared by several query heads.
    pub fn kv_heads(self, heads: usize) -> MultiHeadAttention {
        MultiHeadAttention { kv_heads: Some(heads), ..self }
    }

    /// Whether to add biases to the projections.
    pub fn bias(self, bias: bool) -> MultiHeadAttention {
        MultiHeadAttention { bias, ..self }
    }

    /// Sets the dropout rate of the attention weights during training, in [0, 1).
    pub fn dropout(self, rate: f32) -> MultiHeadAttention {
        MultiHeadAttention { dropout: rate, ..self }
    }

    /// Sets the kernel initializer.
    pub fn initializer(self, initializer: Initializer) -> MultiHeadAttention {
        MultiHeadAttention { initializer, ..self }
    }

    /// Sets the initializer of the output projection.
    pub fn output_initializer(self, initializer: Initializer) -> MultiHeadAttention {
        MultiHeadAttention { output_initializer: Some(initializer), ..self }
    }

    /// A linear projection of the last axis; `fan_out` is that of one of the projections it combines.
    fn project(
        &self,
        lowering: &mut Lowering<'_>,
        name: &str,
        x: ValueId,
        (out, fan_out): (usize, usize),
        initializer: Initializer,
    ) -> Result<ValueId, GraphError> {
        let (batch, time, width) = sequence_dims(lowering, x)?;
        let kernel = lowering.parameter(&format!("{name}_kernel"), [width, out], initializer.init(width, fan_out))?;
        let rows = Shape::new([batch, time.into()]).elements();
        let x = lowering.graph.reshape(x, Shape::new([rows, width.into()]))?;
        let mut y = lowering.graph.matmul(x, kernel)?;
        if self.bias {
            let bias = lowering.parameter(&format!("{name}_bias"), [out], Init::Constant(0.0))?;
            y = lowering.graph.plus(y, bias)?;
        }
        lowering.graph.reshape(y, Shape::new([batch, time.into(), out.into()]))
    }
}

/// `type = "multi_head_attention"`.
pub(super) const MULTI_HEAD_ATTENTION: LayerDef = LayerDef {
    name: "multi_head_attention",
    about: "Multi-head self- or cross-attention; `dropout` of attention weights.",
    example: "heads = 8",
    from_config: |config| {
        let heads = config.required_count("heads", 1, "the number of attention heads")?;
        let mut layer = MultiHeadAttention::new(heads).bias(config.bias()?).initializer(config.initializer()?);
        if let Some(depth) = config.count("depth", 1)? {
            layer = layer.depth(depth as usize);
        }
        if let Some(heads) = config.count("kv_heads", 1)? {
            layer = layer.kv_heads(heads as usize);
        }
        layer = layer.dropout(config.number_or("dropout", 0.0)?);
        layer = if config.flag_or("causal", false)? { layer.causal() } else { layer };
        layer = if config.flag_or("cross", false)? { layer.cross() } else { layer };
        Ok(Arc::new(if config.flag_or("masked", false)? { layer.masked() } else { layer }))
    },
};

impl Layer for MultiHeadAttention {
    fn kind(&self) -> &'static str {
        MULTI_HEAD_ATTENTION.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let wanted = 1 + usize::from(self.cross) + usize::from(self.masked);
        if inputs.len() != wanted {
            return Err(lowering.graph.error(format!("expects {wanted} inputs, but received {}", inputs.len())));
        }
        let x = inputs[0];
        let (_, _, width) = sequence_dims(lowering, x)?;
        let (heads, kv_heads) = (self.heads, self.kv_heads.unwrap_or(self.heads));
        let depth = match self.depth {
            Some(depth) => depth,
            None if heads > 0 && width.is_multiple_of(heads) => width / heads,
            None => return Err(lowering.graph.error(format!("the width {width} is not divisible by {heads} heads"))),
        };
        let (q, kv) = (heads.saturating_mul(depth), kv_heads.saturating_mul(depth));
        let (packing, mut operands) = if self.cross {
            let query = self.project(lowering, "query", x, (q, q), self.initializer)?;
            (
                Packing::KeysValues,
                vec![query, self.project(lowering, "key_value", inputs[1], (kv.saturating_mul(2), kv), self.initializer)?],
            )
        } else {
            (
                Packing::All,
                vec![self.project(lowering, "query_key_value", x, (q.saturating_add(kv.saturating_mul(2)), q), self.initializer)?],
            )
        };
        let own = lowering.mask.filter(|_| !self.cross);
        operands.extend(if self.masked { Some(inputs[wanted - 1]) } else { own });
        let dropout = drops(lowering, self.dropout)?.then(|| WeightDropout::new(self.dropout, lowering.graph.stream()));
        let attention = Attention { kv_heads, causal: self.causal, dropout, ..Attention::new(packing, heads, depth) };
        let seen = lowering.graph.add(Op::Attention(attention), &operands)?[0];
        self.project(lowering, "output", seen, (width, width), self.output_initializer.unwrap_or(self.initializer))
    }
}
