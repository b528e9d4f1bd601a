//! The memory of a device for eager tensors: blocks within a byte limit, each with its owner and the line that made it.

use super::error::{Error, Result};
use plimsoll_core::Bytes;
use plimsoll_core::device::{Device, DeviceError, Memory, Region};
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) struct Heap {
    device: Arc<dyn Device>,
    state: Mutex<State>,
}

struct State {
    limit: Bytes,
    in_use: Bytes,
    live: Vec<Option<Live>>,
    free: Vec<usize>,
}

struct Live {
    memory: Box<dyn Memory>,
    size: Bytes,
    owner: &'static str,
    made: &'static Location<'static>,
}

/// A block of a heap. It is freed by its heap.
pub(super) struct Block {
    slot: usize,
    size: Bytes,
}

impl Block {
    pub fn size(&self) -> Bytes {
        self.size
    }
}

impl Heap {
    pub fn new(device: Arc<dyn Device>, limit: Bytes) -> Heap {
        Heap { device, state: Mutex::new(State { limit, in_use: Bytes::ZERO, live: Vec::new(), free: Vec::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn in_use(&self) -> Bytes {
        self.state().in_use
    }

    pub fn allocate(&self, size: Bytes, owner: &'static str, made: &'static Location<'static>) -> Result<Block> {
        let mut state = self.state();
        if state.in_use + size > state.limit {
            return Err(state.refusal(&self.device.name(), size, owner, made));
        }
        let memory = self.device.allocate(size)?;
        let live = Some(Live { memory, size, owner, made });
        state.in_use += size;
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None => {
                state.live.push(None);
                state.live.len() - 1
            }
        };
        state.live[slot] = live;
        Ok(Block { slot, size })
    }

    pub fn free(&self, block: &Block) {
        let mut state = self.state();
        if state.live[block.slot].take().is_some() {
            state.in_use -= block.size;
            state.free.push(block.slot);
        }
    }

    pub fn read(&self, block: &Block, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.state().at(block).read(Bytes::ZERO, bytes)
    }

    pub fn write(&self, block: &Block, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut state = self.state();
        let live = state.live[block.slot].as_mut().expect("a block is alive until it is freed");
        live.memory.write(Bytes::ZERO, bytes)
    }

    /// Calls a function with the memory of blocks.
    pub fn with<R>(&self, body: impl FnOnce(&Regions<'_>) -> R) -> R {
        body(&Regions(&self.state()))
    }
}

pub(super) struct Regions<'a>(&'a State);

impl Regions<'_> {
    pub fn region(&self, block: &Block) -> Region<'_> {
        Region { memory: self.0.at(block), offset: Bytes::ZERO }
    }
}

impl State {
    fn at(&self, block: &Block) -> &dyn Memory {
        &*self.live[block.slot].as_ref().expect("a block is alive until it is freed").memory
    }

    fn refusal(&self, device: &str, size: Bytes, owner: &str, made: &Location<'_>) -> Error {
        let mut largest: Vec<&Live> = self.live.iter().flatten().collect();
        largest.sort_by_key(|live| std::cmp::Reverse(live.size));
        let largest: Vec<String> = largest.iter().take(3).map(|live| format!("{} by {} at {}", live.size, live.owner, live.made)).collect();
        let limit = self.limit;
        let in_use = self.in_use;
        let largest = largest.join(", ");
        Error::OverLimit(format!(
            "{device}: {owner} at {made} needs {size}, but {in_use} of {limit} are in use; the largest tensors are {largest}"
        ))
    }
}
