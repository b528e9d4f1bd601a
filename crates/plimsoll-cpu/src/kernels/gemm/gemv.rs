//! Matrix-vector products: each matrix element is read once, so they are memory-bound and nothing is packed.
//!
//! A row-major matrix uses dot products; a column-major one adds scaled columns to the result (axpy), in the order of
//! the other products. The order of a dot product is its own, but the same for every row.

use super::Matrix;
use crate::simd::{Isa, PortableVector, Vector};

/// `y (=|+=) matrix · x` with strided vectors.
#[derive(Clone, Copy)]
pub(super) struct MatVec {
    pub matrix: Matrix,
    pub x: *const f32,
    pub x_stride: isize,
    pub y: *mut f32,
    pub y_stride: usize,
    pub accumulate: bool,
    /// Whether to use dot products; the strides support it.
    pub dots: bool,
}

impl MatVec {
    /// Whether dot products support these strides: rows and `x` are contiguous.
    pub fn has_rows(matrix: &Matrix, x_stride: isize) -> bool {
        matrix.col_stride == 1 && x_stride == 1
    }

    /// Whether adding columns supports these strides: columns and `y` are contiguous.
    pub fn has_columns(matrix: &Matrix, y_stride: usize) -> bool {
        matrix.row_stride == 1 && y_stride == 1
    }

    /// Computes the product.
    ///
    /// # Safety
    ///
    /// The processor supports `isa`; [`MatVec::has_rows`] or else [`MatVec::has_columns`] holds; the matrix and `x` are
    /// readable over its rows and columns,
    /// `y` is writable over its rows and overlaps neither.
    pub unsafe fn run(&self, isa: Isa) {
        // SAFETY: same contract as this function.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => avx512(self),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2(self),
                _ => multiply::<PortableVector>(self),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(product: &MatVec) {
    // SAFETY: the contract of `MatVec::run`.
    unsafe { multiply::<crate::simd::Ymm>(product) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512(product: &MatVec) {
    // SAFETY: the contract of `MatVec::run`.
    unsafe { multiply::<crate::simd::Zmm>(product) }
}

/// # Safety
/// The contract of [`MatVec::run`].
#[inline(always)]
unsafe fn multiply<V: Vector>(product: &MatVec) {
    let Matrix { rows, cols, .. } = product.matrix;
    // SAFETY: guaranteed by the caller; both loops cover all rows and columns once.
    unsafe {
        if product.dots {
            let fours = if cols >= V::LANES { rows / 4 * 4 } else { 0 };
            (0..fours).step_by(4).for_each(|row| dots::<V, 4>(product, row));
            (fours..rows).for_each(|row| dots::<V, 1>(product, row));
        } else {
            for start in (0..rows).step_by(STRIP) {
                let strip = start..rows.min(start + STRIP);
                let mut k = 0;
                while k + 8 <= cols {
                    add_columns::<V, 8>(product, strip.clone(), k);
                    k += 8;
                }
                while k < cols {
                    add_columns::<V, 1>(product, strip.clone(), k);
                    k += 1;
                }
            }
        }
    }
}

/// Result rows that stay in L1 while columns are added to them.
const STRIP: usize = 2048;

/// Vector accumulators of a row: they determine its summation order, and thus its rounding, so every row has as many.
const ACCUMULATORS: usize = 2;

/// `R` rows of the result from `row` on, each in [`ACCUMULATORS`] vectors.
///
/// # Safety
///
/// The contract of [`MatVec::run`], for a matrix with contiguous rows.
#[inline(always)]
unsafe fn dots<V: Vector, const R: usize>(product: &MatVec, row: usize) {
    let cols = product.matrix.cols;
    // SAFETY: rows below `row + R` and columns below `cols` are in bounds of the matrix and `x`.
    unsafe {
        let from: [*const f32; R] = std::array::from_fn(|i| product.matrix.at(row + i, 0));
        let mut sums = [[V::splat(0.0); R]; ACCUMULATORS];
        let mut k = 0;
        while k + ACCUMULATORS * V::LANES <= cols {
            for sums in &mut sums {
                let x = V::load(product.x.add(k));
                for (sum, from) in sums.iter_mut().zip(from) {
                    *sum = sum.add_product(V::load(from.add(k)), x);
                }
                k += V::LANES;
            }
        }
        while k < cols {
            let mask = V::mask((cols - k).min(V::LANES));
            let x = V::load_masked(product.x.add(k), mask);
            for (sum, from) in sums[0].iter_mut().zip(from) {
                *sum = sum.add_product(V::load_masked(from.add(k), mask), x);
            }
            k += V::LANES;
        }
        for i in 0..R {
            let to = product.y.add((row + i) * product.y_stride);
            let sum = total(sums.map(|sums| sums[i]));
            *to = if product.accumulate { *to + sum } else { sum };
        }
    }
}

/// # Safety
/// The contract of [`Vector`].
#[inline(always)]
unsafe fn total<V: Vector, const U: usize>(sums: [V; U]) -> f32 {
    let mut lanes = [0.0; 16];
    // SAFETY: no vector has more than 16 lanes.
    unsafe {
        let mut sum = sums[0];
        sums[1..].iter().for_each(|&other| sum = sum.add(other));
        sum.store(lanes.as_mut_ptr());
    }
    // Pairwise halving, which the compiler does in registers.
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

/// Adds `K` scaled columns from `k` on to a segment of the result; the first ones overwrite it unless it accumulates.
///
/// # Safety
/// The contract of [`MatVec::run`], for a matrix with contiguous columns and a contiguous result.
#[inline(always)]
unsafe fn add_columns<V: Vector, const K: usize>(product: &MatVec, strip: std::ops::Range<usize>, k: usize) {
    let fresh = k == 0 && !product.accumulate;
    // SAFETY: the segment is inside of the rows, and `k + K` columns exist.
    unsafe {
        let from: [*const f32; K] = std::array::from_fn(|j| product.matrix.at(0, k + j));
        let x: [V; K] = std::array::from_fn(|j| V::splat(*product.x.offset((k + j) as isize * product.x_stride)));
        let mut i = strip.start;
        while i + V::LANES <= strip.end {
            let mut sum = if fresh { V::splat(0.0) } else { V::load(product.y.add(i)) };
            for j in 0..K {
                sum = sum.add_product(V::load(from[j].add(i)), x[j]);
            }
            sum.store(product.y.add(i));
            i += V::LANES;
        }
        if i < strip.end {
            let mask = V::mask(strip.end - i);
            let mut sum = if fresh { V::splat(0.0) } else { V::load_masked(product.y.add(i), mask) };
            for j in 0..K {
                sum = sum.add_product(V::load_masked(from[j].add(i), mask), x[j]);
            }
            sum.store_masked(product.y.add(i), mask);
        }
    }
}
