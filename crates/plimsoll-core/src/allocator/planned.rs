//! Planned: blocks at the offsets that the arena solver chose for a recorded trace.

use super::accounts::Accounts;
use super::live::LiveBlocks;
use super::segments::open_committed;
use super::trace::AllocationTrace;
use super::{Allocator, AllocatorError, AllocatorId, Block, BlockRange, MemoryStats, Opened, Relocation, Request, Segments, Snapshot};
use crate::Bytes;
use crate::plan::Layout;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An allocator for a sequence of requests that repeats: the steps of a training loop.
///
/// It has one segment of the size of the arena, with no memory lost to fragmentation. The requests after
/// [`begin`](Planned::begin) take the places of the trace, in its order. A request that differs from the trace, or
/// whose place a block of an earlier pass still has, goes to the fallback if there is one, and is refused otherwise.
///
/// ```
/// use plimsoll_core::Bytes;
/// use plimsoll_core::allocator::{Allocator, BestFit, BestFitOptions, OwnerId, Planned, Recorded, Request, VirtualSegments};
/// use std::sync::Arc;
/// let segments = || VirtualSegments::new("host", Bytes(64));
/// let best_fit: Arc<dyn Allocator> = Arc::new(BestFit::new(segments(), BestFitOptions::default()).unwrap());
/// let step = |allocator: &dyn Allocator| {
///     let [a, b] = [100, 200].map(|size| allocator.allocate(Request::new(Bytes(size), OwnerId::named("relu"))).unwrap());
///     allocator.free(a).unwrap();
///     allocator.free(b).unwrap();
/// };
/// let recorded = Recorded::new(Arc::clone(&best_fit));
/// recorded.start();
/// step(&recorded);
/// let planned = Planned::new(segments(), &recorded.finish(), Some(best_fit)).unwrap();
/// for _ in 0..3 {
///     planned.begin();
///     step(&planned);
/// }
/// assert_eq!((planned.stats().reserved, planned.outside()), (Bytes(384), 0));
/// ```
pub struct Planned {
    id: AllocatorId,
    sizes: Vec<u64>,
    layout: Layout,
    opened: Opened,
    fallback: Option<Arc<dyn Allocator>>,
    inner: Mutex<PlannedState>,
}

struct PlannedState {
    segments: Box<dyn Segments>,
    accounts: Accounts,
    /// Position in the trace.
    position: usize,
    /// Requests that the fallback served.
    outside: u64,
    blocks: LiveBlocks,
    /// Ends of the live ranges by their starts.
    ranges: BTreeMap<u64, u64>,
}

impl Planned {
    /// Plans a trace, and allocates the arena.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn new(
        mut segments: impl Segments + 'static,
        trace: &AllocationTrace,
        fallback: Option<Arc<dyn Allocator>>,
    ) -> Result<Planned, AllocatorError> {
        let alignment = segments.alignment();
        let sizes = trace.lifetimes(alignment).iter().map(|block| block.size.0).collect();
        let layout = trace.layout(alignment);
        let (opened, size) = open_committed(&mut segments, layout.size)?;
        let mut accounts = Accounts::new();
        accounts.reserve(size);
        let inner = PlannedState {
            segments: Box::new(segments),
            accounts,
            position: 0,
            outside: 0,
            blocks: LiveBlocks::default(),
            ranges: BTreeMap::new(),
        };
        Ok(Planned { id: AllocatorId::new(), sizes, layout, opened, fallback, inner: Mutex::new(inner) })
    }

    /// Starts a pass: the next request is the first of the trace.
    pub fn begin(&self) {
        self.lock().position = 0;
    }

    /// Number of requests so far that the fallback served, because they differ from the trace.
    pub fn outside(&self) -> u64 {
        self.lock().outside
    }

    /// The places of the blocks, and the lower bound of the arena.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn lock(&self) -> MutexGuard<'_, PlannedState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of the request at a position, or what is there instead.
    fn place(&self, inner: &PlannedState, request: &Request) -> Result<BlockRange, String> {
        let planned = *self.sizes.get(inner.position).ok_or_else(|| format!("{} allocations", self.sizes.len()))?;
        if request.size.0 > planned {
            return Err(Bytes(planned).to_string());
        }
        let (start, end) = (self.layout.offsets[inner.position].0, self.layout.offsets[inner.position].0 + planned);
        if inner.ranges.range(..end).next_back().is_some_and(|(_, other)| *other > start) {
            return Err("a block there that was not freed in time".to_string());
        }
        Ok(BlockRange { segment: self.opened.id, offset: Bytes(start), size: Bytes(planned) })
    }
}

impl Allocator for Planned {
    fn allocate(&self, request: Request) -> Result<Block, AllocatorError> {
        let mut inner = self.lock();
        let position = inner.position;
        match self.place(&inner, &request) {
            Ok(range) => {
                inner.position += 1;
                inner.accounts.allocated(request.owner, request.size.0, range.size.0);
                inner.ranges.insert(range.offset.0, (range.offset + range.size).0);
                let id = inner.blocks.insert(request, range);
                Ok(Block::new(self.id, id, range))
            }
            Err(planned) => {
                let Some(fallback) = &self.fallback else {
                    let (requested, location) = (request.size, request.location.to_string());
                    return Err(AllocatorError::Unplanned { position, requested, location, planned });
                };
                let block = fallback.allocate(request)?;
                inner.position += 1;
                inner.outside += 1;
                Ok(block)
            }
        }
    }

    fn free(&self, block: Block) -> Result<(), AllocatorError> {
        let mut inner = self.lock();
        if block.allocator() == self.id
            && let Some((request, range)) = inner.blocks.remove(block.id())
        {
            inner.ranges.remove(&range.offset.0);
            inner.accounts.freed(request.owner, request.size.0, range.size.0);
            return Ok(());
        }
        match &self.fallback {
            Some(fallback) => fallback.free(block),
            None => Err(AllocatorError::Foreign { space: inner.segments.space(), size: block.size() }),
        }
    }

    fn range(&self, block: &Block) -> BlockRange {
        match &self.fallback {
            Some(fallback) if block.allocator() != self.id => fallback.range(block),
            _ => block.allocated_at(),
        }
    }

    /// Statistics of the arena. The fallback has its own.
    fn stats(&self) -> MemoryStats {
        let inner = self.lock();
        let mut free = (0, 0);
        for (start, end) in
            inner.ranges.iter().map(|(start, end)| (*start, *end)).chain([(inner.accounts.reserved, inner.accounts.reserved)])
        {
            free = (end, free.1.max(start - free.0));
        }
        MemoryStats {
            limit: Some(self.layout.size),
            largest_free: Bytes(free.1),
            segments: 1,
            ..inner.accounts.stats(&inner.segments.space())
        }
    }

    fn snapshot(&self) -> Snapshot {
        let stats = self.stats();
        let inner = self.lock();
        Snapshot::new(stats, &inner.accounts, inner.blocks.iter())
    }

    fn give_back(&self) -> Result<Bytes, AllocatorError> {
        self.fallback.as_ref().map_or(Ok(Bytes::ZERO), |fallback| fallback.give_back())
    }

    fn compact(&self, copy: &mut dyn FnMut(&Relocation) -> bool) -> Bytes {
        self.fallback.as_ref().map_or(Bytes::ZERO, |fallback| fallback.compact(copy))
    }
}

impl Drop for Planned {
    fn drop(&mut self) {
        let opened = self.opened.id;
        self.lock().segments.close(opened);
    }
}
