//! What becomes of the rows of each op.

use super::{Axis, Cut};
use crate::base::expr::{Expr, Term};
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::{Graph, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{AvgPoolGrad, Conv2dGradFilter, Conv2dGradInput, MatMul, MaxPoolGrad, Pointwise, Reduce, Reduction, Reshape};

/// What becomes of a node's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowRule {
    /// Each row of the result is made from the same row of what it reads, and from what has no rows.
    Rows,
    /// Rows are summed.
    Sum,
}

impl Cut {
    /// How the node treats its rows. None if it cannot be cut.
    pub(super) fn row_rule(&self, graph: &Graph, node: &Node) -> Option<RowRule> {
        let rows = |i: usize| self.has_rows(graph, node.inputs[i]);
        let none = |i: usize| !graph.shape(node.inputs[i]).has_batch();
        let along = |shape: &Shape| {
            let first = shape.dims().first().copied().filter(|dim| dim.is_batch());
            first.is_some_and(|first| self.axis == Axis::Batch || self.axis == Axis::Times(first.factor()))
        };
        // What is stretched to a shape has its rows, or none.
        let aligned = |shape: &Shape, from: usize| {
            let beside = |value: &ValueId| {
                let own = graph.shape(*value);
                !own.has_batch() || (own.rank() == shape.rank() && own.dims()[0] == shape.dims()[0])
            };
            along(shape) && node.inputs[from..].iter().all(beside)
        };
        let result = graph.shape(node.outputs[0]);
        let by_rows = match &node.op {
            Op::Pointwise(op) => aligned(&op.shape, 0) && !is_drawn(&op.expr),
            Op::Reduce(op) if op.onto || !aligned(&op.shape, 0) || is_drawn(&op.expr) => false,
            Op::Reduce(op) if op.axes.contains(&0) => {
                let sums = op.kind == Reduction::Sum && op.expr.arity() == node.inputs.len();
                return sums.then_some(RowRule::Sum);
            }
            Op::Reduce(_) => true,
            Op::Reshape(op) => along(&op.shape) && rows(0),
            Op::MatMul(op) if op.onto => false,
            Op::MatMul(op) if op.transpose_a => {
                let both = rows(0) && rows(1) && !op.transpose_b && op.epilogue.is_none();
                return both.then_some(RowRule::Sum);
            }
            Op::MatMul(_) | Op::Conv2d(_) => rows(0) && none(1) && aligned(result, 2),
            Op::Conv2dGradInput(_) => none(0) && rows(1),
            Op::Conv2dGradFilter(op) => return (!op.onto && rows(0) && rows(1)).then_some(RowRule::Sum),
            Op::MaxPool(_) | Op::AvgPool(_) | Op::AvgPoolGrad(_) => rows(0),
            Op::MaxPoolGrad(_) => rows(0) && rows(1),
            _ => false,
        };
        by_rows.then_some(RowRule::Rows)
    }
}

/// The op over some of its rows, which `cut` makes of the first dimension of its shapes; a sum `onto` that of the rows before.
pub(super) fn of_piece(op: &Op, cut: impl Fn(Dim) -> Dim, onto: bool) -> Op {
    let part = |shape: &Shape| shape.with(0, cut(shape.dims()[0]));
    match op {
        Op::Pointwise(op) => Op::Pointwise(Pointwise { shape: part(&op.shape), ..op.clone() }),
        Op::Reduce(op) => Op::Reduce(Reduce { shape: part(&op.shape), onto, ..op.clone() }),
        Op::Reshape(op) => Op::Reshape(Reshape { shape: part(&op.shape) }),
        Op::MatMul(op) => Op::MatMul(MatMul { onto, ..op.clone() }),
        Op::Conv2dGradInput(op) => Op::Conv2dGradInput(Conv2dGradInput { input: part(&op.input), ..op.clone() }),
        Op::Conv2dGradFilter(op) => Op::Conv2dGradFilter(Conv2dGradFilter { onto, ..op.clone() }),
        Op::MaxPoolGrad(op) => Op::MaxPoolGrad(MaxPoolGrad { input: part(&op.input), ..op.clone() }),
        Op::AvgPoolGrad(op) => Op::AvgPoolGrad(AvgPoolGrad { input: part(&op.input), ..op.clone() }),
        other => other.clone(),
    }
}

/// Whether an expression draws random numbers, which depend on where an element stands among all.
fn is_drawn(expr: &Expr) -> bool {
    expr.terms().iter().any(|term| matches!(term, Term::Random(_)))
}
