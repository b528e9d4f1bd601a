//! Convolutions that look at every channel by itself.

use super::conv::{Walk, finish};
use super::{Activation, Initializer, Layer, Lowering, Padding, Penalty, only};
use plimsoll_core::ops::{Conv2d, Window};
use plimsoll_core::{DType, GraphError, Op, ValueId};

/// Slides filters over every channel of images by itself.
///
/// ```
/// use plimsoll::nn::{DepthwiseConv2D, Padding};
/// let layer = DepthwiseConv2D::new(3).padding(Padding::Same).bias(false);
/// ```
#[derive(Clone, Debug)]
pub struct DepthwiseConv2D {
    walk: Walk,
    multiplier: usize,
    activation: Activation,
    bias: bool,
    initializer: Initializer,
    penalty: Penalty,
}

impl DepthwiseConv2D {
    /// One filter of `size`×`size` for every channel, with stride 1, no padding, a bias and no activation.
    pub fn new(size: usize) -> DepthwiseConv2D {
        DepthwiseConv2D {
            walk: Walk::new(size, 1),
            multiplier: 1,
            activation: Activation::Linear,
            bias: true,
            initializer: Initializer::default(),
            penalty: Penalty::default(),
        }
    }

    /// With filters of another height and width.
    pub fn size(mut self, height: usize, width: usize) -> DepthwiseConv2D {
        self.walk.size = (height, width);
        self
    }

    /// With another stride, down and across.
    pub fn stride(mut self, down: usize, across: usize) -> DepthwiseConv2D {
        self.walk.stride = (down, across);
        self
    }

    /// With filters whose places lie this far apart, down and across.
    pub fn dilation(mut self, down: usize, across: usize) -> DepthwiseConv2D {
        self.walk.dilation = (down, across);
        self
    }

    /// With other edges.
    pub fn padding(mut self, padding: Padding) -> DepthwiseConv2D {
        self.walk.padding = padding;
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
    pub fn penalty(self, penalty: Penalty) -> DepthwiseConv2D {
        DepthwiseConv2D { penalty, ..self }
    }

    /// The convolution, and how many channels come out.
    fn convolve(&self, lowering: &mut Lowering<'_>, x: ValueId, name: &str) -> Result<(ValueId, usize), GraphError> {
        let (window, channels): (Window, usize) = self.walk.window(lowering.graph, x)?;
        if self.multiplier == 0 {
            return Err(lowering.graph.error("needs at least one filter for every channel"));
        }
        let ((height, width), taps) = (self.walk.size, self.walk.taps());
        let init = self.initializer.init(taps * channels, taps * self.multiplier);
        // The filters of a channel stand together, as its group's.
        let filter = lowering.parameter(name, [height, width, 1, channels * self.multiplier], init)?;
        lowering.penalize(filter, self.penalty)?;
        let y = lowering.graph.add_one(Op::Conv2d(Conv2d { window, groups: channels, epilogue: None, dtype: DType::F32 }), &[x, filter])?;
        Ok((y, channels * self.multiplier))
    }
}

impl Layer for DepthwiseConv2D {
    fn kind(&self) -> &'static str {
        "depthwise_conv2d"
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

impl Layer for SeparableConv2D {
    fn kind(&self) -> &'static str {
        "separable_conv2d"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        if self.filters == 0 {
            return Err(lowering.graph.error("needs at least one filter"));
        }
        let (y, channels) = self.depthwise.convolve(lowering, x, "depthwise_kernel")?;
        let init = self.depthwise.initializer.init(channels, self.filters);
        let mix = lowering.parameter("pointwise_kernel", [1, 1, channels, self.filters], init)?;
        lowering.penalize(mix, self.depthwise.penalty)?;
        let conv = Conv2d { window: Window::valid((1, 1), (1, 1)), groups: 1, epilogue: None, dtype: DType::F32 };
        let y = lowering.graph.add_one(Op::Conv2d(conv), &[y, mix])?;
        finish(lowering, y, self.filters, self.depthwise.bias, self.depthwise.activation)
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(self.depthwise.activation)
    }
}
