//! Enqueues the operations of a program, and finds the one whose kernel failed.

use super::address::{Address, resolve};
use super::{CudaProgram, Instruction, StreamOp};
use crate::libraries::driver::launch;
use crate::libraries::faults::is_of_kernel;
use crate::libraries::injected::UNMAPPED;
use crate::runtime::staging::StagingRing;
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
        let stream = &self.shared.compute;
        let failed = |what: String| {
            let what = format!("{}: {what}", instruction.name);
            DeviceError::Failed { device: self.shared.context.name(), what }
        };
        for step in &instruction.steps {
            match step {
                StreamOp::Launch { function, grid, threads, arguments } => {
                    let mut arguments: Vec<u64> = arguments.iter().map(|address| at(*address)).collect();
                    if let Some(fault) = &self.shared.fault
                        && self.loss.is_some()
                        && fault.op_in(self.count).is_some_and(|op| instruction.name.split(' ').next() == Some(op))
                    {
                        arguments.fill(UNMAPPED);
                    }
                    // SAFETY: the kernel was generated for these arguments, whose locations are planned and were
                    // checked by `load`; module and memory are kept alive until the program is dropped, which
                    // synchronizes.
                    unsafe { launch(*function, *grid, *threads, &mut arguments, stream) }
                        .map_err(|error| self.shared.context.failed(&format!("launching {}", instruction.name), error))?;
                }
                StreamOp::Matmul { product, a, b, c, onto, workspace } => {
                    // SAFETY: as above; the plan reserves the workspace that the product was created with.
                    unsafe { product.run([at(*a), at(*b), at(*c)], onto.map(at), at(*workspace), stream) }.map_err(failed)?;
                }
                StreamOp::Convolution { convolution, addresses } => {
                    // SAFETY: as above; the library's stream is this one.
                    unsafe { convolution.run(addresses.map(at)) }.map_err(failed)?;
                }
            }
        }
        Ok(())
    }
}
