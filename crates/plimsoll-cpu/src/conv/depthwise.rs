//! Convolutions with one filter per channel: too few multiply-adds per value for a product, so all three passes walk whole pixels, vectorised over channels.

use std::ops::Range;

use super::patches::In;
use super::{ConvShape, SERIAL};
use crate::gemm::{self, Epilogue, Out};
use crate::simd::{Isa, vectorised};
use crate::threads::Pool;

/// `output = input ∗ filter`, one output row per task.
pub(super) fn forward(isa: Isa, pool: &Pool, shape: &ConvShape, input: &[f32], filter: &[f32], output: &mut [f32], epilogue: Epilogue) {
    let output = Out(output.as_mut_ptr());
    let channels = shape.in_c;
    let task = |row: usize, worker: usize| {
        let (image, y) = (row / shape.out_h, row % shape.out_h);
        // SAFETY: rows are different parts of the output.
        let to = unsafe { std::slice::from_raw_parts_mut(output.add(row * shape.out_w * channels), shape.out_w * channels) };
        output_row(isa, shape, image, y, input, filter, to);
        if let Some(finish) = epilogue {
            finish(row * shape.out_w..(row + 1) * shape.out_w, 0..channels, worker);
        }
    };
    gemm::run(pool, shape.work() >= SERIAL / 8, shape.batch * shape.out_h, &task);
}

/// Channels summed in registers over all taps.
const CHANNELS: usize = 64;

vectorised! {
    /// One row of the output.
    fn output_row(shape: &ConvShape, image: usize, y: usize, input: &[f32], filter: &[f32], to: &mut [f32]) {
        let channels = shape.in_c;
        for (x, to) in to.chunks_exact_mut(channels).enumerate() {
            for (block, to) in to.chunks_mut(CHANNELS).enumerate() {
                let start = block * CHANNELS;
                if let Ok(to) = <&mut [f32; CHANNELS]>::try_from(&mut *to) {
                    let mut sums = [0.0; CHANNELS];
                    for_each_tap(shape, image, y, x, |tap, from| {
                        let (a, b) = (&input[from + start..][..CHANNELS], &filter[tap + start..][..CHANNELS]);
                        for lane in 0..CHANNELS {
                            sums[lane] += a[lane] * b[lane];
                        }
                    });
                    *to = sums;
                } else {
                    to.fill(0.0);
                    for_each_tap(shape, image, y, x, |tap, from| {
                        let (a, b) = (&input[from + start..], &filter[tap + start..]);
                        to.iter_mut().zip(a).zip(b).for_each(|((to, a), b)| *to += a * b);
                    });
                }
            }
        }
    }
}

/// The gradient of the input: each image is one task's, whose outputs are walked in order.
pub(super) fn grad_input(isa: Isa, pool: &Pool, shape: &ConvShape, grad_out: &[f32], filter: &[f32], grad_in: &mut [f32]) {
    let channels = shape.in_c;
    let image_len = shape.in_h * shape.in_w * channels;
    let grad_in = Out(grad_in.as_mut_ptr());
    let grad_out = In(grad_out.as_ptr());
    let task = |image: usize, _: usize| {
        // SAFETY: images are different parts of the gradient.
        let to = unsafe { std::slice::from_raw_parts_mut(grad_in.add(image * image_len), image_len) };
        to.fill(0.0);
        for pixel in 0..shape.out_h * shape.out_w {
            // SAFETY: a pixel of this image's output.
            let from =
                unsafe { std::slice::from_raw_parts(grad_out.add((image * shape.out_h * shape.out_w + pixel) * channels), channels) };
            for_each_tap(shape, 0, pixel / shape.out_w, pixel % shape.out_w, |tap, at| {
                add_product(isa, &mut to[at..at + channels], from, &filter[tap..tap + channels]);
            });
        }
    };
    gemm::run(pool, shape.work() >= SERIAL / 8, shape.batch, &task);
}

/// The gradient of the filter over a range of (flattened) output rows.
pub(super) fn grad_filter(isa: Isa, shape: &ConvShape, rows: Range<usize>, input: &[f32], grad_out: &[f32], to: &mut [f32], add: bool) {
    let channels = shape.in_c;
    if !add {
        to.fill(0.0);
    }
    for row in rows {
        for x in 0..shape.out_w {
            let pixel = (row * shape.out_w + x) * channels;
            for_each_tap(shape, row / shape.out_h, row % shape.out_h, x, |tap, from| {
                add_product(isa, &mut to[tap..tap + channels], &input[from..from + channels], &grad_out[pixel..pixel + channels]);
            });
        }
    }
}

/// Visits the taps of an output pixel that are not padding: where the tap begins in the filter and where its pixel begins in the input.
#[inline(always)]
fn for_each_tap(shape: &ConvShape, image: usize, y: usize, x: usize, mut visit: impl FnMut(usize, usize)) {
    for ky in 0..shape.k_h {
        let Some(row) = shape.in_row(y, ky) else { continue };
        for kx in 0..shape.k_w {
            let Some(column) = shape.in_col(x, kx) else { continue };
            visit((ky * shape.k_w + kx) * shape.in_c, ((image * shape.in_h + row) * shape.in_w + column) * shape.in_c);
        }
    }
}

vectorised! {
    /// `to += a · b`, element by element.
    fn add_product(to: &mut [f32], a: &[f32], b: &[f32]) {
        for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
            *to += a * b;
        }
    }
}
