//! Properties of each op besides shapes and gradients: its treatment in mixed precision, and whether its rows may be
//! split.

use super::graph::{Graph, Node, ValueId};
use crate::base::expr::{Expr, Term};
use crate::base::shape::Shape;
use std::fmt;

/// Treatment of an op in mixed precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// A leaf, in its own type.
    Leaf,
    /// Operands with a batch dimension are read in 16 bits, and the result is stored in 16 bits.
    Product,
    /// The result has the type of the operand, which is read in 16 bits if it has a batch dimension.
    Window,
    /// The result has the type of the operand.
    Movement,
    /// The result is stored in 16 bits if a consumer reads it so, or if it is the output of a layer's products.
    Expression,
    /// Reads any type; the result is single precision.
    Statistic,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Precision::Leaf => "its own type; parameters stay f32",
            Precision::Product => "batch operands 16-bit, parameters f32; sums f32; result 16-bit",
            Precision::Window => "16-bit in, sums f32, 16-bit out",
            Precision::Movement => "the operand's type",
            Precision::Expression => "arithmetic f32; result 16-bit, but f32 for losses, softmax and what only reductions read",
            Precision::Statistic => "any type in, sums f32, result f32",
        })
    }
}

/// The effect of a row split on an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowRule {
    /// Each row of the result depends on the same row of the split inputs, and on inputs without rows.
    Independent,
    /// Rows are summed: each split accumulates onto the previous one.
    Sum,
}

/// A node whose rows the planner may split.
pub struct RowContext<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) node: &'a Node,
    /// The multiple of the batch whose rows are split; none if the batch itself is.
    pub(crate) multiple: Option<usize>,
}

impl RowContext<'_> {
    /// Whether a tensor of this shape has the rows that are split.
    pub fn are_split(&self, shape: &Shape) -> bool {
        let first = shape.dims().first().filter(|dim| dim.is_batch());
        first.is_some_and(|first| self.multiple.is_none_or(|multiple| multiple == first.factor()))
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// Whether input `i` has the rows that are split.
    pub fn input(&self, i: usize) -> bool {
        self.are_split(self.graph.shape(self.node.inputs[i]))
    }

    /// Whether the shape of input `i` does not depend on the batch.
    pub fn is_fixed(&self, i: usize) -> bool {
        !self.graph.shape(self.node.inputs[i]).has_batch()
    }

    /// Whether `shape` is split, and every input from `from` on either has the same rows or is broadcast along them.
    pub fn aligned(&self, shape: &Shape, from: usize) -> bool {
        let beside = |value: &ValueId| {
            let own = self.graph.shape(*value);
            !own.has_batch() || (own.rank() == shape.rank() && own.dims()[0] == shape.dims()[0])
        };
        self.are_split(shape) && self.node.inputs[from..].iter().all(beside)
    }

    /// The shape of the first output.
    pub fn result(&self) -> &Shape {
        self.graph.shape(self.node.outputs[0])
    }
}

/// Whether an expression uses random numbers, which depend on an element's global index.
pub(crate) fn is_random(expr: &Expr) -> bool {
    expr.terms().iter().any(|term| matches!(term, Term::Random(_)))
}
