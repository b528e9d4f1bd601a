//! Cases for ops that move elements: every axis, every permutation, every type.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use crate::DType;
use crate::base::expr::{Expr, Unary};
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::GraphError;
use crate::ir::op::Op;
use crate::ir::ops::{BatchSlice, ChannelView, Concat, Pad, Reduce, Reduction, Slice, SliceWrite, Transpose};

pub(super) fn reshape(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    let targets: [(Shape, Shape); 4] = [
        (Shape::batch_of([6, 5]), Shape::batch_of([3, 10])),
        (Shape::batch_of([6]), Shape::new([Dim::times_batch(6)])),
        (Shape::new([Dim::times_batch(6), Dim::fixed(2)]), Shape::new([Dim::times_batch(2), Dim::fixed(3), Dim::fixed(2)])),
        (Shape::fixed([7]), Shape::fixed([1, 7, 1])),
    ];
    for (from, to) in targets {
        let mut s = Stage::new(draw);
        let x = s.operand(from.clone(), Domain::Any)?;
        let y = s.graph.reshape(x, to.clone())?;
        cases.push(s.finish(format!("{from} to {to}"), &[y])?);
    }
    let mut s = Stage::new(draw);
    let x = s.operand(Shape::batch_of([6]), Domain::Any)?;
    let view = s.graph.reshape(x, Shape::batch_of([2, 3]))?;
    let back = s.graph.reshape(view, Shape::batch_of([6]))?;
    let both = s.graph.times(x, back)?;
    cases.push(s.finish("a view read beside its source", &[both, view])?);
    Ok(cases)
}

pub(super) fn transpose(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    let orders: [&[usize]; 8] = [&[1, 0], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0], &[0, 3, 1, 2], &[0, 2, 3, 1]];
    for order in orders {
        let mut s = Stage::new(draw);
        let shape = s.batch_shape(order.len());
        let x = s.operand(shape, Domain::Any)?;
        let y = s.graph.add_one(Op::Transpose(Transpose { order: order.to_vec() }), &[x])?;
        cases.push(s.finish(format!("{order:?}"), &[y])?);
    }
    let mut s = Stage::new(draw);
    let x = s.integers(DType::U8, Shape::batch_of([3, 5]), 256);
    let y = s.graph.add_one(Op::Transpose(Transpose { order: vec![2, 0, 1] }), &[x])?;
    cases.push(s.finish_forward("bytes", &[y])?);
    Ok(cases)
}

pub(super) fn batch_slice(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for (name, factor, inner) in [("rows", 1, 3), ("multiples of rows", 4, 2), ("single numbers", 1, 1)] {
        let mut s = Stage::new(draw);
        // As the planner splits batches: the batch may be shorter than the first piece, and the last piece may be
        // empty.
        s.graph.pieces = 3;
        let x = s.operand(Shape::new([Dim::times_batch(factor), inner.into()]), Domain::Any)?;
        let mut parts = Vec::new();
        for (from, to) in [(0, 2), (2, 64), (64, usize::MAX)] {
            parts.push(s.graph.add_one(Op::BatchSlice(BatchSlice { from, to }), &[x])?);
        }
        let y = s.graph.add_one(Op::Concat(Concat { axis: 0 }), &parts)?;
        cases.push(s.finish_forward(name, &[parts[0], y])?);
    }
    Ok(cases)
}

pub(super) fn slice(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for axis in [1, 2, 3] {
        for _ in 0..2 {
            let mut s = Stage::new(draw);
            let shape = s.batch_shape(4);
            let extent = shape.dims()[axis].factor();
            let start = s.draw.below(extent);
            let length = s.draw.between(1, extent - start);
            let x = s.operand(shape, Domain::Any)?;
            let y = s.graph.add_one(Op::Slice(Slice { axis, start, length }), &[x])?;
            cases.push(s.finish(format!("{start}..{} along {axis}", start + length), &[y])?);
        }
    }
    let mut s = Stage::new(draw);
    let x = s.operand(Shape::new([Dim::fixed(5), Dim::BATCH]), Domain::Any)?;
    let y = s.graph.add_one(Op::Slice(Slice { axis: 0, start: 1, length: 3 }), &[x])?;
    cases.push(s.finish("outside the batch", &[y])?);
    let mut s = Stage::new(draw);
    let x = s.integers(DType::I32, Shape::batch_of([7]), 9000);
    let y = s.graph.add_one(Op::Slice(Slice { axis: 1, start: 2, length: 3 }), &[x])?;
    cases.push(s.finish_forward("integers", &[y])?);
    Ok(cases)
}

pub(super) fn concat(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for axis in [1, 2, 3] {
        for count in [1, 2, 3] {
            let mut s = Stage::new(draw);
            let shape = s.batch_shape(4);
            let (mut parts, dtype) = (Vec::new(), s.draw.dtype());
            for _ in 0..count {
                let extent = Dim::fixed(s.draw.between(1, 4));
                parts.push(s.operand_in(dtype, shape.with(axis, extent), Domain::Any)?);
            }
            let y = s.graph.add_one(Op::Concat(Concat { axis }), &parts)?;
            cases.push(s.finish(format!("{count} along {axis}"), &[y])?);
        }
    }
    let mut s = Stage::new(draw);
    let dtype = s.draw.dtype();
    let x = s.operand_in(dtype, Shape::batch_of([3]), Domain::Any)?;
    let other = s.operand_in(dtype, Shape::batch_of([2]), Domain::Any)?;
    let y = s.graph.add_one(Op::Concat(Concat { axis: 1 }), &[x, other, x])?;
    cases.push(s.finish("one of them twice", &[y])?);
    let mut s = Stage::new(draw);
    let (a, b) = (s.integers(DType::U8, Shape::batch_of([3]), 256), s.integers(DType::U8, Shape::batch_of([2]), 256));
    let y = s.graph.add_one(Op::Concat(Concat { axis: 1 }), &[a, b])?;
    cases.push(s.finish_forward("bytes", &[y])?);
    Ok(cases)
}

/// Only the planner creates this op, after autodiff, so gradients are not tested.
pub(super) fn slice_write(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for axis in [1, 2, 3] {
        for order in [&[0, 1][..], &[2, 0, 1], &[1, 2, 0]] {
            let mut s = Stage::new(draw);
            let (shape, dtype) = (s.batch_shape(4), s.draw.dtype());
            let extents: Vec<usize> = order.iter().map(|_| s.draw.between(1, 4)).collect();
            let extent = extents.iter().sum();
            let mut whole = None;
            for part in order {
                let value = s.operand_in(dtype, shape.with(axis, extents[*part].into()), Domain::Any)?;
                let inputs: Vec<_> = [Some(value), whole].into_iter().flatten().collect();
                let start = extents[..*part].iter().sum();
                whole = Some(s.graph.add_one(Op::SliceWrite(SliceWrite { axis, start, extent }), &inputs)?);
            }
            cases.push(s.finish_forward(format!("{order:?} along {axis}"), &[whole.expect("something was put")])?);
        }
    }
    // A value that is read again later must be copied.
    let mut s = Stage::new(draw);
    let (x, part) = (s.operand(Shape::batch_of([5]), Domain::Any)?, s.operand(Shape::batch_of([2]), Domain::Any)?);
    let y = s.graph.cast(x, s.graph.ty(part).dtype)?;
    let changed = s.graph.add_one(Op::SliceWrite(SliceWrite { axis: 1, start: 2, extent: 5 }), &[part, y])?;
    let both = s.graph.plus(y, changed)?;
    cases.push(s.finish_forward("into what is read again", &[both])?);
    for (name, factor) in [("rows", 1), ("multiples of rows", 4)] {
        let mut s = Stage::new(draw);
        s.graph.pieces = 3;
        let x = s.operand(Shape::new([Dim::times_batch(factor), 3.into()]), Domain::Any)?;
        let mut whole = None;
        for (from, to) in [(0, 2), (2, 64), (64, usize::MAX)] {
            let part = s.graph.add_one(Op::BatchSlice(BatchSlice { from, to }), &[x])?;
            let inputs: Vec<_> = [Some(part), whole].into_iter().flatten().collect();
            whole = Some(s.graph.add_one(Op::SliceWrite(SliceWrite { axis: 0, start: from, extent: usize::MAX }), &inputs)?);
        }
        cases.push(s.finish_forward(name, &[whole.expect("something was put")])?);
    }
    Ok(cases)
}

/// Like [`slice_write`], it has no gradient.
pub(super) fn channel_view(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for (extent, start, length) in [(7, 0, 3), (7, 4, 3), (9, 2, 1), (300, 20, 270), (40, 8, 32), (5, 0, 5)] {
        let mut s = Stage::new(draw);
        let shape = Shape::batch_of([2, extent]);
        let x = s.operand(shape.clone(), Domain::Any)?;
        let strip = s.graph.add_one(Op::ChannelView(ChannelView { start, length }), &[x])?;
        let beside = s.operand(Shape::fixed([length]), Domain::Any)?;
        let same = s.operand(shape.with(2, length.into()), Domain::Any)?;
        let (a, b) = (s.graph.times(strip, beside)?, s.graph.plus(strip, same)?);
        let over = shape.with(2, length.into());
        let mut results = vec![a, b, s.graph.unary(Unary::Neg, strip)?];
        for (kind, axes) in [(Reduction::Sum, vec![0, 1]), (Reduction::Max, vec![1]), (Reduction::LogSumExp, vec![0])] {
            let op = Reduce { expr: Expr::identity(), shape: over.clone(), kind, axes, onto: false };
            results.push(s.graph.add_one(Op::Reduce(op), &[strip])?);
        }
        cases.push(s.finish_forward(format!("{start}..{} of {extent}", start + length), &results)?);
    }
    // A view of a buffer that is not complete yet.
    let mut s = Stage::new(draw);
    let (a, b) =
        (s.operand_in(DType::F32, Shape::batch_of([3]), Domain::Any)?, s.operand_in(DType::F32, Shape::batch_of([2]), Domain::Any)?);
    let begun = s.graph.add_one(Op::SliceWrite(SliceWrite { axis: 1, start: 2, extent: 5 }), &[a])?;
    let strip = s.graph.add_one(Op::ChannelView(ChannelView { start: 2, length: 3 }), &[begun])?;
    let y = s.graph.unary(Unary::Neg, strip)?;
    let whole = s.graph.add_one(Op::SliceWrite(SliceWrite { axis: 1, start: 0, extent: 5 }), &[b, begun])?;
    cases.push(s.finish_forward("of what is begun", &[y, whole])?);
    Ok(cases)
}

pub(super) fn pad(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for axis in [1, 2] {
        for (before, after) in [(0, 2), (3, 0), (1, 2)] {
            let mut s = Stage::new(draw);
            let shape = s.batch_shape(3);
            let x = s.operand(shape, Domain::Any)?;
            let y = s.graph.add_one(Op::Pad(Pad { axis, before, after }), &[x])?;
            cases.push(s.finish(format!("{before}+{after} along {axis}"), &[y])?);
        }
    }
    let mut s = Stage::new(draw);
    let x = s.integers(DType::I32, Shape::batch_of([4]), 9000);
    let y = s.graph.add_one(Op::Pad(Pad { axis: 1, before: 2, after: 1 }), &[x])?;
    cases.push(s.finish_forward("integers", &[y])?);
    Ok(cases)
}
