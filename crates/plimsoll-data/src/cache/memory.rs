//! Rows kept in memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Some rows from a first one on; which of them are there is filled in as they are made.
pub(crate) struct MemoryStore {
    first: u64,
    row_bytes: usize,
    shard_rows: usize,
    shards: Vec<Mutex<Vec<u8>>>,
    present: Vec<AtomicBool>,
}

/// Rows share a lock by the megabyte: few enough locks, and rarely two workers at one.
const SHARD: usize = 1 << 20;

impl MemoryStore {
    pub fn new(first: u64, rows: u64, row_bytes: usize) -> MemoryStore {
        let rows = rows as usize;
        let shard_rows = (SHARD / row_bytes.max(1)).max(1);
        let shards = (0..rows.div_ceil(shard_rows))
            .map(|shard| Mutex::new(vec![0; shard_rows.min(rows - shard * shard_rows) * row_bytes]))
            .collect();
        MemoryStore { first, row_bytes, shard_rows, shards, present: (0..rows).map(|_| AtomicBool::new(false)).collect() }
    }

    pub fn read(&self, row: u64, out: &mut [u8]) -> bool {
        let Some(index) = self.index(row) else { return false };
        let found = self.present[index].load(Ordering::Acquire);
        if found {
            self.with(index, |kept| out.copy_from_slice(kept));
        }
        found
    }

    pub fn write(&self, row: u64, bytes: &[u8]) {
        if let Some(index) = self.index(row) {
            self.with(index, |kept| kept.copy_from_slice(bytes));
            self.present[index].store(true, Ordering::Release);
        }
    }

    fn index(&self, row: u64) -> Option<usize> {
        let index = row.checked_sub(self.first)? as usize;
        (index < self.present.len()).then_some(index)
    }

    fn with(&self, index: usize, act: impl FnOnce(&mut [u8])) {
        // A row is copied whole or its flag is not set, so a panic elsewhere is no reason to stop.
        let mut shard = self.shards[index / self.shard_rows].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        act(&mut shard[index % self.shard_rows * self.row_bytes..][..self.row_bytes]);
    }
}
