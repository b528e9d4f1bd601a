//! Enqueues the operations of a program, and finds the one whose kernel failed.

use super::address::{Address, resolve};
use super::{CudaProgram, Instruction, StreamOp};
use crate::libraries::driver::launch;
use crate::libraries::faults::is_of_kernel;
use crate::libraries::injected::UNMAPPED;
use crate::runtime::staging::StagingRing;
use crate::runtime::state::DeviceState;
use plimsoll_core::device::DeviceError;

impl CudaProgram {
    /// Enqueues everything in the compute stream, for a slot.
    pub(super) fn enqueue(&self, staging_ring: &StagingRing, slot: usize) -> Result<(), DeviceError> {
        self.enqueue_each(staging_ring, slot, |_| Ok(()))
    }

    /// The same, with `after` called after each instruction.
    fn enqueue_each(
        &self,
        staging_ring: &StagingRing,
        slot: usize,
        mut after: impl FnMut(usize) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        for (i, instruction) in self.instructions.iter().enumerate() {
            // The report is the last operation; the remaining copies complete before it.
            if let Some(copies) = &self.copies {
                copies.start_before(i)?;
            }
            self.enqueue_instruction(instruction, staging_ring, slot)?;
            if self.shared.one_by_one {
                self.shared.compute.wait().map_err(|error| self.shared.context.op_failed(&instruction.name, error))?;
            }
            after(i)?;
        }
        Ok(())
    }

    /// Enqueues the first run, in which the GPU counts the instructions that it has completed.
    pub(super) fn enqueue_marked(&self, staging_ring: &StagingRing, slot: usize) -> Result<(), DeviceError> {
        let mark = |number: usize| {
            // SAFETY: the ring keeps the memory until the program, which holds it, is dropped.
            unsafe { self.shared.compute.mark(staging_ring.mark(), number as u32) }
        };
        // A driver that cannot write them only names no op in an error.
        let mut marks = mark(0).is_ok();
        self.enqueue_each(staging_ring, slot, |i| {
            marks = marks && mark(i + 1).is_ok();
            Ok(())
        })
    }

    /// The error of a run; if it is the first one and a kernel failed, with the name of its op.
    pub(super) fn located(&self, staging_ring: &StagingRing, error: DeviceError) -> DeviceError {
        let failed = self.shared.compute.wait().err().filter(|error| is_of_kernel(error.0));
        let op = self.instructions.get(staging_ring.marked() as usize).filter(|_| self.count == 1 && !self.shared.one_by_one);
        match (failed, op) {
            (Some(failed), Some(op)) => self.shared.context.op_failed(&op.name, failed),
            _ => error,
        }
    }

    pub(super) fn enqueue_instruction(
        &self,
        instruction: &Instruction,
        staging_ring: &StagingRing,
        slot: usize,
    ) -> Result<(), DeviceError> {
        let at = |address: Address| resolve(address, staging_ring, slot);
        let faulty = self.shared.fault.as_ref().filter(|_| self.loss.is_some()).and_then(|fault| fault.op_in(self.count));
        let faulty = faulty.is_some_and(|op| instruction.name.split(' ').next() == Some(op));
        for step in &instruction.steps {
            // Of generated kernels only: a library might refuse the address.
            let faulty = faulty && matches!(step, StreamOp::Launch { .. });
            // SAFETY: all locations are planned and were checked by `load`; module and memory are kept alive until the
            // program is dropped, which synchronizes.
            unsafe { step.enqueue(&self.shared, &instruction.name, |address| if faulty { UNMAPPED } else { at(address) }) }?;
        }
        Ok(())
    }
}

impl StreamOp {
    /// Whether it reads a scalar or draws random numbers.
    pub(super) fn reads_slot(&self) -> bool {
        let is_slot = |address: &Address| matches!(address, Address::Slot(_));
        match self {
            StreamOp::Launch { arguments, .. } => arguments.iter().any(is_slot),
            StreamOp::Matmul { a, b, c, onto, .. } => [a, b, c].into_iter().chain(onto).any(is_slot),
            StreamOp::Convolution { addresses, .. } => addresses.iter().any(is_slot),
            StreamOp::AllReduce(_) | StreamOp::Shards(_) => false,
        }
    }

    /// Enqueues it in the compute stream, with `at` as the address of an argument.
    ///
    /// # Safety
    ///
    /// The addresses are those of the program's plan, inside of memory that is valid until the stream has executed the
    /// operation, and so are the kernels.
    pub(super) unsafe fn enqueue(&self, shared: &DeviceState, name: &str, at: impl Fn(Address) -> u64) -> Result<(), DeviceError> {
        let stream = &shared.compute;
        let failed = |what: String| DeviceError::Failed { device: shared.context.name(), what: format!("{name}: {what}") };
        match self {
            StreamOp::Launch { function, grid, threads, arguments } => {
                let mut arguments: Vec<u64> = arguments.iter().map(|address| at(*address)).collect();
                // SAFETY: the kernel was generated for these arguments; the rest is guaranteed by the caller.
                unsafe { launch(*function, *grid, *threads, &mut arguments, stream) }
                    .map_err(|error| shared.context.failed(&format!("launching {name}"), error))
            }
            StreamOp::Matmul { product, a, b, c, onto, workspace, .. } => {
                // SAFETY: guaranteed by the caller; the plan reserves the workspace that the product was created with.
                unsafe { product.run([at(*a), at(*b), at(*c)], onto.map(&at), at(*workspace), stream) }.map_err(failed)
            }
            // SAFETY: guaranteed by the caller.
            StreamOp::AllReduce(call) => unsafe { call.enqueue(shared, at) }.map_err(failed),
            // SAFETY: as above; outputs of these collectives overlap no input in a plan.
            StreamOp::Shards(call) => unsafe { call.enqueue(shared, at) }.map_err(failed),
            StreamOp::Convolution { convolution, addresses } => {
                // SAFETY: guaranteed by the caller; the library's stream is this one.
                unsafe { convolution.run(addresses.map(&at)) }.map_err(failed)
            }
        }
    }
}
