//! How the reduction over pixels of a filter gradient is split (split-K).
//!
//! A gradient may stop and resume at any image: either it is one chain of additions over all pixels, accumulated in
//! place, or every image is split into chunks by its extents alone, whose sums are added in order.

use super::ConvShape;
use crate::kernels::gemm::WriteMode;
use crate::kernels::gemm::micro_kernel::MAX_COLUMNS;
use crate::kernels::gemm::panel::DEPTH;
use std::ops::Range;

/// Maximum number of chunks computed in parallel, and the approximate pixels of a chunk of a larger image.
const CHUNKS: usize = 16;
const CHUNK: usize = 2048;
/// Minimum pixels of a chunk: gradients of smaller images would spend their time adding sums.
const LEAST: usize = 512;
/// The same for a depthwise convolution, whose filter is small.
const LEAST_DEPTHWISE: usize = 128;
/// Maximum floats of partial gradients.
const PARTIALS: usize = 1 << 19;
/// Output rows per pass when patches are read in place.
pub(super) const SEGMENTS: usize = 32;

/// How the rows of all output images are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SplitK {
    /// Total rows, rows of an image, chunks per image, and rows per chunk.
    rows: usize,
    image: usize,
    parts: usize,
    each: usize,
    /// Total number of chunks.
    count: usize,
    /// Maximum number of chunks computed in parallel; one if the gradient is not split.
    pub wave: usize,
    /// Whether the first chunk writes the gradient in place.
    pub begins: bool,
}

impl SplitK {
    pub fn new(shape: &ConvShape, write: WriteMode) -> SplitK {
        let rows = shape.batch * shape.out_h;
        let begins = write == WriteMode::Set;
        let Some(wave) = side_by_side(shape) else {
            return SplitK { rows, image: rows, parts: 1, each: rows, count: 1, wave: 1, begins };
        };
        let parts = (shape.out_h * shape.out_w / CHUNK).clamp(1, shape.out_h);
        let each = shape.out_h.div_ceil(parts);
        SplitK { rows, image: shape.out_h, parts, each, count: shape.batch * parts, wave, begins }
    }

    pub fn range(&self, chunk: usize) -> Range<usize> {
        let (start, part) = (chunk / self.parts * self.image, chunk % self.parts);
        let end = (start + self.image).min(self.rows);
        (start + part * self.each).min(end)..(start + (part + 1) * self.each).min(end)
    }

    /// Number of partial gradients that are live at once.
    pub fn partials(&self) -> usize {
        if self.wave == 1 { 0 } else { (self.count - usize::from(self.begins)).min(self.wave - 1) }
    }

    /// The chunks of each wave, in order: the first may be written in place, all others are partial gradients.
    pub fn waves(self) -> impl Iterator<Item = Range<usize>> {
        let first = if self.begins { 1 + self.partials() } else { self.partials().max(1) };
        let mut start = 0;
        std::iter::from_fn(move || {
            let end = self.count.min(start + if start == 0 { first } else { self.partials() });
            let wave = start..end;
            start = end;
            (!wave.is_empty()).then_some(wave)
        })
    }
}

/// Number of chunks of a small filter over large images computed in parallel. None for other gradients, which are not
/// split.
fn side_by_side(shape: &ConvShape) -> Option<usize> {
    let least = if shape.depthwise() { LEAST_DEPTHWISE } else { LEAST };
    let chunks = CHUNKS.min(PARTIALS / shape.filter_len());
    (chunks > 1 && shape.out_h * shape.out_w >= least).then_some(chunks)
}

/// Whether patches in single precision are read in place.
pub(super) fn in_place(shape: &ConvShape) -> bool {
    !shape.padded() && shape.group_out() <= MAX_COLUMNS
}

/// Output rows per pass in that case.
pub(super) fn segments(shape: &ConvShape) -> usize {
    (2 * DEPTH / shape.out_w).clamp(1, SEGMENTS)
}

#[cfg(test)]
mod tests {
    use super::super::{grad_filter, grad_filter_workspace};
    use super::*;
    use crate::runtime::threads::ThreadPool;

    fn noise(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + seed * 104_729) % 10_007) as f32 / 5000.0 - 1.0).collect()
    }

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|x| x.to_bits()).collect()
    }

    /// A gradient that stops at any image and resumes is bit-identical to an uninterrupted one, at any number of
    /// threads.
    #[test]
    fn gradients_resume_at_every_image() {
        let same = |in_h: usize, stride: usize| (in_h.div_ceil(stride), 1);
        // Image, channels, filters, window, stride, padded, groups, and whether images are split.
        let cases = [
            (16, 3, 16, 3, 1, true, 1, false),
            (64, 3, 16, 7, 2, true, 1, true),
            (70, 2, 5, 3, 1, true, 1, true),
            (24, 5, 60, 3, 1, false, 1, false),
            (9, 4, 6, 2, 1, false, 2, false),
            (28, 4, 6, 2, 1, false, 2, true),
            (7, 70, 70, 3, 1, true, 70, false),
            (7, 6, 18, 3, 2, true, 6, false),
            (12, 8, 8, 3, 1, true, 8, true),
            (9, 8, 6, 1, 1, false, 1, false),
            (30, 8, 6, 1, 1, false, 1, false),
            // Too large for partial gradients: accumulated in place.
            (8, 192, 192, 3, 1, true, 1, false),
            (6, 4000, 16, 3, 1, false, 1, false),
        ];
        for (in_h, in_c, out_c, k, stride, padded, groups, split) in cases {
            let (out_h, pad) = if padded { same(in_h, stride) } else { ((in_h - k) / stride + 1, 0) };
            let shape = |batch: usize| ConvShape {
                batch,
                in_h,
                in_w: in_h,
                in_c,
                out_h,
                out_w: out_h,
                out_c,
                k_h: k,
                k_w: k,
                stride: (stride, stride),
                pad: (pad, pad),
                dilation: (1, 1),
                groups,
            };
            let one = shape(1);
            assert_eq!(side_by_side(&one).is_some() && !one.pointwise(), split, "{one:?}");
            let total = 5;
            let (input, gradient) = (noise(shape(total).input_len(), 1), noise(shape(total).output_len(), 2));
            let grad = |threads: usize, cuts: &[usize]| {
                let pool = ThreadPool::new(threads).unwrap();
                let mut sum = vec![f32::NAN; one.filter_len()];
                for images in cuts.windows(2).map(|cut| cut[0]..cut[1]) {
                    let own = shape(images.len());
                    let write = if images.start == 0 { WriteMode::Set } else { WriteMode::Add };
                    let mut workspace = vec![f32::NAN; grad_filter_workspace(&own, write, threads)];
                    let (x, dy) = (one.input_len(), one.output_len());
                    let (x, dy) = (&input[images.start * x..images.end * x], &gradient[images.start * dy..images.end * dy]);
                    grad_filter(&pool, &own, write, x.into(), dy.into(), &mut sum, &mut workspace);
                }
                bits(&sum)
            };
            let whole = grad(2, &[0, total]);
            for cuts in [&[0, 5][..], &[0, 1, 2, 3, 4, 5], &[0, 2, 4, 5], &[0, 3, 5]] {
                assert!(whole == grad(1, cuts) && whole == grad(3, cuts), "{cuts:?} of {one:?}");
            }
        }
    }
}
