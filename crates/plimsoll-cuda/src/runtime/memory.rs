//! Device memory.

use super::granules::Granules;
use super::staging::StagingRing;
use super::state::DeviceState;
use crate::libraries::faults::advice;
use cudarc::driver::{result, sys};
use plimsoll_core::Bytes;
use plimsoll_core::device::{DeviceError, Memory, ReservedMemory};
use plimsoll_core::plan::Staging;
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

/// Zeroed device memory, freed with its last reference.
pub(crate) struct DeviceBuffer {
    pub start: sys::CUdeviceptr,
    pub size: u64,
    /// If it is a range of addresses, parts of which have memory.
    granules: Option<Granules>,
    shared: Arc<DeviceState>,
    /// The staging ring of programs in this memory; created when the first of them is loaded.
    staging_ring: OnceLock<Arc<Mutex<StagingRing>>>,
}

impl DeviceBuffer {
    pub fn new(shared: &Arc<DeviceState>, size: Bytes) -> Result<DeviceBuffer, DeviceError> {
        let refused = |reason: String| DeviceError::OutOfMemory { device: shared.context.name(), size, reason };
        let bytes = usize::try_from(size.0).map_err(|_| refused("it is more than can be addressed".to_string()))?;
        let mut slab = DeviceBuffer { start: 0, size: size.0, granules: None, shared: Arc::clone(shared), staging_ring: OnceLock::new() };
        if bytes > 0 {
            shared.bind()?;
            let reason = |error: cudarc::driver::DriverError| {
                let free = shared.context.free().unwrap_or_default();
                refused(format!("{free} are free ({error:?}){}", advice(error.0)))
            };
            // SAFETY: the memory is zeroed before it is read.
            slab.start = unsafe { result::malloc_sync(bytes) }.map_err(reason)?;
            // SAFETY: just allocated with this size.
            unsafe { result::memset_d8_sync(slab.start, 0, bytes) }.map_err(reason)?;
            result::ctx::synchronize().map_err(reason)?;
        }
        Ok(slab)
    }

    /// Addresses without memory; none if the GPU has no memory on demand.
    pub fn reserve(shared: &Arc<DeviceState>, size: Bytes) -> Result<Option<DeviceBuffer>, DeviceError> {
        shared.bind()?;
        let granules = Granules::reserve(&shared.context, size.0).map_err(|error| DeviceError::OutOfMemory {
            device: shared.context.name(),
            size,
            reason: format!("so many addresses cannot be reserved ({error:?}){}", advice(error.0)),
        })?;
        Ok(granules.map(|granules| DeviceBuffer {
            start: granules.start(),
            size: granules.size(),
            granules: Some(granules),
            shared: Arc::clone(shared),
            staging_ring: OnceLock::new(),
        }))
    }

    /// Whether these bytes are in the allocation, and have memory.
    pub fn contains(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.size)
            && self.granules.as_ref().is_none_or(|granules| granules.have_memory(offset, length))
    }

    /// Whether it is memory of this GPU.
    pub fn is_of(&self, shared: &Arc<DeviceState>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// The staging ring of the programs in this memory.
    pub fn staging_ring(&self, staging: &Staging) -> Result<Arc<Mutex<StagingRing>>, DeviceError> {
        if let Some(stage) = self.staging_ring.get() {
            return Ok(Arc::clone(stage));
        }
        let stage = StagingRing::new(&self.shared, staging, self.start)?;
        Ok(Arc::clone(self.staging_ring.get_or_init(|| Arc::new(Mutex::new(stage)))))
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.start == 0 || self.shared.synchronize().is_err() {
            return;
        }
        match &self.granules {
            // SAFETY: the GPU is idle, and this was the last reference.
            Some(granules) => unsafe { granules.release() },
            // SAFETY: allocated in `new`, freed once, and the GPU is idle.
            None => drop(unsafe { result::free_sync(self.start) }),
        }
    }
}

/// The bytes of a copy through the host.
const THROUGH_HOST: u64 = 1 << 20;

/// A [`DeviceBuffer`] behind the device interface. Loaded programs keep it alive.
pub(crate) struct CudaMemory(pub Arc<DeviceBuffer>);

impl CudaMemory {
    fn address(&self, offset: Bytes, length: usize, what: &str) -> Result<u64, DeviceError> {
        if !self.0.contains(offset.0, length as u64) {
            let what = format!("cannot {what} {length} bytes at byte {} of a memory of {}", offset.0, self.0.size);
            return Err(DeviceError::Unsupported { device: self.0.shared.context.name(), what });
        }
        self.0.shared.synchronize()?;
        Ok(self.0.start + offset.0)
    }
}

impl Memory for CudaMemory {
    fn size(&self) -> Bytes {
        Bytes(self.0.size)
    }

    fn write(&mut self, offset: Bytes, bytes: &[u8]) -> Result<(), DeviceError> {
        let to = self.address(offset, bytes.len(), "write")?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range is in bounds, and the GPU is idle.
        unsafe { result::memcpy_htod_sync(to, bytes) }.map_err(|error| self.0.shared.context.failed("transfer to the GPU", error))
    }

    fn zero(&mut self, offset: Bytes, length: Bytes) -> Result<(), DeviceError> {
        let to = self.address(offset, length.get(), "write")?;
        if length == Bytes::ZERO {
            return Ok(());
        }
        let failed = |error| self.0.shared.context.failed("filling memory", error);
        // SAFETY: the range is in bounds, and the GPU is idle.
        unsafe { result::memset_d8_sync(to, 0, length.get()) }.and_then(|()| result::ctx::synchronize()).map_err(failed)
    }

    /// Copies on the GPU; through the host where the ranges overlap but for a few bytes.
    fn copy_within(&mut self, from: Bytes, to: Bytes, length: Bytes) -> Result<(), DeviceError> {
        let (source, target) = (self.address(from, length.get(), "read")?, self.address(to, length.get(), "write")?);
        let distance = source.abs_diff(target);
        if distance == 0 || length == Bytes::ZERO {
            return Ok(());
        }
        let on_gpu = distance >= length.0.min(THROUGH_HOST);
        let part_bytes = if on_gpu { distance } else { THROUGH_HOST };
        let mut host = if on_gpu { Vec::new() } else { vec![0u8; length.0.min(part_bytes) as usize] };
        let parts = length.0.div_ceil(part_bytes);
        for part in 0..parts {
            // First the part that no later one reads.
            let start = if target < source { part } else { parts - 1 - part } * part_bytes;
            let bytes = (length.0 - start).min(part_bytes) as usize;
            let (source, target) = (source + start, target + start);
            let copied = if on_gpu {
                // SAFETY: in bounds, and not longer than their distance, so that they do not overlap. The GPU is idle
                // but for earlier copies, which run before this one.
                unsafe { result::memcpy_dtod_sync(target, source, bytes) }
            } else {
                let host = &mut host[..bytes];
                // SAFETY: both are in bounds, and the GPU is idle.
                unsafe { result::memcpy_dtoh_sync(host, source).and_then(|()| result::memcpy_htod_sync(target, host)) }
            };
            copied.map_err(|error| self.0.shared.context.failed("copying memory", error))?;
        }
        result::ctx::synchronize().map_err(|error| self.0.shared.context.failed("copying memory", error))
    }

    fn share(&self) -> Option<Box<dyn Memory>> {
        Some(Box::new(CudaMemory(Arc::clone(&self.0))))
    }

    fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let from = self.address(offset, bytes.len(), "read")?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_sync(bytes, from) }.map_err(|error| self.0.shared.context.failed("transfer from the GPU", error))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl CudaMemory {
    /// Reserved addresses and the granules of a range of them, to `what` them, when all work has completed.
    fn granules(&self, offset: Bytes, length: Bytes, what: &str) -> Result<(&Granules, Range<u64>), DeviceError> {
        let granules = self.0.granules.as_ref().and_then(|all| Some((all, all.of_range(offset.0, length.0)?)));
        let granules = granules.ok_or_else(|| DeviceError::Failed {
            device: self.0.shared.context.name(),
            what: format!("cannot {what} {length} at byte {}: only whole granules of reserved memory", offset.0),
        })?;
        self.0.shared.synchronize()?;
        Ok(granules)
    }
}

impl ReservedMemory for CudaMemory {
    fn granule(&self) -> Bytes {
        Bytes(self.0.granules.as_ref().map_or(1, Granules::granule))
    }

    fn commit(&mut self, offset: Bytes, length: Bytes) -> Result<(), DeviceError> {
        let (granules, numbers) = self.granules(offset, length, "commit")?;
        granules.commit(numbers).map_err(|error| {
            let context = &self.0.shared.context;
            let free = context.free().unwrap_or_default();
            let reason = format!("{free} are free ({error:?}){}", advice(error.0));
            DeviceError::OutOfMemory { device: context.name(), size: length, reason }
        })
    }

    fn decommit(&mut self, offset: Bytes, length: Bytes) -> Result<(), DeviceError> {
        let (granules, numbers) = self.granules(offset, length, "decommit")?;
        granules.decommit(numbers).map_err(|error| self.0.shared.context.failed("giving memory back", error))
    }
}
