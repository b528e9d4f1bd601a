//! Products whose result is not stored in single precision: each finished block stands in its worker's scratch and is handed out from there, to be
//! followed by an expression, rounded and stored by whoever takes it.

use std::ops::Range;

use super::block::{Product, per_worker};
use super::plan::{self, COLUMNS, Plan, ROWS};
use super::tile::{MAX_COLUMNS, MAX_ROWS};
use super::{LINE, Matrix, Out, SUM, aligned, run};
use crate::simd::Isa;
use crate::threads::Pool;

/// A finished block of a result.
pub struct Block {
    /// Its rows in the result.
    pub rows: Range<usize>,
    /// Its columns there.
    pub columns: Range<usize>,
    values: *const f32,
    stride: usize,
}

impl Block {
    /// A block whose rows are `stride` floats apart.
    ///
    /// # Safety
    /// The rows are readable for as long as it is used.
    pub(crate) unsafe fn new(rows: Range<usize>, columns: Range<usize>, values: *const f32, stride: usize) -> Block {
        Block { rows, columns, values, stride }
    }

    /// Where its first row is.
    pub(crate) fn values(&self) -> *const f32 {
        self.values
    }

    /// Whether its rows follow each other without gaps.
    pub(crate) fn is_dense(&self) -> bool {
        self.stride == self.columns.len()
    }

    /// A row, by its number in the result.
    pub fn row(&self, row: usize) -> &[f32] {
        debug_assert!(self.rows.contains(&row));
        // SAFETY: the block was made with these rows and columns.
        unsafe { std::slice::from_raw_parts(self.values.add((row - self.rows.start) * self.stride), self.columns.len()) }
    }
}

/// Who takes the blocks. They are disjoint and cover the result, and several workers may hand them out at the same time.
pub type Take<'a> = &'a (dyn Fn(&Block) + Sync + 'a);

/// Floats of a worker's block.
fn block_len(m: usize, n: usize) -> usize {
    m.next_multiple_of(MAX_ROWS).min(ROWS) * n.min(COLUMNS + MAX_COLUMNS).next_multiple_of(LINE)
}

/// Floats of workspace [`gemm_blocks`] needs on a pool of `threads`, for any strides; it never falls when `m`, `k` or `threads` grows.
pub fn blocks_workspace_len(m: usize, n: usize, k: usize, threads: usize) -> usize {
    if n == 0 {
        return 0;
    }
    (per_worker(m, k) + block_len(m, n)) * threads.max(1) + plan::all_partials(m, n, k) + LINE
}

/// `A · B`, block by block. The sums are bit-identical at any number of threads.
///
/// # Safety
/// `a` and `b` are readable over their extents and do not overlap `workspace`.
///
/// # Panics
/// When `a.cols != b.rows`, or `workspace` is shorter than [`blocks_workspace_len`] asks for.
pub unsafe fn gemm_blocks(pool: &Pool, a: Matrix, b: Matrix, workspace: &mut [f32], take: Take<'_>) {
    // SAFETY: passed on to the caller.
    unsafe { gemm_blocks_with(Isa::best(), pool, a, b, workspace, take) }
}

/// [`gemm_blocks`] with chosen instructions.
///
/// # Safety
/// As for [`gemm_blocks`].
///
/// # Panics
/// As [`gemm_blocks`], and when the processor lacks `isa`.
pub unsafe fn gemm_blocks_with(isa: Isa, pool: &Pool, a: Matrix, b: Matrix, workspace: &mut [f32], take: Take<'_>) {
    assert!(isa.supported(), "this processor has no {isa:?}");
    assert_eq!(a.cols, b.rows, "a product of [{}, {}] and [{}, {}]", a.rows, a.cols, b.rows, b.cols);
    let (m, n, k) = (a.rows, b.cols, a.cols);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        return zeros(m, n, take);
    }
    let needed = blocks_workspace_len(m, n, k, pool.threads());
    assert!(
        workspace.len() >= needed,
        "a product of [{m}, {k}] and [{k}, {n}] needs {needed} floats of workspace, not {}",
        workspace.len()
    );
    let plan = Plan::new(m, n, k);
    let product = Product::new(isa, a, b, n);
    let (per_worker, block_len) = (per_worker(m, k), block_len(m, n));
    let scratch = aligned(workspace);
    // SAFETY: `blocks_workspace_len` is the sum of the workers' parts and of the partial sums.
    let partials = Out(unsafe { scratch.add((per_worker + block_len) * pool.threads()) });
    let columns_of = |index: usize| {
        let j = index % plan.column_blocks;
        j * plan.columns..n.min((j + 1) * plan.columns)
    };
    let rows_of = |index: usize| {
        let i = index / plan.column_blocks;
        i * plan.rows..m.min((i + 1) * plan.rows)
    };
    if plan.chunks == 1 {
        let multiply = |index: usize, worker: usize| {
            let (rows, columns) = (rows_of(index), columns_of(index));
            let stride = columns.len();
            for i0 in rows.clone().step_by(ROWS) {
                let rows = i0..rows.end.min(i0 + ROWS);
                // SAFETY: the scratch is this worker's own; the block's element (0, 0) stands at its beginning.
                unsafe {
                    let scratch = scratch.add(worker * (per_worker + block_len));
                    let block = scratch.add(per_worker);
                    let origin = block.wrapping_sub(rows.start * stride + columns.start);
                    product.block(rows.clone(), columns.clone(), 0..k, origin, stride, false, scratch);
                    take(&Block::new(rows, columns.clone(), block, stride));
                }
            }
        };
        return run(pool, plan.parallel, plan.blocks(), &multiply);
    }
    let multiply = |task: usize, worker: usize| {
        let (chunk, index) = (task / plan.blocks(), task % plan.blocks());
        let ks = chunk * plan.depth..k.min((chunk + 1) * plan.depth);
        // SAFETY: blocks are disjoint parts of this chunk's sums; the scratch is this worker's own.
        unsafe {
            let scratch = scratch.add(worker * (per_worker + block_len));
            product.block(rows_of(index), columns_of(index), ks, partials.add(chunk * m * n), n, false, scratch);
        }
    };
    run(pool, plan.parallel, plan.blocks() * plan.chunks, &multiply);
    let rows_each = (SUM / n).max(1);
    let sum = |task: usize, _: usize| {
        let rows = task * rows_each..m.min((task + 1) * rows_each);
        // SAFETY: the rows are this task's own, and all chunks' sums were written above.
        unsafe {
            let to = std::slice::from_raw_parts_mut(partials.add(rows.start * n), rows.len() * n);
            for chunk in 1..plan.chunks {
                let from = std::slice::from_raw_parts(partials.add((chunk * m + rows.start) * n), rows.len() * n);
                to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
            }
            take(&Block::new(rows, 0..n, to.as_ptr(), n));
        }
    };
    run(pool, m * n * plan.chunks > 4 * SUM, m.div_ceil(rows_each), &sum);
}

/// Hands out zeros: the result of sums without terms.
pub(crate) fn zeros(rows: usize, columns: usize, take: Take<'_>) {
    static ZEROS: [f32; 64] = [0.0; 64];
    for row in 0..rows {
        for start in (0..columns).step_by(ZEROS.len()) {
            // SAFETY: as many zeros are there as columns are named.
            take(&unsafe { Block::new(row..row + 1, start..columns.min(start + ZEROS.len()), ZEROS.as_ptr(), 0) });
        }
    }
}
