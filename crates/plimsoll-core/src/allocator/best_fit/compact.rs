//! Compaction: live blocks slide to the front of their segments, so that free memory is in one piece.

use super::heap::{Heap, NONE, RangeState};
use super::{BestFitState, Source};
use crate::Bytes;
use crate::allocator::accounts::Accounts;
use crate::allocator::{BlockRange, Relocation, SegmentId};
use std::ops::Range;

impl BestFitState {
    /// Moves blocks to lower addresses. Returns the bytes of the moves that `copy` made.
    pub(super) fn compact(&mut self, copy: &mut dyn FnMut(&Relocation) -> bool) -> u64 {
        let before = self.accounts.reserved;
        let mut moved = 0;
        for lane in 0..self.heaps.len() {
            for segment in 0..self.heaps[lane].segment_count() {
                let mut last = None;
                while let Some(id) = self.heaps[lane].next_movable(segment, last) {
                    if self.slide(lane, id, copy) {
                        moved += self.heaps[lane].node(id).size;
                        self.give_back_excess(before);
                    }
                    last = Some(id);
                }
            }
            let BestFitState { heaps, accounts, source, .. } = self;
            let mut given = 0;
            // As above: what is not given back is still in the account.
            let _ = heaps[lane].give_back_isolated(&mut *source.segments, &mut |bytes| {
                accounts.give_back(bytes);
                given += bytes;
            });
            source.release(given);
        }
        self.give_back_excess(before);
        moved
    }

    /// Memory of a new place is committed before that of the old place is free.
    fn give_back_excess(&mut self, before: u64) {
        let excess = self.accounts.reserved.saturating_sub(before);
        if excess > 0 {
            // If the device fails, the memory is still reserved, and still in the account.
            let _ = self.give_back(excess, None);
        }
    }

    /// Moves a block to the start of the free addresses before it. Its place stays as it is if there is no memory for
    /// that.
    fn slide(&mut self, lane: usize, id: u32, copy: &mut dyn FnMut(&Relocation) -> bool) -> bool {
        let BestFitState { heaps, accounts, source, limit, .. } = self;
        let heap = &mut heaps[lane];
        if !provide(heap, accounts, source, *limit, id) {
            return false;
        }
        let node = heap.node(id);
        let (block, from, front) = (heap.id(id), node.range(), heap.first_of_run(node.prev));
        let to = BlockRange { offset: Bytes(heap.node(front).offset), ..from };
        let copied = copy(&Relocation { block, from, to });
        if copied {
            heap.exchange(id);
        }
        copied
    }
}

/// Commits what has no memory of the addresses that a block will move to.
fn provide(heap: &mut Heap, accounts: &mut Accounts, source: &mut Source, limit: Option<u64>, id: u32) -> bool {
    let parts = heap.bare_before(id);
    let bytes = parts.iter().map(|(_, range)| range.end - range.start).sum::<u64>();
    if limit.is_some_and(|limit| accounts.reserved + bytes > limit) || source.take(bytes).is_err() {
        return false;
    }
    let mut missing = bytes;
    let segment = SegmentId(heap.node(id).segment);
    for (part, range) in parts {
        let size = range.end - range.start;
        if source.segments.commit(segment, range.clone()).is_err() {
            break;
        }
        heap.give_memory(part, range);
        accounts.reserve(size);
        missing -= size;
    }
    source.release(missing);
    missing == 0
}

impl Heap {
    /// The next block of a segment with free addresses before it.
    fn next_movable(&self, segment: usize, last: Option<u32>) -> Option<u32> {
        let mut id = match last {
            Some(last) => self.node(last).next,
            None => self.first(segment)?,
        };
        while id != NONE {
            let node = self.node(id);
            if node.state == RangeState::Used && node.prev != NONE && self.node(node.prev).state != RangeState::Used {
                return Some(id);
            }
            id = node.next;
        }
        None
    }

    /// The addresses that a block will move to and that no memory is behind.
    fn bare_before(&self, id: u32) -> Vec<(u32, Range<u64>)> {
        let node = self.node(id);
        let start = self.node(self.first_of_run(node.prev)).offset;
        self.commit_in(node.prev, start..node.offset.min(start + node.size)).collect()
    }

    /// Exchanges a block with the start of the free memory before it. There is memory for all of it.
    fn exchange(&mut self, id: u32) {
        let front = self.first_of_run(self.node(id).prev);
        let (start, size) = (self.node(front).offset, self.node(id).size);
        self.unbin(front);
        if self.node(front).end() == self.node(id).offset {
            let (prev, next) = (self.node(front).prev, self.node(id).next);
            self.node_mut(id).offset = start;
            self.node_mut(front).offset = start + size;
            self.link(prev, id);
            self.link(id, front);
            self.link(front, next);
        } else {
            if self.node(front).size > size {
                let rest = self.split(front, size);
                self.bin(rest);
            }
            // At least one node without memory is between them.
            let (prev, next) = (self.node(front).prev, self.node(front).next);
            let (old_prev, old_next, old_start) = (self.node(id).prev, self.node(id).next, self.node(id).offset);
            self.node_mut(id).offset = start;
            self.node_mut(front).offset = old_start;
            self.link(prev, id);
            self.link(id, next);
            self.link(old_prev, front);
            self.link(front, old_next);
        }
        if self.node(id).prev == NONE {
            self.set_first(id);
        }
        let merged = self.merge(front, RangeState::Free);
        self.bin(merged);
    }
}
