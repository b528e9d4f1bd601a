//! Live blocks by number, for allocators that need no more of them.

use super::accounts::Live;
use super::{BlockRange, Request};

/// Live blocks. A number is used again, with another id.
#[derive(Default)]
pub(super) struct LiveBlocks {
    entries: Vec<LiveSlot>,
    vacant: Vec<u32>,
}

struct LiveSlot {
    generation: u32,
    live: Option<(Request, BlockRange)>,
}

impl LiveBlocks {
    /// Adds a block. Returns its id.
    pub fn insert(&mut self, request: Request, range: BlockRange) -> u64 {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(LiveSlot { generation: 0, live: None });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.live = Some((request, range));
        u64::from(entry.generation) << 32 | u64::from(index)
    }

    /// Removes a block, if it is live.
    pub fn remove(&mut self, id: u64) -> Option<(Request, BlockRange)> {
        let entry = self.entries.get_mut(id as u32 as usize).filter(|entry| entry.generation == (id >> 32) as u32)?;
        let removed = entry.live.take()?;
        self.vacant.push(id as u32);
        Some(removed)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.len() == self.vacant.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = Live> {
        self.entries.iter().filter_map(|entry| entry.live.map(|(request, range)| Live { range, request }))
    }
}
