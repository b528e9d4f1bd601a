//! Pooling.

use super::super::OnnxImporter;
use super::super::call::NodeCall;
use super::super::values::{Computed, ElementKind, Found, Value, count_of};
use super::Mapping;
use super::conv::WindowAttributes;
use plimsoll_core::expr::{Binary, Expr, ExprBuilder, TermId, Unary};
use plimsoll_core::ops::{AvgPool, MaxPool, Pad, Reduction, Slice, Window};
use plimsoll_core::shape::Shape;
use plimsoll_core::{Graph, GraphError, Op, ValueId};

pub(super) const OPERATORS: &[(&str, Mapping)] = &[
    ("MaxPool", max_pool),
    ("AveragePool", average_pool),
    ("LpPool", lp_pool),
    ("GlobalAveragePool", |i, c| global(i, c, Reduction::Sum, |_, x| x, |e, y, n| e.mul(y, e.constant(1.0 / n)))),
    ("GlobalMaxPool", |i, c| global(i, c, Reduction::Max, |_, x| x, |_, y, _| y)),
    ("GlobalLpPool", |i, c| match c.int("p", 2)? {
        1 => global(i, c, Reduction::Sum, |e, x| e.unary(Unary::Abs, x), |_, y, _| y),
        2 => global(i, c, Reduction::Sum, |e, x| e.mul(x, x), |e, y, _| e.unary(Unary::Sqrt, y)),
        p => Err(format!("p is {p}; 1 and 2 are imported")),
    }),
];

/// A reduction over all axes behind the channels, which stay with extent 1.
fn global(
    i: &mut OnnxImporter,
    c: &NodeCall<'_>,
    kind: Reduction,
    before: fn(&ExprBuilder, TermId) -> TermId,
    after: fn(&ExprBuilder, TermId, f32) -> TermId,
) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let extents = i.image_extents(&x)?;
    let count = count_of(&extents);
    let x = i.channels_last(&x)?;
    let places: Vec<usize> = (1..=extents.len()).collect();
    let order = x.order.clone();
    let y = i.node("global_pool", &[&x], move |g, x| {
        let x = g.map(x[0], before)?;
        let y = g.reduce(kind, x, &places)?;
        g.map(y, |e, y| after(e, y, count as f32))
    })?;
    Ok(vec![y.laid_out(order).into()])
}

/// Adds the elements that `ceil_mode` needs behind the image.
fn ceil(windows: &mut WindowAttributes, image: &[usize]) {
    for (axis, extent) in image.iter().enumerate() {
        let (before, after) = windows.pads[axis];
        let reach = (windows.size[axis] - 1) * windows.dilation[axis] + 1;
        let Some(room) = (extent + before + after).checked_sub(reach) else { continue };
        let mut steps = room.div_ceil(windows.stride[axis]);
        // A window that begins in the padding behind the image is left out.
        if steps * windows.stride[axis] >= extent + before {
            steps = steps.saturating_sub(1);
        }
        let needed = steps * windows.stride[axis] + reach;
        windows.pads[axis].1 = after.max(needed.saturating_sub(extent + before));
    }
}

/// The windows of a pooling node, and the zeros that it adds first where they count.
fn windows_of(c: &NodeCall<'_>, image: &[usize]) -> Found<WindowAttributes> {
    let size = c.sizes("kernel_shape")?.ok_or("it has no kernel_shape")?;
    WindowAttributes::read(c, size, image)
}

/// How the elements of a window become one.
type Step = fn(&mut Graph, ValueId, Window) -> Result<ValueId, GraphError>;

/// Applies a pooling that is the same along each axis: two axes at a time.
fn pooled(i: &mut OnnxImporter, x: &Computed, windows: &WindowAttributes, step: Step) -> Found<Computed> {
    let rank = x.order.len();
    match windows.size.len() {
        1 | 2 => {
            let window = windows.flat()?;
            let image = i.as_image(x)?;
            let y = i.node("pool", &[&image], move |g, x| step(g, x[0], window))?;
            i.as_in_file(y, rank)
        }
        3 => {
            let x = i.channels_last(x)?;
            let (w, order) = (windows.clone(), x.order.clone());
            let y = i.node("pool", &[&x], move |g, x| {
                let shape = g.shape(x[0]).clone();
                let &[batch, depth, height, width, channels] = shape.dims() else { return Err(g.error("it takes images")) };
                let rows = Shape::new([batch, depth]).elements();
                let flat = g.reshape(x[0], Shape::new([rows, height, width, channels]))?;
                let across = Window {
                    size: (w.size[1], w.size[2]),
                    stride: (w.stride[1], w.stride[2]),
                    dilation: (w.dilation[1], w.dilation[2]),
                    pad_rows: w.pads[1],
                    pad_columns: w.pads[2],
                };
                let y = step(g, flat, across)?;
                let &[_, tall, wide, _] = g.shape(y).dims() else { unreachable!("pooling keeps the rank") };
                let places = Shape::new([tall, wide]).elements();
                let y = g.reshape(y, Shape::new([batch, depth, places, channels]))?;
                let down = Window {
                    size: (w.size[0], 1),
                    stride: (w.stride[0], 1),
                    dilation: (w.dilation[0], 1),
                    pad_rows: w.pads[0],
                    pad_columns: (0, 0),
                };
                let y = step(g, y, down)?;
                let deep = g.shape(y).dims()[1];
                g.reshape(y, Shape::new([batch, deep, tall, wide, channels]))
            })?;
            Ok(y.laid_out(order))
        }
        axes => Err(format!("pooling over {axes} axes is not imported")),
    }
}

/// The maximum of windows, also dilated ones and those whose padding is as large as themselves.
fn largest(g: &mut Graph, x: ValueId, window: Window) -> Result<ValueId, GraphError> {
    let within = |pad: (usize, usize), size: usize| pad.0.max(pad.1) < size;
    let simple = window.dilation == (1, 1) && within(window.pad_rows, window.size.0) && within(window.pad_columns, window.size.1);
    if simple && window.size.0.saturating_mul(window.size.1) <= 255 {
        return g.add_one(Op::MaxPool(MaxPool { window }), &[x]);
    }
    let rows = taps(g, x, 1, window.size.0, window.stride.0, window.dilation.0, window.pad_rows, f32::NEG_INFINITY)?;
    let y = fold(g, &rows, Binary::Max)?;
    let columns = taps(g, y, 2, window.size.1, window.stride.1, window.dilation.1, window.pad_columns, f32::NEG_INFINITY)?;
    fold(g, &columns, Binary::Max)
}

/// The sum of windows; padding counts as zero.
fn sum(g: &mut Graph, x: ValueId, window: Window) -> Result<ValueId, GraphError> {
    let rows = taps(g, x, 1, window.size.0, window.stride.0, window.dilation.0, window.pad_rows, 0.0)?;
    let y = fold(g, &rows, Binary::Add)?;
    let columns = taps(g, y, 2, window.size.1, window.stride.1, window.dilation.1, window.pad_columns, 0.0)?;
    fold(g, &columns, Binary::Add)
}

/// The mean of windows over the elements inside of the image.
fn mean(g: &mut Graph, x: ValueId, window: Window) -> Result<ValueId, GraphError> {
    let within = |pad: (usize, usize), size: usize| pad.0.max(pad.1) < size;
    if window.dilation == (1, 1) && within(window.pad_rows, window.size.0) && within(window.pad_columns, window.size.1) {
        return g.add_one(Op::AvgPool(AvgPool { window }), &[x]);
    }
    let total = sum(g, x, window)?;
    let ones = g.full(1.0, g.shape(x).clone())?;
    let count = sum(g, ones, window)?;
    g.binary(Binary::Div, total, count)
}

fn fold(g: &mut Graph, parts: &[ValueId], op: Binary) -> Result<ValueId, GraphError> {
    let expr = Expr::build(|e| (1..parts.len()).fold(e.input(0), |all, next| e.binary(op, all, e.input(next as u16))));
    g.pointwise(expr, parts)
}

/// For each element of a window along an axis: what stands there in all windows.
#[allow(clippy::too_many_arguments, reason = "the numbers of a window along one axis")]
fn taps(
    g: &mut Graph,
    x: ValueId,
    axis: usize,
    size: usize,
    stride: usize,
    dilation: usize,
    pad: (usize, usize),
    outside: f32,
) -> Result<Vec<ValueId>, GraphError> {
    let extent = g.shape(x).dims()[axis].factor();
    let reach = (size - 1).saturating_mul(dilation).saturating_add(1);
    let Some(room) = (extent + pad.0 + pad.1).checked_sub(reach) else {
        return Err(g.error(format!("a window of {reach} does not fit into {extent} elements")));
    };
    if size > 1024 {
        return Err(g.error("a window has more than 1,024 elements along an axis"));
    }
    let steps = room / stride + 1;
    // Enough behind, so that every element of a window has as many whole strides.
    let needed = (size - 1) * dilation + steps * stride;
    let padded = pad_with(g, x, axis, pad.0, needed.saturating_sub(extent + pad.0), outside)?;
    (0..size).map(|tap| every(g, padded, axis, tap * dilation, steps, stride)).collect()
}

/// Every `stride`-th of `steps · stride` elements from `start` on.
pub(super) fn every(g: &mut Graph, x: ValueId, axis: usize, start: usize, steps: usize, stride: usize) -> Result<ValueId, GraphError> {
    if axis >= g.shape(x).rank() {
        return Err(g.error(format!("{} has no axis {axis}", g.shape(x))));
    }
    let part = g.add_one(Op::Slice(Slice { axis, start, length: steps.saturating_mul(stride) }), &[x])?;
    if stride == 1 {
        return Ok(part);
    }
    let shape = g.shape(part).clone();
    let mut dims = shape.dims().to_vec();
    dims.splice(axis..=axis, [steps.into(), stride.into()]);
    let split = g.reshape(part, Shape::new(dims))?;
    let first = g.add_one(Op::Slice(Slice { axis: axis + 1, start: 0, length: 1 }), &[split])?;
    g.reshape(first, shape.with(axis, steps.into()))
}

/// Pads an axis with a number.
pub(super) fn pad_with(g: &mut Graph, x: ValueId, axis: usize, before: usize, after: usize, number: f32) -> Result<ValueId, GraphError> {
    if before == 0 && after == 0 {
        return Ok(x);
    }
    if axis >= g.shape(x).rank() {
        return Err(g.error(format!("{} has no axis {axis}", g.shape(x))));
    }
    let extent = g.shape(x).dims()[axis].factor();
    let padded = g.add_one(Op::Pad(Pad { axis, before, after }), &[x])?;
    if number == 0.0 {
        return Ok(padded);
    }
    let shape = g.shape(padded).clone();
    let expr = Expr::build(|e| {
        let at = e.coordinate(axis as u8);
        let (first, end) = (e.constant(before as f32), e.constant((before + extent) as f32));
        let inside = e.mul(e.binary(Binary::LessEq, first, at), e.binary(Binary::Less, at, end));
        e.select(inside, e.input(0), e.constant(number))
    });
    g.pointwise_over(expr, &[padded], shape)
}

fn max_pool(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let image = i.image_extents(&x)?;
    let mut windows = windows_of(c, &image)?;
    if c.flag("ceil_mode", false)? {
        ceil(&mut windows, &image);
    }
    let y = pooled(i, &x, &windows, largest)?;
    let mut outputs = vec![Value::from(y.of(x.kind))];
    if c.wants(1) {
        outputs.push(places(i, c, &x, &windows)?);
    }
    Ok(outputs)
}

/// The second output of a pooling: where in the whole tensor each maximum stands.
fn places(i: &mut OnnxImporter, c: &NodeCall<'_>, x: &Computed, windows: &WindowAttributes) -> Found<Value> {
    let window = windows.flat()?;
    let dims = super::conv::fixed(&i.dims(x))?;
    let by_column = c.flag("storage_order", false)?;
    let image = i.as_image(x)?;
    let (channels, height, width) = (dims[1], if dims.len() == 4 { dims[2] } else { 1 }, dims[dims.len() - 1]);
    let y = i.node("argmax", &[&image], move |g, x| {
        let place = g.add(Op::MaxPool(MaxPool { window }), &x[..1])?[1];
        let shape = g.shape(place).clone();
        let expr = Expr::build(|e| {
            let number = |n: usize| e.constant(n as f32);
            let row = e.unary(Unary::Floor, e.div(e.add(e.input(0), e.constant(0.5)), number(window.size.1)));
            let column = e.sub(e.input(0), e.mul(row, number(window.size.1)));
            let y = e.sub(e.add(e.mul(e.coordinate(1), number(window.stride.0)), row), number(window.pad_rows.0));
            let x = e.sub(e.add(e.mul(e.coordinate(2), number(window.stride.1)), column), number(window.pad_columns.0));
            let inside = if by_column { e.add(e.mul(x, number(height)), y) } else { e.add(e.mul(y, number(width)), x) };
            let plane = e.add(e.mul(e.coordinate(0), number(channels)), e.coordinate(3));
            e.add(e.mul(plane, number(height * width)), inside)
        });
        g.pointwise_over(expr, &[place], shape)
    })?;
    Ok(i.as_in_file(y, x.order.len())?.of(ElementKind::Int).into())
}

fn average_pool(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let image = i.image_extents(&x)?;
    let mut windows = windows_of(c, &image)?;
    let pads = windows.pads.clone();
    if c.flag("ceil_mode", false)? {
        ceil(&mut windows, &image);
    }
    if !c.flag("count_include_pad", false)? {
        return Ok(vec![pooled(i, &x, &windows, mean)?.into()]);
    }
    // The zeros are part of the image; what `ceil_mode` adds is not.
    let x = i.channels_last(&x)?;
    let order = x.order.clone();
    let own = pads.clone();
    let padded = i.node("pad", &[&x], move |g, x| {
        let padded = own.iter().enumerate().try_fold(x[0], |y, (axis, pad)| pad_with(g, y, axis + 1, pad.0, pad.1, 0.0))?;
        Ok(padded)
    })?;
    windows.pads.iter_mut().zip(&pads).for_each(|(all, own)| *all = (0, all.1.saturating_sub(own.1)));
    Ok(vec![pooled(i, &padded.laid_out(order), &windows, mean)?.into()])
}

fn lp_pool(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let p = c.int("p", 2)?;
    if !(1..=4).contains(&p) {
        return Err(format!("p is {p}; 1 to 4 are imported"));
    }
    let x = i.computed(&c.input(0)?)?;
    let image = i.image_extents(&x)?;
    let mut windows = windows_of(c, &image)?;
    if c.flag("ceil_mode", false)? {
        ceil(&mut windows, &image);
    }
    let powers = i.elementwise("power", &[x.into()], None, move |e, t| {
        let size = e.unary(Unary::Abs, t[0]);
        (1..p).fold(size, |all, _| e.mul(all, size))
    })?;
    let powers = i.computed(&powers[0])?;
    let sums: Value = pooled(i, &powers, &windows, sum)?.into();
    i.elementwise("root", &[sums], None, move |e, t| match p {
        1 => t[0],
        2 => e.unary(Unary::Sqrt, t[0]),
        _ => e.binary(Binary::Pow, t[0], e.constant(1.0 / p as f32)),
    })
}
