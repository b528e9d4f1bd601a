//! Weight initializers.

use crate::named::named;
use plimsoll_core::graph::Init;

/// The initializer of a layer's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Initializer {
    /// Uniform with variance `2 / (fan_in + fan_out)`, for linear and tanh layers.
    #[default]
    GlorotUniform,
    /// Normal with variance `2 / (fan_in + fan_out)`.
    GlorotNormal,
    /// Uniform with variance `2 / fan_in`, for ReLU layers.
    HeUniform,
    /// Normal with variance `2 / fan_in`, for ReLU layers.
    HeNormal,
    /// Uniform with variance `1 / fan_in`.
    LecunUniform,
    /// Normal with variance `1 / fan_in`, for SELU layers.
    LecunNormal,
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Normal with this standard deviation, truncated at two of them.
    Normal(f32),
    /// Uniform in `[-limit, limit]`.
    Uniform(f32),
}

/// The standard deviation of a unit normal truncated at two standard deviations.
const CUT_NORMAL_STD: f32 = 0.879_625_7;

named!(Initializer {
    "glorot_uniform" => GlorotUniform,
    "glorot_normal" => GlorotNormal,
    "he_uniform" => HeUniform,
    "he_normal" => HeNormal,
    "lecun_uniform" => LecunUniform,
    "lecun_normal" => LecunNormal,
    "zeros" => Zeros,
    "ones" => Ones,
    "truncated_normal" => Normal(0.05),
    "random_uniform" => Uniform(0.05),
});

impl Initializer {
    pub(crate) fn init(self, fan_in: usize, fan_out: usize) -> Init {
        let glorot = 2.0 / fan_in.saturating_add(fan_out).max(1) as f32;
        let lecun = 1.0 / fan_in.max(1) as f32;
        let he = 2.0 * lecun;
        let uniform = |variance: f32| Init::Uniform { limit: (3.0 * variance).sqrt() };
        let normal = |variance: f32| Init::TruncatedNormal { std: variance.sqrt() / CUT_NORMAL_STD };
        match self {
            Initializer::GlorotUniform => uniform(glorot),
            Initializer::GlorotNormal => normal(glorot),
            Initializer::HeUniform => uniform(he),
            Initializer::HeNormal => normal(he),
            Initializer::LecunUniform => uniform(lecun),
            Initializer::LecunNormal => normal(lecun),
            Initializer::Zeros => Init::Constant(0.0),
            Initializer::Ones => Init::Constant(1.0),
            Initializer::Normal(std) => Init::TruncatedNormal { std },
            Initializer::Uniform(limit) => Init::Uniform { limit },
        }
    }
}
