//! The inner loops of reductions, over many lanes or along short rows.
//!
//! A lane's state is two numbers: the sum or the maximum; for log-sum-exp the maximum and the sum relative to it; for
//! argmax the maximum and the bits of its index.

use crate::kernels::pointwise::{exp, larger, log};
use crate::simd::{Isa, dispatch};
use plimsoll_core::ops::Reduction;

/// Maximum lanes accumulated side by side.
pub(super) const WIDTH: usize = 512;

/// The states of up to [`WIDTH`] lanes.
pub(super) struct Accumulators {
    pub first: [f32; WIDTH],
    pub second: [f32; WIDTH],
}

impl Accumulators {
    /// Empty accumulators.
    pub fn empty(kind: Reduction) -> Accumulators {
        let first = if kind == Reduction::Sum { 0.0 } else { f32::NEG_INFINITY };
        Accumulators { first: [first; WIDTH], second: [0.0; WIDTH] }
    }

    /// Accumulates one number into each of the lanes `at … at + numbers.len()`. Lane `at` has index `row`, each
    /// following one `step` more.
    pub fn add(&mut self, isa: Isa, kind: Reduction, at: usize, numbers: &[f32], row: u32, step: u32) {
        let end = at + numbers.len();
        let (first, second) = (&mut self.first[at..end], &mut self.second[at..end]);
        dispatch!(isa, add_loop(kind: Reduction = kind, first: &mut [f32] = first, second: &mut [f32] = second, numbers: &[f32] = numbers,
            row: u32 = row, step: u32 = step))
    }

    /// Combines the first `width` lanes of another into these.
    pub fn join(&mut self, isa: Isa, kind: Reduction, other: &Accumulators, width: usize) {
        join(isa, kind, (&mut self.first[..width], &mut self.second[..width]), (&other.first[..width], &other.second[..width]));
    }

    /// Combines `count` adjacent groups of `width` lanes into the first, by pairwise halving, for accuracy.
    pub fn gather(&mut self, isa: Isa, kind: Reduction, width: usize, mut count: usize) {
        while count > 1 {
            let kept = count.div_ceil(2) * width;
            let (first, second) = (self.first.split_at_mut(kept), self.second.split_at_mut(kept));
            let moved = count * width - kept;
            join(isa, kind, (&mut first.0[..moved], &mut second.0[..moved]), (&first.1[..moved], &second.1[..moved]));
            count = count.div_ceil(2);
        }
    }
}

/// Adds rows of numbers to their sums, row after row.
pub(super) fn add_rows(isa: Isa, sums: &mut [f32], rows: &[f32]) {
    dispatch!(isa, add_rows_loop(sums: &mut [f32] = sums, rows: &[f32] = rows))
}

#[inline(always)]
fn add_rows_loop<const FMA: bool>(sums: &mut [f32], rows: &[f32]) {
    if let [sum] = sums {
        *sum = rows.iter().fold(*sum, |sum, x| sum + x);
        return;
    }
    for row in rows.chunks_exact(sums.len()) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
}

/// Combines states lane by lane.
pub(super) fn join(isa: Isa, kind: Reduction, into: (&mut [f32], &mut [f32]), other: (&[f32], &[f32])) {
    let ((a, b), (c, d)) = (into, other);
    dispatch!(isa, join_loop(kind: Reduction = kind, a: &mut [f32] = a, b: &mut [f32] = b, c: &[f32] = c, d: &[f32] = d))
}

/// The result of a lane; for argmax the index by its bits.
pub(super) fn finish(kind: Reduction, first: f32, second: f32) -> f32 {
    match kind {
        Reduction::Sum | Reduction::Max => first,
        Reduction::LogSumExp => level(first) + log::<false>(second),
        Reduction::ArgMax => second,
    }
}

/// Reduces rows of `length` numbers, one result each.
pub(super) fn rows(isa: Isa, kind: Reduction, numbers: &[f32], length: usize, results: &mut [f32]) {
    dispatch!(isa, rows_loop(kind: Reduction = kind, numbers: &[f32] = numbers, length: usize = length, results: &mut [f32] = results))
}

/// The offset of exponents. Infinities cannot be subtracted and need not be: their exponentials are exact.
#[inline(always)]
fn level(largest: f32) -> f32 {
    if largest.abs() == f32::INFINITY { 0.0 } else { largest }
}

/// Whether `x` replaces the earlier `best`. The first NaN counts as the maximum.
#[inline(always)]
fn beats(x: f32, best: f32) -> bool {
    x > best || (x.is_nan() & !best.is_nan())
}

#[inline(always)]
fn add_loop<const FMA: bool>(kind: Reduction, first: &mut [f32], second: &mut [f32], numbers: &[f32], row: u32, step: u32) {
    match kind {
        Reduction::Sum => first.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += x),
        Reduction::Max => first.iter_mut().zip(numbers).for_each(|(largest, x)| *largest = larger(*largest, *x)),
        Reduction::LogSumExp => {
            for ((largest, sum), x) in first.iter_mut().zip(second).zip(numbers) {
                let new = larger(*largest, *x);
                let level = level(new);
                *sum = *sum * exp::<FMA>(*largest - level) + exp::<FMA>(*x - level);
                *largest = new;
            }
        }
        Reduction::ArgMax => {
            for (lane, ((best, index), x)) in first.iter_mut().zip(second).zip(numbers).enumerate() {
                let wins = beats(*x, *best);
                *best = if wins { *x } else { *best };
                *index = if wins { f32::from_bits(row + lane as u32 * step) } else { *index };
            }
        }
    }
}

#[inline(always)]
fn join_loop<const FMA: bool>(kind: Reduction, a: &mut [f32], b: &mut [f32], c: &[f32], d: &[f32]) {
    match kind {
        Reduction::Sum => a.iter_mut().zip(c).for_each(|(sum, x)| *sum += x),
        Reduction::Max => a.iter_mut().zip(c).for_each(|(largest, x)| *largest = larger(*largest, *x)),
        Reduction::LogSumExp => {
            for ((a, b), (c, d)) in a.iter_mut().zip(b).zip(c.iter().zip(d)) {
                let new = larger(*a, *c);
                let level = level(new);
                *b = *b * exp::<FMA>(*a - level) + *d * exp::<FMA>(*c - level);
                *a = new;
            }
        }
        Reduction::ArgMax => {
            for ((a, b), (c, d)) in a.iter_mut().zip(b).zip(c.iter().zip(d)) {
                let tie = *a == *c || (a.is_nan() && c.is_nan());
                if beats(*c, *a) || (tie && d.to_bits() < b.to_bits()) {
                    (*a, *b) = (*c, *d);
                }
            }
        }
    }
}

/// Accumulators a longer row is summed in.
const GROUP: usize = 16;

/// The sum of a row: sixteen lanes side by side, then pairwise halving of the lanes.
#[inline(always)]
fn row_sum(row: &[f32]) -> f32 {
    if row.len() < GROUP {
        return row.iter().sum();
    }
    let mut lanes = [0.0; GROUP];
    let groups = row.chunks_exact(GROUP);
    let rest = groups.remainder();
    for group in groups {
        (0..GROUP).for_each(|lane| lanes[lane] += group[lane]);
    }
    rest.iter().zip(&mut lanes).for_each(|(x, lane)| *lane += x);
    let mut width = GROUP;
    while width > 1 {
        width /= 2;
        (0..width).for_each(|lane| lanes[lane] += lanes[lane + width]);
    }
    lanes[0]
}

#[inline(always)]
fn row_max(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; GROUP];
    let groups = row.chunks_exact(GROUP);
    let rest = groups.remainder();
    for group in groups {
        (0..GROUP).for_each(|lane| lanes[lane] = larger(lanes[lane], group[lane]));
    }
    let start = rest.iter().fold(f32::NEG_INFINITY, |largest, x| larger(largest, *x));
    if row.len() < GROUP { start } else { lanes.iter().fold(start, |largest, x| larger(largest, *x)) }
}

#[inline(always)]
fn rows_loop<const FMA: bool>(kind: Reduction, numbers: &[f32], length: usize, results: &mut [f32]) {
    let rows = numbers.chunks_exact(length);
    match kind {
        Reduction::Sum => results.iter_mut().zip(rows).for_each(|(result, row)| *result = row_sum(row)),
        Reduction::Max => results.iter_mut().zip(rows).for_each(|(result, row)| *result = row_max(row)),
        Reduction::ArgMax => {
            for (result, row) in results.iter_mut().zip(rows) {
                let mut best = (f32::NEG_INFINITY, 0);
                for (i, x) in row.iter().enumerate() {
                    if beats(*x, best.0) {
                        best = (*x, i as u32);
                    }
                }
                *result = f32::from_bits(best.1);
            }
        }
        // Over all rows at once, so that the exponentials fill whole vectors even for short rows.
        Reduction::LogSumExp => {
            let mut shares = [0.0; WIDTH];
            let shares = &mut shares[..numbers.len()];
            for (row, share) in rows.zip(shares.chunks_exact_mut(length)) {
                let level = level(row_max(row));
                share.iter_mut().zip(row).for_each(|(share, x)| *share = x - level);
            }
            shares.iter_mut().for_each(|share| *share = exp::<FMA>(*share));
            results.iter_mut().zip(shares.chunks_exact(length)).for_each(|(result, share)| *result = row_sum(share));
            results.iter_mut().for_each(|result| *result = log::<FMA>(*result));
            results.iter_mut().zip(numbers.chunks_exact(length)).for_each(|(result, row)| *result += level(row_max(row)));
        }
    }
}
