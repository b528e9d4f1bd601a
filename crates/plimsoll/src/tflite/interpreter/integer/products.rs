//! Matrix products of int8.

use super::super::kernels::transposed;
use super::{Elements, Multiplier, QuantizationParameters, Target, multipliers, scale_of};
use plimsoll_formats::tflite::{Operator, TfliteTensor};

/// The scalar product; both sides fit into 16 bits, so that pairs are multiplied and added by one instruction.
pub(super) fn dot(a: &[i16], b: &[i16]) -> i32 {
    a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

/// Integers of an input with zero at zero.
pub(super) fn centred(x: &[i8], zero: i32) -> Vec<i16> {
    x.iter().map(|x| i16::from(*x) - zero as i16).collect()
}

pub(super) fn widened(weights: &[i8], wide: &mut [i16]) {
    wide.iter_mut().zip(weights).for_each(|(wide, weight)| *wide = i16::from(*weight));
}

pub(super) fn fully_connected(
    (x, affine): (&Elements<i8>, QuantizationParameters),
    (kernel, weights): (&Elements<i8>, &TfliteTensor),
    bias: Option<&[i32]>,
    target: Target,
    shape: Vec<usize>,
) -> Elements<i8> {
    let (units, features) = (kernel.shape[0], kernel.shape[1]);
    let factors = multipliers(affine, weights, units, target);
    let rows = centred(&x.numbers, affine.zero);
    let mut numbers = vec![0; shape.iter().product()];
    let mut wide = vec![0; features];
    for unit in 0..units {
        widened(&kernel.numbers[unit * features..][..features], &mut wide);
        let offset = bias.map_or(0, |bias| bias[unit]);
        for (row, results) in rows.chunks_exact(features).zip(numbers.chunks_exact_mut(units)) {
            results[unit] = target.int8(factors[unit].times_once(dot(row, &wide).wrapping_add(offset)));
        }
    }
    Elements { shape, numbers }
}

pub(super) fn batch_matmul(
    operator: &Operator,
    (a, left): (&Elements<i8>, QuantizationParameters),
    (b, right): (&Elements<i8>, QuantizationParameters),
    target: Target,
    shape: Vec<usize>,
) -> Elements<i8> {
    let factor = Multiplier::of(f64::from(left.scale * right.scale) / f64::from(target.affine.scale));
    let depth = a.shape[a.shape.len() - if operator.integer("adj_x") != 0 { 2 } else { 1 }];
    let lefts = centred(&transposed(a, operator.integer("adj_x") != 0), left.zero);
    let rights = centred(&transposed(b, operator.integer("adj_y") == 0), right.zero);
    let (rows, columns) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let batches: usize = shape[..shape.len() - 2].iter().product();
    let mut numbers = Vec::with_capacity(batches * rows * columns);
    // One matrix serves all of the batch where the other has more.
    let (of_left, of_right) = (lefts.len() / (rows * depth), rights.len() / (columns * depth));
    for batch in 0..batches {
        let left = &lefts[(batch % of_left) * rows * depth..][..rows * depth];
        let right = &rights[(batch % of_right) * columns * depth..][..columns * depth];
        for row in left.chunks_exact(depth) {
            numbers.extend(right.chunks_exact(depth).map(|column| target.int8(factor.times(dot(row, column)))));
        }
    }
    Elements { shape, numbers }
}

/// Real numbers as int8 with a scale that is found now; the range includes zero.
pub(super) fn quantized(numbers: &[f32]) -> (Vec<i16>, f32) {
    let (low, high) = numbers.iter().fold((0.0_f32, 0.0_f32), |(low, high), number| (low.min(*number), high.max(*number)));
    if low == high {
        return (vec![0; numbers.len()], 1.0);
    }
    let (low, high) = (f64::from(low), f64::from(high));
    let scale = (high - low) / 255.0;
    // The end of the range that loses less gives the zero point.
    let (from_low, from_high) = (-128.0 - low / scale, 127.0 - high / scale);
    let zero = if 128.0 + (low / scale).abs() < 127.0 + (high / scale).abs() { from_low } else { from_high };
    let zero = zero.round().clamp(-128.0, 127.0) as i32;
    let inverse = 1.0 / scale as f32;
    let integer = |number: &f32| (((zero as f32 + number * inverse).round() as i32).clamp(-128, 127) - zero) as i16;
    (numbers.iter().map(integer).collect(), scale as f32)
}

/// Weights in int8, inputs and results as real numbers: every row of the input gets a scale of its own.
pub(super) fn hybrid(x: &Elements, (kernel, weights): (&Elements<i8>, &TfliteTensor), bias: Option<&[f32]>, shape: Vec<usize>) -> Elements {
    let (units, features) = (kernel.shape[0], kernel.shape[1]);
    let rows: Vec<(Vec<i16>, f32)> = x.numbers.chunks_exact(features).map(quantized).collect();
    let mut numbers = vec![0.0; shape.iter().product()];
    let mut wide = vec![0; features];
    for unit in 0..units {
        widened(&kernel.numbers[unit * features..][..features], &mut wide);
        let (scale, offset) = (scale_of(weights, unit) as f32, bias.map_or(0.0, |bias| bias[unit]));
        for ((row, of_row), results) in rows.iter().zip(numbers.chunks_exact_mut(units)) {
            results[unit] = dot(row, &wide) as f32 * of_row * scale + offset;
        }
    }
    Elements { shape, numbers }
}
