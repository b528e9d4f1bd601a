//! A kernel that is packed once, for one product with a few rows in every step.

use super::MOST_ROWS;
use crate::kernels::gemm::micro_kernel::MAX_COLUMNS;
use crate::kernels::gemm::panel::{DEPTH, PanelProduct};
use crate::kernels::gemm::{Matrix, Out};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;

/// A packed matrix: for each [`DEPTH`] rows, its columns in slivers.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    isa: Isa,
    k: usize,
    n: usize,
    slivers: Out,
}

impl Panel {
    /// Floats of a packed `[k, n]`.
    pub fn len(k: usize, n: usize) -> usize {
        k * n.next_multiple_of(MAX_COLUMNS)
    }

    /// Packs a matrix into `to`.
    ///
    /// # Safety
    ///
    /// The processor supports `isa`, `matrix` is readable over its extents, and `to` has [`Panel::len`] exclusive
    /// floats.
    pub unsafe fn pack(isa: Isa, pool: &ThreadPool, matrix: Matrix, to: *mut f32) -> Panel {
        let panel = Panel { isa, k: matrix.rows, n: matrix.cols, slivers: Out(to) };
        pool.run(panel.k.div_ceil(DEPTH), &|chunk, _| {
            let start = chunk * DEPTH;
            // SAFETY: the chunk is inside of the matrix and has its own part of the panel.
            unsafe {
                let part = Matrix { ptr: matrix.at(start, 0), rows: DEPTH.min(matrix.rows - start), ..matrix };
                panel.sweep(0, start, false, &|_| part).pack(0..panel.n, panel.part(start));
            }
        });
        panel
    }

    /// The slivers of the rows from `k` on, a multiple of [`DEPTH`].
    ///
    /// # Safety
    ///
    /// The panel has that row.
    unsafe fn part(&self, k: usize) -> *mut f32 {
        // SAFETY: the previous parts take at most this many floats.
        unsafe { self.slivers.add(k * self.n.next_multiple_of(MAX_COLUMNS)) }
    }

    fn sweep<'a>(&self, rows: usize, k: usize, accumulate: bool, right: &'a dyn Fn(usize) -> Matrix) -> PanelProduct<'a> {
        let length = DEPTH.min(self.k - k);
        PanelProduct { isa: self.isa, rows, columns: 0..self.n, segments: 1, length, accumulate, right, packed: None }
    }

    /// `to[row] (=|+=) from[row] · panel` for the first `rows` rows.
    ///
    /// # Safety
    /// Rows are valid for as many floats as the panel has rows and columns, and none is both read and written.
    pub unsafe fn multiply(&self, rows: usize, from: &[*const f32; MOST_ROWS], to: &[*mut f32; MOST_ROWS], add: bool) {
        let packed = |_| unreachable!("the slivers are ready");
        for k in (0..self.k).step_by(DEPTH) {
            // SAFETY: the slivers of this part were packed for a panel of the same shape; the rest is guaranteed by the
            // caller.
            unsafe {
                self.sweep(rows, k, add || k > 0, &packed).run_ready(self.part(k), |part, tile| {
                    tile.a = from[part.clone()].as_ptr();
                    tile.a_offset = k;
                    tile.c = to[part].as_ptr();
                });
            }
        }
    }
}
