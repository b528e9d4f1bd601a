//! Matrix products.

use super::super::call::NodeCall;
use super::super::values::{Computed, Found, Value, Weight};
use super::super::{OnnxImporter, owner};
use super::Mapping;
use super::reduce::reduced;
use crate::nn::Dense;
use plimsoll_core::Op;
use plimsoll_core::expr::{Expr, ExprBuilder, TermId};
use plimsoll_core::ops::{MatMul, Reduction};
use plimsoll_core::shape::{Dim, Shape};
use std::sync::Arc;

pub(super) const OPERATORS: &[(&str, Mapping)] = &[("MatMul", matmul), ("Gemm", gemm), ("Einsum", einsum)];

fn matmul(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let (a, b) = (c.input(0)?, c.input(1)?);
    if let (Value::Tensor(x), Some(matrix)) = (&a, i.own_weight(Some(&b), 2))
        && x.order.len() >= 2
    {
        let output = c.node.outputs.first().cloned().unwrap_or_default();
        let fused = i.fused_bias.remove(&output);
        let bias = fused.as_ref().and_then(|fused| i.values.get(&fused.bias).cloned());
        let bias = i.own_weight(bias.as_ref(), 1);
        let y = i.dense(&x.clone(), &matrix, bias.as_ref())?;
        if let (Some(fused), true) = (fused, bias.is_some()) {
            i.values.insert(fused.result, y.clone().into());
        }
        return Ok(vec![y.into()]);
    }
    if let Some(attended) = c.node.outputs.first().map(|output| i.split_attention(output, &b)).transpose()?.flatten() {
        return Ok(vec![attended.into()]);
    }
    let (a, b) = (i.computed(&a)?, i.computed(&b)?);
    Ok(vec![i.product(&a, &b)?.into()])
}

impl OnnxImporter {
    /// A fully connected layer; the matrix is `[inputs, outputs]`.
    fn dense(&mut self, x: &Computed, matrix: &Weight, bias: Option<&Weight>) -> Found<Computed> {
        let x = self.plain(x)?;
        let name = owner(&matrix.name).unwrap_or_else(|| self.current.clone());
        let name = self.unique(&name);
        self.names.remove(&name);
        self.insert_weight(&name, "kernel", matrix, &[0, 1]);
        if let Some(bias) = bias {
            self.insert_weight(&name, "bias", bias, &[0]);
        }
        self.layer(&name, Arc::new(Dense::new(matrix.dims()[1]).bias(bias.is_some())), &[&x])
    }

    /// The product of two tensors, as NumPy's `matmul`.
    pub(super) fn product(&mut self, a: &Computed, b: &Computed) -> Found<Computed> {
        let (left, right) = (a.order.len(), b.order.len());
        if left == 0 || right == 0 {
            return Err("it multiplies single numbers".to_string());
        }
        if left == 1 || right == 1 {
            let shape = |i: &OnnxImporter, x: &Computed, front: bool| {
                let mut dims = i.dims(x);
                if dims.len() == 1 {
                    dims.insert(if front { 0 } else { 1 }, Dim::fixed(1));
                }
                Shape::new(dims)
            };
            let (left_shape, right_shape) = (shape(self, a, true), shape(self, b, false));
            let (a, b) = (self.reshaped(a, left_shape)?, self.reshaped(b, right_shape)?);
            let y = self.product(&a, &b)?;
            let rank = y.order.len();
            let mut axes = Vec::new();
            if left == 1 {
                axes.push(rank - 2);
            }
            if right == 1 {
                axes.push(rank - 1);
            }
            return self.squeezed(&y, &axes);
        }
        if right == 2 {
            let a = self.plain(a)?;
            let transpose_b = b.order == [1, 0];
            return self.node("matmul", &[&a, b], move |g, x| {
                let shape = g.shape(x[0]).clone();
                let last = shape.rank() - 1;
                let rows = Shape::new(shape.dims()[..last].iter().copied()).elements();
                let flat = g.reshape(x[0], Shape::new([rows, shape.dims()[last]]))?;
                let columns = g.shape(x[1]).dims()[usize::from(!transpose_b)];
                let y = g.add_one(Op::MatMul(MatMul { transpose_b, ..MatMul::default() }), &[flat, x[1]])?;
                g.reshape(y, shape.with(last, columns))
            });
        }
        // Many small products: a sum over the common axis, which is last in memory in both.
        let (a, b) = (self.plain(a)?, {
            let mut order: Vec<usize> = (0..right).collect();
            order.swap(right - 1, right - 2);
            self.ordered(b, &order)?
        });
        self.node("batch_matmul", &[&a, &b], |g, x| {
            let spread = |shape: &Shape, at: usize| {
                let mut dims = shape.dims().to_vec();
                dims.insert(dims.len() - at, Dim::fixed(1));
                Shape::new(dims)
            };
            let (a, b) = (spread(g.shape(x[0]), 1), spread(g.shape(x[1]), 2));
            let Some(shape) = a.broadcast(&b) else { return Err(g.error(format!("shapes {a} and {b} do not go together"))) };
            let (a, b) = (g.reshape(x[0], a)?, g.reshape(x[1], b)?);
            let expr = Expr::build(|e| e.mul(e.input(0), e.input(1)));
            let last = shape.rank() - 1;
            let result = Shape::new(shape.dims()[..last].iter().copied());
            let sum = reduced(g, expr, shape, Reduction::Sum, &[last], &[a, b])?;
            g.reshape(sum, result)
        })
    }
}

fn gemm(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let (alpha, beta) = (c.float("alpha", 1.0)?, c.float("beta", 1.0)?);
    let (flip_a, flip_b) = (c.flag("transA", false)?, c.flag("transB", false)?);
    let (a, b, bias) = (c.input(0)?, c.input(1)?, c.given(2));
    if a.rank() != 2 || b.rank() != 2 {
        return Err("it multiplies matrices, but its inputs have other ranks".to_string());
    }
    let plain = alpha == 1.0 && beta == 1.0 && !flip_a;
    if let (Value::Tensor(x), Some(matrix), true) = (&a, i.own_weight(Some(&b), 2), plain) {
        let matrix = if flip_b { matrix.permuted(&[1, 0]) } else { matrix };
        let own = i.own_weight(bias.as_ref(), 1).filter(|own| own.dims() == matrix.dims()[1..]);
        if bias.is_none() || own.is_some() {
            return Ok(vec![i.dense(&x.clone(), &matrix, own.as_ref())?.into()]);
        }
    }
    let flipped = |tensor: Computed, flip: bool| match flip {
        true => {
            let order = tensor.order.iter().map(|axis| 1 - axis).collect();
            tensor.laid_out(order)
        }
        false => tensor,
    };
    let (a, b) = (flipped(i.computed(&a)?, flip_a), flipped(i.computed(&b)?, flip_b));
    let product: Value = i.product(&a, &b)?.into();
    let Some(bias) = bias.filter(|_| beta != 0.0) else {
        return i.elementwise("scale", &[product], None, move |e, t| e.mul(e.constant(alpha), t[0]));
    };
    i.elementwise("gemm", &[product, bias], None, move |e: &ExprBuilder, t: &[TermId]| {
        e.add(e.mul(e.constant(alpha), t[0]), e.mul(e.constant(beta), t[1]))
    })
}

/// A sum of products over named axes, as one reduction.
fn einsum(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let equation: String = c.text("equation", "")?.chars().filter(|letter| !letter.is_whitespace()).collect();
    let values = c.all()?;
    let (terms, output) = match equation.split_once("->") {
        Some((terms, output)) => (terms.to_string(), Some(output.to_string())),
        None => (equation.clone(), None),
    };
    let terms: Vec<String> = terms.split(',').map(str::to_string).collect();
    if terms.len() != values.len() || values.is_empty() {
        return Err(format!("its equation `{equation}` has {} terms for {} inputs", terms.len(), values.len()));
    }
    // An ellipsis stands for as many axes as are left, named by digits from the last one on.
    let expand = |term: &str, rank: usize| -> Found<Vec<char>> {
        let Some((before, after)) = term.split_once("...") else { return Ok(term.chars().collect()) };
        let named = before.chars().count() + after.chars().count();
        let hidden =
            rank.checked_sub(named).filter(|hidden| *hidden < 10).ok_or_else(|| format!("`{term}` has more axes than its input"))?;
        let digits = (0..hidden).rev().map(|digit| char::from(b'0' + digit as u8));
        Ok(before.chars().chain(digits).chain(after.chars()).collect())
    };
    let mut named: Vec<Vec<char>> = Vec::new();
    for (term, value) in terms.iter().zip(&values) {
        let axes = expand(term, value.rank())?;
        if axes.len() != value.rank() {
            return Err(format!("its equation `{equation}` does not name the axes of its inputs"));
        }
        named.push(axes);
    }
    let mut all: Vec<char> = named.iter().flatten().copied().collect();
    all.sort_unstable();
    let hidden: Vec<char> = {
        let mut digits: Vec<char> = all.iter().copied().filter(char::is_ascii_digit).collect();
        digits.dedup();
        digits.reverse();
        digits
    };
    let result: Vec<char> = match output {
        Some(output) => output.replace("...", &hidden.iter().collect::<String>()).chars().collect(),
        None => {
            let once = |letter: &char| letter.is_alphabetic() && all.iter().filter(|other| *other == letter).count() == 1;
            hidden.iter().copied().chain(all.iter().copied().filter(once)).collect()
        }
    };
    all.dedup();
    if result.iter().any(|letter| !all.contains(letter)) {
        return Err(format!("its equation `{equation}` has a result axis that no input has"));
    }
    let summed: Vec<char> = all.iter().copied().filter(|letter| !result.contains(letter)).collect();
    let axes: Vec<char> = result.iter().chain(&summed).copied().collect();
    let mut tensors = Vec::new();
    for (value, names) in values.iter().zip(&named) {
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != names.len() {
            return Err(format!("its equation `{equation}` takes a diagonal, which is not imported"));
        }
        let tensor = i.computed(value)?;
        let order: Vec<usize> = axes.iter().filter_map(|letter| names.iter().position(|name| name == letter)).collect();
        let tensor = i.ordered(&tensor, &order)?;
        let dims = i.dims(&tensor);
        let spread: Vec<Dim> =
            axes.iter().map(|letter| names.iter().position(|name| name == letter).map_or(Dim::fixed(1), |axis| dims[axis])).collect();
        let shape = Shape::new(spread);
        tensors.push(i.node("reshape", &[&tensor], move |g, x| g.reshape(x[0], shape.clone()))?);
    }
    let (kept, count) = (result.len(), axes.len());
    let read: Vec<&Computed> = tensors.iter().collect();
    let y = i.node("einsum", &read, move |g, x| {
        let mut shape = Shape::scalar();
        for value in x {
            let own = g.shape(*value).clone();
            shape = shape.broadcast(&own).ok_or_else(|| g.error(format!("shapes {shape} and {own} do not go together")))?;
        }
        let expr = Expr::build(|e| (1..x.len()).fold(e.input(0), |all, next| e.mul(all, e.input(next as u16))));
        if kept == count {
            return g.pointwise_over(expr, x, shape);
        }
        let result = Shape::new(shape.dims()[..kept].iter().copied());
        let axes: Vec<usize> = (kept..count).collect();
        let sum = reduced(g, expr, shape, Reduction::Sum, &axes, x)?;
        g.reshape(sum, result)
    })?;
    Ok(vec![y.into()])
}
