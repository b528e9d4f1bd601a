//! Single-precision matrix products, with a hook that finishes each block of the result while it is in cache.
//!
//! A product is cut into blocks of C by its shape alone (`plan`). A task packs what it needs of A and B into its worker's part of the workspace (`pack`) and
//! sweeps the micro-kernel (`tile`) over it. Small outputs with a long k (weight gradients) are cut along k as well: each chunk leaves a
//! partial sum in the workspace, and the sums are added in chunk order.

mod pack;
mod plan;
pub(crate) mod sweep;
pub(crate) mod tile;

use std::ops::Range;

use crate::simd::Isa;
use crate::threads::Pool;
use plan::{Plan, ROWS};
use sweep::{DEPTH, SLIVERS, Sweep, for_each_part};
use tile::{MAX_COLUMNS, MAX_ROWS, Shape};

/// A read-only matrix somewhere in memory: element `(i, j)` is at `ptr + i · row_stride + j · col_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Element `(0, 0)`.
    pub ptr: *const f32,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Floats from one row to the next.
    pub row_stride: isize,
    /// Floats from one column to the next.
    pub col_stride: isize,
}

// SAFETY: a description of memory; the functions that read it demand its validity, on whatever thread they run.
unsafe impl Send for Matrix {}
// SAFETY: as above; nothing is written through it.
unsafe impl Sync for Matrix {}

impl Matrix {
    /// A row-major matrix whose rows follow each other without gaps.
    pub fn new(ptr: *const f32, rows: usize, cols: usize) -> Matrix {
        Matrix { ptr, rows, cols, row_stride: cols as isize, col_stride: 1 }
    }

    /// The same memory read with rows and columns exchanged.
    pub fn transposed(self) -> Matrix {
        Matrix { ptr: self.ptr, rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride }
    }

    /// # Safety
    /// The element lies inside the matrix, or one past the end of a row or column of it.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, row: usize, col: usize) -> *const f32 {
        // SAFETY: the caller's promise.
        unsafe { self.ptr.offset(row as isize * self.row_stride + col as isize * self.col_stride) }
    }
}

/// What is done with a finished block of the result: called with its rows, its columns and the worker that finished it.
///
/// Blocks are disjoint and cover the result, so each element is seen exactly once, after its whole sum has been stored. Calls may run
/// at the same time on several workers.
pub type Epilogue<'a> = Option<&'a (dyn Fn(Range<usize>, Range<usize>, usize) + Sync + 'a)>;

/// Whether a product overwrites the result or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `C = A · B`
    Set,
    /// `C += A · B`
    Add,
}

/// A raw pointer that may cross threads: tasks write disjoint parts through it.
#[derive(Clone, Copy)]
pub(crate) struct Out(pub *mut f32);

// SAFETY: whoever shares an `Out` sees to it that tasks write disjoint elements.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

impl Out {
    /// # Safety
    /// As for [`pointer::add`].
    #[inline(always)]
    pub unsafe fn add(self, count: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(count) }
    }
}

/// Floats of workspace a product of this shape needs on a pool of `threads`, for any strides; it never falls when `m`, `k` or `threads` grows.
pub fn workspace_len(m: usize, n: usize, k: usize, threads: usize) -> usize {
    if n == 0 {
        return 0;
    }
    per_worker(m, k) * threads.max(1) + plan::partials(m, n, k) + LINE
}

/// Packed rows of A and one packed sliver of B. Rows of A are padded by a line, lest they fall on the same cache set.
fn per_worker(m: usize, k: usize) -> usize {
    let depth = k.min(DEPTH).next_multiple_of(LINE);
    m.next_multiple_of(MAX_ROWS).min(ROWS) * (depth + LINE) + SLIVERS
}

/// Floats in a cache line: workers' parts of a workspace begin on one, for packed vectors must not straddle two.
pub(crate) const LINE: usize = 16;

/// The first line boundary of a workspace that was given [`LINE`] floats too many.
pub(crate) fn aligned(workspace: &mut [f32]) -> Out {
    let start = workspace.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
    Out(workspace[start..].as_mut_ptr())
}

/// `C (=|+=) A · B` for a row-major `c` whose rows are `ldc` floats apart.
///
/// The result is bit-identical at any number of threads. When B has at most 1024 columns, the blocks given to `epilogue` are whole rows of C; otherwise
/// they are cut into runs of columns.
///
/// # Safety
/// `a` and `b` are readable over their extents; `c` is valid for reads and writes of `a.rows` rows of `b.cols` floats, and overlaps neither of them, nor `workspace`.
///
/// # Panics
/// When `a.cols != b.rows`, or `workspace` is shorter than [`workspace_len`] asks for.
#[allow(clippy::too_many_arguments)]
pub unsafe fn gemm(pool: &Pool, write: Write, a: Matrix, b: Matrix, c: *mut f32, ldc: usize, workspace: &mut [f32], epilogue: Epilogue) {
    // SAFETY: passed on to the caller.
    unsafe { gemm_with(Isa::best(), pool, write, a, b, c, ldc, workspace, epilogue) }
}

/// [`gemm`] with chosen instructions.
///
/// # Safety
/// As for [`gemm`].
///
/// # Panics
/// As [`gemm`], and when the processor lacks `isa`.
#[allow(clippy::too_many_arguments)]
pub unsafe fn gemm_with(
    isa: Isa,
    pool: &Pool,
    write: Write,
    a: Matrix,
    b: Matrix,
    c: *mut f32,
    ldc: usize,
    workspace: &mut [f32],
    epilogue: Epilogue,
) {
    assert!(isa.supported(), "this processor has no {isa:?}");
    assert_eq!(a.cols, b.rows, "a product of [{}, {}] and [{}, {}]", a.rows, a.cols, b.rows, b.cols);
    let (m, n, k) = (a.rows, b.cols, a.cols);
    if m == 0 || n == 0 {
        return;
    }
    let c = Out(c);
    if k == 0 {
        if write == Write::Set {
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

    let plan = Plan::new(m, n, k);
    let product = Product { isa, a, b, pack_a: pack_a(&a, n), pack_b: pack_b(&b, m) };
    let per_worker = per_worker(m, k);
    let scratch = aligned(workspace);
    // SAFETY: `workspace_len` is the sum of the two parts.
    let partials = Out(unsafe { scratch.add(per_worker * pool.threads()) });

    let block = |index: usize| {
        let (i, j) = (index / plan.column_blocks, index % plan.column_blocks);
        (i * plan.rows..m.min((i + 1) * plan.rows), j * plan.columns..n.min((j + 1) * plan.columns))
    };
    let multiply = |task: usize, worker: usize| {
        let (chunk, index) = (task / plan.blocks(), task % plan.blocks());
        let (rows, columns) = block(index);
        let ks = chunk * plan.depth..k.min((chunk + 1) * plan.depth);
        // SAFETY: blocks are disjoint parts of `c` or of this chunk's partial sum; the scratch is this worker's own.
        unsafe {
            let scratch = scratch.add(worker * per_worker);
            if chunk == 0 {
                product.block(rows.clone(), columns.clone(), ks, c.add(0), ldc, write == Write::Add, scratch);
            } else {
                product.block(rows.clone(), columns.clone(), ks, partials.add((chunk - 1) * m * n), n, false, scratch);
            }
        }
        if plan.chunks == 1
            && let Some(finish) = epilogue
        {
            finish(rows, columns, worker);
        }
    };
    run(pool, plan.parallel, plan.blocks() * plan.chunks, &multiply);
    if plan.chunks == 1 {
        return;
    }

    // The blocks of a sum cut along k can be few and tall: rows are dealt out anew.
    let rows_each = (SUM / n).max(1);
    let sum = |task: usize, worker: usize| {
        let rows = task * rows_each..m.min((task + 1) * rows_each);
        for i in rows.clone() {
            for chunk in 1..plan.chunks {
                // SAFETY: row `i` is this task's own, and the partial sums were all written above.
                unsafe {
                    let to = std::slice::from_raw_parts_mut(c.add(i * ldc), n);
                    let from = std::slice::from_raw_parts(partials.add(((chunk - 1) * m + i) * n), n);
                    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                }
            }
        }
        if let Some(finish) = epilogue {
            finish(rows, 0..n, worker);
        }
    };
    run(pool, m * n * plan.chunks > 4 * SUM, m.div_ceil(rows_each), &sum);
}

/// Output elements summed by one task.
const SUM: usize = 1 << 13;

/// Runs tasks on the pool when they are worth waking it, else on the caller, which then is worker 0.
pub(crate) fn run(pool: &Pool, parallel: bool, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
    if parallel {
        pool.run(tasks, task);
    } else {
        (0..tasks).for_each(|index| task(index, 0));
    }
}

/// Packing A pays when it is read for many columns, or when k lies far apart in it: each k would touch a page of its own.
fn pack_a(a: &Matrix, n: usize) -> bool {
    if a.col_stride == 1 {
        n > 2 * MAX_COLUMNS && a.row_stride.unsigned_abs() >= 1024
    } else {
        (n > MAX_COLUMNS || a.col_stride.unsigned_abs() >= 1024) && a.cols > 8
    }
}

/// B is packed when its columns are not contiguous, or when it is wide, read by enough rows and too large for L1.
fn pack_b(b: &Matrix, m: usize) -> bool {
    b.col_stride != 1 || (b.row_stride.unsigned_abs() > MAX_COLUMNS && m > 2 * MAX_ROWS && b.rows > 16 && b.rows * b.cols > IN_L1)
}

/// Floats of B that may stay where they are.
const IN_L1: usize = 8 << 10;

struct Product {
    isa: Isa,
    a: Matrix,
    b: Matrix,
    pack_a: bool,
    pack_b: bool,
}

impl Product {
    /// One block of the result over one range of k. `c` points to element `(0, 0)` of the whole.
    ///
    /// # Safety
    /// The ranges lie inside the matrices, `c` may be written over the block, and `scratch` has [`per_worker`] floats.
    #[allow(clippy::too_many_arguments)]
    unsafe fn block(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        ks: Range<usize>,
        c: *mut f32,
        ldc: usize,
        add: bool,
        scratch: *mut f32,
    ) {
        let shape = Shape::of(self.isa);
        // SAFETY: `per_worker` is the sum of the slivers of B and of the rows of A.
        let packed_a = unsafe { scratch.add(SLIVERS) };
        for k0 in ks.clone().step_by(DEPTH) {
            let depth = DEPTH.min(ks.end - k0);
            for i0 in rows.clone().step_by(ROWS) {
                let rows = i0..rows.end.min(i0 + ROWS);
                let left = if self.pack_a {
                    // SAFETY: `packed_a` has room for `ROWS` rows, or all there are.
                    unsafe { Left::pack(&self.a, rows.clone(), k0, depth, shape.rows, packed_a) }
                } else {
                    // SAFETY: the block lies inside A.
                    Left::Strided { ptr: unsafe { self.a.at(i0, k0) }, row: self.a.row_stride, step: self.a.col_stride }
                };
                // SAFETY: the block lies inside B.
                let right = Matrix { ptr: unsafe { self.b.at(k0, 0) }, rows: depth, ..self.b };
                let mut a_rows = [std::ptr::null(); MAX_ROWS];
                let mut c_rows = [std::ptr::null_mut(); MAX_ROWS];
                let sweep = Sweep {
                    isa: self.isa,
                    rows: rows.len(),
                    columns: columns.clone(),
                    segments: 1,
                    length: depth,
                    accumulate: add || k0 > ks.start,
                    right: &|_| right,
                    packed: self.pack_b.then_some(scratch),
                };
                // SAFETY: rows, columns and k lie inside the operands, and C may be written.
                unsafe {
                    sweep.run(|part, tile| {
                        let (a, row, step) = left.tile(part.start, part.len());
                        a_rows = std::array::from_fn(|i| a.wrapping_offset(i as isize * row));
                        c_rows = std::array::from_fn(|i| c.wrapping_add((rows.start + part.start + i) * ldc));
                        tile.a = a_rows.as_ptr();
                        tile.a_step = step;
                        tile.c = c_rows.as_ptr();
                    });
                }
            }
        }
    }
}

/// A block of A as the micro-kernel walks it.
enum Left {
    /// Row `i`, k `j` at `ptr + i · row + j · step`.
    Strided { ptr: *const f32, row: isize, step: isize },
    /// A k-major panel for each tile, one after the other.
    Panels { ptr: *const f32, depth: usize },
}

impl Left {
    /// Copies a block of A to `to`, row by row if its k are contiguous, else panel by panel.
    ///
    /// # Safety
    /// The block lies inside `a`, and `to` has room for its rows at `depth.next_multiple_of(LINE) + LINE` floats each.
    unsafe fn pack(a: &Matrix, rows: Range<usize>, k: usize, depth: usize, tile: usize, to: *mut f32) -> Left {
        if a.col_stride == 1 {
            let stride = depth.next_multiple_of(LINE) + LINE;
            // SAFETY: the caller's promise.
            unsafe { pack::rows_of_a(a, rows.start, rows.len(), k, depth, to, stride) };
            return Left::Strided { ptr: to, row: stride as isize, step: 1 };
        }
        if a.row_stride == 1 && tile == 8 && rows.len().is_multiple_of(8) {
            // SAFETY: the caller's promise.
            unsafe { pack::panels_of_eight(a, rows.start, rows.len(), k, depth, to) };
            return Left::Panels { ptr: to, depth };
        }
        for_each_part(rows.clone(), tile, 1, |part| {
            // SAFETY: a panel is `part.len()` wide and begins where the rows before it end.
            unsafe { pack::panel_of_a(a, part.start, part.len(), k, depth, to.add((part.start - rows.start) * depth)) };
        });
        Left::Panels { ptr: to, depth }
    }

    /// Where the tile of `rows` rows from `start` on begins, the distance of its rows, and that of its k.
    fn tile(&self, start: usize, rows: usize) -> (*const f32, isize, isize) {
        match *self {
            Left::Strided { ptr, row, step } => (ptr.wrapping_offset(start as isize * row), row, step),
            Left::Panels { ptr, depth } => (ptr.wrapping_add(start * depth), 1, rows as isize),
        }
    }
}
