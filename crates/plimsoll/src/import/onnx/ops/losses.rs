//! Losses as nodes of a graph.

use super::super::OnnxImporter;
use super::super::call::NodeCall;
use super::super::values::{Computed, Found, Value};
use super::Mapping;
use super::reduce::reduced;
use crate::nn::Activation;
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::ops::Reduction;
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_core::{Graph, GraphError, ValueId};

pub(super) const OPERATORS: &[(&str, Mapping)] = &[
    ("NegativeLogLikelihoodLoss", |i, c| {
        let scores = i.computed(&c.input(0)?)?;
        likelihood(i, c, &scores)
    }),
    ("SoftmaxCrossEntropyLoss", |i, c| {
        let scores = i.computed(&c.input(0)?)?;
        let logarithms = super::reduce::last_axis(i, &scores, 1, Activation::LogSoftmax)?[0].clone();
        let tensor = i.computed(&logarithms)?;
        let mut outputs = likelihood(i, c, &tensor)?;
        outputs.push(logarithms);
        Ok(outputs)
    }),
];

/// The negative logarithm of the probability of every label.
fn likelihood(i: &mut OnnxImporter, c: &NodeCall<'_>, scores: &Computed) -> Found<Vec<Value>> {
    let scores = i.channels_last(scores)?;
    let labels = i.computed(&c.input(1)?)?;
    let labels = i.plain(&labels)?;
    let mut read = vec![scores.clone(), labels];
    if let Some(weights) = c.given(2) {
        read.push(i.computed(&weights)?);
    }
    let ignored = if c.has("ignore_index") { Some(c.int("ignore_index", 0)? as f32) } else { None };
    let reduction = c.text("reduction", "mean")?;
    let shape = i.graph.shape(scores.value).clone();
    let last = shape.rank() - 1;
    let result = Shape::new(shape.dims()[..last].iter().copied());
    if reduction != "none" && result.has_batch() {
        return Err("it reduces the batch, which layers do not see as a whole; remove the loss from the graph".to_string());
    }
    let read: Vec<&Computed> = read.iter().collect();
    let y = i.node("loss", &read, move |g, x| {
        let column = result.with_last();
        let labels = g.reshape(x[1], column.clone())?;
        let pick = |g: &mut Graph, values: ValueId| -> Result<ValueId, GraphError> {
            let expr = Expr::build(|e| {
                let here = e.binary(Binary::Equal, e.coordinate(last as u8), e.input(1));
                e.select(here, e.input(0), e.constant(0.0))
            });
            reduced(g, expr, shape.clone(), Reduction::Sum, &[last], &[values, labels])
        };
        let chosen = pick(g, x[0])?;
        let counts = match x.get(2) {
            Some(weights) => pick(g, *weights)?,
            None => g.full(1.0, column.clone())?,
        };
        let counts = match ignored {
            Some(ignored) => {
                let expr = Expr::build(|e| e.select(e.binary(Binary::Equal, e.input(1), e.constant(ignored)), e.constant(0.0), e.input(0)));
                g.pointwise(expr, &[counts, labels])?
            }
            None => counts,
        };
        let losses = g.pointwise(Expr::build(|e| e.mul(e.constant(-1.0), e.mul(e.input(0), e.input(1)))), &[chosen, counts])?;
        match reduction.as_str() {
            "none" => g.reshape(losses, result.clone()),
            "sum" => g.sum(losses),
            _ => {
                let (sum, total) = (g.sum(losses)?, g.sum(counts)?);
                g.binary(Binary::Div, sum, total)
            }
        }
    })?;
    Ok(vec![y.into()])
}

trait WithLast {
    /// The shape with one more axis of extent 1 behind.
    fn with_last(&self) -> Shape;
}

impl WithLast for Shape {
    fn with_last(&self) -> Shape {
        Shape::new(self.dims().iter().copied().chain([Dim::fixed(1)]))
    }
}
