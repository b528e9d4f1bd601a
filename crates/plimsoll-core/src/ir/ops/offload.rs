//! Copies between device memory and the backing store. The planner inserts them; results are bit-identical.

use crate::base::shape::TensorType;
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{OpRules, expect};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Copies a tensor to the backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Store;

/// Copies a tensor from the backing store into the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Load;

/// Gradients are taken before the planner inserts copies.
const LATE: &str = "a copy to or from the backing store has no gradient: the planner writes it when all gradients are there";

impl OpRules for Store {
    fn name(&self) -> &'static str {
        "store"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = expect(inputs)?;
        Ok(vec![x.clone()])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error(LATE))
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }
}

impl OpRules for Load {
    fn name(&self) -> &'static str {
        "load"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = expect(inputs)?;
        Ok(vec![x.clone()])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error(LATE))
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }
}
