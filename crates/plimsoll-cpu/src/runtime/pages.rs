//! Pages of the system: addresses whose memory becomes resident when it is written, and can be given back.

use std::io;
use std::ptr::NonNull;

/// Size of a page. Systems with larger ones do not reserve memory.
pub(super) const SIZE: usize = 4096;

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::{c_int, c_long, c_void};

    unsafe extern "C" {
        pub fn mmap(address: *mut c_void, length: usize, protection: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void;
        pub fn munmap(address: *mut c_void, length: usize) -> c_int;
        pub fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
        pub fn sysconf(name: c_int) -> c_long;
    }

    pub const READ_WRITE: c_int = 1 | 2;
    pub const PRIVATE_ANONYMOUS_NO_RESERVE: c_int = 0x2 | 0x20 | 0x4000;
    pub const DONT_NEED: c_int = 4;
    pub const NO_HUGE_PAGES: c_int = 15;
    pub const PAGE_SIZE: c_int = 30;
}

/// Maps this many bytes, a multiple of the page size. None on a system without such memory.
pub(super) fn reserve(size: usize) -> Option<io::Result<NonNull<u8>>> {
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    {
        // SAFETY: asks for a number.
        if unsafe { system::sysconf(system::PAGE_SIZE) } != SIZE as std::ffi::c_long {
            return None;
        }
        // SAFETY: a new mapping, which no other code knows.
        let start = unsafe { system::mmap(std::ptr::null_mut(), size, system::READ_WRITE, system::PRIVATE_ANONYMOUS_NO_RESERVE, -1, 0) };
        if start as isize == -1 {
            return Some(Err(io::Error::last_os_error()));
        }
        // With huge pages, 2 MiB would become resident for one byte. Where the system knows none, it refuses the
        // advice. SAFETY: the mapping from above; the advice changes no contents.
        unsafe { system::madvise(start, size, system::NO_HUGE_PAGES) };
        Some(NonNull::new(start.cast()).ok_or_else(|| io::Error::other("the system mapped address zero")))
    }
    #[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
    {
        let _ = size;
        None
    }
}

/// Makes pages non-resident. They read as zeros afterwards.
///
/// # Safety
/// They are whole pages of a mapping of [`reserve`], and nothing is accessing them.
pub(super) unsafe fn decommit(start: *mut u8, size: usize) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the caller's.
        match unsafe { system::madvise(start.cast(), size, system::DONT_NEED) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (start, size);
        Ok(())
    }
}

/// Unmaps a mapping.
///
/// # Safety
/// It was returned by [`reserve`] for this size, and nothing accesses it from now on.
pub(super) unsafe fn release(start: NonNull<u8>, size: usize) {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the caller's.
        unsafe { system::munmap(start.as_ptr().cast(), size) };
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (start, size);
    }
}
