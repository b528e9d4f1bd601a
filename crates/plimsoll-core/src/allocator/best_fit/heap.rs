//! Blocks of all segments: splitting, coalescing, and which addresses have memory.

use super::bins::{self, Bins};
use crate::allocator::accounts::Live;
use crate::allocator::{BlockRange, Opened, OwnerId, Request, SegmentId, Segments};
use crate::{Bytes, DeviceError};
use std::ops::Range;
use std::panic::Location;

pub(super) const NONE: u32 = u32::MAX;

/// Runs of free addresses that are compared, so that no allocation takes long.
const LOOKED_AT: usize = 8;

/// What a range of addresses is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A live block.
    Used,
    /// Memory that no block uses. In a bin; no neighbour is free, too.
    Free,
    /// Addresses without memory. In the list of these; no neighbour is one, too.
    Bare,
    /// No range: a node to be used again.
    Vacant,
}

/// A range of addresses. Those of a segment are linked in the order of their offsets and leave none out.
pub(super) struct Node {
    pub offset: u64,
    pub size: u64,
    pub segment: u32,
    pub bin_prev: u32,
    pub bin_next: u32,
    pub prev: u32,
    pub next: u32,
    pub state: State,
    /// The bin of a free block.
    pub bin: u16,
    /// Counts the blocks that this node was, so that each has its own id.
    pub generation: u32,
    owner: OwnerId,
    requested: u64,
    location: &'static Location<'static>,
}

struct Segment {
    first: u32,
    size: u64,
    committed: u64,
}

/// Where a block fits if memory is committed: the run of free addresses, the block's place in it, and how much memory that takes.
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

pub(super) struct Heap {
    nodes: Vec<Node>,
    vacant: u32,
    bare: u32,
    bins: Bins,
    segments: Vec<Option<Segment>>,
    /// Logarithm of the alignment.
    unit: u32,
    /// If set, memory is committed on demand in multiples of this size.
    granule: Option<u64>,
    /// Number of the heap, which the ids of its blocks name.
    lane: u32,
}

/// An id is the generation of a node, the lane, and the index of the node.
const INDEX_BITS: u32 = 30;

/// The lane of the heap that a block is in.
pub(super) fn lane_of(id: u64) -> usize {
    (id as u32 >> INDEX_BITS) as usize
}

fn index_of(id: u64) -> u32 {
    id as u32 & ((1 << INDEX_BITS) - 1)
}

impl Heap {
    pub fn new(alignment: u64, granule: Option<u64>, lane: u32) -> Heap {
        let unit = alignment.trailing_zeros();
        Heap { nodes: Vec::new(), vacant: NONE, bare: NONE, bins: Bins::new(), segments: Vec::new(), unit, granule, lane }
    }

    /// A block in reserved memory, if one fits.
    pub fn allocate(&mut self, request: &Request, size: u64) -> Option<(u64, BlockRange)> {
        let found = self.bins.best(&self.nodes, size, size >> self.unit)?;
        let Node { offset, segment, prev, size: all, .. } = self.nodes[found as usize];
        if all == size {
            self.unbin(found);
            return Some(self.use_node(found, request));
        }
        // The rest stays where it is in the lists, if its bin does.
        let block = self.new_node(segment, offset, size, State::Used);
        self.link(prev, block);
        self.link(block, found);
        if prev == NONE {
            self.set_first(block);
        }
        let rest = &mut self.nodes[found as usize];
        rest.offset += size;
        rest.size -= size;
        self.rebin(found);
        Some(self.use_node(block, request))
    }

    /// Frees a block. Returns its owner, its requested bytes and its size; none if there is no such block.
    pub fn free(&mut self, id: u64) -> Option<(OwnerId, u64, u64)> {
        let index = index_of(id);
        let node = self.nodes.get_mut(index as usize).filter(|node| node.state == State::Used && node.generation == (id >> 32) as u32)?;
        let freed = (node.owner, node.requested, node.size);
        node.state = State::Free;
        let Node { prev, next, offset, size, .. } = *node;
        let free = |id: u32| id != NONE && self.nodes[id as usize].state == State::Free;
        match (free(prev), free(next)) {
            (false, false) => self.bin(index),
            (true, false) => {
                self.absorb_next(prev);
                self.rebin(prev);
            }
            (true, true) => {
                self.unbin(next);
                self.absorb_next(prev);
                self.absorb_next(prev);
                self.rebin(prev);
            }
            (false, true) => {
                let merged = &mut self.nodes[next as usize];
                merged.offset = offset;
                merged.size += size;
                self.link(prev, next);
                if prev == NONE {
                    self.set_first(next);
                }
                self.discard(index);
                self.rebin(next);
            }
        }
        Some(freed)
    }

    /// The range of a live block.
    pub fn range(&self, id: u64) -> Option<BlockRange> {
        let node = self.nodes.get(index_of(id) as usize)?;
        (node.state == State::Used && node.generation == (id >> 32) as u32).then(|| node.range())
    }

    /// Adds a segment. Returns its memory: all of it, or none on demand.
    pub fn add(&mut self, opened: Opened) -> u64 {
        let index = opened.id.0 as usize;
        let (state, granule) = match self.granule {
            Some(granule) => (State::Bare, granule),
            None => (State::Free, 1 << self.unit),
        };
        let size = opened.size.0 & !(granule - 1);
        let committed = if state == State::Bare { 0 } else { size };
        let first = self.new_node(opened.id.0, 0, size, state);
        if index >= self.segments.len() {
            self.segments.resize_with(index + 1, || None);
        }
        self.segments[index] = Some(Segment { first, size, committed });
        if state == State::Bare {
            self.link_bare(first)
        } else {
            self.bin(first)
        }
        committed
    }

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

    /// Allocates at a placement. `committed` is called with every amount of memory that was committed, also if a later part fails.
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
            prev != NONE && self.nodes[prev as usize].state == State::Bare
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
            if let Some(Segment { first, committed: 0, .. }) = self.segments[index] {
                self.unlink_bare(first);
                self.discard(first);
                self.segments[index] = None;
                segments.close(SegmentId(index as u32));
            }
        }
    }

    pub fn largest_free(&self) -> u64 {
        self.bins.largest(&self.nodes)
    }

    pub fn segments(&self) -> u64 {
        self.segments.iter().flatten().count() as u64
    }

    pub fn live(&self) -> impl Iterator<Item = Live> {
        self.nodes.iter().filter(|node| node.state == State::Used).map(|node| Live {
            range: node.range(),
            request: Request { size: Bytes(node.requested), owner: node.owner, location: node.location },
        })
    }

    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// The first node of a segment, if it is open.
    pub fn first(&self, segment: usize) -> Option<u32> {
        self.segments[segment].as_ref().map(|segment| segment.first)
    }

    pub fn set_first(&mut self, id: u32) {
        self.segment(id).first = id;
    }

    pub fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    pub fn node_mut(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// Makes one node the next of the other. Either may be none.
    pub fn link(&mut self, before: u32, after: u32) {
        if before != NONE {
            self.nodes[before as usize].next = after;
        }
        if after != NONE {
            self.nodes[after as usize].prev = before;
        }
    }

    fn segment(&mut self, id: u32) -> &mut Segment {
        self.segments[self.nodes[id as usize].segment as usize].as_mut().expect("a node is in an open segment")
    }

    fn segment_of(&self, id: u32) -> &Segment {
        self.segments[self.nodes[id as usize].segment as usize].as_ref().expect("a node is in an open segment")
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
            if prev == NONE || self.nodes[prev as usize].state == State::Used {
                return id;
            }
            id = prev;
        }
    }

    /// The extent of a run of free addresses, with and without memory.
    fn run(&self, id: u32) -> Range<u64> {
        let start = self.nodes[self.first_of_run(id) as usize].offset;
        let mut last = &self.nodes[id as usize];
        while last.next != NONE && self.nodes[last.next as usize].state != State::Used {
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
        nodes.filter(move |(_, node)| node.state == State::Bare && node.end() > range.start).map(move |(id, node)| {
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
        self.nodes[middle as usize].state = State::Free;
        let merged = self.merge(middle, State::Free);
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
        self.nodes[middle as usize].state = State::Bare;
        // Its free neighbours are in no list yet, but none is without memory.
        let merged = self.merge(middle, State::Bare);
        self.link_bare(merged);
        front.into_iter().chain(rest).for_each(|part| self.bin(part));
    }

    /// Merges a node that is in no list with neighbours of this state.
    pub fn merge(&mut self, mut id: u32, state: State) -> u32 {
        let Node { prev, next, .. } = self.nodes[id as usize];
        if next != NONE && self.nodes[next as usize].state == state {
            self.unlist(next);
            self.absorb_next(id);
        }
        if prev != NONE && self.nodes[prev as usize].state == state {
            self.unlist(prev);
            self.absorb_next(prev);
            id = prev;
        }
        id
    }

    fn unlist(&mut self, id: u32) {
        if self.nodes[id as usize].state == State::Free { self.unbin(id) } else { self.unlink_bare(id) }
    }

    fn absorb_next(&mut self, id: u32) {
        let next = self.nodes[id as usize].next;
        let Node { size, next: after, .. } = self.nodes[next as usize];
        self.nodes[id as usize].size += size;
        self.link(id, after);
        self.discard(next);
    }

    /// Splits a node that is in no list at `size` bytes. The second part, which is returned, has the same state.
    pub fn split(&mut self, id: u32, size: u64) -> u32 {
        let Node { offset, size: all, segment, next, state, .. } = self.nodes[id as usize];
        let rest = self.new_node(segment, offset + size, all - size, state);
        self.nodes[id as usize].size = size;
        self.link(id, rest);
        self.link(rest, next);
        rest
    }

    fn use_node(&mut self, id: u32, request: &Request) -> (u64, BlockRange) {
        let node = &mut self.nodes[id as usize];
        node.state = State::Used;
        node.generation = node.generation.wrapping_add(1);
        (node.owner, node.requested, node.location) = (request.owner, request.size.0, request.location);
        let range = node.range();
        (self.id(id), range)
    }

    /// The id of the block that a node is.
    pub fn id(&self, index: u32) -> u64 {
        u64::from(self.nodes[index as usize].generation) << 32 | u64::from(self.lane << INDEX_BITS | index)
    }

    fn new_node(&mut self, segment: u32, offset: u64, size: u64, state: State) -> u32 {
        if self.vacant != NONE {
            let id = self.vacant;
            let node = &mut self.nodes[id as usize];
            self.vacant = node.next;
            (node.segment, node.offset, node.size, node.state, node.prev, node.next) = (segment, offset, size, state, NONE, NONE);
            return id;
        }
        let id = self.nodes.len() as u32;
        self.nodes.push(Node {
            offset,
            size,
            segment,
            bin_prev: NONE,
            bin_next: NONE,
            prev: NONE,
            next: NONE,
            state,
            bin: 0,
            generation: 0,
            owner: OwnerId(0),
            requested: 0,
            location: Location::caller(),
        });
        id
    }

    fn discard(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        node.state = State::Vacant;
        node.next = self.vacant;
        self.vacant = id;
    }

    pub fn bin(&mut self, id: u32) {
        let bin = self.bin_of(id);
        self.bins.insert(&mut self.nodes, id, bin);
    }

    /// Moves a free block whose size changed to its bin.
    fn rebin(&mut self, id: u32) {
        let bin = self.bin_of(id);
        if bin != self.nodes[id as usize].bin {
            self.bins.remove(&mut self.nodes, id);
            self.bins.insert(&mut self.nodes, id, bin);
        }
    }

    fn bin_of(&self, id: u32) -> u16 {
        let node = &self.nodes[id as usize];
        let last = node.next != NONE && {
            let next = &self.nodes[node.next as usize];
            next.state == State::Bare && next.next == NONE
        };
        if last { bins::LAST } else { bins::bin(node.size >> self.unit) }
    }

    pub fn unbin(&mut self, id: u32) {
        self.bins.remove(&mut self.nodes, id);
    }

    fn link_bare(&mut self, id: u32) {
        let head = self.bare;
        (self.nodes[id as usize].bin_prev, self.nodes[id as usize].bin_next) = (NONE, head);
        if head != NONE {
            self.nodes[head as usize].bin_prev = id;
        }
        self.bare = id;
    }

    fn unlink_bare(&mut self, id: u32) {
        let Node { bin_prev, bin_next, .. } = self.nodes[id as usize];
        if bin_prev == NONE {
            self.bare = bin_next;
        } else {
            self.nodes[bin_prev as usize].bin_next = bin_next;
        }
        if bin_next != NONE {
            self.nodes[bin_next as usize].bin_prev = bin_prev;
        }
    }
}

impl Node {
    pub fn end(&self) -> u64 {
        self.offset + self.size
    }

    pub fn range(&self) -> BlockRange {
        BlockRange { segment: SegmentId(self.segment), offset: Bytes(self.offset), size: Bytes(self.size) }
    }
}

#[cfg(test)]
impl Heap {
    /// Walks every segment and list, and panics where they disagree.
    pub fn check(&self) {
        let (mut free, mut bare, mut live) = (Vec::new(), Vec::new(), 0);
        for (index, segment) in self.segments.iter().enumerate().filter_map(|(index, segment)| Some((index, segment.as_ref()?))) {
            let (mut id, mut before, mut offset, mut committed) = (segment.first, NONE, 0, 0);
            while id != NONE {
                let node = &self.nodes[id as usize];
                assert_eq!((node.segment as usize, node.prev, node.offset), (index, before, offset));
                assert!(node.size > 0 && node.size.is_multiple_of(1 << self.unit));
                let state_before = (before != NONE).then(|| self.nodes[before as usize].state);
                assert!(node.state == State::Used || state_before != Some(node.state), "neighbours were not merged");
                match node.state {
                    State::Used => live += 1,
                    State::Free => free.push(id),
                    State::Bare => bare.push(id),
                    State::Vacant => panic!("a vacant node is linked"),
                }
                committed += if node.state == State::Bare { 0 } else { node.size };
                (before, offset, id) = (id, node.end(), node.next);
            }
            assert_eq!((offset, committed), (segment.size, segment.committed));
        }
        let mut binned: Vec<u32> = self.bins.descending(&self.nodes).collect();
        binned.sort_unstable();
        free.sort_unstable();
        assert_eq!(binned, free);
        let next = |id: &u32| Some(self.nodes[*id as usize].bin_next).filter(|id| *id != NONE);
        let mut listed: Vec<u32> = std::iter::successors(Some(self.bare).filter(|id| *id != NONE), next).collect();
        listed.sort_unstable();
        bare.sort_unstable();
        assert_eq!(listed, bare);
        let vacant = std::iter::successors(Some(self.vacant).filter(|id| *id != NONE), |id| {
            Some(self.nodes[*id as usize].next).filter(|id| *id != NONE)
        });
        assert_eq!(vacant.count() + free.len() + bare.len() + live, self.nodes.len(), "no node is lost");
    }
}
