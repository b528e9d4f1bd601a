//! The memory that files are decoded in. All threads share it, so that one large image can have what several small ones have together; the
//! cache in memory gives rows up for an image that needs more.
//!
//! An image gets all its memory at once, so no thread waits while holding a part; and requests are served in the order they came, so that small
//! images do not starve a large one.

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
    /// What is for files alone.
    files: u64,
    /// The same together with what the cache may hold.
    all: u64,
    /// What is for each thread, if all take alike.
    share: u64,
    store: Option<Arc<Store>>,
    state: Mutex<PoolState>,
    changed: Condvar,
}

struct PoolState {
    /// What those hold that were let in.
    in_work: u64,
    /// Memory of earlier files, for later ones.
    idle: Vec<Vec<u8>>,
    /// What the cache holds.
    cached: u64,
    /// How many have come, and how many were let in.
    came: u64,
    let_in: u64,
}

/// The memory of one file in work.
pub(crate) struct DecodeMemory {
    pool: Arc<DecodePool>,
    pub region: Vec<u8>,
    /// What the decoder takes beside it.
    beside: u64,
}

/// What an item may take in the allocator's books and by rounding to pages.
const ROUNDING: u64 = 12 << 10;

/// What an item takes that needs so much memory, and whose decoder takes some for itself.
pub(crate) fn item_bytes(region: u128, work: Bytes) -> u128 {
    region.next_multiple_of(PAGE as u128) + u128::from(work.0) + u128::from(ROUNDING)
}

impl DecodePool {
    /// For files, and beside that for what `store` keeps in memory.
    pub fn new(files: Bytes, cache: Bytes, threads: usize, store: Option<Arc<Store>>) -> DecodePool {
        // Nobody has more than one, and nothing is allocated later to remember them.
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

    /// Whether an item of this many bytes takes more than there is for files.
    pub fn is_giant(&self, bytes: u128) -> bool {
        bytes > u128::from(self.files)
    }

    /// Waits until there is memory, and takes it. What [`item_bytes`] says must not be more than there is in all. The second is whether there
    /// was any waiting.
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

    /// Copies a row that was kept.
    pub fn find(&self, row: u64, out: &mut [u8]) -> Result<bool, DataError> {
        self.store.as_ref().map_or(Ok(false), |store| store.read(row, out))
    }

    /// Caches a row, if there is memory for it now. A row that is not cached is recomputed. `dear` is one that the cache had to give way to: if
    /// it gave way with others, they would take turns for ever.
    pub fn keep(&self, row: u64, bytes: &[u8], dear: bool) -> Result<(), DataError> {
        let Some(store) = &self.store else { return Ok(()) };
        if let Insertion::Needs(bytes_needed) = store.write(row, bytes, dear)?
            && self.grow_cache(store, row, bytes_needed)
        {
            // Unless it had to give way again meanwhile.
            store.write(row, bytes, dear)?;
        }
        Ok(())
    }

    /// Takes memory for the cache, which is counted before it exists, unless files need it.
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
        // Another thread may have been faster.
        if fits && store.begin(row) {
            state.cached += bytes;
        }
        fits
    }

    fn find_memory(&self, state: &mut PoolState, region: usize, beside: u64) -> Option<Vec<u8>> {
        // A region for giants is wasted on a small image, and what it takes is missed elsewhere.
        let suits = |idle: &Vec<u8>| idle.len() >= region && (idle.len() as u64 <= self.share || idle.len() / 4 <= region);
        let best = (0..state.idle.len()).filter(|&at| suits(&state.idle[at])).min_by_key(|&at| state.idle[at].len());
        if let Some(at) = best.filter(|_| beside <= self.free(state)) {
            let region = state.idle.swap_remove(at);
            state.in_work += region.len() as u64 + beside;
            return Some(region);
        }
        // Given back before the new one is taken: the two never exist together.
        let length = region.next_multiple_of(PAGE);
        let wanted = length as u64 + beside;
        let mut freed = state.drop_largest();
        while self.free(state) < wanted && state.drop_largest() {}
        if self.free(state) < wanted && (wanted > self.files || state.in_work == 0) {
            let store = self.store.as_ref().map(|store| store.give_way(wanted - self.free(state)));
            state.cached -= store.unwrap_or(0);
            freed = true;
        }
        if freed {
            give_back_freed_memory();
        }
        let spare = self.free(state).checked_sub(wanted)?;
        // A little longer than needed, so that it does not grow with every image that is slightly larger than all before.
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

    /// Says whether there was one.
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
