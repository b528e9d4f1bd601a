//! The macro-kernel: one block of the result over one range of k, by one task, including packing.

use std::ops::Range;

use super::blocking::ROWS;
use super::gemv::MatVec;
use super::micro_kernel::{MAX_COLUMNS, MAX_ROWS, Shape, Tile};
use super::panel::{DEPTH, PanelProduct, SLIVERS, for_each_part};
use super::{LINE, Matrix, pack, tall_skinny};
use crate::simd::Isa;

/// A product and its access strategy.
pub(super) struct Product {
    pub isa: Isa,
    pub a: Matrix,
    pub b: Matrix,
    pub pack_a: bool,
    pub pack_b: bool,
    /// One operand is a vector, and the other is read in place.
    vector: Option<Vector>,
    /// The result is computed transposed.
    narrow: bool,
}

/// How a matrix-vector product is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vector {
    /// B is a column: dot products of the rows of A with it.
    Dots,
    /// B is a column: columns of A are added.
    Columns,
    /// A is a row: rows of B are added.
    Rows,
}

impl Product {
    /// Selects the access strategy, for a result with row stride `ldc`. `resumes`: the sums over k may be part of
    /// longer ones; dot products cannot resume.
    pub fn new(isa: Isa, a: Matrix, b: Matrix, ldc: usize, resumes: bool) -> Product {
        let wide = !a.dtype.is_half() && !b.dtype.is_half();
        let vector = match (a.rows, b.cols) {
            _ if !wide => None,
            (_, 1) if !resumes && MatVec::has_rows(&a, b.row_stride) => Some(Vector::Dots),
            (_, 1) if MatVec::has_columns(&a, ldc) => Some(Vector::Columns),
            // A single row is summed in the order of a row among others: never as dot products with the columns of B.
            (1, _) if MatVec::has_columns(&b.transposed(), 1) => Some(Vector::Rows),
            _ => None,
        };
        let narrow = wide && vector.is_none() && tall_skinny::fits(&a, &b);
        Product {
            isa,
            a,
            b,
            pack_a: a.dtype.is_half() || pack_a(&a, b.cols),
            pack_b: vector.is_none() && !narrow && (b.dtype.is_half() || pack_b(&b, a.rows)),
            vector,
            narrow,
        }
    }

    /// One block of the result over one range of k. `c` points to element `(0, 0)` of the whole result.
    ///
    /// # Safety
    ///
    /// The ranges are in bounds, `c` is writable over the block, and `scratch` has [`per_worker`] floats.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn block(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        ks: Range<usize>,
        c: *mut f32,
        ldc: usize,
        add: bool,
        scratch: *mut f32,
    ) {
        if let Some(vector) = self.vector {
            // SAFETY: guaranteed by the caller; the strides are supported.
            return unsafe { self.vector_block(vector, rows, columns, ks, c, ldc, add) };
        }
        if self.narrow {
            // SAFETY: guaranteed by the caller, and the operands are supported.
            return unsafe { tall_skinny::multiply(self.isa, &self.a, &self.b, rows, ks, c, ldc, add, scratch) };
        }
        for k0 in ks.clone().step_by(DEPTH) {
            let depth = DEPTH.min(ks.end - k0);
            for i0 in rows.clone().step_by(ROWS) {
                let rows = i0..rows.end.min(i0 + ROWS);
                // SAFETY: guaranteed by the caller, for a part of the block.
                unsafe { self.rank_k_update(rows, columns.clone(), k0..k0 + depth, c, ldc, add || k0 > ks.start, scratch, None) };
            }
        }
    }

    /// Like [`Product::block`], if A is a row or B a column.
    ///
    /// # Safety
    /// Same as [`Product::block`].
    #[allow(clippy::too_many_arguments)]
    unsafe fn vector_block(
        &self,
        vector: Vector,
        rows: Range<usize>,
        columns: Range<usize>,
        ks: Range<usize>,
        c: *mut f32,
        ldc: usize,
        accumulate: bool,
    ) {
        // SAFETY: the ranges are in bounds of the matrices and C.
        unsafe {
            let product = if vector != Vector::Rows {
                let matrix = Matrix { ptr: self.a.at(rows.start, ks.start), rows: rows.len(), cols: ks.len(), ..self.a };
                let (x, x_stride) = (self.b.at(ks.start, 0), self.b.row_stride);
                MatVec { matrix, x, x_stride, y: c.wrapping_add(rows.start * ldc), y_stride: ldc, accumulate, dots: vector == Vector::Dots }
            } else {
                let matrix = Matrix { ptr: self.b.at(ks.start, columns.start), rows: ks.len(), cols: columns.len(), ..self.b };
                let (x, x_stride) = (self.a.at(0, ks.start), self.a.col_stride);
                MatVec { matrix: matrix.transposed(), x, x_stride, y: c.wrapping_add(columns.start), y_stride: 1, accumulate, dots: false }
            };
            product.run(self.isa);
        }
    }

    /// At most [`ROWS`] rows over at most [`DEPTH`] k, with B in place, packed here, or already packed (`ready`) as
    /// [`PanelProduct::run_ready`] requires.
    ///
    /// # Safety
    /// Same as [`Product::block`].
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn rank_k_update(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        ks: Range<usize>,
        c: *mut f32,
        ldc: usize,
        accumulate: bool,
        scratch: *mut f32,
        ready: Option<*const f32>,
    ) {
        debug_assert!(rows.len() <= ROWS && ks.len() <= DEPTH);
        let shape = Shape::of(self.isa);
        let left = if self.pack_a {
            // SAFETY: `per_worker` is the sum of the slivers of B and of `ROWS` rows of A, or all rows.
            unsafe { BlockOfA::pack(self.isa, &self.a, rows.clone(), ks.start, ks.len(), shape.rows, scratch.add(SLIVERS)) }
        } else {
            // SAFETY: the block is inside of A.
            BlockOfA::Strided { ptr: unsafe { self.a.at(rows.start, ks.start) }, row: self.a.row_stride, step: self.a.col_stride }
        };
        let mut a_rows = [std::ptr::null(); MAX_ROWS];
        let mut c_rows = [std::ptr::null_mut(); MAX_ROWS];
        let first = rows.start;
        let fill = |part: Range<usize>, tile: &mut Tile| {
            let (a, row, step) = left.tile(part.start, part.len());
            a_rows = std::array::from_fn(|i| a.wrapping_offset(i as isize * row));
            c_rows = std::array::from_fn(|i| c.wrapping_add((first + part.start + i) * ldc));
            tile.a = a_rows.as_ptr();
            tile.a_step = step;
            tile.c = c_rows.as_ptr();
        };
        // SAFETY: rows, columns and k are in bounds of the operands, and C is writable.
        unsafe {
            let right = self.right(&ks);
            let panel_product = PanelProduct {
                isa: self.isa,
                rows: rows.len(),
                columns,
                segments: 1,
                length: ks.len(),
                accumulate,
                right: &|_| right,
                packed: self.pack_b.then_some(scratch),
            };
            match ready {
                Some(slivers) => panel_product.run_ready(slivers, fill),
                None => panel_product.run(fill),
            }
        }
    }

    /// The rows `ks` of B.
    ///
    /// # Safety
    ///
    /// They are inside of B.
    pub unsafe fn right(&self, ks: &Range<usize>) -> Matrix {
        // SAFETY: guaranteed by the caller.
        Matrix { ptr: unsafe { self.b.at(ks.start, 0) }, rows: ks.len(), ..self.b }
    }
}

/// Floats of one worker's workspace: a group of packed slivers of B, and packed rows of A. Rows are padded by a cache
/// line to avoid set conflicts.
pub(super) fn per_worker(m: usize, k: usize) -> usize {
    let depth = k.min(DEPTH).next_multiple_of(LINE);
    SLIVERS + m.next_multiple_of(MAX_ROWS).min(ROWS) * (depth + LINE)
}

/// Padding floats per row of a panel: a cache line for eight rows, to avoid set conflicts between adjacent panels.
const PAD: usize = LINE / MAX_ROWS;

/// A block of A as the micro-kernel reads it.
enum BlockOfA {
    /// Row `i`, k `j` at `ptr + i · row + j · step`.
    Strided { ptr: *const f32, row: isize, step: isize },
    /// A k-major panel per tile: that of the rows from `i` on starts at `ptr + i · (depth + PAD)`.
    Panels { ptr: *const f32, depth: usize },
}

impl BlockOfA {
    /// Packs a block of A into `to`, by rows if k is contiguous, otherwise by panels.
    ///
    /// # Safety
    ///
    /// The block is inside of `a`, and `to` is writable for its rows at `depth.next_multiple_of(LINE) + LINE` floats
    /// each.
    unsafe fn pack(isa: Isa, a: &Matrix, rows: Range<usize>, k: usize, depth: usize, tile: usize, to: *mut f32) -> BlockOfA {
        if a.col_stride == 1 {
            let stride = depth.next_multiple_of(LINE) + LINE;
            // SAFETY: guaranteed by the caller.
            unsafe { pack::rows_of_a(isa, a, rows.start, rows.len(), k, depth, to, stride) };
            return BlockOfA::Strided { ptr: to, row: stride as isize, step: 1 };
        }
        if a.row_stride == 1 && tile == 8 && rows.len().is_multiple_of(8) {
            // SAFETY: guaranteed by the caller.
            unsafe { pack::panels_of_eight(isa, a, rows.start, rows.len(), k, depth, to, depth + PAD) };
            return BlockOfA::Panels { ptr: to, depth };
        }
        for_each_part(rows.clone(), tile, 1, |part| {
            // SAFETY: a panel is `part.len()` wide and starts at the end of the previous rows.
            unsafe { pack::panel_of_a(a, part.start, part.len(), k, depth, to.add((part.start - rows.start) * (depth + PAD))) };
        });
        BlockOfA::Panels { ptr: to, depth }
    }

    /// The start of the tile of `rows` rows from `start` on, its row stride and its k stride.
    fn tile(&self, start: usize, rows: usize) -> (*const f32, isize, isize) {
        match *self {
            BlockOfA::Strided { ptr, row, step } => (ptr.wrapping_offset(start as isize * row), row, step),
            BlockOfA::Panels { ptr, depth } => (ptr.wrapping_add(start * (depth + PAD)), 1, rows as isize),
        }
    }
}

/// Packing A pays off if it is read for many columns, or if k has a large stride, where each k would touch another
/// page.
fn pack_a(a: &Matrix, n: usize) -> bool {
    if a.col_stride == 1 {
        n > 2 * MAX_COLUMNS && a.row_stride.unsigned_abs() >= 1024
    } else {
        (n > MAX_COLUMNS || a.col_stride.unsigned_abs() >= 1024) && a.cols > 8
    }
}

/// B is packed if its columns are not contiguous, or if it is wide, reused by enough rows and too large for L1.
fn pack_b(b: &Matrix, m: usize) -> bool {
    b.col_stride != 1 || (b.row_stride.unsigned_abs() > MAX_COLUMNS && m > FEW_ROWS && b.rows > 16 && b.rows * b.cols > IN_L1)
}

/// Rows of A for which packing B costs more than reading it in place.
const FEW_ROWS: usize = 64;

/// Floats of B that are read in place.
const IN_L1: usize = 8 << 10;
