//! Which addresses have memory: committing it where that takes little, and giving it back.

use super::heap::{Heap, HeapSegment, NONE, RangeState};
use crate::DeviceError;
use crate::allocator::{BlockRange, Request, SegmentId, Segments};
use std::ops::Range;

/// Runs of free addresses that are compared, so that no allocation takes long.
const LOOKED_AT: usize = 8;

/// Where a block fits if memory is committed: the run of free addresses, the block's place in it, and how much memory
/// that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    segment: u32,
    /// The block before the run, if there is one: giving memory back merges the nodes of the run.
    anchor: u32,
    start: u64,
    pub size: u64,
    /// Bytes to commit.
    pub commit: u64,
    /// The end of what is to be committed: at least that of the block.
    end: u64,
}

impl Heap {
    /// Where a block of `size` bytes takes the smallest amount of new memory, if addresses are left for it.
    pub fn placement(&self, size: u64) -> Option<Placement> {
        let (mut best, mut bare, mut looked_at): (Option<Placement>, u32, usize) = (None, self.bare, 0);
        while bare != NONE && (best.is_none() || looked_at < LOOKED_AT) {
            looked_at += 1;
            let node = &self.nodes[bare as usize];
            let run = self.run(bare);
            if run.end - run.start >= size {
                // At the end of a segment, blocks are put at the front of the free addresses.
                let last = self.segment_of(bare).size == run.end;
                for start in [run.start, if last { run.start } else { run.end - size }] {
                    let commit = self.commit_size(bare, start..start + size);
                    let anchor = self.nodes[self.first_of_run(bare) as usize].prev;
                    let found = Placement { segment: node.segment, anchor, start, size, commit, end: start + size };
                    let key = |placement: &Placement| (placement.commit, placement.segment, placement.start);
                    if best.as_ref().is_none_or(|best| key(&found) < key(best)) {
                        best = Some(found);
                    }
                }
            }
            bare = node.bin_next;
        }
        best
    }

    /// A placement that commits up to `more` bytes behind its block, at the end of a segment.
    pub fn extended(&self, placement: Placement, more: u64) -> Placement {
        let first = self.first_of(&placement);
        let run = self.run(first);
        let granule = self.granule.unwrap_or(1);
        let end = placement.end.saturating_add(more & !(granule - 1));
        if run.end != self.segment_of(first).size || end > run.end {
            return placement;
        }
        Placement { commit: self.commit_size(first, placement.start..end), end, ..placement }
    }

    /// The first node of the run of a placement.
    fn first_of(&self, placement: &Placement) -> u32 {
        match self.first(placement.segment as usize) {
            Some(first) if placement.anchor == NONE => first,
            _ => self.nodes[placement.anchor as usize].next,
        }
    }

    fn commit_size(&self, bare: u32, range: Range<u64>) -> u64 {
        self.commit_in(bare, range).map(|(_, range)| range.end - range.start).sum()
    }

    /// Allocates at a placement. `committed` is called with every amount of memory that was committed, also if a later
    /// part fails.
    pub fn place(
        &mut self,
        placement: &Placement,
        request: &Request,
        segments: &mut dyn Segments,
        committed: &mut dyn FnMut(u64),
    ) -> Result<(u64, BlockRange), DeviceError> {
        let Placement { segment, start, size, end, .. } = *placement;
        let mut within = self.first_of(placement);
        let parts: Vec<(u32, Range<u64>)> = self.commit_in(within, start..end).collect();
        for (part, range) in parts {
            segments.commit(SegmentId(segment), range.clone())?;
            committed(range.end - range.start);
            within = self.give_memory(part, range);
        }
        // All addresses of the block have memory now: they are in one free block.
        while !(self.nodes[within as usize].offset <= start && start < self.nodes[within as usize].end()) {
            within = self.nodes[within as usize].next;
        }
        self.unbin(within);
        if self.nodes[within as usize].offset < start {
            let front = within;
            within = self.split(front, start - self.nodes[front as usize].offset);
            self.bin(front);
        }
        if self.nodes[within as usize].size > size {
            let rest = self.split(within, size);
            self.bin(rest);
        }
        Ok(self.use_node(within, request))
    }

    /// Gives free memory back, large blocks first and at least `wanted` bytes if there are that many, but nothing at
    /// `keep`. Memory that is there in whole segments goes with them. `returned` is called with every amount.
    pub fn give_back(
        &mut self,
        wanted: u64,
        keep: Option<&Placement>,
        segments: &mut dyn Segments,
        returned: &mut dyn FnMut(u64),
    ) -> Result<(), DeviceError> {
        let mut given = 0;
        while given < wanted {
            let candidate = self.bins.descending(&self.nodes).find_map(|id| {
                let (node, mut range) = (&self.nodes[id as usize], self.pages(id));
                if let (Some(keep), Some(granule)) = (keep, self.granule)
                    && keep.segment == node.segment
                    && keep.start < node.end()
                    && node.offset < keep.end
                {
                    // What is left of it before or behind the place.
                    let (before, behind) = (keep.start & !(granule - 1), keep.end.next_multiple_of(granule));
                    range = if range.start < before { range.start..before } else { behind.max(range.start)..range.end };
                }
                (!range.is_empty()).then_some((id, range))
            });
            let Some((id, mut range)) = candidate else { break };
            let segment = self.nodes[id as usize].segment;
            if let Some(granule) = self.granule {
                // Only what is needed, from the end: the front of a block is used first.
                let size = (wanted - given).checked_next_multiple_of(granule).unwrap_or(u64::MAX);
                range.start = range.end - size.min(range.end - range.start);
                given += range.end - range.start;
                self.decommit(id, range, segments, returned)?;
            } else {
                returned(range.end);
                given += range.end;
                self.unbin(id);
                self.discard(id);
                self.segments[segment as usize] = None;
                segments.close(SegmentId(segment));
            }
        }
        Ok(())
    }

    /// Gives back the memory of free blocks that addresses without memory separate from the blocks before them.
    pub fn give_back_isolated(&mut self, segments: &mut dyn Segments, returned: &mut dyn FnMut(u64)) -> Result<(), DeviceError> {
        let isolated = |id: &u32| {
            let prev = self.nodes[*id as usize].prev;
            prev != NONE && self.nodes[prev as usize].state == RangeState::Bare
        };
        let found: Vec<u32> = self.bins.descending(&self.nodes).filter(isolated).collect();
        for id in found {
            let range = self.pages(id);
            if !range.is_empty() {
                self.decommit(id, range, segments, returned)?;
            }
        }
        Ok(())
    }

    fn decommit(
        &mut self,
        id: u32,
        range: Range<u64>,
        segments: &mut dyn Segments,
        returned: &mut dyn FnMut(u64),
    ) -> Result<(), DeviceError> {
        segments.decommit(SegmentId(self.nodes[id as usize].segment), range.clone())?;
        returned(range.end - range.start);
        self.take_memory(id, range);
        Ok(())
    }

    /// Closes segments on demand that have no memory. Their addresses are all they hold.
    pub fn close_empty(&mut self, segments: &mut dyn Segments) {
        for index in 0..self.segments.len() {
            if let Some(HeapSegment { first, committed: 0, .. }) = self.segments[index] {
                self.unlink_bare(first);
                self.discard(first);
                self.segments[index] = None;
                segments.close(SegmentId(index as u32));
            }
        }
    }

    /// What of a free block could be given back: whole granules, or a whole segment.
    fn pages(&self, id: u32) -> Range<u64> {
        let (node, segment) = (&self.nodes[id as usize], self.segment_of(id));
        match self.granule {
            Some(granule) => node.offset.next_multiple_of(granule)..(node.end() & !(granule - 1)),
            None if node.size == segment.size => 0..node.size,
            None => 0..0,
        }
    }

    /// The first node of a run of free addresses.
    pub fn first_of_run(&self, mut id: u32) -> u32 {
        loop {
            let prev = self.nodes[id as usize].prev;
            if prev == NONE || self.nodes[prev as usize].state == RangeState::Used {
                return id;
            }
            id = prev;
        }
    }

    /// The extent of a run of free addresses, with and without memory.
    fn run(&self, id: u32) -> Range<u64> {
        let start = self.nodes[self.first_of_run(id) as usize].offset;
        let mut last = &self.nodes[id as usize];
        while last.next != NONE && self.nodes[last.next as usize].state != RangeState::Used {
            last = &self.nodes[last.next as usize];
        }
        start..last.end()
    }

    /// The parts of bare nodes of a run to which memory must be committed, in whole granules, for a range in the run.
    pub fn commit_in(&self, bare: u32, range: Range<u64>) -> impl Iterator<Item = (u32, Range<u64>)> + '_ {
        let granule = self.granule.unwrap_or(1);
        let next = |id: &u32| Some(self.nodes[*id as usize].next).filter(|next| *next != NONE);
        let nodes = std::iter::successors(Some(self.first_of_run(bare)), next);
        let nodes = nodes.map(|id| (id, &self.nodes[id as usize])).take_while({
            let end = range.end;
            move |(_, node)| node.offset < end
        });
        nodes.filter(move |(_, node)| node.state == RangeState::Bare && node.end() > range.start).map(move |(id, node)| {
            // Both ends of a bare node are multiples of the granule.
            let start = node.offset.max(range.start & !(granule - 1));
            (id, start..node.end().min(range.end.next_multiple_of(granule)))
        })
    }

    /// Turns a part of a bare node, to which memory was committed, into a free block. Returns the block.
    pub fn give_memory(&mut self, bare: u32, range: Range<u64>) -> u32 {
        self.unlink_bare(bare);
        self.segment(bare).committed += range.end - range.start;
        let mut middle = bare;
        if self.nodes[bare as usize].offset < range.start {
            middle = self.split(bare, range.start - self.nodes[bare as usize].offset);
            self.link_bare(bare);
        }
        if self.nodes[middle as usize].end() > range.end {
            let rest = self.split(middle, range.end - range.start);
            self.link_bare(rest);
        }
        self.nodes[middle as usize].state = RangeState::Free;
        let merged = self.merge(middle, RangeState::Free);
        self.bin(merged);
        merged
    }

    /// Turns a part of a free block, whose memory was given back, into a bare node.
    fn take_memory(&mut self, free: u32, range: Range<u64>) {
        self.unbin(free);
        self.segment(free).committed -= range.end - range.start;
        let (mut middle, mut front, mut rest) = (free, None, None);
        if self.nodes[free as usize].offset < range.start {
            middle = self.split(free, range.start - self.nodes[free as usize].offset);
            front = Some(free);
        }
        if self.nodes[middle as usize].end() > range.end {
            rest = Some(self.split(middle, range.end - range.start));
        }
        self.nodes[middle as usize].state = RangeState::Bare;
        // Its free neighbours are in no list yet, but none is without memory.
        let merged = self.merge(middle, RangeState::Bare);
        self.link_bare(merged);
        front.into_iter().chain(rest).for_each(|part| self.bin(part));
    }
}
