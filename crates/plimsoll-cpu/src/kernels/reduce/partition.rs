//! Splits rows into chunks, and sums over a batch, whose chunks are accumulated in order.
//!
//! A sum over the first dimension is split by the extents of one of its rows, never by their number, and chunks are
//! added to the running sum in order. A sum that stops at a chunk boundary and resumes later therefore performs the
//! same additions in the same order.

use super::accumulate::WIDTH;
use super::{CHUNK, Layout, Reducer, TASKS};
use plimsoll_core::ops::Reduction;
use std::ops::Range;

/// Maximum chunks of a sum computed in parallel.
const WAVE: usize = 4 * TASKS;

/// How the rows that are reduced to one are split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    /// Rows per period of the partition.
    stretch: usize,
    /// Chunks per period, and rows per chunk.
    parts: usize,
    each: usize,
    /// Total number of chunks.
    pub chunks: usize,
    /// Whether they are added in order.
    pub in_order: bool,
}

impl Partition {
    pub fn new(layout: &Layout, dims: &[usize], axes: &[usize], kind: Reduction) -> Partition {
        let rows = layout.all_rows();
        if kind == Reduction::Sum && axes.first() == Some(&0) {
            let (images, parts) = unit(rows / dims[0].max(1), layout.columns);
            let stretch = (images * (rows / dims[0].max(1))).max(1);
            return Partition { stretch, parts, each: stretch.div_ceil(parts), chunks: rows.div_ceil(stretch) * parts, in_order: true };
        }
        let tasks = (layout.groups() * layout.column_blocks()).max(1);
        let worth = rows.saturating_mul(layout.columns) / CHUNK;
        let chunks = worth.min(TASKS / tasks).min(rows).max(1);
        Partition { stretch: rows.max(1), parts: chunks, each: rows.div_ceil(chunks), chunks, in_order: false }
    }

    /// The rows of a chunk.
    pub fn rows(&self, layout: &Layout, chunk: usize) -> Range<usize> {
        let (start, part) = (chunk / self.parts * self.stretch, chunk % self.parts);
        let end = (start + self.stretch).min(layout.all_rows());
        (start + part * self.each).min(end)..(start + (part + 1) * self.each).min(end)
    }

    /// Number of ordered chunks computed in parallel; none if there are enough results to parallelize over.
    pub fn side_by_side(&self, layout: &Layout) -> Option<usize> {
        let tasks = (layout.groups() * layout.column_blocks()).max(1);
        Some((WAVE / tasks).min(self.chunks)).filter(|chunks| *chunks > 1)
    }

    /// Floats for the sums of parallel chunks, or a bound that is monotone in the columns.
    pub fn workspace_len(&self, layout: &Layout) -> usize {
        let results = layout.groups() * layout.columns;
        match self.chunks {
            0 | 1 => 0,
            chunks if layout.groups() == 1 && results <= WIDTH => chunks.min(WAVE) * results,
            chunks => chunks.saturating_mul(results).min(WAVE * WIDTH),
        }
    }
}

/// Batch rows per chunk, and chunks per batch row, from the rows and columns of one.
fn unit(rows: usize, columns: usize) -> (usize, usize) {
    let elements = rows.saturating_mul(columns).max(1);
    (power_of_two(CHUNK / elements), (elements / CHUNK).clamp(1, rows.max(1)))
}

/// The largest power of two that is at most `most`, at least 1: flush intervals of different kernels are then multiples
/// of each other.
pub(crate) fn power_of_two(most: usize) -> usize {
    1 << most.max(1).ilog2()
}

/// Whether a sum over leading axes, with `rows` of `columns` per batch row, can be accumulated over pieces of this many
/// batch rows, bit-identically.
pub(crate) fn sums_resume(rows: usize, columns: usize, piece: usize) -> bool {
    piece.is_multiple_of(unit(rows, columns).0)
}

/// A task, called with its index and the worker's.
type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

impl Reducer {
    /// Accumulates the chunks in order.
    ///
    /// # Safety
    /// Same as [`Reducer::run`].
    pub(super) unsafe fn in_order(&self, run: &dyn for<'a> Fn(usize, &'a Task<'a>)) {
        let (layout, chunks) = (&self.layout, self.partition.chunks);
        let (groups, blocks, columns) = (layout.groups(), layout.column_blocks(), layout.columns);
        let results = groups * columns;
        // SAFETY: the results are exclusive to this call; their initial values are at the same address or disjoint.
        unsafe {
            match self.initial {
                Some(before) if before != self.output.cast_const() => self.output.copy_from_nonoverlapping(before, results),
                None if chunks == 0 => self.output.write_bytes(0, results),
                _ => {}
            }
        }
        let put = |at: usize, sums: &[f32], first: bool| {
            // SAFETY: each task has its own columns.
            let to = unsafe { std::slice::from_raw_parts_mut(self.output.add(at), sums.len()) };
            if first { to.copy_from_slice(sums) } else { to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum) }
        };
        let begins = |chunk: usize| chunk == 0 && self.initial.is_none();
        let Some(wave) = self.partition.side_by_side(layout) else {
            run(groups * blocks, &|task, _| {
                for chunk in 0..chunks {
                    // SAFETY: guaranteed by the caller.
                    let (lanes, left, width) = unsafe { self.lanes(task / blocks, task % blocks, self.partition.rows(layout, chunk)) };
                    put(task / blocks * columns + left, &lanes.first[..width], begins(chunk));
                }
            });
            return;
        };
        for start in (0..chunks).step_by(wave) {
            let count = wave.min(chunks - start);
            let partial = |group: usize, block: usize, chunk: usize| {
                // SAFETY: a wave has space for all columns of its chunks, which are disjoint parts of the workspace.
                unsafe { self.partials.add((chunk * groups + group) * columns + block * WIDTH) }
            };
            run(groups * blocks * count, &|task, _| {
                let (chunk, task) = (task / (groups * blocks), task % (groups * blocks));
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let (lanes, _, width) = self.lanes(task / blocks, task % blocks, self.partition.rows(layout, start + chunk));
                    partial(task / blocks, task % blocks, chunk).copy_from_nonoverlapping(lanes.first.as_ptr(), width);
                }
            });
            for chunk in 0..count {
                for group in 0..groups {
                    // SAFETY: these partial sums are complete.
                    let sums = unsafe { std::slice::from_raw_parts(partial(group, 0, chunk), columns) };
                    put(group * columns, sums, begins(start + chunk));
                }
            }
        }
    }
}
