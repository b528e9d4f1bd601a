//! Single-precision matrix products, with a hook that finishes each block of the result while it is in cache.
//!
//! The structure is that of BLIS. A product is split into blocks of C by its shape alone (`blocking`). A task packs its
//! panels of A and B into its worker's part of the workspace (`pack`) and runs the micro-kernel (`micro_kernel`) over
//! the packed panels (`panel`, `macro_kernel`). Where many tasks read the same panel of B, they pack it together and
//! share it (`shared_panel`). Matrix-vector products (`gemv`) and products of a transposed A with few columns
//! (`tall_skinny`) read their matrix in place. Operands in half precision are widened as they are packed; results in
//! half precision are handed to a consumer block by block (`block_output`).
//!
//! Every element is one chain of fused multiply-adds in the order of k, so its bits depend neither on blocks and
//! threads nor on the number of rows beside it, and a product over the rows of a batch may stop and resume at any row.
//! Only small outputs over rows of many k, such as the weight gradients of a 1 × 1 convolution, are summed row by row
//! of the batch and then over rows (`row_chunks`). Products with one column are dot products with an order of their
//! own.

mod block_output;
mod blocking;
mod gemv;
mod macro_kernel;
pub(crate) mod micro_kernel;
pub(crate) mod pack;
pub(crate) mod panel;
mod row_chunks;
mod shared_panel;
mod tall_skinny;

pub(crate) use block_output::zeros;
pub use block_output::{BlockConsumer, OutputBlock, blocks_workspace_len, gemm_blocks, gemm_blocks_with};
pub use row_chunks::{gemm_blocks_over_rows, gemm_over_rows, gemm_over_rows_workspace};

use std::ops::Range;

use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use crate::simd::float_view::FloatView;
use blocking::Blocking;
use macro_kernel::{Product, per_worker};
use plimsoll_core::DType;

/// A read-only matrix somewhere in memory: element `(i, j)` is at `ptr + i · row_stride + j · col_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Element `(0, 0)`; cast if elements have 16 bits.
    pub ptr: *const f32,
    /// Single precision, or a 16-bit type, which is widened on packing.
    pub dtype: DType,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Row stride in elements.
    pub row_stride: isize,
    /// Column stride in elements.
    pub col_stride: isize,
}

// SAFETY: a descriptor of memory; the functions that read it require its validity on any thread.
unsafe impl Send for Matrix {}
// SAFETY: as above; it is never written through.
unsafe impl Sync for Matrix {}

impl Matrix {
    /// A contiguous row-major matrix.
    pub fn new(ptr: *const f32, rows: usize, cols: usize) -> Matrix {
        Matrix { ptr, dtype: DType::F32, rows, cols, row_stride: cols as isize, col_stride: 1 }
    }

    /// Like [`Matrix::new`], for elements of any supported type.
    pub fn of(reals: &FloatView<'_>, rows: usize, cols: usize) -> Matrix {
        Matrix { dtype: reals.dtype, ..Matrix::new(reals.ptr.cast(), rows, cols) }
    }

    /// The transpose, without a copy.
    pub fn transposed(self) -> Matrix {
        Matrix { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }

    /// # Safety
    ///
    /// The element is inside of the matrix, or one past the end of a row or column.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, row: usize, col: usize) -> *const f32 {
        let elements = row as isize * self.row_stride + col as isize * self.col_stride;
        // SAFETY: guaranteed by the caller.
        unsafe { self.ptr.byte_offset(elements * self.dtype.size() as isize) }
    }
}

/// Called with the rows, the columns and the worker of each complete block of the result.
///
/// Blocks are disjoint and cover the result, so each element is seen exactly once, after its whole sum has been stored.
/// Calls may run concurrently on several workers.
pub type Epilogue<'a> = Option<&'a (dyn Fn(Range<usize>, Range<usize>, usize) + Sync + 'a)>;

/// Whether a product overwrites the result or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// `C = A · B`
    Set,
    /// `C += A · B`
    Add,
}

/// A raw pointer that may cross threads: tasks write disjoint parts through it.
#[derive(Clone, Copy)]
pub(crate) struct Out(pub *mut f32);

// SAFETY: every access is `unsafe`, and its caller ensures that concurrent writes are disjoint.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

impl Out {
    /// # Safety
    /// Same as [`pointer::add`].
    #[inline(always)]
    pub unsafe fn add(self, count: usize) -> *mut f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.add(count) }
    }
}

/// Floats of workspace for a product of this shape on a pool of `threads`, for any strides; monotone in `m`, `k` and
/// `threads`.
pub fn workspace_len(m: usize, n: usize, k: usize, threads: usize) -> usize {
    if n == 0 {
        return 0;
    }
    per_worker(m, k) * threads.max(1) + shared_panel::panel(m, n, k) + LINE
}

/// Floats in a cache line: workers' workspaces are cache-line aligned, so that packed vectors do not straddle two.
pub(crate) const LINE: usize = 16;

/// The first cache-line boundary of a workspace that has [`LINE`] extra floats.
pub(crate) fn aligned(workspace: &mut [f32]) -> Out {
    let start = workspace.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
    Out(workspace[start..].as_mut_ptr())
}

/// `C (=|+=) A · B` for a row-major `c` with row stride `ldc`.
///
/// Bit-identical for any number of threads, and every row of C for any number of rows. `epilogue` gets each element of
/// C once, in blocks of rows and columns.
///
/// # Safety
///
/// `a` and `b` are readable over their extents; `c` is valid for reads and writes of `a.rows` rows of `b.cols` floats,
/// and overlaps neither of them, nor `workspace`.
///
/// # Panics
///
/// If `a.cols != b.rows`, or `workspace` is shorter than [`workspace_len`].
#[allow(clippy::too_many_arguments)]
pub unsafe fn gemm(
    pool: &ThreadPool,
    write: WriteMode,
    a: Matrix,
    b: Matrix,
    c: *mut f32,
    ldc: usize,
    workspace: &mut [f32],
    epilogue: Epilogue,
) {
    // SAFETY: same contract as this function.
    unsafe { gemm_with(Isa::best(), pool, write, a, b, c, ldc, workspace, epilogue) }
}

/// Like [`gemm`], with a given instruction set.
///
/// # Safety
/// Same as [`gemm`].
///
/// # Panics
/// Same as [`gemm`], or if the processor does not support `isa`.
#[allow(clippy::too_many_arguments)]
pub unsafe fn gemm_with(
    isa: Isa,
    pool: &ThreadPool,
    write: WriteMode,
    a: Matrix,
    b: Matrix,
    c: *mut f32,
    ldc: usize,
    workspace: &mut [f32],
    epilogue: Epilogue,
) {
    // SAFETY: same contract as this function.
    unsafe { multiply(isa, pool, write, a, b, c, ldc, workspace, epilogue, false) }
}

/// Like [`gemm_with`]; `resumes` as for [`Product::new`].
///
/// # Safety
/// Same as [`gemm_with`].
#[allow(clippy::too_many_arguments)]
unsafe fn multiply(
    isa: Isa,
    pool: &ThreadPool,
    write: WriteMode,
    a: Matrix,
    b: Matrix,
    c: *mut f32,
    ldc: usize,
    workspace: &mut [f32],
    epilogue: Epilogue,
    resumes: bool,
) {
    assert!(isa.supported(), "this processor has no {isa:?}");
    assert_eq!(a.cols, b.rows, "a product of [{}, {}] and [{}, {}]", a.rows, a.cols, b.rows, b.cols);
    let (m, n, k) = (a.rows, b.cols, a.cols);
    if m == 0 || n == 0 {
        return;
    }
    let c = Out(c);
    if k == 0 {
        if write == WriteMode::Set {
            // SAFETY: `c` has `m` rows of `n` floats.
            (0..m).for_each(|i| unsafe { c.add(i * ldc).write_bytes(0, n) });
        }
        if let Some(finish) = epilogue {
            finish(0..m, 0..n, 0);
        }
        return;
    }
    let needed = workspace_len(m, n, k, pool.threads());
    assert!(
        workspace.len() >= needed,
        "a product of [{m}, {k}] and [{k}, {n}] needs {needed} floats of workspace, not {}",
        workspace.len()
    );

    let plan = Blocking::new(m, n, k, pool.threads());
    let product = Product::new(isa, a, b, ldc, resumes);
    let per_worker = per_worker(m, k);
    let scratch = aligned(workspace);
    // SAFETY: `workspace_len` is the sum of the workers' parts and the shared part.
    let rest = Out(unsafe { scratch.add(per_worker * pool.threads()) });
    if plan.row_blocks > 1 && product.pack_b {
        // SAFETY: same contract as this function; `workspace_len` includes the panel of a product with several row
        // blocks.
        return unsafe { shared_panel::multiply(pool, &product, &plan, write, c, ldc, scratch, rest, epilogue) };
    }
    run(pool, plan.parallel, plan.blocks(), &|index, worker| {
        let (i, j) = (index / plan.column_blocks, index % plan.column_blocks);
        let rows = i * plan.rows..m.min((i + 1) * plan.rows);
        let columns = j * plan.columns..n.min((j + 1) * plan.columns);
        // SAFETY: blocks are disjoint parts of `c`; the workspace is exclusive to this worker.
        unsafe {
            let scratch = scratch.add(worker * per_worker);
            product.block(rows.clone(), columns.clone(), 0..k, c.add(0), ldc, write == WriteMode::Add, scratch);
        }
        if let Some(finish) = epilogue {
            finish(rows, columns, worker);
        }
    });
}

/// Output elements summed per task.
const SUM: usize = 1 << 13;

/// Runs tasks on the pool if they are large enough, otherwise on the caller's thread as worker 0.
pub(crate) fn run(pool: &ThreadPool, parallel: bool, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
    if parallel {
        pool.run(tasks, task);
    } else {
        (0..tasks).for_each(|index| task(index, 0));
    }
}
