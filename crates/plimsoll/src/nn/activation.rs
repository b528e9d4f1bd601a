//! Activation functions, as layers of their own or at the end of others. Formulas and names are Keras'.

use super::{Layer, Lowering, only};
use plimsoll_core::expr::{Binary, Expr, ExprBuilder, TermId, Unary};
use plimsoll_core::graph::Init;
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
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x` above zero, `0.2·x` below; see [`LeakyRelu`] for other slopes.
    LeakyRelu,
    /// `x` above zero, `eˣ - 1` below; see [`Elu`] for other depths.
    Elu,
    /// ELU with the scale and depth that keep mean and variance.
    Selu,
    /// `x · Φ(x)` with the exact normal distribution.
    Gelu,
    /// GELU with the hyperbolic tangent in place of the normal distribution, as GPT-2 has it.
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
    /// `x` between -1 and 1, and these beyond.
    HardTanh,
    /// `x - tanh(x)`.
    TanhShrink,
    /// `x` without what lies within ½ of zero.
    HardShrink,
    /// `x`, ½ nearer to zero.
    SoftShrink,
    /// `(x + √(x² + 4)) / 2`.
    Squareplus,
    /// Zero below -1, `x` above 1, a parabola between.
    SparsePlus,
    /// A straight line from 0 at -1 to 1 at 1.
    SparseSigmoid,
    /// `eˣ`.
    Exponential,
    /// Exponentials that sum to one along the last axis.
    Softmax,
    /// The logarithm of softmax.
    LogSoftmax,
}

const SELU_SCALE: f32 = 1.050_701;
const SELU_DEPTH: f32 = 1.673_263_2;

impl Activation {
    /// All of them by the names configurations use.
    pub const NAMES: [(&'static str, Activation); 32] = [
        ("linear", Activation::Linear),
        ("relu", Activation::Relu),
        ("relu6", Activation::Relu6),
        ("leaky_relu", Activation::LeakyRelu),
        ("elu", Activation::Elu),
        ("celu", Activation::Elu),
        ("selu", Activation::Selu),
        ("gelu", Activation::Gelu),
        ("gelu_tanh", Activation::GeluTanh),
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("mish", Activation::Mish),
        ("softplus", Activation::Softplus),
        ("softsign", Activation::Softsign),
        ("sigmoid", Activation::Sigmoid),
        ("log_sigmoid", Activation::LogSigmoid),
        ("hard_sigmoid", Activation::HardSigmoid),
        ("hard_swish", Activation::HardSwish),
        ("hard_silu", Activation::HardSwish),
        ("tanh", Activation::Tanh),
        ("hard_tanh", Activation::HardTanh),
        ("tanh_shrink", Activation::TanhShrink),
        ("hard_shrink", Activation::HardShrink),
        ("soft_shrink", Activation::SoftShrink),
        ("squareplus", Activation::Squareplus),
        ("sparse_plus", Activation::SparsePlus),
        ("sparse_sigmoid", Activation::SparseSigmoid),
        ("exponential", Activation::Exponential),
        ("exp", Activation::Exponential),
        ("softmax", Activation::Softmax),
        ("log_softmax", Activation::LogSoftmax),
        ("none", Activation::Linear),
    ];

    /// Adds the function to a graph.
    pub fn apply(self, g: &mut Graph, x: ValueId) -> Result<ValueId, GraphError> {
        match self {
            Activation::Linear => Ok(x),
            Activation::Softmax | Activation::LogSoftmax => {
                let Some(last) = g.shape(x).rank().checked_sub(1) else {
                    return Err(g.error("softmax needs at least one axis"));
                };
                let log_sum = g.reduce(Reduction::LogSumExp, x, &[last])?;
                let shifted = g.binary(Binary::Sub, x, log_sum)?;
                if self == Activation::LogSoftmax { Ok(shifted) } else { g.unary(Unary::Exp, shifted) }
            }
            _ => g.map(x, |e, x| self.term(e, x)),
        }
    }

    /// The function of one number; softmax, which is none, is handed on.
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
fn leaky(e: &ExprBuilder, x: TermId, slope: TermId) -> TermId {
    e.select(e.binary(Binary::Less, x, e.constant(0.0)), e.mul(slope, x), x)
}

/// `x` above zero, `depth·(eˣ - 1)` below. The exponential never sees what is above, where it would overflow.
fn elu(e: &ExprBuilder, x: TermId, depth: f32) -> TermId {
    let zero = e.constant(0.0);
    let below = e.sub(e.unary(Unary::Exp, e.binary(Binary::Min, x, zero)), e.constant(1.0));
    e.add(e.binary(Binary::Max, x, zero), e.mul(e.constant(depth), below))
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

/// ReLU with a slope below zero of one's own choice.
#[derive(Clone, Copy, Debug)]
pub struct LeakyRelu {
    slope: f32,
}

impl LeakyRelu {
    /// With this slope below zero.
    pub fn new(slope: f32) -> LeakyRelu {
        LeakyRelu { slope }
    }
}

impl Layer for LeakyRelu {
    fn kind(&self) -> &'static str {
        "leaky_relu"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        lowering.graph.map(x, |e, x| leaky(e, x, e.constant(self.slope)))
    }
}

/// ELU that ends at `-depth` far below zero.
#[derive(Clone, Copy, Debug)]
pub struct Elu {
    depth: f32,
}

impl Elu {
    /// With this depth.
    pub fn new(depth: f32) -> Elu {
        Elu { depth }
    }
}

impl Layer for Elu {
    fn kind(&self) -> &'static str {
        "elu"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        lowering.graph.map(x, |e, x| elu(e, x, self.depth))
    }
}

/// ReLU whose slope below zero is learnt: one for every element of a row, as in Keras, or one per channel.
#[derive(Clone, Copy, Debug)]
pub struct PRelu {
    start: f32,
    per_channel: bool,
}

impl PRelu {
    /// With a slope for every element, starting at zero.
    pub fn new() -> PRelu {
        PRelu { start: 0.0, per_channel: false }
    }

    /// With one slope for each element of the last axis.
    pub fn per_channel(self) -> PRelu {
        PRelu { per_channel: true, ..self }
    }

    /// With slopes that start at this number.
    pub fn start(self, start: f32) -> PRelu {
        PRelu { start, ..self }
    }
}

impl Default for PRelu {
    fn default() -> PRelu {
        PRelu::new()
    }
}

impl Layer for PRelu {
    fn kind(&self) -> &'static str {
        "prelu"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let from = if self.per_channel { shape.rank() - 1 } else { 1 };
        let Some(dims) = shape.dims().get(from..).filter(|dims| !dims.is_empty() && dims.iter().all(|dim| !dim.is_batch())) else {
            return Err(lowering.graph.error(format!("takes [batch, …, features], but got the shape {shape}")));
        };
        let alpha = lowering.parameter("alpha", dims.iter().map(|dim| dim.factor()), Init::Constant(self.start))?;
        lowering.graph.pointwise(Expr::build(|e| leaky(e, e.input(0), e.input(1))), &[x, alpha])
    }
}
