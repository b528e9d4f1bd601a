//! Tiled attention (FlashAttention): queries are processed with blocks of keys, and only the softmax sums are stored.
//!
//! A task is a head of a sequence (`forward` also splits long ones into chunks of queries). It converts blocks of its
//! operands, of any type and stride, to single precision in its worker's workspace and runs the GEMM micro-kernel over
//! them (`tiles`), with the softmax in between (`weights`). Fully masked tiles of causal attention are skipped.

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
/// Keys in a tile: a multiple of the sliver width of every instruction set.
const KEYS: usize = 2 * MAX_COLUMNS;
/// Pairs times depth below which waking other threads costs more than the work.
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
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Head dimension.
    pub depth: usize,
    /// Causal masking: query `i` sees keys up to `i`.
    pub causal: bool,
    /// Scale of the scores.
    pub scale: f32,
    /// Whether there is dropout, which needs workspace.
    pub drops: bool,
}

impl AttentionShape {
    /// Query heads per key/value head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn is_worth_waking(&self) -> bool {
        let pairs = self.batch.saturating_mul(self.heads).saturating_mul(self.queries).saturating_mul(self.keys);
        pairs.saturating_mul(self.depth) >= SERIAL
    }

    /// Row length of a tile, in floats.
    fn tile(&self) -> usize {
        self.keys.min(KEYS).next_multiple_of(LINE)
    }
}

/// Heads in memory: elements of any type, positions `row` elements apart, sequences contiguous.
#[derive(Clone, Copy, Debug)]
pub struct HeadsPtr {
    /// The first element of the first head at the first position.
    pub start: *mut u8,
    /// Element type.
    pub dtype: DType,
    /// Elements between positions.
    pub row: usize,
}

// SAFETY: a descriptor of memory; the functions that use it require its validity on any thread.
unsafe impl Send for HeadsPtr {}
// SAFETY: as above; tasks write disjoint heads.
unsafe impl Sync for HeadsPtr {}

impl HeadsPtr {
    /// The address of an element of a position, counted over all sequences.
    fn at(&self, place: usize, number: usize) -> *mut u8 {
        self.start.wrapping_add((place * self.row + number) * self.dtype.size())
    }

    /// Converts `count` positions of the head that starts at an element to contiguous single precision, times `scale`.
    ///
    /// # Safety
    ///
    /// They are readable, and `to` is writable for `count · depth` floats.
    unsafe fn load(&self, isa: Isa, (place, number): (usize, usize), (count, depth): (usize, usize), scale: f32, to: *mut f32) {
        for i in 0..count {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let to = std::slice::from_raw_parts_mut(to.add(i * depth), depth);
                convert::load(isa, self.dtype, self.at(place + i, number), scale, to);
            }
        }
    }
}

/// A key mask with `keys` elements per sequence: nonzero keys are visible.
#[derive(Clone, Copy, Debug)]
pub struct KeyMask {
    /// The first element.
    pub start: *const u8,
    /// Element type.
    pub dtype: DType,
}

// SAFETY: a descriptor of memory that is only read.
unsafe impl Send for KeyMask {}
// SAFETY: as above.
unsafe impl Sync for KeyMask {}

impl KeyMask {
    /// The additive mask of `to.len()` keys from `first` on: zero or minus infinity.
    ///
    /// # Safety
    ///
    /// The mask is readable there.
    unsafe fn load(&self, isa: Isa, first: usize, to: &mut [f32]) {
        // SAFETY: guaranteed by the caller.
        unsafe { convert::load(isa, self.dtype, self.start.wrapping_add(first * self.dtype.size()), 1.0, to) };
        to.iter_mut().for_each(|to| *to = if *to == 0.0 { f32::NEG_INFINITY } else { 0.0 });
    }
}

/// Splits a worker's workspace into cache-line-aligned buffers.
struct WorkspaceParts(*mut f32);

impl WorkspaceParts {
    fn take(&mut self, floats: usize) -> *mut f32 {
        let part = self.0;
        self.0 = part.wrapping_add(floats.next_multiple_of(LINE));
        part
    }
}

/// Floats that [`WorkspaceParts`] needs for buffers of these lengths.
fn lines(parts: &[usize]) -> usize {
    parts.iter().map(|floats| floats.next_multiple_of(LINE)).sum()
}
