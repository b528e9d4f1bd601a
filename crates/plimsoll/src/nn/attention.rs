//! Attention of several heads over sequences.

use super::dropout::drops;
use super::embedding::sequence;
use super::{Initializer, Layer, LayerDef, Lowering};
use plimsoll_core::graph::Init;
use plimsoll_core::ops::{Attention, Packing, WeightDropout};
use plimsoll_core::shape::Shape;
use plimsoll_core::{GraphError, Op, ValueId};
use std::sync::Arc;

/// Every element of a sequence looks at the others, or at those of a second sequence, and takes from them what it looks for.
///
/// Reads `[batch, time, width]`; with [`cross`](MultiHeadAttention::cross) also the second sequence; with
/// [`masked`](MultiHeadAttention::masked) also a mask `[batch, time]` of what may be looked at. Memory grows with the length, not its square.
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
    /// This many heads, which share the width among them.
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

    /// No element looks at a later one.
    pub fn causal(self) -> MultiHeadAttention {
        MultiHeadAttention { causal: true, ..self }
    }

    /// The last tensor it reads is a mask of what may be looked at; zero hides.
    pub fn masked(self) -> MultiHeadAttention {
        MultiHeadAttention { masked: true, ..self }
    }

    /// The second tensor it reads is the sequence that is looked at.
    pub fn cross(self) -> MultiHeadAttention {
        MultiHeadAttention { cross: true, ..self }
    }

    /// With heads of this many numbers.
    pub fn depth(self, depth: usize) -> MultiHeadAttention {
        MultiHeadAttention { depth: Some(depth), ..self }
    }

    /// With fewer heads to be looked at, each shared by several that look.
    pub fn kv_heads(self, heads: usize) -> MultiHeadAttention {
        MultiHeadAttention { kv_heads: Some(heads), ..self }
    }

    /// With or without biases.
    pub fn bias(self, bias: bool) -> MultiHeadAttention {
        MultiHeadAttention { bias, ..self }
    }

    /// While learning, leaves this share of the attention weights out, in [0, 1), and scales the others up.
    pub fn dropout(self, rate: f32) -> MultiHeadAttention {
        MultiHeadAttention { dropout: rate, ..self }
    }

    /// With weights that start otherwise.
    pub fn initializer(self, initializer: Initializer) -> MultiHeadAttention {
        MultiHeadAttention { initializer, ..self }
    }

    /// With weights behind the heads that start otherwise still.
    pub fn output_initializer(self, initializer: Initializer) -> MultiHeadAttention {
        MultiHeadAttention { output_initializer: Some(initializer), ..self }
    }

    /// A product of the last axis with weights of its own; `fan_out` is that of one of the parts it makes.
    fn project(
        &self,
        lowering: &mut Lowering<'_>,
        name: &str,
        x: ValueId,
        (out, fan_out): (usize, usize),
        initializer: Initializer,
    ) -> Result<ValueId, GraphError> {
        let (batch, time, width) = sequence(lowering, x)?;
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
            return Err(lowering.graph.error(format!("reads {wanted} tensors, but is connected to {}", inputs.len())));
        }
        let x = inputs[0];
        let (_, _, width) = sequence(lowering, x)?;
        let (heads, kv_heads) = (self.heads, self.kv_heads.unwrap_or(self.heads));
        let depth = match self.depth {
            Some(depth) => depth,
            None if heads > 0 && width.is_multiple_of(heads) => width / heads,
            None => return Err(lowering.graph.error(format!("{heads} heads cannot share a width of {width}"))),
        };
        let (q, kv) = (heads * depth, kv_heads * depth);
        let (packing, mut operands) = if self.cross {
            let query = self.project(lowering, "query", x, (q, q), self.initializer)?;
            (Packing::KeysValues, vec![query, self.project(lowering, "key_value", inputs[1], (2 * kv, kv), self.initializer)?])
        } else {
            (Packing::All, vec![self.project(lowering, "query_key_value", x, (q + 2 * kv, q), self.initializer)?])
        };
        operands.extend(self.masked.then(|| inputs[wanted - 1]));
        let dropout = drops(lowering, self.dropout)?.then(|| WeightDropout::new(self.dropout, lowering.graph.stream()));
        let attention = Attention { kv_heads, causal: self.causal, dropout, ..Attention::new(packing, heads, depth) };
        let seen = lowering.graph.add(Op::Attention(attention), &operands)?[0];
        self.project(lowering, "output", seen, (width, width), self.output_initializer.unwrap_or(self.initializer))
    }
}
