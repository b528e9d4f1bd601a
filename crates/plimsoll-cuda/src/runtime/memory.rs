//! Device memory.

use super::staging::StagingRing;
use super::state::DeviceState;
use crate::libraries::faults::advice;
use cudarc::driver::{result, sys};
use plimsoll_core::Bytes;
use plimsoll_core::device::{DeviceError, Memory};
use plimsoll_core::plan::Staging;
use std::any::Any;
use std::sync::{Arc, Mutex, OnceLock};

/// Zeroed device memory, freed with its last reference.
pub(crate) struct DeviceBuffer {
    pub start: sys::CUdeviceptr,
    pub size: u64,
    shared: Arc<DeviceState>,
    /// The staging ring of programs in this memory; created when the first of them is loaded.
    staging_ring: OnceLock<Arc<Mutex<StagingRing>>>,
}

impl DeviceBuffer {
    pub fn new(shared: &Arc<DeviceState>, size: Bytes) -> Result<DeviceBuffer, DeviceError> {
        let refused = |reason: String| DeviceError::OutOfMemory { device: shared.context.name(), size, reason };
        let bytes = usize::try_from(size.0).map_err(|_| refused("it is more than can be addressed".to_string()))?;
        let mut slab = DeviceBuffer { start: 0, size: size.0, shared: Arc::clone(shared), staging_ring: OnceLock::new() };
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
        if self.start != 0 && self.shared.synchronize().is_ok() {
            // SAFETY: allocated in `new`, freed once, and the GPU is idle.
            let _ = unsafe { result::free_sync(self.start) };
        }
    }
}

/// A [`DeviceBuffer`] behind the device interface. Loaded programs keep it alive.
pub(crate) struct CudaMemory(pub Arc<DeviceBuffer>);

impl CudaMemory {
    fn address(&self, offset: Bytes, length: usize, what: &str) -> Result<u64, DeviceError> {
        if offset.0.checked_add(length as u64).is_none_or(|end| end > self.0.size) {
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
