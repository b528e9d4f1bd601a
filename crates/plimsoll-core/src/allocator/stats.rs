//! The numbers of an allocator.

use crate::Bytes;
use serde::Serialize;
use std::fmt;

/// The state of an allocator. Sizes of blocks are those after rounding to the alignment, except `requested`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemoryStats {
    /// Memory space, such as `host` or `cuda:0`.
    pub space: String,
    /// Bytes of live blocks.
    pub in_use: Bytes,
    /// Bytes of live blocks as they were requested.
    pub requested: Bytes,
    /// Peak of `in_use`.
    pub peak: Bytes,
    /// Bytes taken from the device.
    pub reserved: Bytes,
    /// Peak of `reserved`.
    pub peak_reserved: Bytes,
    /// The limit of `reserved`, if there is one.
    pub limit: Option<Bytes>,
    /// The largest free block of reserved memory.
    pub largest_free: Bytes,
    /// Number of live blocks.
    pub blocks: u64,
    /// Number of segments.
    pub segments: u64,
    /// Number of allocations so far.
    pub allocations: u64,
    /// Bytes that were given back to the device so far.
    pub given_back: Bytes,
    /// Allocations by size, for sizes that occurred.
    pub sizes: Vec<SizeClass>,
}

/// Allocations whose size, rounded to the alignment, is above half of `up_to` and at most `up_to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SizeClass {
    /// A power of two.
    pub up_to: Bytes,
    /// Number of allocations so far.
    pub allocations: u64,
    /// Number of live blocks.
    pub live: u64,
}

impl MemoryStats {
    /// Reserved bytes that no block uses.
    pub fn free(&self) -> Bytes {
        self.reserved.saturating_sub(self.in_use)
    }

    /// The fragmentation figure: the share of free reserved memory that is outside the largest free block. It is 0 if
    /// all free memory is in one piece, and near 1 if it is in many small ones.
    ///
    /// ```
    /// use plimsoll_core::{Bytes, allocator::MemoryStats};
    /// let stats = MemoryStats { reserved: Bytes(100), in_use: Bytes(60), largest_free: Bytes(30), ..MemoryStats::default() };
    /// assert_eq!(stats.fragmentation(), 0.25);
    /// ```
    pub fn fragmentation(&self) -> f64 {
        match self.free() {
            Bytes::ZERO => 0.0,
            free => 1.0 - self.largest_free.0 as f64 / free.0 as f64,
        }
    }
}

impl fmt::Display for MemoryStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} memory", self.space)?;
        writeln!(f, "  in use        {} in {} blocks (peak {})", self.in_use, self.blocks, self.peak)?;
        write!(f, "  reserved      {} in {} segments (peak {}", self.reserved, self.segments, self.peak_reserved)?;
        match self.limit {
            Some(limit) => writeln!(f, ", limit {limit})")?,
            None => writeln!(f, ", no limit)")?,
        }
        writeln!(f, "  free          {}, largest block {}", self.free(), self.largest_free)?;
        writeln!(f, "  fragmentation {:.1} %", 100.0 * self.fragmentation())?;
        write!(f, "  allocations   {}", self.allocations)?;
        for class in &self.sizes {
            write!(f, "\n    up to {:<9} {:>10} ({} live)", class.up_to.to_string(), class.allocations, class.live)?;
        }
        Ok(())
    }
}
