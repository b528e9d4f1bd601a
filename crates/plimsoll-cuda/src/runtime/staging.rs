//! Staging: a batch is written into a pinned slot and copied on its own stream while the previous step computes; the
//! results of a run return through the same slots.

use super::state::{DeviceState, lock};
use crate::libraries::driver::{Event, PinnedBuffer};
use cudarc::driver::{result, sys};
use plimsoll_core::Bytes;
use plimsoll_core::budget::SlotMemory;
use plimsoll_core::device::{DeviceError, StepInputs};
use plimsoll_core::plan::{NUMBERS, Staging};
use std::sync::Arc;

/// Bytes of a run's scalar outputs, followed by the finite flag.
const RESULTS: usize = 4 * (NUMBERS + 1);

/// Bytes of the count of ops that a program has completed.
const MARK: usize = 4;

/// Bytes for the header and the scalars of a batch whose columns are in pinned memory already.
const HEAD: usize = 1024;

/// Pinned host memory for a plan with this staging.
pub(crate) fn pinned(staging: &Staging) -> Bytes {
    Bytes(staging.slots as u64 * (staging.slot.0 + (HEAD + RESULTS) as u64) + MARK as u64).align_up(4096)
}

/// The slots in host and device memory.
pub(crate) struct StagingRing {
    shared: Arc<DeviceState>,
    /// Heads and results of all slots, and the mark.
    pinned: PinnedBuffer,
    /// The slots in host memory, pinned with the first batch that is not in pinned memory already.
    batches: Option<PinnedBuffer>,
    slots: Vec<Slot>,
    slot_size: usize,
    /// Address of the first slot on the GPU.
    start: u64,
    /// Address of the flag that records a non-finite loss.
    pub non_finite_flag: u64,
    /// Number of runs started.
    runs: u64,
    /// Whether the last batch is copied directly from the caller's pinned memory.
    direct: bool,
}

struct Slot {
    /// The batch has been copied to the GPU.
    copied: Event,
    /// The run has completed: both sides of the slot are free and the results are available.
    done: Event,
}

/// Pinned memory in which a pipeline assembles batches.
pub(crate) struct PinnedSlot {
    memory: PinnedBuffer,
    size: usize,
    shared: Arc<DeviceState>,
}

impl PinnedSlot {
    pub fn new(shared: &Arc<DeviceState>, size: Bytes) -> Result<PinnedSlot, DeviceError> {
        shared.bind()?;
        let memory = pin(shared, size)?;
        let (start, size) = (memory.start as usize, size.get());
        lock(&shared.slots).push(start..start + size);
        Ok(PinnedSlot { memory, size, shared: Arc::clone(shared) })
    }
}

// SAFETY: one pinned allocation, page-aligned and zeroed, freed when the slot is dropped; the GPU only reads it.
unsafe impl SlotMemory for PinnedSlot {
    fn bytes(&self) -> &[u8] {
        // SAFETY: this many bytes were pinned and zeroed, and the GPU does not write to them.
        unsafe { std::slice::from_raw_parts(self.memory.start, self.size) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; a run that reads them waits for its copy before it returns to its caller.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start, self.size) }
    }
}

impl Drop for PinnedSlot {
    fn drop(&mut self) {
        let start = self.memory.start as usize;
        lock(&self.shared.slots).retain(|range| range.start != start);
    }
}

/// Allocates zeroed pinned memory; the context is current.
fn pin(shared: &DeviceState, size: Bytes) -> Result<PinnedBuffer, DeviceError> {
    shared.start_times.time("pin_memory", || PinnedBuffer::new(&shared.context, size.get().max(1))).map_err(|error| {
        DeviceError::OutOfMemory {
            device: "the host".to_string(),
            size,
            reason: format!("pinned for {}: {error:?}", shared.context.name()),
        }
    })
}

/// Identifies a run, to read its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunId(u64);

impl StagingRing {
    pub fn new(shared: &Arc<DeviceState>, staging: &Staging, resident: u64) -> Result<StagingRing, DeviceError> {
        shared.bind()?;
        let context = &shared.context;
        let pinned = pin(shared, Bytes((staging.slots * (HEAD + RESULTS) + MARK) as u64))?;
        let slot = |_| -> Result<Slot, _> { Ok(Slot { copied: Event::new(context)?, done: Event::new(context)? }) };
        let slots = (0..staging.slots).map(slot).collect::<Result<Vec<_>, _>>();
        Ok(StagingRing {
            pinned,
            batches: None,
            slots: slots.map_err(|error| context.failed("making events", error))?,
            slot_size: staging.slot.get(),
            start: resident + staging.offset.0,
            non_finite_flag: resident + staging.alarm().0,
            runs: 0,
            direct: false,
            shared: Arc::clone(shared),
        })
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Address of a slot on the GPU.
    pub fn on_device(&self, slot: usize) -> u64 {
        self.start + (slot * self.slot_size) as u64
    }

    /// Address of a slot's results: mapped host memory with the same address on the GPU.
    pub fn results(&self, slot: usize) -> u64 {
        self.pinned.start as u64 + self.results_offset(slot) as u64
    }

    /// Address of the count of completed ops, in mapped host memory.
    pub fn mark(&self) -> u64 {
        self.results(self.slots.len())
    }

    /// The number that the GPU wrote to [`mark`](StagingRing::mark) last.
    pub fn marked(&self) -> u32 {
        let mark = self.pinned.start.wrapping_add(self.results_offset(self.slots.len())).cast::<u32>();
        // SAFETY: four bytes behind the results, which the GPU writes at once.
        unsafe { mark.read_volatile() }
    }

    fn results_offset(&self, slot: usize) -> usize {
        self.slots.len() * HEAD + slot * RESULTS
    }

    /// Copies the inputs of a run into the next slot and makes the compute stream wait for them. `columns` are the
    /// offsets of the columns in a slot, `header` that of the header.
    pub fn begin(&mut self, inputs: &StepInputs<'_>, columns: &[usize], header: usize) -> Result<usize, DeviceError> {
        let slot = (self.runs % self.slots.len() as u64) as usize;
        // The host must not write to a slot before its previous run has completed.
        self.shared.wait_for_run(&self.slots[slot].done, "transfer the batch")?;
        let (scalars, random) = (inputs.scalars, inputs.random);
        let fits = 32 + 4 * scalars.len() <= HEAD;
        self.direct = fits && inputs.columns.iter().all(|column| self.shared.is_slot(column));
        let mut image = [0u8; 32];
        image[..8].copy_from_slice(&random.seed.to_ne_bytes());
        image[8..16].copy_from_slice(&random.first_row.to_ne_bytes());
        image[16..20].copy_from_slice(&random.step.to_ne_bytes());
        let end = header + image.len() + 4 * scalars.len();
        assert!(end <= self.slot_size, "a slot is as large as the largest program's inputs");
        if !self.direct && self.batches.is_none() {
            self.batches = Some(pin(&self.shared, Bytes((self.slots.len() * self.slot_size) as u64))?);
        }
        let failed = |error| self.shared.context.failed("transfer the batch", error);
        // Where a slot begins, or would if its columns were before its head.
        let host = match self.batches.as_ref().filter(|_| !self.direct) {
            Some(batches) => batches.start.wrapping_add(slot * self.slot_size),
            None => self.pinned.start.wrapping_add(slot * HEAD).wrapping_sub(header),
        };
        let put = |offset: usize, bytes: *const u8, length: usize| {
            assert!(offset + length <= end, "columns stand before the header");
            // SAFETY: the range is inside of the slot, which the GPU does not read now; the ring's lock excludes other
            // writers.
            unsafe { std::ptr::copy_nonoverlapping(bytes, host.wrapping_add(offset), length) };
        };
        if !self.direct {
            columns.iter().zip(inputs.columns).for_each(|(offset, column)| put(*offset, column.as_ptr(), column.len()));
        }
        put(header, image.as_ptr(), image.len());
        put(header + image.len(), scalars.as_ptr().cast(), 4 * scalars.len());
        let Slot { copied, .. } = &self.slots[slot];
        let copy = |offset: usize, from: *const u8, length: usize| {
            // SAFETY: both sides have this length; the pinned side is not written before `done` completes or, if it is
            // the caller's, before `end` returns.
            unsafe { sys::cuMemcpyHtoDAsync_v2(self.on_device(slot) + offset as u64, from.cast(), length, self.shared.copy.raw) }
                .result()
                .map_err(failed)
        };
        let mut from = 0;
        if self.direct {
            for (offset, column) in columns.iter().zip(inputs.columns).filter(|(_, column)| !column.is_empty()) {
                assert!(offset + column.len() <= header, "columns stand before the header");
                copy(*offset, column.as_ptr(), column.len())?;
            }
            from = header;
        }
        copy(from, host.wrapping_add(from), end - from)?;
        copied.record(&self.shared.copy).and_then(|()| self.shared.compute.wait_for(copied)).map_err(failed)?;
        Ok(slot)
    }

    /// Marks the end of the run that was started last.
    pub fn end(&mut self, slot: usize) -> Result<RunId, DeviceError> {
        self.slots[slot].done.record(&self.shared.compute).map_err(|error| self.shared.context.failed("marking a run", error))?;
        self.runs += 1;
        if self.direct {
            // The caller may overwrite its columns after this.
            self.slots[slot].copied.wait().map_err(|error| self.shared.context.failed("transfer the batch", error))?;
        }
        Ok(RunId(self.runs - 1))
    }

    /// The slot of a run, if no later run has reused it.
    pub fn slot_of(&self, run: RunId) -> Option<usize> {
        let slots = self.slots.len() as u64;
        (self.runs - run.0 <= slots).then_some((run.0 % slots) as usize)
    }

    /// Waits for a run and returns its results. Reporting a loss that is not finite clears the flag for later runs.
    pub fn results_of(&mut self, slot: usize, numbers: &mut [f32]) -> Result<(), DeviceError> {
        let failed = |error| self.shared.context.failed("computing a step", error);
        self.shared.wait_for_run(&self.slots[slot].done, "computing a step")?;
        let answer = self.pinned.start.wrapping_add(self.results_offset(slot)).cast::<f32>();
        // SAFETY: the results are this many floats; the GPU has finished writing them and does not write them again
        // before the slot is reused.
        let answer = unsafe { std::slice::from_raw_parts(answer, NUMBERS + 1) };
        numbers.iter_mut().zip(&answer[1..]).for_each(|(number, told)| *number = *told);
        if answer[0] != 0.0 {
            self.shared.synchronize()?;
            // SAFETY: the flag is four bytes of the resident memory, and the GPU is idle.
            unsafe { result::memset_d8_sync(self.non_finite_flag, 0, 4) }.and_then(|()| result::ctx::synchronize()).map_err(failed)?;
            return Err(DeviceError::NonFinite);
        }
        Ok(())
    }
}
