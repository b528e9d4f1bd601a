//! Collectives of tensors that are divided over the ranks of a job, and a rank's part of one.

use super::StreamOp;
use super::address::{Address, Addresses};
use super::collective::{ALIGNMENT, number};
use super::lower::Lowering;
use crate::kernels::{self, Argument, Kernel};
use crate::libraries::nccl::Operands;
use crate::runtime::state::DeviceState;
use cudarc::driver::{DriverError, sys};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::{Bytes, Op, ValueId, shard};

/// A collective of shards, or the copy of one.
pub(super) struct ShardsOp {
    kind: Kind,
    ranks: usize,
    /// The number of collectives up to this one.
    number: u32,
    /// Kernels before and after it that tell all ranks of a loss that is not finite, as with a sum.
    alarm: Option<[Kernel; 2]>,
    /// Kernels before a gather into states: after a loss that is not finite, a rank's shards are its old ones.
    keep: Vec<Kernel>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    ReduceScatter,
    Copy,
    AllGather,
}

/// The same with addresses.
pub(super) struct ShardsCall {
    kind: Kind,
    tensors: Vec<Divided>,
    /// The number that tells of a loss.
    alarm: Option<Address>,
    token: Option<(Address, u32)>,
}

/// A tensor, and this rank's shard of it.
struct Divided {
    whole: Address,
    elements: usize,
    shard: Address,
    /// Elements of each rank's shard.
    length: usize,
    /// Where the tensor is with zeros behind its end, if its shards are longer than it.
    padded: Option<Address>,
}

/// Whether it is one of these ops, and its number of ranks.
fn kind(op: &Op) -> Option<(Kind, usize)> {
    match op {
        Op::ReduceScatter(op) => Some((Kind::ReduceScatter, op.ranks as usize)),
        Op::Shard(op) => Some((Kind::Copy, op.ranks as usize)),
        Op::AllGather(op) => Some((Kind::AllGather, op.ranks as usize)),
        _ => None,
    }
}

/// The tensors that all ranks have, among the operands of a node.
fn whole<'a>(kind: Kind, (inputs, outputs): (&'a [ValueId], &'a [ValueId])) -> &'a [ValueId] {
    match kind {
        // The last output is a token, and so may the last input be.
        Kind::ReduceScatter => &inputs[..outputs.len() - 1],
        Kind::Copy => inputs,
        Kind::AllGather => &outputs[..outputs.len() - 1],
    }
}

/// The elements of a tensor, those of a shard, and the bytes of the tensor with zeros behind its end, if there are any.
fn sizes(graph: &Graph, value: ValueId, ranks: usize) -> (usize, usize, u64) {
    let elements = graph.shape(value).elements().bind(1);
    let length = shard::length(elements, ranks);
    let padded = if length * ranks == elements { 0 } else { (4 * length * ranks) as u64 };
    (elements, length, padded.next_multiple_of(ALIGNMENT))
}

/// The workspace of a collective: its padded tensors, and the number that tells of a loss.
pub(super) fn workspace(graph: &Graph, node: &Node) -> u64 {
    match kind(&node.op) {
        Some((kind @ (Kind::ReduceScatter | Kind::AllGather), ranks)) => {
            let tensors = whole(kind, (&node.inputs, &node.outputs));
            tensors.iter().map(|value| sizes(graph, *value, ranks).2).sum::<u64>() + ALIGNMENT
        }
        _ => 0,
    }
}

impl ShardsOp {
    /// `alarms` means that it tells other ranks of a loss that is not finite.
    ///
    /// # Errors
    /// If the node is none of these ops.
    pub fn new(node: &Node, lowering: &Lowering<'_>, alarms: bool) -> Result<ShardsOp, String> {
        let graph = &lowering.program.graph;
        let (kind, ranks) = kind(&node.op).ok_or("is no collective of shards")?;
        let cell = Argument::WorkspaceAt(workspace(graph, node).saturating_sub(ALIGNMENT) as usize);
        let mut keep = Vec::new();
        if kind == Kind::AllGather && lowering.is_guarded(node) {
            for (i, value) in whole(kind, (&node.inputs, &node.outputs)).iter().enumerate() {
                let own = shard::range(sizes(graph, *value, ranks).0, ranks, lowering.rank);
                keep.extend((!own.is_empty()).then(|| kernels::keep_shard(i, own)));
            }
        }
        let number = if kind == Kind::Copy { 0 } else { number(graph, node) };
        Ok(ShardsOp { kind, ranks, number, alarm: alarms.then(|| kernels::alarm_of_ranks(cell)), keep })
    }

    /// The kernels before and after the call.
    pub fn kernels(&self) -> (Vec<Kernel>, Vec<Kernel>) {
        let [before, after] = self.alarm.clone().map_or([None, None], |kernels| kernels.map(Some));
        (before.into_iter().chain(self.keep.iter().cloned()).collect(), after.into_iter().collect())
    }

    /// The addresses of its operands.
    pub fn resolve(
        &self,
        addresses: &Addresses<'_>,
        (inputs, outputs): (&[ValueId], &[ValueId]),
        workspace: Bytes,
    ) -> Result<ShardsCall, String> {
        let graph = &addresses.lowering.program.graph;
        let at = |argument| addresses.argument(argument, inputs, outputs, workspace);
        let (mut tensors, mut end) = (Vec::new(), 0);
        for (i, value) in whole(self.kind, (inputs, outputs)).iter().enumerate() {
            let (elements, length, bytes) = sizes(graph, *value, self.ranks);
            let padded = (bytes > 0 && self.kind != Kind::Copy).then(|| at(Argument::WorkspaceAt(end as usize))).transpose()?;
            let (input, output) = (at(Argument::Input(i))?, at(Argument::Output(i))?);
            let (whole, shard) = if self.kind == Kind::AllGather { (output, input) } else { (input, output) };
            tensors.push(Divided { whole, elements, shard, length, padded });
            end += bytes;
        }
        let alarm = self.alarm.is_some().then(|| at(Argument::WorkspaceAt(end as usize))).transpose()?;
        let token = if self.kind == Kind::Copy { None } else { Some((at(Argument::Output(outputs.len() - 1))?, self.number)) };
        Ok(ShardsCall { kind: self.kind, tensors, alarm, token })
    }
}

impl ShardsCall {
    /// Enqueues it in the compute stream.
    ///
    /// # Errors
    /// If another rank does not take part.
    ///
    /// # Safety
    /// The addresses are those of the program's plan, inside of memory that is valid until the stream has executed it,
    /// and no output overlaps an input. The plan is for as many ranks as there are.
    pub unsafe fn enqueue(&self, shared: &DeviceState, at: impl Fn(Address) -> u64) -> Result<(), String> {
        let exchange = shared.exchange.as_ref();
        let (rank, ranks) = exchange.map_or((0, 1), |exchange| (exchange.rank(), exchange.ranks()));
        let failed = |error: DriverError| format!("copying within the GPU failed: {error:?}");
        let copy = |to: u64, from: u64, count: usize| {
            // SAFETY: both ranges are planned; a padded tensor is in the workspace, which has its size.
            unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, 4 * count, shared.compute.raw) }.result().map_err(failed)
        };
        let zero = |start: u64, count: usize| {
            if count == 0 {
                return Ok(());
            }
            // SAFETY: as above.
            unsafe { sys::cuMemsetD32Async(start, 0, count, shared.compute.raw) }.result().map_err(failed)
        };
        if let (Some(cell), Some(exchange)) = (self.alarm, exchange) {
            let cell = Operands { from: at(cell), to: at(cell), count: 1 };
            // SAFETY: a planned number.
            unsafe { exchange.all_reduce(&[cell], &shared.compute) }?;
        }
        let of = |tensor: &Divided| (at(tensor.padded.unwrap_or(tensor.whole)), at(tensor.shard));
        match self.kind {
            Kind::Copy => {
                for tensor in &self.tensors {
                    let (own, shard) = (shard::range(tensor.elements, ranks, rank), at(tensor.shard));
                    if !own.is_empty() {
                        copy(shard, at(tensor.whole) + 4 * own.start as u64, own.len())?;
                    }
                    zero(shard + 4 * own.len() as u64, tensor.length - own.len())?;
                }
            }
            Kind::ReduceScatter => {
                for tensor in self.tensors.iter().filter(|tensor| tensor.padded.is_some()) {
                    let padded = of(tensor).0;
                    copy(padded, at(tensor.whole), tensor.elements)?;
                    zero(padded + 4 * tensor.elements as u64, tensor.length * ranks - tensor.elements)?;
                }
                let operands = self.tensors.iter().map(|tensor| Operands { from: of(tensor).0, to: of(tensor).1, count: tensor.length });
                match exchange {
                    // SAFETY: guaranteed by the caller; every input has a block per rank.
                    Some(exchange) => unsafe { exchange.reduce_scatter(&operands.collect::<Vec<_>>(), &shared.compute) }?,
                    None => operands.into_iter().try_for_each(|Operands { from, to, count }| copy(to, from, count))?,
                }
            }
            Kind::AllGather => {
                let operands = self.tensors.iter().map(|tensor| Operands { from: of(tensor).1, to: of(tensor).0, count: tensor.length });
                match exchange {
                    // SAFETY: guaranteed by the caller; every output has a block per rank.
                    Some(exchange) => unsafe { exchange.all_gather(&operands.collect::<Vec<_>>(), &shared.compute) }?,
                    None => operands.into_iter().try_for_each(|Operands { from, to, count }| copy(to, from, count))?,
                }
                for tensor in self.tensors.iter().filter(|tensor| tensor.padded.is_some()) {
                    copy(at(tensor.whole), of(tensor).0, tensor.elements)?;
                }
            }
        }
        let Some((token, number)) = self.token else { return Ok(()) };
        // SAFETY: the token is a planned number.
        unsafe { sys::cuMemsetD32Async(at(token), (number as f32).to_bits(), 1, shared.compute.raw) }.result().map_err(failed)
    }
}

impl From<ShardsCall> for StreamOp {
    fn from(call: ShardsCall) -> StreamOp {
        StreamOp::Shards(Box::new(call))
    }
}
