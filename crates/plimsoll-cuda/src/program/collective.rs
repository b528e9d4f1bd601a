//! Sums over the ranks of a job.

use super::StreamOp;
use super::address::{Address, Addresses};
use super::lower::Lowering;
use crate::kernels::{self, Argument, Kernel};
use crate::libraries::nccl::Operands;
use crate::runtime::state::DeviceState;
use cudarc::driver::sys;
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::{AllGather, AllReduce, ReduceScatter};
use plimsoll_core::{Bytes, Op, ValueId};
use std::ops::Range;

/// Alignment of what is in the workspace.
pub(super) const ALIGNMENT: u64 = 256;

/// A sum of some tensors over all ranks.
pub(super) struct AllReduceOp {
    op: AllReduce,
    /// The number of collectives up to this one.
    number: u32,
    /// Kernels before and after it that tell all ranks of a loss that is not finite: the states of none of them change
    /// then. With the first collective that runs when the loss is known.
    alarm: Option<[Kernel; 2]>,
}

/// The same with addresses.
pub(super) struct AllReduceCall {
    pub tensors: Vec<Tensor>,
    /// Where all tensors are put behind each other, if an output is where another tensor is read.
    packed: Option<Address>,
    token: (Address, u32),
}

/// A tensor that is summed.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    from: Address,
    to: Address,
    count: usize,
}

/// The workspace of a sum: all of its tensors, and the number that tells of a loss.
pub(super) fn workspace(op: AllReduce, graph: &Graph, node: &Node) -> u64 {
    packed_bytes(op, graph, node) + ALIGNMENT
}

fn packed_bytes(op: AllReduce, graph: &Graph, node: &Node) -> u64 {
    match &node.inputs[..op.tensors(node.inputs.len())] {
        [_] => 0,
        tensors => tensors.iter().map(|value| graph.ty(*value).bytes(1).0).sum::<u64>().next_multiple_of(ALIGNMENT),
    }
}

/// The number of collectives up to a node, which is one.
pub(super) fn number(graph: &Graph, node: &Node) -> u32 {
    let (mut number, mut last) = (1, node);
    while let Op::AllReduce(AllReduce { has_token: true, .. })
    | Op::ReduceScatter(ReduceScatter { has_token: true, .. })
    | Op::AllGather(AllGather { has_token: true, .. }) = last.op
    {
        last = graph.producer(*last.inputs.last().expect("its token"));
        number += 1;
    }
    number
}

/// The ranks that a node exchanges numbers with, this one included, or takes a part of.
fn ranks_of(op: &Op) -> Option<u32> {
    match op {
        Op::AllReduce(op) => Some(op.ranks),
        Op::ReduceScatter(op) => Some(op.ranks),
        Op::Shard(op) => Some(op.ranks),
        Op::AllGather(op) => Some(op.ranks),
        _ => None,
    }
}

impl AllReduceOp {
    /// `alarms` means that it tells other ranks of a loss that is not finite.
    pub fn new(op: AllReduce, node: &Node, lowering: &Lowering<'_>, alarms: bool) -> AllReduceOp {
        let graph = &lowering.program.graph;
        let number = number(graph, node);
        let cell = Argument::WorkspaceAt(packed_bytes(op, graph, node) as usize);
        AllReduceOp { op, number, alarm: alarms.then(|| kernels::alarm_of_ranks(cell)) }
    }

    /// The kernels around the call, before and after it.
    pub fn kernels(self) -> (AllReduceOp, Option<[Kernel; 2]>) {
        let AllReduceOp { op, number, alarm } = self;
        (AllReduceOp { op, number, alarm: None }, alarm)
    }

    /// The addresses of its operands. `alarms` means that kernels of [`kernels`](AllReduceOp::kernels) run around it.
    pub fn resolve(
        &self,
        addresses: &Addresses<'_>,
        (inputs, outputs): (&[ValueId], &[ValueId]),
        workspace: Bytes,
        alarms: bool,
    ) -> Result<AllReduceCall, String> {
        let graph = &addresses.lowering.program.graph;
        let at = |argument| addresses.argument(argument, inputs, outputs, workspace);
        let tensor = |i: usize| -> Result<Tensor, String> {
            let count = graph.shape(inputs[i]).elements().bind(1);
            Ok(Tensor { from: at(Argument::Input(i))?, to: at(Argument::Output(i))?, count })
        };
        let mut tensors = (0..self.op.tensors(inputs.len())).map(tensor).collect::<Result<Vec<_>, _>>()?;
        let bytes: u64 = if tensors.len() == 1 { 0 } else { tensors.iter().map(|tensor| 4 * tensor.count as u64).sum() };
        let packed = overlap(&tensors)?.then(|| at(Argument::Workspace)).transpose()?;
        if alarms {
            let cell = at(Argument::WorkspaceAt(bytes.next_multiple_of(ALIGNMENT) as usize))?;
            tensors.push(Tensor { from: cell, to: cell, count: 1 });
        }
        let token = at(Argument::Output(self.op.tensors(inputs.len())))?;
        Ok(AllReduceCall { tensors, packed, token: (token, self.number) })
    }
}

/// Whether an output is in memory that another tensor is read from.
fn overlap(tensors: &[Tensor]) -> Result<bool, String> {
    let range = |address: Address, count: usize| -> Result<Range<u64>, String> {
        match address {
            Address::Fixed(start) => Ok(start..start + 4 * count as u64),
            _ => Err("sums over ranks, of which a program whose memory is given for every run has none".to_string()),
        }
    };
    for (i, output) in tensors.iter().enumerate() {
        let to = range(output.to, output.count)?;
        for (j, input) in tensors.iter().enumerate() {
            let from = range(input.from, input.count)?;
            let same = i == j && from == to;
            if !same && from.start < to.end && to.start < from.end {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

impl AllReduceCall {
    /// Enqueues it in the compute stream.
    ///
    /// # Errors
    /// If this process is not one of as many ranks as the plan is for, or another rank does not take part.
    ///
    /// # Safety
    /// The addresses are those of the program's plan, inside of memory that is valid until the stream has executed it.
    pub unsafe fn enqueue(&self, shared: &DeviceState, at: impl Fn(Address) -> u64) -> Result<(), String> {
        let failed = |error: cudarc::driver::DriverError| format!("copying within the GPU failed: {error:?}");
        let copy = |to: u64, from: u64, count: usize| {
            // SAFETY: both ranges are planned, and the workspace has the size of all tensors.
            unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, 4 * count, shared.compute.raw) }.result().map_err(failed)
        };
        let direct = self.tensors.iter().map(|tensor| Operands { from: at(tensor.from), to: at(tensor.to), count: tensor.count });
        let sum = |operands: &[Operands]| match &shared.exchange {
            // SAFETY: guaranteed by the caller; an output is its own input, or overlaps none.
            Some(exchange) => unsafe { exchange.all_reduce(operands, &shared.compute) },
            // A process that is alone has the sums already.
            None => operands.iter().filter(|one| one.from != one.to).try_for_each(|one| copy(one.to, one.from, one.count)),
        };
        match self.packed.map(&at) {
            // Outputs overlap no other inputs, as `resolve` found out.
            None => sum(&direct.collect::<Vec<_>>())?,
            Some(packed) => {
                let mut end = packed;
                for Operands { from, count, .. } in direct.clone() {
                    copy(end, from, count)?;
                    end += 4 * count as u64;
                }
                let all = Operands { from: packed, to: packed, count: ((end - packed) / 4) as usize };
                sum(&[all])?;
                end = packed;
                for Operands { to, count, .. } in direct {
                    copy(to, end, count)?;
                    end += 4 * count as u64;
                }
            }
        }
        let (token, number) = self.token;
        // SAFETY: the token is a planned number.
        unsafe { sys::cuMemsetD32Async(at(token), (number as f32).to_bits(), 1, shared.compute.raw) }.result().map_err(failed)
    }
}

/// Checks that a program is for the ranks that this process is one of.
pub(super) fn check_ranks(op: &Op, shared: &DeviceState) -> Result<(), String> {
    let Some(planned) = ranks_of(op) else { return Ok(()) };
    let ranks = shared.exchange.as_ref().map_or(1, |exchange| exchange.ranks());
    if planned as usize == ranks {
        return Ok(());
    }
    let does = if matches!(op, Op::AllReduce(_)) { "sums" } else { "divides tensors" };
    Err(format!(
        "{does} over {planned} ranks, but this process is one of {ranks}; plan for that number of ranks, or start as many processes"
    ))
}

impl From<AllReduceCall> for StreamOp {
    fn from(call: AllReduceCall) -> StreamOp {
        StreamOp::AllReduce(Box::new(call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_packed_where_an_output_is_another_input() {
        let tensor = |from: u64, to: u64| Tensor { from: Address::Fixed(from), to: Address::Fixed(to), count: 64 };
        for (tensors, packs) in [
            (vec![tensor(0, 0), tensor(256, 256)], false),
            (vec![tensor(0, 1024), tensor(256, 512)], false),
            (vec![tensor(0, 256), tensor(256, 512)], true),
            (vec![tensor(0, 0), tensor(256, 128)], true),
            (vec![tensor(0, 128)], true),
        ] {
            assert_eq!(overlap(&tensors).unwrap(), packs);
        }
        assert!(overlap(&[Tensor { from: Address::Slot(0), to: Address::Fixed(0), count: 1 }]).is_err());
    }
}
