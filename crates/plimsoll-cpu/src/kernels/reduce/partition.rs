//! How reductions are split.
//!
//! A sum over the rows of a batch can stop and resume at any row: it is either one chain of additions over all of its
//! rows, or every row of the batch is summed on its own, in chunks by its extents alone, and these sums are added in
//! order. Other reductions are split by the number of elements of a result. Neither depends on the number of threads,
//! nor on how many rows of a batch or results there are.

use super::accumulate::{WIDTH, add_rows};
use super::{CHUNK, Layout, Reducer, TASKS};
use crate::kernels::pointwise::ResultTile;
use plimsoll_core::ops::Reduction;
use std::ops::Range;

/// Maximum chunks of a sum computed in parallel.
const WAVE: usize = 4 * TASKS;

/// Maximum chunks of a reduction that is not a sum over a batch.
const CHUNKS: usize = 16;

/// Columns that fill a vector, so that adding row after row is efficient.
const WIDE: usize = 16;

/// Minimum rows and elements of a batch row that is summed on its own, if its rows fill vectors: the lanes of a shorter
/// one would cost more than its sum.
const LEAST_ROWS: usize = 64;
const LEAST: usize = 4096;

/// Minimum elements of a batch row that is summed on its own otherwise.
const LEAST_NARROW: usize = 256;

/// Columns of a chain that are added by one task.
const CHAIN: usize = 256;

/// The order in which rows are reduced to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Chunks are combined in order.
    InChunks,
    /// A sum over a batch, in chunks that do not cross batch rows, added in order.
    BatchRows,
    /// A sum over a batch, row after row.
    Chain,
}

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
    pub order: Order,
}

impl Partition {
    /// `batch`: whether the first dimension is a multiple of the batch.
    pub fn new(layout: &Layout, dims: &[usize], axes: &[usize], kind: Reduction, batch: bool) -> Partition {
        let rows = layout.all_rows();
        if kind == Reduction::Sum && axes.first() == Some(&0) && batch {
            let inner = rows / dims[0].max(1);
            let Some(stretch) = batch_row(inner, layout.columns) else {
                return Partition { stretch: rows.max(1), parts: 1, each: rows, chunks: 1, order: Order::Chain };
            };
            let parts = (stretch.saturating_mul(layout.columns) / CHUNK).clamp(1, stretch);
            let (each, chunks) = (stretch.div_ceil(parts), rows.div_ceil(stretch) * parts);
            return Partition { stretch, parts, each, chunks, order: Order::BatchRows };
        }
        let worth = rows.saturating_mul(layout.columns) / CHUNK;
        let chunks = worth.min(CHUNKS).min(rows).max(1);
        Partition { stretch: rows.max(1), parts: chunks, each: rows.div_ceil(chunks), chunks, order: Order::InChunks }
    }

    /// Whether it is a sum over a batch, which can resume.
    pub fn resumes(&self) -> bool {
        self.order != Order::InChunks
    }

    /// The rows of a chunk.
    pub fn rows(&self, layout: &Layout, chunk: usize) -> Range<usize> {
        let (start, part) = (chunk / self.parts * self.stretch, chunk % self.parts);
        let end = (start + self.stretch).min(layout.all_rows());
        (start + part * self.each).min(end)..(start + (part + 1) * self.each).min(end)
    }

    /// Number of ordered chunks computed in parallel; none if there are enough results to parallelize over.
    fn side_by_side(&self, layout: &Layout) -> Option<usize> {
        let tasks = (layout.groups() * layout.column_blocks()).max(1);
        Some((WAVE / tasks).min(self.chunks)).filter(|chunks| *chunks > 1)
    }

    /// Whether the chunks of a reduction that is not a sum over a batch are computed in parallel.
    pub fn is_parallel(&self, layout: &Layout) -> bool {
        self.chunks > 1 && layout.groups() * layout.column_blocks() * self.chunks <= TASKS
    }

    /// Floats for the results of parallel chunks, or a bound that is monotone in the batch.
    pub fn workspace_len(&self, layout: &Layout) -> usize {
        let results = layout.groups() * layout.columns;
        match self.order {
            Order::Chain => 0,
            // Each of at most `TASKS` tasks has the two states of its columns.
            Order::InChunks if self.chunks > 1 => TASKS * 2 * layout.columns.min(WIDTH),
            _ if self.chunks <= 1 => 0,
            _ if layout.groups() == 1 && results <= WIDTH => self.chunks.min(WAVE) * results,
            _ => self.chunks.saturating_mul(results).min(WAVE * WIDTH),
        }
    }
}

/// The rows of a batch row that are summed on their own, given the rows per index of the first dimension; none if all
/// rows form one chain.
fn batch_row(inner: usize, columns: usize) -> Option<usize> {
    let elements = inner.saturating_mul(columns);
    let alone = if columns >= WIDE { inner >= LEAST_ROWS && elements >= LEAST } else { elements >= LEAST_NARROW };
    alone.then_some(inner)
}

/// A task, called with its index and the worker's.
type ReductionTask<'a> = dyn Fn(usize, usize) + Sync + 'a;

impl Reducer {
    /// Adds the sums of the chunks in order.
    ///
    /// # Safety
    /// Same as [`Reducer::run`].
    pub(super) unsafe fn in_order(&self, run: &dyn for<'a> Fn(usize, &'a ReductionTask<'a>)) {
        let (layout, chunks) = (&self.layout, self.partition.chunks);
        let (groups, blocks, columns) = (layout.groups(), layout.column_blocks(), layout.columns);
        let results = groups * columns;
        // SAFETY: the results are exclusive to this call; their initial values are at the same address or disjoint.
        unsafe {
            match self.initial {
                Some(before) if before != self.output.cast_const() => self.output.copy_from_nonoverlapping(before, results),
                None if chunks == 0 || self.partition.order == Order::Chain => self.output.write_bytes(0, results),
                _ => {}
            }
        }
        if self.partition.order == Order::Chain {
            let width = if columns >= 2 * CHAIN { CHAIN } else { columns };
            let blocks = columns.div_ceil(width.max(1));
            // SAFETY: guaranteed by the caller; tasks have their own columns.
            return run(groups * blocks, &|task, _| unsafe {
                let left = task % blocks * width;
                self.chain(task / blocks, left, width.min(columns - left));
            });
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

    /// Adds all rows of some columns of one group to the output, row after row.
    ///
    /// # Safety
    /// Same as [`Reducer::run`]; the results of these columns are exclusive to this call.
    unsafe fn chain(&self, group: usize, left: usize, width: usize) {
        let (layout, rows) = (&self.layout, self.layout.all_rows());
        // SAFETY: the columns are inside of the output.
        let sums = unsafe { std::slice::from_raw_parts_mut(self.output.add(group * layout.columns + left), width) };
        let mut row = 0;
        while row < rows {
            // As many rows as are contiguous in memory.
            let together = if width == layout.columns { layout.rows - row % layout.rows } else { 1 };
            let start = layout.start(group, row) + left;
            let mut at = 0;
            let add = |tile: ResultTile| {
                let mut spread = [0.0; WIDTH];
                // SAFETY: a tile holds at most `WIDTH` numbers.
                let mut numbers = unsafe { tile.numbers(&mut spread) };
                while !numbers.is_empty() {
                    // The rest of a row that the previous tile began, whole rows, or the beginning of one.
                    let whole = numbers.len() / width * width;
                    let count = if at == 0 && whole > 0 { whole } else { (width - at).min(numbers.len()) };
                    let (now, later) = numbers.split_at(count);
                    let end = if count > width { width } else { at + count };
                    add_rows(self.isa, &mut sums[at..end], now);
                    at = end % width;
                    numbers = later;
                }
            };
            // SAFETY: the rows are inside of the shape.
            unsafe { self.kernel.range(start, start + together * width, add) };
            row += together;
        }
    }
}
