//! The account that every allocator keeps.

use super::snapshot::{LiveBlock, OwnerUse};
use super::{MemoryStats, OwnerId, Request, SizeClass};
use crate::Bytes;

/// Totals of one allocator and of each of its owners.
#[derive(Default)]
pub(super) struct Accounts {
    pub in_use: u64,
    pub peak: u64,
    pub reserved: u64,
    requested: u64,
    peak_reserved: u64,
    given_back: u64,
    /// By the logarithm of the size.
    classes: Vec<Class>,
    /// By the number of the owner.
    owners: Vec<OwnerTotal>,
}

#[derive(Clone, Copy, Default)]
struct Class {
    allocations: u64,
    live: u64,
}

#[derive(Clone, Copy, Default)]
struct OwnerTotal {
    held: u64,
    peak: u64,
    blocks: u64,
}

impl Accounts {
    pub fn new() -> Accounts {
        Accounts { classes: vec![Class::default(); 65], ..Accounts::default() }
    }

    pub fn allocated(&mut self, owner: OwnerId, requested: u64, size: u64) {
        self.in_use += size;
        self.requested += requested;
        self.peak = self.peak.max(self.in_use);
        let class = &mut self.classes[class(size)];
        class.allocations += 1;
        class.live += 1;
        let index = owner.0 as usize;
        if index >= self.owners.len() {
            self.owners.resize(index + 1, OwnerTotal::default());
        }
        let owner = &mut self.owners[index];
        owner.held += size;
        owner.blocks += 1;
        owner.peak = owner.peak.max(owner.held);
    }

    pub fn freed(&mut self, owner: OwnerId, requested: u64, size: u64) {
        self.in_use -= size;
        self.requested -= requested;
        self.classes[class(size)].live -= 1;
        let owner = &mut self.owners[owner.0 as usize];
        owner.held -= size;
        owner.blocks -= 1;
    }

    pub fn reserve(&mut self, bytes: u64) {
        self.reserved += bytes;
        self.peak_reserved = self.peak_reserved.max(self.reserved);
    }

    pub fn give_back(&mut self, bytes: u64) {
        self.reserved -= bytes;
        self.given_back += bytes;
    }

    /// The statistics without what only the allocator knows.
    pub fn stats(&self, space: &str) -> MemoryStats {
        let sizes = self.classes.iter().enumerate().filter(|(_, class)| class.allocations > 0);
        let sizes: Vec<SizeClass> = sizes
            .map(|(log, class)| SizeClass {
                up_to: Bytes(1u64.checked_shl(log as u32).unwrap_or(u64::MAX)),
                allocations: class.allocations,
                live: class.live,
            })
            .collect();
        MemoryStats {
            space: space.to_string(),
            in_use: Bytes(self.in_use),
            requested: Bytes(self.requested),
            peak: Bytes(self.peak),
            reserved: Bytes(self.reserved),
            peak_reserved: Bytes(self.peak_reserved),
            blocks: sizes.iter().map(|class| class.live).sum(),
            allocations: sizes.iter().map(|class| class.allocations).sum(),
            given_back: Bytes(self.given_back),
            sizes,
            ..MemoryStats::default()
        }
    }

    /// Owners with live blocks, largest first.
    pub fn owners(&self) -> Vec<OwnerUse> {
        let live = self.owners.iter().enumerate().filter(|(_, owner)| owner.blocks > 0);
        let mut owners: Vec<OwnerUse> = live
            .map(|(id, owner)| OwnerUse {
                owner: OwnerId(id as u32).to_string(),
                held: Bytes(owner.held),
                peak: Bytes(owner.peak),
                blocks: owner.blocks,
            })
            .collect();
        owners.sort_by(|a, b| b.held.cmp(&a.held).then_with(|| a.owner.cmp(&b.owner)));
        owners
    }
}

/// The smallest power of two that the size does not exceed.
fn class(size: u64) -> usize {
    64 - size.saturating_sub(1).leading_zeros() as usize
}

/// What is known of a live block.
#[derive(Clone, Copy)]
pub(super) struct Live {
    pub range: super::BlockRange,
    pub request: Request,
}

impl Live {
    pub fn named(&self) -> LiveBlock {
        LiveBlock {
            owner: self.request.owner.to_string(),
            location: self.request.location.to_string(),
            requested: self.request.size,
            segment: self.range.segment.0,
            offset: self.range.offset,
            size: self.range.size,
        }
    }
}
