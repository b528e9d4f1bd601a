//! Rows cached in memory.

use crate::block::Rows;
use crate::span::Span;
use std::sync::{Mutex, MutexGuard};

/// Storage for some rows, filled as they are produced.
pub(crate) struct MemoryStore {
    span: Span,
    row_bytes: usize,
    shard_rows: usize,
    shards: Vec<Mutex<LockedRows>>,
}

/// Rows that share a lock, and are allocated and evicted together.
struct LockedRows {
    present: Vec<bool>,
    /// Whether one of them is expensive to recompute.
    expensive: bool,
    /// Empty, or the bytes of all its rows.
    bytes: Vec<u8>,
}

/// The result of inserting a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Insertion {
    /// The row was stored, or is not one of the cached rows.
    Done,
    /// This many bytes have to be reserved first, for the shard of the row.
    Needs(u64),
}

/// Bytes of a shard: large enough that there are few locks, small enough that they are rarely contended.
const SHARD: usize = 1 << 20;

impl MemoryStore {
    /// Allocates the flags only, no rows.
    pub fn new(span: Span, row_bytes: usize) -> MemoryStore {
        let rows = span.rows as usize;
        let shard_rows = (SHARD / row_bytes.max(1)).max(1);
        let shard = |shard: usize| LockedRows {
            present: vec![false; shard_rows.min(rows - shard * shard_rows)],
            expensive: false,
            bytes: Vec::new(),
        };
        let shards = (0..rows.div_ceil(shard_rows)).map(|number| Mutex::new(shard(number))).collect();
        MemoryStore { span, row_bytes, shard_rows, shards }
    }

    pub fn read(&self, row: u64, out: &mut [u8]) -> bool {
        let Some((shard, at)) = self.place(row) else { return false };
        let shard = self.lock(shard);
        if shard.present[at] {
            out.copy_from_slice(&shard.bytes[at * self.row_bytes..][..self.row_bytes]);
        }
        shard.present[at]
    }

    /// Calls `found` for each of `count` rows that is cached and `missing` for the others. Adjacent rows share one
    /// lock acquisition.
    pub fn read_each(&self, which: Rows<'_>, count: usize, mut found: impl FnMut(usize, &[u8]), mut missing: impl FnMut(usize)) {
        let mut held: Option<(usize, MutexGuard<'_, LockedRows>)> = None;
        for index in 0..count {
            let Some((number, at)) = self.place(which.row(index)) else {
                missing(index);
                continue;
            };
            // Release one lock before acquiring the next.
            let (_, shard) = match held.take().filter(|(held, _)| *held == number) {
                Some(same) => held.insert(same),
                None => held.insert((number, self.lock(number))),
            };
            match shard.present[at] {
                true => found(index, &shard.bytes[at * self.row_bytes..][..self.row_bytes]),
                false => missing(index),
            }
        }
    }

    pub fn write(&self, row: u64, bytes: &[u8], expensive: bool) -> Insertion {
        let Some((shard, at)) = self.place(row) else { return Insertion::Done };
        let mut shard = self.lock(shard);
        if shard.bytes.is_empty() {
            return Insertion::Needs((shard.present.len() * self.row_bytes) as u64);
        }
        shard.bytes[at * self.row_bytes..][..self.row_bytes].copy_from_slice(bytes);
        shard.present[at] = true;
        shard.expensive |= expensive;
        Insertion::Done
    }

    /// Allocates the shard of a row; `false` if it is already allocated.
    pub fn begin(&self, row: u64) -> bool {
        let Some((shard, _)) = self.place(row) else { return false };
        let mut shard = self.lock(shard);
        let begins = shard.bytes.is_empty();
        if begins {
            shard.bytes = vec![0; shard.present.len() * self.row_bytes];
        }
        begins
    }

    /// Evicts at least this many bytes, or everything; returns how many.
    pub fn evict(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        let twice = [false, true].into_iter().flat_map(|expensive| (0..self.shards.len()).rev().map(move |shard| (expensive, shard)));
        for (expensive, shard) in twice {
            if freed >= bytes {
                break;
            }
            let mut shard = self.lock(shard);
            if shard.expensive == expensive {
                freed += shard.bytes.len() as u64;
                shard.present.fill(false);
                (shard.expensive, shard.bytes) = (false, Vec::new());
            }
        }
        freed
    }

    /// The shard of a row, and its position in it.
    fn place(&self, row: u64) -> Option<(usize, usize)> {
        let place = self.span.position(row)? as usize;
        Some((place / self.shard_rows, place % self.shard_rows))
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, LockedRows> {
        // The flag of a row is set only after it is completely copied, so a poisoned lock can be used.
        self.shards[shard].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
