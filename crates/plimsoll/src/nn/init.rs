//! How weights start.

use plimsoll_core::graph::Init;

/// How the weights of a layer start, given how many numbers go in and out of one of its units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Initializer {
    /// Uniform with variance `2 / (in + out)`: keeps the scale of linear and tanh layers.
    #[default]
    GlorotUniform,
    /// Normal with variance `2 / (in + out)`.
    GlorotNormal,
    /// Uniform with variance `2 / in`: keeps the scale of ReLU layers.
    HeUniform,
    /// Normal with variance `2 / in`.
    HeNormal,
    /// All zero.
    Zeros,
}

/// The standard deviation of a unit normal cut at two standard deviations.
const CUT_NORMAL_STD: f32 = 0.879_625_7;

impl Initializer {
    /// All of them by the names configurations use.
    pub const NAMES: [(&'static str, Initializer); 5] = [
        ("glorot_uniform", Initializer::GlorotUniform),
        ("glorot_normal", Initializer::GlorotNormal),
        ("he_uniform", Initializer::HeUniform),
        ("he_normal", Initializer::HeNormal),
        ("zeros", Initializer::Zeros),
    ];

    pub(crate) fn init(self, fan_in: usize, fan_out: usize) -> Init {
        let glorot = 2.0 / (fan_in + fan_out).max(1) as f32;
        let he = 2.0 / fan_in.max(1) as f32;
        let uniform = |variance: f32| Init::Uniform { limit: (3.0 * variance).sqrt() };
        let normal = |variance: f32| Init::TruncatedNormal { std: variance.sqrt() / CUT_NORMAL_STD };
        match self {
            Initializer::GlorotUniform => uniform(glorot),
            Initializer::GlorotNormal => normal(glorot),
            Initializer::HeUniform => uniform(he),
            Initializer::HeNormal => normal(he),
            Initializer::Zeros => Init::Constant(0.0),
        }
    }
}
