//! Gaussian noise during training.

use super::trigonometry::cosine;
use super::{Int8, Layer, LayerDef, Lowering, single_input};
use plimsoll_core::expr::{Expr, ExprBuilder, TermId, Unary};
use plimsoll_core::{GraphError, ValueId};
use std::sync::Arc;

/// Adds zero-centred Gaussian noise during training.
#[derive(Clone, Debug)]
pub struct GaussianNoise {
    deviation: f32,
}

/// Multiplies by Gaussian noise centred at 1, with the variance of dropout at the same rate.
#[derive(Clone, Debug)]
pub struct GaussianDropout {
    rate: f32,
}

impl GaussianNoise {
    /// Sets the standard deviation.
    pub fn new(deviation: f32) -> GaussianNoise {
        GaussianNoise { deviation }
    }
}

impl GaussianDropout {
    /// With the variance of dropout at this rate, in [0, 1).
    pub fn new(rate: f32) -> GaussianDropout {
        GaussianDropout { rate }
    }
}

/// A normal random number by the Box–Muller transform.
fn normal(e: &ExprBuilder, streams: (u32, u32)) -> TermId {
    // One minus a number below one is never zero.
    let open = e.sub(e.constant(1.0), e.random(streams.0));
    let radius = e.unary(Unary::Sqrt, e.mul(e.constant(-2.0), e.unary(Unary::Log, open)));
    e.mul(radius, cosine(e, e.random(streams.1)))
}

/// `type = "gaussian_noise"`.
pub(super) const GAUSSIAN_NOISE: LayerDef = LayerDef {
    name: "gaussian_noise",
    about: "Adds zero-centred Gaussian noise.",
    example: "deviation = 0.1",
    from_config: |config| Ok(Arc::new(GaussianNoise::new(config.required_number("deviation", "the standard deviation of the noise")?))),
};

impl Layer for GaussianNoise {
    fn kind(&self) -> &'static str {
        GAUSSIAN_NOISE.name
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        if !(self.deviation.is_finite() && self.deviation >= 0.0) {
            return Err(lowering.graph.error(format!("the standard deviation should be at least 0, but is {}", self.deviation)));
        }
        if !lowering.training || self.deviation == 0.0 {
            return Ok(x);
        }
        let g = &mut *lowering.graph;
        let streams = (g.stream(), g.stream());
        g.pointwise(Expr::build(|e| e.add(e.input(0), e.mul(e.constant(self.deviation), normal(e, streams)))), &[x])
    }
}

/// `type = "gaussian_dropout"`.
pub(super) const GAUSSIAN_DROPOUT: LayerDef = LayerDef {
    name: "gaussian_dropout",
    about: "Multiplies by Gaussian noise centred at 1.",
    example: "rate = 0.5",
    from_config: |config| Ok(Arc::new(GaussianDropout::new(config.rate()?))),
};

impl Layer for GaussianDropout {
    fn kind(&self) -> &'static str {
        GAUSSIAN_DROPOUT.name
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        if !(0.0..1.0).contains(&self.rate) {
            return Err(lowering.graph.error(format!("the dropout rate should be from 0 to below 1, but is {}", self.rate)));
        }
        if !lowering.training || self.rate == 0.0 {
            return Ok(x);
        }
        let g = &mut *lowering.graph;
        let streams = (g.stream(), g.stream());
        let deviation = (self.rate / (1.0 - self.rate)).sqrt();
        let factor = Expr::build(|e| e.mul(e.input(0), e.add(e.constant(1.0), e.mul(e.constant(deviation), normal(e, streams)))));
        g.pointwise(factor, &[x])
    }
}
