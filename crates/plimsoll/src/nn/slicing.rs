//! Slices of tensors, and masks from token IDs.

use super::{Layer, LayerDef, Lowering, single_input};
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::ops::{Reduction, Slice};
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, GraphError, Op, ValueId};
use std::sync::Arc;

/// An axis counted from either end, as in Keras; none if there is no such axis.
pub(super) fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(axis).ok().filter(|axis| *axis < rank)
}

/// Some positions along an axis, as `x[:, start:start + length]` in Keras.
///
/// ```
/// use plimsoll::nn::Slicing;
/// let halves = (Slicing::new(-1, 0).length(8), Slicing::new(-1, 8));
/// let class_token = Slicing::new(1, 0).length(1).squeeze();
/// ```
#[derive(Clone, Debug)]
pub struct Slicing {
    axis: i64,
    start: i64,
    length: Option<usize>,
    squeeze: bool,
}

impl Slicing {
    /// From `start` to the end of an axis; both count from the end if negative. The batch, axis 0, is not sliced.
    pub fn new(axis: i64, start: i64) -> Slicing {
        Slicing { axis, start, length: None, squeeze: false }
    }

    /// Sets the number of positions.
    pub fn length(self, length: usize) -> Slicing {
        Slicing { length: Some(length), ..self }
    }

    /// Removes the axis, of which one position must be left.
    pub fn squeeze(self) -> Slicing {
        Slicing { squeeze: true, ..self }
    }
}

/// `type = "slice"`.
pub(super) const SLICE: LayerDef = LayerDef {
    name: "slice",
    about: "`length` positions from `start` along `axis`; `squeeze` removes the axis.",
    example: "axis = 1\nstart = 0\nlength = 1",
    from_config: |config| {
        let axis = config.required_count("axis", 1, "the axis, 1 is that behind the batch")? as i64;
        let layer = Slicing::new(axis, config.count_from_zero_or("start", 0)? as i64);
        let layer = match config.count("length", 1)? {
            Some(length) => layer.length(length as usize),
            None => layer,
        };
        Ok(Arc::new(if config.flag_or("squeeze", false)? { layer.squeeze() } else { layer }))
    },
};

impl Layer for Slicing {
    fn kind(&self) -> &'static str {
        SLICE.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let g = &mut *lowering.graph;
        let shape = g.shape(x).clone();
        let axis = axis_of(self.axis, shape.rank()).filter(|axis| *axis > 0);
        let extent = axis.and_then(|axis| shape.dims()[axis].as_fixed());
        let start = extent.and_then(|extent| axis_of(self.start, extent));
        let length = extent.zip(start).map(|(extent, start)| self.length.unwrap_or(extent - start));
        let (Some(axis), Some(extent), Some(start), Some(length)) = (axis, extent, start, length) else {
            return Err(g.error(format!("cannot slice {shape} along the axis {} from {}", self.axis, self.start)));
        };
        if length == 0 || start.saturating_add(length) > extent || self.squeeze && length != 1 {
            return Err(g.error(format!("cannot take {length} positions from {start} along the axis {axis} of {shape}")));
        }
        let y = if length == extent { x } else { g.add_one(Op::Slice(Slice { axis, start, length }), &[x])? };
        if !self.squeeze {
            return Ok(y);
        }
        let dims = shape.dims().iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, dim)| *dim);
        g.reshape(y, Shape::new(dims))
    }
}

/// A mask `[batch, time]` of the steps that count: those whose token is not `value`, or where any feature is not.
#[derive(Clone, Copy, Debug)]
pub struct ComputeMask {
    value: f32,
}

impl ComputeMask {
    /// Steps that are `value` do not count: 0 for padded tokens.
    pub fn new(value: f32) -> ComputeMask {
        ComputeMask { value }
    }
}

/// `type = "compute_mask"`.
pub(super) const COMPUTE_MASK: LayerDef = LayerDef {
    name: "compute_mask",
    about: "Mask of the steps whose token, or any of whose features, is not `value`.",
    example: "",
    from_config: |config| Ok(Arc::new(ComputeMask::new(config.number_or("value", 0.0)?))),
};

impl Layer for ComputeMask {
    fn kind(&self) -> &'static str {
        COMPUTE_MASK.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let g = &mut *lowering.graph;
        let x = g.cast(x, DType::F32)?;
        let shape = g.shape(x).clone();
        let different = Expr::build(|e| {
            let equal = e.binary(Binary::Equal, e.input(0), e.constant(self.value));
            e.select(equal, e.constant(0.0), e.constant(1.0))
        });
        let mask = g.pointwise(different, &[x])?;
        let mask = g.stop_gradient(mask)?;
        match shape.dims() {
            [_, _] => Ok(mask),
            [batch, time, _] => {
                let any = g.reduce(Reduction::Max, mask, &[2])?;
                g.reshape(any, Shape::new([*batch, *time]))
            }
            _ => Err(g.error(format!("expects [batch, time] or [batch, time, features], but received {shape}"))),
        }
    }

    fn reads_integers(&self) -> bool {
        true
    }
}
