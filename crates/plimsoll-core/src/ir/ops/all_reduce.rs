//! Collectives of data-parallel training: sums over the ranks of a job.

use crate::DType;
use crate::base::shape::{Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules};
use crate::ir::rules::{Precision, RowContext, RowRule};
use std::num::NonZeroU32;

/// The element-wise sums of some tensors over all ranks, with the same bits on every rank.
///
/// Ranks have to run their collectives in the same order. Each collective therefore returns a token, a scalar with the
/// number of collectives so far, which the next one reads as its last input: their order is part of the data flow, so
/// that no pass can change it and the checker verifies it.
///
/// Its gradient is a sum over all ranks as well: the loss of every rank depends on the tensors of all.
///
/// A collective is run once per step, never recomputed. Devices read all inputs before they write an output.
///
/// With `order`, it adds in the order of a [`PairwiseTree`](crate::pairwise::PairwiseTree), of which each rank has one
/// node. Its input behind the tensors is the number of micro-batches that the batch has, and ranks that have none of
/// them are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllReduce {
    /// The number of ranks.
    pub ranks: u32,
    /// Whether another collective precedes it, whose token is the last input.
    pub has_token: bool,
    /// The micro-batches of a whole batch, if sums are in the order of their tree; otherwise in any order.
    pub order: Option<NonZeroU32>,
}

impl AllReduce {
    /// The inputs that are summed.
    pub fn tensors(self, inputs: usize) -> usize {
        inputs - usize::from(self.has_token) - usize::from(self.order.is_some())
    }

    /// The tensors that are summed, the number of micro-batches of the batch, and the token of the previous collective.
    pub fn operands<T>(self, inputs: &[T]) -> (&[T], Option<&T>, Option<&T>) {
        let (tensors, rest) = inputs.split_at(self.tensors(inputs.len()));
        let (present, token) = rest.split_at(usize::from(self.order.is_some()));
        (tensors, present.first(), token.first())
    }
}

impl OpRules for AllReduce {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        let order = self.order.map_or(String::new(), |micro_batches| format!(" in the order of {micro_batches} micro-batches"));
        format!("ranks={}{order}", self.ranks)
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let token = TensorType::f32(Shape::scalar());
        let tensors = match inputs.split_last() {
            Some((last, tensors)) if self.has_token => {
                if **last != token {
                    return Err(format!("its last input is the token of the previous collective, not {last}"));
                }
                tensors
            }
            _ => inputs,
        };
        let tensors = match tensors.split_last() {
            Some((last, tensors)) if self.order.is_some() => {
                if **last != token {
                    return Err(format!("its input behind the tensors is the number of micro-batches of the batch, not {last}"));
                }
                tensors
            }
            _ => tensors,
        };
        if tensors.is_empty() {
            return Err("takes one or more tensors".to_string());
        }
        if self.ranks == 0 {
            return Err("sums over one or more ranks, not 0".to_string());
        }
        if let Some(other) = tensors.iter().find(|ty| ty.dtype != DType::F32) {
            return Err(format!("sums in single precision, but got {other}; cast it first"));
        }
        // Ranks may have different numbers of rows.
        if let Some(rows) = tensors.iter().find(|ty| ty.shape.has_batch()) {
            return Err(format!("sums tensors without rows of the batch, but got {rows}; reduce it first"));
        }
        Ok(tensors.iter().map(|ty| (*ty).clone()).chain([token]).collect())
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        if self.order.is_some() {
            return Err(adjoint.graph.error("a sum over ranks in order has no gradient: it is one of complete gradients"));
        }
        // Every rank's loss depends on every rank's tensor: the gradient is a sum over ranks too, after all before it.
        let count = self.tensors(adjoint.inputs.len());
        let mut inputs = (0..count).map(|i| adjoint.output_gradient(i)).collect::<Result<Vec<_>, _>>()?;
        let g = &mut *adjoint.graph;
        for gradient in &mut inputs {
            *gradient = g.cast(*gradient, DType::F32)?;
        }
        inputs.extend(g.collective_token());
        let sums = g.add(Op::AllReduce(AllReduce { ranks: self.ranks, has_token: true, order: None }), &inputs)?;
        let no_gradient_of_token = std::iter::repeat_n(None, adjoint.inputs.len() - count);
        Ok(sums[..count].iter().copied().map(Some).chain(no_gradient_of_token).collect())
    }

    /// The additions of one rank, if each adds its share of the elements.
    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        let tensors = &inputs[..self.tensors(inputs.len())];
        let elements: u64 = tensors.iter().map(|ty| ty.shape.elements().bind(rows) as u64).sum();
        elements * u64::from(self.ranks - 1) / u64::from(self.ranks)
    }

    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }
}
