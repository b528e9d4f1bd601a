//! Aligned memory for blocks of rows, resident from its allocation on.

use plimsoll_core::budget::SlotMemory;
use std::hint::black_box;

/// The alignment of every buffer, and of each column in a block: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

pub(crate) const PAGE: usize = 4096;

/// Host memory, aligned and zeroed, whose size is a multiple of [`ALIGNMENT`].
///
/// Every page is touched on creation, so that the memory is resident from then on, and overcommitted memory is
/// detected before the run.
pub struct AlignedBuf {
    lines: Vec<Line>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

impl AlignedBuf {
    /// At least `bytes` zeroed bytes.
    ///
    /// ```
    /// use plimsoll_data::{AlignedBuf, SlotMemory};
    /// let buffer = AlignedBuf::new(100);
    /// assert_eq!(buffer.bytes().len(), 128);
    /// assert_eq!(buffer.bytes().as_ptr() as usize % 64, 0);
    /// ```
    pub fn new(bytes: usize) -> AlignedBuf {
        let mut lines = vec![Line([0; ALIGNMENT]); bytes.div_ceil(ALIGNMENT)];
        // Prevents the compiler from replacing the writes by untouched zero pages.
        black_box(&mut lines);
        for page in lines.chunks_mut(PAGE / ALIGNMENT) {
            page[0].0[0] = 0;
        }
        AlignedBuf { lines }
    }
}

// SAFETY: the bytes belong to a vector that is initialized and never resized, so their address and length are stable;
// `Line` is aligned to 64 bytes.
unsafe impl SlotMemory for AlignedBuf {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `Line` is `repr(C)` around 64 bytes with size 64, so it has no padding; the vector's elements are
        // contiguous and initialized, bytes have no alignment requirement, and the borrow of `self` covers the slice.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * ALIGNMENT) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; any byte pattern is a valid `Line`, and the exclusive borrow of `self` covers the
        // slice.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.lines.len() * ALIGNMENT) }
    }
}
