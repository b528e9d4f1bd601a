//! Reductions along axes, softmax and its relatives.

use super::super::OnnxImporter;
use super::super::call::NodeCall;
use super::super::values::{Computed, Constant, ElementKind, Found, Value, axis_of};
use super::Mapping;
use crate::nn::Activation;
use plimsoll_core::expr::{Binary, Expr, ExprBuilder, TermId, Unary};
use plimsoll_core::ops::{Concat, Reduction, Slice};
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_core::{DType, Graph, GraphError, Op, ValueId};
use std::sync::Arc;

pub(super) const OPERATORS: &[(&str, Mapping)] = &[
    ("ReduceSum", |i, c| i.reduce(c, Reduction::Sum, |_, x| x, |_, y, _| y)),
    ("ReduceMean", |i, c| i.reduce(c, Reduction::Sum, |_, x| x, |e, y, n| e.mul(y, e.constant(1.0 / n)))),
    ("ReduceMax", |i, c| i.reduce(c, Reduction::Max, |_, x| x, |_, y, _| y)),
    ("ReduceMin", |i, c| i.reduce(c, Reduction::Max, negative, |e, y, _| negative(e, y))),
    ("ReduceL1", |i, c| i.reduce(c, Reduction::Sum, |e, x| e.unary(Unary::Abs, x), |_, y, _| y)),
    ("ReduceL2", |i, c| i.reduce(c, Reduction::Sum, |e, x| e.mul(x, x), |e, y, _| e.unary(Unary::Sqrt, y))),
    ("ReduceSumSquare", |i, c| i.reduce(c, Reduction::Sum, |e, x| e.mul(x, x), |_, y, _| y)),
    ("ReduceLogSum", |i, c| i.reduce(c, Reduction::Sum, |_, x| x, |e, y, _| e.unary(Unary::Log, y))),
    ("ReduceLogSumExp", |i, c| i.reduce(c, Reduction::LogSumExp, |_, x| x, |_, y, _| y)),
    ("ReduceProd", product),
    ("ArgMax", |i, c| extreme(i, c, false)),
    ("ArgMin", |i, c| extreme(i, c, true)),
    ("Softmax", |i, c| softmax(i, c, Activation::Softmax)),
    ("LogSoftmax", |i, c| softmax(i, c, Activation::LogSoftmax)),
    ("Hardmax", hardmax),
    ("CumSum", cumulative_sum),
    ("TopK", top_k),
];

/// An expression over a shape, reduced along axes. Passes fuse both, once gradients are taken.
pub(super) fn reduced(
    g: &mut Graph,
    expr: Expr,
    shape: Shape,
    kind: Reduction,
    axes: &[usize],
    inputs: &[ValueId],
) -> Result<ValueId, GraphError> {
    let x = if expr.is_identity() && *g.shape(inputs[0]) == shape { inputs[0] } else { g.pointwise_over(expr, inputs, shape)? };
    g.reduce(kind, x, axes)
}

fn negative(e: &ExprBuilder, x: TermId) -> TermId {
    e.unary(Unary::Neg, x)
}

/// The reduced axes of a node; none if it is the identity.
fn axes_of(c: &NodeCall<'_>, rank: usize) -> Found<Option<Vec<usize>>> {
    match c.integers(1, "axes")? {
        Some(axes) if !axes.is_empty() => {
            let mut axes = axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Found<Vec<usize>>>()?;
            axes.sort_unstable();
            axes.dedup();
            Ok(Some(axes))
        }
        _ if c.flag("noop_with_empty_axes", false)? => Ok(None),
        _ => Ok(Some((0..rank).collect())),
    }
}

impl OnnxImporter {
    /// A reduction of `before` of every element, then `after` of the result and the number of elements.
    fn reduce(
        &mut self,
        c: &NodeCall<'_>,
        kind: Reduction,
        before: fn(&ExprBuilder, TermId) -> TermId,
        after: fn(&ExprBuilder, TermId, f32) -> TermId,
    ) -> Found<Vec<Value>> {
        let x = self.computed(&c.input(0)?)?;
        let Some(axes) = axes_of(c, x.order.len())? else {
            return self.elementwise("pointwise", &[x.into()], None, |e, t| after(e, before(e, t[0]), 1.0));
        };
        let dims = self.dims(&x);
        let mut count = 1.0;
        for axis in &axes {
            let dim = dims[*axis];
            if dim.is_batch() {
                return Err("it reduces the batch, which layers do not see as a whole".to_string());
            }
            count *= dim.factor() as f32;
        }
        let mut places: Vec<usize> = axes.iter().map(|axis| x.place(*axis)).collect();
        places.sort_unstable();
        let (order, is) = (x.order.clone(), x.kind);
        let (first, last) = (Expr::build(|e| before(e, e.input(0))), Expr::build(|e| after(e, e.input(0), count)));
        let y = self.node("reduce", &[&x], move |g, x| {
            let shape = g.shape(x[0]).clone();
            let y = match places.is_empty() {
                true => g.pointwise(first.clone(), &x[..1])?,
                false => reduced(g, first.clone(), shape, kind, &places, &x[..1])?,
            };
            if last.is_identity() { Ok(y) } else { g.pointwise(last.clone(), &[y]) }
        })?;
        let y = y.laid_out(order).of(is);
        Ok(vec![if c.flag("keepdims", true)? { y } else { self.squeezed(&y, &axes)? }.into()])
    }

    /// The tensor with one axis last in memory; gives its order.
    pub(super) fn axis_last(&mut self, x: &Computed, axis: usize) -> Found<Computed> {
        let mut order: Vec<usize> = x.order.iter().copied().filter(|known| *known != axis).collect();
        order.push(axis);
        self.ordered(x, &order)
    }

    /// The product of a tensor along an axis with a matrix `[extent, result]` of constants.
    pub(super) fn along(&mut self, x: &Computed, axis: usize, matrix: &Constant) -> Found<Computed> {
        let x = self.axis_last(x, axis)?;
        let weights = self.constant_tensor(matrix)?;
        let result = matrix.dims[1];
        let (order, kind) = (x.order.clone(), x.kind);
        let y = self.node("matmul", &[&x, &weights], move |g, x| {
            let shape = g.shape(x[0]).clone();
            let last = shape.rank() - 1;
            let rows = Shape::new(shape.dims()[..last].iter().copied()).elements();
            let flat = g.reshape(x[0], Shape::new([rows, shape.dims()[last]]))?;
            let y = g.matmul(flat, x[1])?;
            g.reshape(y, shape.with(last, Dim::fixed(result)))
        })?;
        Ok(y.laid_out(order).of(kind))
    }
}

/// Products of halves, until one element is left: exact for integers, and with a gradient.
fn product(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let rank = x.order.len();
    let Some(axes) = axes_of(c, rank)? else { return Ok(vec![x.into()]) };
    let dims = i.dims(&x);
    if axes.iter().any(|axis| dims[*axis].is_batch()) {
        return Err("it reduces the batch, which layers do not see as a whole".to_string());
    }
    let kept: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).collect();
    let x = i.ordered(&x, &[&kept[..], &axes].concat())?;
    let count = axes.iter().fold(1, |all: usize, axis| all.saturating_mul(dims[*axis].factor()));
    let rows = Shape::new(kept.iter().map(|axis| dims[*axis])).elements();
    let keep = c.flag("keepdims", true)?;
    let result = Shape::new(
        (0..rank).filter(|axis| keep || kept.contains(axis)).map(|axis| if axes.contains(&axis) { Dim::fixed(1) } else { dims[axis] }),
    );
    let kind = x.kind;
    let y = i.node("product", &[&x], move |g, x| {
        if count == 0 {
            return g.full(1.0, result.clone());
        }
        let mut y = g.reshape(x[0], Shape::new([rows, Dim::fixed(count)]))?;
        let mut left = count;
        while left > 1 {
            let half = left / 2;
            let part = |g: &mut Graph, start, length| g.add_one(Op::Slice(Slice { axis: 1, start, length }), &[y]);
            let (a, b) = (part(g, 0, half)?, part(g, half, half)?);
            let product = g.times(a, b)?;
            let rest = if left % 2 == 1 { Some(part(g, left - 1, 1)?) } else { None };
            y = match rest {
                Some(rest) => g.add_one(Op::Concat(Concat { axis: 1 }), &[product, rest])?,
                None => product,
            };
            left = half + left % 2;
        }
        g.reshape(y, result.clone())
    })?;
    Ok(vec![y.of(kind).into()])
}

fn extreme(i: &mut OnnxImporter, c: &NodeCall<'_>, smallest: bool) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let axis = axis_of(c.int("axis", 0)?, x.order.len())?;
    let last = c.flag("select_last_index", false)?;
    if i.dims(&x)[axis].is_batch() {
        return Err("it reduces the batch".to_string());
    }
    let place = x.place(axis);
    let order = x.order.clone();
    let y = i.node("argmax", &[&x], move |g, x| {
        let shape = g.shape(x[0]).clone();
        if last {
            // The last of equal elements: the largest index at which the maximum stands.
            let signed = Expr::build(|e| if smallest { e.unary(Unary::Neg, e.input(0)) } else { e.input(0) });
            let most = reduced(g, signed, shape.clone(), Reduction::Max, &[place], &x[..1])?;
            let index = Expr::build(|e| {
                let own = if smallest { e.unary(Unary::Neg, e.input(0)) } else { e.input(0) };
                e.select(e.binary(Binary::Equal, own, e.input(1)), e.coordinate(place as u8), e.constant(-1.0))
            });
            return reduced(g, index, shape, Reduction::Max, &[place], &[x[0], most]);
        }
        let expr = Expr::build(|e| if smallest { e.unary(Unary::Neg, e.input(0)) } else { e.input(0) });
        let index = reduced(g, expr, shape, Reduction::ArgMax, &[place], &x[..1])?;
        g.cast(index, DType::F32)
    })?;
    let y = y.laid_out(order).of(ElementKind::Int);
    Ok(vec![if c.flag("keepdims", true)? { y } else { i.squeezed(&y, &[axis])? }.into()])
}

fn softmax(i: &mut OnnxImporter, c: &NodeCall<'_>, activation: Activation) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let rank = x.order.len();
    if c.opset < 13 {
        // All axes from `axis` on are one.
        let axis = axis_of(c.int("axis", 1)?, rank)?;
        if axis + 1 < rank {
            let shape = Shape::new(i.dims(&x));
            let rows = Shape::new(shape.dims()[..axis].iter().copied()).elements();
            let columns = Shape::new(shape.dims()[axis..].iter().copied()).elements();
            let flat = i.reshaped(&x, Shape::new([rows, columns]))?;
            let name = i.current.clone();
            let y = i.layer(&name, Arc::new(activation), &[&flat])?;
            return Ok(vec![i.reshaped(&y, shape)?.into()]);
        }
        return last_axis(i, &x, axis, activation);
    }
    let axis = axis_of(c.int("axis", -1)?, rank)?;
    last_axis(i, &x, axis, activation)
}

/// Softmax along an axis.
pub(super) fn last_axis(i: &mut OnnxImporter, x: &Computed, axis: usize, activation: Activation) -> Found<Vec<Value>> {
    let place = x.place(axis);
    if place + 1 == x.order.len() {
        let name = i.current.clone();
        return Ok(vec![i.layer(&name, Arc::new(activation), &[x])?.laid_out(x.order.clone()).into()]);
    }
    let order = x.order.clone();
    let y = i.node("softmax", &[x], move |g, x| {
        let log_sum = g.reduce(Reduction::LogSumExp, x[0], &[place])?;
        let shifted = g.binary(Binary::Sub, x[0], log_sum)?;
        if activation == Activation::LogSoftmax { Ok(shifted) } else { g.unary(Unary::Exp, shifted) }
    })?;
    Ok(vec![y.laid_out(order).into()])
}

/// One at the first maximum, zero elsewhere.
fn hardmax(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let mut x = i.computed(&c.input(0)?)?;
    let (rank, shape) = (x.order.len(), Shape::new(i.dims(&x)));
    let mut axis = axis_of(c.int("axis", if c.opset < 13 { 1 } else { -1 })?, rank)?;
    if c.opset < 13 {
        let rows = Shape::new(shape.dims()[..axis].iter().copied()).elements();
        let columns = Shape::new(shape.dims()[axis..].iter().copied()).elements();
        x = i.reshaped(&x, Shape::new([rows, columns]))?;
        axis = 1;
    }
    let (place, order) = (x.place(axis), x.order.clone());
    let y = i.node("hardmax", &[&x], move |g, x| {
        let largest = g.reduce(Reduction::ArgMax, x[0], &[place])?;
        let shape = g.shape(x[0]).clone();
        let one = Expr::build(|e| e.binary(Binary::Equal, e.coordinate(place as u8), e.input(0)));
        g.pointwise_over(one, &[largest], shape)
    })?;
    Ok(vec![i.reshaped(&y.laid_out(order), shape)?.into()])
}

/// A product with a triangular matrix.
fn cumulative_sum(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let axis = c.constant(1)?.ok_or("it has no axis")?.integers()?;
    let axis = axis_of(axis.first().copied().unwrap_or(0), x.order.len())?;
    let (exclusive, reverse) = (c.flag("exclusive", false)?, c.flag("reverse", false)?);
    let Some(extent) = i.dims(&x)[axis].as_fixed() else { return Err("it sums over the batch".to_string()) };
    let place = x.place(axis);
    let (order, kind) = (x.order.clone(), x.kind);
    // One more axis behind all others runs over the summands.
    let y = i.node("cumsum", &[&x], move |g, x| {
        let shape = g.shape(x[0]).clone();
        let moved: Vec<usize> = (0..shape.rank()).filter(|axis| *axis != place).chain([place]).collect();
        let last = g.add_one(Op::Transpose(plimsoll_core::ops::Transpose { order: moved.clone() }), &[x[0]])?;
        let lead: Vec<Dim> = g.shape(last).dims()[..shape.rank() - 1].to_vec();
        let spread = g.reshape(last, Shape::new(lead.iter().copied().chain([Dim::fixed(1), Dim::fixed(extent)])))?;
        let over = Shape::new(lead.iter().copied().chain([Dim::fixed(extent), Dim::fixed(extent)]));
        let (at, from) = (shape.rank() as u8 - 1, shape.rank() as u8);
        let expr = Expr::build(|e| {
            let (at, from) = if reverse { (e.coordinate(from), e.coordinate(at)) } else { (e.coordinate(at), e.coordinate(from)) };
            let counts = e.binary(if exclusive { Binary::Less } else { Binary::LessEq }, from, at);
            e.select(counts, e.input(0), e.constant(0.0))
        });
        let sums = reduced(g, expr, over, Reduction::Sum, &[shape.rank()], &[spread])?;
        let sums = g.reshape(sums, Shape::new(lead.iter().copied().chain([Dim::fixed(extent)])))?;
        let back = super::super::values::inverse(&moved);
        g.add_one(Op::Transpose(plimsoll_core::ops::Transpose { order: back }), &[sums])
    })?;
    Ok(vec![y.laid_out(order).of(kind).into()])
}

/// The largest elements one after the other: each is hidden from those behind it.
fn top_k(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let axis = axis_of(c.int("axis", -1)?, x.order.len())?;
    let count = match c.constant(1)? {
        Some(count) => count.integers()?.first().copied().unwrap_or(0),
        None => c.int("k", 0)?,
    };
    let largest = c.flag("largest", true)?;
    let Some(extent) = i.dims(&x)[axis].as_fixed() else { return Err("it ranks the batch".to_string()) };
    let count = usize::try_from(count).ok().filter(|count| (1..=extent.min(256)).contains(count));
    let Some(count) = count else { return Err(format!("it takes the first of {extent} elements; 1 to 256 can be taken")) };
    let (place, order, kind) = (x.place(axis), x.order.clone(), x.kind);
    let pick = move |g: &mut Graph, x: ValueId, values: bool| -> Result<ValueId, GraphError> {
        let shape = g.shape(x).clone();
        let mut left = g.map(x, |e, x| if largest { x } else { e.unary(Unary::Neg, x) })?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            let index = g.reduce(Reduction::ArgMax, left, &[place])?;
            parts.push(match values {
                true => {
                    let own = Expr::build(|e| {
                        e.select(e.binary(Binary::Equal, e.coordinate(place as u8), e.input(1)), e.input(0), e.constant(0.0))
                    });
                    reduced(g, own, shape.clone(), Reduction::Sum, &[place], &[x, index])?
                }
                false => g.cast(index, DType::F32)?,
            });
            let hidden = Expr::build(|e| {
                let here = e.binary(Binary::Equal, e.coordinate(place as u8), e.input(1));
                e.select(here, e.constant(f32::NEG_INFINITY), e.input(0))
            });
            left = g.pointwise_over(hidden, &[left, index], shape.clone())?;
        }
        if parts.len() == 1 { Ok(parts[0]) } else { g.add_one(Op::Concat(Concat { axis: place }), &parts) }
    };
    let values = i.node("top_k", &[&x], move |g, x| pick(g, x[0], true))?;
    let indices = i.node("top_k", &[&x], move |g, x| pick(g, x[0], false))?;
    Ok(vec![values.laid_out(order.clone()).of(kind).into(), indices.laid_out(order).of(ElementKind::Int).into()])
}
