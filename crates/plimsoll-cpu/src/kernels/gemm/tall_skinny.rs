//! Products of a transposed A with few columns: the result is computed transposed, so that A's contiguous rows fill the
//! vectors.
//!
//! The weight gradient of a wide layer with few outputs has this shape, and reading A dominates its cost. A is read
//! once, in place, as a few long parallel streams; many short ones would reach a fraction of the memory bandwidth.

use std::ops::Range;

use super::micro_kernel::{MAX_COLUMNS, MAX_ROWS, Tile};
use super::panel::{DEPTH, PanelProduct, SLIVERS};
use super::{Matrix, pack};
use crate::simd::Isa;

/// Maximum columns of such a product: more columns fill vectors themselves.
pub(super) const COLUMNS: usize = 16;

/// Number of k processed at once, each a stream of A: as many as hardware prefetchers track.
const STREAMS: usize = 8;

/// Length of a stream; the sums of ten columns take about 60 KiB.
const STRIP: usize = 1536;

/// The transposed sums reuse the space of packed slivers in a worker's workspace.
const _: () = assert!(COLUMNS * STRIP <= SLIVERS);

/// Floats of A that stay in cache in any access order.
const CACHED: usize = 1 << 15;

/// Whether the product should be computed transposed.
pub(super) fn fits(a: &Matrix, b: &Matrix) -> bool {
    a.row_stride == 1
        && a.col_stride != 1
        && a.rows >= MAX_COLUMNS
        && (a.cols <= 64 || a.rows >= 2 * STRIP)
        && (2..=COLUMNS).contains(&b.cols)
}

/// `C[rows] (=|+=) A[rows, ks] · B[ks]`, where `c` points to element `(0, 0)` of the whole.
///
/// # Safety
/// The processor supports `isa`, [`fits`] holds, the ranges lie inside the operands, `c` may be written over the rows
/// and overlaps neither, and `sums` has [`SLIVERS`] floats.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn multiply(
    isa: Isa,
    a: &Matrix,
    b: &Matrix,
    rows: Range<usize>,
    ks: Range<usize>,
    c: *mut f32,
    ldc: usize,
    add: bool,
    sums: *mut f32,
) {
    let n = b.cols;
    let step = if a.rows * a.cols <= CACHED { DEPTH } else { STREAMS };
    for i0 in rows.clone().step_by(STRIP) {
        let strip = STRIP.min(rows.end - i0);
        // SAFETY: the row segment is inside of A, its rows inside of C, and `sums` has `n` rows of `STRIP` floats.
        unsafe {
            let to = c.wrapping_add(i0 * ldc);
            if add {
                pack::transpose(to, ldc as isize, 1, strip, n, sums, STRIP);
            }
            for k0 in ks.clone().step_by(step) {
                let depth = step.min(ks.end - k0);
                let accumulate = add || k0 > ks.start;
                let right = Matrix { ptr: a.at(i0, k0), rows: depth, cols: strip, row_stride: a.col_stride, col_stride: 1, ..*a };
                let panel_product = PanelProduct {
                    isa,
                    rows: n,
                    columns: 0..strip,
                    segments: 1,
                    length: depth,
                    accumulate,
                    right: &|_| right,
                    packed: None,
                };
                let mut a_rows = [std::ptr::null(); MAX_ROWS];
                let mut c_rows = [std::ptr::null_mut(); MAX_ROWS];
                panel_product.run(|part: Range<usize>, tile: &mut Tile| {
                    a_rows = std::array::from_fn(|j| b.at(k0, 0).wrapping_offset((part.start + j) as isize * b.col_stride));
                    c_rows = std::array::from_fn(|j| sums.wrapping_add((part.start + j) * STRIP));
                    tile.a = a_rows.as_ptr();
                    tile.a_step = b.row_stride;
                    tile.c = c_rows.as_ptr();
                });
            }
            pack::transpose(sums, STRIP as isize, 1, n, strip, to, ldc);
        }
    }
}
