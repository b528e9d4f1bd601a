//! A counting global allocator: it measures untracked heap, and lets tests assert that code does not allocate.

#![allow(unsafe_code, reason = "a global allocator is an unsafe trait")]

use super::Bytes;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The system allocator with three counters. A program opts in with `#[global_allocator]`.
///
/// Counters are sharded: threads that allocate at the same time would otherwise contend for one cache line.
///
/// ```
/// use plimsoll_core::budget::CountingAllocator;
/// #[global_allocator]
/// static HEAP: CountingAllocator = CountingAllocator::new();
///
/// let before = HEAP.allocations();
/// let numbers = vec![1u8; 1000];
/// assert!(HEAP.allocations() > before && HEAP.live().0 >= 1000);
/// # drop(numbers);
/// ```
pub struct CountingAllocator {
    shards: [CounterShard; SHARDS],
    /// Live bytes without those that shards have not added yet.
    live: AtomicU64,
    peak: AtomicU64,
}

/// The counters of some threads, aligned so that no two shards share a cache line.
#[repr(align(128))]
struct CounterShard {
    /// Bytes that are not in the sum of all threads yet; negative numbers wrap.
    pending: AtomicU64,
    allocations: AtomicU64,
}

const SHARDS: usize = 16;

/// From this number of bytes on, a shard adds what is pending to the sum of all threads.
const PENDING_AT_MOST: u64 = 4 << 10;

thread_local! {
    /// The shard of this thread. Without a destructor, so that it can be read whenever a thread allocates.
    static OWN_SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Threads that have a shard so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

fn own_shard() -> usize {
    OWN_SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(THREADS.fetch_add(1, Relaxed) % SHARDS);
        }
        shard.get()
    })
}

impl CountingAllocator {
    /// Counters at zero.
    pub const fn new() -> CountingAllocator {
        let shards = [const { CounterShard { pending: AtomicU64::new(0), allocations: AtomicU64::new(0) } }; SHARDS];
        CountingAllocator { shards, live: AtomicU64::new(0), peak: AtomicU64::new(0) }
    }

    /// Live heap bytes.
    pub fn live(&self) -> Bytes {
        let pending = self.shards.iter().map(|shard| shard.pending.load(Relaxed));
        let live = pending.fold(self.live.load(Relaxed), u64::wrapping_add);
        // Another thread may move bytes from its shard to the sum meanwhile.
        Bytes(live.cast_signed().max(0).cast_unsigned())
    }

    /// Peak of live heap bytes. If several threads allocate, it may be too small by 4 KiB for each of them.
    pub fn peak(&self) -> Bytes {
        self.live().max(Bytes(self.peak.load(Relaxed)))
    }

    /// Number of allocations since the program started.
    pub fn allocations(&self) -> u64 {
        self.shards.iter().map(|shard| shard.allocations.load(Relaxed)).sum()
    }

    fn grew(&self, bytes: usize) {
        let shard = &self.shards[own_shard()];
        shard.allocations.fetch_add(1, Relaxed);
        self.add(shard, bytes as u64);
    }

    fn shrank(&self, bytes: usize) {
        self.add(&self.shards[own_shard()], (bytes as u64).wrapping_neg());
    }

    /// Adds bytes, or the negative of bytes. Wrapping, because an allocator must not panic.
    fn add(&self, shard: &CounterShard, bytes: u64) {
        let pending = shard.pending.fetch_add(bytes, Relaxed).wrapping_add(bytes);
        if pending.cast_signed().unsigned_abs() >= PENDING_AT_MOST {
            let pending = shard.pending.swap(0, Relaxed);
            let live = self.live.fetch_add(pending, Relaxed).wrapping_add(pending);
            // After a decrease, the sum is no peak; and while another thread subtracts what this one added, it may even
            // be negative.
            if pending.cast_signed() > 0 && live.cast_signed() > 0 {
                self.peak.fetch_max(live, Relaxed);
            }
        }
    }
}

/// Makes the system allocator return large freed blocks at once. By default, it raises its threshold for that with
/// every freed block, and the memory of planning stays resident in gaps. Call it first thing in a program; it does
/// nothing where the allocator has no such call.
pub fn return_freed_memory_early() {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.early = true;
    if kept.guards == 0 {
        return_blocks_of(EARLY);
    }
}

/// While it lives, the system allocator keeps freed blocks, also if the program asked for
/// [their early return](return_freed_memory_early): several threads that allocate would wait for the system, which
/// changes the address space of all of them with every block.
pub struct KeepFreedMemory(());

impl KeepFreedMemory {
    /// Keeps freed memory from now on.
    pub fn new() -> KeepFreedMemory {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        kept.guards += 1;
        if kept.early {
            return_blocks_of(LATE);
        }
        KeepFreedMemory(())
    }
}

impl Default for KeepFreedMemory {
    fn default() -> KeepFreedMemory {
        KeepFreedMemory::new()
    }
}

impl Drop for KeepFreedMemory {
    fn drop(&mut self) {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        kept.guards -= 1;
        if kept.early && kept.guards == 0 {
            return_blocks_of(EARLY);
        }
    }
}

/// Whether the program asked for the early return of freed memory, and how many guards keep it.
struct Kept {
    early: bool,
    guards: usize,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { early: false, guards: 0 });

/// Sizes from which freed blocks are returned at once: by default, and where several threads allocate.
const EARLY: i32 = 128 << 10;
const LATE: i32 = 32 << 20;

/// Makes the system allocator return freed blocks from this size on.
fn return_blocks_of(bytes: i32) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const LARGEST_FAST_BLOCK: i32 = 1;
        const TRIM_THRESHOLD: i32 = -1;
        const MMAP_THRESHOLD: i32 = -3;
        unsafe extern "C" {
            fn mallopt(parameter: i32, value: i32) -> i32;
        }
        // SAFETY: part of the C library that the program is linked to; may be called by any thread at any time.
        unsafe {
            mallopt(TRIM_THRESHOLD, bytes);
            mallopt(MMAP_THRESHOLD, bytes);
            // Lists of freed small blocks are merged whenever a large block is freed; without them planning takes a
            // sixth less time.
            mallopt(LARGEST_FAST_BLOCK, 0);
        }
    }
    let _ = bytes;
}

/// Returns freed memory to the operating system, which otherwise counts it as resident. Does nothing where the system
/// allocator does this itself or has no such call.
pub fn give_back_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(keep: usize) -> i32;
        }
        // SAFETY: part of the C library that the program is linked to; may be called by any thread at any time.
        unsafe { malloc_trim(0) };
    }
}

/// Returns freed memory to the operating system, if the program asked for [its early return](return_freed_memory_early)
/// and no [guard](KeepFreedMemory) keeps it. The system allocator returns small blocks only from the end of its memory:
/// a search that tries many plans would hold twice what it uses.
pub fn give_back_unused_memory() {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.early && kept.guards == 0 {
        give_back_freed_memory();
    }
}

impl Default for CountingAllocator {
    fn default() -> CountingAllocator {
        CountingAllocator::new()
    }
}

// SAFETY: every call is forwarded to `System` unchanged; the counters never access the memory, and nothing here
// unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc`, which is that of `System`.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            self.grew(layout.size());
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc_zeroed`, which is that of `System`.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            self.grew(layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory came from `System` through the methods above, with this layout.
        unsafe { System.dealloc(memory, layout) };
        self.shrank(layout.size());
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the memory came from `System` through the methods above, with this layout; the caller vouches for
        // `size`.
        let moved = unsafe { System.realloc(memory, layout, size) };
        if !moved.is_null() {
            self.shrank(layout.size());
            self.grew(size);
        }
        moved
    }
}
