//! Transposed convolution.

use super::conv::bias_and_activation;
use super::keras::{KerasLayer, kernel_and_bias, regularizer, window};
use super::window::{SlidingWindow, image_dims};
use super::{Activation, Initializer, Int8, Layer, LayerDef, Lowering, Padding, Regularizer, single_input};
use plimsoll_core::ops::Conv2dGradInput;
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, GraphError, Op, ValueId};
use serde_json::json;
use std::sync::Arc;

/// Transposed 2-D convolution (deconvolution): the gradient of a convolution with respect to its input, as a layer.
///
/// Output sizes are those of Keras: `input·stride` with [`Padding::Same`]; `input·stride + max(extent - stride, 0)`
/// with [`Padding::Valid`], where `extent` is `dilation·(size - 1) + 1`. Explicit padding is cropped from the full
/// output, as in PyTorch.
#[derive(Clone, Debug)]
pub struct Conv2DTranspose {
    filters: usize,
    window: SlidingWindow,
    extra: (usize, usize),
    activation: Activation,
    bias: bool,
    initializer: Initializer,
    regularizer: Regularizer,
}

impl Conv2DTranspose {
    /// `filters` filters of `size`×`size` with this stride, no padding, a bias and no activation.
    pub fn new(filters: usize, size: usize, stride: usize) -> Conv2DTranspose {
        Conv2DTranspose {
            filters,
            window: SlidingWindow::new(size, stride),
            extra: (0, 0),
            activation: Activation::Linear,
            bias: true,
            initializer: Initializer::default(),
            regularizer: Regularizer::default(),
        }
    }

    /// Sets the kernel size.
    pub fn size(mut self, height: usize, width: usize) -> Conv2DTranspose {
        self.window.size = (height, width);
        self
    }

    /// Sets the strides along height and width.
    pub fn stride(mut self, down: usize, across: usize) -> Conv2DTranspose {
        self.window.stride = (down, across);
        self
    }

    /// Sets the dilation rates along height and width.
    pub fn dilation(mut self, down: usize, across: usize) -> Conv2DTranspose {
        self.window.dilation = (down, across);
        self
    }

    /// Sets the padding.
    pub fn padding(mut self, padding: Padding) -> Conv2DTranspose {
        self.window.padding = padding;
        self
    }

    /// With explicit padding, extra rows and columns at the end of the output.
    pub fn output_padding(self, rows: usize, columns: usize) -> Conv2DTranspose {
        Conv2DTranspose { extra: (rows, columns), ..self }
    }

    /// Sets the activation function.
    pub fn activation(self, activation: Activation) -> Conv2DTranspose {
        Conv2DTranspose { activation, ..self }
    }

    /// Whether to add a bias.
    pub fn bias(self, bias: bool) -> Conv2DTranspose {
        Conv2DTranspose { bias, ..self }
    }

    /// Sets the kernel initializer.
    pub fn initializer(self, initializer: Initializer) -> Conv2DTranspose {
        Conv2DTranspose { initializer, ..self }
    }

    /// Sets the kernel regularizer.
    pub fn regularizer(self, regularizer: Regularizer) -> Conv2DTranspose {
        Conv2DTranspose { regularizer, ..self }
    }

    /// The output height and width, if they are positive.
    fn enlarged(&self, (height, width): (usize, usize)) -> Option<(usize, usize)> {
        let SlidingWindow { size, stride, dilation, padding } = self.window;
        let along = |length: usize, size: usize, stride: usize, dilation: usize, pad: (usize, usize), extra: usize| {
            let reach = size.checked_sub(1)?.saturating_mul(dilation).saturating_add(1);
            match padding {
                Padding::Same => Some(length.saturating_mul(stride)),
                Padding::Valid => Some(length.saturating_mul(stride).saturating_add(reach.saturating_sub(stride))),
                Padding::Explicit { .. } => {
                    let whole = length.checked_sub(1)?.saturating_mul(stride).saturating_add(reach).saturating_add(extra);
                    whole.checked_sub(pad.0.saturating_add(pad.1))
                }
            }
        };
        let (rows, columns) = match padding {
            Padding::Explicit { rows, columns } => (rows, columns),
            _ => ((0, 0), (0, 0)),
        };
        let height = along(height, size.0, stride.0, dilation.0, rows, self.extra.0)?;
        let width = along(width, size.1, stride.1, dilation.1, columns, self.extra.1)?;
        (height > 0 && width > 0).then_some((height, width))
    }
}

/// `type = "conv2d_transpose"`.
pub(super) const CONV2D_TRANSPOSE: LayerDef = LayerDef {
    name: "conv2d_transpose",
    about: "Transposed 2-D convolution (deconvolution).",
    example: "filters = 32\nsize = 3",
    from_config: |config| {
        let ((height, width), (down, across)) = (config.size()?, config.pair_or("stride", 1)?);
        let conv = Conv2DTranspose::new(config.filters()?, 1, 1).size(height, width).stride(down, across);
        let (down, across) = config.pair_or("dilation", 1)?;
        let conv = conv.dilation(down, across).padding(config.padding()?).activation(config.activation()?).bias(config.bias()?);
        Ok(Arc::new(conv.initializer(config.initializer()?).regularizer(config.regularizer()?)))
    },
};

impl Layer for Conv2DTranspose {
    fn kind(&self) -> &'static str {
        CONV2D_TRANSPOSE.name
    }

    fn to_keras(&self, inputs: &[Shape]) -> Option<Vec<KerasLayer>> {
        // Keras adds no zeros of its own choice around a transposed convolution.
        let (mut config, None) = window(&self.window, "kernel_size", inputs) else { return None };
        config.insert("filters".into(), json!(self.filters));
        config.insert("dilation_rate".into(), json!([self.window.dilation.0, self.window.dilation.1]));
        config.insert("activation".into(), json!(self.activation.keras_name()?));
        config.insert("use_bias".into(), json!(self.bias));
        config.insert("kernel_regularizer".into(), regularizer(self.regularizer));
        let none = self.extra == (0, 0);
        none.then(|| vec![KerasLayer::new("Conv2DTranspose", config.into()).weights(kernel_and_bias(self.bias))])
    }

    fn int8(&self) -> Int8 {
        Int8::Kernel { linear: self.activation == Activation::Linear }
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let (height, width, channels) = image_dims(lowering.graph, x)?;
        let (size, stride) = (self.window.size, self.window.stride);
        let Some((tall, wide)) = self.enlarged((height, width)).filter(|_| self.filters > 0 && stride.0.min(stride.1) > 0) else {
            let what = format!(
                "{} filters of {}×{} with stride {}×{} give an empty output for an image of {height}×{width}",
                self.filters, size.0, size.1, stride.0, stride.1
            );
            return Err(lowering.graph.error(what));
        };
        let elements = self.window.elements();
        // Fans as in Keras: the kernel is that of the convolution from the output to the input.
        let init = self.initializer.init(elements.saturating_mul(self.filters), elements.saturating_mul(channels));
        let filter = lowering.parameter("kernel", [size.0, size.1, self.filters, channels], init)?;
        lowering.regularize(filter, self.regularizer)?;
        let filter = lowering.int8_kernel(filter, 2)?;
        let g = &mut *lowering.graph;
        let input = g.shape(x).with(1, tall.into()).with(2, wide.into()).with(3, self.filters.into());
        let spread = Conv2dGradInput { window: self.window.on((tall, wide)), groups: 1, input, dtype: DType::F32 };
        let y = g.add_one(Op::Conv2dGradInput(spread), &[filter, x])?;
        bias_and_activation(lowering, y, self.filters, self.bias, self.activation)
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(self.activation)
    }
}
