//! Layers and models: stacks of layers ([`Sequential`]) and the functional API ([`Functional`]).

mod activation;
mod advanced_activations;
mod attention;
mod build;
mod config;
mod conv;
mod dense;
mod depthwise;
mod dropout;
mod embedding;
mod init;
#[cfg(test)]
mod keras_tests;
mod lowering;
#[cfg(test)]
mod masks;
mod merge;
mod model;
mod noise;
mod norm;
mod pool;
mod position;
mod recurrent;
mod shape;
mod summary;
mod tensor;
mod transposed;
mod trigonometry;
mod upsample;
mod window;

use plimsoll_core::{GraphError, ValueId};

pub use activation::Activation;
pub use advanced_activations::{Elu, LeakyRelu, PRelu};
pub use attention::MultiHeadAttention;
pub use build::{Functional, Sequential};
pub(crate) use config::{LayerDef, layer_from_config};
pub use conv::{Conv1D, Conv2D};
pub use dense::Dense;
pub use depthwise::{DepthwiseConv2D, SeparableConv2D};
pub use dropout::{AlphaDropout, Dropout, SpatialDropout, StochasticDepth};
pub use embedding::{ClassToken, Embedding, EmbeddingScores, TakeStep};
pub use init::Initializer;
pub use lowering::{Lowering, MICRO_BATCH_RECIPROCAL, Regularizer};
pub use merge::{Add, Average, Concatenate, Maximum, Multiply, Subtract};
pub use model::Model;
pub(crate) use model::Output;
pub use noise::{GaussianDropout, GaussianNoise};
pub use norm::{BatchNorm, GroupNorm, LayerNorm, RmsNorm};
pub use pool::{AveragePool2D, GlobalAveragePool, GlobalMaxPool, MaxPool2D, MaxUnpool2D};
pub use position::{PositionEmbedding, SinusoidalPositions};
pub use recurrent::{Bidirectional, Gru, Lstm, SimpleRnn};
pub use shape::{Cropping2D, Flatten, Permute, Reshape, ZeroPadding2D};
pub use summary::{LayerSummary, Summary};
pub use tensor::SymbolicTensor;
pub use transposed::Conv2DTranspose;
pub use upsample::UpSampling2D;
pub use window::Padding;

/// A layer: adds its nodes to a graph, given its inputs.
pub trait Layer: std::fmt::Debug + Send + Sync {
    /// The type, which is also the default name, such as `dense`.
    fn kind(&self) -> &'static str;

    /// Adds its nodes and returns its output.
    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError>;

    /// The final activation, so that a loss can use the logits before it.
    fn last_activation(&self) -> Option<Activation> {
        None
    }

    /// Whether its training pass depends on which rows are computed together, as in batch normalization.
    fn uses_batch_statistics(&self) -> bool {
        false
    }

    /// Whether it reads a column as stored, such as token IDs, instead of cast to float.
    fn reads_integers(&self) -> bool {
        false
    }

    /// The exclusive upper bound of its integer inputs, if it looks them up in a table.
    fn input_bound(&self) -> Option<usize> {
        None
    }
}

/// The only input of a layer.
fn single_input(lowering: &Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
    match inputs {
        [input] => Ok(*input),
        _ => Err(lowering.graph.error(format!("expects one input, but received {}", inputs.len()))),
    }
}

/// Every layer that a configuration can name, in the order of the docs. Activations are layers too, by their own names.
pub(crate) const LAYERS: &[LayerDef] = &[
    dense::DENSE,
    conv::CONV2D,
    conv::CONV1D,
    depthwise::DEPTHWISE_CONV2D,
    depthwise::SEPARABLE_CONV2D,
    transposed::CONV2D_TRANSPOSE,
    pool::MAX_POOL2D,
    pool::AVERAGE_POOL2D,
    pool::GLOBAL_AVERAGE_POOL,
    pool::GLOBAL_MAX_POOL,
    pool::MAX_UNPOOL2D,
    upsample::UP_SAMPLING2D,
    norm::BATCH_NORM,
    norm::LAYER_NORM,
    norm::GROUP_NORM,
    norm::RMS_NORM,
    shape::FLATTEN,
    shape::RESHAPE,
    shape::PERMUTE,
    shape::ZERO_PADDING2D,
    shape::CROPPING2D,
    dropout::DROPOUT,
    dropout::SPATIAL_DROPOUT,
    dropout::ALPHA_DROPOUT,
    noise::GAUSSIAN_DROPOUT,
    noise::GAUSSIAN_NOISE,
    dropout::STOCHASTIC_DEPTH,
    merge::ADD,
    merge::SUBTRACT,
    merge::MULTIPLY,
    merge::MAXIMUM,
    merge::AVERAGE,
    merge::CONCATENATE,
    advanced_activations::PRELU,
    advanced_activations::LEAKY_RELU,
    advanced_activations::ELU,
    embedding::EMBEDDING,
    embedding::EMBEDDING_SCORES,
    position::POSITION_EMBEDDING,
    position::SINUSOIDAL_POSITIONS,
    embedding::CLASS_TOKEN,
    embedding::TAKE_STEP,
    attention::MULTI_HEAD_ATTENTION,
    recurrent::LSTM,
    recurrent::GRU,
    recurrent::SIMPLE_RNN,
    recurrent::BIDIRECTIONAL,
];
