//! Cases for matrix products and convolutions: transposed operands, the batch in every dimension, groups, epilogues,
//! and sizes beyond one tile.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use super::windows::{Walk, for_convolution};
use crate::DType;
use crate::base::expr::{Binary, Expr};
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::GraphError;
use crate::ir::op::Op;
use crate::ir::ops::{Conv2d, Conv2dGradFilter, Conv2dGradInput, MatMul, Window};

pub(super) fn matmul(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
        for batch_at in ["nowhere", "rows", "columns", "sums"] {
            let mut s = Stage::new(draw);
            let mut dim = |place: &str| {
                let extent = s.draw.pick(&[1, 2, 3, 5, 7, 8, 9]);
                if place == batch_at { s.batch() } else { Dim::fixed(extent) }
            };
            let (m, n, k) = (dim("rows"), dim("columns"), dim("sums"));
            let matrix = |rows, columns, transposed| Shape::new(if transposed { [columns, rows] } else { [rows, columns] });
            let a = s.operand(matrix(m, k, transpose_a), Domain::Any)?;
            let b = s.operand(matrix(k, n, transpose_b), Domain::Any)?;
            let y =
                s.graph.add_one(Op::MatMul(MatMul { transpose_a, transpose_b, dtype: s.draw.dtype(), ..MatMul::default() }), &[a, b])?;
            let marks = (if transpose_a { "ᵀ" } else { "" }, if transpose_b { "ᵀ" } else { "" });
            cases.push(s.finish(format!("a{}·b{}, the batch {batch_at}", marks.0, marks.1), &[y])?);
        }
    }
    let mut s = Stage::new(draw);
    let x = s.operand(Shape::batch_of([4]), Domain::Any)?;
    let op = MatMul { transpose_a: true, dtype: s.draw.dtype(), ..MatMul::default() };
    let y = s.graph.add_one(Op::MatMul(op), &[x, x])?;
    cases.push(s.finish("with itself", &[y])?);

    let mut s = Stage::new(draw);
    s.rows = 37;
    let (a, b) = (s.operand(Shape::batch_of([71]), Domain::Any)?, s.operand(Shape::fixed([71, 53]), Domain::Any)?);
    let op = MatMul { dtype: s.draw.dtype(), ..MatMul::default() };
    let y = s.graph.add_one(Op::MatMul(op), &[a, b])?;
    cases.push(s.finish_forward("past one tile", &[y])?);

    let mut s = Stage::new(draw);
    let (a, b) = (s.operand(Shape::batch_of([5]), Domain::Any)?, s.operand(Shape::fixed([5, 7]), Domain::Any)?);
    let (bias, rest) = (s.operand(Shape::fixed([7]), Domain::Any)?, s.operand(Shape::batch_of([7]), Domain::Any)?);
    let op = MatMul { epilogue: Some(biased_relu_plus()), dtype: s.draw.dtype(), ..MatMul::default() };
    let y = s.graph.add_one(Op::MatMul(op), &[a, b, bias, rest])?;
    cases.push(s.finish_forward("followed by an expression", &[y])?);

    let mut s = Stage::new(draw);
    let (a, b) = (s.operand(Shape::batch_of([6]), Domain::Any)?, s.operand(Shape::batch_of([5]), Domain::Any)?);
    let so_far = s.operand_in(DType::F32, Shape::fixed([6, 5]), Domain::Any)?;
    let op = MatMul { transpose_a: true, onto: true, ..MatMul::default() };
    let y = s.graph.add_one(Op::MatMul(op), &[a, b, so_far])?;
    cases.push(s.finish_forward("added to an earlier sum", &[y])?);
    Ok(cases)
}

pub(super) fn biased_relu_plus() -> Expr {
    Expr::build(|e| {
        let biased = e.add(e.input(0), e.input(1));
        e.add(e.binary(Binary::Max, biased, e.constant(0.0)), e.input(2))
    })
}

/// A convolution's shapes.
pub(super) struct ConvLayer {
    pub name: String,
    pub window: Window,
    pub groups: usize,
    pub image: Shape,
    pub filter: Shape,
    pub result: Shape,
}

fn layer(s: &mut Stage<'_>, walk: &Walk, groups: usize, inner: usize, out_per_group: usize) -> ConvLayer {
    let (h, w) = walk.image;
    let (oh, ow) = walk.window.output(walk.image).expect("walks fit their images");
    let (batch, out) = (s.batch(), groups * out_per_group);
    let (kh, kw) = walk.window.size;
    ConvLayer {
        name: format!("{}, {groups} groups of {inner}→{out_per_group} ({})", walk.name, walk.window),
        window: walk.window,
        groups,
        image: Shape::new([batch, h.into(), w.into(), (groups * inner).into()]),
        filter: Shape::fixed([kh, kw, inner, out]),
        result: Shape::new([batch, oh.into(), ow.into(), out.into()]),
    }
}

/// Few channels and groups, including odd numbers and multiples of eight, which tensor cores require.
const NARROW: [(usize, usize, usize); 8] = [(1, 3, 5), (1, 1, 4), (2, 2, 1), (3, 1, 1), (4, 1, 2), (1, 5, 1), (8, 1, 1), (12, 1, 1)];
const WIDE: [(usize, usize, usize); 4] = [(1, 16, 24), (1, 8, 40), (2, 8, 16), (1, 24, 8)];

/// Two cases per window, with random channels and groups.
pub(super) fn over_walks(
    draw: &mut Draw,
    build: impl Fn(Stage<'_>, ConvLayer) -> Result<Case, GraphError>,
) -> Result<Vec<Case>, GraphError> {
    let walks = for_convolution(draw);
    let mut cases = Vec::new();
    for (walk, choices) in walks.iter().map(|walk| (walk, &NARROW[..])).chain(walks.iter().map(|walk| (walk, &WIDE[..]))) {
        let (groups, inner, out) = draw.pick(choices);
        let mut s = Stage::new(draw);
        s.rows = s.rows.min(3);
        let layer = layer(&mut s, walk, groups, inner, out);
        cases.push(build(s, layer)?);
    }
    Ok(cases)
}

pub(super) fn conv2d(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = over_walks(draw, |mut s, layer| {
        let (x, filter) = (s.operand(layer.image, Domain::Any)?, s.operand(layer.filter, Domain::Any)?);
        let op = Conv2d { window: layer.window, groups: layer.groups, epilogue: None, dtype: s.draw.dtype() };
        let y = s.graph.add_one(Op::Conv2d(op), &[x, filter])?;
        s.finish(layer.name, &[y])
    })?;
    for epilogue in [None, Some(biased_relu_plus())] {
        let mut s = Stage::new(draw);
        let window = Window::same((3, 3), (1, 1), (1, 1), (9, 11));
        let (x, filter) = (s.operand(Shape::batch_of([9, 11, 5]), Domain::Any)?, s.operand(Shape::fixed([3, 3, 5, 17]), Domain::Any)?);
        let mut operands = vec![x, filter];
        if epilogue.is_some() {
            operands.push(s.operand(Shape::fixed([17]), Domain::Any)?);
            operands.push(s.operand(Shape::batch_of([9, 11, 17]), Domain::Any)?);
        }
        let name = if epilogue.is_some() { "followed by an expression" } else { "past one tile" };
        let dtype = s.draw.dtype();
        let y = s.graph.add_one(Op::Conv2d(Conv2d { window, groups: 1, epilogue, dtype }), &operands)?;
        cases.push(s.finish_forward(name, &[y])?);
    }
    Ok(cases)
}

pub(super) fn conv2d_grad_input(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    over_walks(draw, |mut s, layer| {
        let (filter, dy) = (s.operand(layer.filter, Domain::Any)?, s.operand(layer.result, Domain::Any)?);
        let op = Conv2dGradInput { window: layer.window, groups: layer.groups, input: layer.image, dtype: s.draw.dtype() };
        let y = s.graph.add_one(Op::Conv2dGradInput(op), &[filter, dy])?;
        s.finish(layer.name, &[y])
    })
}

pub(super) fn conv2d_grad_filter(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    over_walks(draw, |mut s, layer| {
        let (x, dy) = (s.operand(layer.image, Domain::Any)?, s.operand(layer.result, Domain::Any)?);
        let op = Conv2dGradFilter { window: layer.window, groups: layer.groups, filter: layer.filter, onto: false };
        let y = s.graph.add_one(Op::Conv2dGradFilter(op), &[x, dy])?;
        s.finish(layer.name, &[y])
    })
}
