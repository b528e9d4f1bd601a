//! Pooling and unpooling layers.

use super::keras::{KerasLayer, window};
use super::window::{SlidingWindow, image_dims};
use super::{Int8, Layer, LayerDef, Lowering, Padding, single_input};
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::ops::{AvgPool, MaxPool, Reduction};
use plimsoll_core::shape::Shape;
use plimsoll_core::{GraphError, Op, ValueId};
use serde_json::json;
use std::sync::Arc;

/// The maximum of every window.
#[derive(Clone, Debug)]
pub struct MaxPool2D {
    window: SlidingWindow,
}

/// The mean of every window; padding does not count.
#[derive(Clone, Debug)]
pub struct AveragePool2D {
    window: SlidingWindow,
}

/// The mean over all axes between batch and channels: `[batch, height, width, channels]` becomes `[batch, channels]`.
#[derive(Clone, Debug, Default)]
pub struct GlobalAveragePool;

/// The maximum over all axes between batch and channels.
#[derive(Clone, Debug, Default)]
pub struct GlobalMaxPool;

/// Inverse of a max pooling without overlap: every element goes back to the position of its maximum, zeros elsewhere.
/// Inputs: the pooled image, then the input of the pooling.
#[derive(Clone, Debug)]
pub struct MaxUnpool2D {
    size: usize,
}

macro_rules! pooling {
    ($layer:ident, $def:ident, $op:ident, $class:literal) => {
        impl $layer {
            /// Windows of `size`×`size` without overlap.
            pub fn new(size: usize) -> $layer {
                $layer { window: SlidingWindow::new(size, size) }
            }

            /// Sets the window size.
            pub fn size(mut self, height: usize, width: usize) -> $layer {
                self.window.size = (height, width);
                self
            }

            /// Sets the strides along height and width.
            pub fn stride(mut self, down: usize, across: usize) -> $layer {
                self.window.stride = (down, across);
                self
            }

            /// Sets the padding.
            pub fn padding(mut self, padding: Padding) -> $layer {
                self.window.padding = padding;
                self
            }
        }

        impl Layer for $layer {
            fn kind(&self) -> &'static str {
                $def.name
            }

            fn to_keras(&self, inputs: &[Shape]) -> Option<Vec<KerasLayer>> {
                let (config, zeros) = window(&self.window, "pool_size", inputs);
                Some(zeros.into_iter().chain([KerasLayer::new($class, config.into())]).collect())
            }

            fn keeps_sign(&self) -> bool {
                true
            }

            fn int8(&self) -> Int8 {
                Int8::SameScale
            }

            fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
                let x = single_input(lowering, inputs)?;
                let g = &mut *lowering.graph;
                let (window, _) = self.window.window(g, x)?;
                g.add_one(Op::$op($op { window }), &[x])
            }
        }
    };
}

/// `type = "max_pool2d"`.
pub(super) const MAX_POOL2D: LayerDef = LayerDef {
    name: "max_pool2d",
    about: "Maximum over windows; `stride` defaults to `size`.",
    example: "size = 2",
    from_config: |config| {
        let (size, padding) = (config.size()?, config.padding()?);
        let stride = config.pair("stride")?.unwrap_or(size);
        Ok(Arc::new(MaxPool2D::new(1).size(size.0, size.1).stride(stride.0, stride.1).padding(padding)))
    },
};

/// `type = "average_pool2d"`.
pub(super) const AVERAGE_POOL2D: LayerDef = LayerDef {
    name: "average_pool2d",
    about: "Mean over windows, padding excluded; `stride` defaults to `size`.",
    example: "size = 2",
    from_config: |config| {
        let (size, padding) = (config.size()?, config.padding()?);
        let stride = config.pair("stride")?.unwrap_or(size);
        Ok(Arc::new(AveragePool2D::new(1).size(size.0, size.1).stride(stride.0, stride.1).padding(padding)))
    },
};

pooling!(MaxPool2D, MAX_POOL2D, MaxPool, "MaxPooling2D");
pooling!(AveragePool2D, AVERAGE_POOL2D, AvgPool, "AveragePooling2D");

/// Reduces all axes between batch and channels; also returns the number of elements per output.
fn global(lowering: &mut Lowering<'_>, inputs: &[ValueId], kind: Reduction) -> Result<(ValueId, usize), GraphError> {
    let x = single_input(lowering, inputs)?;
    let g = &mut *lowering.graph;
    let shape = g.shape(x).clone();
    let [batch, between @ .., channels] = shape.dims() else {
        return Err(g.error(format!("expects an input of shape [batch, …, channels], but received {shape}")));
    };
    if between.is_empty() || between.iter().any(|dim| dim.is_batch() || dim.factor() == 0) {
        return Err(g.error(format!("expects an input of shape [batch, …, channels], but received {shape}")));
    }
    let axes: Vec<usize> = (1..shape.rank() - 1).collect();
    let reduced = g.reduce(kind, x, &axes)?;
    let reduced = g.reshape(reduced, Shape::new([*batch, *channels]))?;
    Ok((reduced, Shape::new(between.iter().copied()).elements().factor()))
}

/// The mean over the steps that a mask keeps.
fn masked_mean(lowering: &mut Lowering<'_>, x: ValueId, mask: ValueId) -> Result<ValueId, GraphError> {
    let g = &mut *lowering.graph;
    let &[batch, time] = g.shape(mask).dims() else { return Err(g.error("a mask has the shape [batch, time]")) };
    let steps = g.reshape(mask, Shape::new([batch, time, 1.into()]))?;
    let kept = g.pointwise(Expr::build(|e| e.select(e.input(1), e.input(0), e.constant(0.0))), &[x, steps])?;
    let count = g.reduce(Reduction::Sum, mask, &[1])?;
    let (sum, _) = global(lowering, &[kept], Reduction::Sum)?;
    // A row of padding only has a mean of zero.
    let mean = Expr::build(|e| e.div(e.input(0), e.binary(Binary::Max, e.input(1), e.constant(1.0))));
    lowering.graph.pointwise(mean, &[sum, count])
}

/// `type = "global_average_pool"`.
pub(super) const GLOBAL_AVERAGE_POOL: LayerDef = LayerDef {
    name: "global_average_pool",
    about: "Mean over all axes between batch and channels.",
    example: "",
    from_config: |_| Ok(Arc::new(GlobalAveragePool)),
};

impl Layer for GlobalAveragePool {
    fn kind(&self) -> &'static str {
        GLOBAL_AVERAGE_POOL.name
    }

    fn to_keras(&self, inputs: &[Shape]) -> Option<Vec<KerasLayer>> {
        let class = match inputs.first()?.rank() {
            3 => "GlobalAveragePooling1D",
            4 => "GlobalAveragePooling2D",
            _ => return None,
        };
        Some(vec![KerasLayer::new(class, json!({ "data_format": "channels_last" }))])
    }

    fn int8(&self) -> Int8 {
        Int8::Operator
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        if let Some(mask) = lowering.mask.filter(|_| inputs.len() == 1) {
            return masked_mean(lowering, inputs[0], mask);
        }
        let (sum, count) = global(lowering, inputs, Reduction::Sum)?;
        lowering.graph.map(sum, |e, x| e.mul(x, e.constant(1.0 / count as f32)))
    }
}

/// `type = "global_max_pool"`.
pub(super) const GLOBAL_MAX_POOL: LayerDef = LayerDef {
    name: "global_max_pool",
    about: "Maximum over all axes between batch and channels.",
    example: "",
    from_config: |_| Ok(Arc::new(GlobalMaxPool)),
};

impl Layer for GlobalMaxPool {
    fn kind(&self) -> &'static str {
        GLOBAL_MAX_POOL.name
    }

    fn to_keras(&self, inputs: &[Shape]) -> Option<Vec<KerasLayer>> {
        let class = match inputs.first()?.rank() {
            3 => "GlobalMaxPooling1D",
            4 => "GlobalMaxPooling2D",
            _ => return None,
        };
        Some(vec![KerasLayer::new(class, json!({ "data_format": "channels_last" }))])
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        global(lowering, inputs, Reduction::Max).map(|(largest, _)| largest)
    }
}

/// The mean over the time steps that a mask counts. Inputs: the sequence `[batch, time, channels]`, then the mask
/// `[batch, time]`.
#[derive(Clone, Debug, Default)]
pub struct MaskedAveragePool;

/// `type = "masked_average_pool"`.
pub(super) const MASKED_AVERAGE_POOL: LayerDef = LayerDef {
    name: "masked_average_pool",
    about: "Mean over the time steps that count; its second input is the mask.",
    example: "",
    from_config: |_| Ok(Arc::new(MaskedAveragePool)),
};

impl Layer for MaskedAveragePool {
    fn kind(&self) -> &'static str {
        MASKED_AVERAGE_POOL.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let g = &mut *lowering.graph;
        let &[x, mask] = inputs else { return Err(g.error("expects two inputs: the sequence and its mask")) };
        let (shape, masked) = (g.shape(x).clone(), g.shape(mask).clone());
        let (&[batch, time, channels], true) = (shape.dims(), shape.rank() == 3 && masked.dims() == &shape.dims()[..2]) else {
            return Err(g.error(format!("expects [batch, time, channels] and [batch, time], but received {shape} and {masked}")));
        };
        let mask = g.cast(mask, plimsoll_core::DType::F32)?;
        let mask = g.reshape(mask, Shape::new([batch, time, 1.into()]))?;
        let kept = g.times(x, mask)?;
        let (sum, count) = (g.reduce(Reduction::Sum, kept, &[1])?, g.reduce(Reduction::Sum, mask, &[1])?);
        let mean = g.binary(Binary::Div, sum, count)?;
        g.reshape(mean, Shape::new([batch, channels]))
    }
}

impl MaxUnpool2D {
    /// For a pooling with windows of `size`×`size` without overlap.
    pub fn new(size: usize) -> MaxUnpool2D {
        MaxUnpool2D { size }
    }
}

/// `type = "max_unpool2d"`.
pub(super) const MAX_UNPOOL2D: LayerDef = LayerDef {
    name: "max_unpool2d",
    about: "Inverse of `max_pool2d`; its second input is the input of the pooling.",
    example: "size = 2",
    from_config: |config| Ok(Arc::new(MaxUnpool2D::new(config.required_count("size", 1, "the window size of the pooling")?))),
};

impl Layer for MaxUnpool2D {
    fn kind(&self) -> &'static str {
        MAX_UNPOOL2D.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let &[x, pooled] = inputs else {
            return Err(lowering.graph.error("expects two inputs: the values to unpool, and the input of the pooling"));
        };
        let g = &mut *lowering.graph;
        let (height, width, _) = image_dims(g, pooled)?;
        let (window, _) = SlidingWindow::new(self.size, self.size).window(g, pooled)?;
        if !height.is_multiple_of(self.size) || !width.is_multiple_of(self.size) {
            return Err(g.error(format!("the window size {0}×{0} does not divide the image size {height}×{width}", self.size)));
        }
        // Common-subexpression elimination merges this with the pooling before it.
        let places = g.add(Op::MaxPool(MaxPool { window }), &[pooled])?[1];
        if g.shape(places) != g.shape(x) {
            return Err(g.error(format!("values of shape {} do not match the pooling of {}", g.shape(x), g.shape(pooled))));
        }
        let &[batch, rows, columns, channels] = g.shape(x).dims() else { unreachable!("images have four dimensions") };
        let apart = Shape::new([batch, rows, 1.into(), columns, 1.into(), channels]);
        let (x, places) = (g.reshape(x, apart.clone())?, g.reshape(places, apart)?);
        let spread = Shape::new([batch, rows, self.size.into(), columns, self.size.into(), channels]);
        let put = Expr::build(|e| {
            let here = e.add(e.mul(e.coordinate(2), e.constant(self.size as f32)), e.coordinate(4));
            e.select(e.binary(Binary::Equal, here, e.input(1)), e.input(0), e.constant(0.0))
        });
        let y = g.pointwise_over(put, &[x, places], spread)?;
        g.reshape(y, Shape::new([batch, height.into(), width.into(), channels]))
    }
}
