//! Cases for reductions: every operator along every set of axes, broadcast operands, fused expressions, ties and NaN.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use crate::base::expr::{Binary, Expr};
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::GraphError;
use crate::ir::op::Op;
use crate::ir::ops::{Reduce, Reduction};

fn name(kind: Reduction) -> &'static str {
    match kind {
        Reduction::Sum => "sum",
        Reduction::Max => "max",
        Reduction::LogSumExp => "logsumexp",
        Reduction::ArgMax => "argmax",
    }
}

const REAL: [Reduction; 3] = [Reduction::Sum, Reduction::Max, Reduction::LogSumExp];

pub(super) fn cases(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for kind in REAL {
        for axes in subsets(3) {
            let mut s = Stage::new(draw);
            let shape = s.batch_shape(3);
            let x = s.operand(shape, Domain::Any)?;
            let y = s.graph.reduce(kind, x, &axes)?;
            cases.push(s.finish(format!("{} along {axes:?}", name(kind)), &[y])?);
        }
        let mut s = Stage::new(draw);
        let axes = s.draw.pick(&[&[0, 2][..], &[1, 3], &[1, 2], &[0, 1, 2]]);
        let shape = s.batch_shape(4);
        let x = s.operand(shape, Domain::Any)?;
        let y = s.graph.reduce(kind, x, axes)?;
        cases.push(s.finish(format!("{} along {axes:?} of four", name(kind)), &[y])?);
        cases.push(stretched(draw, kind)?);
        cases.push(fused(draw, kind, &[0, 2])?);
        cases.push(with_nan(draw, kind)?);
    }
    for axis in 0..3 {
        let mut s = Stage::new(draw);
        let shape = s.batch_shape(3);
        let x = s.operand(shape, Domain::Any)?;
        let y = s.graph.reduce(Reduction::ArgMax, x, &[axis])?;
        cases.push(s.finish_forward(format!("argmax along {axis}"), &[y])?);
    }
    cases.push(ties(draw)?);
    cases.push(fused(draw, Reduction::ArgMax, &[1])?);
    cases.push(with_nan(draw, Reduction::ArgMax)?);
    Ok(cases)
}

fn subsets(rank: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..1usize << rank).map(move |mask| (0..rank).filter(|axis| mask & (1 << axis) != 0).collect())
}

/// The operand is broadcast to the reduced shape.
fn stretched(draw: &mut Draw, kind: Reduction) -> Result<Case, GraphError> {
    let mut s = Stage::new(draw);
    let shape = s.batch_shape(3);
    let axis = s.draw.pick(&[0, 1]);
    let x = s.operand(shape.with(axis, Dim::fixed(1)), Domain::Any)?;
    let op = Reduce { expr: Expr::identity(), shape, kind, axes: vec![axis, 2], onto: false };
    let y = s.graph.add_one(Op::Reduce(op), &[x])?;
    s.finish(format!("{} of a stretched operand", name(kind)), &[y])
}

/// Reduces an expression of two operands and coordinates, as fusion produces it.
fn fused(draw: &mut Draw, kind: Reduction, axes: &[usize]) -> Result<Case, GraphError> {
    let mut s = Stage::new(draw);
    let shape = s.batch_shape(3);
    let (a, b) = (s.operand(shape.clone(), Domain::Any)?, s.operand(Shape::new(shape.last()), Domain::Any)?);
    let stream = s.graph.stream();
    let expr = Expr::build(|e| {
        let kept = e.binary(Binary::Less, e.random(stream), e.constant(0.7));
        e.add(e.mul(e.mul(e.input(0), kept), e.input(1)), e.coordinate(1))
    });
    let y = s.graph.add_one(Op::Reduce(Reduce { expr, shape, kind, axes: axes.to_vec(), onto: false }), &[a, b])?;
    s.finish_forward(format!("{} of an expression", name(kind)), &[y])
}

fn with_nan(draw: &mut Draw, kind: Reduction) -> Result<Case, GraphError> {
    let mut s = Stage::new(draw);
    s.with_nan = true;
    let shape = s.batch_shape(2);
    let x = s.operand(shape, Domain::Any)?;
    let y = s.graph.reduce(kind, x, &[1])?;
    s.finish_forward(format!("{} with NaN", name(kind)), &[y])
}

/// Argmax returns the first of equal elements.
fn ties(draw: &mut Draw) -> Result<Case, GraphError> {
    let mut s = Stage::new(draw);
    let shape = s.batch_shape(2).with(1, Dim::fixed(9));
    let x = s.operand(shape, Domain::Any)?;
    let sign = s.graph.unary(crate::base::expr::Unary::Sign, x)?;
    let y = s.graph.reduce(Reduction::ArgMax, sign, &[1])?;
    s.finish_forward("argmax among equals", &[y])
}
