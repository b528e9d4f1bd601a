//! The softmax of a tile, in base two.
//!
//! Queries are scaled by log2(e) beforehand, so that a weight is a power of two.

use crate::simd::{Isa, dispatch};

/// A tile of scores: `rows` queries by `columns` keys with row stride `stride`, padded to whole cache lines.
#[derive(Clone, Copy)]
pub(super) struct Products<'a> {
    pub start: *mut f32,
    pub stride: usize,
    pub rows: usize,
    pub columns: usize,
    /// The causal offset as in [`super::tiles::Hidden`], if attention is causal.
    pub before: Option<isize>,
    /// The additive key mask of a row, if there is one.
    pub mask: Option<&'a [f32]>,
}

const LANES: usize = 16;

impl Products<'_> {
    /// A row and the number of its visible keys; the rest of its cache lines is filled with `hidden`.
    ///
    /// # Safety
    ///
    /// The tile is valid and exclusive.
    #[inline(always)]
    unsafe fn row<'a>(self, row: usize, hidden: f32) -> &'a mut [[f32; LANES]] {
        let visible = match self.before {
            Some(before) => (row as isize + 1 - before).clamp(0, self.columns as isize) as usize,
            None => self.columns,
        };
        let lines = self.columns.div_ceil(LANES);
        // SAFETY: guaranteed by the caller; rows are padded to whole cache lines.
        unsafe {
            let start = self.start.add(row * self.stride);
            for i in visible..lines * LANES {
                *start.add(i) = hidden;
            }
            let row = std::slice::from_raw_parts_mut(start.cast::<[f32; LANES]>(), lines);
            if let Some(mask) = self.mask {
                for (row, mask) in row.iter_mut().zip(mask.as_chunks::<LANES>().0) {
                    for lane in 0..LANES {
                        row[lane] += mask[lane];
                    }
                }
            }
            row
        }
    }
}

/// The online-softmax state of a chunk of queries.
pub(super) struct Running<'a> {
    /// The running maximum.
    pub largest: &'a mut [f32],
    /// The running sum of weights relative to it.
    pub sums: &'a mut [f32],
    /// The weighted values, `depth` per row.
    pub values: &'a mut [f32],
    pub depth: usize,
}

/// Turns scores into weights relative to the running maximum, and rescales sums and values to it.
///
/// # Safety
///
/// The processor supports `isa`, and the tile is valid and exclusive.
pub(super) unsafe fn online_softmax(isa: Isa, products: Products<'_>, running: Running<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe { dispatch!(isa, unsafe online_softmax_rows(products: Products<'_> = products, running: Running<'_> = running)) }
}

/// # Safety
/// Same as [`online_softmax`].
#[inline(always)]
unsafe fn online_softmax_rows<const FMA: bool>(products: Products<'_>, running: Running<'_>) {
    let Running { largest, sums, values, depth } = running;
    for i in 0..products.rows {
        // SAFETY: guaranteed by the caller.
        let row = unsafe { products.row(i, f32::NEG_INFINITY) };
        let mut most = [f32::NEG_INFINITY; LANES];
        for line in &*row {
            for lane in 0..LANES {
                most[lane] = if line[lane] > most[lane] { line[lane] } else { most[lane] };
            }
        }
        let new = most.iter().fold(largest[i], |a, b| if *b > a { *b } else { a });
        // If nothing is visible, nothing is subtracted.
        let from = if new == f32::NEG_INFINITY { 0.0 } else { new };
        let mut sum = [0.0; LANES];
        for line in row {
            for lane in 0..LANES {
                let weight = exp2::<FMA>(line[lane] - from);
                line[lane] = weight;
                sum[lane] += weight;
            }
        }
        let shrink = exp2::<FMA>(largest[i] - from);
        sums[i] = sums[i] * shrink + total(sum);
        if new != largest[i] {
            largest[i] = new;
            values[i * depth..(i + 1) * depth].iter_mut().for_each(|value| *value *= shrink);
        }
    }
}

/// Turns scores into weights, given each row's log-sum-exp in base two, and gradients of weights into gradients of
/// scores.
///
/// # Safety
///
/// Same as [`online_softmax`]; `slopes` is a tile with the layout of the scores.
pub(super) unsafe fn softmax_from_logsumexp(isa: Isa, products: Products<'_>, logarithms: &[f32], slopes: *mut f32, deltas: &[f32]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        dispatch!(
            isa,
            unsafe softmax_rows_from_logsumexp(
                products: Products<'_> = products,
                logarithms: &[f32] = logarithms,
                slopes: *mut f32 = slopes,
                deltas: &[f32] = deltas
            )
        )
    }
}

/// # Safety
/// Same as [`softmax_from_logsumexp`].
#[inline(always)]
unsafe fn softmax_rows_from_logsumexp<const FMA: bool>(products: Products<'_>, logarithms: &[f32], slopes: *mut f32, deltas: &[f32]) {
    for i in 0..products.rows {
        // SAFETY: guaranteed by the caller. Gradients that were not computed are zeroed, so that uninitialized values
        // are not multiplied by zero weights.
        let (row, slopes) = unsafe {
            let slopes = Products { start: slopes, mask: None, ..products };
            (products.row(i, f32::NEG_INFINITY), slopes.row(i, 0.0))
        };
        for (line, slopes) in row.iter_mut().zip(slopes) {
            for lane in 0..LANES {
                let weight = exp2::<FMA>(line[lane] - logarithms[i]);
                line[lane] = weight;
                slopes[lane] = weight * (slopes[lane] - deltas[i]);
            }
        }
    }
}

/// `sums[i]` is the dot product of row `i` of `a` and of `b`, each with `depth` elements.
pub(super) fn row_products(isa: Isa, a: &[f32], b: &[f32], depth: usize, sums: &mut [f32]) {
    dispatch!(isa, products_of_rows(a: &[f32] = a, b: &[f32] = b, depth: usize = depth, sums: &mut [f32] = sums));
}

#[inline(always)]
fn products_of_rows<const FMA: bool>(a: &[f32], b: &[f32], depth: usize, sums: &mut [f32]) {
    for (i, to) in sums.iter_mut().enumerate() {
        let (a, b) = (&a[i * depth..(i + 1) * depth], &b[i * depth..(i + 1) * depth]);
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        let mut sum = [0.0; LANES];
        for (a, b) in a.iter().zip(b) {
            for lane in 0..LANES {
                sum[lane] += a[lane] * b[lane];
            }
        }
        let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
        *to = total(sum) + rest;
    }
}

/// The horizontal sum of all lanes, by pairwise halving.
#[inline(always)]
fn total(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

/// 2^`x` for `x` from -126 to 127; 0 below, infinite above.
#[inline(always)]
fn exp2<const FMA: bool>(x: f32) -> f32 {
    // Adding and subtracting this number rounds to an integer, which is then also in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // The series of exp(r · ln 2), for r from -1/2 to 1/2.
    const SERIES: [f32; 7] = [1.540_353e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, std::f32::consts::LN_2, 1.0];
    let held = if x < -126.0 { -126.0 } else { x };
    let held = if held > 127.0 { 127.0 } else { held };
    let shifted = held + ROUND;
    let whole = shifted - ROUND;
    let rest = held - whole;
    let mut sum = SERIES[0];
    for term in &SERIES[1..] {
        sum = if FMA { sum.mul_add(rest, *term) } else { sum * rest + *term };
    }
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    let power = sum * scale;
    let power = if x < -126.0 { 0.0 } else { power };
    if x > 127.0 { f32::INFINITY } else { power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_accurate_and_keep_what_is_not_finite() {
        for i in -12_600..=12_700 {
            let x = i as f32 / 100.0;
            let (got, want) = (exp2::<false>(x), f64::from(x).exp2());
            assert!((f64::from(got) - want).abs() <= 3e-7 * want, "2^{x} is {want}, not {got}");
        }
        assert_eq!((exp2::<false>(f32::NEG_INFINITY), exp2::<false>(-150.0), exp2::<false>(0.0)), (0.0, 0.0, 1.0));
        assert_eq!(exp2::<false>(f32::INFINITY), f32::INFINITY);
        assert!(exp2::<false>(f32::NAN).is_nan());
    }
}
