//! Convolutions that look at every channel by itself.

use super::config::LayerConfig;
use super::conv::finish;
use super::window::SlidingWindow;
use super::{Activation, Initializer, Layer, LayerDef, Lowering, Padding, Regularizer, only};
use plimsoll_core::ops::{Conv2d, Window};
use plimsoll_core::{DType, GraphError, Op, ValueId};
use std::sync::Arc;

/// Slides filters over every channel of images by itself.
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
    /// One filter of `size`×`size` for every channel, with stride 1, no padding, a bias and no activation.
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

    /// With filters of another height and width.
    pub fn size(mut self, height: usize, width: usize) -> DepthwiseConv2D {
        self.window.size = (height, width);
        self
    }

    /// With another stride, down and across.
    pub fn stride(mut self, down: usize, across: usize) -> DepthwiseConv2D {
        self.window.stride = (down, across);
        self
    }

    /// With filters whose places lie this far apart, down and across.
    pub fn dilation(mut self, down: usize, across: usize) -> DepthwiseConv2D {
        self.window.dilation = (down, across);
        self
    }

    /// With other edges.
    pub fn padding(mut self, padding: Padding) -> DepthwiseConv2D {
        self.window.padding = padding;
        self
    }

    /// With this many filters for every channel.
    pub fn multiplier(self, multiplier: usize) -> DepthwiseConv2D {
        DepthwiseConv2D { multiplier, ..self }
    }

    /// With an activation.
    pub fn activation(self, activation: Activation) -> DepthwiseConv2D {
        DepthwiseConv2D { activation, ..self }
    }

    /// With or without a bias.
    pub fn bias(self, bias: bool) -> DepthwiseConv2D {
        DepthwiseConv2D { bias, ..self }
    }

    /// With weights that start otherwise.
    pub fn initializer(self, initializer: Initializer) -> DepthwiseConv2D {
        DepthwiseConv2D { initializer, ..self }
    }

    /// With filters that cost something for being large.
    pub fn regularizer(self, regularizer: Regularizer) -> DepthwiseConv2D {
        DepthwiseConv2D { regularizer, ..self }
    }

    /// The convolution, and how many channels come out.
    fn convolve(&self, lowering: &mut Lowering<'_>, x: ValueId, name: &str) -> Result<(ValueId, usize), GraphError> {
        let (window, channels): (Window, usize) = self.window.window(lowering.graph, x)?;
        if self.multiplier == 0 {
            return Err(lowering.graph.error("needs at least one filter for every channel"));
        }
        let ((height, width), taps) = (self.window.size, self.window.taps());
        let init = self.initializer.init(taps * channels, taps * self.multiplier);
        // The filters of a channel stand together, as its group's.
        let filter = lowering.parameter(name, [height, width, 1, channels * self.multiplier], init)?;
        lowering.regularize(filter, self.regularizer)?;
        let y = lowering.graph.add_one(Op::Conv2d(Conv2d { window, groups: channels, epilogue: None, dtype: DType::F32 }), &[x, filter])?;
        Ok((y, channels * self.multiplier))
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

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        let (y, channels) = self.convolve(lowering, x, "kernel")?;
        finish(lowering, y, channels, self.bias, self.activation)
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(self.activation)
    }
}

/// A depthwise convolution, then one of 1×1 that mixes the channels.
#[derive(Clone, Debug)]
pub struct SeparableConv2D {
    filters: usize,
    depthwise: DepthwiseConv2D,
}

impl SeparableConv2D {
    /// `filters` results from filters of `size`×`size`, with stride 1, no padding, a bias and no activation.
    pub fn new(filters: usize, size: usize) -> SeparableConv2D {
        SeparableConv2D { filters, depthwise: DepthwiseConv2D::new(size) }
    }

    /// With another depthwise part; its bias and activation come last.
    pub fn depthwise(self, change: impl FnOnce(DepthwiseConv2D) -> DepthwiseConv2D) -> SeparableConv2D {
        SeparableConv2D { depthwise: change(self.depthwise), ..self }
    }

    /// With another stride, down and across.
    pub fn stride(self, down: usize, across: usize) -> SeparableConv2D {
        self.depthwise(|depthwise| depthwise.stride(down, across))
    }

    /// With other edges.
    pub fn padding(self, padding: Padding) -> SeparableConv2D {
        self.depthwise(|depthwise| depthwise.padding(padding))
    }

    /// With an activation.
    pub fn activation(self, activation: Activation) -> SeparableConv2D {
        self.depthwise(|depthwise| depthwise.activation(activation))
    }

    /// With or without a bias.
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

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        if self.filters == 0 {
            return Err(lowering.graph.error("needs at least one filter"));
        }
        let (y, channels) = self.depthwise.convolve(lowering, x, "depthwise_kernel")?;
        let init = self.depthwise.initializer.init(channels, self.filters);
        let mix = lowering.parameter("pointwise_kernel", [1, 1, channels, self.filters], init)?;
        lowering.regularize(mix, self.depthwise.regularizer)?;
        let conv = Conv2d { window: Window::valid((1, 1), (1, 1)), groups: 1, epilogue: None, dtype: DType::F32 };
        let y = lowering.graph.add_one(Op::Conv2d(conv), &[y, mix])?;
        finish(lowering, y, self.filters, self.depthwise.bias, self.depthwise.activation)
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(self.depthwise.activation)
    }
}
