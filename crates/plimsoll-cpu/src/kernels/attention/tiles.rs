//! Matrix products of blocks in a worker's workspace, without causally masked parts.

use crate::kernels::gemm::micro_kernel::{MAX_ROWS, Shape, Tile};
use crate::kernels::gemm::pack;
use crate::kernels::gemm::panel::for_each_part;
use crate::simd::Isa;

/// The left operand: row `i`, k `j` is at `start + i · row + j · step`.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub start: *const f32,
    pub row: usize,
    pub step: usize,
}

/// The right operand in slivers of columns, each with unit column stride.
#[derive(Clone, Copy)]
pub(super) struct Right {
    start: *const f32,
    /// Floats between consecutive k.
    step: usize,
    /// Floats between slivers, and the columns of a sliver.
    sliver: usize,
    width: usize,
    columns: usize,
}

impl Right {
    /// A contiguous row-major block of `columns` columns, read in place.
    pub fn rows(isa: Isa, start: *const f32, columns: usize) -> Right {
        let shape = Shape::of(isa);
        let slivers = columns.div_ceil(shape.columns).max(1);
        let width = columns.div_ceil(slivers).next_multiple_of(shape.lanes);
        Right { start, step: columns, sliver: width, width, columns }
    }

    /// The transpose of a row-major block of `columns` rows of `depth` floats, packed to `to` in slivers.
    ///
    /// # Safety
    ///
    /// `from` is readable over the block, and `to` is writable for [`Right::transposed_len`] floats.
    pub unsafe fn transposed(isa: Isa, from: *const f32, columns: usize, depth: usize, to: *mut f32) -> Right {
        let width = Shape::of(isa).columns;
        for (sliver, column) in (0..columns).step_by(width).enumerate() {
            let part = width.min(columns - column);
            // SAFETY: guaranteed by the caller.
            unsafe { pack::transpose(from.add(column * depth), depth as isize, 1, part, depth, to.add(sliver * depth * width), width) };
        }
        Right { start: to, step: width, sliver: depth * width, width, columns }
    }

    /// Floats of the packed transpose of `columns` rows, for any instruction set.
    pub fn transposed_len(columns: usize, depth: usize) -> usize {
        columns.next_multiple_of(crate::kernels::gemm::micro_kernel::MAX_COLUMNS) * depth
    }
}

/// The causally masked part of a product of a block of queries and a block of keys. The number is the offset of the
/// first key relative to the first query; it is negative if the keys start before the queries.
#[derive(Clone, Copy)]
pub(super) enum Hidden {
    Nothing,
    /// Rows are queries, columns are keys: masked elements are not written.
    Columns(isize),
    /// Rows are queries, the sum is over keys.
    Ends(isize),
    /// Rows are keys, the sum is over queries.
    Starts(isize),
}

/// `C[rows, right.columns] (=|+=) left · right` over `length` k.
///
/// # Safety
///
/// The processor supports `isa`, the operands are readable and C is writable over these extents, and C overlaps
/// neither.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn multiply(
    isa: Isa,
    rows: usize,
    length: usize,
    left: Left,
    right: Right,
    (c, c_row): (*mut f32, usize),
    accumulate: bool,
    hidden: Hidden,
) {
    let shape = Shape::of(isa);
    for (sliver, column) in (0..right.columns).step_by(right.width).enumerate() {
        for_each_part(0..rows, shape.rows, 1, |part| {
            let mut columns = right.width.min(right.columns - column);
            let mut ks = 0..length;
            // End row relative to the first key.
            let end = |before: isize| (part.end as isize - before).max(0) as usize;
            match hidden {
                Hidden::Nothing => {}
                Hidden::Columns(before) => columns = columns.min(end(before).saturating_sub(column)),
                Hidden::Ends(before) => ks.end = length.min(end(before)),
                Hidden::Starts(before) => ks.start = (part.start as isize + before).max(0) as usize,
            }
            if columns == 0 || (ks.is_empty() && accumulate) {
                return;
            }
            let from = left.start.wrapping_add(part.start * left.row + ks.start * left.step);
            let a: [*const f32; MAX_ROWS] = std::array::from_fn(|i| from.wrapping_add(i * left.row));
            let to: [*mut f32; MAX_ROWS] = std::array::from_fn(|i| c.wrapping_add((part.start + i) * c_row));
            let tile = Tile {
                a: a.as_ptr(),
                a_table: 0,
                a_offset: 0,
                a_step: left.step as isize,
                segments: 1,
                length: ks.len(),
                b: right.start.wrapping_add(sliver * right.sliver + ks.start * right.step),
                b_step: right.step as isize,
                c: to.as_ptr(),
                c_offset: column,
                c_base: 0,
                rows: part.len(),
                columns,
                accumulate,
            };
            // SAFETY: guaranteed by the caller, for a part of the product.
            unsafe { tile.run(isa) };
        });
    }
}
