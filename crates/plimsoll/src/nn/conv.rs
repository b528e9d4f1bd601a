//! Convolutional layers.

use super::{Activation, Initializer, Layer, Lowering, Penalty, only};
use plimsoll_core::graph::Init;
use plimsoll_core::ops::{Conv2d, Window};
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, Graph, GraphError, Op, ValueId};

/// What is done at the edges of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Padding {
    /// Windows stay inside the image.
    #[default]
    Valid,
    /// Zeros around the image, so that the output is the input divided by the stride.
    Same,
    /// Zeros above and below, left and right.
    Explicit {
        /// Above and below.
        rows: (usize, usize),
        /// Left and right.
        columns: (usize, usize),
    },
}

/// A walk of windows over an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub size: (usize, usize),
    pub stride: (usize, usize),
    pub dilation: (usize, usize),
    pub padding: Padding,
}

impl Padding {
    /// Those without numbers, by the names configurations use.
    pub const NAMES: [(&'static str, Padding); 2] = [("valid", Padding::Valid), ("same", Padding::Same)];

    /// The same number of zeros on all four sides.
    pub fn all(zeros: usize) -> Padding {
        Padding::Explicit { rows: (zeros, zeros), columns: (zeros, zeros) }
    }
}

impl Walk {
    pub fn new(size: usize, stride: usize) -> Walk {
        Walk { size: (size, size), stride: (stride, stride), dilation: (1, 1), padding: Padding::Valid }
    }

    /// The window on images of this height and width.
    pub fn on(&self, image: (usize, usize)) -> Window {
        match self.padding {
            Padding::Valid => Window { dilation: self.dilation, ..Window::valid(self.size, self.stride) },
            Padding::Same => Window::same(self.size, self.stride, self.dilation, image),
            Padding::Explicit { rows, columns } => {
                Window { dilation: self.dilation, pad_rows: rows, pad_columns: columns, ..Window::valid(self.size, self.stride) }
            }
        }
    }

    /// The window on images of the value's shape, and their channels.
    pub fn window(&self, g: &Graph, x: ValueId) -> Result<(Window, usize), GraphError> {
        let (height, width, channels) = image(g, x)?;
        let (size, stride) = (self.size, self.stride);
        if size.0.min(size.1).min(stride.0).min(stride.1) == 0 || height.min(width) == 0 {
            return Err(g.error(format!("a {}×{} window with stride {}×{} has no extent", size.0, size.1, stride.0, stride.1)));
        }
        Ok((self.on((height, width)), channels))
    }

    /// Places of the window.
    pub fn taps(&self) -> usize {
        self.size.0 * self.size.1
    }
}

/// Height, width and channels of a batch of images.
pub(super) fn image(g: &Graph, x: ValueId) -> Result<(usize, usize, usize), GraphError> {
    let shape = g.shape(x);
    let fixed = |i: usize| shape.dims().get(i).and_then(|dim| dim.as_fixed());
    match (shape.rank(), fixed(1), fixed(2), fixed(3)) {
        (4, Some(height), Some(width), Some(channels)) => Ok((height, width, channels)),
        _ => Err(g.error(format!("takes images [batch, height, width, channels], but got the shape {shape}"))),
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
    pub(super) filters: usize,
    pub(super) walk: Walk,
    pub(super) groups: usize,
    pub(super) activation: Activation,
    pub(super) bias: bool,
    pub(super) initializer: Initializer,
    pub(super) penalty: Penalty,
}

impl Conv2D {
    /// `filters` filters of `size`×`size`, with stride 1, no padding, a bias and no activation.
    pub fn new(filters: usize, size: usize) -> Conv2D {
        Conv2D {
            filters,
            walk: Walk::new(size, 1),
            groups: 1,
            activation: Activation::Linear,
            bias: true,
            initializer: Initializer::default(),
            penalty: Penalty::default(),
        }
    }

    /// With filters of another height and width.
    pub fn size(mut self, height: usize, width: usize) -> Conv2D {
        self.walk.size = (height, width);
        self
    }

    /// With another stride, down and across.
    pub fn stride(mut self, down: usize, across: usize) -> Conv2D {
        self.walk.stride = (down, across);
        self
    }

    /// With filters whose places lie this far apart, down and across.
    pub fn dilation(mut self, down: usize, across: usize) -> Conv2D {
        self.walk.dilation = (down, across);
        self
    }

    /// With channels cut into groups that do not see each other.
    pub fn groups(self, groups: usize) -> Conv2D {
        Conv2D { groups, ..self }
    }

    /// With other edges.
    pub fn padding(mut self, padding: Padding) -> Conv2D {
        self.walk.padding = padding;
        self
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

    /// With filters that cost something for being large.
    pub fn penalty(self, penalty: Penalty) -> Conv2D {
        Conv2D { penalty, ..self }
    }
}

impl Layer for Conv2D {
    fn kind(&self) -> &'static str {
        "conv2d"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        let (window, channels) = self.walk.window(lowering.graph, x)?;
        if self.filters == 0 {
            return Err(lowering.graph.error("needs at least one filter"));
        }
        let groups = self.groups;
        if groups == 0 || !channels.is_multiple_of(groups) || !self.filters.is_multiple_of(groups) {
            let what = format!("{groups} groups do not divide {channels} channels and {} filters", self.filters);
            return Err(lowering.graph.error(what));
        }
        let ((height, width), taps) = (self.walk.size, self.walk.taps());
        let init = self.initializer.init(taps * channels / groups, taps * self.filters / groups);
        let filter = lowering.parameter("kernel", [height, width, channels / groups, self.filters], init)?;
        lowering.penalize(filter, self.penalty)?;
        let y = lowering.graph.add_one(Op::Conv2d(Conv2d { window, groups, epilogue: None, dtype: DType::F32 }), &[x, filter])?;
        finish(lowering, y, self.filters, self.bias, self.activation)
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(self.activation)
    }
}

/// Bias and activation.
pub(super) fn finish(
    lowering: &mut Lowering<'_>,
    mut y: ValueId,
    channels: usize,
    bias: bool,
    activation: Activation,
) -> Result<ValueId, GraphError> {
    if bias {
        let bias = lowering.parameter("bias", [channels], Init::Constant(0.0))?;
        y = lowering.graph.plus(y, bias)?;
    }
    activation.apply(lowering.graph, y)
}

/// Slides filters over sequences `[batch, time, channels]`.
///
/// ```
/// use plimsoll::nn::Conv1D;
/// let layer = Conv1D::new(32, 3).causal().relu();
/// ```
#[derive(Clone, Debug)]
pub struct Conv1D {
    conv: Conv2D,
    causal: bool,
}

impl Conv1D {
    /// `filters` filters of `size` steps, with stride 1, no padding, a bias and no activation.
    pub fn new(filters: usize, size: usize) -> Conv1D {
        Conv1D { conv: Conv2D::new(filters, 1).size(1, size), causal: false }
    }

    fn with(self, change: impl FnOnce(Conv2D) -> Conv2D) -> Conv1D {
        Conv1D { conv: change(self.conv), ..self }
    }

    /// With another stride.
    pub fn stride(self, stride: usize) -> Conv1D {
        self.with(|conv| conv.stride(1, stride))
    }

    /// With filters whose places lie this far apart.
    pub fn dilation(self, dilation: usize) -> Conv1D {
        self.with(|conv| conv.dilation(1, dilation))
    }

    /// With channels cut into groups that do not see each other.
    pub fn groups(self, groups: usize) -> Conv1D {
        self.with(|conv| conv.groups(groups))
    }

    /// With other edges; explicit padding is that of the columns.
    pub fn padding(self, padding: Padding) -> Conv1D {
        let padding = match padding {
            Padding::Explicit { columns, .. } => Padding::Explicit { rows: (0, 0), columns },
            other => other,
        };
        Conv1D { causal: false, ..self.with(|conv| conv.padding(padding)) }
    }

    /// Padded in front so that no step sees a later one.
    pub fn causal(self) -> Conv1D {
        Conv1D { causal: true, ..self }
    }

    /// With an activation.
    pub fn activation(self, activation: Activation) -> Conv1D {
        self.with(|conv| conv.activation(activation))
    }

    /// With ReLU.
    pub fn relu(self) -> Conv1D {
        self.activation(Activation::Relu)
    }

    /// With or without a bias.
    pub fn bias(self, bias: bool) -> Conv1D {
        self.with(|conv| conv.bias(bias))
    }

    /// With weights that start otherwise.
    pub fn initializer(self, initializer: Initializer) -> Conv1D {
        self.with(|conv| conv.initializer(initializer))
    }

    /// With filters that cost something for being large.
    pub fn penalty(self, penalty: Penalty) -> Conv1D {
        self.with(|conv| conv.penalty(penalty))
    }
}

impl Layer for Conv1D {
    fn kind(&self) -> &'static str {
        "conv1d"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let &[batch, time, channels] = shape.dims() else {
            return Err(lowering.graph.error(format!("takes sequences [batch, time, channels], but got the shape {shape}")));
        };
        let x = lowering.graph.reshape(x, Shape::new([batch, 1.into(), time, channels]))?;
        let mut conv = self.conv.clone();
        if self.causal {
            let reach = (conv.walk.size.1.saturating_sub(1)) * conv.walk.dilation.1;
            conv.walk.padding = Padding::Explicit { rows: (0, 0), columns: (reach, 0) };
        }
        let y = conv.lower(lowering, &[x])?;
        let &[batch, _, time, channels] = lowering.graph.shape(y).dims() else { unreachable!("convolutions keep the rank") };
        lowering.graph.reshape(y, Shape::new([batch, time, channels]))
    }
}
