//! Normalization.

use super::super::call::NodeCall;
use super::super::values::{Computed, Found, Value, axis_of};
use super::super::{OnnxImporter, owner};
use super::Mapping;
use super::reduce::reduced;
use crate::nn::{BatchNorm, LayerNorm};
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::ops::Reduction;
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_core::{Graph, GraphError, ValueId};
use std::sync::Arc;

pub(super) const OPERATORS: &[(&str, Mapping)] = &[
    ("BatchNormalization", batch),
    ("InstanceNormalization", instance),
    ("GroupNormalization", group),
    ("LayerNormalization", layer),
    ("RMSNormalization", rms),
    ("MeanVarianceNormalization", mean_variance),
    ("LpNormalization", lp),
    ("LRN", local_response),
];

/// Mean and variance along axes in memory, which stay with extent 1.
fn moments(g: &mut Graph, x: ValueId, places: &[usize]) -> Result<(ValueId, ValueId), GraphError> {
    let shape = g.shape(x).clone();
    let count: f32 = places.iter().map(|place| shape.dims()[*place].factor() as f32).product();
    let sum = g.reduce(Reduction::Sum, x, places)?;
    let mean = g.map(sum, |e, x| e.mul(x, e.constant(1.0 / count)))?;
    let square = Expr::build(|e| {
        let d = e.sub(e.input(0), e.input(1));
        e.mul(d, d)
    });
    let squares = reduced(g, square, shape, Reduction::Sum, places, &[x, mean])?;
    let variance = g.map(squares, |e, x| e.mul(x, e.constant(1.0 / count)))?;
    Ok((mean, variance))
}

/// `(x - mean) / √(variance + epsilon)`.
fn standardized(g: &mut Graph, x: ValueId, mean: ValueId, variance: ValueId, epsilon: f32) -> Result<ValueId, GraphError> {
    let expr = Expr::build(|e| {
        let root = e.unary(Unary::Sqrt, e.add(e.input(2), e.constant(epsilon)));
        e.div(e.sub(e.input(0), e.input(1)), root)
    });
    g.pointwise(expr, &[x, mean, variance])
}

/// Scale and offset along the last axis in memory.
fn scaled(g: &mut Graph, y: ValueId, scale: ValueId, offset: ValueId) -> Result<ValueId, GraphError> {
    let expr = Expr::build(|e| e.add(e.mul(e.input(0), e.input(1)), e.input(2)));
    g.pointwise(expr, &[y, scale, offset])
}

fn batch(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let (epsilon, momentum) = (c.float("epsilon", 1e-5)?, c.float("momentum", 0.9)?);
    let x = if x.order.len() >= 2 { i.channels_last(&x)? } else { x };
    let order = x.order.clone();
    let own: Vec<_> = (1..5).map(|index| i.own_weight(c.given(index).as_ref(), 1)).collect();
    if let [Some(scale), Some(offset), Some(mean), Some(variance)] = &own[..]
        && !c.flag("training_mode", false)?
    {
        let name = owner(&scale.name).unwrap_or_else(|| i.current.clone());
        let name = i.unique(&name);
        i.names.remove(&name);
        for (own, weight) in [("gamma", scale), ("beta", offset), ("moving_mean", mean), ("moving_variance", variance)] {
            i.insert_weight(&name, own, weight, &[0]);
        }
        let layer = BatchNorm::torch().epsilon(epsilon).momentum(momentum);
        return Ok(vec![i.layer(&name, Arc::new(layer), &[&x])?.laid_out(order).into()]);
    }
    let mut rest = Vec::new();
    for index in 1..5 {
        rest.push(i.computed(&c.input(index)?)?);
    }
    if !c.flag("training_mode", false)? {
        let y = i.node("batch_norm", &[&x, &rest[0], &rest[1], &rest[2], &rest[3]], move |g, x| {
            let y = standardized(g, x[0], x[3], x[4], epsilon)?;
            scaled(g, y, x[1], x[2])
        })?;
        return Ok(vec![y.laid_out(order).into()]);
    }
    if i.graph.shape(x.value).has_batch() {
        return Err("it normalizes with the statistics of the batch; export the model for inference (training_mode = 0)".to_string());
    }
    let places: Vec<usize> = (0..order.len().saturating_sub(1)).collect();
    let own = places.clone();
    let y = i.node("batch_norm", &[&x, &rest[0], &rest[1]], move |g, x| {
        let (mean, variance) = moments(g, x[0], &own)?;
        let y = standardized(g, x[0], mean, variance, epsilon)?;
        scaled(g, y, x[1], x[2])
    })?;
    let mut outputs = vec![Value::from(y.laid_out(order))];
    for (output, moving) in [(false, &rest[2]), (true, &rest[3])] {
        let places = places.clone();
        let moved = i.node("moving_average", &[&x, moving], move |g, x| {
            let (mean, variance) = moments(g, x[0], &places)?;
            let now = g.reshape(if output { variance } else { mean }, g.shape(x[1]).clone())?;
            let expr = Expr::build(|e| e.add(e.mul(e.constant(momentum), e.input(0)), e.mul(e.constant(1.0 - momentum), e.input(1))));
            g.pointwise(expr, &[x[1], now])
        })?;
        outputs.push(moved.into());
    }
    Ok(outputs)
}

fn instance(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let (scale, offset) = (i.computed(&c.input(1)?)?, i.computed(&c.input(2)?)?);
    let epsilon = c.float("epsilon", 1e-5)?;
    let x = i.channels_last(&x)?;
    let order = x.order.clone();
    let places: Vec<usize> = (1..order.len() - 1).collect();
    let y = i.node("instance_norm", &[&x, &scale, &offset], move |g, x| {
        let (mean, variance) = moments(g, x[0], &places)?;
        let y = standardized(g, x[0], mean, variance, epsilon)?;
        scaled(g, y, x[1], x[2])
    })?;
    Ok(vec![y.laid_out(order).into()])
}

fn group(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let (scale, offset) = (i.computed(&c.input(1)?)?, i.computed(&c.input(2)?)?);
    let epsilon = c.float("epsilon", 1e-5)?;
    let groups = usize::try_from(c.int("num_groups", 1)?).unwrap_or(0);
    let x = i.channels_last(&x)?;
    let order = x.order.clone();
    let channels = i.graph.shape(x.value).last().and_then(|dim| dim.as_fixed()).unwrap_or(0);
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(format!("{channels} channels are not divisible by {groups} groups"));
    }
    // Up to version 20, scale and offset are those of the groups.
    let by_group = i.graph.shape(scale.value).elements() == Dim::fixed(groups) && groups != channels;
    let y = i.node("group_norm", &[&x, &scale, &offset], move |g, x| {
        let shape = g.shape(x[0]).clone();
        let mut dims = shape.dims().to_vec();
        let last = dims.len() - 1;
        dims.splice(last..=last, [groups.into(), (channels / groups).into()]);
        let split = g.reshape(x[0], Shape::new(dims.iter().copied()))?;
        let places: Vec<usize> = (1..last).chain([last + 1]).collect();
        let (mean, variance) = moments(g, split, &places)?;
        let y = standardized(g, split, mean, variance, epsilon)?;
        if by_group {
            let column = Shape::fixed([groups, 1]);
            let (scale, offset) = (g.reshape(x[1], column.clone())?, g.reshape(x[2], column)?);
            let y = scaled(g, y, scale, offset)?;
            return g.reshape(y, shape);
        }
        let y = g.reshape(y, shape)?;
        scaled(g, y, x[1], x[2])
    })?;
    Ok(vec![y.laid_out(order).into()])
}

fn layer(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let x = i.plain(&x)?;
    let rank = x.order.len();
    let axis = axis_of(c.int("axis", -1)?, rank)?;
    let epsilon = c.float("epsilon", 1e-5)?;
    let (scale, offset) = (i.own_weight(c.given(1).as_ref(), 1), i.own_weight(c.given(2).as_ref(), 1));
    if let (Some(scale), true, true) = (&scale, axis + 1 == rank, offset.is_some() || c.given(2).is_none())
        && !c.wants(1)
        && !c.wants(2)
    {
        let name = owner(&scale.name).unwrap_or_else(|| i.current.clone());
        let name = i.unique(&name);
        i.names.remove(&name);
        i.insert_weight(&name, "gamma", scale, &[0]);
        if let Some(offset) = &offset {
            i.insert_weight(&name, "beta", offset, &[0]);
        }
        let layer = LayerNorm::new().epsilon(epsilon).center(offset.is_some());
        return Ok(vec![i.layer(&name, Arc::new(layer), &[&x])?.into()]);
    }
    let mut read = vec![x.clone(), i.computed(&c.input(1)?)?];
    if let Some(offset) = c.given(2) {
        read.push(i.computed(&offset)?);
    }
    for tensor in &mut read[1..] {
        *tensor = i.plain(tensor)?;
    }
    let inputs: Vec<&Computed> = read.iter().collect();
    let places: Vec<usize> = (axis..rank).collect();
    let own = places.clone();
    let y = i.node("layer_norm", &inputs, move |g, x| {
        let (mean, variance) = moments(g, x[0], &own)?;
        let y = standardized(g, x[0], mean, variance, epsilon)?;
        let y = g.times(y, x[1])?;
        if x.len() > 2 { g.plus(y, x[2]) } else { Ok(y) }
    })?;
    let mut outputs = vec![Value::from(y)];
    for deviation in [false, true] {
        let own = places.clone();
        if c.wants(1) || c.wants(2) {
            let statistic = i.node("moments", &[&x], move |g, x| {
                let (mean, variance) = moments(g, x[0], &own)?;
                match deviation {
                    true => g.map(variance, |e, x| e.unary(Unary::Recip, e.unary(Unary::Sqrt, e.add(x, e.constant(epsilon))))),
                    false => Ok(mean),
                }
            })?;
            outputs.push(statistic.into());
        }
    }
    Ok(outputs)
}

fn rms(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let x = i.plain(&x)?;
    let scale = i.computed(&c.input(1)?)?;
    let scale = i.plain(&scale)?;
    let rank = x.order.len();
    let places: Vec<usize> = (axis_of(c.int("axis", -1)?, rank)?..rank).collect();
    let epsilon = c.float("epsilon", 1e-5)?;
    let y = i.node("rms_norm", &[&x, &scale], move |g, x| {
        let shape = g.shape(x[0]).clone();
        let count: f32 = places.iter().map(|place| shape.dims()[*place].factor() as f32).product();
        let square = Expr::build(|e| e.mul(e.input(0), e.input(0)));
        let squares = reduced(g, square, shape, Reduction::Sum, &places, &x[..1])?;
        let expr = Expr::build(|e| {
            let mean = e.mul(e.input(1), e.constant(1.0 / count));
            e.mul(e.div(e.input(0), e.unary(Unary::Sqrt, e.add(mean, e.constant(epsilon)))), e.input(2))
        });
        g.pointwise(expr, &[x[0], squares, x[1]])
    })?;
    Ok(vec![y.into()])
}

fn mean_variance(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let rank = x.order.len();
    let axes = c.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let mut places = axes.iter().map(|axis| Ok(x.place(axis_of(*axis, rank)?))).collect::<Found<Vec<usize>>>()?;
    places.sort_unstable();
    if places.iter().any(|place| i.graph.shape(x.value).dims()[*place].is_batch()) {
        return Err("it normalizes over the batch, which layers do not see as a whole".to_string());
    }
    let order = x.order.clone();
    let y = i.node("normalize", &[&x], move |g, x| {
        let (mean, variance) = moments(g, x[0], &places)?;
        let expr = Expr::build(|e| e.div(e.sub(e.input(0), e.input(1)), e.add(e.unary(Unary::Sqrt, e.input(2)), e.constant(1e-9))));
        g.pointwise(expr, &[x[0], mean, variance])
    })?;
    Ok(vec![y.laid_out(order).into()])
}

fn lp(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let place = x.place(axis_of(c.int("axis", -1)?, x.order.len())?);
    let p = c.int("p", 2)?;
    if !(1..=2).contains(&p) {
        return Err(format!("p is {p}; 1 and 2 are imported"));
    }
    let order = x.order.clone();
    let y = i.node("lp_norm", &[&x], move |g, x| {
        let powers = g.map(x[0], |e, x| if p == 1 { e.unary(Unary::Abs, x) } else { e.mul(x, x) })?;
        let sum = g.reduce(Reduction::Sum, powers, &[place])?;
        let expr = Expr::build(|e| {
            let norm = if p == 1 { e.input(1) } else { e.unary(Unary::Sqrt, e.input(1)) };
            let zero = e.binary(Binary::Equal, norm, e.constant(0.0));
            e.select(zero, e.constant(0.0), e.div(e.input(0), norm))
        });
        g.pointwise(expr, &[x[0], sum])
    })?;
    Ok(vec![y.laid_out(order).into()])
}

/// Division by a power of the mean square of neighbouring channels.
fn local_response(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let size = usize::try_from(c.int("size", 1)?).ok().filter(|size| (1..=256).contains(size)).ok_or("it has no size")?;
    let (alpha, beta, bias) = (c.float("alpha", 1e-4)?, c.float("beta", 0.75)?, c.float("bias", 1.0)?);
    let x = i.computed(&c.input(0)?)?;
    let x = i.channels_last(&x)?;
    let order = x.order.clone();
    let y = i.node("local_response_norm", &[&x], move |g, x| {
        let last = g.shape(x[0]).rank() - 1;
        let channels = g.shape(x[0]).dims()[last].factor();
        let squares = g.map(x[0], |e, x| e.mul(x, x))?;
        let (before, after) = ((size - 1) / 2, size - 1 - (size - 1) / 2);
        let padded = super::pool::pad_with(g, squares, last, before, after, 0.0)?;
        let mut sum = None;
        for start in 0..size {
            let part = super::pool::every(g, padded, last, start, channels, 1)?;
            sum = Some(match sum {
                Some(before) => g.plus(before, part)?,
                None => part,
            });
        }
        let expr = Expr::build(|e| {
            let scale = e.add(e.constant(bias), e.mul(e.constant(alpha / size as f32), e.input(1)));
            e.div(e.input(0), e.binary(Binary::Pow, scale, e.constant(beta)))
        });
        g.pointwise(expr, &[x[0], sum.expect("a size of at least one")])
    })?;
    Ok(vec![y.laid_out(order).into()])
}
