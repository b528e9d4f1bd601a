//! What can be wrong with a request.

use super::accounts::{Accounts, Live};
use super::{LiveBlock, OwnerUse, Request};
use crate::{Bytes, DeviceError, LedgerError};
use std::fmt;

/// An error of an allocator. Nothing was changed: drop blocks and go on.
#[derive(Debug, thiserror::Error)]
pub enum AllocatorError {
    /// The limit would be exceeded.
    #[error(transparent)]
    OverLimit(Box<OverLimit>),
    /// The budget of the process would be exceeded.
    #[error(transparent)]
    OverBudget(#[from] LedgerError),
    /// The device has no memory left, or failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A limit that cannot be applied.
    #[error("the allocator of {space} memory cannot be limited to {limit}: {reason}")]
    Limit {
        /// The memory space.
        space: String,
        /// The limit.
        limit: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A block of another allocator.
    #[error("a block of {size} belongs to another allocator than that of {space} memory; free it where it was allocated")]
    Foreign {
        /// The memory space.
        space: String,
        /// Size of the block.
        size: Bytes,
    },
    /// A request that the plan does not have.
    #[error(
        "allocation {position} of the step asked for {requested} at {location}, but the plan has {planned}; record the step again, or give the planned allocator a fallback"
    )]
    Unplanned {
        /// Position in the step, from 0.
        position: usize,
        /// Requested bytes.
        requested: Bytes,
        /// Where it was requested.
        location: String,
        /// What the plan has at this position.
        planned: String,
    },
}

/// A request that would exceed the limit. Names the largest owners and the largest live blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct OverLimit {
    /// The memory space.
    pub space: String,
    /// The owner of the request.
    pub owner: String,
    /// Where it was made.
    pub location: String,
    /// Requested bytes.
    pub requested: Bytes,
    /// The limit of reserved memory.
    pub limit: Bytes,
    /// Bytes of live blocks.
    pub in_use: Bytes,
    /// The largest free block.
    pub largest_free: Bytes,
    /// The largest owners, at most three.
    pub owners: Vec<OwnerUse>,
    /// The largest live blocks, at most three.
    pub blocks: Vec<LiveBlock>,
}

impl OverLimit {
    /// Describes a request that was refused.
    pub(super) fn new(
        space: &str,
        request: &Request,
        limit: u64,
        largest_free: u64,
        accounts: &Accounts,
        live: impl Iterator<Item = Live>,
    ) -> Box<OverLimit> {
        let mut largest: Vec<Live> = Vec::with_capacity(4);
        for block in live {
            let at = largest.partition_point(|other| other.range.size >= block.range.size);
            if at < 3 {
                largest.insert(at, block);
                largest.truncate(3);
            }
        }
        let mut owners = accounts.owners();
        owners.truncate(3);
        Box::new(OverLimit {
            space: space.to_string(),
            owner: request.owner.to_string(),
            location: request.location.to_string(),
            requested: request.size,
            limit: Bytes(limit),
            in_use: Bytes(accounts.in_use),
            largest_free: Bytes(largest_free),
            owners,
            blocks: largest.iter().map(Live::named).collect(),
        })
    }
}

impl std::error::Error for OverLimit {}

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverLimit { space, owner, location, requested, limit, in_use, largest_free, .. } = self;
        write!(f, "{owner} asked for {requested} of {space} memory at {location}, but {in_use} of the limit of {limit} is in use")?;
        let fits = in_use.0.saturating_add(requested.0) <= limit.0;
        if fits {
            write!(f, " and the largest free block is {largest_free}")?;
        }
        if !self.owners.is_empty() {
            let owners: Vec<String> = self.owners.iter().map(|owner| format!("{} {}", owner.owner, owner.held)).collect();
            write!(f, "; the largest owners are {}", owners.join(", "))?;
        }
        if !self.blocks.is_empty() {
            let named = |block: &LiveBlock| format!("{} of {} made at {}", block.size, block.owner, block.location);
            write!(f, "; the largest blocks are {}", self.blocks.iter().map(named).collect::<Vec<_>>().join(", "))?;
        }
        f.write_str(match fits {
            true => "; free memory is in pieces: compact it, drop blocks or raise the limit",
            false => "; drop some of them or raise the limit",
        })
    }
}
