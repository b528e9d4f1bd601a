//! A model of PyTorch's caching allocator on a GPU, written from its documented policy: one stream, default settings,
//! and memory that never runs out. It is not PyTorch's code, and only counts addresses.
//!
//! - Sizes are rounded up to 512 bytes. Up to 1 MiB a block is in the small pool, else in the large one.
//! - A request takes the smallest free block of its pool that fits, at the lowest address.
//! - A block is split if at least 512 bytes (small pool) or more than 1 MiB (large pool) are left over.
//! - A new segment has 2 MiB in the small pool; in the large one 20 MiB for requests below 10 MiB, else the request
//!   rounded up to 2 MiB.
//! - With expandable segments, each pool has one segment that grows by 2 MiB or 20 MiB at a time, every block is split,
//!   and the block at the end of the segment counts as large as it could grow.
//! - Freed blocks merge with free neighbours of their segment, and stay reserved.

use std::collections::{BTreeSet, HashMap};

const SMALLEST: u64 = 512;
const SMALL: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
const LARGE_SEGMENT: u64 = 20 << 20;
const SEGMENT_OF_ITS_OWN: u64 = 10 << 20;
const ROUND_LARGE: u64 = 2 << 20;

pub struct CachingAllocator {
    expandable: bool,
    pools: [Pool; 2],
    /// Live blocks by number: pool and address.
    live: HashMap<u32, (usize, u64)>,
    pub reserved: u64,
}

#[derive(Default)]
struct Pool {
    /// Free blocks by size and address.
    free: BTreeSet<(u64, u64)>,
    /// All blocks by address.
    blocks: std::collections::BTreeMap<u64, Block>,
    /// The end of the last segment.
    end: u64,
}

#[derive(Clone, Copy)]
struct Block {
    size: u64,
    segment: u64,
    used: bool,
}

impl CachingAllocator {
    pub fn new(expandable: bool) -> CachingAllocator {
        CachingAllocator { expandable, pools: Default::default(), live: HashMap::new(), reserved: 0 }
    }

    pub fn allocate(&mut self, number: u32, requested: u64) {
        let size = requested.max(1).next_multiple_of(SMALLEST);
        let which = usize::from(size > SMALL);
        let address = match self.pools[which].find(size, self.expandable) {
            Some(address) => address,
            None if self.expandable => self.expand(which, size),
            None => self.open(which, size),
        };
        let pool = &mut self.pools[which];
        let mut block = pool.blocks[&address];
        pool.free.remove(&(block.size, address));
        let rest = block.size - size;
        let split = if which == 0 || self.expandable { rest >= SMALLEST } else { rest > SMALL };
        if split {
            pool.blocks.insert(address + size, Block { size: rest, ..block });
            pool.free.insert((rest, address + size));
            block.size = size;
        }
        pool.blocks.insert(address, Block { used: true, ..block });
        self.live.insert(number, (which, address));
    }

    pub fn free(&mut self, number: u32) {
        let (which, address) = self.live.remove(&number).expect("a live block");
        let pool = &mut self.pools[which];
        let block = pool.blocks[&address];
        let (mut start, mut size) = (address, block.size);
        let next = pool.blocks.get(&(address + size)).copied();
        if let Some(next) = next.filter(|next| !next.used && next.segment == block.segment) {
            pool.blocks.remove(&(address + size));
            pool.free.remove(&(next.size, address + size));
            size += next.size;
        }
        let before = pool.blocks.range(..address).next_back().map(|(at, block)| (*at, *block));
        if let Some((at, before)) =
            before.filter(|(at, before)| !before.used && before.segment == block.segment && at + before.size == address)
        {
            pool.blocks.remove(&address);
            pool.free.remove(&(before.size, at));
            (start, size) = (at, size + before.size);
        }
        pool.blocks.insert(start, Block { size, used: false, ..block });
        pool.free.insert((size, start));
    }

    fn open(&mut self, which: usize, size: u64) -> u64 {
        let segment = match size {
            _ if which == 0 => SMALL_SEGMENT,
            _ if size < SEGMENT_OF_ITS_OWN => LARGE_SEGMENT,
            _ => size.next_multiple_of(ROUND_LARGE),
        };
        self.reserved += segment;
        let pool = &mut self.pools[which];
        let address = pool.end;
        pool.end += segment;
        pool.blocks.insert(address, Block { size: segment, segment: address, used: false });
        pool.free.insert((segment, address));
        address
    }

    /// Maps more memory at the end of the only segment, behind a free block there.
    fn expand(&mut self, which: usize, size: u64) -> u64 {
        let pool = &mut self.pools[which];
        let last = pool.blocks.last_key_value().map(|(at, block)| (*at, *block)).filter(|(_, block)| !block.used);
        let (address, had) = last.map_or((pool.end, 0), |(at, block)| (at, block.size));
        let granule = if which == 0 { SMALL_SEGMENT } else { LARGE_SEGMENT };
        let more = (size - had).next_multiple_of(granule);
        pool.free.remove(&(had, address));
        pool.end += more;
        self.reserved += more;
        pool.blocks.insert(address, Block { size: had + more, segment: 0, used: false });
        pool.free.insert((had + more, address));
        address
    }
}

impl Pool {
    fn find(&self, size: u64, expandable: bool) -> Option<u64> {
        let mut fitting = self.free.range((size, 0)..);
        let (_, first) = fitting.next()?;
        // The last block of an expandable segment is used only if there is no other.
        if expandable && first + self.blocks[first].size == self.end {
            return fitting.next().map_or(Some(*first), |(_, other)| Some(*other));
        }
        Some(*first)
    }
}
