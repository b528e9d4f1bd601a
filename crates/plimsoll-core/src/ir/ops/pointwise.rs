//! An elementwise expression over broadcast inputs.

use crate::DType;
use crate::base::expr::{Binary, Expr, Term};
use crate::base::shape::{Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::factor::factor;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules};
use crate::ir::ops::Reduction;
use crate::ir::rules::{Precision, RowContext, RowRule, is_random};

/// Applies an expression to every element of `shape`. Arithmetic is in single precision for all input and output types,
/// so this op also expresses casts and broadcasts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointwise {
    /// The expression.
    pub expr: Expr,
    /// The iteration shape; every input broadcasts to it.
    pub shape: Shape,
    /// Element type of each result.
    pub dtypes: Vec<DType>,
}

impl OpRules for Pointwise {
    fn name(&self) -> &'static str {
        "pointwise"
    }

    fn precision(&self) -> Precision {
        Precision::Expression
    }

    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule> {
        (rows.aligned(&self.shape, 0) && !is_random(&self.expr)).then_some(RowRule::Independent)
    }

    fn with_rows(&self, part: &dyn Fn(&Shape) -> Shape, _: bool) -> Option<Op> {
        Some(Op::Pointwise(Pointwise { shape: part(&self.shape), ..self.clone() }))
    }

    fn attributes(&self) -> String {
        self.expr.to_string()
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        check_inputs(&self.expr, &self.shape, inputs)?;
        if self.dtypes.len() != self.expr.roots().len() {
            return Err(format!("has {} results but {} result types", self.expr.roots().len(), self.dtypes.len()));
        }
        Ok(self.dtypes.iter().map(|dtype| TensorType::new(*dtype, self.shape.clone())).collect())
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let wanted: Vec<usize> = adjoint.wanted().filter(|i| self.expr.reads(*i)).collect();
        let mut gradients = vec![None; adjoint.inputs.len()];
        let outputs = adjoint.outputs_gradients()?;
        let faithful: Vec<bool> = self.dtypes.iter().map(|dtype| is_faithful(&self.expr, *dtype)).collect();
        for i in wanted {
            let slope = self.expr.derivative(adjoint.inputs.len(), &[i], &faithful);
            if slope.as_constant() == Some(0.0) {
                continue;
            }
            let operands: Vec<ValueId> = adjoint.inputs.iter().chain(&adjoint.outputs).chain(&outputs).copied().collect();
            gradients[i] = Some(self.summed(adjoint.graph, slope, operands, adjoint.inputs[i])?);
        }
        Ok(gradients)
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        self.expr.flops().saturating_mul(self.shape.elements().bind(rows) as u64)
    }

    /// Every element is read before it is written; the planner checks that the sizes match.
    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }
}

impl Pointwise {
    /// The gradient of an input: its slope, summed over broadcast axes. Factors that are constant along the sum are
    /// applied after it.
    fn summed(&self, g: &mut Graph, slope: Expr, mut operands: Vec<ValueId>, input: ValueId) -> Result<ValueId, GraphError> {
        let TensorType { dtype, shape: target } = g.ty(input).clone();
        let axes = target.stretched_axes(&self.shape);
        let still = |value: ValueId| {
            let own = g.shape(value).stretched_axes(&self.shape);
            axes.iter().all(|axis| own.contains(axis))
        };
        let steady = |term: &Term| match term {
            Term::Input(i) => still(operands[*i as usize]),
            Term::Random(_) => false,
            Term::Coordinate(axis) => !axes.contains(&(*axis as usize)),
            _ => true,
        };
        if axes.is_empty() {
            let full = g.pointwise_many(slope, &operands, self.shape.clone(), vec![dtype])?[0];
            return g.reshape(full, target);
        }
        // Sums are in single precision. They retain their axes until the factors are applied, so that coordinates still
        // give the position of the result.
        let cut = factor(&slope, operands.len(), steady);
        let Some(cut) = cut.filter(|cut| !cut.outside.is_positional()) else {
            let full = g.pointwise_over(slope, &operands, self.shape.clone())?;
            let summed = g.sum_to(full, &target)?;
            return g.cast(summed, dtype);
        };
        let full = g.pointwise_over(cut.inside, &operands, self.shape.clone())?;
        let sum = g.reduce(Reduction::Sum, full, &axes)?;
        let shape = g.shape(sum).clone();
        // Operands that the second expression does not read may be larger than it.
        operands.push(sum);
        let scaled = g.pointwise_over(cut.outside, &operands, shape)?;
        let scaled = g.reshape(scaled, target)?;
        g.cast(scaled, dtype)
    }
}

/// Whether slopes may be computed from a stored result. Rounding to 16 bits is acceptable for smooth slopes; but
/// detecting whether a maximum or minimum selected the constant requires a type that represents it exactly.
fn is_faithful(expr: &Expr, dtype: DType) -> bool {
    let held = |term: u16| match expr.terms()[term as usize] {
        Term::Const(bits) => dtype.stored(f64::from(f32::from_bits(bits))) == f64::from(f32::from_bits(bits)),
        _ => true,
    };
    let holds = |term: &Term| match *term {
        Term::Binary(Binary::Max | Binary::Min, a, b) => held(a) && held(b),
        _ => true,
    };
    dtype.is_float() && (!dtype.is_half() || expr.terms().iter().all(holds))
}

/// Checks that every input of the expression exists and broadcasts to the shape.
pub(super) fn check_inputs(expr: &Expr, shape: &Shape, inputs: &[&TensorType]) -> Result<(), String> {
    if expr.arity() > inputs.len() {
        return Err(format!("reads {} tensors, but got {}", expr.arity(), inputs.len()));
    }
    if let Some(input) = inputs.iter().find(|input| !input.shape.broadcasts_to(shape)) {
        return Err(format!("shapes {} and {shape} do not go together", input.shape));
    }
    check_positions(expr, shape)
}

/// Coordinates must not depend on how a batch is split into micro-batches.
fn check_positions(expr: &Expr, shape: &Shape) -> Result<(), String> {
    let batch = shape.dims().iter().position(|dim| dim.is_batch());
    for term in expr.terms() {
        match *term {
            Term::Coordinate(axis) if axis as usize >= shape.rank() => return Err(format!("asks for axis {axis} of the shape {shape}")),
            Term::Coordinate(axis) if batch == Some(axis as usize) => {
                return Err(format!("asks for the row's number in {shape}, which changes when the batch is cut into pieces"));
            }
            Term::Random(_) if batch.is_some_and(|axis| axis > 0) => {
                return Err(format!("draws random numbers over {shape}; the batch must come first, so that pieces of it draw the same"));
            }
            _ => {}
        }
    }
    Ok(())
}
