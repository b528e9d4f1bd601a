//! Cases for leaves: columns of every type and layout, updated states, scalars.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use crate::DType;
use crate::base::expr::Expr;
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::{GraphError, StateId};

pub(super) fn input(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for rank in 1..=4 {
        let mut s = Stage::new(draw);
        let shape = s.batch_shape(rank);
        let x = s.column(shape);
        cases.push(s.finish(format!("real numbers of rank {rank}"), &[x])?);
    }
    let mut s = Stage::new(draw);
    let x = s.leaf(Shape::new([Dim::fixed(3), Dim::times_batch(2), Dim::fixed(2)]))?;
    cases.push(s.finish("the batch in the middle", &[x])?);
    for (dtype, end) in [(DType::U8, 256), (DType::I32, 5000)] {
        let mut s = Stage::new(draw);
        let shape = s.batch_shape(2);
        let x = s.integers(dtype, shape, end);
        cases.push(s.finish_forward(format!("integers in {dtype}"), &[x])?);
    }
    let mut s = Stage::new(draw);
    let shape = s.batch_shape(2);
    let x = s.leaf(shape.clone())?;
    let view = s.graph.flatten(x)?;
    s.graph.output("column", x);
    s.graph.output("view", view);
    cases.push(s.finish("a column is read back by the host", &[x])?);
    Ok(cases)
}

pub(super) fn state(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    let part = Expr::build(|e| e.sub(e.input(0), e.mul(e.constant(0.1), e.input(1))));

    let mut s = Stage::new(draw);
    let shape = Shape::fixed(s.draw.extents(2));
    let (w, m) = (s.leaf(shape.clone())?, s.leaf(shape.clone())?);
    let rows = s.batch();
    let x = s.operand(Shape::new([rows, shape.dims()[0]]), Domain::Any)?;
    let y = s.graph.matmul(x, w)?;
    let new_m = s.graph.pointwise(part.clone(), &[m, w])?;
    let new_w = s.graph.pointwise(part.clone(), &[w, new_m])?;
    s.graph.update(StateId(1), new_m);
    s.graph.update(StateId(0), new_w);
    s.graph.output("before", w);
    cases.push(s.finish("changed in place after its last reader", &[y])?);

    let mut s = Stage::new(draw);
    let shape = Shape::fixed(s.draw.extents(2));
    let (a, b) = (s.leaf(shape.clone())?, s.leaf(shape.clone())?);
    s.graph.update(StateId(0), b);
    s.graph.update(StateId(1), a);
    cases.push(s.finish("two states change places", &[a])?);

    let mut s = Stage::new(draw);
    let shape = Shape::fixed(s.draw.extents(2));
    let (a, b) = (s.leaf(shape.clone())?, s.leaf(shape.clone())?);
    let (new_a, new_b) = (s.graph.pointwise(part.clone(), &[a, b])?, s.graph.pointwise(part, &[b, a])?);
    s.graph.update(StateId(0), new_a);
    s.graph.update(StateId(1), new_b);
    cases.push(s.finish("two states change with each other", &[a])?);
    Ok(cases)
}

pub(super) fn scalar(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut s = Stage::new(draw);
    let rate = s.graph.scalar("rate");
    let decay = s.graph.scalar("decay");
    let shape = s.batch_shape(3);
    let x = s.operand(shape, Domain::Any)?;
    let scaled = s.graph.times(x, rate)?;
    let y = s.graph.plus(decay, scaled)?;
    s.graph.output("rate", rate);
    Ok(vec![s.finish("the host's numbers", &[y])?])
}
