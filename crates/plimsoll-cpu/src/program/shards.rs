//! Collectives of tensors that are divided over the ranks of a job, and a rank's part of one.

use super::instruction::{Bindings, F32Tensor};
use super::lower::Lowering;
use plimsoll_comm::{Group, Reduction};
use plimsoll_core::graph::Node;
use plimsoll_core::{Bytes, DeviceError, Op, ValueId, shard};
use std::ops::Range;
use std::sync::Arc;

/// Numbers that pass at a time, at most, those of all ranks together: as many as the buffer of a communicator holds.
const PASSED: usize = 1 << 18;

/// A collective of shards with its operands, or the copy of a rank's shard.
pub(super) struct ShardsCall {
    kind: Kind,
    /// The tensors that all ranks have, and this rank's shards of them.
    tensors: Vec<Divided>,
    /// The token of the previous collective, if there is one, and the one that is returned; of collectives.
    before: Option<F32Tensor>,
    token: Option<F32Tensor>,
    /// What passes at a time: a block per rank, and this rank's own.
    workspace: F32Tensor,
    group: Arc<dyn Group>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    ReduceScatter,
    Copy,
    AllGather,
}

/// A tensor, and this rank's shard of it.
#[derive(Clone, Copy)]
struct Divided {
    whole: F32Tensor,
    shard: F32Tensor,
}

/// Whether it is one of these ops, and its number of ranks.
fn kind(op: &Op) -> Option<(Kind, u32)> {
    match op {
        Op::ReduceScatter(op) => Some((Kind::ReduceScatter, op.ranks)),
        Op::Shard(op) => Some((Kind::Copy, op.ranks)),
        Op::AllGather(op) => Some((Kind::AllGather, op.ranks)),
        _ => None,
    }
}

/// The numbers of the workspace of a collective over tensors of these sizes.
pub(super) fn workspace_len(ranks: usize, sizes: impl Iterator<Item = usize>) -> usize {
    let shards: usize = sizes.map(|elements| shard::length(elements, ranks)).sum();
    passed_at_a_time(ranks, shards) * (ranks + 1)
}

/// The numbers of each rank that pass at a time, of shards of this length in all.
fn passed_at_a_time(ranks: usize, shards: usize) -> usize {
    shards.min((PASSED / ranks.max(1)).max(1))
}

impl ShardsCall {
    /// The operands of a node, which is one of these ops.
    ///
    /// # Errors
    /// If the group has other ranks than the plan, or an operand is not where the plan says.
    pub fn new(node: &Node, workspace: (Bytes, Bytes), lowering: &Lowering<'_>, group: &Arc<dyn Group>) -> Result<ShardsCall, String> {
        let (kind, ranks) = kind(&node.op).ok_or("is no collective of shards")?;
        if ranks as usize != group.size() {
            return Err(format!(
                "divides tensors over {ranks} ranks, but this process is one of {}; plan for that number of ranks, or start as many \
                 processes",
                group.size()
            ));
        }
        let (inputs, before): (&[ValueId], Option<&ValueId>) = match &node.op {
            Op::ReduceScatter(op) => op.operands(&node.inputs),
            Op::AllGather(op) => op.operands(&node.inputs),
            _ => (&node.inputs, None),
        };
        let (outputs, token) = node.outputs.split_at(inputs.len());
        for output in &node.outputs {
            lowering.floats(*output)?.address.written()?;
        }
        let divided = |(input, output): (&ValueId, &ValueId)| {
            let (input, output) = (lowering.floats(*input)?, lowering.floats(*output)?);
            let (whole, shard) = if kind == Kind::AllGather { (output, input) } else { (input, output) };
            if shard.count != shard::length(whole.count, ranks as usize) {
                return Err(format!("the shard of {} elements over {ranks} ranks has {}", whole.count, shard.count));
            }
            Ok(Divided { whole, shard })
        };
        Ok(ShardsCall {
            kind,
            tensors: inputs.iter().zip(outputs).map(divided).collect::<Result<_, String>>()?,
            before: before.map(|before| lowering.floats(*before)).transpose()?,
            token: token.first().map(|token| lowering.floats(*token)).transpose()?,
            workspace: lowering.workspace(node, workspace)?,
            group: Arc::clone(group),
        })
    }

    /// Runs it, on all ranks at the same time if it is a collective.
    ///
    /// # Errors
    /// If another rank does not take part.
    ///
    /// # Safety
    /// The operands are valid in this run and exclusive, and no output aliases an input.
    pub unsafe fn run(&self, inputs: &Bindings<'_>) -> Result<(), DeviceError> {
        let failed = |error: plimsoll_comm::CommError| DeviceError::Failed { device: super::DEVICE.to_string(), what: error.to_string() };
        let (ranks, own) = (self.group.size(), self.group.rank());
        // SAFETY: tensors of these sizes, which the caller vouches for. The workspace has a block per rank and one
        // more, as `workspace_len` says.
        unsafe {
            if self.kind == Kind::Copy {
                self.tensors.iter().for_each(|tensor| tensor.copy(inputs, own, ranks));
                return Ok(());
            }
            let count = self.before.map_or(0.0, |before| before.start(inputs).read());
            let shards: usize = self.tensors.iter().map(|tensor| tensor.shard.count).sum();
            let most = passed_at_a_time(ranks, shards);
            let (all, block) = self.workspace.write(inputs).split_at_mut(most * ranks);
            for from in (0..shards).step_by(most.max(1)) {
                let length = most.min(shards - from);
                let (all, block) = (&mut all[..length * ranks], &mut block[..length]);
                if self.kind == Kind::ReduceScatter {
                    for (rank, block) in all.chunks_exact_mut(length).enumerate() {
                        self.parts(from..from + length, |tensor, part, at| tensor.read_whole(inputs, rank, part, &mut block[at]));
                    }
                    self.group.reduce_scatter((&*all).into(), (&mut *block).into(), Reduction::Sum).map_err(failed)?;
                    self.parts(from..from + length, |tensor, part, at| tensor.write_shard(inputs, part, &block[at]));
                } else {
                    self.parts(from..from + length, |tensor, part, at| tensor.read_shard(inputs, part, &mut block[at]));
                    self.group.all_gather((&*block).into(), (&mut *all).into()).map_err(failed)?;
                    for (rank, block) in all.chunks_exact(length).enumerate() {
                        self.parts(from..from + length, |tensor, part, at| tensor.write_whole(inputs, rank, part, &block[at]));
                    }
                }
            }
            if let Some(token) = self.token {
                token.start(inputs).write(count + 1.0);
            }
        }
        Ok(())
    }

    /// The parts of shards that a range of all shards behind each other consists of, and where they are in it.
    fn parts(&self, of: Range<usize>, mut part: impl FnMut(&Divided, Range<usize>, Range<usize>)) {
        let mut start = 0;
        for tensor in &self.tensors {
            let end = start + tensor.shard.count;
            let (from, to) = (of.start.max(start), of.end.min(end));
            if from < to {
                part(tensor, from - start..to - start, from - of.start..to - of.start);
            }
            start = end;
        }
    }
}

impl Divided {
    /// The elements of the tensor that a part of a rank's shard is; fewer where the tensor ends.
    fn elements(&self, rank: usize, part: &Range<usize>) -> Range<usize> {
        let at = |element: usize| (rank * self.shard.count + element).min(self.whole.count);
        at(part.start)..at(part.end)
    }

    /// Copies this rank's shard.
    ///
    /// # Safety
    /// Both tensors are valid in this run, the shard is exclusive, and they do not overlap.
    unsafe fn copy(&self, inputs: &Bindings<'_>, rank: usize, ranks: usize) {
        let own = shard::range(self.whole.count, ranks, rank);
        // SAFETY: guaranteed by the caller; the range is one of the tensor.
        let shard = unsafe { self.shard.write(inputs) };
        let (filled, rest) = shard.split_at_mut(own.len());
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(self.whole.start(inputs).add(own.start), filled.as_mut_ptr(), filled.len()) };
        rest.fill(0.0);
    }

    /// Copies a part of a rank's shard from the tensor, with zeros behind its end.
    ///
    /// # Safety
    /// Both tensors are valid in this run, and exclusive if they are outputs. The part is one of the shard, and has as
    /// many numbers.
    unsafe fn read_whole(&self, inputs: &Bindings<'_>, rank: usize, part: Range<usize>, to: &mut [f32]) {
        let own = self.elements(rank, &part);
        let (filled, rest) = to.split_at_mut(own.len());
        // SAFETY: guaranteed by the caller; the range is one of the tensor, and the workspace is no part of it.
        unsafe { std::ptr::copy_nonoverlapping(self.whole.start(inputs).add(own.start), filled.as_mut_ptr(), filled.len()) };
        rest.fill(0.0);
    }

    /// Copies a part of a rank's shard to the tensor, up to its end.
    ///
    /// # Safety
    /// Both tensors are valid in this run, and exclusive if they are outputs. The part is one of the shard, and has as
    /// many numbers.
    unsafe fn write_whole(&self, inputs: &Bindings<'_>, rank: usize, part: Range<usize>, from: &[f32]) {
        let own = self.elements(rank, &part);
        // SAFETY: as in `read_whole`; the tensor is an output.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.whole.start(inputs).add(own.start), own.len()) };
    }

    /// Copies a part of this rank's shard.
    ///
    /// # Safety
    /// Both tensors are valid in this run, and exclusive if they are outputs. The part is one of the shard, and has as
    /// many numbers.
    unsafe fn read_shard(&self, inputs: &Bindings<'_>, part: Range<usize>, to: &mut [f32]) {
        // SAFETY: as in `read_whole`.
        unsafe { std::ptr::copy_nonoverlapping(self.shard.start(inputs).add(part.start), to.as_mut_ptr(), to.len()) };
    }

    /// Sets a part of this rank's shard.
    ///
    /// # Safety
    /// Both tensors are valid in this run, and exclusive if they are outputs. The part is one of the shard, and has as
    /// many numbers.
    unsafe fn write_shard(&self, inputs: &Bindings<'_>, part: Range<usize>, from: &[f32]) {
        // SAFETY: as in `read_whole`; the shard is an output.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.shard.start(inputs).add(part.start), from.len()) };
    }
}
