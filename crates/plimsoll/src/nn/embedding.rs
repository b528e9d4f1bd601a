//! Token embeddings, and logits that share them.

use super::keras::KerasLayer;
use super::{Initializer, Layer, LayerDef, Lowering, single_input};
use plimsoll_core::ops::{Concat, Gather, MatMul, Slice};
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, Dim, GraphError, Op, ValueId};
use serde_json::json;
use std::sync::Arc;

/// A trainable vector per token: token IDs `[batch, …]` become `[batch, …, width]`.
///
/// An ID out of range gives zeros.
#[derive(Clone, Debug)]
pub struct Embedding {
    vocabulary: usize,
    width: usize,
    initializer: Initializer,
    mask_zero: bool,
}

/// Logits over the vocabulary: the product with the vectors of an [`Embedding`], which it shares.
/// Place it with [`Functional::tied`](super::Functional::tied).
#[derive(Clone, Debug)]
pub struct EmbeddingScores {
    vocabulary: usize,
}

/// Prepends a trainable class token to a sequence.
#[derive(Clone, Debug, Default)]
pub struct ClassToken;

/// Selects one time step: `[batch, time, width]` becomes `[batch, width]`.
#[derive(Clone, Copy, Debug)]
pub struct TakeStep {
    last: bool,
}

impl Embedding {
    /// Vectors of size `width` for `vocabulary` tokens, initialized uniformly in ±0.05.
    pub fn new(vocabulary: usize, width: usize) -> Embedding {
        Embedding { vocabulary, width, initializer: Initializer::Uniform(0.05), mask_zero: false }
    }

    /// Sets the embeddings initializer.
    pub fn initializer(self, initializer: Initializer) -> Embedding {
        Embedding { initializer, ..self }
    }

    /// Token 0 is padding: recurrent layers, attention and global pooling after it skip those steps.
    pub fn mask_zero(self) -> Embedding {
        Embedding { mask_zero: true, ..self }
    }

    /// The layer that computes logits with the same vectors.
    pub fn scores(&self) -> EmbeddingScores {
        EmbeddingScores { vocabulary: self.vocabulary }
    }
}

impl TakeStep {
    /// The first time step.
    pub fn first() -> TakeStep {
        TakeStep { last: false }
    }

    /// The last time step.
    pub fn last() -> TakeStep {
        TakeStep { last: true }
    }
}

/// `type = "embedding"`.
pub(super) const EMBEDDING: LayerDef = LayerDef {
    name: "embedding",
    about: "Looks up a trainable vector for every token ID; with `mask_zero`, layers after it skip token 0, which is padding.",
    example: "vocabulary = 10000\nwidth = 128",
    from_config: |config| {
        let layer = Embedding::new(config.vocabulary()?, config.required_count("width", 1, "the size of a token's vector")?);
        let layer = if config.flag_or("mask_zero", false)? { layer.mask_zero() } else { layer };
        Ok(Arc::new(layer.initializer(config.choice_or("initializer", Initializer::NAMES, "random_uniform")?)))
    },
};

impl Layer for Embedding {
    fn kind(&self) -> &'static str {
        EMBEDDING.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let config = json!({ "input_dim": self.vocabulary, "output_dim": self.width, "mask_zero": self.mask_zero });
        Some(vec![KerasLayer::new("Embedding", config).weights(&["embeddings"])])
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let tokens = single_input(lowering, inputs)?;
        if self.vocabulary == 0 || self.width == 0 {
            return Err(lowering.graph.error("needs a vocabulary and a width of at least 1"));
        }
        let ty = lowering.graph.ty(tokens).clone();
        if !matches!(ty.dtype, DType::I32 | DType::U8) {
            return Err(lowering.graph.error(format!("expects token IDs of type i32 or u8, but received {ty}")));
        }
        if self.mask_zero {
            if ty.shape.rank() != 2 {
                return Err(lowering.graph.error(format!("masks sequences of token IDs [batch, time], but received {ty}")));
            }
            let real = lowering.graph.cast(tokens, DType::F32)?;
            lowering.new_mask = Some(lowering.graph.map(real, |e, x| e.select(x, e.constant(1.0), e.constant(0.0)))?);
        }
        let init = self.initializer.init(self.vocabulary, self.width);
        let table = lowering.parameter("embeddings", [self.vocabulary, self.width], init)?;
        lowering.graph.add_one(Op::Gather(Gather { dtype: DType::F32 }), &[table, tokens])
    }

    fn reads_integers(&self) -> bool {
        true
    }

    fn input_bound(&self) -> Option<usize> {
        Some(self.vocabulary)
    }
}

/// `type = "embedding_scores"`.
pub(super) const EMBEDDING_SCORES: LayerDef = LayerDef {
    name: "embedding_scores",
    about: "Logits over the vocabulary; with `shares`, tied to an embedding.",
    example: "vocabulary = 10000",
    from_config: |config| Ok(Arc::new(Embedding::new(config.vocabulary()?, 1).scores())),
};

impl Layer for EmbeddingScores {
    fn kind(&self) -> &'static str {
        EMBEDDING_SCORES.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let Some(width) = shape.last().and_then(|dim| dim.as_fixed()).filter(|_| shape.rank() >= 2) else {
            return Err(lowering.graph.error(format!("expects an input of shape [batch, …, features], but received {shape}")));
        };
        let init = Initializer::Uniform(0.05).init(self.vocabulary, width);
        let table = lowering.parameter("embeddings", [self.vocabulary, width], init)?;
        let g = &mut *lowering.graph;
        let rows = Shape::new(shape.dims()[..shape.rank() - 1].iter().copied()).elements();
        let x = g.reshape(x, Shape::new([rows, width.into()]))?;
        let y = g.add_one(Op::MatMul(MatMul { transpose_b: true, ..MatMul::default() }), &[x, table])?;
        g.reshape(y, shape.with(shape.rank() - 1, Dim::fixed(self.vocabulary)))
    }
}

/// Batch, length and width of `[batch, time, width]`.
pub(super) fn sequence_dims(lowering: &Lowering<'_>, x: ValueId) -> Result<(Dim, usize, usize), GraphError> {
    let shape = lowering.graph.shape(x);
    match shape.dims() {
        &[batch, time, width] if !time.is_batch() && !width.is_batch() && time.factor() > 0 => Ok((batch, time.factor(), width.factor())),
        _ => Err(lowering.graph.error(format!("expects sequences of shape [batch, time, width], but received {shape}"))),
    }
}

/// `type = "class_token"`.
pub(super) const CLASS_TOKEN: LayerDef = LayerDef {
    name: "class_token",
    about: "Prepends a trainable class token to a sequence.",
    example: "",
    from_config: |_| Ok(Arc::new(ClassToken)),
};

impl Layer for ClassToken {
    fn kind(&self) -> &'static str {
        CLASS_TOKEN.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let (batch, _, width) = sequence_dims(lowering, x)?;
        let token = lowering.parameter("token", [width], Initializer::Zeros.init(1, width))?;
        let g = &mut *lowering.graph;
        let token = g.pointwise_over(plimsoll_core::expr::Expr::identity(), &[token], Shape::new([batch, 1.into(), width.into()]))?;
        g.add_one(Op::Concat(Concat { axis: 1 }), &[token, x])
    }
}

/// `type = "take_step"`.
pub(super) const TAKE_STEP: LayerDef = LayerDef {
    name: "take_step",
    about: "Selects the `\"first\"` or `\"last\"` time step.",
    example: "",
    from_config: |config| {
        let last = config.choice_or("which", &[("first", false), ("last", true)], "last")?;
        Ok(Arc::new(if last { TakeStep::last() } else { TakeStep::first() }))
    },
};

impl Layer for TakeStep {
    fn kind(&self) -> &'static str {
        TAKE_STEP.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let (batch, time, width) = sequence_dims(lowering, x)?;
        let start = if self.last { time - 1 } else { 0 };
        let step = lowering.graph.add_one(Op::Slice(Slice { axis: 1, start, length: 1 }), &[x])?;
        lowering.graph.reshape(step, Shape::new([batch, width.into()]))
    }
}
