//! Convolutions with one filter per channel: too few multiply-adds per value for a product, so all three passes walk whole pixels, vectorised over channels.
//! What has two bytes is widened a few channels at a time.

use std::ops::Range;

use super::patches::InHalves;
use super::target::{Shared, Target};
use super::{ConvShape, SERIAL};
use crate::gemm::{self, LINE, Out};
use crate::simd::{Isa, vectorised};
use crate::stored::Reals;
use crate::threads::Pool;

/// Floats of workspace for results that are not stored as floats: a row of `row` for each thread.
pub(super) fn workspace(halves: InHalves, row: usize, threads: usize) -> usize {
    if halves.output { row.next_multiple_of(LINE) * threads.max(1) + LINE } else { 0 }
}

/// Rows that are finished where they belong, or in a worker's scratch.
struct Rows<'a> {
    target: Shared<'a>,
    scratch: Out,
    /// Pixels of a row, and channels of a pixel.
    extents: (usize, usize),
}

impl Rows<'_> {
    fn new<'a>(target: Target<'a>, workspace: &mut [f32], extents: (usize, usize)) -> Rows<'a> {
        let scratch = if target.is_blocks() { gemm::aligned(workspace) } else { Out(workspace.as_mut_ptr()) };
        Rows { target: target.shared(), scratch, extents }
    }

    /// Has a row filled in, and hands it on.
    ///
    /// # Safety
    /// The row is one task's own and lies inside the target, and the scratch is that of [`workspace`] for such rows.
    unsafe fn fill(&self, row: usize, worker: usize, fill: impl FnOnce(&mut [f32])) {
        let (pixels, channels) = self.extents;
        let length = pixels * channels;
        // SAFETY: the caller's promise.
        unsafe {
            let start = match self.target.floats() {
                Some(output) => output.add(row * length),
                None => self.scratch.add(worker * length.next_multiple_of(LINE)),
            };
            fill(std::slice::from_raw_parts_mut(start, length));
            self.target.finish(row * pixels..(row + 1) * pixels, 0..channels, start, worker);
        }
    }
}

/// `output = input ∗ filter`, one output row per task.
pub(super) fn forward(
    isa: Isa,
    pool: &Pool,
    shape: &ConvShape,
    input: Reals<'_>,
    filter: Reals<'_>,
    target: Target<'_>,
    workspace: &mut [f32],
) {
    let rows = Rows::new(target, workspace, (shape.out_w, shape.out_c));
    let task = |row: usize, worker: usize| {
        let (image, y) = (row / shape.out_h, row % shape.out_h);
        // SAFETY: rows are different parts of the output.
        unsafe { rows.fill(row, worker, |to| output_row(isa, isa, shape, image, y, input, filter, to)) };
    };
    gemm::run(pool, shape.work() >= SERIAL / 8, shape.batch * shape.out_h, &task);
}

/// Channels summed in registers over all taps.
const CHANNELS: usize = 64;

vectorised! {
    /// One row of the output.
    fn output_row(family: Isa, shape: &ConvShape, image: usize, y: usize, input: Reals<'_>, filter: Reals<'_>, to: &mut [f32]) {
        let channels = shape.in_c;
        let (mut a_room, mut b_room) = ([0.0; CHANNELS], [0.0; CHANNELS]);
        for (x, to) in to.chunks_exact_mut(channels).enumerate() {
            for (block, to) in to.chunks_mut(CHANNELS).enumerate() {
                let (start, count) = (block * CHANNELS, to.len());
                if let Ok(to) = <&mut [f32; CHANNELS]>::try_from(&mut *to) {
                    let mut sums = [0.0; CHANNELS];
                    for_each_tap(shape, image, y, x, |tap, from| {
                        // SAFETY: the channels of a pixel of the input and of a tap.
                        let (a, b) = unsafe {
                            (input.fetch(family, from + start, CHANNELS, &mut a_room), filter.fetch(family, tap + start, CHANNELS, &mut b_room))
                        };
                        let (a, b) = (&a[..CHANNELS], &b[..CHANNELS]);
                        for lane in 0..CHANNELS {
                            sums[lane] += a[lane] * b[lane];
                        }
                    });
                    *to = sums;
                } else {
                    to.fill(0.0);
                    for_each_tap(shape, image, y, x, |tap, from| {
                        // SAFETY: as above.
                        let (a, b) = unsafe {
                            (input.fetch(family, from + start, count, &mut a_room), filter.fetch(family, tap + start, count, &mut b_room))
                        };
                        to.iter_mut().zip(a).zip(b).for_each(|((to, a), b)| *to += a * b);
                    });
                }
            }
        }
    }
}

/// The gradient of the input: each input row is one task's, whose pixels gather from the outputs they are read by.
pub(super) fn grad_input(
    isa: Isa,
    pool: &Pool,
    shape: &ConvShape,
    grad_out: Reals<'_>,
    filter: Reals<'_>,
    target: Target<'_>,
    workspace: &mut [f32],
) {
    let rows = Rows::new(target, workspace, (shape.in_w, shape.in_c));
    let task = |row: usize, worker: usize| {
        let (image, y) = (row / shape.in_h, row % shape.in_h);
        // SAFETY: rows are different parts of the gradient.
        unsafe { rows.fill(row, worker, |to| input_row(isa, isa, shape, image, y, grad_out, filter, to)) };
    };
    gemm::run(pool, shape.work() >= SERIAL / 8, shape.batch * shape.in_h, &task);
}

vectorised! {
    /// One row of the input's gradient.
    fn input_row(family: Isa, shape: &ConvShape, image: usize, y: usize, grad_out: Reals<'_>, filter: Reals<'_>, to: &mut [f32]) {
        let channels = shape.in_c;
        let (mut a_room, mut b_room) = ([0.0; CHANNELS], [0.0; CHANNELS]);
        for (x, to) in to.chunks_exact_mut(channels).enumerate() {
            for (block, to) in to.chunks_mut(CHANNELS).enumerate() {
                let (start, count) = (block * CHANNELS, to.len());
                to.fill(0.0);
                for ky in 0..shape.k_h {
                    let Some(oy) = reader(y + shape.pad.0, ky * shape.dilation.0, shape.stride.0, shape.out_h) else { continue };
                    for kx in 0..shape.k_w {
                        let Some(ox) = reader(x + shape.pad.1, kx * shape.dilation.1, shape.stride.1, shape.out_w) else { continue };
                        let from = ((image * shape.out_h + oy) * shape.out_w + ox) * channels + start;
                        let tap = (ky * shape.k_w + kx) * channels + start;
                        // SAFETY: the channels of a pixel of the output and of a tap.
                        let (a, b) = unsafe { (grad_out.fetch(family, from, count, &mut a_room), filter.fetch(family, tap, count, &mut b_room)) };
                        to.iter_mut().zip(a).zip(b).for_each(|((to, a), b)| *to += a * b);
                    }
                }
            }
        }
    }
}

/// The output coordinate that reads a padded input coordinate through a tap at this distance.
#[inline(always)]
fn reader(padded: usize, tap: usize, stride: usize, extent: usize) -> Option<usize> {
    let distance = padded.checked_sub(tap)?;
    (distance.is_multiple_of(stride) && distance / stride < extent).then_some(distance / stride)
}

/// The gradient of the filter over a range of (flattened) output rows.
pub(super) fn grad_filter(
    isa: Isa,
    shape: &ConvShape,
    rows: Range<usize>,
    input: Reals<'_>,
    grad_out: Reals<'_>,
    to: &mut [f32],
    add: bool,
) {
    let channels = shape.in_c;
    if !add {
        to.fill(0.0);
    }
    let (mut a_room, mut b_room) = ([0.0; CHANNELS], [0.0; CHANNELS]);
    // What is widened has room for a few channels only.
    let most = if input.is_half() || grad_out.is_half() { CHANNELS } else { channels };
    for row in rows {
        for x in 0..shape.out_w {
            let pixel = (row * shape.out_w + x) * channels;
            for start in (0..channels).step_by(most) {
                let count = most.min(channels - start);
                // SAFETY: the channels of a pixel of the output, and below of one of the input.
                let b = unsafe { grad_out.fetch(isa, pixel + start, count, &mut b_room) };
                for_each_tap(shape, row / shape.out_h, row % shape.out_h, x, |tap, from| {
                    // SAFETY: as above.
                    let a = unsafe { input.fetch(isa, from + start, count, &mut a_room) };
                    add_product(isa, &mut to[tap + start..tap + start + count], a, b);
                });
            }
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
