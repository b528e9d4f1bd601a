//! A strided view of some channels of a tensor.

use crate::base::shape::TensorType;
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{OpRules, expect};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Elements `start … start + length` along the last axis, like [`Slice`](super::Slice) but without a copy: rows have
/// the stride of the base tensor. Only pointwise ops and reductions along other axes read it
/// ([`Capabilities::reads_channel_views`](crate::plan::Capabilities::reads_channel_views)). Only the planner creates
/// this op, for concat inputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChannelView {
    /// The first element.
    pub start: usize,
    /// Number of elements.
    pub length: usize,
}

impl OpRules for ChannelView {
    fn name(&self) -> &'static str {
        "channel_view"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        format!("{}..{}", self.start, self.start + self.length)
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = expect(inputs)?;
        match x.shape.last().and_then(|dim| dim.as_fixed()) {
            Some(extent) if self.start.checked_add(self.length).is_some_and(|end| end <= extent) => {
                Ok(vec![TensorType::new(x.dtype, x.shape.with(x.shape.rank() - 1, self.length.into()))])
            }
            _ => Err(format!("cannot read {} along the last axis of {}", self.attributes(), x.shape)),
        }
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("gradients are taken before the planner adds channel views"))
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }

    fn is_view(&self) -> bool {
        true
    }
}
