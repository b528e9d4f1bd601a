//! Attention and rotary embeddings of ONNX 23 and later.

use super::super::OnnxImporter;
use super::super::call::NodeCall;
use super::super::values::{Computed, ElementKind, Found, Value};
use super::Mapping;
use super::pool::pad_with;
use crate::nn::Activation;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::ops::{Attention, Concat, Packing, Slice};
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_core::{Op, ValueId};

pub(super) const OPERATORS: &[(&str, Mapping)] = &[("Attention", attention), ("RotaryEmbedding", rotary)];

/// `[batch, heads, length, depth]`: joined heads are split.
fn heads(i: &mut OnnxImporter, x: &Computed, heads: i64) -> Found<Computed> {
    let dims = i.dims(x);
    match dims[..] {
        [_, _, _, _] => Ok(x.clone()),
        [batch, length, width] => {
            let count = usize::try_from(heads).ok().filter(|heads| *heads > 0 && width.factor().is_multiple_of(*heads));
            let count = count.ok_or_else(|| format!("{heads} heads do not divide a width of {width}"))?;
            let split = i.reshaped(x, Shape::new([batch, length, count.into(), (width.factor() / count).into()]))?;
            Ok(split.laid_out(vec![0, 2, 1, 3]))
        }
        _ => Err("it takes tensors of three or four dimensions".to_string()),
    }
}

/// Two tensors one after the other along an axis.
fn joined(i: &mut OnnxImporter, a: &Value, b: &Computed, axis: usize) -> Found<Computed> {
    let a = i.computed(a)?;
    let (tensors, order) = i.aligned(&[b.clone(), a])?;
    let place = tensors[0].place(axis);
    let y = i.node("concat", &[&tensors[1], &tensors[0]], move |g, x| g.add_one(Op::Concat(Concat { axis: place }), x))?;
    Ok(y.laid_out(order))
}

/// Heads of keys or values, each as often as queries share it.
fn repeated(i: &mut OnnxImporter, x: &Computed, times: usize) -> Found<Computed> {
    if times == 1 {
        return Ok(x.clone());
    }
    let x = i.plain(x)?;
    let dims = i.dims(&x);
    let (split, spread) =
        (Shape::new([dims[0], dims[1], 1.into(), dims[2], dims[3]]), Shape::new([dims[0], dims[1], times.into(), dims[2], dims[3]]));
    let result = Shape::new([dims[0], (dims[1].factor() * times).into(), dims[2], dims[3]]);
    i.node("repeat", &[&x], move |g, x| {
        let y = g.reshape(x[0], split.clone())?;
        let y = g.pointwise_over(Expr::identity(), &[y], spread.clone())?;
        g.reshape(y, result.clone())
    })
}

/// Fused attention of queries, keys and values of `[batch, heads, length, depth]`.
pub(in super::super) fn attended(i: &mut OnnxImporter, parts: [&Computed; 3], op: Attention) -> Found<Computed> {
    // As in memory: heads side by side.
    let order = [0, 2, 1, 3];
    let (q, k, v) = (i.ordered(parts[0], &order)?, i.ordered(parts[1], &order)?, i.ordered(parts[2], &order)?);
    let y = i.node("attention", &[&q, &k, &v], move |g, x| {
        let mut flat = |x: ValueId| {
            let dims = g.shape(x).dims().to_vec();
            g.reshape(x, Shape::new([dims[0], dims[1], (dims[2].factor() * dims[3].factor()).into()]))
        };
        let inputs = [flat(x[0])?, flat(x[1])?, flat(x[2])?];
        let y = g.add(Op::Attention(op.clone()), &inputs)?[0];
        let shape = g.shape(x[0]).clone();
        g.reshape(y, shape)
    })?;
    Ok(y.laid_out(order.to_vec()))
}

fn attention(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let (q, k, v) = (i.computed(&c.input(0)?)?, i.computed(&c.input(1)?)?, i.computed(&c.input(2)?)?);
    let joined_heads = q.order.len() == 3;
    let (query_heads, key_heads) = (c.int("q_num_heads", 0)?, c.int("kv_num_heads", 0)?);
    let (q, mut k, mut v) = (heads(i, &q, query_heads)?, heads(i, &k, key_heads)?, heads(i, &v, key_heads)?);
    let mut past = 0;
    if let (Some(keys), Some(values)) = (c.given(4), c.given(5)) {
        past = i.shape_of(&keys).get(2).map_or(0, |dim| dim.factor());
        k = joined(i, &keys, &k, 2)?;
        v = joined(i, &values, &v, 2)?;
    }
    let (present_keys, present_values) = (k.clone(), v.clone());
    let (dims, key_dims, value_dims) = (i.dims(&q), i.dims(&k), i.dims(&v));
    let fixed = |dim: Dim| dim.as_fixed().ok_or("only the first dimension may be the batch".to_string());
    let (count, length, depth) = (fixed(dims[1])?, fixed(dims[2])?, fixed(dims[3])?);
    let (kept, keys) = (fixed(key_dims[1])?, fixed(key_dims[2])?);
    if kept == 0 || !count.is_multiple_of(kept) {
        return Err(format!("{kept} heads of keys cannot serve {count} heads of queries"));
    }
    let scale = c.float("scale", 1.0 / (depth as f32).sqrt())?;
    let softcap = c.float("softcap", 0.0)?;
    let causal = c.flag("is_causal", false)?;
    let mask = c.given(3);
    let lengths = c.given(6);
    let plain = mask.is_none() && lengths.is_none() && softcap == 0.0 && !c.wants(3) && past == 0 && value_dims[3] == dims[3];
    let output = match plain && (!causal || length == keys) {
        true => {
            let op = Attention { heads: count, kv_heads: kept, causal, scale: scale.to_bits(), packing: Packing::Separate, dropout: None };
            (attended(i, [&q, &k, &v], op)?, None)
        }
        false => {
            let times = count / kept;
            let (k, v) = (repeated(i, &k, times)?, repeated(i, &v, times)?);
            let flipped = {
                let order = k.order.iter().map(|axis| [0, 1, 3, 2][*axis]).collect();
                k.laid_out(order)
            };
            let raw: Value = i.product(&q, &flipped)?.into();
            let scores = i.elementwise("scale", &[raw], None, move |e, t| {
                let scaled = e.mul(e.constant(scale), t[0]);
                match softcap > 0.0 {
                    true => e.mul(e.constant(softcap), e.unary(Unary::Tanh, e.div(scaled, e.constant(softcap)))),
                    false => scaled,
                }
            })?;
            let scores = scores[0].clone();
            let mut biased = scores.clone();
            if let Some(mask) = mask {
                let is_bool = mask.kind() == ElementKind::Bool;
                let tensor = i.computed(&mask)?;
                let tensor = i.plain(&tensor)?;
                let own = i.dims(&tensor).last().map_or(1, |dim| dim.factor());
                let wide = i.node("mask", &[&tensor], move |g, x| {
                    let shape = g.shape(x[0]).clone();
                    let expr = match is_bool {
                        true => Expr::build(|e| e.select(e.input(0), e.constant(0.0), e.constant(f32::NEG_INFINITY))),
                        false => Expr::identity(),
                    };
                    let bias = g.pointwise_over(expr, &x[..1], shape.clone())?;
                    if own == 1 { Ok(bias) } else { pad_with(g, bias, shape.rank() - 1, 0, keys.saturating_sub(own), f32::NEG_INFINITY) }
                })?;
                biased = i.elementwise("add", &[biased, wide.into()], None, |e, t| e.add(t[0], t[1]))?[0].clone();
            }
            if let Some(lengths) = lengths {
                let tensor = i.computed(&lengths)?;
                let Some(batch) = i.dims(&tensor).first().copied() else { return Err("its lengths are a single number".to_string()) };
                let column = i.reshaped(&tensor, Shape::new([batch, 1.into(), 1.into(), 1.into()]))?;
                let shape = Shape::new([batch, 1.into(), 1.into(), keys.into()]);
                let bias = i.node("mask", &[&column], move |g, x| {
                    let expr = Expr::build(|e| {
                        e.select(e.binary(Binary::Less, e.coordinate(3), e.input(0)), e.constant(0.0), e.constant(f32::NEG_INFINITY))
                    });
                    g.pointwise_over(expr, &x[..1], shape.clone())
                })?;
                biased = i.elementwise("add", &[biased, bias.into()], None, |e, t| e.add(t[0], t[1]))?[0].clone();
            }
            if causal {
                let tensor = i.computed(&biased)?;
                let tensor = i.plain(&tensor)?;
                biased = i
                    .node("causal_mask", &[&tensor], move |g, x| {
                        let shape = g.shape(x[0]).clone();
                        let expr = Expr::build(|e| {
                            let last = e.add(e.coordinate(2), e.constant(past as f32));
                            e.select(e.binary(Binary::LessEq, e.coordinate(3), last), e.input(0), e.constant(f32::NEG_INFINITY))
                        });
                        g.pointwise_over(expr, &x[..1], shape)
                    })?
                    .into();
            }
            let tensor = i.computed(&biased)?;
            let weights = super::reduce::last_axis(i, &tensor, 3, Activation::Softmax)?[0].clone();
            let shown = match c.int("qk_matmul_output_mode", 0)? {
                3 => weights.clone(),
                2 => biased,
                _ => scores,
            };
            let weights = i.computed(&weights)?;
            (i.product(&weights, &v)?, Some(shown))
        }
    };
    let (mut y, shown) = output;
    if joined_heads {
        let dims = i.dims(&y);
        let flipped = i.ordered(&y, &[0, 2, 1, 3])?.laid_out(vec![0, 1, 2, 3]);
        y = i.reshaped(&flipped, Shape::new([dims[0], dims[2], (dims[1].factor() * dims[3].factor()).into()]))?;
    }
    let mut outputs = vec![y.into(), present_keys.into(), present_values.into()];
    outputs.extend(shown);
    Ok(outputs)
}

fn rotary(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = i.computed(&c.input(0)?)?;
    let joined_heads = x.order.len() == 3;
    let x = heads(i, &x, c.int("num_heads", 0)?)?;
    // `[batch, length, heads, depth]` in memory.
    let x = i.ordered(&x, &[0, 2, 1, 3])?;
    let shape = i.graph.shape(x.value).clone();
    let depth = shape.dims()[3].factor();
    let rotated = match usize::try_from(c.int("rotary_embedding_dim", 0)?).unwrap_or(0) {
        0 => depth,
        other => other,
    };
    let interleaved = c.flag("interleaved", false)?;
    if rotated > depth || rotated % 2 == 1 {
        return Err(format!("it rotates {rotated} of {depth} elements"));
    }
    let mut caches = Vec::new();
    for index in [1, 2] {
        let cache = i.computed(&c.input(index)?)?;
        let mut cache = i.plain(&cache)?;
        if let Some(positions) = c.given(3) {
            let positions = i.computed(&positions)?;
            let positions = i.plain(&positions)?;
            cache = i.node("gather", &[&cache, &positions], |g, x| {
                let index = g.cast(x[1], plimsoll_core::DType::I32)?;
                g.gather(x[0], index)
            })?;
        }
        let dims = i.dims(&cache);
        let [.., length, width] = dims[..] else { return Err("its caches are no matrices".to_string()) };
        let lead = if dims.len() == 3 { dims[0] } else { Dim::fixed(1) };
        caches.push(i.reshaped(&cache, Shape::new([lead, length, 1.into(), width]))?);
    }
    let y = i.node("rotary_embedding", &[&x, &caches[0], &caches[1]], move |g, x| {
        let half = rotated / 2;
        let lead: Vec<Dim> = g.shape(x[0]).dims()[..3].to_vec();
        let part =
            |g: &mut plimsoll_core::Graph, of: ValueId, axis, start, length| g.add_one(Op::Slice(Slice { axis, start, length }), &[of]);
        let own = Shape::new(lead.iter().copied().chain([half.into()]));
        let turned = part(g, x[0], 3, 0, rotated)?;
        let (a, b) = match interleaved {
            true => {
                let pairs = g.reshape(turned, Shape::new(lead.iter().copied().chain([half.into(), 2.into()])))?;
                let (a, b) = (part(g, pairs, 4, 0, 1)?, part(g, pairs, 4, 1, 1)?);
                (g.reshape(a, own.clone())?, g.reshape(b, own.clone())?)
            }
            false => (part(g, turned, 3, 0, half)?, part(g, turned, 3, half, half)?),
        };
        let real = Expr::build(|e| e.sub(e.mul(e.input(2), e.input(0)), e.mul(e.input(3), e.input(1))));
        let imaginary = Expr::build(|e| e.add(e.mul(e.input(3), e.input(0)), e.mul(e.input(2), e.input(1))));
        let operands = [a, b, x[1], x[2]];
        let (real, imaginary) = (g.pointwise(real, &operands)?, g.pointwise(imaginary, &operands)?);
        let mut y = match interleaved {
            true => {
                let column = Shape::new(lead.iter().copied().chain([half.into(), 1.into()]));
                let (real, imaginary) = (g.reshape(real, column.clone())?, g.reshape(imaginary, column)?);
                let pairs = g.add_one(Op::Concat(Concat { axis: 4 }), &[real, imaginary])?;
                g.reshape(pairs, Shape::new(lead.iter().copied().chain([rotated.into()])))?
            }
            false => g.add_one(Op::Concat(Concat { axis: 3 }), &[real, imaginary])?,
        };
        if rotated < depth {
            let rest = part(g, x[0], 3, rotated, depth - rotated)?;
            y = g.add_one(Op::Concat(Concat { axis: 3 }), &[y, rest])?;
        }
        Ok(y)
    })?;
    if joined_heads {
        let dims = shape.dims();
        return Ok(vec![i.reshaped(&y, Shape::new([dims[0], dims[1], (dims[2].factor() * depth).into()]))?.into()]);
    }
    Ok(vec![y.laid_out(vec![0, 2, 1, 3]).into()])
}
