//! Convolutional layers.

use super::keras::{KerasLayer, kernel_and_bias, regularizer, window};
use super::window::SlidingWindow;
use super::{Activation, Initializer, Int8, Layer, LayerDef, Lowering, Padding, Regularizer, single_input};
use plimsoll_core::graph::Init;
use plimsoll_core::ops::Conv2d;
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, GraphError, Op, ValueId};
use serde_json::json;
use std::sync::Arc;

/// 2-D convolution over images `[batch, height, width, channels]`.
///
/// ```
/// use plimsoll::nn::{Conv2D, Padding};
/// let layer = Conv2D::new(32, 3).padding(Padding::Same).relu();
/// ```
#[derive(Clone, Debug)]
pub struct Conv2D {
    pub(super) filters: usize,
    pub(super) window: SlidingWindow,
    pub(super) groups: usize,
    pub(super) activation: Activation,
    pub(super) bias: bool,
    pub(super) initializer: Initializer,
    pub(super) regularizer: Regularizer,
}

impl Conv2D {
    /// `filters` filters of `size`×`size`, with stride 1, no padding, a bias and no activation.
    pub fn new(filters: usize, size: usize) -> Conv2D {
        Conv2D {
            filters,
            window: SlidingWindow::new(size, 1),
            groups: 1,
            activation: Activation::Linear,
            bias: true,
            initializer: Initializer::default(),
            regularizer: Regularizer::default(),
        }
    }

    /// Sets the kernel size.
    pub fn size(mut self, height: usize, width: usize) -> Conv2D {
        self.window.size = (height, width);
        self
    }

    /// Sets the strides along height and width.
    pub fn stride(mut self, down: usize, across: usize) -> Conv2D {
        self.window.stride = (down, across);
        self
    }

    /// Sets the dilation rates along height and width.
    pub fn dilation(mut self, down: usize, across: usize) -> Conv2D {
        self.window.dilation = (down, across);
        self
    }

    /// Splits the channels into groups that are convolved separately.
    pub fn groups(self, groups: usize) -> Conv2D {
        Conv2D { groups, ..self }
    }

    /// Sets the padding.
    pub fn padding(mut self, padding: Padding) -> Conv2D {
        self.window.padding = padding;
        self
    }

    /// Sets the activation function.
    pub fn activation(self, activation: Activation) -> Conv2D {
        Conv2D { activation, ..self }
    }

    /// Sets the activation to ReLU.
    pub fn relu(self) -> Conv2D {
        self.activation(Activation::Relu)
    }

    /// Whether to add a bias.
    pub fn bias(self, bias: bool) -> Conv2D {
        Conv2D { bias, ..self }
    }

    /// Sets the kernel initializer.
    pub fn initializer(self, initializer: Initializer) -> Conv2D {
        Conv2D { initializer, ..self }
    }

    /// Sets the kernel regularizer.
    pub fn regularizer(self, regularizer: Regularizer) -> Conv2D {
        Conv2D { regularizer, ..self }
    }
}

/// `type = "conv2d"`.
pub(super) const CONV2D: LayerDef = LayerDef {
    name: "conv2d",
    about: "2-D convolution over `[batch, height, width, channels]`.",
    example: "filters = 32\nsize = 3",
    from_config: |config| {
        let ((height, width), (down, across)) = (config.size()?, config.pair_or("stride", 1)?);
        let conv = Conv2D::new(config.filters()?, 1).size(height, width).stride(down, across);
        let (down, across) = config.pair_or("dilation", 1)?;
        let conv = conv.dilation(down, across).groups(config.count_or("groups", 1)?).padding(config.padding()?);
        let conv = conv.activation(config.activation()?).bias(config.bias()?);
        Ok(Arc::new(conv.initializer(config.initializer()?).regularizer(config.regularizer()?)))
    },
};

impl Layer for Conv2D {
    fn kind(&self) -> &'static str {
        CONV2D.name
    }

    fn to_keras(&self, inputs: &[Shape]) -> Option<Vec<KerasLayer>> {
        let (mut config, zeros) = window(&self.window, "kernel_size", inputs);
        config.insert("filters".into(), json!(self.filters));
        config.insert("dilation_rate".into(), json!([self.window.dilation.0, self.window.dilation.1]));
        config.insert("groups".into(), json!(self.groups));
        config.insert("activation".into(), json!(self.activation.keras_name()?));
        config.insert("use_bias".into(), json!(self.bias));
        config.insert("kernel_regularizer".into(), regularizer(self.regularizer));
        let layer = KerasLayer::new("Conv2D", config.into()).weights(kernel_and_bias(self.bias));
        Some(zeros.into_iter().chain([layer]).collect())
    }

    fn int8(&self) -> Int8 {
        Int8::Kernel { linear: self.activation == Activation::Linear }
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let (window, channels) = self.window.window(lowering.graph, x)?;
        if self.filters == 0 {
            return Err(lowering.graph.error("needs at least one filter"));
        }
        let groups = self.groups;
        if groups == 0 || !channels.is_multiple_of(groups) || !self.filters.is_multiple_of(groups) {
            let what = format!("the channels ({channels}) and filters ({}) are not divisible by {groups} groups", self.filters);
            return Err(lowering.graph.error(what));
        }
        let ((height, width), elements) = (self.window.size, self.window.elements());
        let init = self.initializer.init(elements.saturating_mul(channels) / groups, elements.saturating_mul(self.filters) / groups);
        let filter = lowering.parameter("kernel", [height, width, channels / groups, self.filters], init)?;
        lowering.regularize(filter, self.regularizer)?;
        let filter = lowering.int8_kernel(filter, 3)?;
        let y = lowering.graph.add_one(Op::Conv2d(Conv2d { window, groups, epilogue: None, dtype: DType::F32 }), &[x, filter])?;
        bias_and_activation(lowering, y, self.filters, self.bias, self.activation)
    }

    fn with_outputs(&self, outputs: usize) -> Option<(Arc<dyn Layer>, bool)> {
        Some((Arc::new(Conv2D { filters: outputs, ..self.clone() }), true))
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(self.activation)
    }
}

/// Bias and activation.
pub(super) fn bias_and_activation(
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
    let y = before_activation(lowering, y, activation)?;
    activation.apply(lowering.graph, y)
}

/// The value that an activation is applied to. In an int8 model it has a range, unless the activation is part of the
/// operator before it.
pub(super) fn before_activation(lowering: &mut Lowering<'_>, y: ValueId, activation: Activation) -> Result<ValueId, GraphError> {
    match activation {
        Activation::Linear | Activation::Relu | Activation::Relu6 => Ok(y),
        _ => lowering.observe("before_activation", y),
    }
}

/// 1-D convolution over sequences `[batch, time, channels]`.
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
    /// `filters` filters over `size` time steps, with stride 1, no padding, a bias and no activation.
    pub fn new(filters: usize, size: usize) -> Conv1D {
        Conv1D { conv: Conv2D::new(filters, 1).size(1, size), causal: false }
    }

    fn with(self, change: impl FnOnce(Conv2D) -> Conv2D) -> Conv1D {
        Conv1D { conv: change(self.conv), ..self }
    }

    /// Sets the stride.
    pub fn stride(self, stride: usize) -> Conv1D {
        self.with(|conv| conv.stride(1, stride))
    }

    /// Sets the dilation rate.
    pub fn dilation(self, dilation: usize) -> Conv1D {
        self.with(|conv| conv.dilation(1, dilation))
    }

    /// Splits the channels into groups that are convolved separately.
    pub fn groups(self, groups: usize) -> Conv1D {
        self.with(|conv| conv.groups(groups))
    }

    /// Sets the padding; explicit padding is that of the columns.
    pub fn padding(self, padding: Padding) -> Conv1D {
        let padding = match padding {
            Padding::Explicit { columns, .. } => Padding::Explicit { rows: (0, 0), columns },
            other => other,
        };
        Conv1D { causal: false, ..self.with(|conv| conv.padding(padding)) }
    }

    /// Causal padding: the output at a step does not depend on later steps.
    pub fn causal(self) -> Conv1D {
        Conv1D { causal: true, ..self }
    }

    /// Sets the activation function.
    pub fn activation(self, activation: Activation) -> Conv1D {
        self.with(|conv| conv.activation(activation))
    }

    /// Sets the activation to ReLU.
    pub fn relu(self) -> Conv1D {
        self.activation(Activation::Relu)
    }

    /// Whether to add a bias.
    pub fn bias(self, bias: bool) -> Conv1D {
        self.with(|conv| conv.bias(bias))
    }

    /// Sets the kernel initializer.
    pub fn initializer(self, initializer: Initializer) -> Conv1D {
        self.with(|conv| conv.initializer(initializer))
    }

    /// Sets the kernel regularizer.
    pub fn regularizer(self, regularizer: Regularizer) -> Conv1D {
        self.with(|conv| conv.regularizer(regularizer))
    }
}

/// `type = "conv1d"`.
pub(super) const CONV1D: LayerDef = LayerDef {
    name: "conv1d",
    about: "1-D convolution over `[batch, time, channels]`; `padding = \"causal\"` too.",
    example: "filters = 32\nsize = 3",
    from_config: |config| {
        let conv = Conv1D::new(config.filters()?, config.required_count("size", 1, "the kernel size in time steps")?);
        let conv = conv.stride(config.count_or("stride", 1)?).dilation(config.count_or("dilation", 1)?);
        let conv = conv.groups(config.count_or("groups", 1)?);
        let causal = config.value("padding").and_then(|value| value.as_str()) == Some("causal");
        let conv = if causal { conv.causal() } else { conv.padding(config.padding()?) };
        let conv = conv.activation(config.activation()?).bias(config.bias()?);
        Ok(Arc::new(conv.initializer(config.initializer()?).regularizer(config.regularizer()?)))
    },
};

impl Layer for Conv1D {
    fn kind(&self) -> &'static str {
        CONV1D.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let conv = &self.conv;
        let padding = match (self.causal, conv.window.padding) {
            (true, _) => "causal",
            (false, Padding::Valid) => "valid",
            (false, Padding::Same) => "same",
            (false, Padding::Explicit { .. }) => return None,
        };
        let config = json!({
            "filters": conv.filters,
            "kernel_size": [conv.window.size.1],
            "strides": [conv.window.stride.1],
            "padding": padding,
            "data_format": "channels_last",
            "dilation_rate": [conv.window.dilation.1],
            "groups": conv.groups,
            "activation": conv.activation.keras_name()?,
            "use_bias": conv.bias,
        });
        Some(vec![KerasLayer::new("Conv1D", config).weights(kernel_and_bias(conv.bias))])
    }

    fn int8(&self) -> Int8 {
        self.conv.int8()
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let &[batch, time, channels] = shape.dims() else {
            return Err(lowering.graph.error(format!("expects sequences of shape [batch, time, channels], but received {shape}")));
        };
        let x = lowering.graph.reshape(x, Shape::new([batch, 1.into(), time, channels]))?;
        let mut conv = self.conv.clone();
        if self.causal {
            let reach = conv.window.size.1.saturating_sub(1).saturating_mul(conv.window.dilation.1);
            conv.window.padding = Padding::Explicit { rows: (0, 0), columns: (reach, 0) };
        }
        let y = conv.lower(lowering, &[x])?;
        let &[batch, _, time, channels] = lowering.graph.shape(y).dims() else { unreachable!("convolutions keep the rank") };
        lowering.graph.reshape(y, Shape::new([batch, time, channels]))
    }
}
