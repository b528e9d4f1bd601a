//! The memory of a device for eager tensors: an allocator within a byte limit, best-fit unless another is supplied.

use super::error::{Error, Result};
use super::short::Short;
use plimsoll_core::Bytes;
use plimsoll_core::allocator::{
    Allocator, AllocatorError, BestFit, BestFitOptions, Block, BlockRange, DeviceSegments, Limit, MemoryStats, OwnerId, Request, Segments,
    Snapshot,
};
use plimsoll_core::device::{Device, DeviceError, Region};
use std::panic::Location;
use std::sync::{Arc, PoisonError, RwLock};

/// Reserved memory may exceed the peak of live tensors by this share. With less, every step of a training loop gives
/// memory back and commits it again: page faults take a third of the time of a small network's step.
const SLACK: f64 = 0.25;

pub(super) struct Heap {
    name: String,
    segments: DeviceSegments,
    allocator: Arc<dyn Allocator>,
    /// Held for writing while blocks move.
    moving: RwLock<()>,
}

impl Heap {
    /// With the allocator that a function makes over the device's memory.
    pub fn new(
        device: Arc<dyn Device>,
        allocator: impl FnOnce(DeviceSegments) -> Result<Arc<dyn Allocator>, AllocatorError>,
    ) -> Result<Heap> {
        let name = device.name();
        let segments = DeviceSegments::new(device)?;
        let allocator = allocator(segments.clone()).map_err(refused)?;
        Ok(Heap { name, segments, allocator, moving: RwLock::new(()) })
    }

    /// The usual allocator.
    pub fn best_fit(
        device: &dyn Device,
        limit: Limit,
    ) -> impl FnOnce(DeviceSegments) -> Result<Arc<dyn Allocator>, AllocatorError> + use<> {
        // To free a segment of a GPU waits for all of its work: nothing is given back before the limit is reached.
        let whole_slack = if device.memory_info().is_some() { f64::INFINITY } else { SLACK };
        move |segments| {
            let slack = if segments.granule().is_some() { SLACK } else { whole_slack };
            Ok(Arc::new(BestFit::new(segments, BestFitOptions { limit, slack, ..BestFitOptions::default() })?))
        }
    }

    pub fn stats(&self) -> MemoryStats {
        self.allocator.stats()
    }

    pub fn snapshot(&self) -> Snapshot {
        self.allocator.snapshot()
    }

    pub fn allocate(&self, size: Bytes, owner: OwnerId, location: &'static Location<'static>) -> Result<Block> {
        self.allocator.allocate(Request { size, owner, location }).map_err(refused)
    }

    pub fn free(&self, block: Block) {
        // The only error is a block of another allocator, and blocks do not leave their context.
        let _ = self.allocator.free(block);
    }

    pub fn read(&self, block: &Block, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.with([block].into_iter(), |regions| regions[0].memory.read(regions[0].offset, bytes))?
    }

    pub fn write(&self, block: &Block, bytes: &[u8]) -> Result<(), DeviceError> {
        let _still = self.moving.read().unwrap_or_else(PoisonError::into_inner);
        let range = self.allocator.range(block);
        let written = self.segments.with(range.segment, |memory| memory.write(range.offset, bytes));
        written.unwrap_or_else(|| Err(self.missing()))
    }

    /// Calls a function with the memory of blocks. They stay where they are until it returns.
    pub fn with<'b, R>(
        &self,
        blocks: impl ExactSizeIterator<Item = &'b Block>,
        body: impl FnOnce(&[Region<'_>]) -> R,
    ) -> Result<R, DeviceError> {
        let _still = self.moving.read().unwrap_or_else(PoisonError::into_inner);
        // The allocator is asked before the segments are locked: it locks them while it grows.
        let ranges = Short::collect(blocks.map(|block| Ok::<_, DeviceError>(self.allocator.range(block))))?;
        let memories = self.segments.memories();
        let region = |range: &BlockRange| {
            let memory = memories.get(range.segment).ok_or_else(|| self.missing())?;
            Ok::<_, DeviceError>(Region { memory, offset: range.offset })
        };
        let regions = Short::collect(ranges.get().iter().map(region))?;
        Ok(body(regions.get()))
    }

    /// Moves blocks together. Returns the bytes that were moved.
    pub fn compact(&self) -> Bytes {
        let _alone = self.moving.write().unwrap_or_else(PoisonError::into_inner);
        self.allocator.compact(&mut |block| self.segments.copy(block).is_ok())
    }

    /// Gives memory that no tensor uses back to the system.
    pub fn give_back(&self) -> Result<Bytes> {
        self.allocator.give_back().map_err(refused)
    }

    fn missing(&self) -> DeviceError {
        DeviceError::Failed { device: self.name.clone(), what: "the memory of a tensor is gone".to_string() }
    }
}

fn refused(error: AllocatorError) -> Error {
    match error {
        AllocatorError::OverLimit(over) => Error::OverLimit(over),
        AllocatorError::Device(error) => Error::Device(error),
        other => Error::Allocator(other),
    }
}
