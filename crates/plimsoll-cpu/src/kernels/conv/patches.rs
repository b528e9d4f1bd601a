//! Pointer tables that let the micro-kernel read patches in place: a pointer per pixel and run of taps.

use crate::kernels::gemm::micro_kernel::{MAX_COLUMNS, MAX_ROWS};
use crate::kernels::gemm::panel::{DEPTH, PanelProduct, SLIVERS};
use crate::kernels::gemm::{LINE, Matrix, Out};
use crate::simd::float_view::{for_each_vector, widen_run};
use crate::simd::{Isa, PortableVector, Vector};
use plimsoll_core::DType;

/// Maximum pixels of a table: rows of the product that share one packed filter.
pub(super) const PIXELS: usize = 128;

/// Size of a pointer in floats.
const POINTER: usize = size_of::<*const f32>() / size_of::<f32>();

/// A worker's workspace: packed filter columns, zeros for padded taps, and pointers to the runs and results of up to
/// [`PIXELS`] pixels.
pub(super) struct Patches {
    packed: *mut f32,
    /// Buffer for widened 16-bit runs, if there are any.
    panel: *mut f32,
    /// Accumulators of 16-bit results, [`PIXELS`] rows, if there are any.
    pub block: *mut f32,
    pub zeros: *const f32,
    /// `runs[segment · PIXELS + pixel]`
    pub runs: *mut *const f32,
    pub outs: *mut *mut f32,
    /// Buffer for copies of runs that cross an edge, with zeros in the padding, if there are any.
    pub edges: *mut f32,
}

/// Which tensors of a convolution are stored in 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalfOperands {
    /// The operand from which patches are read.
    pub input: bool,
    /// The filter.
    pub filter: bool,
    /// The result.
    pub output: bool,
}

/// Row stride of widened runs in floats: one extra cache line avoids set conflicts.
const WIDENED: usize = DEPTH + LINE;

/// Floats of one worker's tables, for `segments` runs per patch, zeros for runs in pixels of `channels`, and results of
/// `width`, without the edge buffer.
pub(super) fn per_worker(segments: usize, channels: usize, width: usize, halves: HalfOperands) -> usize {
    SLIVERS + channels.next_multiple_of(LINE) + (POINTER * PIXELS * (segments + 1)).next_multiple_of(LINE) + conversions(width, halves)
}

/// Floats of the widening buffer and the accumulators.
fn conversions(width: usize, halves: HalfOperands) -> usize {
    let panel = if halves.input { PIXELS * WIDENED } else { 0 };
    let block = if halves.output { PIXELS * width } else { 0 };
    panel + block
}

impl Patches {
    /// Lays out the tables and clears the zeros.
    ///
    /// # Safety
    ///
    /// `scratch` is cache-line aligned and has [`per_worker`] floats for these arguments, exclusive to this value.
    pub unsafe fn new(scratch: *mut f32, segments: usize, channels: usize, width: usize, halves: HalfOperands) -> Patches {
        // SAFETY: the parts sum to `per_worker`; the pointer tables are cache-line aligned.
        unsafe {
            let zeros = scratch.add(SLIVERS);
            zeros.write_bytes(0, channels);
            let runs = zeros.add(channels.next_multiple_of(LINE)).cast::<*const f32>();
            let panel = runs.cast::<f32>().add((POINTER * PIXELS * (segments + 1)).next_multiple_of(LINE));
            let block = panel.wrapping_add(if halves.input { PIXELS * WIDENED } else { 0 });
            let edges = panel.wrapping_add(conversions(width, halves));
            Patches { packed: scratch, panel, block, zeros, runs, outs: runs.add(segments * PIXELS).cast(), edges }
        }
    }

    /// `outs[pixel][columns] = sum over segments and length of runs · right`, for one group of channels. With `blocked`
    /// the results go to the accumulators with that row stride.
    ///
    /// # Safety
    ///
    /// The processor supports `isa`. The first `pixels` entries of each table are initialized: runs are readable for
    /// `length` elements of `dtype` after `a_offset`, outs are writable for `columns` after `c_offset`.
    /// `right(segment)` is a readable `[length, columns]` part of B; if `in_place`, the segments have unit column
    /// stride and are contiguous. The tables were created for these 16-bit operands.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn multiply(
        &self,
        isa: Isa,
        (pixels, dtype): (usize, DType),
        blocked: Option<usize>,
        run: PatchSegments,
        offsets: (usize, usize),
        right: &dyn Fn(usize) -> Matrix,
        in_place: bool,
    ) {
        let columns = right(0).cols;
        let packed = (!in_place || columns > MAX_COLUMNS || right(0).dtype.is_half()).then_some(self.packed);
        let mut a_rows = [std::ptr::null::<f32>(); MAX_ROWS];
        let mut c_rows = [std::ptr::null_mut::<f32>(); MAX_ROWS];
        let most_segments = (DEPTH / run.length).max(1);
        for first in (0..run.segments).step_by(most_segments) {
            let segments = most_segments.min(run.segments - first);
            for start in (0..run.length).step_by(DEPTH) {
                let length = DEPTH.min(run.length - start);
                let sweep = PanelProduct {
                    isa,
                    rows: pixels,
                    columns: 0..columns,
                    segments,
                    length,
                    accumulate: first + start > 0,
                    right: &|segment| {
                        let right = right(first + segment);
                        // SAFETY: `start` is a row of the segment's part of B.
                        Matrix { ptr: unsafe { right.at(start, 0) }, rows: length, ..right }
                    },
                    packed,
                };
                // SAFETY: guaranteed by the caller; several segments are used only if all of them fit in `DEPTH`.
                unsafe {
                    if dtype.is_half() {
                        let runs = self.runs.add(first * PIXELS).cast_const();
                        widen_patches(isa, dtype, runs, pixels, segments, offsets.0 + start, length, self.panel);
                    }
                    sweep.run(|rows, tile| {
                        if dtype.is_half() {
                            a_rows = std::array::from_fn(|i| self.panel.cast_const().wrapping_add((rows.start + i) * WIDENED));
                            (tile.a, tile.segments, tile.length) = (a_rows.as_ptr(), 1, segments * length);
                        } else {
                            tile.a = self.runs.add(first * PIXELS + rows.start).cast_const();
                            tile.a_table = PIXELS;
                            tile.a_offset = offsets.0 + start;
                        }
                        if let Some(width) = blocked {
                            c_rows = std::array::from_fn(|i| self.block.wrapping_add((rows.start + i) * width));
                            tile.c = c_rows.as_ptr();
                        } else {
                            tile.c = self.outs.add(rows.start).cast_const();
                        }
                        tile.c_base = offsets.1;
                    });
                }
            }
        }
    }
}

for_each_vector! {
    /// Widens the runs of `pixels` patches, one contiguous row of the buffer per pixel.
    ///
    /// # Safety
    ///
    /// The processor supports `isa`; every run is readable for `length` 16-bit elements after `offset`, and the buffer
    /// is writable for them.
    fn widen_patches = widen_patches_run(
        runs: *const *const f32, pixels: usize, segments: usize, offset: usize, length: usize, to: *mut f32
    )
}

/// # Safety
/// Same as [`widen_patches`].
#[inline(always)]
unsafe fn widen_patches_run<V: Vector, const BF16: bool>(
    runs: *const *const f32,
    pixels: usize,
    segments: usize,
    offset: usize,
    length: usize,
    to: *mut f32,
) {
    for segment in 0..segments {
        for pixel in 0..pixels {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let run = (*runs.add(segment * PIXELS + pixel)).cast::<u16>().add(offset);
                widen_run::<V, BF16>(run.cast(), to.add(pixel * WIDENED + segment * length), length);
            }
        }
    }
}

/// The k dimension of a patch.
#[derive(Clone, Copy)]
pub(super) struct PatchSegments {
    pub segments: usize,
    /// Contiguous floats per segment.
    pub length: usize,
}

/// Splits `pixels` rows into blocks of at most [`PIXELS`], for about sixteen tasks: by shape, not by the number of
/// threads.
///
/// Every block packs the filter, so a large filter needs tall blocks.
pub(super) fn block_of(pixels: usize, filter: usize) -> usize {
    const LARGE: usize = 1 << 18;
    let least = if filter > LARGE { PIXELS } else { 32 };
    pixels.div_ceil(16).next_multiple_of(8).clamp(least, PIXELS)
}

/// A worker's part of a shared workspace.
///
/// # Safety
///
/// The workspace has `each` floats for every worker.
pub(super) unsafe fn part(workspace: Out, worker: usize, each: usize) -> *mut f32 {
    // SAFETY: guaranteed by the caller.
    unsafe { workspace.add(worker * each.next_multiple_of(LINE)) }
}
