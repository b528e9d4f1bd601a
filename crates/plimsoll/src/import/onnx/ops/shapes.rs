//! Shapes: constants that describe them, and operators that change them.

use super::super::OnnxImporter;
use super::super::call::{NodeCall, read};
use super::super::values::{Constant, ElementKind, Found, LARGEST_CONSTANT, Value, axis_of, inverse};
use super::Mapping;
use plimsoll_core::expr::Expr;
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_formats::onnx::Attribute;

pub(super) const OPERATORS: &[(&str, Mapping)] = &[
    ("Constant", constant),
    ("ConstantOfShape", constant_of_shape),
    ("Shape", shape),
    ("Size", size),
    ("Range", range),
    ("EyeLike", eye_like),
    ("Reshape", reshape),
    ("Flatten", flatten),
    ("Squeeze", squeeze),
    ("Unsqueeze", unsqueeze),
    ("Transpose", transpose),
    ("Expand", expand),
];

fn constant(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let Some((name, value)) = c.node.attributes.iter().next() else { return Err("it has no value".to_string()) };
    let constant = match value {
        Attribute::Tensor(tensor) if tensor.elements() as usize <= LARGEST_CONSTANT => read(tensor)?,
        Attribute::Tensor(tensor) => {
            let stored: Vec<usize> = tensor.shape.iter().map(|dim| *dim as usize).collect();
            let order = (0..stored.len()).collect();
            let name = c.node.outputs.first().cloned().unwrap_or_default();
            return Ok(vec![Value::Weight(super::super::values::Weight { name, tensor: tensor.clone(), stored, order })]);
        }
        Attribute::Float(number) => Constant::scalar(ElementKind::Float, f64::from(*number)),
        Attribute::Int(number) => Constant::scalar(ElementKind::Int, *number as f64),
        Attribute::Floats(numbers) => {
            Constant::new(ElementKind::Float, vec![numbers.len()], numbers.iter().map(|number| f64::from(*number)).collect())
        }
        Attribute::Ints(numbers) => {
            Constant::new(ElementKind::Int, vec![numbers.len()], numbers.iter().map(|number| *number as f64).collect())
        }
        _ => return Err(format!("its `{name}` is not a tensor of numbers")),
    };
    Ok(vec![i.counted(constant)?])
}

fn constant_of_shape(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let extents = c.constant(0)?.ok_or("it has no shape")?.extents()?;
    let dims = extents.into_iter().map(|dim| dim.map_err(|dim| format!("a dimension is {dim}"))).collect::<Found<Vec<Dim>>>()?;
    let value = match c.node.attributes.get("value") {
        Some(Attribute::Tensor(tensor)) => read(tensor)?,
        _ => Constant::scalar(ElementKind::Float, 0.0),
    };
    let number = value.numbers.first().copied().unwrap_or(0.0);
    let shape = Shape::new(dims.iter().copied());
    let elements = shape.elements();
    if let Some(count) = elements.as_fixed().filter(|count| *count <= LARGEST_CONSTANT) {
        return Ok(vec![i.counted(Constant::new(value.kind, dims.iter().map(|dim| dim.factor()).collect(), vec![number; count]))?]);
    }
    Ok(vec![i.node("constant", &[], move |g, _| g.full(number as f32, shape.clone()))?.of(value.kind).into()])
}

fn shape(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let dims = i.shape_of(&c.input(0)?);
    let clamp = |at: i64| (if at < 0 { at + dims.len() as i64 } else { at }).clamp(0, dims.len() as i64) as usize;
    let (start, end) = (clamp(c.int("start", 0)?), clamp(c.int("end", dims.len() as i64)?));
    Ok(vec![Constant::of_dims(dims.get(start..end).unwrap_or_default()).into()])
}

fn size(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let elements = Shape::new(i.shape_of(&c.input(0)?)).elements();
    let list = Constant::of_dims(&[elements]);
    Ok(vec![Constant { dims: Vec::new(), ..list }.into()])
}

fn range(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let number = |index: usize| -> Found<(f64, ElementKind)> {
        let constant = c.constant(index)?.ok_or("it has no bounds")?;
        Ok((constant.fixed()?.first().copied().ok_or("a bound is empty")?, constant.kind))
    };
    let ((start, kind), (end, _), (step, _)) = (number(0)?, number(1)?, number(2)?);
    let count = ((end - start) / step).ceil().max(0.0);
    if !count.is_finite() || count > LARGEST_CONSTANT as f64 {
        return Err(format!("it counts from {start} to {end} by {step}"));
    }
    let numbers: Vec<f64> = (0..count as usize).map(|index| start + index as f64 * step).collect();
    Ok(vec![i.counted(Constant::new(kind, vec![numbers.len()], numbers))?])
}

fn eye_like(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let dims = super::conv::fixed(&i.shape_of(&c.input(0)?))?;
    let &[rows, columns] = &dims[..] else { return Err("it takes a matrix".to_string()) };
    let diagonal = c.int("k", 0)?;
    if rows.saturating_mul(columns) > LARGEST_CONSTANT {
        return Err(format!("a matrix of {rows}×{columns} is too large for a constant"));
    }
    let at = |index: usize| f64::from(u8::from((index % columns) as i64 - (index / columns) as i64 == diagonal));
    Ok(vec![i.counted(Constant::new(ElementKind::Float, dims.clone(), (0..rows * columns).map(at).collect()))?])
}

fn reshape(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = c.input(0)?;
    let target = match c.ints("shape")? {
        Some(list) => list.into_iter().map(|dim| if dim < 0 { Err(dim) } else { Ok(Dim::fixed(dim as usize)) }).collect(),
        None => c.constant(1)?.ok_or("it has no shape")?.extents()?,
    };
    let dims = i.shape_of(&x);
    let keeps_zero = c.flag("allowzero", false)?;
    let mut wanted: Vec<Option<Dim>> = Vec::with_capacity(target.len());
    for (axis, dim) in target.into_iter().enumerate() {
        wanted.push(match dim {
            Ok(dim) if dim == Dim::fixed(0) && !keeps_zero => {
                Some(*dims.get(axis).ok_or("it copies an axis that its input does not have")?)
            }
            Ok(dim) => Some(dim),
            Err(-1) => None,
            Err(dim) => return Err(format!("a dimension is {dim}")),
        });
    }
    let all = Shape::new(dims.iter().copied()).elements();
    // A file with a fixed batch has its size where the batch is meant.
    let batch_known = wanted.iter().flatten().any(|dim| dim.is_batch());
    if all.is_batch() && !batch_known && dims[0].is_batch() {
        if let Some(first) = wanted.first_mut()
            && i.file_batch.is_some_and(|size| *first == Some(Dim::fixed(size)))
        {
            *first = Some(dims[0]);
        } else if let (Some(size), Some(first)) = (i.file_batch, wanted.first_mut())
            && let Some(fixed) = first.and_then(|dim| dim.as_fixed())
            && size > 0
            && fixed.is_multiple_of(size)
            && fixed > 0
        {
            *first = Some(Dim::times_batch(fixed / size));
        }
    }
    let known = Shape::new(wanted.iter().flatten().copied()).elements();
    let rest = || -> Found<Dim> {
        let factor = all.factor().checked_div(known.factor()).filter(|rest| rest * known.factor() == all.factor());
        let factor = factor.ok_or_else(|| format!("{} cannot be reshaped", Shape::new(dims.iter().copied())))?;
        Ok(if all.is_batch() && !known.is_batch() { Dim::times_batch(factor) } else { Dim::fixed(factor) })
    };
    let mut result = Vec::with_capacity(wanted.len());
    for dim in wanted {
        result.push(match dim {
            Some(dim) => dim,
            None => rest()?,
        });
    }
    let shape = Shape::new(result);
    if shape.elements() != all {
        return Err(format!("{} cannot be reshaped to {shape}", Shape::new(dims.iter().copied())));
    }
    under(i, x, shape)
}

/// The value under another shape of as many elements.
fn under(i: &mut OnnxImporter, x: Value, shape: Shape) -> Found<Vec<Value>> {
    if let Value::Weight(weight) = &x
        && weight.is_plain()
    {
        let stored: Vec<usize> = shape.dims().iter().map(|dim| dim.factor()).collect();
        let order = (0..stored.len()).collect();
        return Ok(vec![Value::Weight(super::super::values::Weight { stored, order, ..weight.clone() })]);
    }
    let x = i.computed(&x)?;
    Ok(vec![i.reshaped(&x, shape)?.into()])
}

fn flatten(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = c.input(0)?;
    let dims = i.shape_of(&x);
    let axis = match c.int("axis", 1)? {
        axis if axis == dims.len() as i64 => dims.len(),
        axis => axis_of(axis, dims.len())?,
    };
    let part = |dims: &[Dim]| Shape::new(dims.iter().copied()).elements();
    under(i, x, Shape::new([part(&dims[..axis]), part(&dims[axis..])]))
}

fn squeeze(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = c.input(0)?;
    let dims = i.shape_of(&x);
    let axes = match c.integers(1, "axes")? {
        Some(axes) => axes.iter().map(|axis| axis_of(*axis, dims.len())).collect::<Found<Vec<usize>>>()?,
        None => (0..dims.len()).filter(|axis| dims[*axis] == Dim::fixed(1)).collect(),
    };
    if let Value::Tensor(tensor) = &x {
        return Ok(vec![i.squeezed(tensor, &axes)?.into()]);
    }
    let kept = (0..dims.len()).filter(|axis| !axes.contains(axis)).map(|axis| dims[axis]);
    under(i, x, Shape::new(kept))
}

fn unsqueeze(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = c.input(0)?;
    let dims = i.shape_of(&x);
    let axes = c.integers(1, "axes")?.ok_or("it has no axes")?;
    let rank = dims.len() + axes.len();
    let axes = axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Found<Vec<usize>>>()?;
    let mut old = dims.into_iter();
    let shape: Vec<Dim> =
        (0..rank).map(|axis| if axes.contains(&axis) { Dim::fixed(1) } else { old.next().unwrap_or(Dim::fixed(1)) }).collect();
    under(i, x, Shape::new(shape))
}

fn transpose(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = c.input(0)?;
    let rank = x.rank();
    let order = match c.sizes("perm")? {
        Some(order) => order,
        None => (0..rank).rev().collect(),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted != (0..rank).collect::<Vec<_>>() {
        return Err(format!("{order:?} is not an order of {rank} axes"));
    }
    if let Value::Weight(weight) = &x {
        return Ok(vec![Value::Weight(weight.permuted(&order))]);
    }
    // Nothing moves in memory: the axes have other names.
    let x = i.computed(&x)?;
    let names = inverse(&order);
    let laid_out = x.order.iter().map(|axis| names[*axis]).collect();
    Ok(vec![x.laid_out(laid_out).into()])
}

fn expand(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let target = c.constant(1)?.ok_or("it has no shape")?.extents()?;
    let target = target.into_iter().map(|dim| dim.map_err(|dim| format!("a dimension is {dim}"))).collect::<Found<Vec<Dim>>>()?;
    let x = i.computed(&c.input(0)?)?;
    let x = i.plain(&x)?;
    let (own, mut target) = (i.graph.shape(x.value).clone(), Shape::new(target));
    // A file with a fixed batch has its size where the batch is meant.
    if let (Some(size), Some(true), false) = (i.file_batch, own.dims().first().map(|dim| dim.is_batch()), target.has_batch())
        && target.rank() == own.rank()
        && [Dim::fixed(size), Dim::fixed(1)].contains(&target.dims()[0])
    {
        target = target.with(0, own.dims()[0]);
    }
    let shape = own.broadcast(&target).ok_or_else(|| format!("shapes {own} and {target} do not go together"))?;
    let kind = x.kind;
    let y = i.node("expand", &[&x], move |g, x| g.pointwise_over(Expr::identity(), &x[..1], shape.clone()))?;
    Ok(vec![y.of(kind).into()])
}
