//! Host memory that programs run in.

use super::pages;
use plimsoll_core::Bytes;
use plimsoll_core::device::{DeviceError, Memory, ReservedMemory};
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
    /// Mapped by [`pages::reserve`], not allocated.
    reserved: bool,
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
        Ok(HostBuffer { start, layout, reserved: false, users: Mutex::new(()) })
    }

    /// Zeroed memory that becomes resident as it is written. None where the system has no such memory.
    ///
    /// # Errors
    ///
    /// If the process may not have that many addresses.
    pub fn reserve(device: &str, size: Bytes) -> Result<Option<HostBuffer>, DeviceError> {
        let refused = |reason: String| DeviceError::OutOfMemory { device: device.to_string(), size, reason };
        let layout = usize::try_from(size.0).ok().and_then(|bytes| bytes.checked_next_multiple_of(pages::SIZE));
        let layout = layout.filter(|bytes| *bytes > 0).and_then(|bytes| Layout::from_size_align(bytes, align_of::<Page>()).ok());
        let layout = layout.ok_or_else(|| refused("it is more than can be addressed".to_string()))?;
        match pages::reserve(layout.size()) {
            None => Ok(None),
            Some(Ok(start)) => Ok(Some(HostBuffer { start, layout, reserved: true, users: Mutex::new(()) })),
            Some(Err(error)) => Err(refused(error.to_string())),
        }
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
        if self.reserved {
            // SAFETY: reserved with this size, and no reference is left.
            unsafe { pages::release(self.start, self.layout.size()) }
        } else if self.layout.size() > 0 {
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

    fn copy_within(&mut self, from: Bytes, to: Bytes, length: Bytes) -> Result<(), DeviceError> {
        let (from, to) = (self.range(from, length.get(), "read")?, self.range(to, length.get(), "write")?);
        let _alone = self.0.lock();
        // SAFETY: both ranges are in bounds, and the lock is held. They may overlap.
        unsafe { std::ptr::copy(from, to, length.get()) };
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl ReservedMemory for CpuMemory {
    fn granule(&self) -> Bytes {
        Bytes(pages::SIZE as u64)
    }

    /// Nothing to do: the system provides a zeroed page when one is first written.
    fn commit(&mut self, offset: Bytes, length: Bytes) -> Result<(), DeviceError> {
        self.range(offset, length.get(), "commit").map(|_| ())
    }

    fn decommit(&mut self, offset: Bytes, length: Bytes) -> Result<(), DeviceError> {
        let start = self.range(offset, length.get(), "decommit")?;
        let failed = |what: String| DeviceError::Failed { device: "cpu".to_string(), what };
        if !self.0.reserved || !offset.0.is_multiple_of(pages::SIZE as u64) || !length.0.is_multiple_of(pages::SIZE as u64) {
            return Err(failed(format!("cannot decommit {length} at byte {}: only whole pages of reserved memory", offset.0)));
        }
        let _alone = self.0.lock();
        // SAFETY: whole pages of a mapping of `pages::reserve`, which this buffer owns. The lock is held, so nothing is
        // accessing them, and pages that are accessed later are zeroed ones.
        unsafe { pages::decommit(start, length.get()) }.map_err(|error| failed(format!("cannot give {length} of memory back: {error}")))
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
    fn reserved_memory_is_zeroed_when_its_pages_are_given_back() {
        let Some(buffer) = HostBuffer::reserve("cpu", Bytes::gib(16)).unwrap() else { return };
        let mut memory = CpuMemory(Arc::new(buffer));
        let last = Bytes::gib(16) - Bytes(8);
        memory.commit(Bytes(8192), Bytes(8192)).unwrap();
        memory.write(Bytes(8192), &[7; 8192]).unwrap();
        memory.write(last, &[7; 8]).unwrap();
        memory.decommit(Bytes(12288), Bytes(4096)).unwrap();
        let mut bytes = [9; 8192];
        memory.read(Bytes(8192), &mut bytes).unwrap();
        assert_eq!((bytes[4095], bytes[4096], bytes[8191]), (7, 0, 0));
        memory.copy_within(Bytes(8192), Bytes(8193), Bytes(4096)).unwrap();
        memory.read(Bytes(8192), &mut bytes).unwrap();
        assert_eq!((bytes[4096], bytes[4097]), (7, 0), "copies may overlap");
        let error = memory.decommit(Bytes(100), Bytes(4096)).unwrap_err().to_string();
        assert_eq!(error, "cpu: cannot decommit 4.00 KiB at byte 100: only whole pages of reserved memory");
        assert!(memory.decommit(Bytes::gib(16), Bytes(4096)).is_err() && memory.commit(Bytes::gib(16), Bytes(4096)).is_err());
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        let error = HostBuffer::new("cpu", Bytes(1 << 62)).err().expect("nobody has that much");
        assert_eq!(error.to_string(), "cpu could not give 4194304 TiB of memory: the system has no such piece left");
    }
}
