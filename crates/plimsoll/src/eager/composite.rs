//! Eager ops of several nodes, which are compiled into one program.

use super::call::over_broadcast;
use super::error::BuiltValues;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::GraphError;
use plimsoll_core::ops::{MatMul, Reduction};
use plimsoll_core::{DType, Graph, Op, Shape, ValueId};

/// An op of several nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Composite {
    /// The mean along axes, which remain with extent 1.
    Mean(Vec<usize>),
    /// The variance along axes, which remain with extent 1; divided by the number of elements.
    Variance(Vec<usize>),
    /// Softmax along an axis.
    Softmax(usize),
    /// Its logarithm.
    LogSoftmax(usize),
    /// Normalization over all axes but the last, with a gain and a bias.
    BatchNorm(
        /// The bits of epsilon.
        u32,
    ),
    /// Normalization along the last axis, with a gain and a bias.
    LayerNorm(
        /// The bits of epsilon.
        u32,
    ),
    /// The mean of the rows' cross-entropies, from logits and class IDs.
    CrossEntropy,
    /// The cross-entropy of each row.
    CrossEntropyRows,
    /// Class IDs as rows of zeros and a one.
    OneHot(usize),
    /// A tensor of more than two dimensions times a matrix.
    MatMulRows,
}

impl Composite {
    pub fn name(&self) -> &'static str {
        match self {
            Composite::Mean(_) => "mean",
            Composite::Variance(_) => "var",
            Composite::Softmax(_) => "softmax",
            Composite::LogSoftmax(_) => "log_softmax",
            Composite::BatchNorm(_) => "batch_norm",
            Composite::LayerNorm(_) => "layer_norm",
            Composite::CrossEntropy => "cross_entropy",
            Composite::CrossEntropyRows => "cross_entropy_rows",
            Composite::OneHot(_) => "one_hot",
            Composite::MatMulRows => "matmul",
        }
    }

    pub fn build(&self, g: &mut Graph, inputs: &[ValueId]) -> BuiltValues {
        let x = inputs[0];
        let dtype = g.ty(x).dtype;
        let result = match self {
            Composite::Mean(axes) => mean(g, x, axes)?,
            Composite::Variance(axes) => {
                let mean_of_x = mean(g, x, axes)?;
                let square = |g: &mut Graph| {
                    over_broadcast(g, Expr::build(|e| square(e, e.sub(e.input(0), e.input(1)))), &[x, mean_of_x], DType::F32)
                };
                let squares = square(g)?;
                mean(g, squares, axes)?
            }
            Composite::Softmax(axis) => {
                let shifted = log_softmax(g, x, *axis, DType::F32)?;
                over_broadcast(g, Expr::build(|e| e.unary(Unary::Exp, e.input(0))), &[shifted], dtype)?
            }
            Composite::LogSoftmax(axis) => log_softmax(g, x, *axis, dtype)?,
            Composite::BatchNorm(epsilon) | Composite::LayerNorm(epsilon) => {
                let Some(last) = g.shape(x).rank().checked_sub(1) else { return Err(g.error("expects at least one axis")) };
                let over_rows = matches!(self, Composite::BatchNorm(_));
                let axes: Vec<usize> = if over_rows { (0..last).collect() } else { vec![last] };
                let center = mean(g, x, &axes)?;
                let squares = over_broadcast(g, Expr::build(|e| square(e, e.sub(e.input(0), e.input(1)))), &[x, center], DType::F32)?;
                let variance = mean(g, squares, &axes)?;
                let normalized = Expr::build(|e| {
                    let scale = e.unary(Unary::Sqrt, e.add(e.input(2), e.constant(f32::from_bits(*epsilon))));
                    let unit = e.div(e.sub(e.input(0), e.input(1)), scale);
                    e.add(e.mul(unit, e.input(3)), e.input(4))
                });
                over_broadcast(g, normalized, &[x, center, variance, inputs[1], inputs[2]], dtype)?
            }
            Composite::CrossEntropy => {
                let loss = cross_entropy(g, x, inputs[1])?;
                let Some(count) = g.shape(loss).dims()[0].as_fixed() else {
                    return Err(g.error("the mean depends on the batch; use `cross_entropy_rows`"));
                };
                let sum = g.sum(loss)?;
                g.map(sum, |e, sum| e.mul(sum, e.constant(1.0 / count as f32)))?
            }
            Composite::CrossEntropyRows => {
                let loss = cross_entropy(g, x, inputs[1])?;
                let rows = g.shape(loss).dims()[0];
                g.reshape(loss, Shape::new([rows]))?
            }
            Composite::OneHot(classes) => one_hot(g, x, *classes)?,
            Composite::MatMulRows => {
                let shape = g.shape(x).clone();
                let (columns, rows) = (shape.dims()[shape.rank() - 1], &shape.dims()[..shape.rank() - 1]);
                // The first dimension may be a multiple of the batch.
                let count = Shape::new(rows.iter().copied()).elements();
                let flat = g.reshape(x, Shape::new([count, columns]))?;
                let product = g.add_one(Op::MatMul(MatMul { dtype, ..MatMul::default() }), &[flat, inputs[1]])?;
                let width = g.shape(product).dims()[1];
                g.reshape(product, Shape::new(rows.iter().copied().chain([width])))?
            }
        };
        Ok(vec![result])
    }
}

fn square(e: &plimsoll_core::expr::ExprBuilder, x: plimsoll_core::expr::TermId) -> plimsoll_core::expr::TermId {
    e.mul(x, x)
}

/// The mean along axes, in single precision.
fn mean(g: &mut Graph, x: ValueId, axes: &[usize]) -> Result<ValueId, GraphError> {
    let dims = g.shape(x).dims();
    let Some(extents) = axes.iter().map(|axis| dims.get(*axis)?.as_fixed()).collect::<Option<Vec<usize>>>() else {
        return Err(g.error(format!("the mean along axes {axes:?} of {} depends on the batch; leave axis 0 out", g.shape(x))));
    };
    let count: usize = extents.iter().product();
    let sum = g.reduce(Reduction::Sum, x, axes)?;
    g.map(sum, |e, sum| e.mul(sum, e.constant(1.0 / count as f32)))
}

fn log_softmax(g: &mut Graph, x: ValueId, axis: usize, dtype: DType) -> Result<ValueId, GraphError> {
    let total = g.reduce(Reduction::LogSumExp, x, &[axis])?;
    over_broadcast(g, Expr::build(|e| e.sub(e.input(0), e.input(1))), &[x, total], dtype)
}

/// `logsumexp(logits) - logits[label]` of each row, `[rows, 1]`.
fn cross_entropy(g: &mut Graph, logits: ValueId, labels: ValueId) -> Result<ValueId, GraphError> {
    let (shape, of) = (g.shape(logits).clone(), g.shape(labels).clone());
    let [rows, classes] = shape.dims() else {
        return Err(g.error(format!("takes logits [rows, classes], but got the shape {shape}")));
    };
    if classes.as_fixed().is_none() {
        return Err(g.error(format!("takes logits of a fixed number of classes, but got the shape {shape}")));
    }
    if of.elements() != *rows {
        return Err(g.error(format!("takes a class ID for each of the {rows} rows, but got labels {of}")));
    }
    let total = g.reduce(Reduction::LogSumExp, logits, &[1])?;
    let ids = g.reshape(labels, Shape::new([*rows, 1.into()]))?;
    let chosen = Expr::build(|e| {
        let own = e.binary(Binary::Equal, e.coordinate(1), e.input(1));
        e.select(own, e.input(0), e.constant(0.0))
    });
    let picked = g.pointwise_many(chosen, &[logits, ids], shape.clone(), vec![DType::F32])?[0];
    let own = g.reduce(Reduction::Sum, picked, &[1])?;
    g.binary(Binary::Sub, total, own)
}

fn one_hot(g: &mut Graph, ids: ValueId, classes: usize) -> Result<ValueId, GraphError> {
    let shape = g.shape(ids).clone();
    let column = g.reshape(ids, Shape::new(shape.dims().iter().copied().chain([1.into()])))?;
    let axis = shape.rank() as u8;
    let rows = Shape::new(shape.dims().iter().copied().chain([classes.into()]));
    g.pointwise_over(Expr::build(|e| e.binary(Binary::Equal, e.coordinate(axis), e.input(0))), &[column], rows)
}
