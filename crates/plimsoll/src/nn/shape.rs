//! Layers that change shapes.

use super::keras::KerasLayer;
use super::window::image_dims;
use super::{Int8, Layer, LayerDef, Lowering, single_input};
use plimsoll_core::expr::Expr;
use plimsoll_core::ops::{Pad, Slice, Transpose};
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_core::{GraphError, Op, ValueId};
use serde_json::json;
use std::sync::Arc;

/// Flattens all axes but the batch: `[batch, h, w, c]` becomes `[batch, h·w·c]`; a view.
#[derive(Clone, Debug, Default)]
pub struct Flatten;

/// Reshapes the axes behind the batch; a view.
#[derive(Clone, Debug)]
pub struct Reshape {
    /// None is what the others leave.
    row: Vec<Option<usize>>,
}

/// Permutes the axes behind the batch, counted from 1 as in Keras.
#[derive(Clone, Debug)]
pub struct Permute {
    order: Vec<usize>,
}

/// Inserts axes of extent 1: `[batch, channels]` becomes `[batch, 1, 1, channels]`; a view.
#[derive(Clone, Copy, Debug)]
pub struct ExpandDims {
    axis: i64,
    count: usize,
}

impl ExpandDims {
    /// One axis before `axis` of the result's shape, counted from the batch at 0, or from the end if negative: -1 is a
    /// new last axis.
    pub fn new(axis: i64) -> ExpandDims {
        ExpandDims { axis, count: 1 }
    }

    /// Sets the number of axes.
    pub fn count(self, count: usize) -> ExpandDims {
        ExpandDims { count, ..self }
    }
}

/// Repeats a vector along a new time axis: `[batch, width]` becomes `[batch, times, width]`.
#[derive(Clone, Copy, Debug)]
pub struct RepeatVector {
    times: usize,
}

impl RepeatVector {
    /// The number of time steps.
    pub fn new(times: usize) -> RepeatVector {
        RepeatVector { times }
    }
}

/// Pads images with zeros.
#[derive(Clone, Debug)]
pub struct ZeroPadding2D {
    edges: EdgeWidths,
}

/// Crops the edges of images.
#[derive(Clone, Debug)]
pub struct Cropping2D {
    edges: EdgeWidths,
}

/// Rows at the top and bottom, columns at the left and right.
#[derive(Clone, Copy, Debug)]
struct EdgeWidths {
    rows: (usize, usize),
    columns: (usize, usize),
}

impl Reshape {
    /// The new shape, without the batch.
    pub fn new(row: impl Into<Vec<usize>>) -> Reshape {
        Reshape { row: row.into().into_iter().map(Some).collect() }
    }

    /// The new shape, without the batch; one axis may be none, and is what the others leave.
    pub fn inferred(row: impl Into<Vec<Option<usize>>>) -> Reshape {
        Reshape { row: row.into() }
    }
}

impl Permute {
    /// Axis `i + 1` of the output is axis `order[i]` of the input; the batch, axis 0, stays.
    pub fn new(order: impl Into<Vec<usize>>) -> Permute {
        Permute { order: order.into() }
    }
}

macro_rules! edges {
    ($layer:ident) => {
        impl $layer {
            /// The same number on all four sides.
            pub fn new(all: usize) -> $layer {
                $layer { edges: EdgeWidths { rows: (all, all), columns: (all, all) } }
            }

            /// Rows at the top and bottom.
            pub fn rows(mut self, above: usize, below: usize) -> $layer {
                self.edges.rows = (above, below);
                self
            }

            /// Columns at the left and right.
            pub fn columns(mut self, left: usize, right: usize) -> $layer {
                self.edges.columns = (left, right);
                self
            }
        }
    };
}

edges!(ZeroPadding2D);
edges!(Cropping2D);

/// `type = "flatten"`.
pub(super) const FLATTEN: LayerDef =
    LayerDef { name: "flatten", about: "Flattens all axes but the batch.", example: "", from_config: |_| Ok(Arc::new(Flatten)) };

impl Layer for Flatten {
    fn kind(&self) -> &'static str {
        FLATTEN.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        Some(vec![KerasLayer::new("Flatten", json!({ "data_format": "channels_last" }))])
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        lowering.graph.flatten(x)
    }

    fn keeps_channels(&self) -> bool {
        true
    }
}

/// `type = "reshape"`.
pub(super) const RESHAPE: LayerDef = LayerDef {
    name: "reshape",
    about: "Reshapes the axes behind the batch.",
    example: "shape = [7, 7, 64]",
    from_config: |config| Ok(Arc::new(Reshape::new(config.required_list("shape", "the new shape without the batch, such as [7, 7, 64]")?))),
};

impl Layer for Reshape {
    fn kind(&self) -> &'static str {
        RESHAPE.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let shape: Vec<i64> = self.row.iter().map(|dim| dim.map_or(-1, |dim| dim as i64)).collect();
        Some(vec![KerasLayer::new("Reshape", json!({ "target_shape": shape }))])
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let known = self.row.iter().flatten().fold(1, |all: usize, dim| all.saturating_mul(*dim));
        let (_, row) = row_shape(lowering, x)?;
        let rest = row.iter().product::<usize>().checked_div(known).unwrap_or(0);
        lowering.graph.reshape(x, Shape::batch_of(self.row.iter().map(|dim| dim.unwrap_or(rest))))
    }

    fn with_outputs(&self, outputs: usize) -> Option<(Arc<dyn Layer>, bool)> {
        // To a vector: the classes behind a convolution.
        (self.row.len() == 1).then(|| (Arc::new(Reshape::new([outputs])) as Arc<dyn Layer>, false))
    }
}

/// `type = "expand_dims"`.
pub(super) const EXPAND_DIMS: LayerDef = LayerDef {
    name: "expand_dims",
    about: "Inserts `count` axes of extent 1 at `axis`, counted from the batch at 0.",
    example: "axis = 1",
    from_config: |config| {
        let axis = config.required_count("axis", 1, "where the new axis goes, 1 is behind the batch")? as i64;
        Ok(Arc::new(ExpandDims::new(axis).count(config.count_or("count", 1)?)))
    },
};

impl Layer for ExpandDims {
    fn kind(&self) -> &'static str {
        EXPAND_DIMS.name
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let mut dims = lowering.graph.shape(x).dims().to_vec();
        let axis = if self.axis < 0 { self.axis + dims.len() as i64 + 1 } else { self.axis };
        let Some(axis) = usize::try_from(axis).ok().filter(|axis| (1..=dims.len()).contains(axis)) else {
            let what = format!("cannot insert an axis at {} of {}", self.axis, lowering.graph.shape(x));
            return Err(lowering.graph.error(what));
        };
        dims.splice(axis..axis, std::iter::repeat_n(1.into(), self.count));
        lowering.graph.reshape(x, Shape::new(dims))
    }
}

/// `type = "repeat_vector"`.
pub(super) const REPEAT_VECTOR: LayerDef = LayerDef {
    name: "repeat_vector",
    about: "Repeats a vector along a new time axis.",
    example: "times = 4",
    from_config: |config| Ok(Arc::new(RepeatVector::new(config.required_count("times", 1, "the number of time steps")?))),
};

impl Layer for RepeatVector {
    fn kind(&self) -> &'static str {
        REPEAT_VECTOR.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        Some(vec![KerasLayer::new("RepeatVector", json!({ "n": self.times }))])
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let &[batch, width] = shape.dims() else {
            return Err(lowering.graph.error(format!("expects an input of shape [batch, width], but received {shape}")));
        };
        let x = lowering.graph.reshape(x, Shape::new([batch, 1.into(), width]))?;
        lowering.graph.pointwise_over(Expr::identity(), &[x], Shape::new([batch, self.times.into(), width]))
    }
}

/// `type = "permute"`.
pub(super) const PERMUTE: LayerDef = LayerDef {
    name: "permute",
    about: "Permutes the axes behind the batch, counted from 1.",
    example: "order = [2, 1]",
    from_config: |config| {
        Ok(Arc::new(Permute::new(config.required_list("order", "the axes behind the batch in their new order, such as [2, 1]")?)))
    },
};

impl Layer for Permute {
    fn kind(&self) -> &'static str {
        PERMUTE.name
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let order: Vec<usize> = std::iter::once(0).chain(self.order.iter().copied()).collect();
        lowering.graph.add_one(Op::Transpose(Transpose { order }), &[x])
    }
}

/// `type = "zero_padding2d"`.
pub(super) const ZERO_PADDING2D: LayerDef = LayerDef {
    name: "zero_padding2d",
    about: "Pads images with zeros.",
    example: "padding = 1",
    from_config: |config| {
        let (rows, columns) = config.edges()?;
        Ok(Arc::new(ZeroPadding2D::new(0).rows(rows.0, rows.1).columns(columns.0, columns.1)))
    },
};

impl Layer for ZeroPadding2D {
    fn kind(&self) -> &'static str {
        ZERO_PADDING2D.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let EdgeWidths { rows, columns } = self.edges;
        Some(vec![KerasLayer::new("ZeroPadding2D", json!({ "padding": [[rows.0, rows.1], [columns.0, columns.1]] }))])
    }

    fn keeps_sign(&self) -> bool {
        true
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let mut x = single_input(lowering, inputs)?;
        image_dims(lowering.graph, x)?;
        for (axis, (before, after)) in [(1, self.edges.rows), (2, self.edges.columns)] {
            if before > 0 || after > 0 {
                x = lowering.graph.add_one(Op::Pad(Pad { axis, before, after }), &[x])?;
            }
        }
        Ok(x)
    }
}

/// `type = "cropping2d"`.
pub(super) const CROPPING2D: LayerDef = LayerDef {
    name: "cropping2d",
    about: "Crops the edges of images.",
    example: "padding = 1",
    from_config: |config| {
        let (rows, columns) = config.edges()?;
        Ok(Arc::new(Cropping2D::new(0).rows(rows.0, rows.1).columns(columns.0, columns.1)))
    },
};

impl Layer for Cropping2D {
    fn kind(&self) -> &'static str {
        CROPPING2D.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let EdgeWidths { rows, columns } = self.edges;
        Some(vec![KerasLayer::new("Cropping2D", json!({ "cropping": [[rows.0, rows.1], [columns.0, columns.1]] }))])
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let mut x = single_input(lowering, inputs)?;
        let (height, width, _) = image_dims(lowering.graph, x)?;
        for (axis, extent, (before, after)) in [(1, height, self.edges.rows), (2, width, self.edges.columns)] {
            let Some(length) = extent.checked_sub(before.saturating_add(after)).filter(|length| *length > 0) else {
                return Err(lowering.graph.error(format!("cropping {before} and {after} leaves nothing of an image of {height}×{width}")));
            };
            if length < extent {
                x = lowering.graph.add_one(Op::Slice(Slice { axis, start: before, length }), &[x])?;
            }
        }
        Ok(x)
    }
}

/// The batch dimension, and the shape without it.
pub(super) fn row_shape(lowering: &Lowering<'_>, x: ValueId) -> Result<(Dim, Vec<usize>), GraphError> {
    let shape = lowering.graph.shape(x);
    match shape.dims() {
        [batch, row @ ..] if row.iter().all(|dim| !dim.is_batch()) => Ok((*batch, row.iter().map(|dim| dim.factor()).collect())),
        _ => Err(lowering.graph.error(format!("expects an input of shape [batch, …], but received {shape}"))),
    }
}
