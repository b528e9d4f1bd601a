//! Host memory that programs run in.

use plimsoll_core::Bytes;
use plimsoll_core::device::{DeviceError, Memory};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Page alignment: a plan's offsets are then aligned for any kernel, and allocations never share a page.
#[repr(align(4096))]
struct Page;

/// Zeroed memory, freed with its last reference.
pub(crate) struct HostBuffer {
    start: NonNull<u8>,
    layout: Layout,
    /// Held by every reader and writer of the bytes: a program while it runs, or a copy to or from the host.
    users: Mutex<()>,
}

// SAFETY: the bytes are read and written only under the lock, and plain bytes belong to no thread.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// # Errors
    ///
    /// If the allocation fails.
    pub fn new(device: &str, size: Bytes) -> Result<HostBuffer, DeviceError> {
        let refused = |reason: &str| DeviceError::OutOfMemory { device: device.to_string(), size, reason: reason.to_string() };
        let bytes = usize::try_from(size.0).map_err(|_| refused("it is more than can be addressed"))?;
        let layout = Layout::from_size_align(bytes, align_of::<Page>()).map_err(|_| refused("it is more than can be addressed"))?;
        let start = if bytes == 0 {
            NonNull::<Page>::dangling().cast()
        } else {
            // SAFETY: the size is not zero.
            NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| refused("the system has no such piece left"))?
        };
        Ok(HostBuffer { start, layout, users: Mutex::new(()) })
    }

    /// The first byte. Access requires [`HostBuffer::lock`].
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub fn size(&self) -> usize {
        self.layout.size()
    }

    /// Locks access to the bytes. A poisoned lock is ignored: the bytes are valid after a panic.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated with this layout, and no reference is left.
            unsafe { dealloc(self.start.as_ptr(), self.layout) }
        }
    }
}

/// A [`HostBuffer`] behind the device interface. Loaded programs keep it alive.
pub(crate) struct CpuMemory(pub Arc<HostBuffer>);

impl CpuMemory {
    fn range(&self, offset: Bytes, length: usize, what: &str) -> Result<*mut u8, DeviceError> {
        let size = self.0.size() as u64;
        if offset.0.checked_add(length as u64).is_none_or(|end| end > size) {
            let what = format!("cannot {what} {length} bytes at byte {} of a memory of {size}", offset.0);
            return Err(DeviceError::Unsupported { device: "cpu".to_string(), what });
        }
        Ok(self.0.start().wrapping_add(offset.0 as usize))
    }
}

impl Memory for CpuMemory {
    fn size(&self) -> Bytes {
        Bytes(self.0.size() as u64)
    }

    fn write(&mut self, offset: Bytes, bytes: &[u8]) -> Result<(), DeviceError> {
        let to = self.range(offset, bytes.len(), "write")?;
        let _alone = self.0.lock();
        // SAFETY: the range is in bounds, and the lock is held.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let from = self.range(offset, bytes.len(), "read")?;
        let _alone = self.0.lock();
        // SAFETY: the range is in bounds, and the lock is held.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_keeps_its_bounds() {
        let mut memory = CpuMemory(Arc::new(HostBuffer::new("cpu", Bytes(100)).unwrap()));
        memory.write(Bytes(97), &[1, 2, 3]).unwrap();
        let mut bytes = [9; 4];
        memory.read(Bytes(96), &mut bytes).unwrap();
        assert_eq!(bytes, [0, 1, 2, 3]);
        let error = memory.write(Bytes(98), &[1, 2, 3]).unwrap_err().to_string();
        assert_eq!(error, "cpu: cannot write 3 bytes at byte 98 of a memory of 100");
        assert!(memory.read(Bytes(u64::MAX), &mut bytes).is_err());
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        let error = HostBuffer::new("cpu", Bytes(1 << 62)).err().expect("nobody has that much");
        assert_eq!(error.to_string(), "cpu could not give 4194304 TiB of memory: the system has no such piece left");
    }
}
