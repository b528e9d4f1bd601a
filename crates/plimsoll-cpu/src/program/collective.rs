//! Sums over the ranks of a job.

use super::instruction::{Bindings, F32Tensor};
use super::lower::Lowering;
use plimsoll_comm::{Group, Reduction};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::AllReduce;
use plimsoll_core::{Bytes, DeviceError};
use std::sync::Arc;

/// A sum of some tensors over all ranks, with its operands.
pub(super) struct AllReduceCall {
    inputs: Vec<F32Tensor>,
    outputs: Vec<F32Tensor>,
    /// The token of the previous collective, if there is one, and the one that is returned.
    before: Option<F32Tensor>,
    token: F32Tensor,
    /// Where several tensors are put behind each other, to be summed by one call.
    packed: F32Tensor,
    group: Arc<dyn Group>,
}

impl AllReduceCall {
    /// The operands of a node.
    ///
    /// # Errors
    /// If the group has other ranks than the plan, or an operand is not where the plan says.
    pub fn new(
        op: AllReduce,
        node: &Node,
        workspace: (Bytes, Bytes),
        lowering: &Lowering<'_>,
        group: &Arc<dyn Group>,
    ) -> Result<AllReduceCall, String> {
        if op.ranks as usize != group.size() {
            return Err(format!(
                "sums over {} ranks, but this process is one of {}; plan for that number of ranks, or start as many processes",
                op.ranks,
                group.size()
            ));
        }
        let (tensors, before) = node.inputs.split_at(op.tensors(node.inputs.len()));
        let (sums, token) = node.outputs.split_at(tensors.len());
        let floats = |values: &[_]| values.iter().map(|value| lowering.floats(*value)).collect::<Result<Vec<_>, _>>();
        let outputs = floats(sums)?;
        for output in outputs.iter().chain(&floats(token)?) {
            output.address.written()?;
        }
        Ok(AllReduceCall {
            inputs: floats(tensors)?,
            outputs,
            before: before.first().map(|before| lowering.floats(*before)).transpose()?,
            token: lowering.floats(token[0])?,
            packed: lowering.workspace(node, workspace)?,
            group: Arc::clone(group),
        })
    }

    /// Sums the tensors of all ranks, which call this at the same time.
    ///
    /// # Errors
    /// If another rank does not take part.
    ///
    /// # Safety
    /// The operands are valid in this run and exclusive, and alias only as the op allows: an output may be the input of
    /// the same number.
    pub unsafe fn run(&self, inputs: &Bindings<'_>) -> Result<(), DeviceError> {
        // SAFETY: tensors of these sizes, which the caller vouches for. `packed` has the numbers of all of them, as
        // `workspace_len` says. Copies may overlap, which `copy` allows. The token is read before and written after all
        // others, and no two slices exist at the same time.
        unsafe {
            let count = self.before.map_or(0.0, |before| before.start(inputs).read());
            match (&self.inputs[..], &self.outputs[..]) {
                ([input], [output]) => {
                    std::ptr::copy(input.start(inputs), output.start(inputs), input.count);
                    self.sum(output.write(inputs))?;
                }
                (tensors, sums) => {
                    let mut at = 0;
                    for tensor in tensors {
                        std::ptr::copy(tensor.start(inputs), self.packed.start(inputs).add(at), tensor.count);
                        at += tensor.count;
                    }
                    self.sum(self.packed.write(inputs))?;
                    at = 0;
                    for sum in sums {
                        std::ptr::copy(self.packed.start(inputs).add(at), sum.start(inputs), sum.count);
                        at += sum.count;
                    }
                }
            }
            self.token.start(inputs).write(count + 1.0);
        }
        Ok(())
    }

    fn sum(&self, numbers: &mut [f32]) -> Result<(), DeviceError> {
        let summed = self.group.all_reduce(numbers.into(), Reduction::Sum);
        summed.map_err(|error| DeviceError::Failed { device: super::DEVICE.to_string(), what: error.to_string() })
    }
}

/// The numbers of the workspace of a sum of these sizes.
pub(super) fn workspace_len(sizes: &[usize]) -> usize {
    if sizes.len() > 1 { sizes.iter().sum() } else { 0 }
}
