//! What quantization-aware training rounds: its settings, and what layers are in an int8 model.

use super::layer_pattern::matches_layer;

/// Quantization-aware training of a model in int8.
///
/// ```
/// use plimsoll::nn::{Dense, Model, Quantize, Sequential};
/// let model: Model = Sequential::new().add(Dense::new(8).relu()).named("head", Dense::new(2)).into();
/// let model = model.quantize(Quantize::new().keep_float("head"))?;
/// assert_eq!(model.float_layers(), [("head".to_string(), "kept by a pattern")]);
/// # Ok::<(), plimsoll_core::GraphError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Quantize {
    pub(super) momentum: f32,
    pub(super) keep_float: Vec<String>,
}

impl Quantize {
    /// Ranges of activations are moving averages with momentum 0.99.
    pub fn new() -> Quantize {
        Quantize { momentum: 0.99, keep_float: Vec::new() }
    }

    /// Sets the momentum of the ranges.
    pub fn momentum(self, momentum: f32) -> Quantize {
        Quantize { momentum, ..self }
    }

    /// Leaves the layers whose name matches (`*` stands for any characters) in single precision.
    pub fn keep_float(mut self, matching: &str) -> Quantize {
        self.keep_float.push(matching.to_string());
        self
    }

    /// Whether a layer stays in single precision.
    pub(super) fn keeps(&self, layer: &str) -> bool {
        self.keep_float.iter().any(|pattern| matches_layer(pattern, layer))
    }
}

impl Default for Quantize {
    fn default() -> Quantize {
        Quantize::new()
    }
}

/// What a layer is in an int8 model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int8 {
    /// A convolution or product with weights, whose result has a range. If it is linear, a batch normalization or a
    /// rectifier behind it is part of it.
    Kernel {
        /// Whether it has no activation.
        linear: bool,
    },
    /// Batch normalization, which is folded into the kernel before it.
    Norm,
    /// An operator without weights, whose result has a range; a rectifier behind it is part of it.
    Operator,
    /// ReLU or ReLU6, which is part of the operator before it.
    Rectifier,
    /// Another function with a range.
    Function,
    /// The result has the scale of the input, or the layer does nothing outside of training.
    SameScale,
    /// The result has a scale that is known from the function.
    FixedScale,
    /// It stays in single precision, for this reason.
    Float(&'static str),
}
