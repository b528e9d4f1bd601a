//! Products whose result is not stored in single precision: each complete block is in its worker's workspace and is
//! passed to a consumer, which applies an epilogue, rounds and stores it.

use std::ops::Range;

use super::blocking::{Blocking, COLUMNS, ROWS};
use super::macro_kernel::{Product, per_worker};
use super::micro_kernel::{MAX_COLUMNS, MAX_ROWS};
use super::panel::{DEPTH, PanelProduct};
use super::{LINE, Matrix, Out, aligned, run};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;

/// A complete block of a result.
pub struct OutputBlock {
    /// Its rows in the result.
    pub rows: Range<usize>,
    /// Its columns there.
    pub columns: Range<usize>,
    values: *const f32,
    stride: usize,
}

impl OutputBlock {
    /// A block with row stride `stride`.
    ///
    /// # Safety
    ///
    /// The rows stay readable while it is used.
    pub(crate) unsafe fn new(rows: Range<usize>, columns: Range<usize>, values: *const f32, stride: usize) -> OutputBlock {
        OutputBlock { rows, columns, values, stride }
    }

    /// The address of its first row.
    pub(crate) fn values(&self) -> *const f32 {
        self.values
    }

    /// Whether its rows are contiguous.
    pub(crate) fn is_dense(&self) -> bool {
        self.stride == self.columns.len()
    }

    /// A row, by its index in the result.
    ///
    /// # Panics
    ///
    /// If the row is not in the block.
    pub fn row(&self, row: usize) -> &[f32] {
        assert!(self.rows.contains(&row), "row {row} of a block of rows {:?}", self.rows);
        // SAFETY: the block was created with these rows and columns, which its creator keeps readable, and the row is
        // one of them. Consumers get a shared reference only, so they cannot change the fields.
        unsafe { std::slice::from_raw_parts(self.values.add((row - self.rows.start) * self.stride), self.columns.len()) }
    }
}

/// Consumes blocks, which are disjoint and cover the result. Several workers may call it concurrently.
pub type BlockConsumer<'a> = &'a (dyn Fn(&OutputBlock) + Sync + 'a);

/// Floats of a worker's block.
fn block_len(m: usize, n: usize) -> usize {
    m.next_multiple_of(MAX_ROWS).min(ROWS) * n.min(COLUMNS + MAX_COLUMNS).next_multiple_of(LINE)
}

/// Maximum floats of B that tasks pack cooperatively (2 MiB); each task packs its own part of a larger one.
const SHARED: usize = 1 << 19;

/// Floats between consecutive k of a shared B.
fn shared_width(n: usize) -> usize {
    n.min(COLUMNS + MAX_COLUMNS).next_multiple_of(MAX_COLUMNS)
}

/// Floats of a shared B: an upper bound that is monotone in `m` and `k`.
fn shared_len(m: usize, n: usize, k: usize) -> usize {
    if m > LINE { k.saturating_mul(shared_width(n)).min(SHARED) } else { 0 }
}

/// Floats of workspace for [`gemm_blocks`] on a pool of `threads`, for any strides; monotone in `m`, `k` and `threads`.
pub fn blocks_workspace_len(m: usize, n: usize, k: usize, threads: usize) -> usize {
    if n == 0 {
        return 0;
    }
    (per_worker(m, k) + block_len(m, n)) * threads.max(1) + shared_len(m, n, k) + LINE
}

/// `A · B`, block by block. Bit-identical for any number of threads, and every row for any number of rows.
///
/// # Safety
///
/// `a` and `b` are readable over their extents and do not overlap `workspace`.
///
/// # Panics
///
/// If `a.cols != b.rows`, or `workspace` is shorter than [`blocks_workspace_len`].
pub unsafe fn gemm_blocks(pool: &ThreadPool, a: Matrix, b: Matrix, workspace: &mut [f32], take: BlockConsumer<'_>) {
    // SAFETY: same contract as this function.
    unsafe { gemm_blocks_with(Isa::best(), pool, a, b, workspace, take) }
}

/// Like [`gemm_blocks`], with a given instruction set.
///
/// # Safety
/// Same as [`gemm_blocks`].
///
/// # Panics
/// Same as [`gemm_blocks`], or if the processor does not support `isa`.
pub unsafe fn gemm_blocks_with(isa: Isa, pool: &ThreadPool, a: Matrix, b: Matrix, workspace: &mut [f32], take: BlockConsumer<'_>) {
    // SAFETY: same contract as this function.
    unsafe { multiply_blocks(isa, pool, a, b, workspace, take, false) }
}

/// Like [`gemm_blocks_with`]; `resumes` as for [`Product::new`].
///
/// # Safety
/// Same as [`gemm_blocks_with`].
pub(super) unsafe fn multiply_blocks(
    isa: Isa,
    pool: &ThreadPool,
    a: Matrix,
    b: Matrix,
    workspace: &mut [f32],
    take: BlockConsumer<'_>,
    resumes: bool,
) {
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
    let plan = Blocking::new(m, n, k, pool.threads());
    let product = Product::new(isa, a, b, n, resumes);
    let (per_worker, block_len) = (per_worker(m, k), block_len(m, n));
    let scratch = aligned(workspace);
    // SAFETY: `blocks_workspace_len` is the sum of the workers' parts and a shared B.
    let shared = Out(unsafe { scratch.add((per_worker + block_len) * pool.threads()) });
    let columns_of = |index: usize| {
        let j = index % plan.column_blocks;
        j * plan.columns..n.min((j + 1) * plan.columns)
    };
    let rows_of = |index: usize| {
        let i = index / plan.column_blocks;
        i * plan.rows..m.min((i + 1) * plan.rows)
    };
    let whole = plan.row_blocks > 1 && product.pack_b && k * shared_width(n) <= SHARED;
    let multiply = |rows: Range<usize>, columns: Range<usize>, worker: usize| {
        let stride = columns.len();
        for i0 in rows.clone().step_by(ROWS) {
            let rows = i0..rows.end.min(i0 + ROWS);
            // SAFETY: the workspace is exclusive to this worker and starts with the block's element (0, 0); a
            // shared B has been packed.
            unsafe {
                let scratch = scratch.add(worker * (per_worker + block_len));
                let block = scratch.add(per_worker);
                let origin = block.wrapping_sub(rows.start * stride + columns.start);
                if whole {
                    for ks in steps(k) {
                        let ready = shared.add(ks.start * shared_width(n)).cast_const();
                        product.rank_k_update(
                            rows.clone(),
                            columns.clone(),
                            ks.clone(),
                            origin,
                            stride,
                            ks.start > 0,
                            scratch,
                            Some(ready),
                        );
                    }
                } else {
                    product.block(rows.clone(), columns.clone(), 0..k, origin, stride, false, scratch);
                }
                take(&OutputBlock::new(rows, columns.clone(), block, stride));
            }
        }
    };
    if !whole {
        return run(pool, plan.parallel, plan.blocks(), &|index, worker| multiply(rows_of(index), columns_of(index), worker));
    }
    for columns in (0..n).step_by(plan.columns).map(|start| start..n.min(start + plan.columns)) {
        // SAFETY: the shared part of the workspace has space for these columns.
        unsafe { pack(pool, &product, columns.clone(), k, shared) };
        pool.run(plan.row_blocks, &|index, worker| {
            multiply(index * plan.rows..m.min((index + 1) * plan.rows), columns.clone(), worker);
        });
    }
}

/// The ranges into which k is split.
fn steps(k: usize) -> impl Iterator<Item = Range<usize>> {
    (0..k).step_by(DEPTH).map(move |start| start..k.min(start + DEPTH))
}

/// Packs columns of B over all of k.
///
/// # Safety
///
/// The columns are inside of B, and `to` has [`shared_width`] floats for each k.
unsafe fn pack(pool: &ThreadPool, product: &Product, columns: Range<usize>, k: usize, to: Out) {
    let groups = |ks: &Range<usize>| {
        let right = |_| product.b;
        let panel_product = panel_product(product.isa, columns.clone(), ks.len(), &right);
        let group = panel_product.width() * panel_product.group();
        (group, columns.len().div_ceil(group))
    };
    let most = groups(&(0..k.min(DEPTH))).1.max(steps(k).last().map_or(0, |ks| groups(&ks).1));
    pool.run(k.div_ceil(DEPTH) * most, &|task, _| {
        let ks = task / most * DEPTH..k.min((task / most + 1) * DEPTH);
        let (group, count) = groups(&ks);
        if task % most >= count {
            return;
        }
        let done = task % most * group;
        let start = columns.start + done;
        // SAFETY: each group of slivers is exclusive to one task.
        unsafe {
            let right = product.right(&ks);
            let place = to.add(ks.start * shared_width(product.b.cols) + done * ks.len());
            panel_product(product.isa, columns.clone(), ks.len(), &|_| right).pack(start..columns.end.min(start + group), place);
        }
    });
}

fn panel_product<'a>(isa: Isa, columns: Range<usize>, length: usize, right: &'a dyn Fn(usize) -> Matrix) -> PanelProduct<'a> {
    PanelProduct { isa, rows: 0, columns, segments: 1, length, accumulate: false, right, packed: None }
}

/// Passes zeros to the consumer: the result of empty sums.
pub(crate) fn zeros(rows: usize, columns: usize, take: BlockConsumer<'_>) {
    static ZEROS: [f32; 64] = [0.0; 64];
    for row in 0..rows {
        for start in (0..columns).step_by(ZEROS.len()) {
            // SAFETY: there are as many zeros as columns.
            take(&unsafe { OutputBlock::new(row..row + 1, start..columns.min(start + ZEROS.len()), ZEROS.as_ptr(), 0) });
        }
    }
}
