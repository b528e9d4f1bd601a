//! Partial sums over micro-batches, as an instruction.

use super::instruction::{Bindings, F32Tensor};
use super::lower::Lowering;
use crate::kernels::pairwise::PartialSums;
use crate::runtime::threads::ThreadPool;
use plimsoll_core::graph::Node;
use plimsoll_core::ops::PairwiseSum;

/// The operands of a node.
pub(super) struct PairwiseSumCall {
    tensor: F32Tensor,
    sums: F32Tensor,
    /// How many partial sums are held, and to how many the tensor is added.
    held: F32Tensor,
    merged: F32Tensor,
    output: F32Tensor,
    last: bool,
}

impl PairwiseSumCall {
    pub fn new(op: PairwiseSum, node: &Node, lowering: &Lowering<'_>) -> Result<PairwiseSumCall, String> {
        let operand = |i: usize| lowering.floats(node.inputs[i]);
        let output = lowering.floats(node.outputs[0])?;
        output.address.written()?;
        Ok(PairwiseSumCall { tensor: operand(0)?, sums: operand(1)?, held: operand(2)?, merged: operand(3)?, output, last: op.last })
    }

    /// # Safety
    /// The operands are valid in this run and exclusive, and alias only as the op allows.
    pub unsafe fn run(&self, pool: &ThreadPool, inputs: &Bindings<'_>) {
        let count = self.tensor.count;
        let levels = self.sums.count.checked_div(count).unwrap_or(0);
        // SAFETY: scalars of one element, and tensors of these sizes, which the caller vouches for.
        unsafe {
            let (kept, held) = PairwiseSum::range(levels, self.held.start(inputs).read(), self.merged.start(inputs).read());
            let sums = PartialSums {
                tensor: self.tensor.start(inputs),
                sums: self.sums.start(inputs),
                output: self.output.start(inputs),
                count,
                levels,
            };
            sums.add(pool, kept..held, self.last);
        }
    }
}
