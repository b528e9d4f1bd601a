//! The loop around the micro-kernel: all tiles of one block of rows and columns, over one range of k.

use std::ops::Range;

use super::Matrix;
use super::micro_kernel::{MAX_COLUMNS, Shape, Tile};
use super::pack;
use crate::simd::Isa;

/// Maximum k of a packed panel: a row panel of A and a column sliver of B of this depth fit in L1 and L2.
pub(crate) const DEPTH: usize = 256;

/// Slivers of B of full depth packed at once (192 KiB), so that B is read several cache lines at a time. More slivers
/// of smaller depth fit, which makes writes to rows of C longer.
const GROUP: usize = 4;

/// Floats of packed columns of B.
pub(crate) const SLIVERS: usize = GROUP * DEPTH * MAX_COLUMNS;

/// `C[rows, columns] (=|+=) A · B` over `segments` runs of `length` k each.
pub(crate) struct PanelProduct<'a> {
    pub isa: Isa,
    pub rows: usize,
    pub columns: Range<usize>,
    pub segments: usize,
    pub length: usize,
    pub accumulate: bool,
    /// The rows of B for a segment; only `length` of them are read.
    pub right: &'a dyn Fn(usize) -> Matrix,
    /// Buffer for packed B, [`SLIVERS`] floats. Without it B must be single precision with unit column stride and
    /// contiguous segments.
    pub packed: Option<*mut f32>,
}

impl PanelProduct<'_> {
    /// Runs every tile; `left` receives the rows of a tile and fills in the fields of A and C.
    ///
    /// # Safety
    ///
    /// The processor supports `isa`. The fields set by `left` and the result of `right` satisfy the contract of
    /// [`Tile::run`] over these rows, columns and k; if B is packed, `segments · length` is at most [`DEPTH`].
    #[inline]
    pub unsafe fn run(&self, mut left: impl FnMut(Range<usize>, &mut Tile)) {
        let group = self.width() * self.group();
        for start in self.columns.clone().step_by(group) {
            let group = start..self.columns.end.min(start + group);
            // SAFETY: a group of this depth fits in `SLIVERS`, because no sliver is wider than `Shape::columns`; the
            // rest is guaranteed by the caller.
            unsafe {
                if let Some(to) = self.packed {
                    self.pack(group.clone(), to);
                }
                self.tiles(group, self.packed.map(<*mut f32>::cast_const), &mut left);
            }
        }
    }

    /// Like [`PanelProduct::run`], over slivers of B that [`PanelProduct::pack`] wrote to `slivers`, for all columns.
    ///
    /// # Safety
    /// Same as [`PanelProduct::run`].
    #[inline]
    pub unsafe fn run_ready(&self, slivers: *const f32, mut left: impl FnMut(Range<usize>, &mut Tile)) {
        let group = self.width() * self.group();
        for start in self.columns.clone().step_by(group) {
            let done = start - self.columns.start;
            // SAFETY: the columns before the group were packed as full-width slivers; the rest is guaranteed by the
            // caller.
            unsafe { self.tiles(start..self.columns.end.min(start + group), Some(slivers.add(done * self.depth())), &mut left) };
        }
    }

    /// Columns of a sliver. Slivers have equal width: a narrow last one would run at a fraction of the speed of a full
    /// one.
    pub fn width(&self) -> usize {
        let shape = Shape::of(self.isa);
        let slivers = self.columns.len().div_ceil(shape.columns).max(1);
        self.columns.len().div_ceil(slivers).next_multiple_of(shape.lanes)
    }

    /// Slivers packed or processed at once.
    pub fn group(&self) -> usize {
        GROUP * DEPTH / self.depth().min(DEPTH)
    }

    fn depth(&self) -> usize {
        self.segments * self.length
    }

    /// All tiles of a group of columns, with its slivers packed at `packed` or B read in place.
    ///
    /// # Safety
    /// Same as [`PanelProduct::run`].
    #[inline(always)]
    unsafe fn tiles(&self, group: Range<usize>, packed: Option<*const f32>, left: &mut impl FnMut(Range<usize>, &mut Tile)) {
        let shape = Shape::of(self.isa);
        let (depth, width) = (self.depth(), self.width());
        for_each_part(0..self.rows, shape.rows, 1, |rows| {
            let mut tile = Tile {
                a: std::ptr::null(),
                a_table: 0,
                a_offset: 0,
                a_step: 1,
                segments: self.segments,
                length: self.length,
                b: std::ptr::null(),
                b_step: 0,
                c: std::ptr::null(),
                c_offset: 0,
                c_base: 0,
                rows: rows.len(),
                columns: 0,
                accumulate: self.accumulate,
            };
            left(rows, &mut tile);
            for (sliver, column) in group.clone().step_by(width).enumerate() {
                tile.c_offset = column;
                tile.columns = width.min(group.end - column);
                // SAFETY: the slivers were packed consecutively; the rest is guaranteed by the caller.
                unsafe {
                    if let Some(packed) = packed {
                        tile.b = packed.add(sliver * depth * width);
                        tile.b_step = tile.columns.next_multiple_of(shape.lanes) as isize;
                    } else {
                        let right = (self.right)(0);
                        tile.b = right.at(0, column);
                        tile.b_step = right.row_stride;
                    }
                    tile.run(self.isa);
                }
            }
        });
    }

    /// Packs the columns of a group in slivers; the last one is padded to whole vectors.
    ///
    /// # Safety
    /// Same as [`PanelProduct::run`]; `to` is writable for the group.
    pub unsafe fn pack(&self, group: Range<usize>, to: *mut f32) {
        let (depth, width, lanes) = (self.depth(), self.width(), Shape::of(self.isa).lanes);
        for segment in 0..self.segments {
            let right = (self.right)(segment);
            let row = segment * self.length;
            // SAFETY: guaranteed by the caller; all writes stay inside of the group's part of `to`.
            unsafe {
                if right.dtype.is_half() && right.col_stride == 1 {
                    let from = right.at(0, group.start);
                    // Full-width slivers start `depth · width` apart; rows of this segment follow those of earlier
                    // segments.
                    let mut column = 0;
                    while column < group.len() {
                        // The last sliver may be narrower, and so are its rows.
                        let full = (group.len() - column) / width * width;
                        let columns = if full > 0 { full } else { group.len() - column };
                        let stride = if full > 0 { width } else { columns.next_multiple_of(lanes) };
                        let to = to.add(column * depth + row * stride);
                        let from = from.byte_add(column * right.dtype.size());
                        let pitch = depth * width;
                        pack::widen_slivers(
                            self.isa,
                            right.dtype,
                            from,
                            right.row_stride,
                            self.length,
                            columns,
                            to,
                            width.min(columns),
                            pitch,
                            lanes,
                        );
                        column += columns;
                    }
                } else if right.col_stride == 1 {
                    // Along the rows of B, to stay within a page. A plain loop, because `step_by` divides once per row.
                    for k in 0..self.length {
                        let (mut column, mut start) = (group.start, to);
                        while column < group.end {
                            let columns = width.min(group.end - column);
                            pack::copy(
                                right.at(k, column),
                                start.wrapping_add((row + k) * ((columns + lanes - 1) & !(lanes - 1))),
                                columns,
                            );
                            column += columns;
                            start = start.wrapping_add(depth * width);
                        }
                    }
                } else {
                    for (sliver, column) in group.clone().step_by(width).enumerate() {
                        let columns = width.min(group.end - column);
                        let stride = columns.next_multiple_of(lanes);
                        let to = to.add(sliver * depth * width + row * stride);
                        let (from, outer, inner) = (right.at(0, column), right.col_stride, right.row_stride);
                        match right.dtype.is_half() {
                            true => pack::transpose_halves(self.isa, right.dtype, from, outer, inner, columns, self.length, to, stride),
                            false => pack::transpose(from, outer, inner, columns, self.length, to, stride),
                        }
                    }
                }
            }
        }
    }
}

/// Splits a range into the fewest parts of at most `most`, of nearly equal length: a multiple of `multiple`, except for
/// the last.
///
/// Nearly equal, because a narrow last tile would run at a fraction of the speed of a full one.
#[inline(always)]
pub(crate) fn for_each_part(range: Range<usize>, most: usize, multiple: usize, mut visit: impl FnMut(Range<usize>)) {
    let mut start = range.start;
    let mut parts = range.len().div_ceil(most);
    while start < range.end {
        let length = (range.end - start).div_ceil(parts).next_multiple_of(multiple).min(range.end - start);
        visit(start..start + length);
        start += length;
        parts = (parts - 1).max(1);
    }
}
