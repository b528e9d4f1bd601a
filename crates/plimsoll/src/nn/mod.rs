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
mod fine_tune;
mod init;
mod int8;
mod keras;
#[cfg(test)]
mod keras_tests;
mod layer_pattern;
mod lowering;
#[cfg(test)]
mod masks;
mod merge;
mod model;
mod noise;
mod norm;
mod over_time;
mod pool;
mod position;
mod quantize;
#[cfg(test)]
mod quantize_tests;
mod recurrent;
mod rescaling;
mod shape;
mod slicing;
mod summary;
mod tensor;
mod transposed;
pub(crate) mod trigonometry;
mod upsample;
mod window;

use plimsoll_core::{GraphError, Shape, ValueId};
use std::sync::Arc;

pub use activation::Activation;
pub use advanced_activations::{Elu, LeakyRelu, PRelu, ReLu};
pub use attention::MultiHeadAttention;
pub use build::{Functional, Sequential};
pub(crate) use config::{LayerDef, layer_from_config};
pub use conv::{Conv1D, Conv2D};
pub use dense::Dense;
pub use depthwise::{DepthwiseConv2D, SeparableConv2D};
pub use dropout::{AlphaDropout, Dropout, SpatialDropout, StochasticDepth};
pub use embedding::{ClassToken, Embedding, EmbeddingScores, TakeStep};
pub use init::Initializer;
pub use int8::{Int8, Quantize};
pub(crate) use keras::CallInput;
pub use keras::{KerasElements, KerasLayer, KerasWeight};
pub(crate) use layer_pattern::matches_layer;
pub(crate) use lowering::COUNTED_ROWS;
pub use lowering::{Lowering, MICRO_BATCH_RECIPROCAL, Regularizer};
pub use merge::{Add, Average, Concatenate, ConcatenateAlong, Maximum, Minimum, Multiply, Subtract};
pub use model::Model;
pub(crate) use model::{Output, TEACHER};
pub use noise::{GaussianDropout, GaussianNoise};
pub use norm::{BatchNorm, GroupNorm, LayerNorm, RmsNorm};
pub use over_time::{OverTime, TimeDistributed};
pub use pool::{AveragePool2D, GlobalAveragePool, GlobalMaxPool, MaskedAveragePool, MaxPool2D, MaxUnpool2D};
pub use position::{PositionEmbedding, SinusoidalPositions};
pub(crate) use quantize::{FIRST_MICRO_BATCH, LAST_MICRO_BATCH, range_names};
pub use recurrent::{Bidirectional, Gru, Lstm, SimpleRnn};
pub use rescaling::{LayerScale, Normalization, Rescaling};
pub use shape::{Cropping2D, ExpandDims, Flatten, Permute, RepeatVector, Reshape, ZeroPadding2D};
pub use slicing::{ComputeMask, Slicing};
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

    /// Whether these are [summed over ranks](Lowering::sum_over_ranks).
    fn synchronizes_statistics(&self) -> bool {
        false
    }

    /// Whether it reads a column as stored, such as token IDs, instead of cast to float.
    fn reads_integers(&self) -> bool {
        false
    }

    /// The same layer with another number of outputs, and whether it has weights; none if that is not a property of the
    /// layer.
    fn with_outputs(&self, outputs: usize) -> Option<(Arc<dyn Layer>, bool)> {
        let _ = outputs;
        None
    }

    /// Whether pruning may mask its weight of this name: as in tfmot, kernels and embeddings, but not those of
    /// depthwise convolutions.
    fn prunes(&self, weight: &str) -> bool {
        let last = weight.rsplit('/').next().unwrap_or_default();
        last.ends_with("kernel") || matches!(last, "embeddings" | "weight")
    }

    /// What it is in an int8 model.
    fn int8(&self) -> Int8 {
        Int8::Float("it has no int8 operator")
    }

    /// Whether its output has the channels of its input, whatever their number.
    fn keeps_channels(&self) -> bool {
        false
    }

    /// Whether its output has no negative numbers where its inputs have none, as pooling and dropout.
    fn keeps_sign(&self) -> bool {
        false
    }

    /// The layers of Keras that compute the same, one after the other, for inputs of these shapes; none if there are
    /// none.
    fn to_keras(&self, inputs: &[Shape]) -> Option<Vec<KerasLayer>> {
        let _ = inputs;
        None
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
    over_time::CONV1D_TRANSPOSE,
    over_time::DEPTHWISE_CONV1D,
    over_time::SEPARABLE_CONV1D,
    pool::MAX_POOL2D,
    pool::AVERAGE_POOL2D,
    over_time::MAX_POOL1D,
    over_time::AVERAGE_POOL1D,
    pool::GLOBAL_AVERAGE_POOL,
    pool::GLOBAL_MAX_POOL,
    pool::MASKED_AVERAGE_POOL,
    pool::MAX_UNPOOL2D,
    upsample::UP_SAMPLING2D,
    over_time::UP_SAMPLING1D,
    rescaling::RESCALING,
    rescaling::NORMALIZATION,
    rescaling::LAYER_SCALE,
    norm::BATCH_NORM,
    norm::LAYER_NORM,
    norm::GROUP_NORM,
    norm::RMS_NORM,
    shape::FLATTEN,
    shape::RESHAPE,
    shape::EXPAND_DIMS,
    shape::REPEAT_VECTOR,
    shape::PERMUTE,
    shape::ZERO_PADDING2D,
    shape::CROPPING2D,
    over_time::ZERO_PADDING1D,
    over_time::CROPPING1D,
    slicing::SLICE,
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
    merge::MINIMUM,
    merge::AVERAGE,
    merge::CONCATENATE,
    merge::CONCATENATE_ALONG,
    advanced_activations::PRELU,
    advanced_activations::LEAKY_RELU,
    advanced_activations::RE_LU,
    advanced_activations::ELU,
    embedding::EMBEDDING,
    embedding::EMBEDDING_SCORES,
    slicing::COMPUTE_MASK,
    position::POSITION_EMBEDDING,
    position::SINUSOIDAL_POSITIONS,
    embedding::CLASS_TOKEN,
    embedding::TAKE_STEP,
    attention::MULTI_HEAD_ATTENTION,
    recurrent::LSTM,
    recurrent::GRU,
    recurrent::SIMPLE_RNN,
    recurrent::BIDIRECTIONAL,
    over_time::TIME_DISTRIBUTED,
];
