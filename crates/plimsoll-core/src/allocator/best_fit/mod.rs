//! Best fit: bins by size, splitting, coalescing, memory on demand within a limit.

mod bins;
mod compact;
mod heap;
#[cfg(all(test, loom))]
mod loom_tests;
mod pages;

use super::accounts::{Accounts, Live};
use super::sync::{AtomicU32, Mutex, MutexGuard};
use super::{Allocator, AllocatorError, AllocatorId, Block, BlockRange, MemoryStats, OverLimit, Relocation, Request, Segments, Snapshot};
use crate::base::budget::{Ledger, Owner, Reservation};
use crate::{Bytes, DeviceError};
use heap::{Heap, lane_of};
use pages::Placement;
use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The limit of the memory that an allocator takes from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Limit {
    /// None: memory is taken as it is needed.
    #[default]
    OnDemand,
    /// This many bytes.
    Bytes(Bytes),
    /// This share of the memory that the device has available, above 0 and at most 1.
    Fraction(f64),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::OnDemand => f.write_str("what is needed"),
            Limit::Bytes(bytes) => bytes.fmt(f),
            Limit::Fraction(fraction) => write!(f, "{fraction} of the device"),
        }
    }
}

/// How a [`BestFit`] takes memory from its segments.
#[derive(Clone)]
pub struct BestFitOptions {
    /// The limit of reserved memory.
    pub limit: Limit,
    /// Takes all of the limit at once, as one segment, where memory cannot be committed on demand.
    pub at_once: bool,
    /// Reserved memory may exceed the peak of live blocks by this share. Before it would, memory of free blocks is
    /// given back. Committing it again costs page faults; infinity never gives anything back before the limit is
    /// reached.
    pub slack: f64,
    /// The ledger in which reserved memory stands, and its owner there.
    pub ledger: Option<(Ledger, Owner)>,
}

impl Default for BestFitOptions {
    fn default() -> BestFitOptions {
        BestFitOptions { limit: Limit::OnDemand, at_once: false, slack: 0.03, ledger: None }
    }
}

/// An allocator for blocks of any size and lifetime.
///
/// A request takes the smallest free block that fits, at the lowest address, and the rest of it stays free. A freed
/// block is merged with its free neighbours. If no free block fits, memory is committed where the fewest bytes are
/// needed: usually at the end of the segment, which grows in place. Where the device cannot do that, another segment is
/// opened.
///
/// ```
/// use plimsoll_core::Bytes;
/// use plimsoll_core::allocator::{Allocator, BestFit, BestFitOptions, Limit, OwnerId, Request, VirtualSegments};
/// let segments = VirtualSegments::new("host", Bytes(64)).on_demand(Bytes::gib(1), Bytes::kib(4));
/// let options = BestFitOptions { limit: Limit::Bytes(Bytes::mib(8)), ..BestFitOptions::default() };
/// let allocator = BestFit::new(segments, options).unwrap();
/// let conv = allocator.allocate(Request::new(Bytes::mib(6), OwnerId::named("conv"))).unwrap();
/// let refused = allocator.allocate(Request::new(Bytes::mib(4), OwnerId::named("relu"))).unwrap_err();
/// assert!(refused.to_string().contains("the largest owners are conv 6.00 MiB"));
/// allocator.free(conv).unwrap();
/// assert!(allocator.allocate(Request::new(Bytes::mib(4), OwnerId::named("relu"))).is_ok());
/// ```
pub struct BestFit {
    id: AllocatorId,
    alignment: u64,
    /// Number of compactions so far: since then, blocks may have moved.
    compactions: AtomicU32,
    inner: Mutex<BestFitState>,
}

struct BestFitState {
    /// One, or one per lane.
    heaps: Vec<Heap>,
    accounts: Accounts,
    source: Source,
    limit: Option<u64>,
    slack: f64,
    alignment: u64,
    on_demand: bool,
}

/// Where memory comes from, and the account of the process that it is reserved in.
struct Source {
    segments: Box<dyn Segments>,
    space: String,
    ledger: Option<Reservation>,
}

/// Blocks of up to these sizes, and larger ones, have address ranges of their own where memory is on demand: a small
/// block that lives long would otherwise split the free memory that large ones need.
const LANES: [u64; 1] = [1 << 20];

/// Where memory is there in whole segments: the smallest one, and the share of reserved memory that a new one has at
/// least.
const SMALLEST_SEGMENT: u64 = 1 << 20;
const SEGMENT_SHARE: u64 = 8;

/// A segment that grows in place does so by up to this share of reserved memory, and this size.
const GROWTH_SHARE: u64 = 128;
const LARGEST_GROWTH: u64 = 1 << 20;

impl BestFit {
    /// An allocator over these segments.
    ///
    /// # Errors
    /// If the limit is a fraction and the capacity is not known, or all memory is wanted at once and not there.
    pub fn new(segments: impl Segments + 'static, options: BestFitOptions) -> Result<BestFit, AllocatorError> {
        let space = segments.space();
        let refused =
            |reason: &str| AllocatorError::Limit { space: space.clone(), limit: options.limit.to_string(), reason: reason.to_string() };
        let limit = match options.limit {
            Limit::OnDemand => None,
            Limit::Bytes(bytes) => Some(bytes.0),
            Limit::Fraction(fraction) if fraction > 0.0 && fraction <= 1.0 => {
                let capacity = segments.capacity().ok_or_else(|| refused("its capacity is not known; state a number of bytes"))?;
                Some((capacity.0 as f64 * fraction) as u64)
            }
            Limit::Fraction(_) => return Err(refused("a fraction is above 0 and at most 1")),
        };
        let (alignment, granule) = (segments.alignment().0, segments.granule().map(|granule| granule.0));
        let ledger = match &options.ledger {
            Some((ledger, owner)) => Some(ledger.reserve(owner.clone(), Bytes::ZERO)?),
            None => None,
        };
        let source = Source { segments: Box::new(segments), space, ledger };
        let on_demand = granule.is_some();
        let lanes = if on_demand { LANES.len() + 1 } else { 1 };
        let heaps = (0..lanes).map(|lane| Heap::new(alignment, granule, lane as u32)).collect();
        let mut inner = BestFitState { heaps, accounts: Accounts::new(), source, limit, slack: options.slack, alignment, on_demand };
        if let (true, None, Some(limit)) = (options.at_once, granule, limit) {
            inner.open(limit & !(alignment - 1))?;
        }
        Ok(BestFit { id: AllocatorId::new(), alignment, compactions: AtomicU32::new(0), inner: Mutex::new(inner) })
    }

    /// The books are consistent between method calls even if a holder panicked, so a poisoned lock is ignored.
    fn lock(&self) -> MutexGuard<'_, BestFitState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocator for BestFit {
    fn allocate(&self, request: Request) -> Result<Block, AllocatorError> {
        // An empty block takes one unit, so that it has an address of its own. A size that overflows fits nowhere.
        let size = request.size.0.max(1).checked_next_multiple_of(self.alignment);
        let mut guard = self.lock();
        let inner = &mut *guard;
        let Some(size) = size else { return Err(inner.over_limit(&request)) };
        let lane = inner.lane(size);
        let (id, range) = match inner.heaps[lane].allocate(&request, size) {
            Some(found) => found,
            None => inner.grow(&request, size)?,
        };
        inner.accounts.allocated(request.owner, request.size.0, size);
        // Compaction counts under the lock.
        let compactions = self.compactions.load(Relaxed);
        drop(guard);
        Ok(Block { compactions, ..Block::new(self.id, id, range) })
    }

    fn free(&self, block: Block) -> Result<(), AllocatorError> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if block.allocator() == self.id
            && let Some((owner, requested, size)) = inner.heaps[lane_of(block.id())].free(block.id())
        {
            inner.accounts.freed(owner, requested, size);
            return Ok(());
        }
        Err(AllocatorError::Foreign { space: inner.source.space.clone(), size: block.size() })
    }

    fn range(&self, block: &Block) -> BlockRange {
        if block.compactions == self.compactions.load(Acquire) {
            return block.range;
        }
        self.lock().heaps[lane_of(block.id())].range(block.id()).unwrap_or(block.range)
    }

    fn stats(&self) -> MemoryStats {
        self.lock().stats()
    }

    fn snapshot(&self) -> Snapshot {
        let inner = self.lock();
        Snapshot::new(inner.stats(), &inner.accounts, inner.live())
    }

    fn give_back(&self) -> Result<Bytes, AllocatorError> {
        let mut inner = self.lock();
        let given = inner.give_back(u64::MAX, None)?;
        let BestFitState { heaps, source, .. } = &mut *inner;
        heaps.iter_mut().for_each(|heap| heap.close_empty(&mut *source.segments));
        Ok(Bytes(given))
    }

    fn compact(&self, copy: &mut dyn FnMut(&Relocation) -> bool) -> Bytes {
        let mut inner = self.lock();
        self.compactions.fetch_add(1, Release);
        Bytes(inner.compact(copy))
    }
}

impl BestFitState {
    fn stats(&self) -> MemoryStats {
        MemoryStats {
            limit: self.limit.map(Bytes),
            largest_free: Bytes(self.largest_free()),
            segments: self.heaps.iter().map(Heap::segments).sum(),
            ..self.accounts.stats(&self.source.space)
        }
    }

    fn live(&self) -> impl Iterator<Item = Live> {
        self.heaps.iter().flat_map(Heap::live)
    }

    fn largest_free(&self) -> u64 {
        self.heaps.iter().map(Heap::largest_free).max().unwrap_or(0)
    }

    /// The heap for blocks of this size.
    fn lane(&self, size: u64) -> usize {
        let lane = LANES.iter().filter(|largest| size > **largest).count();
        lane.min(self.heaps.len() - 1)
    }

    fn over_limit(&self, request: &Request) -> AllocatorError {
        let limit = self.limit.unwrap_or(u64::MAX);
        AllocatorError::OverLimit(OverLimit::new(&self.source.space, request, limit, self.largest_free(), &self.accounts, self.live()))
    }

    /// Takes more memory from the device for a block that fits into no free one.
    fn grow(&mut self, request: &Request, size: u64) -> Result<(u64, BlockRange), AllocatorError> {
        if self.limit.is_some_and(|limit| size > limit - limit.min(self.accounts.in_use)) {
            return Err(self.over_limit(request));
        }
        if self.on_demand { self.grow_in_place(request, size) } else { self.grow_by_segment(request, size) }
    }

    /// Reserved memory up to which nothing is given back.
    fn target(&self, size: u64) -> u64 {
        let live = self.accounts.peak.max(self.accounts.in_use + size);
        let target = live.saturating_add((live as f64 * self.slack) as u64);
        self.limit.map_or(target, |limit| limit.min(target))
    }

    /// Commits memory for a block where the fewest bytes are needed.
    fn grow_in_place(&mut self, request: &Request, size: u64) -> Result<(u64, BlockRange), AllocatorError> {
        let target = self.target(size);
        let excess = |inner: &BestFitState, placement: &Placement| (inner.accounts.reserved + placement.commit).saturating_sub(target);
        let placement = self.placement(size)?;
        if excess(self, &placement) > 0 {
            self.give_back(excess(self, &placement), Some(&placement))?;
        }
        if self.limit.is_some_and(|limit| self.accounts.reserved + placement.commit > limit) {
            return Err(self.over_limit(request));
        }
        // More than the block needs, so that not every small block commits memory.
        let wanted = self.accounts.reserved + placement.commit;
        let more = (self.accounts.reserved / GROWTH_SHARE).min(LARGEST_GROWTH).min(target.saturating_sub(wanted));
        self.commit(&self.heaps[self.lane(size)].extended(placement, more), request).or_else(|_| {
            // The budget or the device has less left than the limit: only what is needed, after giving all else back.
            self.give_back(u64::MAX, None)?;
            let placement = self.placement(size)?;
            self.commit(&placement, request)
        })
    }

    fn placement(&mut self, size: u64) -> Result<Placement, AllocatorError> {
        let lane = self.lane(size);
        if let Some(placement) = self.heaps[lane].placement(size) {
            return Ok(placement);
        }
        // A segment on demand has addresses only, so opening it takes nothing from the limit.
        let opened = self.source.segments.open(Bytes(size))?;
        let heap = &mut self.heaps[lane];
        heap.add(opened);
        let space = self.source.space.clone();
        heap.placement(size).ok_or_else(|| {
            let reason = "the segment has fewer addresses than were asked for".to_string();
            AllocatorError::Device(DeviceError::OutOfMemory { device: space, size: Bytes(size), reason })
        })
    }

    fn commit(&mut self, placement: &Placement, request: &Request) -> Result<(u64, BlockRange), AllocatorError> {
        let lane = self.lane(placement.size);
        let BestFitState { heaps, accounts, source, .. } = self;
        source.take(placement.commit)?;
        let mut missing = placement.commit;
        let placed = heaps[lane].place(placement, request, &mut *source.segments, &mut |bytes| {
            accounts.reserve(bytes);
            missing -= bytes;
        });
        // Only if the device had less than that.
        source.release(missing);
        Ok(placed?)
    }

    /// Opens a segment for a block.
    fn grow_by_segment(&mut self, request: &Request, size: u64) -> Result<(u64, BlockRange), AllocatorError> {
        let excess = (self.accounts.reserved + size).saturating_sub(self.target(size));
        if excess > 0 {
            self.give_back(excess, None)?;
        }
        let left = self.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.accounts.reserved));
        if size > left {
            return Err(self.over_limit(request));
        }
        let wanted = size.max(self.accounts.reserved / SEGMENT_SHARE).max(SMALLEST_SEGMENT).min(left);
        // A block that fits is better than none.
        if self.open(wanted & !(self.alignment - 1)).is_err() {
            self.give_back(u64::MAX, None)?;
            self.open(size)?;
        }
        match self.heaps[0].allocate(request, size) {
            Some(placed) => Ok(placed),
            None => Err(self.over_limit(request)),
        }
    }

    /// Opens a segment that has all of its memory from the start.
    fn open(&mut self, size: u64) -> Result<(), AllocatorError> {
        self.source.take(size)?;
        match self.source.segments.open(Bytes(size)) {
            Ok(opened) => {
                let added = self.heaps[0].add(opened);
                self.accounts.reserve(added);
                Ok(())
            }
            Err(error) => {
                self.source.release(size);
                Err(error.into())
            }
        }
    }

    fn give_back(&mut self, wanted: u64, keep: Option<&Placement>) -> Result<u64, AllocatorError> {
        let BestFitState { heaps, accounts, source, .. } = self;
        let mut given = 0;
        for heap in heaps.iter_mut().rev() {
            let before = given;
            let result = heap.give_back(wanted - before, keep, &mut *source.segments, &mut |bytes| {
                accounts.give_back(bytes);
                given += bytes;
            });
            source.release(given - before);
            result?;
            if given >= wanted {
                break;
            }
        }
        Ok(given)
    }
}

impl Source {
    fn take(&mut self, bytes: u64) -> Result<(), AllocatorError> {
        Ok(self.ledger.as_mut().map_or(Ok(()), |ledger| ledger.try_grow(Bytes(bytes)))?)
    }

    fn release(&mut self, bytes: u64) {
        if let Some(ledger) = &mut self.ledger {
            ledger.shrink(Bytes(bytes));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
