//! Reductions of an expression along axes.
//!
//! The shape becomes rows of adjacent columns that are reduced together; rows and columns are split by shape alone, so
//! sums are bit-identical for any number of threads. Lanes are combined by pairwise halving and long lanes are split,
//! so that rounding errors grow slowly. Sums over a batch can stop and resume at any of its rows (`partition`).

mod accumulate;
mod partition;

use crate::kernels::pointwise::broadcast::{collapse, offset};
use crate::kernels::pointwise::{InputSpec, Kernel, ResultTile};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use accumulate::{Accumulators, WIDTH, finish, join, rows};
use partition::{Order, Partition};
use plimsoll_core::expr::Expr;
use plimsoll_core::ops::Reduction;
use plimsoll_core::random::StepRandom;
use std::ops::Range;

/// A reduction, ready to run.
pub struct Reducer {
    isa: Isa,
    kind: Reduction,
    kernel: Kernel,
    layout: Layout,
    partition: Partition,
    output: *mut f32,
    partials: *mut f32,
    /// The initial value of the sum, instead of zero; often at the address of the output.
    initial: Option<*const f32>,
}

// SAFETY: the addresses are only used by `run`, whose caller guarantees them.
unsafe impl Send for Reducer {}
// SAFETY: as above.
unsafe impl Sync for Reducer {}

/// Maximum tasks per reduction if its results alone are too few.
const TASKS: usize = 64;
/// Approximate elements per task.
const CHUNK: usize = 64 << 10;
/// Numbers that a lane accumulates before its sum is flushed.
const BLOCK: usize = 128;
/// The cost below which waking other threads takes longer than the work.
const SERIAL: usize = 120_000;

/// The shape as `[kept, reduced, columns]`, where the first two may consist of several interleaved dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layout {
    /// Kept dimensions with their strides.
    kept: (Vec<usize>, Vec<usize>),
    /// Reduced dimensions with their strides, except for the innermost.
    reduced: (Vec<usize>, Vec<usize>),
    /// The innermost reduced dimension.
    rows: usize,
    /// The innermost dimension, if it is kept.
    columns: usize,
}

impl Layout {
    fn new(dims: &[usize], axes: &[usize]) -> Layout {
        let marks: Vec<bool> = (0..dims.len()).map(|axis| axes.contains(&axis)).collect();
        let mut merged = collapse(dims, &marks, &[(dims, None)]);
        let mut innermost = |reduced: bool| match merged.marks.last() {
            Some(mark) if *mark == reduced => {
                merged.marks.pop();
                merged.strides[0].pop();
                merged.dims.pop().expect("as long as the marks")
            }
            _ => 1,
        };
        let columns = innermost(false);
        let rows = innermost(true);
        let part = |reduced: bool| {
            let own = (0..merged.dims.len()).filter(|i| merged.marks[*i] == reduced);
            own.map(|i| (merged.dims[i], merged.strides[0][i])).unzip()
        };
        Layout { kept: part(false), reduced: part(true), rows, columns }
    }

    /// Number of groups: results per column.
    fn groups(&self) -> usize {
        self.kept.0.iter().product()
    }

    /// Rows that are reduced to one.
    fn all_rows(&self) -> usize {
        self.rows * self.reduced.0.iter().product::<usize>()
    }

    /// The offset of row `row` of group `group`.
    fn start(&self, group: usize, row: usize) -> usize {
        let inner = row % self.rows * self.columns;
        offset(&self.kept.0, &self.kept.1, group) + offset(&self.reduced.0, &self.reduced.1, row / self.rows) + inner
    }

    fn column_blocks(&self) -> usize {
        self.columns.div_ceil(WIDTH)
    }
}

/// Floats of workspace of a reduction; monotone in the first dimension. `batch` as for [`Reducer::new`].
pub fn workspace_len(dims: &[usize], axes: &[usize], kind: Reduction, batch: bool) -> usize {
    let layout = Layout::new(dims, axes);
    Partition::new(&layout, dims, axes, kind, batch).workspace_len(&layout)
}

impl Reducer {
    /// Compiles the reduction of an expression over `dims` along `axes`. `batch`: whether the first dimension is a
    /// multiple of the batch.
    ///
    /// # Errors
    ///
    /// If the expression is too large; see [`Kernel::new`].
    pub fn new(
        expr: &Expr,
        dims: &[usize],
        axes: &[usize],
        kind: Reduction,
        batch: bool,
        sources: &[InputSpec<'_>],
    ) -> Result<Reducer, String> {
        let layout = Layout::new(dims, axes);
        let unit = if layout.columns > 1 { layout.columns } else { layout.rows };
        let kernel = Kernel::with(Isa::best(), expr, dims, sources, &[], if unit <= WIDTH { unit } else { 1 })?;
        let partition = Partition::new(&layout, dims, axes, kind, batch);
        let (output, partials) = (std::ptr::null_mut(), std::ptr::null_mut());
        Ok(Reducer { isa: Isa::best(), kind, kernel, layout, partition, output, partials, initial: None })
    }

    /// Sets the address of input `i`.
    pub fn set_input(&mut self, i: usize, address: *const u8) {
        self.kernel.set_input(i, address);
    }

    /// Sets the addresses of the result and of its workspace of [`workspace_len`] floats.
    pub fn set_output(&mut self, output: *mut u8, workspace: *mut f32) {
        (self.output, self.partials) = (output.cast(), workspace);
    }

    /// Sets the address of the sum to accumulate onto: the address of the result, or disjoint memory.
    ///
    /// # Panics
    ///
    /// If this is not a sum over a batch.
    pub fn set_initial(&mut self, before: *const u8) {
        assert!(self.partition.resumes(), "only sums over a batch resume from others");
        self.initial = Some(before.cast());
    }

    /// Runs the reduction.
    ///
    /// # Safety
    ///
    /// Inputs, output and workspace have addresses that are valid over their extents, and do not overlap.
    pub unsafe fn run(&mut self, pool: &ThreadPool, random: StepRandom, first_random: u64) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.kernel.prepare(random, first_random) };
        let this = &*self;
        let parallel = pool.threads() > 1 && this.kernel.cost() >= SERIAL;
        let run = |tasks: usize, task: &(dyn Fn(usize, usize) + Sync)| {
            if parallel { pool.run(tasks, task) } else { (0..tasks).for_each(|index| task(index, 0)) }
        };
        if this.partition.order != Order::InChunks {
            // SAFETY: guaranteed by the caller.
            return unsafe { this.in_order(&run) };
        }
        let (layout, groups) = (&this.layout, this.layout.groups());
        if this.has_short_rows() {
            let each = (CHUNK / 4 / layout.rows).next_multiple_of((this.kernel.tile() / layout.rows).max(1));
            // SAFETY: tasks write disjoint results.
            run(groups.div_ceil(each), &|task, _| unsafe { this.short_rows(task * each, groups.min((task + 1) * each)) });
            return;
        }
        let (blocks, chunks) = (layout.column_blocks(), this.partition.chunks);
        if !this.partition.is_parallel(layout) {
            // SAFETY: tasks write disjoint results.
            return run(groups * blocks, &|task, _| unsafe { this.columns(task / blocks, task % blocks) });
        }
        run(groups * blocks * chunks, &|task, _| {
            let (group, block, chunk) = (task / chunks / blocks, task / chunks % blocks, task % chunks);
            // SAFETY: tasks write disjoint partial results.
            unsafe {
                let (lanes, _, width) = this.lanes(group, block, this.partition.rows(layout, chunk));
                let (first, second) = this.partial(group, block, chunk, width);
                first.copy_from_slice(&lanes.first[..width]);
                second.copy_from_slice(&lanes.second[..width]);
            }
        });
        // SAFETY: all partial results are complete.
        (0..groups * blocks).for_each(|task| unsafe { this.gather(task / blocks, task % blocks) });
    }

    /// Whether rows are short, with one result per row, however many there are.
    fn has_short_rows(&self) -> bool {
        let Layout { kept, reduced, rows, columns } = &self.layout;
        let woven = kept.0.len() > 1 || !reduced.0.is_empty() || *columns != 1;
        !woven && (1..=WIDTH / 2).contains(rows)
    }

    /// # Safety
    ///
    /// Same as [`Reducer::run`]; the results are exclusive to this call.
    unsafe fn short_rows(&self, start: usize, end: usize) {
        let length = self.layout.rows;
        let aligned = self.kernel.tile().is_multiple_of(length) && self.kernel.row().is_multiple_of(length);
        let (mut begun, mut filled, mut result) = ([0.0; WIDTH / 2], 0, start);
        let reduce = |tile: ResultTile| {
            let mut spread = [0.0; WIDTH];
            // SAFETY: results are exclusive to this call; single values are broadcast first.
            unsafe {
                let mut numbers = tile.numbers(&mut spread);
                if aligned {
                    let results = std::slice::from_raw_parts_mut(self.output.add(tile.start / length), tile.length / length);
                    return rows(self.isa, self.kind, numbers, length, results);
                }
                // Tiles end within rows, which are collected first.
                while !numbers.is_empty() {
                    let (now, later) = numbers.split_at((length - filled).min(numbers.len()));
                    begun[filled..filled + now.len()].copy_from_slice(now);
                    (numbers, filled) = (later, filled + now.len());
                    if filled == length {
                        let results = std::slice::from_raw_parts_mut(self.output.add(result), 1);
                        rows(self.isa, self.kind, &begun[..length], length, results);
                        (filled, result) = (0, result + 1);
                    }
                }
            }
        };
        // SAFETY: guaranteed by the caller.
        unsafe { self.kernel.range(start * length, end * length, reduce) };
    }

    /// Reduces all rows in one block of columns of one group.
    ///
    /// # Safety
    ///
    /// Same as [`Reducer::run`]; the results are exclusive to this call.
    unsafe fn columns(&self, group: usize, block: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (mut lanes, left, width) = self.lanes(group, block, self.partition.rows(&self.layout, 0));
            for chunk in 1..self.partition.chunks {
                let (more, ..) = self.lanes(group, block, self.partition.rows(&self.layout, chunk));
                lanes.join(self.isa, self.kind, &more, width);
            }
            self.store(group, left, &lanes.first[..width], &lanes.second[..width]);
        }
    }

    /// The states of one block of columns of one group over some rows, its first column and number of columns.
    ///
    /// # Safety
    /// Same as [`Reducer::run`].
    unsafe fn lanes(&self, group: usize, block: usize, rows: Range<usize>) -> (Accumulators, usize, usize) {
        let layout = &self.layout;
        let (mut row, end) = (rows.start, rows.end);
        let left = block * WIDTH;
        let width = WIDTH.min(layout.columns - left);
        // Narrow rows are side by side in the lanes.
        let narrow = layout.columns <= WIDTH;
        let count = if narrow { WIDTH / width } else { 1 };

        let mut lanes = Accumulators::empty(self.kind);
        let mut total: Option<Accumulators> = None;
        let mut added = 0;
        while row < end {
            let start = layout.start(group, row) + left;
            // As many rows as are contiguous in memory.
            let together = if narrow { (layout.rows - row % layout.rows).min(end - row) } else { 1 };
            let mut seen = 0;
            let reduce = |tile: ResultTile| {
                let mut spread = [0.0; WIDTH];
                // SAFETY: a tile holds at most `WIDTH` numbers.
                let mut numbers = unsafe { tile.numbers(&mut spread) };
                while !numbers.is_empty() {
                    let at = seen % (count * width);
                    let first_row = (row + seen / width) as u32;
                    // Argmax needs rows that start at their lanes; other reductions take as many as fit.
                    let most = if self.kind == Reduction::ArgMax && width > 1 { width - at % width } else { count * width - at };
                    let (now, later) = numbers.split_at(most.min(numbers.len()));
                    lanes.add(self.isa, self.kind, at, now, first_row, u32::from(width == 1));
                    (numbers, seen, added) = (later, seen + now.len(), added + now.len());
                    if added >= BLOCK * count * width && self.kind == Reduction::Sum {
                        let full = std::mem::replace(&mut lanes, Accumulators::empty(self.kind));
                        match &mut total {
                            Some(total) => total.join(self.isa, self.kind, &full, WIDTH),
                            None => total = Some(full),
                        }
                        added = 0;
                    }
                }
            };
            // SAFETY: the rows are inside of the shape.
            unsafe { self.kernel.range(start, start + together * width, reduce) };
            row += together;
        }
        if let Some(total) = total {
            lanes.join(self.isa, self.kind, &total, WIDTH);
        }
        lanes.gather(self.isa, self.kind, width, count);
        (lanes, left, width)
    }

    /// Combines the chunks of one block of columns in order.
    ///
    /// # Safety
    ///
    /// Same as [`Reducer::run`]; all chunks are complete.
    unsafe fn gather(&self, group: usize, block: usize) {
        let left = block * WIDTH;
        let width = WIDTH.min(self.layout.columns - left);
        // SAFETY: the parts are disjoint.
        unsafe {
            let (first, second) = self.partial(group, block, 0, width);
            for chunk in 1..self.partition.chunks {
                let (more, seconds) = self.partial(group, block, chunk, width);
                join(self.isa, self.kind, (&mut *first, &mut *second), (more, seconds));
            }
            self.store(group, left, first, second);
        }
    }

    /// # Safety
    ///
    /// The results of these columns are exclusive to this call.
    unsafe fn store(&self, group: usize, left: usize, first: &[f32], second: &[f32]) {
        for (i, (first, second)) in first.iter().zip(second).enumerate() {
            // SAFETY: the columns are inside of the result.
            unsafe { *self.output.add(group * self.layout.columns + left + i) = finish(self.kind, *first, *second) };
        }
    }

    /// The partial states of a task.
    ///
    /// # Safety
    ///
    /// That task's part of the workspace is exclusive to this call.
    #[allow(clippy::mut_from_ref, reason = "the parts lie in the workspace, not in the reducer")]
    unsafe fn partial(&self, group: usize, block: usize, chunk: usize, width: usize) -> (&mut [f32], &mut [f32]) {
        let task = (group * self.layout.column_blocks() + block) * self.partition.chunks + chunk;
        let pitch = self.layout.columns.min(WIDTH);
        // SAFETY: the partition limits the number of tasks to `TASKS`, which `workspace_len` accounts for.
        unsafe {
            let start = self.partials.add(task * 2 * pitch);
            (std::slice::from_raw_parts_mut(start, width), std::slice::from_raw_parts_mut(start.add(pitch), width))
        }
    }
}

#[cfg(test)]
mod tests;
