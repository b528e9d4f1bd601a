//! Matrix product.

use super::pointwise::check_inputs;
use crate::DType;
use crate::base::expr::Expr;
use crate::base::shape::{Dim, Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules, expect_real, expect_real_result};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// `A·B` of two matrices, each optionally transposed, with an optional fused epilogue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MatMul {
    /// Read `A` transposed.
    pub transpose_a: bool,
    /// Read `B` transposed.
    pub transpose_b: bool,
    /// Applied to the product (its input 0) and any further inputs, which broadcast to the product's shape.
    pub epilogue: Option<Expr>,
    /// Accumulates onto a third input, of the result's type, instead of zero: the sum of the earlier rows of a split,
    /// or of earlier micro-batches. Never with an epilogue. The planner sets it where
    /// [`Device::can_split_rows`](crate::plan::Target::can_split_rows) says that the result is bit-identical.
    pub onto: bool,
    /// Element type of the result. Accumulation is always in single precision.
    pub dtype: DType,
}

impl MatMul {
    /// The dimensions m, n and k, or why the matrices are incompatible.
    pub fn dims(&self, a: &Shape, b: &Shape) -> Result<(Dim, Dim, Dim), String> {
        let (&[a0, a1], &[b0, b1]) = (a.dims(), b.dims()) else {
            return Err(format!("multiplies matrices, but got the shapes {a} and {b}"));
        };
        let (m, k) = if self.transpose_a { (a1, a0) } else { (a0, a1) };
        let (inner, n) = if self.transpose_b { (b1, b0) } else { (b0, b1) };
        if k != inner {
            return Err(format!("shapes {a} and {b} do not go together: {k} columns meet {inner} rows"));
        }
        Ok((m, n, k))
    }
}

impl OpRules for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn precision(&self) -> Precision {
        Precision::Product
    }

    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule> {
        if self.transpose_a {
            let sums = rows.input(0) && rows.input(1) && !self.transpose_b && self.epilogue.is_none();
            return sums.then_some(RowRule::Sum);
        }
        if self.onto {
            return None;
        }
        (rows.input(0) && rows.is_fixed(1) && rows.aligned(rows.result(), 2)).then_some(RowRule::Independent)
    }

    fn with_rows(&self, _: &dyn Fn(&Shape) -> Shape, onto: bool) -> Option<Op> {
        Some(Op::MatMul(MatMul { onto, ..self.clone() }))
    }

    fn attributes(&self) -> String {
        let mut parts = Vec::new();
        if self.transpose_a {
            parts.push("aᵀ".to_string());
        }
        if self.transpose_b {
            parts.push("bᵀ".to_string());
        }
        if self.onto {
            parts.push("onto c".to_string());
        }
        if let Some(expr) = &self.epilogue {
            parts.push(format!("then {expr}"));
        }
        parts.join(", ")
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [a, b, rest @ ..] = inputs else {
            return Err(format!("multiplies two matrices, but got {} tensors", inputs.len()));
        };
        expect_real(&inputs[..2])?;
        expect_real_result(self.dtype)?;
        let (m, n, _) = self.dims(&a.shape, &b.shape)?;
        let shape = Shape::new([m, n]);
        let result = TensorType::new(self.dtype, shape);
        match rest {
            [before] if self.onto && self.epilogue.is_none() && **before == result && self.dtype == DType::F32 => {}
            _ if self.onto => {
                return Err(format!("accumulates onto one sum of the type {}, and has no epilogue", TensorType::f32(result.shape)));
            }
            _ => check_epilogue(self.epilogue.as_ref(), &result.shape, rest)?,
        }
        Ok(vec![result])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        assert!(self.epilogue.is_none() && !self.onto, "gradients are taken before expressions are fused into products");
        let (a, b, dy) = (adjoint.inputs[0], adjoint.inputs[1], adjoint.output_gradient(0)?);
        let (ta, tb) = (self.transpose_a, self.transpose_b);
        let (a_type, b_type) = (adjoint.graph.ty(a).dtype, adjoint.graph.ty(b).dtype);
        let mut product = |transpose_a, transpose_b, x, y, dtype| {
            adjoint.graph.add_one(Op::MatMul(MatMul { transpose_a, transpose_b, dtype, ..MatMul::default() }), &[x, y])
        };
        // The weight gradient comes first: it reads the saved activation, which can then be freed.
        let db = match (ta, tb) {
            _ if !adjoint.wants[1] => None,
            (_, false) => Some(product(!ta, false, a, dy, b_type)?),
            (_, true) => Some(product(true, ta, dy, a, b_type)?),
        };
        let da = match (ta, tb) {
            _ if !adjoint.wants[0] => None,
            (false, _) => Some(product(false, !tb, dy, b, a_type)?),
            (true, _) => Some(product(tb, true, b, dy, a_type)?),
        };
        Ok(vec![da, db])
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        let (m, n, k) = self.dims(&inputs[0].shape, &inputs[1].shape).expect("checked when the node was added");
        let (m, n, k) = (m.bind(rows) as u64, n.bind(rows) as u64, k.bind(rows) as u64);
        m.saturating_mul(n).saturating_mul(k.saturating_mul(2).saturating_add(self.epilogue.as_ref().map_or(0, Expr::flops)))
    }

    /// The accumulator may be updated in place.
    fn in_place(&self, input: usize, _: usize) -> bool {
        self.onto && input == 2
    }
}

/// Checks that all further inputs of an epilogue exist and broadcast to the result's shape.
pub(super) fn check_epilogue(epilogue: Option<&Expr>, shape: &Shape, rest: &[&TensorType]) -> Result<(), String> {
    let product = TensorType::f32(shape.clone());
    let inputs: Vec<&TensorType> = std::iter::once(&product).chain(rest.iter().copied()).collect();
    match epilogue {
        Some(expr) if expr.roots().len() != 1 => Err("an epilogue has one result".to_string()),
        Some(expr) if expr.is_positional() => Err("an epilogue cannot ask where an element stands".to_string()),
        Some(expr) => check_inputs(expr, shape, &inputs),
        None if rest.is_empty() => Ok(()),
        None => Err(format!("has {} inputs too many", rest.len())),
    }
}
