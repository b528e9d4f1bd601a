//! Reshape: the same elements under another shape, without a copy.

use crate::base::shape::{Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules, expect};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// The same elements, in the same order, under another shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reshape {
    /// The new shape.
    pub shape: Shape,
}

impl OpRules for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule> {
        (rows.are_split(&self.shape) && rows.input(0)).then_some(RowRule::Independent)
    }

    fn with_rows(&self, part: &dyn Fn(&Shape) -> Shape, _: bool) -> Option<Op> {
        Some(Op::Reshape(Reshape { shape: part(&self.shape) }))
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = expect(inputs)?;
        if x.shape.elements() != self.shape.elements() {
            let (have, want) = (x.shape.elements(), self.shape.elements());
            return Err(format!("{} has {have} elements and cannot become {}, which has {want}", x.shape, self.shape));
        }
        Ok(vec![TensorType::new(x.dtype, self.shape.clone())])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let dy = adjoint.output_gradient(0)?;
        let shape = adjoint.graph.shape(adjoint.inputs[0]).clone();
        Ok(vec![Some(adjoint.graph.add_one(Op::Reshape(Reshape { shape }), &[dy])?)])
    }

    fn flops(&self, _: &[&TensorType], _: &[&TensorType], _: usize) -> u64 {
        0
    }

    fn is_view(&self) -> bool {
        true
    }
}
