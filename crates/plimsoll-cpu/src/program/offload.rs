//! The copies of a loaded program, and their required progress before each instruction.

use super::instruction::Address;
use super::lower::Lowering;
use super::{DEVICE, unsupported};
use crate::runtime::copier::{Copier, CopyJob, CopyRun};
use plimsoll_core::device::{BackingStore, DeviceError};
use plimsoll_core::plan::offload::{Direction, Overlap};
use std::sync::Arc;

pub(super) struct OffloadCopies {
    copier: Arc<Copier>,
    jobs: Vec<CopyJob>,
    /// The step of each copy.
    steps: Vec<usize>,
    /// For every step, and the end: the number of copies that may have started before it, and that must have completed.
    marks: Vec<(usize, usize)>,
}

impl OffloadCopies {
    /// The copies of a program, if it has any. No state is stored before the step `hold`.
    pub fn of(
        lowering: &Lowering<'_>,
        hold: usize,
        copier: Option<&Arc<Copier>>,
        backing: Option<&Arc<dyn BackingStore>>,
    ) -> Result<Option<OffloadCopies>, DeviceError> {
        let program = lowering.program;
        let overlap = Overlap::of(program, lowering.rows, hold);
        if overlap.copies.is_empty() {
            return Ok(None);
        }
        let (Some(copier), Some(backing)) = (copier, backing) else {
            return Err(unsupported("the plan keeps tensors in a backing store, but none was given"));
        };
        let mut jobs = Vec::with_capacity(overlap.copies.len());
        let mut marks = vec![(0, 0); program.order.len() + 1];
        let mut begin = 0;
        for (i, copy) in overlap.copies.iter().enumerate() {
            let node = program.graph.node(program.order[copy.step]);
            let out = copy.direction == Direction::Out;
            let value = if out { node.inputs[0] } else { node.outputs[0] };
            let named = |what: String| unsupported(format!("{} of `{}`: {what}", node.op.rules().name(), node.scope));
            let Address::Fixed(address) = lowering.address(value).map_err(named)? else {
                return Err(named("a column or a number of the host is not stored".to_string()));
            };
            if copy.backing.0.checked_add(copy.size.0).is_none_or(|end| end > backing.size().0) {
                return Err(DeviceError::Failed {
                    device: DEVICE.to_string(),
                    what: format!("{value} is planned outside of the backing store"),
                });
            }
            jobs.push(CopyJob { backing: Arc::clone(backing), offset: copy.backing, address, size: copy.size.get(), out });
            // One thread executes them in order: starting or awaiting one does so for all earlier ones.
            begin = begin.max(copy.begin);
            marks[begin].0 = i + 1;
            marks[copy.needed].1 = i + 1;
        }
        let last = marks.len() - 1;
        marks[last] = (jobs.len(), jobs.len());
        let mut so_far = (0, 0);
        for mark in &mut marks {
            so_far = (so_far.0.max(mark.0), so_far.1.max(mark.1));
            *mark = so_far;
        }
        let steps = overlap.copies.iter().map(|copy| copy.step).collect();
        Ok(Some(OffloadCopies { copier: Arc::clone(copier), jobs, steps, marks }))
    }

    /// Starts a run.
    ///
    /// # Safety
    /// The locks of the memories are held until it is dropped, which must happen, and instructions run only behind
    /// [`RunningCopies::before`] of their number.
    pub unsafe fn run(&self) -> RunningCopies<'_> {
        // SAFETY: the overlap states which copies may run concurrently with which instructions without accessing the
        // same bytes.
        RunningCopies { run: unsafe { self.copier.run(&self.jobs) }, marks: &self.marks }
    }

    /// Executes the copy of a step synchronously.
    ///
    /// # Safety
    ///
    /// The locks of the memories are held and nothing runs concurrently.
    pub unsafe fn make(&self, step: usize) -> Result<(), DeviceError> {
        match self.steps.binary_search(&step) {
            // SAFETY: guaranteed by the caller.
            Ok(copy) => unsafe { self.jobs[copy].execute() },
            Err(_) => Ok(()),
        }
    }
}

/// The copies of a run in progress.
pub(super) struct RunningCopies<'a> {
    run: CopyRun<'a>,
    marks: &'a [(usize, usize)],
}

impl RunningCopies<'_> {
    /// Starts the copies that may overlap with this instruction and waits for those it needs; after the last
    /// instruction, for all.
    pub fn before(&self, step: usize) -> Result<(), DeviceError> {
        let (begun, ended) = self.marks[step];
        let (already, known) = step.checked_sub(1).map_or((0, 0), |before| self.marks[before]);
        if begun > already {
            self.run.start(begun);
        }
        if ended > known { self.run.wait(ended) } else { Ok(()) }
    }
}
