//! Cases for fused slice writes: every producer, beside slices that other ops write, along several axes, in sizes with
//! vector tails. Only the planner creates these, after autodiff, so gradients are not tested.

use super::Case;
use super::draw::Draw;
use super::products::{ConvLayer, biased_relu_plus, over_walks};
use super::stage::{Domain, Stage};
use crate::DType;
use crate::base::expr::{Binary, Expr, Unary};
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::{GraphError, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{BatchSlice, Conv2d, Conv2dGradInput, FusedSliceWrite, MatMul, Pointwise, SliceWrite, Window};

pub(super) fn cases(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = expressions(draw)?;
    cases.extend(products(draw)?);
    cases.extend(convolutions(draw)?);
    cases.extend(input_gradients(draw)?);
    cases.extend(rows(draw)?);
    Ok(cases)
}

/// One slice: its producer and the producer's inputs.
struct SliceProducer(Op, Vec<ValueId>);

/// Concatenates slices along an axis, computed in this order. A separate op writes one more slice, of the first one's
/// type and shape, in between.
fn whole(s: &mut Stage<'_>, axis: usize, parts: Vec<SliceProducer>, order: &[usize]) -> Result<ValueId, GraphError> {
    let mut types = Vec::new();
    for SliceProducer(op, inputs) in &parts {
        let inputs: Vec<_> = inputs.iter().map(|input| s.graph.ty(*input)).collect();
        types.push(op.rules().infer(&s.graph, &inputs).expect("the table's shapes go together").remove(0));
    }
    let between = parts.len() / 2;
    let other = s.operand_in(types[0].dtype, types[0].shape.clone(), Domain::Any)?;
    let extent = |ty: usize| types[ty].shape.dims()[axis].factor();
    let starts: Vec<usize> =
        (0..parts.len()).map(|part| (0..part).map(extent).sum::<usize>() + if part >= between { extent(0) } else { 0 }).collect();
    let all: usize = (0..parts.len()).map(extent).sum::<usize>() + extent(0);
    let place = |start: usize| SliceWrite { axis, start, extent: all };
    let mut so_far: Option<ValueId> = None;
    for (turn, part) in order.iter().enumerate() {
        let SliceProducer(producer, inputs) = &parts[*part];
        let fused = FusedSliceWrite { producer: Box::new(producer.clone()), slice: place(starts[*part]), has_base: so_far.is_some() };
        let inputs: Vec<ValueId> = so_far.into_iter().chain(inputs.iter().copied()).collect();
        let made = s.graph.add_one(Op::FusedSliceWrite(fused), &inputs)?;
        so_far = Some(made);
        if turn == 0 {
            let start = (0..between).map(extent).sum();
            so_far = Some(s.graph.add_one(Op::SliceWrite(place(start)), &[other, made])?);
        }
    }
    Ok(so_far.expect("there are parts"))
}

/// A product with an operand that broadcasts along rows, followed by a nonlinear function.
fn expression(s: &mut Stage<'_>, shape: &Shape, dtype: DType) -> Result<SliceProducer, GraphError> {
    let x = s.operand(shape.clone(), Domain::Any)?;
    let last = shape.last().expect("it has an axis");
    let along = if last.is_batch() { Shape::fixed([1]) } else { Shape::new([last]) };
    let along = s.operand(along, Domain::Any)?;
    let expr = Expr::build(|e| e.add(e.mul(e.input(0), e.input(1)), e.unary(Unary::Tanh, e.input(0))));
    Ok(SliceProducer(Op::Pointwise(Pointwise { expr, shape: shape.clone(), dtypes: vec![dtype] }), vec![x, along]))
}

fn expressions(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for axis in [1, 2, 3] {
        for order in [&[0, 1][..], &[1, 0], &[2, 0, 1]] {
            let mut s = Stage::new(draw);
            let (shape, dtype) = (s.batch_shape(4), s.draw.dtype());
            let mut parts = Vec::new();
            for _ in order {
                let extent = s.draw.pick(&[1, 2, 3, 4, 7, 9]);
                parts.push(expression(&mut s, &shape.with(axis, extent.into()), dtype)?);
            }
            let y = whole(&mut s, axis, parts, order)?;
            cases.push(s.finish_forward(format!("expressions {order:?} along {axis}"), &[y])?);
        }
    }
    for widths in [[17, 1], [270, 33], [16, 600], [5, 48]] {
        let mut s = Stage::new(draw);
        let dtype = s.draw.dtype();
        let mut parts = Vec::new();
        for width in widths {
            parts.push(expression(&mut s, &Shape::batch_of([7, width]), dtype)?);
        }
        let y = whole(&mut s, 2, parts, &[1, 0])?;
        cases.push(s.finish_forward(format!("expressions of {widths:?}"), &[y])?);
    }
    // Coordinates only, random numbers, a scalar, an integer result, and a plain copy.
    let stream = |s: &mut Stage<'_>| s.graph.stream();
    type Write = fn(u32) -> Expr;
    let special: [(&str, Write, DType); 5] = [
        ("where it stands", |_| Expr::build(|e| e.add(e.input(0), e.coordinate(1))), DType::F32),
        ("drawn", |stream| Expr::build(|e| e.mul(e.input(0), e.random(stream))), DType::F32),
        ("one number", |_| Expr::build(|e| e.constant(2.5)), DType::F32),
        ("integers", |_| Expr::build(|e| e.mul(e.constant(40.0), e.unary(Unary::Abs, e.input(0)))), DType::I32),
        ("a copy", |_| Expr::identity(), DType::F32),
    ];
    for (name, write, dtype) in special {
        let mut s = Stage::new(draw);
        let shape = Shape::batch_of([5, 6]);
        let stream = stream(&mut s);
        let x = s.operand_in(DType::F32, shape.clone(), Domain::Any)?;
        let place = |start: usize| SliceWrite { axis: 2, start, extent: 12 };
        let producer = Op::Pointwise(Pointwise { expr: write(stream), shape: shape.clone(), dtypes: vec![dtype] });
        let begun = s.graph.add_one(
            Op::FusedSliceWrite(FusedSliceWrite { producer: Box::new(producer.clone()), slice: place(6), has_base: false }),
            &[x],
        )?;
        let other = s.graph.pointwise_many(Expr::build(|e| e.unary(Unary::Floor, e.input(0))), &[x], shape, vec![dtype])?[0];
        let y = s.graph.add_one(Op::SliceWrite(place(0)), &[other, begun])?;
        cases.push(s.finish_forward(name, &[y])?);
    }
    // A value that is read again later must be copied.
    let mut s = Stage::new(draw);
    let dtype = s.draw.dtype();
    let (x, SliceProducer(producer, inputs)) =
        (s.operand_in(dtype, Shape::batch_of([5]), Domain::Any)?, expression(&mut s, &Shape::batch_of([2]), dtype)?);
    let y = s.graph.pointwise_many(Expr::build(|e| e.unary(Unary::Neg, e.input(0))), &[x], Shape::batch_of([5]), vec![dtype])?[0];
    let fused = FusedSliceWrite { producer: Box::new(producer), slice: SliceWrite { axis: 1, start: 2, extent: 5 }, has_base: true };
    let changed = s.graph.add_one(Op::FusedSliceWrite(fused), &[&[y], &inputs[..]].concat())?;
    let both = s.graph.binary(Binary::Add, y, changed)?;
    cases.push(s.finish_forward("into what is read again", &[both])?);
    Ok(cases)
}

fn products(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for (turn, (transpose_a, transpose_b)) in [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate() {
        for (rows, epilogue) in [(false, None), (true, None), (true, Some(biased_relu_plus()))] {
            let mut s = Stage::new(draw);
            let dtype = s.draw.dtype();
            let (m, k) = (if rows { s.batch() } else { Dim::fixed(9) }, Dim::fixed([3, 40, 5, 71][turn]));
            let matrix = |rows, columns, transposed| Shape::new(if transposed { [columns, rows] } else { [rows, columns] });
            let mut parts = Vec::new();
            for _ in 0..2 {
                let n = Dim::fixed(s.draw.pick(&[2, 3, 5, 8, 17, 33, 70]));
                let mut inputs =
                    vec![s.operand(matrix(m, k, transpose_a), Domain::Any)?, s.operand(matrix(k, n, transpose_b), Domain::Any)?];
                if epilogue.is_some() {
                    inputs.extend([s.operand(Shape::new([n]), Domain::Any)?, s.operand(Shape::new([m, n]), Domain::Any)?]);
                }
                let op = MatMul { transpose_a, transpose_b, epilogue: epilogue.clone(), onto: false, dtype };
                parts.push(SliceProducer(Op::MatMul(op), inputs));
            }
            let y = whole(&mut s, 1, parts, if rows { &[0, 1] } else { &[1, 0] })?;
            let name = if epilogue.is_some() { "products followed by an expression" } else { "products" };
            cases.push(s.finish_forward(format!("{name}, {transpose_a} {transpose_b}"), &[y])?);
        }
    }
    Ok(cases)
}

/// Two slices from identical layers. Forward convolutions use every second window; their gradients use the others.
fn convolutions(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let all = over_walks(draw, |mut s, layer| {
        let dtype = s.draw.dtype();
        let ConvLayer { name, window, groups, image, filter, .. } = layer;
        let mut parts = Vec::new();
        for _ in 0..2 {
            let inputs = vec![s.operand(image.clone(), Domain::Any)?, s.operand(filter.clone(), Domain::Any)?];
            parts.push(SliceProducer(Op::Conv2d(Conv2d { window, groups, epilogue: None, dtype }), inputs));
        }
        let y = whole(&mut s, 3, parts, &[1, 0])?;
        s.finish_forward(format!("convolutions, {name}"), &[y])
    })?;
    let mut cases: Vec<Case> = all.into_iter().step_by(2).collect();
    for size in [1, 3] {
        let mut s = Stage::new(draw);
        let (dtype, window) = (s.draw.dtype(), Window::same((size, size), (1, 1), (1, 1), (9, 11)));
        let mut parts = Vec::new();
        for out in [17, 40] {
            let inputs = vec![
                s.operand(Shape::batch_of([9, 11, 5]), Domain::Any)?,
                s.operand(Shape::fixed([size, size, 5, out]), Domain::Any)?,
                s.operand(Shape::fixed([out]), Domain::Any)?,
                s.operand(Shape::batch_of([9, 11, out]), Domain::Any)?,
            ];
            parts.push(SliceProducer(Op::Conv2d(Conv2d { window, groups: 1, epilogue: Some(biased_relu_plus()), dtype }), inputs));
        }
        let y = whole(&mut s, 3, parts, &[0, 1])?;
        cases.push(s.finish_forward(format!("convolutions of {size}×{size} followed by an expression"), &[y])?);
    }
    Ok(cases)
}

fn input_gradients(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let all = over_walks(draw, |mut s, layer| {
        let dtype = s.draw.dtype();
        let ConvLayer { name, window, groups, image, filter, result } = layer;
        let mut parts = Vec::new();
        for _ in 0..2 {
            let inputs = vec![s.operand(filter.clone(), Domain::Any)?, s.operand(result.clone(), Domain::Any)?];
            parts.push(SliceProducer(Op::Conv2dGradInput(Conv2dGradInput { window, groups, input: image.clone(), dtype }), inputs));
        }
        let y = whole(&mut s, 3, parts, &[1, 0])?;
        s.finish_forward(format!("gradients, {name}"), &[y])
    })?;
    Ok(all.into_iter().skip(1).step_by(2).collect())
}

/// Batch slices, as the planner splits them: the batch may be shorter than the first piece, and the last piece may be
/// empty.
fn rows(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for producer in ["expressions", "products", "convolutions"] {
        let mut s = Stage::new(draw);
        s.graph.pieces = 3;
        let dtype = s.draw.dtype();
        let (x, filter) = match producer {
            "products" => (s.operand(Shape::new([Dim::times_batch(4), 3.into()]), Domain::Any)?, Shape::fixed([3, 5])),
            _ => (s.operand(Shape::batch_of([4, 3, 2]), Domain::Any)?, Shape::fixed([3, 3, 2, 5])),
        };
        let filter = s.operand(filter, Domain::Any)?;
        let mut so_far = None;
        for (from, to) in [(0, 2), (2, 64), (64, usize::MAX)] {
            let part = s.graph.add_one(Op::BatchSlice(BatchSlice { from, to }), &[x])?;
            let shape = s.graph.shape(part).clone();
            let (producer, inputs) = match producer {
                "expressions" => {
                    let expr = Expr::build(|e| e.unary(Unary::Tanh, e.input(0)));
                    (Op::Pointwise(Pointwise { expr, shape, dtypes: vec![dtype] }), vec![part])
                }
                "products" => (Op::MatMul(MatMul { dtype, ..MatMul::default() }), vec![part, filter]),
                _ => {
                    let window = Window::same((3, 3), (1, 1), (1, 1), (4, 3));
                    (Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype }), vec![part, filter])
                }
            };
            let place = SliceWrite { axis: 0, start: from, extent: usize::MAX };
            let fused = FusedSliceWrite { producer: Box::new(producer), slice: place, has_base: so_far.is_some() };
            let inputs: Vec<ValueId> = so_far.into_iter().chain(inputs).collect();
            so_far = Some(s.graph.add_one(Op::FusedSliceWrite(fused), &inputs)?);
        }
        cases.push(s.finish_forward(format!("{producer} of rows"), &[so_far.expect("there are pieces")])?);
    }
    Ok(cases)
}
