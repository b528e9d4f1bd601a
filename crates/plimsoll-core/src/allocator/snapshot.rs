//! What is live, who owns it and where it was made; and what grew since an earlier snapshot.

use super::MemoryStats;
use super::accounts::{Accounts, Live};
use crate::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The state of an allocator. Displays as text, serializes as JSON.
///
/// ```
/// use plimsoll_core::Bytes;
/// use plimsoll_core::allocator::{Allocator, BestFit, BestFitOptions, OwnerId, Request, VirtualSegments};
/// let allocator = BestFit::new(VirtualSegments::new("host", Bytes(64)), BestFitOptions::default()).unwrap();
/// let before = allocator.snapshot();
/// let kept = allocator.allocate(Request::new(Bytes::mib(3), OwnerId::named("callback"))).unwrap();
/// let grown = allocator.snapshot().diff(&before);
/// assert_eq!((grown[0].owner.as_str(), grown[0].bytes), ("callback", 3 << 20));
/// assert!(grown[0].location.contains(".rs:"));
/// println!("{}", serde_json::to_string_pretty(&allocator.snapshot()).unwrap());
/// # allocator.free(kept).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// The statistics.
    pub stats: MemoryStats,
    /// Owners with live blocks, largest first.
    pub owners: Vec<OwnerUse>,
    /// Live blocks in the order of segments and offsets.
    pub blocks: Vec<LiveBlock>,
}

/// Live and peak bytes of one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OwnerUse {
    /// Its name.
    pub owner: String,
    /// Bytes of its live blocks.
    pub held: Bytes,
    /// Peak of its live bytes.
    pub peak: Bytes,
    /// Number of its live blocks.
    pub blocks: u64,
}

/// A live block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LiveBlock {
    /// Its owner.
    pub owner: String,
    /// Where in the source it was made: file, line and column.
    pub location: String,
    /// Requested bytes.
    pub requested: Bytes,
    /// Its segment.
    pub segment: u32,
    /// Its offset in the segment.
    pub offset: Bytes,
    /// Its bytes.
    pub size: Bytes,
}

/// Live blocks of one owner that were made at one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AllocationSite {
    /// The owner.
    pub owner: String,
    /// The place in the source.
    pub location: String,
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub held: Bytes,
}

/// How much the blocks of one owner and one place grew between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// The owner.
    pub owner: String,
    /// The place in the source.
    pub location: String,
    /// Blocks more than before; negative if there are fewer.
    pub blocks: i64,
    /// Bytes more than before; negative if there are fewer.
    pub bytes: i64,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.bytes < 0 { '-' } else { '+' };
        let Growth { owner, location, blocks, bytes } = self;
        write!(f, "{sign}{} in {blocks:+} blocks of {owner} made at {location}", Bytes(bytes.unsigned_abs()))
    }
}

impl Snapshot {
    pub(super) fn new(stats: MemoryStats, accounts: &Accounts, live: impl Iterator<Item = Live>) -> Snapshot {
        let mut blocks: Vec<LiveBlock> = live.map(|live| live.named()).collect();
        blocks.sort_by_key(|block| (block.segment, block.offset));
        Snapshot { stats, owners: accounts.owners(), blocks }
    }

    /// Live blocks by owner and place, largest first.
    pub fn sites(&self) -> Vec<AllocationSite> {
        let sites = self.totals().into_iter();
        let mut sites: Vec<AllocationSite> = sites
            .map(|((owner, location), (blocks, bytes))| AllocationSite {
                owner: owner.to_string(),
                location: location.to_string(),
                blocks: blocks as u64,
                held: Bytes(bytes as u64),
            })
            .collect();
        sites.sort_by(|a, b| b.held.cmp(&a.held).then_with(|| (&a.owner, &a.location).cmp(&(&b.owner, &b.location))));
        sites
    }

    /// What changed since an earlier snapshot, by owner and place, with what grew most first.
    pub fn diff(&self, earlier: &Snapshot) -> Vec<Growth> {
        let mut totals = self.totals();
        for (site, (blocks, bytes)) in earlier.totals() {
            let total = totals.entry(site).or_default();
            total.0 -= blocks;
            total.1 -= bytes;
        }
        let mut growth: Vec<Growth> = totals
            .into_iter()
            .filter(|(_, total)| *total != (0, 0))
            .map(|((owner, location), (blocks, bytes))| Growth { owner: owner.to_string(), location: location.to_string(), blocks, bytes })
            .collect();
        growth.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| (&a.owner, &a.location).cmp(&(&b.owner, &b.location))));
        growth
    }

    fn totals(&self) -> BTreeMap<(&str, &str), (i64, i64)> {
        let mut totals = BTreeMap::new();
        for block in &self.blocks {
            let total: &mut (i64, i64) = totals.entry((block.owner.as_str(), block.location.as_str())).or_default();
            total.0 += 1;
            total.1 += block.size.0 as i64;
        }
        totals
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.stats)?;
        if !self.owners.is_empty() {
            write!(f, "\n  owners")?;
        }
        for OwnerUse { owner, held, peak, blocks } in &self.owners {
            write!(f, "\n    {owner:<24} {:>9} in {blocks} blocks (peak {peak})", held.to_string())?;
        }
        if !self.blocks.is_empty() {
            write!(f, "\n  made at")?;
        }
        for AllocationSite { owner, location, blocks, held } in self.sites() {
            write!(f, "\n    {location:<48} {:>9} in {blocks} blocks of {owner}", held.to_string())?;
        }
        Ok(())
    }
}
