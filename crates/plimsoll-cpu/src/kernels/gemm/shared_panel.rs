//! Large products: B is packed once per block of columns and k, and shared by all tasks.

use super::blocking::{Blocking, COLUMNS, ROWS};
use super::macro_kernel::{Product, per_worker};
use super::micro_kernel::MAX_COLUMNS;
use super::panel::{DEPTH, PanelProduct};
use super::{Epilogue, LINE, Out, WriteMode};
use crate::runtime::threads::ThreadPool;

/// Floats of workspace for the packed B: an upper bound that is monotone in `m` and `k`.
pub(super) fn panel(m: usize, n: usize, k: usize) -> usize {
    if m > LINE { k.min(DEPTH) * n.min(COLUMNS + MAX_COLUMNS).next_multiple_of(MAX_COLUMNS) } else { 0 }
}

/// A product with several blocks of rows.
///
/// # Safety
/// Same as [`super::gemm`]; `scratch` has [`per_worker`] floats for each thread and `panel` those of [`panel()`].
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn multiply(
    pool: &ThreadPool,
    product: &Product,
    plan: &Blocking,
    write: WriteMode,
    c: Out,
    ldc: usize,
    scratch: Out,
    panel: Out,
    epilogue: Epilogue,
) {
    let (m, n, k) = (product.a.rows, product.b.cols, product.a.cols);
    let per_worker = per_worker(m, k);
    for columns in (0..n).step_by(plan.columns).map(|start| start..n.min(start + plan.columns)) {
        for ks in (0..k).step_by(DEPTH).map(|start| start..k.min(start + DEPTH)) {
            // SAFETY: `ks` lies inside B.
            let right = unsafe { product.right(&ks) };
            let rows_of_b = |_| right;
            // Built per task: it is not `Sync`.
            let panel_product = || PanelProduct {
                isa: product.isa,
                rows: 0,
                columns: columns.clone(),
                segments: 1,
                length: ks.len(),
                accumulate: false,
                right: &rows_of_b,
                packed: None,
            };
            let group = panel_product().width() * panel_product().group();
            pool.run(columns.len().div_ceil(group), &|index, _| {
                let done = index * group;
                let start = columns.start + done;
                // SAFETY: each group of slivers is exclusive to one task.
                unsafe { panel_product().pack(start..columns.end.min(start + group), panel.add(done * ks.len())) };
            });
            pool.run(plan.row_blocks, &|index, worker| {
                let rows = index * plan.rows..m.min((index + 1) * plan.rows);
                let accumulate = write == WriteMode::Add || ks.start > 0;
                for i0 in rows.clone().step_by(ROWS) {
                    let rows = i0..rows.end.min(i0 + ROWS);
                    // SAFETY: blocks are disjoint parts of `c`, the workspace is exclusive to this worker, and the
                    // panel was packed above.
                    unsafe {
                        let (scratch, panel) = (scratch.add(worker * per_worker), panel.add(0));
                        product.rank_k_update(rows, columns.clone(), ks.clone(), c.add(0), ldc, accumulate, scratch, Some(panel));
                    }
                }
                if ks.end == k
                    && let Some(finish) = epilogue
                {
                    finish(rows, columns.clone(), worker);
                }
            });
        }
    }
}
