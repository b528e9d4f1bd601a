//! Convolutions with one filter per channel: too few multiply-adds per value for a product, so all three passes walk whole pixels, vectorised over channels.

use std::ops::Range;

use super::patches::In;
use super::{ConvShape, SERIAL};
use crate::gemm::{self, Epilogue, Out};
use crate::simd::Isa;
use crate::threads::Pool;

/// `output = input ∗ filter`, one output row per task.
pub(super) fn forward(isa: Isa, pool: &Pool, shape: &ConvShape, input: &[f32], filter: &[f32], output: &mut [f32], epilogue: Epilogue) {
    let output = Out(output.as_mut_ptr());
    let channels = shape.in_c;
    let task = |row: usize, worker: usize| {
        let (image, y) = (row / shape.out_h, row % shape.out_h);
        for x in 0..shape.out_w {
            let pixel = row * shape.out_w + x;
            // SAFETY: pixels of different rows are different parts of the output.
            let to = unsafe { std::slice::from_raw_parts_mut(output.add(pixel * channels), channels) };
            to.fill(0.0);
            for_each_tap(shape, image, y, x, |tap, from| add_product(isa, to, &input[from..from + channels], &filter[tap..tap + channels]));
        }
        if let Some(finish) = epilogue {
            finish(row * shape.out_w..(row + 1) * shape.out_w, 0..channels, worker);
        }
    };
    gemm::run(pool, shape.work() >= SERIAL / 8, shape.batch * shape.out_h, &task);
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

/// `to += a · b`, element by element.
#[inline(always)]
fn add_product(isa: Isa, to: &mut [f32], a: &[f32], b: &[f32]) {
    #[inline(always)]
    fn plain(to: &mut [f32], a: &[f32], b: &[f32]) {
        for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
            *to += a * b;
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2(to: &mut [f32], a: &[f32], b: &[f32]) {
        plain(to, a, b);
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn avx512(to: &mut [f32], a: &[f32], b: &[f32]) {
        plain(to, a, b);
    }
    match isa {
        // SAFETY: the public functions of this module's parent check that the processor has `isa`.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(to, a, b) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(to, a, b) },
        _ => plain(to, a, b),
    }
}
