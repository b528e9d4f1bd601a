//! The decode pool: memory for decoding that all threads share, so that one large image can use what several small
//! ones would. A cache in memory evicts rows for an image that needs more.
//!
//! An image acquires all its memory at once, so no thread waits while holding a part. Requests are served in FIFO
//! order, so that small images do not starve a large one.

#[cfg(all(test, loom))]
mod loom_tests;

use crate::DataError;
use crate::cache::{Insertion, Store};
use crate::memory::PAGE;
use crate::sync::{Condvar, Mutex, MutexGuard};
use plimsoll_core::Bytes;
use plimsoll_core::budget::give_back_freed_memory;
use std::sync::Arc;

pub(crate) struct DecodePool {
    /// Bytes for files alone.
    files: u64,
    /// Bytes for files and the cache together.
    all: u64,
    /// Bytes per thread, if all use the same.
    share: u64,
    store: Option<Arc<Store>>,
    state: Mutex<PoolState>,
    changed: Condvar,
}

struct PoolState {
    /// Bytes in use.
    in_work: u64,
    /// Buffers of earlier files for reuse.
    idle: Vec<Vec<u8>>,
    /// Bytes of the cache.
    cached: u64,
    /// Number of requests made, and of requests served.
    came: u64,
    let_in: u64,
}

/// The memory of one file being decoded.
pub(crate) struct DecodeMemory {
    pool: Arc<DecodePool>,
    pub region: Vec<u8>,
    /// Bytes that the decoder allocates itself.
    beside: u64,
}

/// Allocator overhead and page rounding per item.
const ROUNDING: u64 = 12 << 10;

/// Total bytes of an item with this buffer size and this much memory of the decoder.
pub(crate) fn item_bytes(region: u128, work: Bytes) -> u128 {
    region.next_multiple_of(PAGE as u128) + u128::from(work.0) + u128::from(ROUNDING)
}

impl DecodePool {
    /// A pool of `files` bytes, and `cache` bytes for rows of `store` in memory.
    pub fn new(files: Bytes, cache: Bytes, threads: usize, store: Option<Arc<Store>>) -> DecodePool {
        // One buffer per thread at most, so the list is never reallocated.
        let state = PoolState { in_work: 0, idle: Vec::with_capacity(threads), cached: 0, came: 0, let_in: 0 };
        DecodePool {
            files: files.0,
            all: files.0 + cache.0,
            share: files.0 / threads.max(1) as u64,
            store,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// Whether an item of this many bytes exceeds the memory for files.
    pub fn is_giant(&self, bytes: u128) -> bool {
        bytes > u128::from(self.files)
    }

    /// Blocks until memory is available and acquires it. [`item_bytes`] must not exceed the total. Also returns
    /// whether it had to wait.
    pub fn acquire(self: &Arc<Self>, region: usize, work: Bytes) -> (DecodeMemory, bool) {
        let beside = work.0 + ROUNDING;
        let mut state = self.lock();
        let number = state.came;
        state.came += 1;
        let mut waited = false;
        loop {
            if state.let_in == number
                && let Some(region) = self.find_memory(&mut state, region, beside)
            {
                state.let_in += 1;
                if state.came > state.let_in {
                    self.changed.notify_all();
                }
                return (DecodeMemory { pool: Arc::clone(self), region, beside }, waited);
            }
            waited = true;
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Copies a cached row.
    pub fn find(&self, row: u64, out: &mut [u8]) -> Result<bool, DataError> {
        self.store.as_ref().map_or(Ok(false), |store| store.read(row, out))
    }

    /// Caches a row if memory is available now; otherwise the row is recomputed in later epochs. `expensive` marks a
    /// row for which the cache had to evict others: if it were evicted as easily, they would replace each other
    /// forever.
    pub fn keep(&self, row: u64, bytes: &[u8], expensive: bool) -> Result<(), DataError> {
        let Some(store) = &self.store else { return Ok(()) };
        if let Insertion::Needs(bytes_needed) = store.write(row, bytes, expensive)?
            && self.grow_cache(store, row, bytes_needed)
        {
            // Does nothing if the shard was evicted in the meantime.
            store.write(row, bytes, expensive)?;
        }
        Ok(())
    }

    /// Allocates memory for the cache, unless files need it. It is counted before it is allocated.
    fn grow_cache(&self, store: &Store, row: u64, bytes: u64) -> bool {
        let mut state = self.lock();
        if state.cached + bytes > self.all - self.files {
            return false;
        }
        if self.free(&state) < bytes {
            while self.free(&state) < bytes && state.drop_largest() {}
            give_back_freed_memory();
        }
        let fits = self.free(&state) >= bytes;
        // Another thread may have allocated it in the meantime.
        if fits && store.begin(row) {
            state.cached += bytes;
        }
        fits
    }

    fn find_memory(&self, state: &mut PoolState, region: usize, beside: u64) -> Option<Vec<u8>> {
        // A giant buffer is wasted on a small image, because its memory is missing elsewhere.
        let suits = |idle: &Vec<u8>| idle.len() >= region && (idle.len() as u64 <= self.share || idle.len() / 4 <= region);
        let best = (0..state.idle.len()).filter(|&at| suits(&state.idle[at])).min_by_key(|&at| state.idle[at].len());
        if let Some(at) = best.filter(|_| beside <= self.free(state)) {
            let region = state.idle.swap_remove(at);
            state.in_work += region.len() as u64 + beside;
            return Some(region);
        }
        // Freed before the new one is allocated, so that the two never exist together.
        let length = region.next_multiple_of(PAGE);
        let wanted = length as u64 + beside;
        let mut freed = state.drop_largest();
        while self.free(state) < wanted && state.drop_largest() {}
        if self.free(state) < wanted && (wanted > self.files || state.in_work == 0) {
            let store = self.store.as_ref().map(|store| store.evict(wanted - self.free(state)));
            state.cached -= store.unwrap_or(0);
            freed = true;
        }
        if freed {
            give_back_freed_memory();
        }
        let spare = self.free(state).checked_sub(wanted)?;
        // Allocate slightly more than needed, so that the buffer is not reallocated for every slightly larger image.
        let used = state.in_work + state.idle_bytes() + wanted;
        let longer = (length as u64 / 4).min(spare).min(self.files.saturating_sub(used)) as usize / PAGE * PAGE;
        let region = vec![0; length + longer];
        state.in_work += region.len() as u64 + beside;
        Some(region)
    }

    fn free(&self, state: &PoolState) -> u64 {
        self.all - state.in_work - state.idle_bytes() - state.cached
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl PoolState {
    fn idle_bytes(&self) -> u64 {
        self.idle.iter().map(|region| region.len() as u64).sum()
    }

    /// Frees the largest idle buffer; returns whether there was one.
    fn drop_largest(&mut self) -> bool {
        let largest = (0..self.idle.len()).max_by_key(|&at| self.idle[at].len());
        largest.map(|at| self.idle.swap_remove(at)).is_some()
    }
}

impl Drop for DecodeMemory {
    fn drop(&mut self) {
        let region = std::mem::take(&mut self.region);
        let mut state = self.pool.lock();
        state.in_work -= region.len() as u64 + self.beside;
        state.idle.push(region);
        if state.came > state.let_in {
            self.pool.changed.notify_all();
        }
    }
}
