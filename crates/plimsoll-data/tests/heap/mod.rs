//! What is on the heap, for tests that compare it with a plan.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts what is on the heap, and the most there was since it was last asked.
pub struct Peak {
    pub live: AtomicU64,
    pub peak: AtomicU64,
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract; counting touches no
// memory that is handed out.
unsafe impl GlobalAlloc for Peak {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = self.live.fetch_add(layout.size() as u64, Relaxed) + layout.size() as u64;
        self.peak.fetch_max(live, Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.live.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: the pointer came from `System.alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
pub static HEAP: Peak = Peak { live: AtomicU64::new(0), peak: AtomicU64::new(0) };
