//! Depthwise and separable convolutions.

use super::config::LayerConfig;
use super::conv::bias_and_activation;
use super::keras::{KerasLayer, kernel_and_bias, regularizer, window};
use super::window::SlidingWindow;
use super::{Activation, Initializer, Int8, Layer, LayerDef, Lowering, Padding, Regularizer, single_input};
use plimsoll_core::ops::{Conv2d, Window};
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, GraphError, Op, ValueId};
use serde_json::json;
use std::sync::Arc;

/// Depthwise 2-D convolution: every channel is convolved with kernels of its own.
///
/// ```
/// use plimsoll::nn::{DepthwiseConv2D, Padding};
/// let layer = DepthwiseConv2D::new(3).padding(Padding::Same).bias(false);
/// ```
#[derive(Clone, Debug)]
pub struct DepthwiseConv2D {
    window: SlidingWindow,
    multiplier: usize,
    activation: Activation,
    bias: bool,
    initializer: Initializer,
    regularizer: Regularizer,
}

impl DepthwiseConv2D {
    /// One kernel of `size`×`size` per channel, with stride 1, no padding, a bias and no activation.
    pub fn new(size: usize) -> DepthwiseConv2D {
        DepthwiseConv2D {
            window: SlidingWindow::new(size, 1),
            multiplier: 1,
            activation: Activation::Linear,
            bias: true,
            initializer: Initializer::default(),
            regularizer: Regularizer::default(),
        }
    }

    /// Sets the kernel size.
    pub fn size(mut self, height: usize, width: usize) -> DepthwiseConv2D {
        self.window.size = (height, width);
        self
    }

    /// Sets the strides along height and width.
    pub fn stride(mut self, down: usize, across: usize) -> DepthwiseConv2D {
        self.window.stride = (down, across);
        self
    }

    /// Sets the dilation rates along height and width.
    pub fn dilation(mut self, down: usize, across: usize) -> DepthwiseConv2D {
        self.window.dilation = (down, across);
        self
    }

    /// Sets the padding.
    pub fn padding(mut self, padding: Padding) -> DepthwiseConv2D {
        self.window.padding = padding;
        self
    }

    /// Sets the depth multiplier: output channels per input channel.
    pub fn multiplier(self, multiplier: usize) -> DepthwiseConv2D {
        DepthwiseConv2D { multiplier, ..self }
    }

    /// Sets the activation function.
    pub fn activation(self, activation: Activation) -> DepthwiseConv2D {
        DepthwiseConv2D { activation, ..self }
    }

    /// Whether to add a bias.
    pub fn bias(self, bias: bool) -> DepthwiseConv2D {
        DepthwiseConv2D { bias, ..self }
    }

    /// Sets the kernel initializer.
    pub fn initializer(self, initializer: Initializer) -> DepthwiseConv2D {
        DepthwiseConv2D { initializer, ..self }
    }

    /// Sets the kernel regularizer.
    pub fn regularizer(self, regularizer: Regularizer) -> DepthwiseConv2D {
        DepthwiseConv2D { regularizer, ..self }
    }

    /// The convolution, and the number of output channels.
    fn convolve(&self, lowering: &mut Lowering<'_>, x: ValueId, name: &str) -> Result<(ValueId, usize), GraphError> {
        let (window, channels): (Window, usize) = self.window.window(lowering.graph, x)?;
        if self.multiplier == 0 {
            return Err(lowering.graph.error("needs a depth multiplier of at least 1"));
        }
        let ((height, width), elements) = (self.window.size, self.window.elements());
        let init = self.initializer.init(elements.saturating_mul(channels), elements.saturating_mul(self.multiplier));
        // The kernels of a channel are contiguous, as one group.
        let filter = lowering.parameter(name, [height, width, 1, channels.saturating_mul(self.multiplier)], init)?;
        lowering.regularize(filter, self.regularizer)?;
        let filter = lowering.int8_kernel(filter, 3)?;
        let y = lowering.graph.add_one(Op::Conv2d(Conv2d { window, groups: channels, epilogue: None, dtype: DType::F32 }), &[x, filter])?;
        Ok((y, channels.saturating_mul(self.multiplier)))
    }
}

/// The keys of a depthwise convolution.
fn depthwise(config: &LayerConfig<'_, '_>) -> crate::error::Result<DepthwiseConv2D> {
    let ((height, width), (down, across)) = (config.size()?, config.pair_or("stride", 1)?);
    let conv = DepthwiseConv2D::new(1).size(height, width).stride(down, across).multiplier(config.count_or("multiplier", 1)?);
    let (down, across) = config.pair_or("dilation", 1)?;
    let conv = conv.dilation(down, across).padding(config.padding()?).activation(config.activation()?).bias(config.bias()?);
    Ok(conv.initializer(config.initializer()?).regularizer(config.regularizer()?))
}

/// `type = "depthwise_conv2d"`.
pub(super) const DEPTHWISE_CONV2D: LayerDef = LayerDef {
    name: "depthwise_conv2d",
    about: "Convolves every channel with filters of its own.",
    example: "size = 3",
    from_config: |config| Ok(Arc::new(depthwise(config)?)),
};

impl Layer for DepthwiseConv2D {
    fn kind(&self) -> &'static str {
        DEPTHWISE_CONV2D.name
    }

    fn to_keras(&self, inputs: &[Shape]) -> Option<Vec<KerasLayer>> {
        let channels = inputs.first()?.last()?.as_fixed()?;
        let (mut config, zeros) = window(&self.window, "kernel_size", inputs);
        config.insert("depth_multiplier".into(), json!(self.multiplier));
        config.insert("dilation_rate".into(), json!([self.window.dilation.0, self.window.dilation.1]));
        config.insert("activation".into(), json!(self.activation.keras_name()?));
        config.insert("use_bias".into(), json!(self.bias));
        config.insert("depthwise_regularizer".into(), regularizer(self.regularizer));
        let shape = vec![self.window.size.0, self.window.size.1, channels, self.multiplier];
        let mut layer = KerasLayer::new("DepthwiseConv2D", config.into()).weights(kernel_and_bias(self.bias));
        layer.weights[0].shape = shape;
        Some(zeros.into_iter().chain([layer]).collect())
    }

    fn int8(&self) -> Int8 {
        Int8::Kernel { linear: self.activation == Activation::Linear }
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let (y, channels) = self.convolve(lowering, x, "kernel")?;
        bias_and_activation(lowering, y, channels, self.bias, self.activation)
    }

    fn prunes(&self, _: &str) -> bool {
        false
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(self.activation)
    }
}

/// Depthwise convolution followed by a 1×1 convolution that mixes the channels.
#[derive(Clone, Debug)]
pub struct SeparableConv2D {
    filters: usize,
    depthwise: DepthwiseConv2D,
}

impl SeparableConv2D {
    /// `filters` output channels and kernels of `size`×`size`, with stride 1, no padding, a bias and no activation.
    pub fn new(filters: usize, size: usize) -> SeparableConv2D {
        SeparableConv2D { filters, depthwise: DepthwiseConv2D::new(size) }
    }

    /// Changes the depthwise convolution; its bias and activation apply to the output.
    pub fn depthwise(self, change: impl FnOnce(DepthwiseConv2D) -> DepthwiseConv2D) -> SeparableConv2D {
        SeparableConv2D { depthwise: change(self.depthwise), ..self }
    }

    /// Sets the strides along height and width.
    pub fn stride(self, down: usize, across: usize) -> SeparableConv2D {
        self.depthwise(|depthwise| depthwise.stride(down, across))
    }

    /// Sets the padding.
    pub fn padding(self, padding: Padding) -> SeparableConv2D {
        self.depthwise(|depthwise| depthwise.padding(padding))
    }

    /// Sets the activation function.
    pub fn activation(self, activation: Activation) -> SeparableConv2D {
        self.depthwise(|depthwise| depthwise.activation(activation))
    }

    /// Whether to add a bias.
    pub fn bias(self, bias: bool) -> SeparableConv2D {
        self.depthwise(|depthwise| depthwise.bias(bias))
    }
}

/// `type = "separable_conv2d"`.
pub(super) const SEPARABLE_CONV2D: LayerDef = LayerDef {
    name: "separable_conv2d",
    about: "Depthwise convolution followed by a 1×1 convolution that mixes the channels.",
    example: "filters = 32\nsize = 3",
    from_config: |config| {
        let conv = SeparableConv2D::new(config.filters()?, 1);
        let depthwise = depthwise(config)?;
        Ok(Arc::new(conv.depthwise(|_| depthwise)))
    },
};

impl Layer for SeparableConv2D {
    fn kind(&self) -> &'static str {
        SEPARABLE_CONV2D.name
    }

    fn int8(&self) -> Int8 {
        self.depthwise.int8()
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        if self.filters == 0 {
            return Err(lowering.graph.error("needs at least one filter"));
        }
        let (y, channels) = self.depthwise.convolve(lowering, x, "depthwise_kernel")?;
        let y = lowering.observe("depthwise", y)?;
        let init = self.depthwise.initializer.init(channels, self.filters);
        let mix = lowering.parameter("pointwise_kernel", [1, 1, channels, self.filters], init)?;
        lowering.regularize(mix, self.depthwise.regularizer)?;
        let mix = lowering.int8_kernel(mix, 3)?;
        let conv = Conv2d { window: Window::valid((1, 1), (1, 1)), groups: 1, epilogue: None, dtype: DType::F32 };
        let y = lowering.graph.add_one(Op::Conv2d(conv), &[y, mix])?;
        bias_and_activation(lowering, y, self.filters, self.depthwise.bias, self.depthwise.activation)
    }

    fn prunes(&self, weight: &str) -> bool {
        weight.ends_with("pointwise_kernel")
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(self.depthwise.activation)
    }
}
