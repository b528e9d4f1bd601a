//! Dropout during training. Masks are not stored: the backward pass regenerates them from the same random stream.

use super::keras::KerasLayer;
use super::shape::row_shape;
use super::{Int8, Layer, LayerDef, Lowering, single_input};
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::shape::Shape;
use plimsoll_core::{Dim, GraphError, ValueId};
use serde_json::json;
use std::sync::Arc;

/// Sets random elements to zero during training and scales the others by `1 / (1 - rate)`.
#[derive(Clone, Debug)]
pub struct Dropout {
    rate: f32,
}

/// Drops whole channels of an example.
#[derive(Clone, Debug)]
pub struct SpatialDropout {
    rate: f32,
}

/// Drops whole examples: in a residual branch, random examples skip the block. The others are scaled by
/// `1 / (1 - rate)`.
#[derive(Clone, Debug)]
pub struct StochasticDepth {
    rate: f32,
}

/// Dropout that keeps mean and variance behind SELU: elements are set to the limit of SELU below zero.
#[derive(Clone, Debug)]
pub struct AlphaDropout {
    rate: f32,
}

macro_rules! rated {
    ($layer:ident) => {
        impl $layer {
            /// The fraction to drop, in [0, 1).
            pub fn new(rate: f32) -> $layer {
                $layer { rate }
            }
        }
    };
}

rated!(Dropout);
rated!(SpatialDropout);
rated!(StochasticDepth);
rated!(AlphaDropout);

/// Whether anything is dropped, or an error if the rate is out of range.
pub(super) fn drops(lowering: &Lowering<'_>, rate: f32) -> Result<bool, GraphError> {
    if !(0.0..1.0).contains(&rate) {
        return Err(lowering.graph.error(format!("the dropout rate should be from 0 to below 1, but is {rate}")));
    }
    Ok(lowering.training && rate > 0.0)
}

/// Multiplies by a random mask of this shape, scaled by `1 / (1 - rate)`.
fn mask(lowering: &mut Lowering<'_>, x: ValueId, shape: Shape, rate: f32) -> Result<ValueId, GraphError> {
    let g = &mut *lowering.graph;
    let stream = g.stream();
    let draw = Expr::build(|e| {
        let kept = e.binary(Binary::LessEq, e.constant(rate), e.random(stream));
        e.mul(kept, e.constant(1.0 / (1.0 - rate)))
    });
    let mask = g.pointwise_over(draw, &[], shape)?;
    g.times(x, mask)
}

/// `type = "dropout"`.
pub(super) const DROPOUT: LayerDef = LayerDef {
    name: "dropout",
    about: "Dropout.",
    example: "rate = 0.5",
    from_config: |config| Ok(Arc::new(Dropout::new(config.rate()?))),
};

impl Layer for Dropout {
    fn kind(&self) -> &'static str {
        DROPOUT.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        Some(vec![KerasLayer::new("Dropout", json!({ "rate": self.rate }))])
    }

    fn keeps_sign(&self) -> bool {
        true
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        if !drops(lowering, self.rate)? {
            return Ok(x);
        }
        let g = &mut *lowering.graph;
        let stream = g.stream();
        let expr = Expr::build(|e| {
            let kept = e.binary(Binary::LessEq, e.constant(self.rate), e.random(stream));
            e.select(kept, e.mul(e.input(0), e.constant(1.0 / (1.0 - self.rate))), e.constant(0.0))
        });
        g.pointwise(expr, &[x])
    }

    fn keeps_channels(&self) -> bool {
        true
    }
}

/// `type = "spatial_dropout"`.
pub(super) const SPATIAL_DROPOUT: LayerDef = LayerDef {
    name: "spatial_dropout",
    about: "Dropout of whole channels.",
    example: "rate = 0.5",
    from_config: |config| Ok(Arc::new(SpatialDropout::new(config.rate()?))),
};

impl Layer for SpatialDropout {
    fn kind(&self) -> &'static str {
        SPATIAL_DROPOUT.name
    }

    fn to_keras(&self, inputs: &[Shape]) -> Option<Vec<KerasLayer>> {
        let class = if inputs.first()?.rank() == 3 { "SpatialDropout1D" } else { "SpatialDropout2D" };
        Some(vec![KerasLayer::new(class, json!({ "rate": self.rate }))])
    }

    fn keeps_sign(&self) -> bool {
        true
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        if !drops(lowering, self.rate)? {
            return Ok(x);
        }
        let (batch, row) = row_shape(lowering, x)?;
        let ones = row.iter().skip(1).map(|_| Dim::fixed(1));
        let channels = Dim::fixed(row.last().copied().unwrap_or(1));
        let shape = Shape::new(std::iter::once(batch).chain(ones).chain([channels]));
        mask(lowering, x, shape, self.rate)
    }
}

/// `type = "stochastic_depth"`.
pub(super) const STOCHASTIC_DEPTH: LayerDef = LayerDef {
    name: "stochastic_depth",
    about: "Drops the whole residual branch of an example.",
    example: "rate = 0.5",
    from_config: |config| Ok(Arc::new(StochasticDepth::new(config.rate()?))),
};

impl Layer for StochasticDepth {
    fn kind(&self) -> &'static str {
        STOCHASTIC_DEPTH.name
    }

    fn to_keras(&self, inputs: &[Shape]) -> Option<Vec<KerasLayer>> {
        // One random number per example.
        let noise: Vec<Option<usize>> = (0..inputs.first()?.rank()).map(|axis| (axis > 0).then_some(1)).collect();
        Some(vec![KerasLayer::new("Dropout", json!({ "rate": self.rate, "noise_shape": noise }))])
    }

    fn keeps_sign(&self) -> bool {
        true
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        if !drops(lowering, self.rate)? {
            return Ok(x);
        }
        let (batch, row) = row_shape(lowering, x)?;
        let shape = Shape::new(std::iter::once(batch).chain(row.iter().map(|_| Dim::fixed(1))));
        mask(lowering, x, shape, self.rate)
    }
}

/// The limit of SELU below zero.
const SELU_LOWEST: f32 = -1.758_099_3;

/// `type = "alpha_dropout"`.
pub(super) const ALPHA_DROPOUT: LayerDef = LayerDef {
    name: "alpha_dropout",
    about: "Dropout that keeps mean and variance behind SELU.",
    example: "rate = 0.5",
    from_config: |config| Ok(Arc::new(AlphaDropout::new(config.rate()?))),
};

impl Layer for AlphaDropout {
    fn kind(&self) -> &'static str {
        ALPHA_DROPOUT.name
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        if !drops(lowering, self.rate)? {
            return Ok(x);
        }
        let g = &mut *lowering.graph;
        let (stream, rate) = (g.stream(), self.rate);
        let scale = ((1.0 - rate) * (1.0 + rate * SELU_LOWEST * SELU_LOWEST)).sqrt().recip();
        let shift = -scale * SELU_LOWEST * rate;
        let expr = Expr::build(|e| {
            let kept = e.binary(Binary::LessEq, e.constant(rate), e.random(stream));
            let x = e.select(kept, e.input(0), e.constant(SELU_LOWEST));
            e.add(e.mul(x, e.constant(scale)), e.constant(shift))
        });
        g.pointwise(expr, &[x])
    }
}
