//! Upsampling.

use super::keras::KerasLayer;
use super::window::image_dims;
use super::{Int8, Layer, LayerDef, Lowering, single_input};
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::ops::{Concat, Slice};
use plimsoll_core::shape::Shape;
use plimsoll_core::{Graph, GraphError, Op, ValueId};
use serde_json::json;
use std::sync::Arc;

/// Upsamples images by a factor, by repetition or bilinear interpolation.
#[derive(Clone, Debug)]
pub struct UpSampling2D {
    factor: (usize, usize),
    bilinear: bool,
}

impl UpSampling2D {
    /// Nearest-neighbour upsampling by `factor` along both axes.
    pub fn new(factor: usize) -> UpSampling2D {
        UpSampling2D { factor: (factor, factor), bilinear: false }
    }

    /// Sets the factors along height and width.
    pub fn factor(self, down: usize, across: usize) -> UpSampling2D {
        UpSampling2D { factor: (down, across), ..self }
    }

    /// Bilinear interpolation with half-pixel centres; edge pixels are replicated.
    pub fn bilinear(self) -> UpSampling2D {
        UpSampling2D { bilinear: true, ..self }
    }
}

/// `type = "up_sampling2d"`.
pub(super) const UP_SAMPLING2D: LayerDef = LayerDef {
    name: "up_sampling2d",
    about: "Upsamples images; `method` is `\"nearest\"` or `\"bilinear\"`.",
    example: "",
    from_config: |config| {
        let (down, across) = config.pair_or("factor", 2)?;
        let layer = UpSampling2D::new(1).factor(down, across);
        let bilinear = config.choice_or("method", &[("nearest", false), ("bilinear", true)], "nearest")?;
        Ok(Arc::new(if bilinear { layer.bilinear() } else { layer }))
    },
};

impl Layer for UpSampling2D {
    fn kind(&self) -> &'static str {
        UP_SAMPLING2D.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let kind = if self.bilinear { "bilinear" } else { "nearest" };
        let config = json!({ "size": [self.factor.0, self.factor.1], "data_format": "channels_last", "interpolation": kind });
        Some(vec![KerasLayer::new("UpSampling2D", config)])
    }

    fn int8(&self) -> Int8 {
        if self.bilinear { Int8::Float("bilinear interpolation stays in single precision") } else { Int8::SameScale }
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let g = &mut *lowering.graph;
        let (height, width, _) = image_dims(g, x)?;
        let (down, across) = self.factor;
        if down.min(across).min(height).min(width) == 0 {
            return Err(g.error(format!("cannot upsample an image of {height}×{width} by {down}×{across}")));
        }
        if self.bilinear {
            let taller = interpolate(g, x, 1, down)?;
            return interpolate(g, taller, 2, across);
        }
        let &[batch, rows, columns, channels] = g.shape(x).dims() else { unreachable!("images have four dimensions") };
        let x = g.reshape(x, Shape::new([batch, rows, 1.into(), columns, 1.into(), channels]))?;
        let y = g.pointwise_over(Expr::identity(), &[x], Shape::new([batch, rows, down.into(), columns, across.into(), channels]))?;
        g.reshape(y, Shape::new([batch, height.saturating_mul(down).into(), width.saturating_mul(across).into(), channels]))
    }
}

/// Linear interpolation along an axis. Of the `factor` outputs of a pixel, those left of its centre lie
/// between it and its left neighbour, the others between it and its right neighbour.
fn interpolate(g: &mut Graph, x: ValueId, axis: usize, factor: usize) -> Result<ValueId, GraphError> {
    if factor == 1 {
        return Ok(x);
    }
    let shape = g.shape(x).clone();
    let extent = shape.dims()[axis].factor();
    // The image shifted by one pixel to the right and to the left, edge pixels replicated.
    let mut shifted = |edge: usize, start: usize| -> Result<ValueId, GraphError> {
        let edge = g.add_one(Op::Slice(Slice { axis, start: edge, length: 1 }), &[x])?;
        if extent == 1 {
            return Ok(edge);
        }
        let rest = g.add_one(Op::Slice(Slice { axis, start, length: extent - 1 }), &[x])?;
        let order = if start == 0 { [edge, rest] } else { [rest, edge] };
        g.add_one(Op::Concat(Concat { axis }), &order)
    };
    let (left, right) = (shifted(0, 0)?, shifted(extent - 1, 1)?);
    // Every pixel gets an axis for its outputs.
    let split = |new: usize| {
        let mut dims = shape.dims().to_vec();
        dims.insert(axis + 1, new.into());
        Shape::new(dims)
    };
    let views = [x, left, right].map(|value| g.reshape(value, split(1)));
    let [x, left, right] = views;
    let expr = Expr::build(|e| {
        let place = e.add(e.coordinate(axis as u8 + 1), e.constant(0.5));
        let away = e.sub(e.mul(place, e.constant(1.0 / factor as f32)), e.constant(0.5));
        let before = e.binary(Binary::Less, away, e.constant(0.0));
        let neighbour = e.select(before, e.input(1), e.input(2));
        let weight = e.unary(plimsoll_core::expr::Unary::Abs, away);
        e.add(e.input(0), e.mul(weight, e.sub(neighbour, e.input(0))))
    });
    let y = g.pointwise_over(expr, &[x?, left?, right?], split(factor))?;
    g.reshape(y, shape.with(axis, extent.saturating_mul(factor).into()))
}
