//! Allocators: memory for blocks whose lifetimes are not known in advance, within a byte limit and with exact
//! accounting.
//!
//! An [`Allocator`] hands out address ranges, not pointers: a segment, an offset and a size. The same implementation
//! therefore manages host, pinned and device memory. Where the memory comes from is a [`Segments`].
//!
//! | allocator | places a block | for |
//! |---|---|---|
//! | [`BestFit`] | in the smallest free block that fits; splits and coalesces | eager tensors |
//! | [`Planned`] | at the offset that the arena solver chose for a recorded trace | loops that repeat |
//! | [`Bump`] | after the previous block; starts over when all are freed | scratch memory |
//! | [`System`] | in an allocation of its own | debugging, few large blocks |

mod accounts;
mod best_fit;
mod bump;
mod error;
mod live;
mod owners;
mod planned;
mod segments;
mod snapshot;
mod stats;
mod sync;
mod system;
mod trace;

pub use best_fit::{BestFit, BestFitOptions, Limit};
pub use bump::Bump;
pub use error::{AllocatorError, OverLimit};
pub use owners::OwnerId;
pub use planned::Planned;
pub use segments::{DeviceSegments, Memories, Opened, PinnedSegments, SegmentId, Segments, VirtualSegments};
pub use snapshot::{AllocationSite, Growth, LiveBlock, OwnerUse, Snapshot};
pub use stats::{MemoryStats, SizeClass};
pub use system::System;
pub use trace::{AllocationTrace, Event, Recorded};

use crate::Bytes;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// An allocator of address ranges. All methods may be called by any thread at any time.
///
/// Implement it to supply an allocator of your own: blocks are created with [`Block::new`].
pub trait Allocator: Send + Sync {
    /// Allocates a block of at least the requested size. A refused request changes nothing.
    ///
    /// # Errors
    /// If the limit would be exceeded, or the device has no memory left.
    fn allocate(&self, request: Request) -> Result<Block, AllocatorError>;

    /// Frees a block. Its memory is used again at once.
    ///
    /// # Errors
    /// If the block belongs to another allocator.
    fn free(&self, block: Block) -> Result<(), AllocatorError>;

    /// Where the block is now. It changes only in [`compact`](Allocator::compact).
    fn range(&self, block: &Block) -> BlockRange;

    /// Statistics, without a walk over the blocks.
    fn stats(&self) -> MemoryStats;

    /// Statistics, owners, and the live blocks with where they were made.
    fn snapshot(&self) -> Snapshot;

    /// Gives memory that no block uses back to the device. Returns how much.
    ///
    /// # Errors
    /// If the device fails.
    fn give_back(&self) -> Result<Bytes, AllocatorError> {
        Ok(Bytes::ZERO)
    }

    /// Moves blocks together, so that free memory is in one piece. `copy` copies the bytes of each move, in order;
    /// where it returns false, the block stays. Ranges from before are invalid afterwards: no kernel may be using them.
    ///
    /// Returns the bytes that were moved. An allocator that cannot move blocks does nothing.
    fn compact(&self, copy: &mut dyn FnMut(&Relocation) -> bool) -> Bytes {
        let _ = copy;
        Bytes::ZERO
    }
}

/// What a block is asked for: its size, its owner, and the place in the source that asks.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Requested bytes.
    pub size: Bytes,
    /// The owner.
    pub owner: OwnerId,
    /// Where in the source it is made.
    pub location: &'static Location<'static>,
}

impl Request {
    /// A request made at the caller's place in the source.
    #[track_caller]
    pub fn new(size: Bytes, owner: OwnerId) -> Request {
        Request { size, owner, location: Location::caller() }
    }
}

/// An address range in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// The segment.
    pub segment: SegmentId,
    /// Offset of the first byte in the segment.
    pub offset: Bytes,
    /// Its bytes: those requested, rounded up to the alignment.
    pub size: Bytes,
}

/// An allocated block. It is not freed when it is dropped: give it to [`Allocator::free`], or use an [`Allocation`].
#[derive(Debug)]
#[must_use = "a block that is dropped is never freed"]
pub struct Block {
    id: u64,
    allocator: AllocatorId,
    /// Compactions before it was allocated.
    compactions: u32,
    range: BlockRange,
}

impl Block {
    /// A block of this allocator. `id` is the allocator's own name for it.
    pub fn new(allocator: AllocatorId, id: u64, range: BlockRange) -> Block {
        Block { id, allocator, compactions: 0, range }
    }

    /// The allocator's own name for it. No two live blocks of an allocator share one.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The allocator that it belongs to.
    pub fn allocator(&self) -> AllocatorId {
        self.allocator
    }

    /// Its bytes.
    pub fn size(&self) -> Bytes {
        self.range.size
    }

    /// Where it was allocated. [`Allocator::range`] says where it is.
    pub fn allocated_at(&self) -> BlockRange {
        self.range
    }
}

/// Identity of an allocator within the process, so that no block is freed to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllocatorId(u32);

impl AllocatorId {
    /// An identity that no other allocator of the process has.
    #[expect(clippy::new_without_default, reason = "every call returns another one")]
    pub fn new() -> AllocatorId {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        AllocatorId(NEXT.fetch_add(1, Relaxed))
    }
}

/// A block that changes its place during compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// The [id](Block::id) of the block.
    pub block: u64,
    /// Where its bytes are.
    pub from: BlockRange,
    /// Where they go. May overlap `from`.
    pub to: BlockRange,
}

impl Relocation {
    /// The move as copies that do not overlap, in the order in which they must be done: offset from, offset to, length.
    pub fn copies(&self) -> impl Iterator<Item = (Bytes, Bytes, Bytes)> + use<> {
        let (from, to, size) = (self.from.offset.0, self.to.offset.0, self.from.size.0);
        let overlaps = self.from.segment == self.to.segment && from.abs_diff(to) < size;
        let step = if overlaps { from.abs_diff(to) } else { size }.max(1);
        (0..size).step_by(step as usize).map(move |at| (Bytes(from + at), Bytes(to + at), Bytes(step.min(size - at))))
    }
}

/// A block that is freed on drop.
///
/// ```
/// use plimsoll_core::Bytes;
/// use plimsoll_core::allocator::{Allocation, Allocator, BestFit, BestFitOptions, OwnerId, Request, VirtualSegments};
/// use std::sync::Arc;
/// let segments = VirtualSegments::new("host", Bytes(64));
/// let allocator: Arc<dyn Allocator> = Arc::new(BestFit::new(segments, BestFitOptions::default()).unwrap());
/// let block = Allocation::new(&allocator, Request::new(Bytes::kib(4), OwnerId::named("relu"))).unwrap();
/// assert_eq!(allocator.stats().in_use, Bytes::kib(4));
/// drop(block);
/// assert_eq!(allocator.stats().in_use, Bytes::ZERO);
/// ```
pub struct Allocation {
    allocator: Arc<dyn Allocator>,
    /// None only while it is dropped.
    block: Option<Block>,
}

impl Allocation {
    /// Allocates a block.
    ///
    /// # Errors
    /// As [`Allocator::allocate`].
    pub fn new(allocator: &Arc<dyn Allocator>, request: Request) -> Result<Allocation, AllocatorError> {
        let block = allocator.allocate(request)?;
        Ok(Allocation { allocator: Arc::clone(allocator), block: Some(block) })
    }

    /// The allocator of the block.
    pub fn allocator(&self) -> &Arc<dyn Allocator> {
        &self.allocator
    }

    /// The block.
    pub fn block(&self) -> &Block {
        self.block.as_ref().expect("it is taken only on drop")
    }

    /// Where it is now.
    pub fn range(&self) -> BlockRange {
        self.allocator.range(self.block())
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            // The only error is a block of another allocator, which an allocation cannot hold.
            let _ = self.allocator.free(block);
        }
    }
}
