//! A slice of a tensor along one axis.

use super::Pad;
use crate::base::shape::TensorType;
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules, expect};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Elements `start … start + length` along `axis`. The axis is the batch axis only in graphs that the planner split;
/// both numbers are then multiples of the batch, like the extent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// The axis.
    pub axis: usize,
    /// The first element.
    pub start: usize,
    /// Number of elements.
    pub length: usize,
}

impl OpRules for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        format!("axis {}, {}..{}", self.axis, self.start, self.start.saturating_add(self.length))
    }

    fn infer(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = expect(inputs)?;
        match x.shape.dims().get(self.axis).and_then(|dim| graph.extent(*dim)) {
            Some((extent, unit)) if self.start.checked_add(self.length).is_some_and(|end| end <= extent) => {
                Ok(vec![TensorType::new(x.dtype, x.shape.with(self.axis, unit(self.length)))])
            }
            _ => Err(format!(
                "cannot take {}..{} along axis {} of {}",
                self.start,
                self.start.saturating_add(self.length),
                self.axis,
                x.shape
            )),
        }
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let dy = adjoint.output_gradient(0)?;
        let extent = adjoint.graph.shape(adjoint.inputs[0]).dims()[self.axis].factor();
        let op = Pad { axis: self.axis, before: self.start, after: extent - self.start - self.length };
        Ok(vec![Some(adjoint.graph.add_one(Op::Pad(op), &[dy])?)])
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }
}
