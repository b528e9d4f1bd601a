//! Concatenation along an axis.

use super::Slice;
use crate::base::shape::TensorType;
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Concatenates the inputs along `axis`, which is the batch axis only in graphs that the planner split. Batch slices
/// are concatenated only if they are consecutive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Concat {
    /// The axis.
    pub axis: usize,
}

impl OpRules for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        format!("axis {}", self.axis)
    }

    fn infer(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [first, rest @ ..] = inputs else {
            return Err("needs at least one tensor".to_string());
        };
        if let Some((from, _)) = first.shape.dims().get(self.axis).and_then(|dim| dim.part()) {
            return self.infer_rows(inputs, from);
        }
        let extent = |ty: &TensorType| {
            let dim = ty.shape.dims().get(self.axis).and_then(|dim| graph.extent(*dim));
            dim.ok_or_else(|| format!("cannot join along axis {} of {}", self.axis, ty.shape))
        };
        let (mut total, unit) = extent(first)?;
        for ty in rest {
            let (own, _) = extent(ty)?;
            let rows = |ty: &TensorType| ty.shape.dims()[self.axis].is_batch();
            if ty.dtype != first.dtype
                || rows(ty) != rows(first)
                || ty.shape.with(self.axis, 1.into()) != first.shape.with(self.axis, 1.into())
            {
                return Err(format!("{first} and {ty} cannot be joined along axis {}", self.axis));
            }
            total += own;
        }
        Ok(vec![TensorType::new(first.dtype, first.shape.with(self.axis, unit(total)))])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let dy = adjoint.output_gradient(0)?;
        let mut start = 0;
        let mut gradients = Vec::new();
        for (input, wanted) in adjoint.inputs.iter().zip(&adjoint.wants) {
            let length = adjoint.graph.shape(*input).dims()[self.axis].factor();
            let op = Slice { axis: self.axis, start, length };
            gradients.push(wanted.then(|| adjoint.graph.add_one(Op::Slice(op), &[dy])).transpose()?);
            start += length;
        }
        Ok(gradients)
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }
}

impl Concat {
    /// Concatenates consecutive batch slices that start at row `from`.
    fn infer_rows(&self, inputs: &[&TensorType], from: usize) -> Result<Vec<TensorType>, String> {
        let (first, mut end) = (inputs[0], from);
        for ty in inputs {
            let dim = ty.shape.dims().get(self.axis).copied();
            match dim.and_then(|dim| Some((dim, dim.part()?))) {
                Some((dim, (start, to))) if start == end && ty.dtype == first.dtype => {
                    if ty.shape.with(self.axis, dim.rows(0, usize::MAX)) != first.shape.with(self.axis, dim.rows(0, usize::MAX)) {
                        return Err(format!("{first} and {ty} cannot be joined along axis {}", self.axis));
                    }
                    end = to;
                }
                _ => return Err(format!("{ty} does not continue at row {end} of the batch")),
            }
        }
        let dim = first.shape.dims()[self.axis].rows(from, end);
        Ok(vec![TensorType::new(first.dtype, first.shape.with(self.axis, dim))])
    }
}
