//! Gradient clipping.

use plimsoll_core::ValueId;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError};

/// Gradient clipping. With micro-batches the accumulated gradients are clipped.
///
/// The formulas are Keras' `clipvalue`, `clipnorm` and `global_clipnorm`.
///
/// ```
/// use plimsoll::optim::Clip;
/// assert_eq!(Clip::GlobalNorm(1.0).most(), 1.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Clips every element to `[-bound, bound]`.
    Value(f32),
    /// Bounds the L2 norm of each gradient.
    Norm(f32),
    /// Bounds the L2 norm of all gradients together; every update waits for the last gradient.
    GlobalNorm(f32),
}

impl Clip {
    /// The bound.
    pub fn most(self) -> f32 {
        match self {
            Clip::Value(most) | Clip::Norm(most) | Clip::GlobalNorm(most) => most,
        }
    }

    /// Whether gradients are clipped independently.
    pub(crate) fn is_local(self) -> bool {
        !matches!(self, Clip::GlobalNorm(_))
    }

    /// Clips one gradient.
    pub(crate) fn one(self, g: &mut Graph, gradient: ValueId) -> Result<ValueId, GraphError> {
        match self {
            Clip::Value(most) => g.map(gradient, |e, x| {
                let below = e.binary(Binary::Min, x, e.constant(most));
                e.binary(Binary::Max, below, e.constant(-most))
            }),
            Clip::Norm(most) | Clip::GlobalNorm(most) => {
                let square = square_length(g, gradient)?;
                let square = g.sum_of_shards(square)?;
                shortened(g, gradient, square, most)
            }
        }
    }

    /// All gradients, clipped together.
    pub(crate) fn all(self, g: &mut Graph, gradients: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        if self.is_local() {
            return gradients.iter().map(|gradient| self.one(g, *gradient)).collect();
        }
        let mut total: Option<ValueId> = None;
        for gradient in gradients {
            let square = square_length(g, *gradient)?;
            total = Some(total.map_or(Ok(square), |before| g.plus(before, square))?);
        }
        let Some(total) = total else { return Ok(vec![]) };
        let total = g.sum_of_shards(total)?;
        gradients.iter().map(|gradient| shortened(g, *gradient, total, self.most())).collect()
    }
}

fn square_length(g: &mut Graph, gradient: ValueId) -> Result<ValueId, GraphError> {
    let squares = g.map(gradient, |e, x| e.mul(x, x))?;
    g.sum(squares)
}

/// Scales a gradient so that a norm, given by its square, is at most `bound`.
fn shortened(g: &mut Graph, gradient: ValueId, square: ValueId, most: f32) -> Result<ValueId, GraphError> {
    let shape = g.shape(gradient).clone();
    let factor = g.map(square, |e, square| {
        let length = e.unary(Unary::Sqrt, square);
        e.div(e.constant(most), e.binary(Binary::Max, length, e.constant(most)))
    })?;
    g.pointwise_over(Expr::build(|e| e.mul(e.input(0), e.input(1))), &[gradient, factor], shape)
}
