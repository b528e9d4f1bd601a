//! Layers and the two ways to put them together: one after another ([`Sequential`]) or as a graph ([`Functional`]).

mod activation;
mod attention;
mod build;
mod conv;
mod dense;
mod depthwise;
mod dropout;
mod embedding;
mod init;
mod lowering;
mod merge;
mod model;
mod noise;
mod norm;
mod pool;
mod position;
mod recurrent;
mod shape;
mod summary;
mod transposed;
mod upsample;
mod wave;

use plimsoll_core::{GraphError, ValueId};

pub use activation::{Activation, Elu, LeakyRelu, PRelu};
pub use attention::MultiHeadAttention;
pub use build::{Functional, Sequential, Tensor};
pub use conv::{Conv1D, Conv2D, Padding};
pub use dense::Dense;
pub use depthwise::{DepthwiseConv2D, SeparableConv2D};
pub use dropout::{AlphaDropout, Dropout, SpatialDropout, StochasticDepth};
pub use embedding::{ClassToken, Embedding, EmbeddingScores, TakeStep};
pub use init::Initializer;
pub use lowering::{Lowering, PIECE_SHARE, Penalty};
pub use merge::{Add, Average, Concatenate, Maximum, Multiply, Subtract};
pub use model::Model;
pub(crate) use model::Output;
pub use noise::{GaussianDropout, GaussianNoise};
pub use norm::{BatchNorm, GroupNorm, LayerNorm, RmsNorm};
pub use pool::{AveragePool2D, GlobalAveragePool, GlobalMaxPool, MaxPool2D, MaxUnpool2D};
pub use position::{PositionEmbedding, SinusoidalPositions};
pub use recurrent::{Bidirectional, Gru, Lstm, SimpleRnn};
pub use shape::{Cropping2D, Flatten, Permute, Reshape, ZeroPadding2D};
pub use summary::{Row, Summary};
pub use transposed::Conv2DTranspose;
pub use upsample::UpSampling2D;

/// A layer: how it writes itself into a graph, given the values it reads.
pub trait Layer: std::fmt::Debug + Send + Sync {
    /// The name it gets if it is given none, such as `dense`.
    fn kind(&self) -> &'static str;

    /// Adds its nodes and gives its result.
    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError>;

    /// The activation its result went through last, so that a loss may go back to before it.
    fn last_activation(&self) -> Option<Activation> {
        None
    }

    /// Whether what it computes while learning depends on which rows are computed together, as in batch normalisation.
    fn uses_batch_statistics(&self) -> bool {
        false
    }

    /// Whether it reads a column as it is stored, such as token numbers, rather than as real numbers.
    fn reads_stored(&self) -> bool {
        false
    }

    /// The number that all it reads are below, if it looks them up in a table.
    fn reads_below(&self) -> Option<usize> {
        None
    }
}

/// The single value a layer reads.
fn only(lowering: &Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
    match inputs {
        [input] => Ok(*input),
        _ => Err(lowering.graph.error(format!("reads one tensor, but is connected to {}", inputs.len()))),
    }
}
