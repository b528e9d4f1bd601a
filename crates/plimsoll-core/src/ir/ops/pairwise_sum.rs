//! Partial sums over the micro-batches of a batch, in the order of a fixed tree.

use crate::DType;
use crate::base::pairwise::PairwiseTree;
use crate::base::shape::{Dim, Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{OpRules, expect};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Adds a micro-batch's tensor to the partial sums of its batch, in the order of a [`PairwiseTree`].
///
/// Its inputs are the tensor, the partial sums `[levels, …]` as a stack, how many of them are held, and to how many of
/// these, the latest first, the tensor is added: two scalars from the host, see
/// [`PairwisePlace`](crate::pairwise::PairwisePlace). The sum is held behind those that are left. With `last`, the
/// result is the sum alone.
///
/// Numbers beyond the stack are taken as its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PairwiseSum {
    /// Whether the sum is the result, instead of the partial sums.
    pub last: bool,
}

impl PairwiseSum {
    /// The partial sums that the micro-batches of a tree need of a tensor.
    pub fn stack(tree: PairwiseTree, tensor: &Shape) -> TensorType {
        let levels = Dim::fixed(tree.levels().max(1) as usize);
        TensorType::f32(Shape::new([levels].into_iter().chain(tensor.dims().iter().copied())))
    }

    /// The first partial sum that is added to the tensor, and the number of those that are held, for scalars from the
    /// host.
    pub fn range(levels: usize, before: f32, merged: f32) -> (usize, usize) {
        // NaN and negative numbers become zero.
        let before = (before as usize).min(levels);
        (before - (merged as usize).min(before), before)
    }
}

impl OpRules for PairwiseSum {
    fn name(&self) -> &'static str {
        "pairwise_sum"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        if self.last { "last".to_string() } else { String::new() }
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [tensor, sums, before, merged] = expect(inputs)?;
        if tensor.dtype != DType::F32 || tensor.shape.has_batch() {
            return Err(format!("sums single precision without rows of the batch, but got {tensor}; reduce or cast it first"));
        }
        let fits = match sums.shape.dims() {
            [levels, rest @ ..] => sums.dtype == DType::F32 && !levels.is_batch() && levels.factor() > 0 && rest == tensor.shape.dims(),
            [] => false,
        };
        if !fits {
            return Err(format!("partial sums of {tensor} have one dimension more, in front of its own, unlike {sums}"));
        }
        let scalar = TensorType::f32(Shape::scalar());
        if let Some(other) = [before, merged].into_iter().find(|ty| **ty != scalar) {
            return Err(format!("the numbers of partial sums are scalars, not {other}"));
        }
        Ok(vec![if self.last { tensor.clone() } else { sums.clone() }])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("partial sums over micro-batches have no gradient: they are sums of complete gradients"))
    }

    /// The most additions of any micro-batch, of which there are half as many as micro-batches: one on average.
    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        inputs[0].shape.elements().bind(rows) as u64
    }

    /// The sum takes the place of the tensor, new partial sums that of the others.
    fn in_place(&self, input: usize, _: usize) -> bool {
        input == usize::from(!self.last)
    }
}
