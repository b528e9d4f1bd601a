//! Operators that move elements: joining, cutting, padding, repeating.

use super::super::OnnxImporter;
use super::super::call::NodeCall;
use super::super::values::{Computed, Found, Value, axis_of};
use super::Mapping;
use super::pool::{every, pad_with};
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::ops::{Concat, Slice, Transpose};
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_core::{Graph, GraphError, Op, ValueId};

pub(super) const OPERATORS: &[(&str, Mapping)] = &[
    ("Concat", concat),
    ("Split", split),
    ("Slice", slice),
    ("Pad", pad),
    ("Tile", tile),
    ("DepthToSpace", depth_to_space),
    ("SpaceToDepth", space_to_depth),
    ("CenterCropPad", center_crop_pad),
    ("Trilu", triangle),
    ("ReverseSequence", reverse_sequence),
];

fn concat(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let values = c.all()?;
    let mut tensors = Vec::with_capacity(values.len());
    for value in &values {
        tensors.push(i.computed(value)?);
    }
    let rank = tensors.first().ok_or("it has no inputs")?.order.len();
    let axis = axis_of(c.int("axis", 0)?, rank)?;
    let kind = tensors[0].kind;
    // Empty tensors add nothing.
    tensors.retain(|tensor| i.dims(tensor).get(axis) != Some(&Dim::fixed(0)));
    if tensors.is_empty() {
        return Ok(vec![values[0].clone()]);
    }
    let (tensors, order) = i.aligned(&tensors)?;
    let read: Vec<&Computed> = tensors.iter().collect();
    let place = tensors[0].place(axis);
    let y = i.node("concat", &read, move |g, x| match x {
        [one] => Ok(*one),
        _ => g.add_one(Op::Concat(Concat { axis: place }), x),
    })?;
    Ok(vec![y.laid_out(order).of(kind).into()])
}

fn split(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let axis = axis_of(c.int("axis", 0)?, x.order.len())?;
    let Some(extent) = i.dims(&x)[axis].as_fixed() else { return Err("it splits the batch".to_string()) };
    let parts = c.node.outputs.len();
    let lengths: Vec<usize> = match c.integers(1, "split")? {
        Some(lengths) => lengths.iter().map(|length| usize::try_from(*length).unwrap_or(usize::MAX)).collect(),
        None => {
            let parts = usize::try_from(c.int("num_outputs", parts as i64)?).unwrap_or(0).clamp(1, 4096);
            let each = extent.div_ceil(parts);
            (0..parts).map(|part| each.min(extent.saturating_sub(part * each))).collect()
        }
    };
    if lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(*length)) != Some(extent) {
        return Err(format!("it splits {extent} elements into {lengths:?}"));
    }
    let place = x.place(axis);
    let mut start = 0;
    let mut outputs = Vec::with_capacity(lengths.len());
    for length in lengths {
        let slice = Slice { axis: place, start, length };
        let part = i.node("slice", &[&x], move |g, x| g.add_one(Op::Slice(slice.clone()), &x[..1]))?;
        outputs.push(part.laid_out(x.order.clone()).of(x.kind).into());
        start += length;
    }
    Ok(outputs)
}

/// Elements `start`, `start + step`, … of an axis: `count` of them.
fn stepped(g: &mut Graph, x: ValueId, axis: usize, start: usize, step: i64, count: usize) -> Result<ValueId, GraphError> {
    let extent = g.shape(x).dims()[axis].factor();
    if step == 1 || count <= 1 {
        return g.add_one(Op::Slice(Slice { axis, start, length: count }), &[x]);
    }
    if step > 1 {
        let step = step as usize;
        let padded = pad_with(g, x, axis, 0, (start + count * step).saturating_sub(extent), 0.0)?;
        return every(g, padded, axis, start, count, step);
    }
    let mut parts = Vec::with_capacity(count);
    for index in 0..count as i64 {
        let start = (start as i64 + index * step) as usize;
        parts.push(g.add_one(Op::Slice(Slice { axis, start, length: 1 }), &[x])?);
    }
    g.add_one(Op::Concat(Concat { axis }), &parts)
}

fn slice(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let rank = x.order.len();
    let starts = c.integers(1, "starts")?.ok_or("it has no starts")?;
    let ends = match c.ints("ends")? {
        Some(ends) => ends,
        None => c.constant(2)?.ok_or("it has no ends")?.in_world(0).integers()?,
    };
    let axes = c.integers(3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = c.constant(4)?.map(|steps| steps.integers()).transpose()?.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err("its starts, ends, axes and steps have different lengths".to_string());
    }
    let dims = i.dims(&x);
    let mut cuts = Vec::new();
    for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let axis = axis_of(*axis, rank)?;
        let Some(extent) = dims[axis].as_fixed() else {
            // The whole batch, as exporters write it.
            if *start == 0 && *step == 1 && *end >= 7919 {
                continue;
            }
            return Err("it takes a part of the batch".to_string());
        };
        let extent = extent as i64;
        let absolute = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
        let (first, last) = match *step {
            0 => return Err("it has a step of 0".to_string()),
            1.. => (absolute(*start).clamp(0, extent), absolute(*end).clamp(0, extent)),
            _ => (absolute(*start).clamp(-1, extent - 1), absolute(*end).clamp(-1, extent - 1)),
        };
        let count = if *step > 0 { (last - first).max(0).div_ceil_by(*step) } else { (first - last).max(0).div_ceil_by(-*step) };
        if *step < 0 && count > 4096 {
            return Err(format!("it reverses {count} elements; 4,096 can be"));
        }
        cuts.push((x.place(axis), first.max(0) as usize, *step, count as usize));
    }
    let (order, kind) = (x.order.clone(), x.kind);
    let y = i.node("slice", &[&x], move |g, x| {
        cuts.iter().try_fold(x[0], |y, (place, start, step, count)| stepped(g, y, *place, *start, *step, *count))
    })?;
    Ok(vec![y.laid_out(order).of(kind).into()])
}

trait DivCeil {
    fn div_ceil_by(self, other: i64) -> i64;
}

impl DivCeil for i64 {
    /// Rounded up, of a number that is not negative by a positive one.
    fn div_ceil_by(self, other: i64) -> i64 {
        if self == 0 { 0 } else { (self - 1) / other + 1 }
    }
}

fn pad(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let rank = x.order.len();
    let pads = c.integers(1, "pads")?.ok_or("it has no pads")?;
    let number = match c.constant(2)? {
        Some(number) => number.fixed()?.first().copied().unwrap_or(0.0) as f32,
        None => c.float("value", 0.0)?,
    };
    let axes = match c.constant(3)? {
        Some(axes) => axes.integers()?.iter().map(|axis| axis_of(*axis, rank)).collect::<Found<Vec<usize>>>()?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(format!("it has {} pads for {} axes", pads.len(), axes.len()));
    }
    let mode = c.text("mode", "constant")?;
    let dims = i.dims(&x);
    let mut steps = Vec::new();
    for (index, axis) in axes.iter().enumerate() {
        let (before, after) = (pads[index], pads[index + axes.len()]);
        if before == 0 && after == 0 {
            continue;
        }
        let Some(extent) = dims[*axis].as_fixed() else { return Err("it pads the batch".to_string()) };
        if before.abs().max(after.abs()) > 1 << 24 {
            return Err(format!("it pads with {before} and {after} elements"));
        }
        steps.push((x.place(*axis), extent, before, after));
    }
    let (order, kind) = (x.order.clone(), x.kind);
    if !matches!(mode.as_str(), "constant" | "edge" | "reflect" | "wrap") {
        return Err(format!("its mode is `{mode}`"));
    }
    if mode != "constant" && steps.iter().any(|(_, extent, before, after)| before.max(after) > &4096 || *extent == 0) {
        return Err(format!("it pads with more than 4,096 elements in the mode `{mode}`"));
    }
    let y = i.node("pad", &[&x], move |g, x| {
        let mut y = x[0];
        for (place, extent, before, after) in &steps {
            // Negative pads cut.
            let (cut_front, cut_back) = ((-before).max(0) as usize, (-after).max(0) as usize);
            if cut_front + cut_back > 0 {
                let Some(length) = extent.checked_sub(cut_front + cut_back) else { return Err(g.error("it cuts more than there is")) };
                y = g.add_one(Op::Slice(Slice { axis: *place, start: cut_front, length }), &[y])?;
            }
            let (before, after) = (before.max(&0), after.max(&0));
            let extent = g.shape(y).dims()[*place].factor() as i64;
            y = match mode.as_str() {
                "constant" => pad_with(g, y, *place, *before as usize, *after as usize, number)?,
                mode => {
                    let source = |at: i64| match mode {
                        "edge" => at.clamp(0, extent - 1),
                        "wrap" => at.rem_euclid(extent),
                        _ if extent == 1 => 0,
                        _ => {
                            let period = 2 * (extent - 1);
                            let at = at.rem_euclid(period);
                            if at < extent { at } else { period - at }
                        }
                    };
                    let mut part = |at: i64| g.add_one(Op::Slice(Slice { axis: *place, start: source(at) as usize, length: 1 }), &[y]);
                    let mut parts = (-before..0).map(&mut part).collect::<Result<Vec<_>, _>>()?;
                    let behind = (extent..extent + after).map(&mut part).collect::<Result<Vec<_>, _>>()?;
                    parts.push(y);
                    parts.extend(behind);
                    g.add_one(Op::Concat(Concat { axis: *place }), &parts)?
                }
            };
        }
        Ok(y)
    })?;
    Ok(vec![y.laid_out(order).of(kind).into()])
}

fn tile(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let repeats = c.constant(1)?.ok_or("it has no repeats")?.integers()?;
    if repeats.len() != x.order.len() {
        return Err(format!("it has {} repeats for {} axes", repeats.len(), x.order.len()));
    }
    let repeats =
        repeats.iter().map(|count| usize::try_from(*count).ok().filter(|count| *count <= 1 << 24)).collect::<Option<Vec<usize>>>();
    let repeats = repeats.ok_or("it repeats a negative number of times")?;
    let x = i.plain(&x)?;
    let dims = i.dims(&x);
    // An axis of its own for the repetitions, then both are one.
    let (mut split, mut spread, mut joined) = (Vec::new(), Vec::new(), Vec::new());
    for (dim, count) in dims.iter().zip(&repeats) {
        if *count != 1 {
            if dim.is_batch() {
                return Err("it repeats the batch".to_string());
            }
            split.push(Dim::fixed(1));
            spread.push(Dim::fixed(*count));
            joined.push(Dim::fixed(dim.factor().saturating_mul(*count)));
        } else {
            joined.push(*dim);
        }
        split.push(*dim);
        spread.push(*dim);
    }
    let (split, spread, joined, kind) = (Shape::new(split), Shape::new(spread), Shape::new(joined), x.kind);
    let y = i.node("tile", &[&x], move |g, x| {
        let y = g.reshape(x[0], split.clone())?;
        let y = g.pointwise_over(Expr::identity(), &[y], spread.clone())?;
        g.reshape(y, joined.clone())
    })?;
    Ok(vec![y.of(kind).into()])
}

/// Reshapes, transposes and reshapes again.
fn shuffled(i: &mut OnnxImporter, x: &Computed, split: Vec<Dim>, order: Vec<usize>, result: Vec<Dim>) -> Found<Vec<Value>> {
    let x = i.plain(x)?;
    let (split, result, kind) = (Shape::new(split), Shape::new(result), x.kind);
    let y = i.node("shuffle", &[&x], move |g, x| {
        let y = g.reshape(x[0], split.clone())?;
        let y = g.add_one(Op::Transpose(Transpose { order: order.clone() }), &[y])?;
        g.reshape(y, result.clone())
    })?;
    Ok(vec![y.of(kind).into()])
}

fn depth_to_space(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let size = usize::try_from(c.int("blocksize", 0)?).ok().filter(|size| (1..=4096).contains(size)).ok_or("it has no blocksize")?;
    let &[batch, channels, height, width] = &i.dims(&x)[..] else { return Err("it takes images".to_string()) };
    let Some(depth) = channels.as_fixed().filter(|channels| channels.is_multiple_of(size * size)).map(|channels| channels / (size * size))
    else {
        return Err(format!("its channels are not divisible by {}", size * size));
    };
    let (block, deep) = (Dim::fixed(size), Dim::fixed(depth));
    let by_row = c.text("mode", "DCR")? == "DCR";
    let (split, order) = match by_row {
        true => (vec![batch, block, block, deep, height, width], vec![0, 3, 4, 1, 5, 2]),
        false => (vec![batch, deep, block, block, height, width], vec![0, 1, 4, 2, 5, 3]),
    };
    let result = vec![batch, deep, Dim::fixed(height.factor() * size), Dim::fixed(width.factor() * size)];
    shuffled(i, &x, split, order, result)
}

fn space_to_depth(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let size = usize::try_from(c.int("blocksize", 0)?).ok().filter(|size| (1..=4096).contains(size)).ok_or("it has no blocksize")?;
    let &[batch, channels, height, width] = &i.dims(&x)[..] else { return Err("it takes images".to_string()) };
    if !height.factor().is_multiple_of(size) || !width.factor().is_multiple_of(size) {
        return Err(format!("its image is not divisible by blocks of {size}"));
    }
    let (block, rows, columns) = (Dim::fixed(size), Dim::fixed(height.factor() / size), Dim::fixed(width.factor() / size));
    let result = vec![batch, Dim::fixed(channels.factor().saturating_mul(size * size)), rows, columns];
    shuffled(i, &x, vec![batch, channels, rows, block, columns, block], vec![0, 3, 5, 1, 2, 4], result)
}

fn center_crop_pad(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let rank = x.order.len();
    let wanted = c.constant(1)?.ok_or("it has no shape")?.integers()?;
    let axes = match c.ints("axes")? {
        Some(axes) => axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Found<Vec<usize>>>()?,
        None => (0..rank).collect(),
    };
    let dims = i.dims(&x);
    let mut steps = Vec::new();
    for (axis, wanted) in axes.iter().zip(&wanted) {
        let Some(extent) = dims[*axis].as_fixed() else { return Err("it crops the batch".to_string()) };
        let wanted = usize::try_from(*wanted).ok().filter(|wanted| *wanted <= 1 << 24).ok_or("a dimension is negative")?;
        steps.push((x.place(*axis), extent, wanted));
    }
    let (order, kind) = (x.order.clone(), x.kind);
    let y = i.node("center", &[&x], move |g, x| {
        steps.iter().try_fold(x[0], |y, (place, extent, wanted)| match wanted > extent {
            true => {
                let before = (wanted - extent) / 2;
                pad_with(g, y, *place, before, wanted - extent - before, 0.0)
            }
            false => g.add_one(Op::Slice(Slice { axis: *place, start: (extent - wanted) / 2, length: *wanted }), &[y]),
        })
    })?;
    Ok(vec![y.laid_out(order).of(kind).into()])
}

fn triangle(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let rank = x.order.len();
    if rank < 2 {
        return Err("it takes matrices".to_string());
    }
    let diagonal = c.constant(1)?.map(|k| k.integers()).transpose()?.and_then(|k| k.first().copied()).unwrap_or(0) as f32;
    let upper = c.flag("upper", true)?;
    let (row, column) = (x.place(rank - 2) as u8, x.place(rank - 1) as u8);
    let (order, kind) = (x.order.clone(), x.kind);
    let y = i.node("triangle", &[&x], move |g, x| {
        let shape = g.shape(x[0]).clone();
        let expr = Expr::build(|e| {
            let line = e.add(e.coordinate(row), e.constant(diagonal));
            let column = e.coordinate(column);
            let kept = if upper { e.binary(Binary::LessEq, line, column) } else { e.binary(Binary::LessEq, column, line) };
            e.select(kept, e.input(0), e.constant(0.0))
        });
        g.pointwise_over(expr, &x[..1], shape)
    })?;
    Ok(vec![y.laid_out(order).of(kind).into()])
}

/// Reverses the first elements of every sequence, as many as a constant says.
fn reverse_sequence(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let lengths = c.constant(1)?.ok_or("it has no lengths")?.integers()?;
    let (time, batch) = (axis_of(c.int("time_axis", 0)?, x.order.len())?, axis_of(c.int("batch_axis", 1)?, x.order.len())?);
    let dims = i.dims(&x);
    let (Some(steps), Some(rows)) = (dims[time].as_fixed(), dims[batch].as_fixed()) else {
        return Err("it reverses rows of the batch by constant lengths".to_string());
    };
    if rows != lengths.len() || steps.saturating_mul(rows) > 4096 || lengths.iter().any(|length| !(0..=steps as i64).contains(length)) {
        return Err(format!("it reverses {} sequences of {steps} steps; 4,096 steps can be", lengths.len()));
    }
    let (time, batch) = (x.place(time), x.place(batch));
    let (order, kind) = (x.order.clone(), x.kind);
    let y = i.node("reverse", &[&x], move |g, x| {
        let mut rows = Vec::with_capacity(lengths.len());
        for (row, length) in lengths.iter().enumerate() {
            let own = g.add_one(Op::Slice(Slice { axis: batch, start: row, length: 1 }), &x[..1])?;
            let at = |step: usize| if (step as i64) < *length { *length as usize - 1 - step } else { step };
            let parts = (0..steps).map(|step| g.add_one(Op::Slice(Slice { axis: time, start: at(step), length: 1 }), &[own]));
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            rows.push(if parts.len() == 1 { parts[0] } else { g.add_one(Op::Concat(Concat { axis: time }), &parts)? });
        }
        if rows.len() == 1 { Ok(rows[0]) } else { g.add_one(Op::Concat(Concat { axis: batch }), &rows) }
    })?;
    Ok(vec![y.laid_out(order).of(kind).into()])
}
