//! The convolutional layer.

use super::{Activation, Initializer, Layer, Lowering, only};
use plimsoll_core::graph::{Init, StateKind};
use plimsoll_core::ops::{Conv2d, Window};
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::{DType, Graph, GraphError, Op, ValueId};

/// What is done at the edges of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Padding {
    /// Windows stay inside the image.
    #[default]
    Valid,
    /// Zeros around the image, so that the output is the input divided by the stride.
    Same,
}

impl Padding {
    /// All of them by the names configurations use.
    pub const NAMES: [(&'static str, Padding); 2] = [("valid", Padding::Valid), ("same", Padding::Same)];

    /// The window on images of the value's shape.
    pub(super) fn window(self, g: &Graph, x: ValueId, size: (usize, usize), stride: (usize, usize)) -> Result<Window, GraphError> {
        let shape = g.shape(x);
        let (Some(height), Some(width)) = (shape.dims().get(1).and_then(|d| d.as_fixed()), shape.dims().get(2).and_then(|d| d.as_fixed()))
        else {
            return Err(g.error(format!("takes images [batch, height, width, channels], but got the shape {shape}")));
        };
        if size.0.min(size.1).min(stride.0).min(stride.1) == 0 || height.min(width) == 0 {
            return Err(g.error(format!("a {}×{} window with stride {}×{} has no extent", size.0, size.1, stride.0, stride.1)));
        }
        Ok(match self {
            Padding::Valid => Window::valid(size, stride),
            Padding::Same => Window::same(size, stride, (1, 1), (height, width)),
        })
    }
}

/// Slides filters over images `[batch, height, width, channels]`.
///
/// ```
/// use plimsoll::nn::{Conv2D, Padding};
/// let layer = Conv2D::new(32, 3).padding(Padding::Same).relu();
/// ```
#[derive(Clone, Debug)]
pub struct Conv2D {
    filters: usize,
    size: (usize, usize),
    stride: (usize, usize),
    padding: Padding,
    activation: Activation,
    bias: bool,
    initializer: Initializer,
}

impl Conv2D {
    /// `filters` filters of `size`×`size`, with stride 1, no padding, a bias and no activation.
    pub fn new(filters: usize, size: usize) -> Conv2D {
        Conv2D {
            filters,
            size: (size, size),
            stride: (1, 1),
            padding: Padding::Valid,
            activation: Activation::Linear,
            bias: true,
            initializer: Initializer::default(),
        }
    }

    /// With filters of another height and width.
    pub fn size(self, height: usize, width: usize) -> Conv2D {
        Conv2D { size: (height, width), ..self }
    }

    /// With another stride, down and across.
    pub fn stride(self, down: usize, across: usize) -> Conv2D {
        Conv2D { stride: (down, across), ..self }
    }

    /// With other edges.
    pub fn padding(self, padding: Padding) -> Conv2D {
        Conv2D { padding, ..self }
    }

    /// With an activation.
    pub fn activation(self, activation: Activation) -> Conv2D {
        Conv2D { activation, ..self }
    }

    /// With ReLU.
    pub fn relu(self) -> Conv2D {
        self.activation(Activation::Relu)
    }

    /// With or without a bias.
    pub fn bias(self, bias: bool) -> Conv2D {
        Conv2D { bias, ..self }
    }

    /// With weights that start otherwise.
    pub fn initializer(self, initializer: Initializer) -> Conv2D {
        Conv2D { initializer, ..self }
    }
}

impl Layer for Conv2D {
    fn kind(&self) -> &'static str {
        "conv2d"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        let g = &mut *lowering.graph;
        let window = self.padding.window(g, x, self.size, self.stride)?;
        let channels = match g.shape(x).last().and_then(|dim| dim.as_fixed()) {
            Some(channels) if self.filters > 0 => channels,
            _ => return Err(g.error("needs at least one filter")),
        };
        let (height, width) = self.size;
        let filter = TensorType::f32(Shape::fixed([height, width, channels, self.filters]));
        let taps = height * width;
        let filter = g.state("kernel", StateKind::Parameter, filter, self.initializer.init(taps * channels, taps * self.filters))?;
        let mut y = g.add_one(Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype: DType::F32 }), &[x, filter])?;
        if self.bias {
            let bias = TensorType::f32(Shape::fixed([self.filters]));
            let bias = g.state("bias", StateKind::Parameter, bias, Init::Constant(0.0))?;
            y = g.plus(y, bias)?;
        }
        self.activation.apply(g, y)
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(self.activation)
    }
}
