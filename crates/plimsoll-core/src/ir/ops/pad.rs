//! Zero padding along one axis.

use super::Slice;
use crate::base::shape::TensorType;
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules, expect};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Pads with `before` and `after` zeros along `axis`, which is not the batch axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pad {
    /// The axis.
    pub axis: usize,
    /// Zeros before the tensor.
    pub before: usize,
    /// Zeros after the tensor.
    pub after: usize,
}

impl OpRules for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        format!("axis {}, {}+{}", self.axis, self.before, self.after)
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = expect(inputs)?;
        match x.shape.dims().get(self.axis).and_then(|dim| dim.as_fixed()) {
            Some(extent) => Ok(vec![TensorType::new(
                x.dtype,
                x.shape.with(self.axis, extent.saturating_add(self.before).saturating_add(self.after).into()),
            )]),
            None => Err(format!("cannot pad axis {} of {}", self.axis, x.shape)),
        }
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let dy = adjoint.output_gradient(0)?;
        let length = adjoint.graph.shape(adjoint.inputs[0]).dims()[self.axis].factor();
        let op = Slice { axis: self.axis, start: self.before, length };
        Ok(vec![Some(adjoint.graph.add_one(Op::Slice(op), &[dy])?)])
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }
}
