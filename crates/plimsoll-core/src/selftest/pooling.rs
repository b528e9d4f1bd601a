//! Cases for pooling and its gradients.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use super::windows::{Walk, for_pooling};
use crate::base::expr::Unary;
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::{GraphError, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad};

/// One case per window, with random batch and channels.
fn over_walks(draw: &mut Draw, build: impl Fn(Stage<'_>, &Walk, Shape) -> Result<Case, GraphError>) -> Result<Vec<Case>, GraphError> {
    let walks = for_pooling(draw);
    let mut cases = Vec::new();
    for walk in &walks {
        let mut s = Stage::new(draw);
        s.rows = s.rows.min(3);
        let shape = Shape::new([s.batch(), walk.image.0.into(), walk.image.1.into(), Dim::fixed(s.draw.pick(&[1, 2, 3, 5]))]);
        cases.push(build(s, walk, shape)?);
    }
    Ok(cases)
}

fn result(walk: &Walk, image: &Shape) -> Shape {
    let (height, width) = walk.window.output(walk.image).expect("walks fit their images");
    image.with(1, height.into()).with(2, width.into())
}

fn name(walk: &Walk) -> String {
    format!("{} ({})", walk.name, walk.window)
}

fn max_pooled(s: &mut Stage<'_>, walk: &Walk, x: ValueId) -> Result<Vec<ValueId>, GraphError> {
    s.graph.add(Op::MaxPool(MaxPool { window: walk.window }), &[x])
}

pub(super) fn max_pool(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = over_walks(draw, |mut s, walk, shape| {
        let x = s.operand(shape, Domain::Any)?;
        let ys = max_pooled(&mut s, walk, x)?;
        s.finish(name(walk), &ys[..1])
    })?;
    cases.append(&mut over_walks(draw, |mut s, walk, shape| {
        let x = s.operand(shape, Domain::Any)?;
        let ys = max_pooled(&mut s, walk, x)?;
        s.finish_forward(format!("places of {}", name(walk)), &ys)
    })?);
    cases.append(&mut over_walks(draw, |mut s, walk, shape| {
        let x = s.operand(shape, Domain::Any)?;
        let ties = s.graph.unary(Unary::Sign, x)?;
        let ys = max_pooled(&mut s, walk, ties)?;
        s.finish_forward(format!("the first of equals, {}", name(walk)), &ys)
    })?);
    cases.append(&mut over_walks(draw, |mut s, walk, shape| {
        s.with_nan = true;
        let x = s.operand(shape, Domain::Any)?;
        let ys = max_pooled(&mut s, walk, x)?;
        s.finish_forward(format!("with NaN, {}", name(walk)), &ys)
    })?);
    Ok(cases)
}

pub(super) fn max_pool_grad(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    over_walks(draw, |mut s, walk, shape| {
        let x = s.operand(shape.clone(), Domain::Any)?;
        let places = max_pooled(&mut s, walk, x)?[1];
        let dy = s.operand(result(walk, &shape), Domain::Any)?;
        let y = s.graph.add_one(Op::MaxPoolGrad(MaxPoolGrad { window: walk.window, input: shape }), &[places, dy])?;
        s.finish_forward(name(walk), &[y])
    })
}

pub(super) fn avg_pool(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    over_walks(draw, |mut s, walk, shape| {
        let x = s.operand(shape, Domain::Any)?;
        let y = s.graph.add_one(Op::AvgPool(AvgPool { window: walk.window }), &[x])?;
        s.finish(name(walk), &[y])
    })
}

pub(super) fn avg_pool_grad(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    over_walks(draw, |mut s, walk, shape| {
        let dy = s.operand(result(walk, &shape), Domain::Any)?;
        let y = s.graph.add_one(Op::AvgPoolGrad(AvgPoolGrad { window: walk.window, input: shape }), &[dy])?;
        s.finish(name(walk), &[y])
    })
}
