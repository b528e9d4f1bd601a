//! Allocations and frees in their order, recorded to plan or to replay them.

use super::{Allocator, AllocatorError, Block, BlockRange, MemoryStats, Relocation, Request, Snapshot};
use crate::Bytes;
use crate::plan::{BufferInterval, Layout, assign};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// A block of this size was allocated. It is the next one: blocks are numbered from 0.
    Allocate(Bytes),
    /// The block of this number was freed.
    Free(u32),
}

/// Allocations and frees in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationTrace {
    /// What happened.
    pub events: Vec<Event>,
}

impl AllocationTrace {
    /// The blocks with their lifetimes, sizes rounded to the alignment. A block that is not freed lives to the end.
    pub fn lifetimes(&self, alignment: Bytes) -> Vec<BufferInterval> {
        let mut blocks: Vec<BufferInterval> = Vec::new();
        // A step per allocation: at the same step, a block that is freed and the next one do not overlap.
        for event in &self.events {
            let step = blocks.len() as u32;
            match event {
                Event::Allocate(size) => {
                    blocks.push(BufferInterval { first: step, last: u32::MAX, size: size.max(&Bytes(1)).align_up(alignment.0) });
                }
                Event::Free(block) => {
                    if let Some(block) = blocks.get_mut(*block as usize) {
                        block.last = step - 1;
                    }
                }
            }
        }
        let last = (blocks.len() as u32).saturating_sub(1);
        blocks.iter_mut().for_each(|block| block.last = block.last.min(last));
        blocks
    }

    /// The offsets of the blocks in the smallest arena that the solver finds, and the lower bound.
    ///
    /// ```
    /// use plimsoll_core::Bytes;
    /// use plimsoll_core::allocator::{Event::{Allocate, Free}, AllocationTrace};
    /// let events = vec![Allocate(Bytes(100)), Allocate(Bytes(50)), Free(0), Allocate(Bytes(60)), Free(2), Free(1)];
    /// let layout = AllocationTrace { events }.layout(Bytes(64));
    /// assert_eq!((layout.size, layout.lower_bound), (Bytes(192), Bytes(192)));
    /// ```
    pub fn layout(&self, alignment: Bytes) -> Layout {
        assign(&self.lifetimes(alignment))
    }
}

/// An allocator that also records what it is asked for.
pub struct Recorded {
    inner: Arc<dyn Allocator>,
    recording: Mutex<Option<Recording>>,
}

#[derive(Default)]
struct Recording {
    trace: AllocationTrace,
    /// Numbers of live blocks by id.
    live: HashMap<u64, u32>,
    blocks: u32,
}

impl Recorded {
    /// Records nothing yet.
    pub fn new(inner: Arc<dyn Allocator>) -> Recorded {
        Recorded { inner, recording: Mutex::new(None) }
    }

    /// Starts to record. Blocks that are live now are left out.
    pub fn start(&self) {
        *self.lock() = Some(Recording::default());
    }

    /// Ends the recording and returns it. Blocks that are still live are not freed in it.
    pub fn finish(&self) -> AllocationTrace {
        self.lock().take().map(|recording| recording.trace).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocator for Recorded {
    fn allocate(&self, request: Request) -> Result<Block, AllocatorError> {
        let mut recording = self.lock();
        let block = self.inner.allocate(request)?;
        if let Some(recording) = &mut *recording {
            recording.trace.events.push(Event::Allocate(request.size));
            recording.live.insert(block.id(), recording.blocks);
            recording.blocks += 1;
        }
        Ok(block)
    }

    fn free(&self, block: Block) -> Result<(), AllocatorError> {
        let mut recording = self.lock();
        let id = block.id();
        self.inner.free(block)?;
        if let Some(recording) = &mut *recording
            && let Some(number) = recording.live.remove(&id)
        {
            recording.trace.events.push(Event::Free(number));
        }
        Ok(())
    }

    fn range(&self, block: &Block) -> BlockRange {
        self.inner.range(block)
    }

    fn stats(&self) -> MemoryStats {
        self.inner.stats()
    }

    fn snapshot(&self) -> Snapshot {
        self.inner.snapshot()
    }

    fn give_back(&self) -> Result<Bytes, AllocatorError> {
        self.inner.give_back()
    }

    fn compact(&self, copy: &mut dyn FnMut(&Relocation) -> bool) -> Bytes {
        self.inner.compact(copy)
    }
}
