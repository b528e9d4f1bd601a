//! Activation functions, as layers of their own or at the end of others.

use super::{Layer, Lowering, only};
use plimsoll_core::expr::{Binary, Unary};
use plimsoll_core::ops::Reduction;
use plimsoll_core::{Graph, GraphError, ValueId};

/// An activation function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// The identity.
    #[default]
    Linear,
    /// `max(x, 0)`.
    Relu,
    /// `x · Φ(x)` with the exact normal distribution.
    Gelu,
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// Exponentials that sum to one along the last axis.
    Softmax,
}

impl Activation {
    /// All of them by the names configurations use.
    pub const NAMES: [(&'static str, Activation); 6] = [
        ("linear", Activation::Linear),
        ("relu", Activation::Relu),
        ("gelu", Activation::Gelu),
        ("sigmoid", Activation::Sigmoid),
        ("tanh", Activation::Tanh),
        ("softmax", Activation::Softmax),
    ];

    /// Adds the function to a graph.
    pub fn apply(self, g: &mut Graph, x: ValueId) -> Result<ValueId, GraphError> {
        match self {
            Activation::Linear => Ok(x),
            Activation::Relu => g.map(x, |e, x| e.binary(Binary::Max, x, e.constant(0.0))),
            Activation::Gelu => g.map(x, |e, x| {
                let erf = e.unary(Unary::Erf, e.mul(x, e.constant(std::f32::consts::FRAC_1_SQRT_2)));
                e.mul(e.mul(e.constant(0.5), x), e.add(e.constant(1.0), erf))
            }),
            Activation::Sigmoid => g.unary(Unary::Sigmoid, x),
            Activation::Tanh => g.unary(Unary::Tanh, x),
            Activation::Softmax => {
                let Some(last) = g.shape(x).rank().checked_sub(1) else {
                    return Err(g.error("softmax needs at least one axis"));
                };
                let log_sum = g.reduce(Reduction::LogSumExp, x, &[last])?;
                let shifted = g.binary(Binary::Sub, x, log_sum)?;
                g.unary(Unary::Exp, shifted)
            }
        }
    }
}

impl Layer for Activation {
    fn kind(&self) -> &'static str {
        Activation::NAMES.iter().find(|(_, activation)| activation == self).map_or("activation", |(name, _)| name)
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        self.apply(lowering.graph, x)
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(*self)
    }
}
