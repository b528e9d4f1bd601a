//! Bump: each block directly after the previous one.

use super::accounts::Accounts;
use super::live::LiveBlocks;
use super::segments::open_committed;
use super::{Allocator, AllocatorError, AllocatorId, Block, BlockRange, MemoryStats, Opened, OverLimit, Request, Segments, Snapshot};
use crate::Bytes;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An allocator of one segment of a fixed size, in which each block is put after the previous one. The last block can
/// be replaced; other memory is used again when all blocks are freed.
///
/// ```
/// use plimsoll_core::Bytes;
/// use plimsoll_core::allocator::{Allocator, Bump, OwnerId, Request, VirtualSegments};
/// let scratch = Bump::new(VirtualSegments::new("host", Bytes(64)), Bytes::kib(1)).unwrap();
/// let ask = |size| scratch.allocate(Request::new(Bytes(size), OwnerId::named("scratch")));
/// let (a, b) = (ask(640).unwrap(), ask(320).unwrap());
/// assert!(ask(128).is_err());
/// scratch.free(a).unwrap();
/// scratch.free(b).unwrap();
/// assert!(ask(1024).is_ok());
/// ```
pub struct Bump {
    id: AllocatorId,
    alignment: u64,
    opened: Opened,
    size: u64,
    inner: Mutex<BumpState>,
}

struct BumpState {
    segments: Box<dyn Segments>,
    accounts: Accounts,
    /// The end of the last block.
    end: u64,
    blocks: LiveBlocks,
}

impl Bump {
    /// An allocator with this much memory.
    ///
    /// # Errors
    /// If the device has no memory left.
    pub fn new(mut segments: impl Segments + 'static, size: Bytes) -> Result<Bump, AllocatorError> {
        let alignment = segments.alignment().0;
        let (opened, size) = open_committed(&mut segments, size.align_up(alignment))?;
        let mut accounts = Accounts::new();
        accounts.reserve(size);
        let inner = BumpState { segments: Box::new(segments), accounts, end: 0, blocks: LiveBlocks::default() };
        Ok(Bump { id: AllocatorId::new(), alignment, opened, size, inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, BumpState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocator for Bump {
    fn allocate(&self, request: Request) -> Result<Block, AllocatorError> {
        let mut inner = self.lock();
        let size = request.size.0.max(1).checked_next_multiple_of(self.alignment);
        let Some(size) = size.filter(|size| *size <= self.size - inner.end) else {
            let BumpState { segments, accounts, end, blocks } = &*inner;
            let free = self.size - end;
            return Err(AllocatorError::OverLimit(OverLimit::new(&segments.space(), &request, self.size, free, accounts, blocks.iter())));
        };
        let range = BlockRange { segment: self.opened.id, offset: Bytes(inner.end), size: Bytes(size) };
        inner.end += size;
        inner.accounts.allocated(request.owner, request.size.0, size);
        let id = inner.blocks.insert(request, range);
        Ok(Block::new(self.id, id, range))
    }

    fn free(&self, block: Block) -> Result<(), AllocatorError> {
        let mut inner = self.lock();
        let known = (block.allocator() == self.id).then(|| inner.blocks.remove(block.id())).flatten();
        let Some((request, range)) = known else {
            return Err(AllocatorError::Foreign { space: inner.segments.space(), size: block.size() });
        };
        inner.accounts.freed(request.owner, request.size.0, range.size.0);
        if inner.blocks.is_empty() {
            inner.end = 0;
        } else if inner.end == (range.offset + range.size).0 {
            inner.end = range.offset.0;
        }
        Ok(())
    }

    fn range(&self, block: &Block) -> BlockRange {
        block.allocated_at()
    }

    fn stats(&self) -> MemoryStats {
        let inner = self.lock();
        let largest_free = Bytes(self.size - inner.end);
        MemoryStats { limit: Some(Bytes(self.size)), largest_free, segments: 1, ..inner.accounts.stats(&inner.segments.space()) }
    }

    fn snapshot(&self) -> Snapshot {
        let stats = self.stats();
        let inner = self.lock();
        Snapshot::new(stats, &inner.accounts, inner.blocks.iter())
    }
}

impl Drop for Bump {
    fn drop(&mut self) {
        let opened = self.opened.id;
        self.lock().segments.close(opened);
    }
}
