//! Sums over the ranks of a job.

use super::instruction::{Bindings, F32Tensor};
use super::lower::Lowering;
use plimsoll_comm::{Group, Reduction, sum_in_order};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::AllReduce;
use plimsoll_core::pairwise::{PairwiseTree, RankPair};
use plimsoll_core::{Bytes, DeviceError};
use std::sync::Arc;

/// A sum of some tensors over all ranks, with its operands.
pub(super) struct AllReduceCall {
    inputs: Vec<F32Tensor>,
    outputs: Vec<F32Tensor>,
    /// The token of the previous collective, if there is one, and the one that is returned.
    before: Option<F32Tensor>,
    token: F32Tensor,
    /// Where several tensors are put behind each other, to be summed by one call; behind them, what another rank sends.
    workspace: F32Tensor,
    /// The order of the sums, if it is fixed.
    order: Option<Order>,
    group: Arc<dyn Group>,
}

/// The order in which ranks add their sums.
struct Order {
    /// The number of micro-batches of the batch.
    present: F32Tensor,
    pairs: Vec<RankPair>,
    root: usize,
}

/// Numbers that are received at a time, at most: as many as the buffer of a communicator holds.
const RECEIVED: usize = 1 << 18;

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
        let (tensors, present, before) = op.operands(&node.inputs);
        let (sums, token) = node.outputs.split_at(tensors.len());
        let order = op.order.zip(present).map(|(micro_batches, present)| {
            let tree = PairwiseTree::new(micro_batches.get());
            // Those that this rank takes part in.
            let (rank, root) = (group.rank() as u32, tree.root(op.ranks) as usize);
            let own = |pair: &RankPair| pair.left == rank || pair.right == rank;
            let pairs = tree.exchanges(op.ranks).into_iter().filter(own).collect();
            Ok::<_, String>(Order { present: lowering.floats(*present)?, pairs, root })
        });
        let floats = |values: &[_]| values.iter().map(|value| lowering.floats(*value)).collect::<Result<Vec<_>, _>>();
        let outputs = floats(sums)?;
        for output in outputs.iter().chain(&floats(token)?) {
            output.address.written()?;
        }
        Ok(AllReduceCall {
            inputs: floats(tensors)?,
            outputs,
            before: before.map(|before| lowering.floats(*before)).transpose()?,
            token: lowering.floats(token[0])?,
            workspace: lowering.workspace(node, workspace)?,
            order: order.transpose()?,
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
        // SAFETY: tensors of these sizes, which the caller vouches for. The workspace has the numbers of all of them
        // and those that are received, as `workspace_len` says. Copies may overlap, which `copy` allows. The token is
        // read before and written after all others, and no two slices overlap.
        unsafe {
            let count = self.before.map_or(0.0, |before| before.start(inputs).read());
            let (packed, received) = self.workspace.write(inputs).split_at_mut(packed_len(self.inputs.iter().map(|input| input.count)));
            match (&self.inputs[..], &self.outputs[..]) {
                ([input], [output]) => {
                    std::ptr::copy(input.start(inputs), output.start(inputs), input.count);
                    self.sum(output.write(inputs), received, inputs)?;
                }
                (tensors, sums) => {
                    let mut at = 0;
                    for tensor in tensors {
                        std::ptr::copy(tensor.start(inputs), packed[at..].as_mut_ptr(), tensor.count);
                        at += tensor.count;
                    }
                    self.sum(packed, received, inputs)?;
                    at = 0;
                    for sum in sums {
                        std::ptr::copy(packed[at..].as_ptr(), sum.start(inputs), sum.count);
                        at += sum.count;
                    }
                }
            }
            self.token.start(inputs).write(count + 1.0);
        }
        Ok(())
    }

    /// # Safety
    /// The number of micro-batches is valid in this run.
    unsafe fn sum(&self, numbers: &mut [f32], received: &mut [f32], inputs: &Bindings<'_>) -> Result<(), DeviceError> {
        let summed = match &self.order {
            None => self.group.all_reduce(numbers.into(), Reduction::Sum),
            Some(_) if self.group.size() == 1 => Ok(()),
            Some(Order { present, pairs, root }) => {
                // SAFETY: guaranteed by the caller.
                let present = unsafe { present.start(inputs).read() };
                // Ranks whose micro-batches a short batch does not have are left out.
                let pairs = pairs.iter().filter(|pair| (pair.from as f32) < present);
                let pairs = pairs.map(|pair| (pair.left as usize, pair.right as usize));
                let mut parts = numbers.chunks_mut(received.len().max(1));
                parts.try_for_each(|part| sum_in_order(&*self.group, part, received, pairs.clone(), *root))
            }
        };
        summed.map_err(|error| DeviceError::Failed { device: super::DEVICE.to_string(), what: error.to_string() })
    }
}

/// The numbers of the workspace of a sum of these sizes.
pub(super) fn workspace_len(op: AllReduce, sizes: &[usize]) -> usize {
    let received = if op.order.is_some() && op.ranks > 1 { sizes.iter().sum::<usize>().min(RECEIVED) } else { 0 };
    packed_len(sizes.iter().copied()) + received
}

/// How many of them are those of the tensors behind each other.
fn packed_len(sizes: impl ExactSizeIterator<Item = usize>) -> usize {
    if sizes.len() > 1 { sizes.sum() } else { 0 }
}
