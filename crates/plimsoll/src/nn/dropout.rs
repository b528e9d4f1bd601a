//! Dropout: random zeros while learning, nothing otherwise.

use super::{Layer, Lowering, only};
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::{GraphError, ValueId};

/// Sets a random share of the elements to zero while learning and scales the rest up, so that the sum stays.
/// The mask is never stored: it is drawn again, bit for bit, wherever it is needed.
#[derive(Clone, Debug)]
pub struct Dropout {
    rate: f32,
}

impl Dropout {
    /// Drops this share of the elements, in [0, 1).
    pub fn new(rate: f32) -> Dropout {
        Dropout { rate }
    }
}

impl Layer for Dropout {
    fn kind(&self) -> &'static str {
        "dropout"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        let g = &mut *lowering.graph;
        if !(0.0..1.0).contains(&self.rate) {
            return Err(g.error(format!("the dropout rate is a share from 0 to below 1, but is {}", self.rate)));
        }
        if !lowering.training || self.rate == 0.0 {
            return Ok(x);
        }
        let stream = g.stream();
        let expr = Expr::build(|e| {
            let kept = e.binary(Binary::LessEq, e.constant(self.rate), e.random(stream));
            e.select(kept, e.mul(e.input(0), e.constant(1.0 / (1.0 - self.rate))), e.constant(0.0))
        });
        g.pointwise(expr, &[x])
    }
}
