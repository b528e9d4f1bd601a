//! A slice of the batch.

use crate::base::shape::TensorType;
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{OpRules, expect};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// The part of a tensor that belongs to rows `from..to` of the batch, which is its first axis or divides it; shorter or
/// empty if the batch ends earlier. Only the planner splits batches: elsewhere it would change the semantics of
/// micro-batches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchSlice {
    /// The first row.
    pub from: usize,
    /// End row, exclusive; `usize::MAX` for all remaining rows.
    pub to: usize,
}

impl OpRules for BatchSlice {
    fn name(&self) -> &'static str {
        "batch_slice"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        if self.to == usize::MAX { format!("{}..", self.from) } else { format!("{}..{}", self.from, self.to) }
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = expect(inputs)?;
        match x.shape.dims().first() {
            Some(first) if first.is_batch() && first.part().is_none() && self.from < self.to => {
                Ok(vec![TensorType::new(x.dtype, x.shape.with(0, first.rows(self.from, self.to)))])
            }
            _ => Err(format!("cannot take the rows {} of {}", self.attributes(), x.shape)),
        }
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("gradients are taken before batches are cut"))
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }
}
