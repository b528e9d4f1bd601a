//! Functions of int8 elements, and reductions.

use super::super::kernels::{axes_of, reduced_places};
use super::super::movement::broadcast_places;
use super::{Elements, Multiplier, QuantizationParameters, Target};
use plimsoll_formats::tflite::{BuiltinOp, Operator};

type Input<'a> = (&'a Elements<i8>, QuantizationParameters);

/// A result for each integer of the input.
fn mapped(x: &Elements<i8>, of: impl Fn(i32) -> i8) -> Elements<i8> {
    let table: Vec<i8> = (-128..128).map(of).collect();
    Elements { shape: x.shape.clone(), numbers: x.numbers.iter().map(|x| table[(i32::from(*x) + 128) as usize]).collect() }
}

/// The same real numbers on another scale.
pub(super) fn requantize((x, affine): Input<'_>, target: Target) -> Elements<i8> {
    let factor = Multiplier::of(f64::from(affine.scale) / f64::from(target.affine.scale));
    mapped(x, |x| target.int8(factor.times(x - affine.zero)))
}

pub(super) fn rectified(op: BuiltinOp, (x, affine): Input<'_>, target: Target) -> Elements<i8> {
    let factor = Multiplier::of(f64::from(affine.scale / target.affine.scale));
    let high = if op == BuiltinOp::Relu6 { target.affine.integer(6.0).min(127) } else { 127 };
    let limited = Target { low: target.affine.zero.max(-128), high, ..target };
    mapped(x, |x| limited.int8(factor.times(x - affine.zero)))
}

pub(super) fn leaky(alpha: f32, (x, affine): Input<'_>, target: Target) -> Elements<i8> {
    let above = Multiplier::of(f64::from(affine.scale / target.affine.scale));
    let below = Multiplier::of(f64::from(affine.scale * alpha / target.affine.scale));
    mapped(x, |x| {
        let x = x - affine.zero;
        target.int8(if x >= 0 { above.times(x) } else { below.times(x) })
    })
}

/// Any function of one element, from a table of its 256 inputs.
pub(super) fn tabulated((x, affine): Input<'_>, target: Target, of: &dyn Fn(f32) -> f32) -> Elements<i8> {
    let inverse = 1.0 / target.affine.scale;
    mapped(x, |x| target.int8((of(affine.scale * (x - affine.zero) as f32) * inverse).round() as i32))
}

/// A function of the integers of two tensors that broadcast to a shape.
fn broadcast(a: &Elements<i8>, b: &Elements<i8>, shape: Vec<usize>, of: impl Fn(i32, i32) -> i8) -> Elements<i8> {
    let of = |a: i8, b: i8| of(i32::from(a), i32::from(b));
    let numbers = if a.shape == shape && b.shape == shape {
        a.numbers.iter().zip(&b.numbers).map(|(a, b)| of(*a, *b)).collect()
    } else {
        let (left, right) = (broadcast_places(&a.shape, &shape), broadcast_places(&b.shape, &shape));
        left.zip(right).map(|(i, j)| of(a.numbers[i], b.numbers[j])).collect()
    };
    Elements { shape, numbers }
}

/// Bits that sums have below the smaller of both scales.
const SUM_BITS: u32 = 20;

/// `ADD` and `SUB`: both sides on twice the larger scale, with more bits.
pub(super) fn sum(op: BuiltinOp, (a, left): Input<'_>, (b, right): Input<'_>, target: Target, shape: Vec<usize>) -> Elements<i8> {
    let twice = f64::from(2.0 * left.scale.max(right.scale));
    let (of_left, of_right) = (Multiplier::of(f64::from(left.scale) / twice), Multiplier::of(f64::from(right.scale) / twice));
    let of_sum = Multiplier::of(twice / (f64::from(1 << SUM_BITS) * f64::from(target.affine.scale)));
    let sign = if op == BuiltinOp::Sub { -1 } else { 1 };
    broadcast(a, b, shape, |a, b| {
        let (a, b) = (of_left.times((a - left.zero) << SUM_BITS), of_right.times((b - right.zero) << SUM_BITS));
        target.int8(of_sum.times(a + sign * b))
    })
}

pub(super) fn product((a, left): Input<'_>, (b, right): Input<'_>, target: Target, shape: Vec<usize>) -> Elements<i8> {
    let factor = Multiplier::of(f64::from(left.scale * right.scale / target.affine.scale));
    broadcast(a, b, shape, |a, b| target.int8(factor.times((a - left.zero) * (b - right.zero))))
}

/// The mean over axes. The factor has the division by the number of elements in it.
pub(super) fn mean((x, affine): Input<'_>, axes: &Elements, target: Target, shape: Vec<usize>) -> Elements<i8> {
    let (places, size) = reduced_places(&x.shape, &axes_of(axes, x.shape.len()));
    let mut sums = vec![0_i32; size];
    x.numbers.iter().zip(places).for_each(|(x, at)| sums[at] += i32::from(*x));
    let count = (x.numbers.len() / size.max(1)).max(1) as i64;
    let whole = Multiplier::of(f64::from(affine.scale) / f64::from(target.affine.scale));
    let shift = (63 - (count as u64).leading_zeros() as i32).min(32).min(31 + whole.exponent);
    let mantissa = ((i64::from(whole.mantissa) << shift) / count) as i32;
    let factor = Multiplier { mantissa, exponent: whole.exponent - shift };
    let numbers = sums.iter().map(|sum| target.int8(factor.times(sum - affine.zero * count as i32))).collect();
    Elements { shape, numbers }
}

/// Softmax from a table of exponentials.
pub(super) fn softmax(operator: &Operator, (x, affine): Input<'_>, target: Target) -> Elements<i8> {
    let beta = match operator.number("beta") {
        0.0 => 1.0,
        beta => beta,
    };
    let step = -affine.scale * beta;
    let exponentials: Vec<f32> = (0..256).map(|below| (step * below as f32).exp()).collect();
    let last = x.shape.last().copied().unwrap_or(1).max(1);
    let mut numbers = Vec::with_capacity(x.numbers.len());
    for row in x.numbers.chunks_exact(last) {
        let most = row.iter().copied().max().unwrap_or(0);
        let below = |x: &i8| exponentials[(i32::from(most) - i32::from(*x)) as usize];
        let sum: f32 = row.iter().map(below).sum();
        let inverse = 1.0 / (sum * target.affine.scale);
        numbers.extend(row.iter().map(|x| target.int8((below(x) * inverse).round() as i32)));
    }
    Elements { shape: x.shape.clone(), numbers }
}
