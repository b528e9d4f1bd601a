//! Blocks of all segments: splitting and coalescing.

use super::bins::{self, Bins};
use crate::Bytes;
use crate::allocator::accounts::Live;
use crate::allocator::{BlockRange, Opened, OwnerId, Request, SegmentId};
use std::panic::Location;

pub(super) const NONE: u32 = u32::MAX;

/// What a range of addresses is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeState {
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
pub(super) struct AddressRange {
    pub offset: u64,
    pub size: u64,
    pub segment: u32,
    pub bin_prev: u32,
    pub bin_next: u32,
    pub prev: u32,
    pub next: u32,
    pub state: RangeState,
    /// The bin of a free block.
    pub bin: u16,
    /// Counts the blocks that this node was, so that each has its own id.
    pub generation: u32,
    owner: OwnerId,
    requested: u64,
    location: &'static Location<'static>,
}

pub(super) struct HeapSegment {
    pub first: u32,
    pub size: u64,
    pub committed: u64,
}

pub(super) struct Heap {
    pub nodes: Vec<AddressRange>,
    vacant: u32,
    pub bare: u32,
    pub bins: Bins,
    pub segments: Vec<Option<HeapSegment>>,
    /// Logarithm of the alignment.
    unit: u32,
    /// If set, memory is committed on demand in multiples of this size.
    pub granule: Option<u64>,
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
        let AddressRange { offset, segment, prev, size: all, .. } = self.nodes[found as usize];
        if all == size {
            self.unbin(found);
            return Some(self.use_node(found, request));
        }
        // The rest stays where it is in the lists, if its bin does.
        let block = self.new_node(segment, offset, size, RangeState::Used);
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
        let node =
            self.nodes.get_mut(index as usize).filter(|node| node.state == RangeState::Used && node.generation == (id >> 32) as u32)?;
        let freed = (node.owner, node.requested, node.size);
        node.state = RangeState::Free;
        let AddressRange { prev, next, offset, size, .. } = *node;
        let free = |id: u32| id != NONE && self.nodes[id as usize].state == RangeState::Free;
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
        (node.state == RangeState::Used && node.generation == (id >> 32) as u32).then(|| node.range())
    }

    /// Adds a segment. Returns its memory: all of it, or none on demand.
    pub fn add(&mut self, opened: Opened) -> u64 {
        let index = opened.id.0 as usize;
        let (state, granule) = match self.granule {
            Some(granule) => (RangeState::Bare, granule),
            None => (RangeState::Free, 1 << self.unit),
        };
        let size = opened.size.0 & !(granule - 1);
        let committed = if state == RangeState::Bare { 0 } else { size };
        let first = self.new_node(opened.id.0, 0, size, state);
        if index >= self.segments.len() {
            self.segments.resize_with(index + 1, || None);
        }
        self.segments[index] = Some(HeapSegment { first, size, committed });
        if state == RangeState::Bare {
            self.link_bare(first)
        } else {
            self.bin(first)
        }
        committed
    }

    pub fn largest_free(&self) -> u64 {
        self.bins.largest(&self.nodes)
    }

    pub fn segments(&self) -> u64 {
        self.segments.iter().flatten().count() as u64
    }

    pub fn live(&self) -> impl Iterator<Item = Live> {
        self.nodes.iter().filter(|node| node.state == RangeState::Used).map(|node| Live {
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

    pub fn node(&self, id: u32) -> &AddressRange {
        &self.nodes[id as usize]
    }

    pub fn node_mut(&mut self, id: u32) -> &mut AddressRange {
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

    pub fn segment(&mut self, id: u32) -> &mut HeapSegment {
        self.segments[self.nodes[id as usize].segment as usize].as_mut().expect("a node is in an open segment")
    }

    pub fn segment_of(&self, id: u32) -> &HeapSegment {
        self.segments[self.nodes[id as usize].segment as usize].as_ref().expect("a node is in an open segment")
    }

    /// Merges a node that is in no list with neighbours of this state.
    pub fn merge(&mut self, mut id: u32, state: RangeState) -> u32 {
        let AddressRange { prev, next, .. } = self.nodes[id as usize];
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
        if self.nodes[id as usize].state == RangeState::Free { self.unbin(id) } else { self.unlink_bare(id) }
    }

    fn absorb_next(&mut self, id: u32) {
        let next = self.nodes[id as usize].next;
        let AddressRange { size, next: after, .. } = self.nodes[next as usize];
        self.nodes[id as usize].size += size;
        self.link(id, after);
        self.discard(next);
    }

    /// Splits a node that is in no list at `size` bytes. The second part, which is returned, has the same state.
    pub fn split(&mut self, id: u32, size: u64) -> u32 {
        let AddressRange { offset, size: all, segment, next, state, .. } = self.nodes[id as usize];
        let rest = self.new_node(segment, offset + size, all - size, state);
        self.nodes[id as usize].size = size;
        self.link(id, rest);
        self.link(rest, next);
        rest
    }

    pub fn use_node(&mut self, id: u32, request: &Request) -> (u64, BlockRange) {
        let node = &mut self.nodes[id as usize];
        node.state = RangeState::Used;
        node.generation = node.generation.wrapping_add(1);
        (node.owner, node.requested, node.location) = (request.owner, request.size.0, request.location);
        let range = node.range();
        (self.id(id), range)
    }

    /// The id of the block that a node is.
    pub fn id(&self, index: u32) -> u64 {
        u64::from(self.nodes[index as usize].generation) << 32 | u64::from(self.lane << INDEX_BITS | index)
    }

    fn new_node(&mut self, segment: u32, offset: u64, size: u64, state: RangeState) -> u32 {
        if self.vacant != NONE {
            let id = self.vacant;
            let node = &mut self.nodes[id as usize];
            self.vacant = node.next;
            (node.segment, node.offset, node.size, node.state, node.prev, node.next) = (segment, offset, size, state, NONE, NONE);
            return id;
        }
        let id = self.nodes.len() as u32;
        self.nodes.push(AddressRange {
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

    pub fn discard(&mut self, id: u32) {
        let node = &mut self.nodes[id as usize];
        node.state = RangeState::Vacant;
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
            next.state == RangeState::Bare && next.next == NONE
        };
        if last { bins::LAST } else { bins::bin(node.size >> self.unit) }
    }

    pub fn unbin(&mut self, id: u32) {
        self.bins.remove(&mut self.nodes, id);
    }

    pub fn link_bare(&mut self, id: u32) {
        let head = self.bare;
        (self.nodes[id as usize].bin_prev, self.nodes[id as usize].bin_next) = (NONE, head);
        if head != NONE {
            self.nodes[head as usize].bin_prev = id;
        }
        self.bare = id;
    }

    pub fn unlink_bare(&mut self, id: u32) {
        let AddressRange { bin_prev, bin_next, .. } = self.nodes[id as usize];
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

impl AddressRange {
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
                assert!(node.state == RangeState::Used || state_before != Some(node.state), "neighbours were not merged");
                match node.state {
                    RangeState::Used => live += 1,
                    RangeState::Free => free.push(id),
                    RangeState::Bare => bare.push(id),
                    RangeState::Vacant => panic!("a vacant node is linked"),
                }
                committed += if node.state == RangeState::Bare { 0 } else { node.size };
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
