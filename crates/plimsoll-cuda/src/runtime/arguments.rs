//! Headers and scalars of programs whose memory is given for every run: written into pinned slots, and copied to the
//! GPU in the compute stream, so that no run waits for another.

use super::memory::DeviceBuffer;
use super::state::DeviceState;
use crate::libraries::driver::{Event, PinnedBuffer};
use cudarc::driver::sys;
use plimsoll_core::Bytes;
use plimsoll_core::device::DeviceError;
use std::sync::{Arc, Mutex};

/// Bytes of a slot.
pub(crate) const SLOT: usize = 256;
/// Number of slots. The host waits only if the GPU is this many runs behind.
const SLOTS: usize = 4096;
/// The slots are reused in parts of this many.
const PART: usize = SLOTS / 4;

/// The slots of a GPU, created with the first run that has any scalars.
pub(crate) type SharedArguments = Arc<Mutex<Option<ArgumentRing>>>;

/// The slots of a GPU.
pub(crate) struct ArgumentRing {
    pinned: PinnedBuffer,
    /// The slot of every run: the stream executes its copy after all work of the run before.
    on_device: DeviceBuffer,
    /// For each part, when the GPU has copied all of its slots.
    copied: Vec<Event>,
    /// The slot of the next run.
    next: usize,
}

impl ArgumentRing {
    pub fn new(shared: &Arc<DeviceState>) -> Result<ArgumentRing, DeviceError> {
        let failed = |error| shared.context.failed("pinning memory for scalars", error);
        shared.bind()?;
        let pinned = PinnedBuffer::new(&shared.context, SLOTS * SLOT).map_err(failed)?;
        let on_device = DeviceBuffer::new(shared, Bytes(SLOT as u64))?;
        let copied = (0..SLOTS / PART).map(|_| Event::new(&shared.context)).collect::<Result<_, _>>().map_err(failed)?;
        Ok(ArgumentRing { pinned, on_device, copied, next: 0 })
    }

    /// Enqueues a copy of these bytes, at most a slot, and returns their address on the GPU. They are there until the
    /// next call: work that reads them has to be enqueued before that.
    pub fn put(&mut self, shared: &DeviceState, bytes: &[u8]) -> Result<u64, DeviceError> {
        assert!(bytes.len() <= SLOT, "programs with more scalars are refused when they are loaded");
        let failed = |error| shared.context.failed("copying scalars to the GPU", error);
        let (part, place) = (self.next / PART, self.next % PART);
        if place == 0 {
            // The copies that were enqueued when these slots were used last.
            self.copied[part].wait().map_err(failed)?;
        }
        let slot = self.pinned.start.wrapping_add(self.next * SLOT);
        // SAFETY: the slot is inside of the pinned memory, and the GPU has copied what was in it before.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), slot, bytes.len()) };
        // SAFETY: both sides have this length; the pinned side is not written before the event of its part.
        unsafe { sys::cuMemcpyHtoDAsync_v2(self.on_device.start, slot.cast(), bytes.len(), shared.compute.raw) }
            .result()
            .map_err(failed)?;
        if place == PART - 1 {
            self.copied[part].record(&shared.compute).map_err(failed)?;
        }
        self.next = (self.next + 1) % SLOTS;
        Ok(self.on_device.start)
    }
}
