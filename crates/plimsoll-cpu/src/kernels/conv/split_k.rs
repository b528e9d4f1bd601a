//! How the reduction over pixels of a filter gradient is split (split-K), and at which images it can stop and resume.

use super::ConvShape;
use crate::kernels::gemm::WriteMode;
use crate::kernels::gemm::micro_kernel::MAX_COLUMNS;
use crate::kernels::gemm::panel::DEPTH;
use crate::kernels::reduce::power_of_two;
use std::ops::Range;

/// Maximum number of chunks computed in parallel, and the approximate pixels of a chunk.
const CHUNKS: usize = 16;
const CHUNK: usize = 2048;
/// Maximum floats of partial gradients.
const PARTIALS: usize = 1 << 19;
/// Output rows per pass when patches are read in place.
pub(super) const SEGMENTS: usize = 32;

/// How the rows of all output images are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SplitK {
    /// Total rows, rows per period of the split, chunks per period, and rows per chunk.
    rows: usize,
    stretch: usize,
    parts: usize,
    each: usize,
    /// Total number of chunks.
    count: usize,
    /// Maximum number of chunks computed in parallel.
    pub wave: usize,
    /// Whether the first chunk writes the gradient in place.
    pub begins: bool,
}

impl SplitK {
    pub fn new(shape: &ConvShape, write: WriteMode) -> SplitK {
        let rows = shape.batch * shape.out_h;
        let begins = write == WriteMode::Set;
        let Some(wave) = side_by_side(shape) else {
            return SplitK { rows, stretch: rows, parts: 1, each: rows, count: 1, wave: 1, begins };
        };
        let (images, parts) = unit(shape);
        let stretch = images * shape.out_h;
        SplitK { rows, stretch, parts, each: stretch.div_ceil(parts), count: rows.div_ceil(stretch) * parts, wave, begins }
    }

    pub fn range(&self, chunk: usize) -> Range<usize> {
        let (start, part) = (chunk / self.parts * self.stretch, chunk % self.parts);
        let end = (start + self.stretch).min(self.rows);
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

/// Number of chunks of a small filter computed in parallel. None for a large filter, which is not split.
fn side_by_side(shape: &ConvShape) -> Option<usize> {
    Some(CHUNKS.min(PARTIALS / shape.filter_len())).filter(|chunks| *chunks > 1)
}

/// Images per chunk, and chunks per image.
fn unit(shape: &ConvShape) -> (usize, usize) {
    let pixels = shape.out_h * shape.out_w;
    (power_of_two(CHUNK / pixels), (pixels / CHUNK).clamp(1, shape.out_h))
}

/// Whether the gradient can be accumulated over pieces of this many images, bit-identically.
pub(crate) fn sums_resume(shape: &ConvShape, piece: usize) -> bool {
    let pixels = shape.out_h * shape.out_w;
    match side_by_side(shape) {
        _ if shape.is_empty() || shape.pointwise() => false,
        Some(_) => piece.is_multiple_of(unit(shape).0),
        // Accumulated in place; the order depends on the number of pixels or rows.
        None if shape.depthwise() => false,
        None if in_place(shape) => (piece * shape.out_h).is_multiple_of(segments(shape)),
        None => (piece * pixels).is_multiple_of(DEPTH),
    }
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

    /// A gradient that stops at an allowed image and resumes is bit-identical to an uninterrupted one, for any number
    /// of images.
    #[test]
    fn gradients_go_on_where_they_stopped() {
        let same = |in_h: usize, stride: usize| (in_h.div_ceil(stride), 1);
        // Image, channels, filters, window, stride, padded, groups, and the minimum images of a split.
        let cases = [
            (16, 3, 16, 3, 1, true, 1, 8),
            (64, 3, 16, 7, 2, true, 1, 2),
            (70, 2, 5, 3, 1, true, 1, 1),
            (9, 4, 6, 2, 1, false, 2, 32),
            (12, 8, 8, 3, 1, true, 8, 8),
            // Too large for partial gradients: accumulated in place.
            (8, 192, 192, 3, 1, true, 1, 4),
            (6, 4000, 16, 3, 1, false, 1, 8),
        ];
        for (in_h, in_c, out_c, k, stride, padded, groups, least) in cases {
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
            let unit = (1..).find(|piece| sums_resume(&one, *piece)).unwrap();
            assert_eq!(unit, least, "{one:?}");
            let (piece, total) = (unit, 2 * unit + unit.div_ceil(2));
            let (input, gradient) = (noise(shape(total).input_len(), 1), noise(shape(total).output_len(), 2));
            let pool = ThreadPool::new(2).unwrap();
            let grad = |write: WriteMode, images: Range<usize>, grad: &mut [f32]| {
                let own = shape(images.len());
                let mut workspace = vec![f32::NAN; grad_filter_workspace(&own, write, 2)];
                let (x, dy) = (one.input_len(), one.output_len());
                let (x, dy) = (&input[images.start * x..images.end * x], &gradient[images.start * dy..images.end * dy]);
                grad_filter(&pool, &own, write, x.into(), dy.into(), grad, &mut workspace);
            };
            for total in [piece, piece + 1, 2 * piece, total] {
                let (mut whole, mut sum) = (vec![f32::NAN; one.filter_len()], vec![f32::NAN; one.filter_len()]);
                grad(WriteMode::Set, 0..total, &mut whole);
                for start in (0..total).step_by(piece) {
                    let write = if start == 0 { WriteMode::Set } else { WriteMode::Add };
                    grad(write, start..total.min(start + piece), &mut sum);
                }
                assert!(bits(&whole) == bits(&sum), "{total} images of {one:?}");
            }
        }
    }
}
