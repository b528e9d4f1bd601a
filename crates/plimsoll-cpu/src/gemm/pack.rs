//! Copies of blocks of A and B into the order the micro-kernel reads them in.

use super::Matrix;

/// Copies `columns` columns of B from `k` rows on, row by row, each row `width` floats apart in `to`.
///
/// # Safety
/// `b` is readable over the block, `to` writable for `depth · width` floats and `columns <= width`.
pub(super) unsafe fn columns_of_b(b: &Matrix, k: usize, depth: usize, column: usize, columns: usize, to: *mut f32, width: usize) {
    // SAFETY: the block lies inside `b` by the caller's promise.
    let from = unsafe { b.at(k, column) };
    // SAFETY: as above, and `to` has room for `depth` rows of `width`.
    unsafe {
        if b.col_stride == 1 {
            for row in 0..depth {
                std::ptr::copy_nonoverlapping(from.offset(row as isize * b.row_stride), to.add(row * width), columns);
            }
        } else {
            transpose(from, b.col_stride, b.row_stride, columns, depth, to, width);
        }
    }
}

/// Copies the rows `row..row + rows` of A, k from `k` on, so that one row's k are contiguous and rows are `stride` apart.
///
/// # Safety
/// `a` is readable over the block and has unit column stride, `to` is writable for `rows · stride` floats and `depth <= stride`.
pub(super) unsafe fn rows_of_a(a: &Matrix, row: usize, rows: usize, k: usize, depth: usize, to: *mut f32, stride: usize) {
    for i in 0..rows {
        // SAFETY: row `row + i` of `a` holds `depth` contiguous floats from `k` on, and `to` has room for them.
        unsafe { std::ptr::copy_nonoverlapping(a.at(row + i, k), to.add(i * stride), depth) };
    }
}

/// Copies `rows` rows of A into `to`, k-major: the values of one k are contiguous, and so are those of the next.
///
/// # Safety
/// `a` is readable over the block, and `to` writable for `depth · rows` floats.
pub(super) unsafe fn panel_of_a(a: &Matrix, row: usize, rows: usize, k: usize, depth: usize, to: *mut f32) {
    // SAFETY: the block lies inside `a` by the caller's promise, and `to` has room for it.
    unsafe {
        let from = a.at(row, k);
        if a.row_stride == 1 && rows == 8 {
            for k in 0..depth {
                let values = from.offset(k as isize * a.col_stride).cast::<[f32; 8]>().read_unaligned();
                to.add(k * 8).cast::<[f32; 8]>().write_unaligned(values);
            }
        } else {
            for k in 0..depth {
                for i in 0..rows {
                    *to.add(k * rows + i) = *from.offset(k as isize * a.col_stride + i as isize * a.row_stride);
                }
            }
        }
    }
}

/// `to[j · width + i] = from[i · outer + j · inner]` for `i < columns`, `j < depth`.
///
/// # Safety
/// Both sides are valid for the elements named.
#[inline]
pub(crate) unsafe fn transpose(from: *const f32, outer: isize, inner: isize, columns: usize, depth: usize, to: *mut f32, width: usize) {
    // Blocks of 8 × 8 keep the lines that are written in L1 while the source is read along its rows.
    for j0 in (0..depth).step_by(8) {
        let j1 = depth.min(j0 + 8);
        for i0 in (0..columns).step_by(8) {
            let i1 = columns.min(i0 + 8);
            // SAFETY: `i` and `j` stay below `columns` and `depth`.
            unsafe {
                if inner == 1 && j1 - j0 == 8 && i1 - i0 == 8 {
                    transpose_8x8(from.offset(i0 as isize * outer + j0 as isize), outer, to.add(j0 * width + i0), width);
                } else {
                    for i in i0..i1 {
                        for j in j0..j1 {
                            *to.add(j * width + i) = *from.offset(i as isize * outer + j as isize * inner);
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
/// `from` is readable for eight rows of eight floats, `outer` apart, and `to` writable for the same, `width` apart.
#[inline(always)]
unsafe fn transpose_8x8(from: *const f32, outer: isize, to: *mut f32, width: usize) {
    // SAFETY: the caller's promise. Written on arrays so that the compiler turns it into shuffles of the baseline instruction set.
    unsafe {
        let rows: [[f32; 8]; 8] = std::array::from_fn(|i| from.offset(i as isize * outer).cast::<[f32; 8]>().read_unaligned());
        for j in 0..8 {
            let column: [f32; 8] = std::array::from_fn(|i| rows[i][j]);
            to.add(j * width).cast::<[f32; 8]>().write_unaligned(column);
        }
    }
}
