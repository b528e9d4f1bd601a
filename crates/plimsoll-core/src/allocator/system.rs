//! System: each block is a segment of its own.

use super::accounts::Accounts;
use super::live::LiveBlocks;
use super::{Allocator, AllocatorError, AllocatorId, Block, BlockRange, MemoryStats, OverLimit, Request, Segments, Snapshot};
use crate::Bytes;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An allocator that asks the device for every block and gives it back when it is freed. Slow, but nothing is reserved
/// beyond the live blocks, and the tools of the system see every block.
///
/// ```
/// use plimsoll_core::Bytes;
/// use plimsoll_core::allocator::{Allocator, OwnerId, Request, System, VirtualSegments};
/// let system = System::new(VirtualSegments::new("host", Bytes(64)), None);
/// let block = system.allocate(Request::new(Bytes::kib(4), OwnerId::named("relu"))).unwrap();
/// assert_eq!(system.stats().reserved, Bytes::kib(4));
/// system.free(block).unwrap();
/// assert_eq!(system.stats().reserved, Bytes::ZERO);
/// ```
pub struct System {
    id: AllocatorId,
    alignment: u64,
    limit: Option<Bytes>,
    inner: Mutex<SystemState>,
}

struct SystemState {
    segments: Box<dyn Segments>,
    accounts: Accounts,
    blocks: LiveBlocks,
}

impl System {
    /// An allocator with a limit, or without one.
    pub fn new(segments: impl Segments + 'static, limit: Option<Bytes>) -> System {
        let alignment = segments.granule().unwrap_or(segments.alignment()).0;
        let inner = SystemState { segments: Box::new(segments), accounts: Accounts::new(), blocks: LiveBlocks::default() };
        System { id: AllocatorId::new(), alignment, limit, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, SystemState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocator for System {
    fn allocate(&self, request: Request) -> Result<Block, AllocatorError> {
        let mut guard = self.lock();
        let SystemState { segments, accounts, blocks } = &mut *guard;
        let size = request.size.0.max(1).checked_next_multiple_of(self.alignment);
        let left = self.limit.map_or(u64::MAX, |limit| limit.0 - accounts.in_use);
        let Some(size) = size.filter(|size| *size <= left) else {
            let limit = self.limit.map_or(u64::MAX, |limit| limit.0);
            return Err(AllocatorError::OverLimit(OverLimit::new(&segments.space(), &request, limit, 0, accounts, blocks.iter())));
        };
        let opened = segments.open(Bytes(size))?;
        if segments.granule().is_some()
            && let Err(error) = segments.commit(opened.id, 0..size)
        {
            segments.close(opened.id);
            return Err(error.into());
        }
        let range = BlockRange { segment: opened.id, offset: Bytes::ZERO, size: Bytes(size) };
        accounts.reserve(size);
        accounts.allocated(request.owner, request.size.0, size);
        Ok(Block::new(self.id, blocks.insert(request, range), range))
    }

    fn free(&self, block: Block) -> Result<(), AllocatorError> {
        let mut guard = self.lock();
        let SystemState { segments, accounts, blocks } = &mut *guard;
        let known = (block.allocator() == self.id).then(|| blocks.remove(block.id())).flatten();
        let Some((request, range)) = known else {
            return Err(AllocatorError::Foreign { space: segments.space(), size: block.size() });
        };
        segments.close(range.segment);
        accounts.freed(request.owner, request.size.0, range.size.0);
        accounts.give_back(range.size.0);
        Ok(())
    }

    fn range(&self, block: &Block) -> BlockRange {
        block.allocated_at()
    }

    fn stats(&self) -> MemoryStats {
        let inner = self.lock();
        let stats = inner.accounts.stats(&inner.segments.space());
        MemoryStats { limit: self.limit, segments: stats.blocks, ..stats }
    }

    fn snapshot(&self) -> Snapshot {
        let stats = self.stats();
        let inner = self.lock();
        Snapshot::new(stats, &inner.accounts, inner.blocks.iter())
    }
}
