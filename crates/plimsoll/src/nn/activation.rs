//! Activation functions, as layers or as the last step of other layers. Formulas and names are those of Keras.

use super::keras::KerasLayer;
use super::{Int8, Layer, Lowering, single_input};
use crate::named::named;
use plimsoll_core::expr::{Binary, Expr, ExprBuilder, TermId, Unary};
use plimsoll_core::ops::Reduction;
use plimsoll_core::shape::Shape;
use plimsoll_core::{Graph, GraphError, ValueId};
use serde_json::json;

/// An activation function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// The identity.
    #[default]
    Linear,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x` above zero, `0.2·x` below; see [`LeakyRelu`](crate::nn::LeakyRelu) for other slopes.
    LeakyRelu,
    /// `x` above zero, `eˣ - 1` below; see [`Elu`](crate::nn::Elu) for other values of alpha.
    Elu,
    /// Scaled ELU, which preserves mean and variance.
    Selu,
    /// `x · Φ(x)` with the exact normal distribution.
    Gelu,
    /// GELU in its tanh approximation, as in GPT-2.
    GeluTanh,
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · tanh(softplus(x))`.
    Mish,
    /// `ln(1 + eˣ)`.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `ln(sigmoid(x))`.
    LogSigmoid,
    /// `relu6(x + 3) / 6`.
    HardSigmoid,
    /// `x · relu6(x + 3) / 6`.
    HardSwish,
    /// Hyperbolic tangent.
    Tanh,
    /// `min(max(x, -1), 1)`.
    HardTanh,
    /// `x - tanh(x)`.
    TanhShrink,
    /// `x` where `|x| > ½`, else 0.
    HardShrink,
    /// `x - ½` above ½, `x + ½` below -½, else 0.
    SoftShrink,
    /// `(x + √(x² + 4)) / 2`.
    Squareplus,
    /// 0 below -1, `x` above 1, `(x + 1)² / 4` between.
    SparsePlus,
    /// `min(max((x + 1) / 2, 0), 1)`.
    SparseSigmoid,
    /// `eˣ`.
    Exponential,
    /// `eˣ / Σ eˣ` along the last axis.
    Softmax,
    /// The logarithm of softmax.
    LogSoftmax,
}

const SELU_SCALE: f32 = 1.050_701;
const SELU_DEPTH: f32 = 1.673_263_2;

named!(Activation {
    Linear => "linear" | "none",
    Relu => "relu",
    Relu6 => "relu6",
    LeakyRelu => "leaky_relu",
    Elu => "elu" | "celu",
    Selu => "selu",
    Gelu => "gelu",
    GeluTanh => "gelu_tanh",
    Silu => "silu" | "swish",
    Mish => "mish",
    Softplus => "softplus",
    Softsign => "softsign",
    Sigmoid => "sigmoid",
    LogSigmoid => "log_sigmoid",
    HardSigmoid => "hard_sigmoid",
    HardSwish => "hard_swish" | "hard_silu",
    Tanh => "tanh",
    HardTanh => "hard_tanh",
    TanhShrink => "tanh_shrink",
    HardShrink => "hard_shrink",
    SoftShrink => "soft_shrink",
    Squareplus => "squareplus",
    SparsePlus => "sparse_plus",
    SparseSigmoid => "sparse_sigmoid",
    Exponential => "exponential" | "exp",
    Softmax => "softmax",
    LogSoftmax => "log_softmax",
});

impl Activation {
    /// Adds the function to a graph.
    pub fn apply(self, g: &mut Graph, x: ValueId) -> Result<ValueId, GraphError> {
        match self {
            Activation::Linear => Ok(x),
            Activation::Softmax | Activation::LogSoftmax => {
                let Some(last) = g.shape(x).rank().checked_sub(1) else {
                    return Err(g.error("softmax expects at least one axis"));
                };
                let log_sum = g.reduce(Reduction::LogSumExp, x, &[last])?;
                let shifted = g.binary(Binary::Sub, x, log_sum)?;
                if self == Activation::LogSoftmax { Ok(shifted) } else { g.unary(Unary::Exp, shifted) }
            }
            _ => g.map(x, |e, x| self.term(e, x)),
        }
    }

    /// The function of one element as an expression; softmax is not elementwise and is the identity.
    pub(crate) fn expression(self) -> Expr {
        Expr::build(|e| self.term(e, e.input(0)))
    }

    /// The function of one element; softmax is not elementwise and returns `x`.
    fn term(self, e: &ExprBuilder, x: TermId) -> TermId {
        let number = |value: f32| e.constant(value);
        let clamp = |x: TermId, low: f32, high: f32| e.binary(Binary::Min, e.binary(Binary::Max, x, number(low)), number(high));
        let hard_sigmoid = || e.mul(clamp(e.add(x, number(3.0)), 0.0, 6.0), number(1.0 / 6.0));
        let abs = || e.unary(Unary::Abs, x);
        match self {
            Activation::Linear | Activation::Softmax | Activation::LogSoftmax => x,
            Activation::Relu => e.binary(Binary::Max, x, number(0.0)),
            Activation::Relu6 => clamp(x, 0.0, 6.0),
            Activation::LeakyRelu => leaky(e, x, number(0.2)),
            Activation::Elu => elu(e, x, 1.0),
            Activation::Selu => e.mul(number(SELU_SCALE), elu(e, x, SELU_DEPTH)),
            Activation::Gelu => {
                let erf = e.unary(Unary::Erf, e.mul(x, number(std::f32::consts::FRAC_1_SQRT_2)));
                e.mul(e.mul(number(0.5), x), e.add(number(1.0), erf))
            }
            Activation::GeluTanh => {
                let cube = e.mul(e.mul(x, x), x);
                let inner = e.mul(number(0.797_884_6), e.add(x, e.mul(number(0.044_715), cube)));
                e.mul(e.mul(number(0.5), x), e.add(number(1.0), e.unary(Unary::Tanh, inner)))
            }
            Activation::Silu => e.mul(x, e.unary(Unary::Sigmoid, x)),
            Activation::Mish => e.mul(x, e.unary(Unary::Tanh, e.unary(Unary::Softplus, x))),
            Activation::Softplus => e.unary(Unary::Softplus, x),
            Activation::Softsign => e.div(x, e.add(number(1.0), abs())),
            Activation::Sigmoid => e.unary(Unary::Sigmoid, x),
            Activation::LogSigmoid => e.unary(Unary::Neg, e.unary(Unary::Softplus, e.unary(Unary::Neg, x))),
            Activation::HardSigmoid => hard_sigmoid(),
            Activation::HardSwish => e.mul(x, hard_sigmoid()),
            Activation::Tanh => e.unary(Unary::Tanh, x),
            Activation::HardTanh => clamp(x, -1.0, 1.0),
            Activation::TanhShrink => e.sub(x, e.unary(Unary::Tanh, x)),
            Activation::HardShrink => e.select(e.binary(Binary::Less, number(0.5), abs()), x, number(0.0)),
            Activation::SoftShrink => e.sub(x, clamp(x, -0.5, 0.5)),
            Activation::Squareplus => e.mul(number(0.5), e.add(x, e.unary(Unary::Sqrt, e.add(e.mul(x, x), number(4.0))))),
            Activation::SparsePlus => {
                let next = e.add(clamp(x, -1.0, 1.0), number(1.0));
                e.add(e.mul(number(0.25), e.mul(next, next)), e.binary(Binary::Max, e.sub(x, number(1.0)), number(0.0)))
            }
            Activation::SparseSigmoid => e.mul(number(0.5), e.add(clamp(x, -1.0, 1.0), number(1.0))),
            Activation::Exponential => e.unary(Unary::Exp, x),
        }
    }
}

/// `x` above zero, `slope·x` below.
pub(super) fn leaky(e: &ExprBuilder, x: TermId, slope: TermId) -> TermId {
    e.select(e.binary(Binary::Less, x, e.constant(0.0)), e.mul(slope, x), x)
}

/// `x` above zero, `depth·(eˣ - 1)` below. The exponential is taken of `min(x, 0)`, so that it cannot overflow.
pub(super) fn elu(e: &ExprBuilder, x: TermId, depth: f32) -> TermId {
    let zero = e.constant(0.0);
    let below = e.sub(e.unary(Unary::Exp, e.binary(Binary::Min, x, zero)), e.constant(1.0));
    e.add(e.binary(Binary::Max, x, zero), e.mul(e.constant(depth), below))
}

impl Layer for Activation {
    fn kind(&self) -> &'static str {
        self.name()
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        Some(vec![KerasLayer::new("Activation", json!({ "activation": self.keras_name()? }))])
    }

    fn int8(&self) -> Int8 {
        match self {
            Activation::Linear => Int8::SameScale,
            Activation::Relu | Activation::Relu6 => Int8::Rectifier,
            Activation::Softmax | Activation::Sigmoid | Activation::Tanh => Int8::FixedScale,
            Activation::LeakyRelu | Activation::Gelu | Activation::GeluTanh | Activation::Silu | Activation::HardSwish => Int8::Function,
            _ => Int8::Float("the function has no int8 operator"),
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        self.apply(lowering.graph, x)
    }

    fn keeps_channels(&self) -> bool {
        true
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(*self)
    }
}
