//! Copies between a device's memory and its backing store. The planner writes them; they change no bit.

use crate::base::shape::TensorType;
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{OpRules, expect};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Puts a tensor into the backing store. Its result is the same tensor, there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Store;

/// Brings a tensor back from the backing store. Its result is the same tensor, in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Load;

/// Gradients are written before the planner moves anything.
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
