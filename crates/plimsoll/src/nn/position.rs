//! Position encodings.

use super::embedding::sequence_dims;
use super::trigonometry::{cosine, sine};
use super::{Initializer, Layer, LayerDef, Lowering, single_input};
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::ops::Slice;
use plimsoll_core::{GraphError, Op, ValueId};
use std::sync::Arc;

/// Adds a trainable vector for every position of `[batch, time, width]`.
#[derive(Clone, Debug)]
pub struct PositionEmbedding {
    context: usize,
    initializer: Initializer,
}

/// Adds sinusoidal position encodings: even features are sines, odd ones cosines.
#[derive(Clone, Debug, Default)]
pub struct SinusoidalPositions;

impl PositionEmbedding {
    /// For sequences of at most `context` steps.
    pub fn new(context: usize) -> PositionEmbedding {
        PositionEmbedding { context, initializer: Initializer::Normal(0.02) }
    }

    /// Sets the embeddings initializer.
    pub fn initializer(self, initializer: Initializer) -> PositionEmbedding {
        PositionEmbedding { initializer, ..self }
    }
}

/// `type = "position_embedding"`.
pub(super) const POSITION_EMBEDDING: LayerDef = LayerDef {
    name: "position_embedding",
    about: "Adds a trainable vector for every position.",
    example: "context = 256",
    from_config: |config| Ok(Arc::new(PositionEmbedding::new(config.required_count("context", 1, "the maximum sequence length")?))),
};

impl Layer for PositionEmbedding {
    fn kind(&self) -> &'static str {
        POSITION_EMBEDDING.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let (_, time, width) = sequence_dims(lowering, x)?;
        if time > self.context {
            let what =
                format!("the sequence length {time} exceeds the context of {}; shorten the sequences or raise `context`", self.context);
            return Err(lowering.graph.error(what));
        }
        let init = self.initializer.init(self.context, width);
        let mut positions = lowering.parameter("positions", [self.context, width], init)?;
        if time < self.context {
            positions = lowering.graph.add_one(Op::Slice(Slice { axis: 0, start: 0, length: time }), &[positions])?;
        }
        lowering.graph.plus(x, positions)
    }
}

/// `type = "sinusoidal_positions"`.
pub(super) const SINUSOIDAL_POSITIONS: LayerDef = LayerDef {
    name: "sinusoidal_positions",
    about: "Adds sinusoidal position encodings.",
    example: "",
    from_config: |_| Ok(Arc::new(SinusoidalPositions)),
};

impl Layer for SinusoidalPositions {
    fn kind(&self) -> &'static str {
        SINUSOIDAL_POSITIONS.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let (_, _, width) = sequence_dims(lowering, x)?;
        let waves = Expr::build(|e| {
            let (place, feature) = (e.coordinate(1), e.coordinate(2));
            let pair = e.unary(Unary::Floor, e.mul(feature, e.constant(0.5)));
            // Wavelengths grow geometrically from 2π to 10,000·2π.
            let rate = e.unary(Unary::Exp, e.mul(pair, e.constant(-2.0 * 10_000f32.ln() / width as f32)));
            let turns = e.mul(e.mul(place, rate), e.constant(std::f32::consts::TAU.recip()));
            let odd = e.binary(Binary::Less, e.add(pair, pair), feature);
            e.add(e.input(0), e.select(odd, cosine(e, turns), sine(e, turns)))
        });
        lowering.graph.pointwise(waves, &[x])
    }
}
