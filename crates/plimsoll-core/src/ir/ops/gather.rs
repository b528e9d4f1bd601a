//! Embedding lookup: rows of a table by index, and its gradient.

use crate::DType;
use crate::base::shape::{Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules, expect, expect_real};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Gathers rows of a table `[n, c…]` by indices of any shape `s`; the result has shape `s + [c…]`.
///
/// An out-of-range index yields zeros on every device: nothing outside of the table is read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// The element type of the rows.
    pub dtype: DType,
}

/// Scatter-add: adds rows `s + [c…]` to a zero-initialized table at indices of shape `s`, in their order.
///
/// Out-of-range indices are ignored on every device: nothing outside of the table is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScatterAdd {
    /// The table's shape `[n, c…]`.
    pub table: Shape,
    /// Accumulates onto a third input, of the result's type, instead of zero: the sum of earlier micro-batches.
    pub onto: bool,
}

/// The shape of a row, or why the shape is not a table.
fn row(table: &Shape) -> Result<Shape, String> {
    match table.dims() {
        [_, rest @ ..] if !table.has_batch() => Ok(Shape::new(rest.iter().copied())),
        _ => Err(format!("takes a table [rows, …] that does not depend on the batch, but got the shape {table}")),
    }
}

fn expect_whole(indices: &TensorType) -> Result<(), String> {
    match indices.dtype {
        DType::I32 | DType::U8 => Ok(()),
        _ => Err(format!("takes row numbers in i32 or u8, but got {indices}; cast them first")),
    }
}

fn rows_of(indices: &Shape, table: &Shape) -> Result<Shape, String> {
    Ok(Shape::new(indices.dims().iter().copied().chain(row(table)?.dims().iter().copied())))
}

impl OpRules for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn precision(&self) -> Precision {
        Precision::Product
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [table, indices] = expect(inputs)?;
        expect_real(&inputs[..1])?;
        expect_whole(indices)?;
        if !self.dtype.is_float() {
            return Err(format!("gives real numbers, but is asked for {}", self.dtype));
        }
        Ok(vec![TensorType::new(self.dtype, rows_of(&indices.shape, &table.shape)?)])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let (table, indices, dy) = (adjoint.inputs[0], adjoint.inputs[1], adjoint.output_gradient(0)?);
        let g = &mut *adjoint.graph;
        let ty = g.ty(table).clone();
        let sum = g.add_one(Op::ScatterAdd(ScatterAdd { table: ty.shape, onto: false }), &[indices, dy])?;
        Ok(vec![Some(g.cast(sum, ty.dtype)?), None])
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }
}

impl OpRules for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn precision(&self) -> Precision {
        Precision::Statistic
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn with_rows(&self, _: &dyn Fn(&Shape) -> Shape, onto: bool) -> Option<Op> {
        Some(Op::ScatterAdd(ScatterAdd { onto, ..self.clone() }))
    }

    fn attributes(&self) -> String {
        if self.onto { "onto the last".to_string() } else { String::new() }
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let result = TensorType::f32(self.table.clone());
        let inputs = match inputs {
            [inputs @ .., before] if self.onto && **before == result => inputs,
            _ if self.onto => return Err(format!("accumulates onto a sum of the type {result}, which is its last input")),
            _ => inputs,
        };
        let [indices, dy] = expect(inputs)?;
        expect_whole(indices)?;
        expect_real(&inputs[1..2])?;
        if dy.shape != rows_of(&indices.shape, &self.table)? {
            return Err(format!("rows {} at {} do not belong to a table of {}", dy.shape, indices.shape, self.table));
        }
        Ok(vec![result])
    }

    /// Linear: its gradient is a gather.
    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        assert!(!self.onto, "gradients are taken before they are accumulated");
        let (indices, dy, table) = (adjoint.inputs[0], adjoint.inputs[1], adjoint.output_gradient(0)?);
        let dtype = adjoint.graph.ty(dy).dtype;
        Ok(vec![None, Some(adjoint.graph.add_one(Op::Gather(Gather { dtype }), &[table, indices])?)])
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        inputs[1].shape.elements().bind(rows) as u64
    }

    /// The accumulator may be updated in place.
    fn in_place(&self, input: usize, _: usize) -> bool {
        self.onto && input == 2
    }
}
