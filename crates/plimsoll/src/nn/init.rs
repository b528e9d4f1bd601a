//! How weights start.

use crate::named::named;
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
    /// Uniform with variance `1 / in`.
    LecunUniform,
    /// Normal with variance `1 / in`: keeps the scale of SELU layers.
    LecunNormal,
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Normal with this standard deviation, cut at two of them.
    Normal(f32),
    /// Uniform between minus this and this.
    Uniform(f32),
}

/// The standard deviation of a unit normal cut at two standard deviations.
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
        let glorot = 2.0 / (fan_in + fan_out).max(1) as f32;
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
