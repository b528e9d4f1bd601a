//! Pooling layers.

use super::{Layer, Lowering, Padding, only};
use plimsoll_core::ops::{AvgPool, MaxPool, Reduction};
use plimsoll_core::shape::Shape;
use plimsoll_core::{GraphError, Op, ValueId};

/// The largest element of every window.
#[derive(Clone, Debug)]
pub struct MaxPool2D {
    walk: Walk,
}

/// The mean of every window.
#[derive(Clone, Debug)]
pub struct AveragePool2D {
    walk: Walk,
}

/// The mean over each whole image: `[batch, height, width, channels]` becomes `[batch, channels]`.
#[derive(Clone, Debug, Default)]
pub struct GlobalAveragePool;

#[derive(Clone, Copy, Debug)]
struct Walk {
    size: (usize, usize),
    stride: (usize, usize),
    padding: Padding,
}

macro_rules! pooling {
    ($layer:ident, $kind:literal, $op:ident) => {
        impl $layer {
            /// Windows of `size`×`size` side by side.
            pub fn new(size: usize) -> $layer {
                $layer { walk: Walk { size: (size, size), stride: (size, size), padding: Padding::Valid } }
            }

            /// With windows of another height and width.
            pub fn size(mut self, height: usize, width: usize) -> $layer {
                self.walk.size = (height, width);
                self
            }

            /// With another stride, down and across.
            pub fn stride(mut self, down: usize, across: usize) -> $layer {
                self.walk.stride = (down, across);
                self
            }

            /// With other edges.
            pub fn padding(mut self, padding: Padding) -> $layer {
                self.walk.padding = padding;
                self
            }
        }

        impl Layer for $layer {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
                let x = only(lowering, inputs)?;
                let g = &mut *lowering.graph;
                let window = self.walk.padding.window(g, x, self.walk.size, self.walk.stride)?;
                g.add_one(Op::$op($op { window }), &[x])
            }
        }
    };
}

pooling!(MaxPool2D, "max_pool2d", MaxPool);
pooling!(AveragePool2D, "average_pool2d", AvgPool);

impl Layer for GlobalAveragePool {
    fn kind(&self) -> &'static str {
        "global_average_pool"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        let g = &mut *lowering.graph;
        let shape = g.shape(x).clone();
        let &[batch, height, width, channels] = shape.dims() else {
            return Err(g.error(format!("takes images [batch, height, width, channels], but got the shape {shape}")));
        };
        let sum = g.reduce(Reduction::Sum, x, &[1, 2])?;
        let sum = g.reshape(sum, Shape::new([batch, channels]))?;
        let share = 1.0 / (height.factor() * width.factor()).max(1) as f32;
        g.map(sum, |e, x| e.mul(x, e.constant(share)))
    }
}
