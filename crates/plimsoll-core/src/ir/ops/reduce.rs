//! Reductions of an expression along axes: sum, max, log-sum-exp, argmax.

use super::pointwise::check_inputs;
use crate::DType;
use crate::base::expr::{Binary, Expr, Unary};
use crate::base::shape::{Dim, Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules};
use crate::ir::rules::{Precision, RowContext, RowRule, is_random};

/// The reduction operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The maximum; NaN propagates.
    Max,
    /// The numerically stable log-sum-exp.
    LogSumExp,
    /// Along one axis, the index of the first maximum.
    ArgMax,
}

/// Evaluates an expression over `shape` and reduces it along `axes`, which remain with extent 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reduce {
    /// The elementwise expression before the reduction.
    pub expr: Expr,
    /// The iteration shape; every input broadcasts to it.
    pub shape: Shape,
    /// The reduction operator.
    pub kind: Reduction,
    /// The reduced axes, ascending.
    pub axes: Vec<usize>,
    /// A sum accumulates onto one more input, after the expression's and of the result's type, instead of zero: the sum
    /// of the earlier rows of a split, or of earlier micro-batches. The planner sets it where
    /// [`Device::can_split_rows`](crate::plan::Target::can_split_rows) says that the result is bit-identical.
    pub onto: bool,
}

impl OpRules for Reduce {
    fn name(&self) -> &'static str {
        match self.kind {
            Reduction::Sum => "sum",
            Reduction::Max => "max",
            Reduction::LogSumExp => "logsumexp",
            Reduction::ArgMax => "argmax",
        }
    }

    fn precision(&self) -> Precision {
        Precision::Statistic
    }

    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule> {
        if !rows.aligned(&self.shape, 0) || is_random(&self.expr) {
            return None;
        }
        if !self.axes.contains(&0) {
            return (!self.onto).then_some(RowRule::Independent);
        }
        (self.kind == Reduction::Sum && self.expr.arity() + usize::from(self.onto) == rows.inputs()).then_some(RowRule::Sum)
    }

    fn with_rows(&self, part: &dyn Fn(&Shape) -> Shape, onto: bool) -> Option<Op> {
        Some(Op::Reduce(Reduce { shape: part(&self.shape), onto, ..self.clone() }))
    }

    fn attributes(&self) -> String {
        let axes: Vec<String> = self.axes.iter().map(usize::to_string).collect();
        let over = format!("axes {} of {}", axes.join(","), self.shape);
        let over = if self.onto { over + ", onto the last" } else { over };
        if self.expr.is_identity() { over } else { format!("{}, {over}", self.expr) }
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let (before, inputs) = match inputs {
            [inputs @ .., before] if self.onto => (Some(*before), inputs),
            _ => (None, inputs),
        };
        check_inputs(&self.expr, &self.shape, inputs)?;
        if !self.axes.is_sorted_by(|a, b| a < b) || self.axes.last().is_some_and(|axis| *axis >= self.shape.rank()) {
            return Err(format!("cannot reduce axes {:?} of the shape {}", self.axes, self.shape));
        }
        if self.kind == Reduction::ArgMax && self.axes.len() != 1 {
            return Err("the index of the largest is taken along one axis".to_string());
        }
        let dims = self.shape.dims().iter().enumerate();
        let shape = Shape::new(dims.map(|(axis, dim)| if self.axes.contains(&axis) { Dim::fixed(1) } else { *dim }));
        let dtype = if self.kind == Reduction::ArgMax { DType::I32 } else { DType::F32 };
        let result = TensorType::new(dtype, shape);
        if self.onto && (self.kind != Reduction::Sum || before != Some(&result) || self.expr.arity() != inputs.len()) {
            return Err(format!("only a sum accumulates onto another, of the type {result}"));
        }
        Ok(vec![result])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        assert!(self.expr.is_identity() && !self.onto, "gradients are taken before expressions are fused into reductions");
        if self.kind == Reduction::ArgMax {
            return Ok(vec![None]);
        }
        let (x, y, dy) = (adjoint.inputs[0], adjoint.outputs[0], adjoint.output_gradient(0)?);
        let g = &mut *adjoint.graph;
        let (dtype, target) = (g.ty(x).dtype, g.shape(x).clone());
        // The gradient of a broadcast operand is summed once more, in single precision.
        let stored = if target == self.shape { dtype } else { DType::F32 };
        let over = |g: &mut Graph, expr: Expr, inputs: &[ValueId], dtype: DType| {
            g.pointwise_many(expr, inputs, self.shape.clone(), vec![dtype]).map(|outputs| outputs[0])
        };
        let dx = match self.kind {
            Reduction::Sum => over(g, Expr::identity(), &[dy], stored)?,
            Reduction::LogSumExp => {
                let share = Expr::build(|e| e.mul(e.input(2), e.unary(Unary::Exp, e.sub(e.input(0), e.input(1)))));
                over(g, share, &[x, y, dy], stored)?
            }
            Reduction::Max => {
                // Ties share the gradient.
                let equal = Expr::build(|e| e.binary(Binary::Equal, e.input(0), e.input(1)));
                let winners = over(g, equal, &[x, y], dtype)?;
                let count = g.reduce(Reduction::Sum, winners, &self.axes)?;
                let share = Expr::build(|e| e.div(e.mul(e.input(0), e.input(2)), e.input(1)));
                over(g, share, &[winners, count, dy], stored)?
            }
            Reduction::ArgMax => unreachable!("answered above"),
        };
        let dx = g.sum_to(dx, &target)?;
        Ok(vec![Some(g.cast(dx, dtype)?)])
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        let own = if self.kind == Reduction::LogSumExp { 4 } else { 1 };
        (self.expr.flops() + own).saturating_mul(self.shape.elements().bind(rows) as u64)
    }

    /// The accumulator may be updated in place.
    fn in_place(&self, input: usize, _: usize) -> bool {
        self.onto && input == self.expr.arity()
    }
}
