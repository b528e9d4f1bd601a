//! The tables that let the micro-kernel read patches in place: a pointer for each pixel and run of taps.

use crate::gemm::sweep::{DEPTH, SLIVERS, Sweep};
use crate::gemm::tile::MAX_COLUMNS;
use crate::gemm::{LINE, Matrix, Out};
use crate::simd::Isa;

/// Most pixels of a table: rows of the product that share one packed filter.
pub(super) const PIXELS: usize = 128;

/// Floats a pointer takes in a workspace.
const POINTER: usize = size_of::<*const f32>() / size_of::<f32>();

/// A worker's part of the workspace: packed filter columns, zeros for padded taps, and pointers to the runs and results of up to [`PIXELS`] pixels.
pub(super) struct Patches {
    packed: *mut f32,
    pub zeros: *const f32,
    /// `runs[segment · PIXELS + pixel]`
    pub runs: *mut *const f32,
    pub outs: *mut *mut f32,
}

/// Floats of one worker's tables, for `segments` runs per patch and zeros for runs inside pixels of `channels`.
pub(super) fn per_worker(segments: usize, channels: usize) -> usize {
    SLIVERS + channels.next_multiple_of(LINE) + POINTER * PIXELS * (segments + 1)
}

impl Patches {
    /// Lays out the tables and clears the zeros.
    ///
    /// # Safety
    /// `scratch` begins on a cache line and has [`per_worker`] floats for these arguments, of which nobody else makes use.
    pub unsafe fn new(scratch: *mut f32, segments: usize, channels: usize) -> Patches {
        // SAFETY: the parts add up to `per_worker`; the pointer tables begin on a cache line, which is aligned enough for them.
        unsafe {
            let zeros = scratch.add(SLIVERS);
            zeros.write_bytes(0, channels);
            let runs = zeros.add(channels.next_multiple_of(LINE)).cast::<*const f32>();
            Patches { packed: scratch, zeros, runs, outs: runs.add(segments * PIXELS).cast() }
        }
    }

    /// `outs[pixel][columns] = sum over segments and length of runs · right`, for one group of channels.
    ///
    /// # Safety
    /// The processor has `isa`. The first `pixels` entries of each table were filled in: runs are readable for `length` floats after `a_offset`, outs writable for
    /// `columns` after `c_offset`. `right(segment)` is a readable `[length, columns]` part of B; if `in_place`, these have unit column stride and follow each other.
    pub unsafe fn multiply(
        &self,
        isa: Isa,
        pixels: usize,
        run: Run,
        offsets: (usize, usize),
        right: &dyn Fn(usize) -> Matrix,
        in_place: bool,
    ) {
        let columns = right(0).cols;
        let packed = (!in_place || columns > MAX_COLUMNS).then_some(self.packed);
        let most_segments = (DEPTH / run.length).max(1);
        for first in (0..run.segments).step_by(most_segments) {
            let segments = most_segments.min(run.segments - first);
            for start in (0..run.length).step_by(DEPTH) {
                let length = DEPTH.min(run.length - start);
                let sweep = Sweep {
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
                    sweep.run(|rows, tile| {
                        tile.a = self.runs.add(first * PIXELS + rows.start).cast_const();
                        tile.a_table = PIXELS;
                        tile.a_offset = offsets.0 + start;
                        tile.c = self.outs.add(rows.start).cast_const();
                        tile.c_base = offsets.1;
                    });
                }
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

/// A read-only pointer that may cross threads.
#[derive(Clone, Copy)]
pub(super) struct In(pub *const f32);

// SAFETY: nothing is written through it, and its users see to it that it outlives them.
unsafe impl Send for In {}
// SAFETY: as above.
unsafe impl Sync for In {}

impl In {
    /// # Safety
    /// As for [`pointer::add`].
    #[inline(always)]
    pub unsafe fn add(self, count: usize) -> *const f32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(count) }
    }
}

/// Cuts `pixels` rows into blocks of at most [`PIXELS`], small enough for some sixteen tasks: by shape, not by the number of threads.
///
/// Every block packs the filter anew, so a large filter wants blocks as tall as they may be.
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
