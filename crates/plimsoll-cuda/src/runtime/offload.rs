//! Offload copies to and from pinned host memory, concurrent with the computation: a stream per direction, ordered by
//! events, also inside of a CUDA graph.
//!
//! Every run forks from the compute stream and joins it before its end, so that the captured graph is complete and the
//! next run finds all data in place.

use super::memory::DeviceBuffer;
use super::state::DeviceState;
use crate::libraries::driver::{Event, PinnedBuffer, Stream};
use cudarc::driver::{DriverError, sys};
use plimsoll_core::Bytes;
use plimsoll_core::device::{BackingStore, DeviceError};
use plimsoll_core::plan::offload::{Direction, Overlap};
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// Size of the copies that measure bandwidth.
const PROBE: Bytes = Bytes::mib(64);

/// Number of such copies.
const ROUNDS: usize = 4;

/// Pinned host memory for offloaded tensors.
pub(crate) struct PinnedStore {
    start: u64,
    size: u64,
    /// Owns the bytes; locked by every access from the host.
    memory: Mutex<PinnedBuffer>,
    shared: Arc<DeviceState>,
}

impl PinnedStore {
    pub fn new(shared: &Arc<DeviceState>, size: Bytes) -> Result<PinnedStore, DeviceError> {
        shared.bind()?;
        let refused = |error: DriverError| DeviceError::OutOfMemory {
            device: "the host".to_string(),
            size,
            reason: format!("pinned for what leaves {}: {error:?}", shared.context.name()),
        };
        let memory = PinnedBuffer::new(&shared.context, size.get().max(1)).map_err(refused)?;
        Ok(PinnedStore { start: memory.start as u64, size: size.0, memory: Mutex::new(memory), shared: Arc::clone(shared) })
    }

    /// Bandwidth to and from pinned memory in bytes per second, by copies of [this size](PROBE); the fastest counts.
    pub fn measure(shared: &Arc<DeviceState>) -> Result<(f64, f64), DeviceError> {
        let failed = |error| shared.context.failed("timing copies to the host", error);
        let (store, slab) = (PinnedStore::new(shared, PROBE)?, DeviceBuffer::new(shared, PROBE)?);
        let (begin, end) = (Event::timed(&shared.context).map_err(failed)?, Event::timed(&shared.context).map_err(failed)?);
        let rate = |direction| {
            let copy = Transfer { direction, on_device: slab.start, on_host: store.start, bytes: PROBE.get() };
            let mut least = f64::INFINITY;
            for _ in 0..ROUNDS {
                begin.record(&shared.copy)?;
                // SAFETY: both sides have the size of the copy and outlive the synchronization below.
                unsafe { copy.start(&shared.copy) }?;
                end.record(&shared.copy)?;
                end.wait()?;
                least = least.min(end.seconds_since(&begin)?);
            }
            Ok(PROBE.0 as f64 / least)
        };
        Ok((rate(Direction::Out).map_err(failed)?, rate(Direction::In).map_err(failed)?))
    }

    /// The bytes from an offset on; waits until the GPU is idle.
    fn with<T>(&self, offset: Bytes, length: usize, touch: impl FnOnce(*mut u8) -> T) -> Result<T, DeviceError> {
        if offset.0.checked_add(length as u64).is_none_or(|end| end > self.size) {
            let what = format!("cannot touch {length} bytes at byte {} of a backing store of {}", offset.0, self.size);
            return Err(DeviceError::Unsupported { device: self.shared.context.name(), what });
        }
        self.shared.synchronize()?;
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(touch(memory.start.wrapping_add(offset.get())))
    }
}

impl BackingStore for PinnedStore {
    fn size(&self) -> Bytes {
        Bytes(self.size)
    }

    fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), DeviceError> {
        // SAFETY: the range is in bounds, the GPU is idle, and the lock excludes other host accesses.
        self.with(offset, bytes.len(), |from| unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) })
    }

    fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: as above.
        self.with(offset, bytes.len(), |to| unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The copies of a program, with their streams and events.
pub(crate) struct OffloadCopies {
    shared: Arc<DeviceState>,
    /// Keeps the store alive for the copies.
    _store: Arc<dyn BackingStore>,
    out: Stream,
    back: Stream,
    copies: Vec<OffloadCopy>,
    /// Points of the compute stream at which copies fork.
    forks: Vec<Event>,
}

/// Bytes copied between two memory spaces.
struct Transfer {
    direction: Direction,
    on_device: u64,
    on_host: u64,
    bytes: usize,
}

/// One copy of a program.
struct OffloadCopy {
    step: usize,
    transfer: Transfer,
    begin: usize,
    needed: usize,
    after: Option<usize>,
    done: Event,
}

impl OffloadCopies {
    /// The copies of a program, if any; `on_device` returns the address of each.
    pub fn new(
        shared: &Arc<DeviceState>,
        overlap: &Overlap,
        store: Option<&Arc<dyn BackingStore>>,
        on_device: impl Fn(usize) -> Result<u64, String>,
    ) -> Result<Option<OffloadCopies>, DeviceError> {
        if overlap.copies.is_empty() {
            return Ok(None);
        }
        let unsupported = |what: String| DeviceError::Unsupported { device: shared.context.name(), what };
        let Some((store, pinned)) = store.and_then(|store| Some((store, store.as_any().downcast_ref::<PinnedStore>()?))) else {
            return Err(unsupported("the plan keeps tensors in pinned memory, but none of this device was given".to_string()));
        };
        let failed = |error| shared.context.failed("preparing copies to the host", error);
        let mut copies = Vec::with_capacity(overlap.copies.len());
        for copy in &overlap.copies {
            if copy.backing.0 + copy.size.0 > pinned.size {
                return Err(unsupported("a tensor is planned outside of the backing store".to_string()));
            }
            copies.push(OffloadCopy {
                step: copy.step,
                transfer: Transfer {
                    direction: copy.direction,
                    on_device: on_device(copy.step).map_err(unsupported)?,
                    on_host: pinned.start + copy.backing.0,
                    bytes: copy.size.get(),
                },
                begin: copy.begin,
                needed: copy.needed,
                after: copy.after,
                done: Event::new(&shared.context).map_err(failed)?,
            });
        }
        let forks = copies.iter().map(|_| Event::new(&shared.context)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let stream = || Stream::new(&shared.context).map_err(failed);
        Ok(Some(OffloadCopies { shared: Arc::clone(shared), _store: Arc::clone(store), out: stream()?, back: stream()?, copies, forks }))
    }

    /// Starts the copies that may overlap with this step, and makes it wait for those it needs; after the last step,
    /// for all remaining ones.
    pub fn start_before(&self, step: usize) -> Result<(), DeviceError> {
        let failed = |error| self.shared.context.failed("transfer to or from the host", error);
        let mut fork: Option<&Event> = None;
        for (i, copy) in self.copies.iter().enumerate().filter(|(_, copy)| copy.begin == step && copy.transfer.bytes > 0) {
            let fork = match fork {
                Some(fork) => fork,
                None => {
                    self.forks[i].record(&self.shared.compute).map_err(failed)?;
                    *fork.insert(&self.forks[i])
                }
            };
            let stream = self.stream(copy.transfer.direction);
            stream.wait_for(fork).map_err(failed)?;
            if let Some(after) = copy.after.map(|after| &self.copies[after]).filter(|after| after.transfer.bytes > 0) {
                stream.wait_for(&after.done).map_err(failed)?;
            }
            // SAFETY: both sides are in bounds of memory that is kept alive until the program is dropped, and the
            // plan's overlap guarantees that no concurrent operation accesses them.
            unsafe { copy.transfer.start(stream) }.and_then(|()| copy.done.record(stream)).map_err(failed)?;
        }
        for copy in self.copies.iter().filter(|copy| copy.needed == step && copy.transfer.bytes > 0) {
            self.shared.compute.wait_for(&copy.done).map_err(failed)?;
        }
        Ok(())
    }

    /// Executes the copy of a step synchronously; the GPU is idle.
    pub fn copy_now(&self, step: usize) -> Result<(), DeviceError> {
        let failed = |error| self.shared.context.failed("transfer to or from the host", error);
        match self.copies.iter().find(|copy| copy.step == step && copy.transfer.bytes > 0) {
            // SAFETY: as in `start_before`; the GPU is idle.
            Some(copy) => unsafe { copy.transfer.start(&self.shared.compute) }.and_then(|()| self.shared.compute.wait()).map_err(failed),
            None => Ok(()),
        }
    }

    fn stream(&self, direction: Direction) -> &Stream {
        match direction {
            Direction::Out => &self.out,
            Direction::In => &self.back,
        }
    }
}

impl Drop for OffloadCopies {
    /// A failed run may have left copies that its compute stream does not wait for; the store is freed after this.
    fn drop(&mut self) {
        let _ = self.out.wait().and_then(|()| self.back.wait());
    }
}

impl Transfer {
    /// # Safety
    ///
    /// Both sides have this size and stay valid until the stream has executed the copy.
    unsafe fn start(&self, stream: &Stream) -> Result<(), DriverError> {
        let host = self.on_host as *mut std::ffi::c_void;
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.direction {
                Direction::Out => sys::cuMemcpyDtoHAsync_v2(host, self.on_device, self.bytes, stream.raw),
                Direction::In => sys::cuMemcpyHtoDAsync_v2(self.on_device, host, self.bytes, stream.raw),
            }
        }
        .result()
    }
}
