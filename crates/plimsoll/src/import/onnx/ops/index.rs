//! Operators that look elements up by index. An index that the model computes selects by comparison with coordinates,
//! so that rows of the batch stay apart; a table that does not depend on the batch is looked up directly.

use super::super::call::NodeCall;
use super::super::layer::NodeLayer;
use super::super::values::{Computed, Constant, ElementKind, Found, Value, axis_of, count_of};
use super::super::{OnnxImporter, clean, owner};
use super::Mapping;
use super::reduce::reduced;
use crate::nn::Lowering;
use plimsoll_core::expr::{Binary, Expr, ExprBuilder, TermId};
use plimsoll_core::graph::Init;
use plimsoll_core::ops::{Concat, Gather, Reduction, Slice};
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_core::{DType, Graph, GraphError, Op, ValueId};
use std::sync::Arc;

pub(super) const OPERATORS: &[(&str, Mapping)] =
    &[("Gather", gather), ("GatherElements", gather_elements), ("GatherND", gather_nd), ("OneHot", one_hot), ("Compress", compress)];

/// An index that may count from the end.
pub(super) fn from_start(e: &ExprBuilder, index: TermId, extent: usize) -> TermId {
    let negative = e.binary(Binary::Less, index, e.constant(0.0));
    e.select(negative, e.add(index, e.constant(extent as f32)), index)
}

fn gather(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let (data, indices) = (c.input(0)?, c.input(1)?);
    let axis = axis_of(c.int("axis", 0)?, data.rank())?;
    if let Value::Constant(indices) = &indices {
        let data = i.computed(&data)?;
        return constant_indices(i, &data, axis, indices);
    }
    let Value::Tensor(tokens) = &indices else { return Err("its indices are weights".to_string()) };
    let tokens = i.plain(&tokens.clone())?;
    if let (Some(table), 0) = (i.own_weight(Some(&data), data.rank()), axis)
        && table.is_plain()
        && table.order.len() >= 2
    {
        return embedding(i, &table, &tokens);
    }
    let table = i.computed(&data)?;
    let Some(extent) = i.dims(&table)[axis].as_fixed() else { return Err("it looks rows of the batch up".to_string()) };
    let kind = table.kind;
    if !i.graph.shape(table.value).has_batch() {
        // Rows of the table are along its first axis in memory.
        let order: Vec<usize> = [axis].into_iter().chain((0..table.order.len()).filter(|other| *other != axis)).collect();
        let table = i.ordered(&table, &order)?;
        let rank = tokens.order.len();
        let layer = NodeLayer { integers: true, bound: Some(extent), ..NodeLayer::new("gather", move |l, x| lookup(l.graph, x[0], x[1])) };
        let name = i.current.clone();
        let y = i.layer(&name, Arc::new(layer), &[&table, &tokens])?;
        // In memory: the axes of the indices, then those of a row. In the file: they stand where the axis was.
        let rows = table.order.len() - 1;
        let logical: Vec<usize> =
            (0..rank).map(|place| axis + place).chain((0..rows).map(|row| if row < axis { row } else { row + rank })).collect();
        return Ok(vec![y.laid_out(logical).of(kind).into()]);
    }
    selected(i, &table, axis, extent, &tokens)
}

/// Rows of a table by index.
fn lookup(g: &mut Graph, table: ValueId, indices: ValueId) -> Result<ValueId, GraphError> {
    let extent = g.shape(table).dims()[0].factor();
    let shape = g.shape(indices).clone();
    let expr = Expr::build(|e| from_start(e, e.input(0), extent));
    let indices = g.pointwise_many(expr, &[indices], shape, vec![DType::I32])?[0];
    g.add_one(Op::Gather(Gather { dtype: DType::F32 }), &[table, indices])
}

/// A table of the file whose rows are looked up: an embedding.
fn embedding(i: &mut OnnxImporter, table: &super::super::values::Weight, tokens: &Computed) -> Found<Vec<Value>> {
    let dims = table.dims();
    let name = owner(&table.name).unwrap_or_else(|| clean(&table.name));
    let name = i.unique(&name);
    i.names.remove(&name);
    let order: Vec<usize> = (0..dims.len()).collect();
    i.insert_weight(&name, "weight", table, &order);
    let extent = dims[0];
    let lower = move |lowering: &mut Lowering<'_>, x: &[ValueId]| {
        let table = lowering.parameter("weight", dims.iter().copied(), Init::Constant(0.0))?;
        lookup(lowering.graph, table, x[0])
    };
    let layer = NodeLayer { integers: true, bound: Some(extent), ..NodeLayer::new("embedding", lower) };
    Ok(vec![i.layer(&name, Arc::new(layer), &[tokens])?.into()])
}

/// Elements of an axis by constant indices: slices of consecutive ones.
fn constant_indices(i: &mut OnnxImporter, data: &Computed, axis: usize, indices: &Constant) -> Found<Vec<Value>> {
    let Some(extent) = i.dims(data)[axis].as_fixed() else { return Err("it takes rows of the batch".to_string()) };
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for index in indices.integers()? {
        let at = axis_of(index, extent).map_err(|_| format!("it takes element {index} of {extent}"))?;
        match runs.last_mut() {
            Some((start, length)) if *start + *length == at => *length += 1,
            _ => runs.push((at, 1)),
        }
    }
    if runs.len() > 4096 || runs.is_empty() {
        return Err(format!("it takes {} separate parts of an axis; 1 to 4,096 can be taken", runs.len()));
    }
    let data = if indices.dims.len() == 1 { data.clone() } else { i.plain(data)? };
    let (place, kind) = (data.place(axis), data.kind);
    let y = i.node("gather", &[&data], move |g, x| {
        let parts = runs.iter().map(|(start, length)| g.add_one(Op::Slice(Slice { axis: place, start: *start, length: *length }), &x[..1]));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        if parts.len() == 1 { Ok(parts[0]) } else { g.add_one(Op::Concat(Concat { axis: place }), &parts) }
    })?;
    let y = y.laid_out(data.order.clone()).of(kind);
    if indices.dims.len() == 1 {
        return Ok(vec![y.into()]);
    }
    let mut dims = i.dims(&y);
    dims.splice(axis..=axis, indices.dims.iter().map(|dim| Dim::fixed(*dim)));
    Ok(vec![i.reshaped(&y, Shape::new(dims))?.into()])
}

/// Elements of an axis of a tensor that depends on the batch, by computed indices: one more axis runs over all
/// elements.
fn selected(i: &mut OnnxImporter, data: &Computed, axis: usize, extent: usize, indices: &Computed) -> Found<Vec<Value>> {
    if i.graph.shape(indices.value).has_batch() && indices.order.len() > 1 {
        return Err("both its data and its indices depend on the batch; use GatherElements or GatherND".to_string());
    }
    let data = i.plain(data)?;
    let kind = data.kind;
    let count = indices.order.len();
    let y = i.node("gather", &[&data, indices], move |g, x| {
        let (own, by) = (g.shape(x[0]).clone(), g.shape(x[1]).clone());
        // [before…, indices…, after…, elements].
        let (before, after) = (&own.dims()[..axis], &own.dims()[axis + 1..]);
        let one = Dim::fixed(1);
        let order: Vec<usize> = (0..own.rank()).filter(|other| *other != axis).chain([axis]).collect();
        let moved = g.add_one(Op::Transpose(plimsoll_core::ops::Transpose { order }), &[x[0]])?;
        let spread = before.iter().copied().chain(std::iter::repeat_n(one, count)).chain(after.iter().copied()).chain([Dim::fixed(extent)]);
        let data = g.reshape(moved, Shape::new(spread))?;
        let named =
            std::iter::repeat_n(one, before.len()).chain(by.dims().iter().copied()).chain(std::iter::repeat_n(one, after.len() + 1));
        let indices = g.reshape(x[1], Shape::new(named))?;
        let result: Vec<Dim> = before.iter().chain(by.dims()).chain(after).copied().collect();
        let shape = Shape::new(result.iter().copied().chain([Dim::fixed(extent)]));
        let last = result.len();
        let expr = Expr::build(|e| {
            let here = e.binary(Binary::Equal, e.coordinate(last as u8), from_start(e, e.input(1), extent));
            e.select(here, e.input(0), e.constant(0.0))
        });
        let sum = reduced(g, expr, shape, Reduction::Sum, &[last], &[data, indices])?;
        g.reshape(sum, Shape::new(result))
    })?;
    Ok(vec![y.of(kind).into()])
}

fn gather_elements(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let (data, indices) = (i.computed(&c.input(0)?)?, i.computed(&c.input(1)?)?);
    let (data, indices) = (i.plain(&data)?, i.plain(&indices)?);
    let rank = data.order.len();
    if indices.order.len() != rank {
        return Err("its data and indices have different ranks".to_string());
    }
    let axis = axis_of(c.int("axis", 0)?, rank)?;
    let (own, by) = (i.dims(&data), i.dims(&indices));
    let Some(extent) = own[axis].as_fixed() else { return Err("it looks rows of the batch up".to_string()) };
    let kind = data.kind;
    let y = i.node("gather", &[&data, &indices], move |g, x| {
        // Other axes of the indices may be shorter.
        let mut part = x[0];
        for other in (0..rank).filter(|other| *other != axis && by[*other] != own[*other]) {
            part = g.add_one(Op::Slice(Slice { axis: other, start: 0, length: by[other].factor() }), &[part])?;
        }
        let order: Vec<usize> = (0..rank).filter(|other| *other != axis).chain([axis]).collect();
        let moved = g.add_one(Op::Transpose(plimsoll_core::ops::Transpose { order }), &[part])?;
        let mut spread: Vec<Dim> = by.clone();
        spread[axis] = Dim::fixed(1);
        let data = g.reshape(moved, Shape::new(spread.into_iter().chain([Dim::fixed(extent)])))?;
        let result = Shape::new(by.iter().copied());
        let indices = g.reshape(x[1], Shape::new(by.iter().copied().chain([Dim::fixed(1)])))?;
        let shape = Shape::new(by.iter().copied().chain([Dim::fixed(extent)]));
        let expr = Expr::build(|e| {
            let here = e.binary(Binary::Equal, e.coordinate(rank as u8), from_start(e, e.input(1), extent));
            e.select(here, e.input(0), e.constant(0.0))
        });
        let sum = reduced(g, expr, shape, Reduction::Sum, &[rank], &[data, indices])?;
        g.reshape(sum, result)
    })?;
    Ok(vec![y.of(kind).into()])
}

fn gather_nd(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let (data, indices) = (i.computed(&c.input(0)?)?, i.computed(&c.input(1)?)?);
    let (data, indices) = (i.plain(&data)?, i.plain(&indices)?);
    let batch_dims = usize::try_from(c.int("batch_dims", 0)?).unwrap_or(0);
    let (own, by) = (super::conv::fixed(&i.dims(&data))?, super::conv::fixed(&i.dims(&indices))?);
    let Some((&depth, lead)) = by.split_last() else { return Err("its indices are a single number".to_string()) };
    if batch_dims + depth > own.len() || batch_dims > lead.len() || own[..batch_dims] != lead[..batch_dims] {
        return Err(format!("indices of {by:?} do not go with data of {own:?}"));
    }
    let row: Vec<usize> = own[batch_dims + depth..].to_vec();
    let result = Shape::fixed(lead.iter().chain(&row).copied());
    let (rows, width) = (count_of(&own[..batch_dims + depth]), count_of(&row));
    let (lead, own, kind) = (lead.to_vec(), own.clone(), data.kind);
    let y = i.node("gather", &[&data, &indices], move |g, x| {
        let table = g.reshape(x[0], Shape::fixed([rows, width]))?;
        let flat = flat_index(g, x[1], &own, &lead, batch_dims, depth)?;
        let picked = g.add_one(Op::Gather(Gather { dtype: DType::F32 }), &[table, flat])?;
        g.reshape(picked, result.clone())
    })?;
    Ok(vec![y.of(kind).into()])
}

/// The positions in a table of the rows that indices `[lead…, depth]` name.
pub(super) fn flat_index(
    g: &mut Graph,
    indices: ValueId,
    own: &[usize],
    lead: &[usize],
    batch_dims: usize,
    depth: usize,
) -> Result<ValueId, GraphError> {
    let mut parts = Vec::with_capacity(depth);
    let shape = Shape::fixed(lead.iter().copied());
    for level in 0..depth {
        let part = g.add_one(Op::Slice(Slice { axis: lead.len(), start: level, length: 1 }), &[indices])?;
        parts.push(g.reshape(part, shape.clone())?);
    }
    let stride = |axis: usize| count_of(&own[axis + 1..batch_dims + depth]) as f32;
    let expr = Expr::build(|e| {
        let outer =
            (0..batch_dims).fold(e.constant(0.0), |sum, axis| e.add(sum, e.mul(e.coordinate(axis as u8), e.constant(stride(axis)))));
        (0..depth).fold(outer, |sum, level| {
            let index = from_start(e, e.input(level as u16), own[batch_dims + level]);
            e.add(sum, e.mul(index, e.constant(stride(batch_dims + level))))
        })
    });
    Ok(g.pointwise_many(expr, &parts, shape, vec![DType::I32])?[0])
}

fn one_hot(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let indices = i.computed(&c.input(0)?)?;
    let depth = c.constant(1)?.ok_or("it has no depth")?.integers()?.first().copied().unwrap_or(0);
    let values = c.constant(2)?.ok_or("it has no values")?;
    let kind = values.kind;
    let &[off, on] = values.fixed()? else { return Err("it takes two values".to_string()) };
    let rank = indices.order.len();
    let axis = axis_of(c.int("axis", -1)?, rank + 1)?;
    let depth = usize::try_from(depth).ok().filter(|depth| *depth <= 1 << 24).ok_or("its depth is negative")?;
    let indices = i.plain(&indices)?;
    let mut dims = i.dims(&indices);
    dims.insert(axis, Dim::fixed(1));
    let (spread, shape) = (Shape::new(dims.iter().copied()), Shape::new(dims.iter().copied()).with(axis, Dim::fixed(depth)));
    let y = i.node("one_hot", &[&indices], move |g, x| {
        let index = g.reshape(x[0], spread.clone())?;
        let expr = Expr::build(|e| {
            let here = e.binary(Binary::Equal, e.coordinate(axis as u8), from_start(e, e.input(0), depth));
            e.select(here, e.constant(on as f32), e.constant(off as f32))
        });
        g.pointwise_over(expr, &[index], shape.clone())
    })?;
    Ok(vec![y.of(kind).into()])
}

fn compress(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let mut data = i.computed(&c.input(0)?)?;
    let condition = c.constant(1)?.ok_or("it has no condition")?;
    let kept: Vec<f64> = condition.fixed()?.iter().enumerate().filter(|(_, flag)| **flag != 0.0).map(|(index, _)| index as f64).collect();
    let axis = match c.has("axis") {
        true => axis_of(c.int("axis", 0)?, data.order.len())?,
        false => {
            let all = Shape::new(i.dims(&data)).elements();
            data = i.reshaped(&data, Shape::new([all]))?;
            0
        }
    };
    constant_indices(i, &data, axis, &Constant::new(ElementKind::Int, vec![kept.len()], kept))
}
