//! Cases for copies to and from the backing store: offloaded values and offloaded states.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use crate::base::expr::Expr;
use crate::base::shape::Shape;
use crate::ir::graph::{GraphError, StateId};
use crate::ir::op::Op;
use crate::ir::ops::{Load, Store};

pub(super) fn store(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for rank in [1, 3] {
        let mut s = Stage::new(draw);
        let shape = s.batch_shape(rank);
        let x = s.operand(shape, Domain::Any)?;
        let stored = s.graph.add_one(Op::Store(Store), &[x])?;
        let y = s.graph.add_one(Op::Load(Load), &[stored])?;
        let z = s.graph.map(y, |e, y| e.mul(y, y))?;
        cases.push(s.finish_forward(format!("there and back in rank {rank}"), &[z])?);
    }
    let mut s = Stage::new(draw);
    let shape = s.batch_shape(2);
    let mut values = Vec::new();
    let mut x = s.operand(shape, Domain::Any)?;
    for _ in 0..5 {
        values.push(s.graph.add_one(Op::Store(Store), &[x])?);
        x = s.graph.map(x, |e, x| e.add(e.mul(x, e.constant(0.75)), e.constant(0.125)))?;
    }
    for stored in values.into_iter().rev() {
        let back = s.graph.add_one(Op::Load(Load), &[stored])?;
        x = s.graph.plus(x, back)?;
    }
    cases.push(s.finish_forward("a chain, backwards", &[x])?);
    Ok(cases)
}

pub(super) fn load(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let part = Expr::build(|e| e.sub(e.input(0), e.mul(e.constant(0.1), e.input(1))));
    let mut s = Stage::new(draw);
    let shape = Shape::fixed(s.draw.extents(2));
    let (w, m) = (s.leaf(shape.clone())?, s.leaf(shape.clone())?);
    let rows = s.batch();
    let x = s.operand(Shape::new([rows, shape.dims()[0]]), Domain::Any)?;
    let y = s.graph.matmul(x, w)?;
    let old = s.graph.add_one(Op::Load(Load), &[m])?;
    let new_m = s.graph.pointwise(part.clone(), &[old, w])?;
    let new_w = s.graph.pointwise(part.clone(), &[w, new_m])?;
    let stored = s.graph.add_one(Op::Store(Store), &[new_m])?;
    s.graph.update(StateId(1), stored);
    s.graph.update(StateId(0), new_w);
    let changed = s.finish_forward("a state that lives there changes", &[y])?;

    let mut s = Stage::new(draw);
    let shape = Shape::fixed(s.draw.extents(2));
    let states = [s.leaf(shape.clone())?, s.leaf(shape.clone())?, s.leaf(shape.clone())?];
    let mut sum = s.operand(shape, Domain::Any)?;
    for (i, state) in states.into_iter().enumerate() {
        let old = s.graph.add_one(Op::Load(Load), &[state])?;
        sum = s.graph.plus(sum, old)?;
        let new = s.graph.pointwise(part.clone(), &[old, sum])?;
        let stored = s.graph.add_one(Op::Store(Store), &[new])?;
        s.graph.update(StateId(i as u32), stored);
    }
    Ok(vec![changed, s.finish_forward("several states, one after another", &[sum])?])
}
