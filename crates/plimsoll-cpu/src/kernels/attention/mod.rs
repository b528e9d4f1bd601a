//! Attention in tiles: queries meet keys block by block, and of the weights only the sums are kept.
//!
//! A task is a head of a sequence (`forward` cuts long ones into chunks of queries as well). It brings blocks of its operands to single precision
//! in its worker's part of the workspace, whatever their type and however far apart their rows lie, and sweeps the micro-kernel of matrix
//! products over them (`tiles`); the weights are made in between (`weights`). What causality hides is not computed, but for the tiles that it cuts.

mod backward;
mod dropout;
mod forward;
mod tiles;
mod weights;

pub use backward::{Backward, backward, backward_with, backward_workspace};
pub use dropout::DropoutMask;
pub use forward::{Forward, forward, forward_with, forward_workspace};

use crate::kernels::gemm::LINE;
use crate::kernels::gemm::micro_kernel::MAX_COLUMNS;
use crate::simd::Isa;
use crate::simd::convert;
use plimsoll_core::DType;

/// Queries in a tile.
const QUERIES: usize = 64;
/// Keys in a tile: whole slivers of every instruction set.
const KEYS: usize = 2 * MAX_COLUMNS;
/// Pairs times depth below which waking other threads takes longer than the work.
const SERIAL: usize = 1 << 17;

/// The extents of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Queries in a sequence.
    pub queries: usize,
    /// Keys in a sequence.
    pub keys: usize,
    /// HeadsPtr of queries.
    pub heads: usize,
    /// HeadsPtr of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub depth: usize,
    /// Whether query `i` sees only keys up to `i`.
    pub causal: bool,
    /// What products are multiplied by.
    pub scale: f32,
    /// Whether weights are dropped, which takes some workspace.
    pub drops: bool,
}

impl AttentionShape {
    /// HeadsPtr of queries that share a head of keys.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn is_worth_waking(&self) -> bool {
        let pairs = self.batch.saturating_mul(self.heads).saturating_mul(self.queries).saturating_mul(self.keys);
        pairs.saturating_mul(self.depth) >= SERIAL
    }

    /// Keys of a block, in floats of a row of a tile.
    fn tile(&self) -> usize {
        self.keys.min(KEYS).next_multiple_of(LINE)
    }
}

/// Sequences of heads somewhere in memory: numbers of any type, places `row` elements apart, sequences one after the other.
#[derive(Clone, Copy, Debug)]
pub struct HeadsPtr {
    /// The first number of the first head at the first place.
    pub start: *mut u8,
    /// Their type.
    pub dtype: DType,
    /// Elements from one place to the next.
    pub row: usize,
}

// SAFETY: a description of memory; the functions that use it demand its validity, on whatever thread they run.
unsafe impl Send for HeadsPtr {}
// SAFETY: as above; tasks write disjoint heads.
unsafe impl Sync for HeadsPtr {}

impl HeadsPtr {
    /// The numbers of a head at a place, counted over all sequences.
    fn at(&self, place: usize, number: usize) -> *mut u8 {
        self.start.wrapping_add((place * self.row + number) * self.dtype.size())
    }

    /// Brings `count` places of the head that begins at a number of each to single precision, times `scale`, row after row.
    ///
    /// # Safety
    /// They are readable, and `to` is writable for `count · depth` floats.
    unsafe fn load(&self, isa: Isa, (place, number): (usize, usize), (count, depth): (usize, usize), scale: f32, to: *mut f32) {
        for i in 0..count {
            // SAFETY: the caller's promise.
            unsafe {
                let to = std::slice::from_raw_parts_mut(to.add(i * depth), depth);
                convert::load(isa, self.dtype, self.at(place + i, number), scale, to);
            }
        }
    }
}

/// A mask of the keys, `keys` numbers for each sequence: those that are not zero are visible.
#[derive(Clone, Copy, Debug)]
pub struct KeyMask {
    /// The first.
    pub start: *const u8,
    /// Their type.
    pub dtype: DType,
}

// SAFETY: a description of memory that is only read.
unsafe impl Send for KeyMask {}
// SAFETY: as above.
unsafe impl Sync for KeyMask {}

impl KeyMask {
    /// What is added to the products with `to.len()` keys from `first` on: nothing, or minus infinity.
    ///
    /// # Safety
    /// The mask is readable there.
    unsafe fn load(&self, isa: Isa, first: usize, to: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { convert::load(isa, self.dtype, self.start.wrapping_add(first * self.dtype.size()), 1.0, to) };
        to.iter_mut().for_each(|to| *to = if *to == 0.0 { f32::NEG_INFINITY } else { 0.0 });
    }
}

/// Deals a worker's part of a workspace out, in whole lines.
struct WorkspaceParts(*mut f32);

impl WorkspaceParts {
    fn take(&mut self, floats: usize) -> *mut f32 {
        let part = self.0;
        self.0 = part.wrapping_add(floats.next_multiple_of(LINE));
        part
    }
}

/// Floats that [`WorkspaceParts`] deals out for pieces of these lengths.
fn lines(parts: &[usize]) -> usize {
    parts.iter().map(|floats| floats.next_multiple_of(LINE)).sum()
}
