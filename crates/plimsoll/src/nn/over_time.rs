//! One-dimensional layers over sequences `[batch, time, channels]`: images of one row through the two-dimensional
//! layers.

use super::{
    Activation, AveragePool2D, Conv2DTranspose, Cropping2D, DepthwiseConv2D, Layer, LayerDef, Lowering, MaxPool2D, Padding,
    SeparableConv2D, UpSampling2D, ZeroPadding2D, config::LayerConfig, single_input,
};
use plimsoll_core::shape::Shape;
use plimsoll_core::{GraphError, ValueId};
use std::sync::Arc;

/// A layer for images, applied to sequences as images of one row.
///
/// ```
/// use plimsoll::nn::OverTime;
/// let pooled = OverTime::max_pool(2, 2);
/// ```
#[derive(Clone, Debug)]
pub struct OverTime {
    kind: &'static str,
    layer: Arc<dyn Layer>,
    /// Zeros before the first step, for causal padding.
    causal: usize,
}

/// The number of time steps of a window, and between two.
type Steps = (usize, usize);

impl OverTime {
    fn new(def: &LayerDef, layer: impl Layer + 'static) -> OverTime {
        OverTime { kind: def.name, layer: Arc::new(layer), causal: 0 }
    }

    /// The maximum over windows of `size` steps.
    pub fn max_pool(size: usize, stride: usize) -> OverTime {
        OverTime::max_pool_padded((size, stride), Padding::Valid)
    }

    /// Max pooling with padding.
    pub fn max_pool_padded((size, stride): Steps, padding: Padding) -> OverTime {
        OverTime::new(&MAX_POOL1D, MaxPool2D::new(1).size(1, size).stride(1, stride).padding(padding))
    }

    /// The mean over windows of `size` steps.
    pub fn average_pool(size: usize, stride: usize) -> OverTime {
        OverTime::average_pool_padded((size, stride), Padding::Valid)
    }

    /// Average pooling with padding, which does not count.
    pub fn average_pool_padded((size, stride): Steps, padding: Padding) -> OverTime {
        OverTime::new(&AVERAGE_POOL1D, AveragePool2D::new(1).size(1, size).stride(1, stride).padding(padding))
    }

    /// Repeats every step.
    pub fn up_sampling(factor: usize) -> OverTime {
        OverTime::new(&UP_SAMPLING1D, UpSampling2D::new(1).factor(1, factor))
    }

    /// Zeros before the first and after the last step.
    pub fn zero_padding(before: usize, after: usize) -> OverTime {
        OverTime::new(&ZERO_PADDING1D, ZeroPadding2D::new(0).columns(before, after))
    }

    /// Removes steps at the start and at the end.
    pub fn cropping(before: usize, after: usize) -> OverTime {
        OverTime::new(&CROPPING1D, Cropping2D::new(0).columns(before, after))
    }

    /// A transposed convolution, whose kernel is one row high.
    pub fn conv_transpose(layer: Conv2DTranspose) -> OverTime {
        OverTime::new(&CONV1D_TRANSPOSE, layer)
    }

    /// A depthwise convolution, whose kernel is one row high.
    pub fn depthwise_conv(layer: DepthwiseConv2D) -> OverTime {
        OverTime::new(&DEPTHWISE_CONV1D, layer)
    }

    /// A separable convolution, whose kernel is one row high.
    pub fn separable_conv(layer: SeparableConv2D) -> OverTime {
        OverTime::new(&SEPARABLE_CONV1D, layer)
    }

    /// Zeros before the first step, so that an output does not depend on later steps.
    pub fn causal(self, zeros: usize) -> OverTime {
        OverTime { causal: zeros, ..self }
    }
}

impl Layer for OverTime {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let &[batch, time, channels] = shape.dims() else {
            return Err(lowering.graph.error(format!("expects sequences of shape [batch, time, channels], but received {shape}")));
        };
        let mut x = lowering.graph.reshape(x, Shape::new([batch, 1.into(), time, channels]))?;
        if self.causal > 0 {
            x = ZeroPadding2D::new(0).columns(self.causal, 0).lower(lowering, &[x])?;
        }
        let y = self.layer.lower(lowering, &[x])?;
        let &[batch, _, time, channels] = lowering.graph.shape(y).dims() else { unreachable!("layers for images keep the rank") };
        lowering.graph.reshape(y, Shape::new([batch, time, channels]))
    }

    fn prunes(&self, weight: &str) -> bool {
        self.layer.prunes(weight)
    }

    fn last_activation(&self) -> Option<Activation> {
        None
    }
}

/// `size` and `stride`, which defaults to it.
fn pooling(config: &LayerConfig<'_, '_>) -> crate::error::Result<(Steps, Padding)> {
    let size = config.required_count("size", 1, "the window size in time steps")?;
    let stride = config.count("stride", 1)?.map_or(size, |stride| stride as usize);
    Ok(((size, stride), config.padding()?))
}

/// `padding = [before, after]`.
fn ends(config: &LayerConfig<'_, '_>) -> crate::error::Result<(usize, usize)> {
    config.pair("padding")?.ok_or_else(|| config.missing("padding", "steps at both ends, or [before, after]"))
}

/// `type = "max_pool1d"`.
pub(super) const MAX_POOL1D: LayerDef = LayerDef {
    name: "max_pool1d",
    about: "Maximum over windows of time steps; `stride` defaults to `size`.",
    example: "size = 2",
    from_config: |config| pooling(config).map(|(steps, padding)| Arc::new(OverTime::max_pool_padded(steps, padding)) as Arc<dyn Layer>),
};

/// `type = "average_pool1d"`.
pub(super) const AVERAGE_POOL1D: LayerDef = LayerDef {
    name: "average_pool1d",
    about: "Mean over windows of time steps; `stride` defaults to `size`.",
    example: "size = 2",
    from_config: |config| pooling(config).map(|(steps, padding)| Arc::new(OverTime::average_pool_padded(steps, padding)) as Arc<dyn Layer>),
};

/// `type = "up_sampling1d"`.
pub(super) const UP_SAMPLING1D: LayerDef = LayerDef {
    name: "up_sampling1d",
    about: "Repeats every time step `factor` times.",
    example: "",
    from_config: |config| Ok(Arc::new(OverTime::up_sampling(config.count_or("factor", 2)?))),
};

/// `type = "zero_padding1d"`.
pub(super) const ZERO_PADDING1D: LayerDef = LayerDef {
    name: "zero_padding1d",
    about: "Pads sequences with zeros at both ends.",
    example: "padding = 1",
    from_config: |config| ends(config).map(|(before, after)| Arc::new(OverTime::zero_padding(before, after)) as Arc<dyn Layer>),
};

/// `type = "cropping1d"`.
pub(super) const CROPPING1D: LayerDef = LayerDef {
    name: "cropping1d",
    about: "Crops sequences at both ends.",
    example: "padding = 1",
    from_config: |config| ends(config).map(|(before, after)| Arc::new(OverTime::cropping(before, after)) as Arc<dyn Layer>),
};

/// `type = "conv1d_transpose"`.
pub(super) const CONV1D_TRANSPOSE: LayerDef = LayerDef {
    name: "conv1d_transpose",
    about: "Transposed 1-D convolution over `[batch, time, channels]`.",
    example: "filters = 32\nsize = 3",
    from_config: |config| {
        let size = config.required_count("size", 1, "the kernel size in time steps")?;
        let conv = Conv2DTranspose::new(config.filters()?, 1, 1).size(1, size).stride(1, config.count_or("stride", 1)?);
        let conv = conv.padding(config.padding()?).activation(config.activation()?).bias(config.bias()?);
        Ok(Arc::new(OverTime::conv_transpose(conv.initializer(config.initializer()?))))
    },
};

/// `type = "depthwise_conv1d"`.
pub(super) const DEPTHWISE_CONV1D: LayerDef = LayerDef {
    name: "depthwise_conv1d",
    about: "Depthwise 1-D convolution over `[batch, time, channels]`.",
    example: "size = 3",
    from_config: |config| Ok(Arc::new(OverTime::depthwise_conv(depthwise(config)?))),
};

/// `type = "separable_conv1d"`.
pub(super) const SEPARABLE_CONV1D: LayerDef = LayerDef {
    name: "separable_conv1d",
    about: "Depthwise 1-D convolution, then one of size 1 that mixes the channels.",
    example: "filters = 32\nsize = 3",
    from_config: |config| {
        let depthwise = depthwise(config)?;
        Ok(Arc::new(OverTime::separable_conv(SeparableConv2D::new(config.filters()?, 1).depthwise(|_| depthwise))))
    },
};

fn depthwise(config: &LayerConfig<'_, '_>) -> crate::error::Result<DepthwiseConv2D> {
    let size = config.required_count("size", 1, "the kernel size in time steps")?;
    let conv = DepthwiseConv2D::new(1).size(1, size).stride(1, config.count_or("stride", 1)?);
    let conv = conv.multiplier(config.count_or("multiplier", 1)?).padding(config.padding()?);
    Ok(conv.activation(config.activation()?).bias(config.bias()?).initializer(config.initializer()?))
}

/// Applies a layer to every time step by itself, with the same weights: `[batch, time, …]` stays.
///
/// ```
/// use plimsoll::nn::{Conv2D, TimeDistributed};
/// let frames = TimeDistributed::new(Conv2D::new(8, 3));
/// ```
#[derive(Clone, Debug)]
pub struct TimeDistributed {
    layer: Arc<dyn Layer>,
}

impl TimeDistributed {
    /// Applies this layer, which has one input.
    pub fn new(layer: impl Layer + 'static) -> TimeDistributed {
        TimeDistributed::of(Arc::new(layer))
    }

    pub(crate) fn of(layer: Arc<dyn Layer>) -> TimeDistributed {
        TimeDistributed { layer }
    }
}

/// `type = "time_distributed"`.
pub(super) const TIME_DISTRIBUTED: LayerDef = LayerDef {
    name: "time_distributed",
    about: "Applies `layer` to every time step.",
    example: "layer = { type = \"dense\", units = 8 }",
    from_config: |config| {
        let Some(inner) = config.section("layer")? else { return Err(config.missing("layer", "a table with the layer's type")) };
        let layer = super::layer_from_config(&inner)?;
        inner.finish()?;
        Ok(Arc::new(TimeDistributed::of(layer)))
    },
};

impl Layer for TimeDistributed {
    fn kind(&self) -> &'static str {
        TIME_DISTRIBUTED.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let [batch, time, row @ ..] = shape.dims() else {
            return Err(lowering.graph.error(format!("expects sequences of shape [batch, time, …], but received {shape}")));
        };
        let rows = Shape::new([*batch, *time]).elements();
        let steps = lowering.graph.reshape(x, Shape::new([rows].into_iter().chain(row.iter().copied())))?;
        let y = self.layer.lower(lowering, &[steps])?;
        let row = lowering.graph.shape(y).dims()[1..].to_vec();
        lowering.graph.reshape(y, Shape::new([*batch, *time].into_iter().chain(row)))
    }

    fn uses_batch_statistics(&self) -> bool {
        self.layer.uses_batch_statistics()
    }

    fn synchronizes_statistics(&self) -> bool {
        self.layer.synchronizes_statistics()
    }

    fn prunes(&self, weight: &str) -> bool {
        self.layer.prunes(weight)
    }
}
