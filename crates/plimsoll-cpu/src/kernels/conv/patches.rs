//! The tables that let the micro-kernel read patches in place: a pointer for each pixel and run of taps.

use crate::kernels::gemm::micro_kernel::{MAX_COLUMNS, MAX_ROWS};
use crate::kernels::gemm::panel::{DEPTH, PanelProduct, SLIVERS};
use crate::kernels::gemm::{LINE, Matrix, Out};
use crate::simd::float_view::{for_each_vector, widen_run};
use crate::simd::{Isa, PortableVector, Vector};
use plimsoll_core::DType;

/// Most pixels of a table: rows of the product that share one packed filter.
pub(super) const PIXELS: usize = 128;

/// Floats a pointer takes in a workspace.
const POINTER: usize = size_of::<*const f32>() / size_of::<f32>();

/// A worker's part of the workspace: packed filter columns, zeros for padded taps, and pointers to the runs and results of up to [`PIXELS`] pixels.
pub(super) struct Patches {
    packed: *mut f32,
    /// Where runs in two bytes are widened, if they are.
    panel: *mut f32,
    /// Where results that are stored in two bytes are summed, [`PIXELS`] rows, if they are.
    pub block: *mut f32,
    pub zeros: *const f32,
    /// `runs[segment · PIXELS + pixel]`
    pub runs: *mut *const f32,
    pub outs: *mut *mut f32,
    /// Where runs that reach over an edge are copied with zeros in the padding, if they are.
    pub edges: *mut f32,
}

/// What of a convolution is stored in two bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalfOperands {
    /// The operand that patches are taken of.
    pub input: bool,
    /// The filter.
    pub filter: bool,
    /// The result.
    pub output: bool,
}

/// Floats from one widened row to the next: a line more than needed, lest rows fall on the same cache set.
const WIDENED: usize = DEPTH + LINE;

/// Floats of one worker's tables, for `segments` runs per patch, zeros for runs inside pixels of `channels`, and results of `width`; copies of runs
/// that reach over an edge come behind them.
pub(super) fn per_worker(segments: usize, channels: usize, width: usize, halves: HalfOperands) -> usize {
    SLIVERS + channels.next_multiple_of(LINE) + (POINTER * PIXELS * (segments + 1)).next_multiple_of(LINE) + conversions(width, halves)
}

/// Floats of the panel and the block.
fn conversions(width: usize, halves: HalfOperands) -> usize {
    let panel = if halves.input { PIXELS * WIDENED } else { 0 };
    let block = if halves.output { PIXELS * width } else { 0 };
    panel + block
}

impl Patches {
    /// Lays out the tables and clears the zeros.
    ///
    /// # Safety
    /// `scratch` begins on a cache line and has [`per_worker`] floats for these arguments, of which nobody else makes use.
    pub unsafe fn new(scratch: *mut f32, segments: usize, channels: usize, width: usize, halves: HalfOperands) -> Patches {
        // SAFETY: the parts add up to `per_worker`; the pointer tables begin on a cache line, which is aligned enough for them.
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

    /// `outs[pixel][columns] = sum over segments and length of runs · right`, for one group of channels. With `blocked` the results go to the block
    /// instead, whose rows are as far apart as it says.
    ///
    /// # Safety
    /// The processor has `isa`. The first `pixels` entries of each table were filled in: runs are readable for `length` numbers of `dtype` after `a_offset`, outs
    /// writable for `columns` after `c_offset`. `right(segment)` is a readable `[length, columns]` part of B; if `in_place`, these have unit column stride and follow
    /// each other. The tables were made for what is in two bytes.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn multiply(
        &self,
        isa: Isa,
        (pixels, dtype): (usize, DType),
        blocked: Option<usize>,
        run: Run,
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
                // SAFETY: the caller's promise; segments beyond one are only taken when all of them fit into `DEPTH`.
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
    /// Copies the runs of `pixels` patches behind each other, a row of the panel for each pixel.
    ///
    /// # Safety
    /// The processor has `isa`; every run is readable for `length` numbers of two bytes after `offset`, and the panel is writable for them.
    fn widen_patches = widen_patches_run(
        runs: *const *const f32, pixels: usize, segments: usize, offset: usize, length: usize, to: *mut f32
    )
}

/// # Safety
/// As for [`widen_patches`].
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
            // SAFETY: the caller's promise.
            unsafe {
                let run = (*runs.add(segment * PIXELS + pixel)).cast::<u16>().add(offset);
                widen_run::<V, BF16>(run.cast(), to.add(pixel * WIDENED + segment * length), length);
            }
        }
    }
}

/// How the k of a patch are walked.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub segments: usize,
    /// Contiguous floats of a segment.
    pub length: usize,
}

/// Cuts `pixels` rows into blocks of at most [`PIXELS`], small enough for some sixteen tasks: by shape, not by the number of threads.
///
/// Every block packs the filter again, so a large filter wants blocks as tall as they may be.
pub(super) fn block_of(pixels: usize, filter: usize) -> usize {
    const LARGE: usize = 1 << 18;
    let least = if filter > LARGE { PIXELS } else { 32 };
    pixels.div_ceil(16).next_multiple_of(8).clamp(least, PIXELS)
}

/// The part of a shared workspace that belongs to a worker.
///
/// # Safety
/// The workspace has `each` floats for every worker.
pub(super) unsafe fn part(workspace: Out, worker: usize, each: usize) -> *mut f32 {
    // SAFETY: the caller's promise.
    unsafe { workspace.add(worker * each.next_multiple_of(LINE)) }
}
