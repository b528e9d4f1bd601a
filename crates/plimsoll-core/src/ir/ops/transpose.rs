//! Permutation of axes.

use crate::base::shape::{Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules, expect};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Output axis `i` is input axis `order[i]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transpose {
    /// The input axis of each output axis.
    pub order: Vec<usize>,
}

impl OpRules for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        format!("{:?}", self.order)
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = expect(inputs)?;
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        if sorted != (0..x.shape.rank()).collect::<Vec<_>>() {
            return Err(format!("{:?} is not an order of the axes of {}", self.order, x.shape));
        }
        Ok(vec![TensorType::new(x.dtype, Shape::new(self.order.iter().map(|axis| x.shape.dims()[*axis])))])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let dy = adjoint.output_gradient(0)?;
        let mut order = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(to, from)| order[*from] = to);
        Ok(vec![Some(adjoint.graph.add_one(Op::Transpose(Transpose { order }), &[dy])?)])
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }
}
