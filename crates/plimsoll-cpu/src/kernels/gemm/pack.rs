//! Packing: copies blocks of A and B into the order in which the micro-kernel reads them, and widens 16-bit elements.

use super::Matrix;
use crate::simd::float_view::{for_each_vector, load_one, widen, widen_run};
use crate::simd::{Isa, PortableVector, Vector};
use plimsoll_core::DType;

/// Copies `len` floats: a `memcpy` call costs more than a few vectors.
///
/// # Safety
/// Both sides are valid for `len` floats and do not overlap.
#[inline(always)]
pub(super) unsafe fn copy(from: *const f32, to: *mut f32, len: usize) {
    // SAFETY: guaranteed by the caller; whole blocks first, then the remainder.
    unsafe {
        for at in 0..len / 16 {
            to.add(at * 16).cast::<[f32; 16]>().write_unaligned(from.add(at * 16).cast::<[f32; 16]>().read_unaligned());
        }
        for at in len / 16 * 16..len {
            *to.add(at) = *from.add(at);
        }
    }
}

/// Copies rows `row..row + rows` of A, from `k` on, to contiguous rows with stride `stride`.
///
/// # Safety
/// `a` is readable over the block and has unit column stride, `to` is writable for `rows · stride` floats and
/// `depth <= stride`.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn rows_of_a(isa: Isa, a: &Matrix, row: usize, rows: usize, k: usize, depth: usize, to: *mut f32, stride: usize) {
    for i in 0..rows {
        // SAFETY: row `row + i` of `a` holds `depth` contiguous numbers from `k` on, and `to` is writable for them.
        unsafe {
            match a.dtype.is_half() {
                true => widen(isa, a.dtype, a.at(row + i, k), to.add(i * stride), depth),
                false => std::ptr::copy_nonoverlapping(a.at(row + i, k), to.add(i * stride), depth),
            }
        }
    }
}

/// Packs `rows` rows of A into `to`, k-major: the values of one k are contiguous.
///
/// # Safety
/// `a` is readable over the block, and `to` writable for `depth · rows` floats.
pub(super) unsafe fn panel_of_a(a: &Matrix, row: usize, rows: usize, k: usize, depth: usize, to: *mut f32) {
    for j in 0..depth {
        for i in 0..rows {
            // SAFETY: the caller guarantees that the block is inside of `a` and that `to` is writable for it.
            unsafe { *to.add(j * rows + i) = load_one(a.dtype, a.at(row + i, k + j)) };
        }
    }
}

/// Packs panels of eight rows, for an A with contiguous columns: it is read along the columns, so that each page is
/// visited once.
///
/// # Safety
/// `a` is readable over the block, `rows` is a multiple of eight, and `to` is writable for `stride · rows` floats,
/// where `depth <= stride`.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn panels_of_eight(isa: Isa, a: &Matrix, row: usize, rows: usize, k: usize, depth: usize, to: *mut f32, stride: usize) {
    if a.dtype.is_half() {
        // SAFETY: guaranteed by the caller.
        return unsafe { widen_panels(isa, a.dtype, a.at(row, k), a.col_stride, rows, depth, to, stride) };
    }
    for j in 0..depth {
        // SAFETY: the caller guarantees `rows` contiguous floats; panel `p` starts at `8 · p · stride`.
        unsafe {
            let from = a.at(row, k + j);
            for i in (0..rows).step_by(8) {
                to.add(i * stride + j * 8).cast::<[f32; 8]>().write_unaligned(from.add(i).cast::<[f32; 8]>().read_unaligned());
            }
        }
    }
}

for_each_vector! {
    /// Like [`panels_of_eight`], for 16-bit elements with k stride `step`.
    ///
    /// # Safety
    ///
    /// Same as [`panels_of_eight`].
    fn widen_panels = widen_panels_run(from: *const f32, step: isize, rows: usize, depth: usize, to: *mut f32, stride: usize)
}

/// # Safety
/// Same as [`panels_of_eight`].
#[inline(always)]
unsafe fn widen_panels_run<V: Vector, const BF16: bool>(
    from: *const f32,
    step: isize,
    rows: usize,
    depth: usize,
    to: *mut f32,
    stride: usize,
) {
    for j in 0..depth {
        // SAFETY: guaranteed by the caller; a vector is one row of one or two panels.
        unsafe {
            let from = from.cast::<u16>().offset(j as isize * step);
            let mut i = 0;
            while i < rows {
                let mut lanes = [0f32; 16];
                let count = if rows - i >= V::LANES { V::LANES } else { 8 };
                if count == V::LANES {
                    V::load_half(from.add(i), BF16).store(lanes.as_mut_ptr());
                } else {
                    widen_run::<V, BF16>(from.add(i).cast(), lanes.as_mut_ptr(), count);
                }
                for at in (0..count).step_by(8) {
                    let eight: [f32; 8] = std::array::from_fn(|lane| lanes[at + lane]);
                    to.add((i + at) * stride + j * 8).cast::<[f32; 8]>().write_unaligned(eight);
                }
                i += count;
            }
        }
    }
}

for_each_vector! {
    /// Packs `rows` rows of `columns` contiguous 16-bit elements with row stride `step` into slivers of `width`
    /// columns, `pitch` floats apart, whose rows are padded to whole vectors of `lanes`.
    ///
    /// # Safety
    ///
    /// The processor supports `isa`, and both sides are valid for these elements.
    fn widen_slivers = widen_slivers_run(
        from: *const f32, step: isize, rows: usize, columns: usize, to: *mut f32, width: usize, pitch: usize, lanes: usize
    )
}

/// # Safety
/// Same as [`widen_slivers`].
#[allow(clippy::too_many_arguments)]
#[inline(always)]
unsafe fn widen_slivers_run<V: Vector, const BF16: bool>(
    from: *const f32,
    step: isize,
    rows: usize,
    columns: usize,
    to: *mut f32,
    width: usize,
    pitch: usize,
    lanes: usize,
) {
    for k in 0..rows {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let from = from.cast::<u16>().offset(k as isize * step);
            let (mut column, mut start) = (0, to);
            while column < columns {
                let here = width.min(columns - column);
                let stride = (here + lanes - 1) & !(lanes - 1);
                widen_run::<V, BF16>(from.add(column).cast(), start.wrapping_add(k * stride), here);
                column += here;
                start = start.wrapping_add(pitch);
            }
        }
    }
}

/// Like [`transpose`], for a 16-bit matrix, a few columns at a time.
///
/// # Safety
/// The processor supports `isa`, and both sides are valid for the elements named.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn transpose_halves(
    isa: Isa,
    dtype: DType,
    from: *const f32,
    outer: isize,
    inner: isize,
    columns: usize,
    depth: usize,
    to: *mut f32,
    width: usize,
) {
    const SIDE: usize = 16;
    let mut buffer = [0f32; SIDE * SIDE];
    let from = from.cast::<u16>();
    for i in (0..columns).step_by(SIDE) {
        for j in (0..depth).step_by(SIDE) {
            let (wide, deep) = (SIDE.min(columns - i), SIDE.min(depth - j));
            // SAFETY: guaranteed by the caller.
            unsafe {
                for column in 0..wide {
                    let from = from.offset((i + column) as isize * outer + j as isize * inner);
                    if inner == 1 {
                        widen(isa, dtype, from.cast(), buffer[column * SIDE..].as_mut_ptr(), deep);
                    } else {
                        (0..deep).for_each(|k| buffer[column * SIDE + k] = load_one(dtype, from.offset(k as isize * inner).cast()));
                    }
                }
                transpose(buffer.as_ptr(), SIDE as isize, 1, wide, deep, to.add(j * width + i), width);
            }
        }
    }
}

/// `to[j · width + i] = from[i · outer + j · inner]` for `i < columns`, `j < depth`.
///
/// # Safety
/// Both sides are valid for the elements named.
pub(crate) unsafe fn transpose(from: *const f32, outer: isize, inner: isize, columns: usize, depth: usize, to: *mut f32, width: usize) {
    #[cfg(target_arch = "x86_64")]
    if inner == 1 && columns >= 8 && depth >= 8 && is_x86_feature_detected!("avx") {
        // SAFETY: the instructions are supported, and the extents allow whole blocks.
        return unsafe { transpose_blocks(from, outer, columns, depth, to, width) };
    }
    for j in 0..depth {
        for i in 0..columns {
            // SAFETY: guaranteed by the caller.
            unsafe { *to.add(j * width + i) = *from.offset(i as isize * outer + j as isize * inner) };
        }
    }
}

/// Like [`transpose`], in blocks of 8 × 8, the last of which overlap their neighbors.
///
/// # Safety
/// Same as [`transpose`]; both extents are at least eight.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn transpose_blocks(from: *const f32, outer: isize, columns: usize, depth: usize, to: *mut f32, width: usize) {
    use std::arch::x86_64::*;
    for i in (0..columns).step_by(8).map(|i| i.min(columns - 8)) {
        for j in (0..depth).step_by(8).map(|j| j.min(depth - 8)) {
            // SAFETY: the block at `(i, j)` is inside of both extents.
            unsafe {
                let from = from.offset(i as isize * outer + j as isize);
                let to = to.add(j * width + i);
                for half in 0..2 {
                    // Rows r and r + 4 share a register, so that two rounds of shuffles within 128-bit lanes finish the
                    // block.
                    let pair = |row: isize| {
                        let low = _mm_loadu_ps(from.offset(row * outer).add(half * 4));
                        let high = _mm_loadu_ps(from.offset((row + 4) * outer).add(half * 4));
                        _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
                    };
                    let (r0, r1, r2, r3) = (pair(0), pair(1), pair(2), pair(3));
                    let (a, b) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
                    let (c, d) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
                    let out = to.add(half * 4 * width);
                    _mm256_storeu_ps(out, _mm256_shuffle_ps::<0x44>(a, c));
                    _mm256_storeu_ps(out.add(width), _mm256_shuffle_ps::<0xEE>(a, c));
                    _mm256_storeu_ps(out.add(2 * width), _mm256_shuffle_ps::<0x44>(b, d));
                    _mm256_storeu_ps(out.add(3 * width), _mm256_shuffle_ps::<0xEE>(b, d));
                }
            }
        }
    }
}
