//! Gaussian noise while learning, nothing otherwise.

use super::wave::cosine;
use super::{Layer, Lowering, only};
use plimsoll_core::expr::{Expr, ExprBuilder, TermId, Unary};
use plimsoll_core::{GraphError, ValueId};

/// Adds normal random numbers.
#[derive(Clone, Debug)]
pub struct GaussianNoise {
    deviation: f32,
}

/// Multiplies by normal random numbers around one, with the variance that dropout of the same rate has.
#[derive(Clone, Debug)]
pub struct GaussianDropout {
    rate: f32,
}

impl GaussianNoise {
    /// With this standard deviation.
    pub fn new(deviation: f32) -> GaussianNoise {
        GaussianNoise { deviation }
    }
}

impl GaussianDropout {
    /// As dropout of this rate, in [0, 1).
    pub fn new(rate: f32) -> GaussianDropout {
        GaussianDropout { rate }
    }
}

/// A normal random number from two uniform ones (Box and Muller's way).
fn normal(e: &ExprBuilder, streams: (u32, u32)) -> TermId {
    // One minus a number below one is never zero.
    let open = e.sub(e.constant(1.0), e.random(streams.0));
    let radius = e.unary(Unary::Sqrt, e.mul(e.constant(-2.0), e.unary(Unary::Log, open)));
    e.mul(radius, cosine(e, e.random(streams.1)))
}

impl Layer for GaussianNoise {
    fn kind(&self) -> &'static str {
        "gaussian_noise"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        if !(self.deviation.is_finite() && self.deviation >= 0.0) {
            return Err(lowering.graph.error(format!("a standard deviation is at least 0, but is {}", self.deviation)));
        }
        if !lowering.training || self.deviation == 0.0 {
            return Ok(x);
        }
        let g = &mut *lowering.graph;
        let streams = (g.stream(), g.stream());
        g.pointwise(Expr::build(|e| e.add(e.input(0), e.mul(e.constant(self.deviation), normal(e, streams)))), &[x])
    }
}

impl Layer for GaussianDropout {
    fn kind(&self) -> &'static str {
        "gaussian_dropout"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        if !(0.0..1.0).contains(&self.rate) {
            return Err(lowering.graph.error(format!("the dropout rate is a share from 0 to below 1, but is {}", self.rate)));
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
