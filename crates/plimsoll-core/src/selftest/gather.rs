//! Cases for embedding tables: indices of every type and shape, repeated and unused rows, out-of-range indices, and
//! 16-bit rows.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use crate::DType;
use crate::base::expr::Expr;
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::{GraphError, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Gather, ScatterAdd};

/// Shapes of tables and of indices, with a label.
fn pairs() -> Vec<(&'static str, Shape, Shape)> {
    vec![
        ("one number a row", Shape::fixed([5, 3]), Shape::batch_of([])),
        ("sequences", Shape::fixed([7, 9]), Shape::batch_of([6])),
        ("a multiple of the batch", Shape::fixed([4, 2, 3]), Shape::new([Dim::times_batch(2), Dim::fixed(3)])),
        ("the batch in the middle", Shape::fixed([3, 4]), Shape::new([Dim::fixed(2), Dim::BATCH])),
        ("single numbers", Shape::fixed([6]), Shape::batch_of([4])),
        ("one row", Shape::fixed([1, 17]), Shape::batch_of([3])),
        ("more columns than a task takes", Shape::fixed([3, 150]), Shape::batch_of([5])),
    ]
}

/// Indices into a table of `rows` rows, some of them out of range, computed by an expression.
fn strays(s: &mut Stage<'_>, shape: Shape, rows: usize) -> Result<ValueId, GraphError> {
    let near = s.integers(DType::I32, shape.clone(), rows + 4);
    let shifted = Expr::build(|e| e.sub(e.input(0), e.constant(2.0)));
    Ok(s.graph.pointwise_many(shifted, &[near], shape, vec![DType::I32])?[0])
}

/// Integers up to 255, which every real type represents exactly.
fn exact(s: &mut Stage<'_>, shape: Shape, dtype: DType) -> Result<ValueId, GraphError> {
    let bytes = s.integers(DType::U8, shape, 256);
    s.graph.cast(bytes, dtype)
}

pub(super) fn gather(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for (name, table, indices) in pairs() {
        for dtype in [DType::I32, DType::U8] {
            let mut s = Stage::new(draw);
            let numbers = s.integers(dtype, indices.clone(), table.dims()[0].factor());
            let table = s.operand(table.clone(), Domain::Any)?;
            let y = s.graph.gather(table, numbers)?;
            cases.push(s.finish(format!("{name}, numbers in {dtype}"), &[y])?);
        }
        let mut s = Stage::new(draw);
        let numbers = strays(&mut s, indices, table.dims()[0].factor())?;
        let table = s.operand(table, Domain::Any)?;
        let y = s.graph.gather(table, numbers)?;
        cases.push(s.finish(format!("{name}, some numbers no row"), &[y])?);
    }
    for (from, to) in [(DType::F32, DType::BF16), (DType::BF16, DType::F32), (DType::F16, DType::F16), (DType::F16, DType::BF16)] {
        let mut s = Stage::new(draw);
        let numbers = s.integers(DType::I32, Shape::batch_of([9]), 5);
        // Tables do not depend on the batch: a sum over it is one, and exact in 16 bits for one row.
        s.rows = 1;
        let rows = exact(&mut s, Shape::batch_of([5, 19]), DType::F32)?;
        let summed = s.graph.reduce(crate::ir::ops::Reduction::Sum, rows, &[0])?;
        let table = s.graph.reshape(summed, Shape::fixed([5, 19]))?;
        let table = s.graph.cast(table, from)?;
        let y = s.graph.add_one(Op::Gather(Gather { dtype: to }), &[table, numbers])?;
        let y = s.graph.cast(y, DType::F32)?;
        cases.push(s.finish_forward(format!("{from} to {to}"), &[y])?);
    }
    Ok(cases)
}

pub(super) fn scatter_add(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    let rows = |table: &Shape, indices: &Shape| Shape::new(indices.dims().iter().chain(&table.dims()[1..]).copied());
    for (name, table, indices) in pairs() {
        for stray in [false, true] {
            let mut s = Stage::new(draw);
            let count = table.dims()[0].factor();
            let numbers = if stray {
                strays(&mut s, indices.clone(), count)?
            } else {
                let dtype = s.draw.pick(&[DType::I32, DType::U8]);
                s.integers(dtype, indices.clone(), count)
            };
            let dy = s.operand(rows(&table, &indices), Domain::Any)?;
            let y = s.graph.add_one(Op::ScatterAdd(ScatterAdd { table: table.clone(), onto: false }), &[numbers, dy])?;
            cases.push(s.finish(format!("{name}{}", if stray { ", some numbers no row" } else { "" }), &[y])?);
        }
    }
    for dtype in [DType::BF16, DType::F16] {
        let mut s = Stage::new(draw);
        let numbers = s.integers(DType::I32, Shape::batch_of([9]), 5);
        let dy = exact(&mut s, Shape::batch_of([9, 19]), dtype)?;
        let y = s.graph.add_one(Op::ScatterAdd(ScatterAdd { table: Shape::fixed([5, 19]), onto: false }), &[numbers, dy])?;
        cases.push(s.finish_forward(format!("rows in {dtype}"), &[y])?);
    }
    Ok(cases)
}
