//! Max and average pooling over NHWC tensors, and their gradients.
//!
//! In 16 bits, a few channels at a time are widened, summed or compared in single precision, and rounded once. A
//! maximum is stored as one byte, its position in the window: the backward pass needs neither input nor output.

use crate::kernels::gemm::run;
use crate::runtime::threads::ThreadPool;
use crate::simd::float_view::{FloatView, HalfViewMut};
use crate::simd::{Isa, vectorised};

/// The extents of a pooling. Pairs are `(height, width)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolShape {
    /// Images.
    pub batch: usize,
    /// Input height.
    pub in_h: usize,
    /// Input width.
    pub in_w: usize,
    /// Channels of input and output.
    pub channels: usize,
    /// Output height.
    pub out_h: usize,
    /// Output width.
    pub out_w: usize,
    /// The window.
    pub window: (usize, usize),
    /// Input pixels between neighboring windows.
    pub stride: (usize, usize),
    /// Padding above and to the left; that below and to the right follows from the output's extents.
    pub pad: (usize, usize),
}

/// The position of a maximum over a window entirely in the padding; its value is zero.
pub const NO_POSITION: u8 = u8::MAX;

/// Minimum output elements per task; smaller poolings run on the caller's thread.
const GRAIN: usize = 1 << 13;

impl PoolShape {
    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        self.batch * self.in_h * self.in_w * self.channels
    }

    /// Elements of the output, and of the positions of maxima.
    pub fn output_len(&self) -> usize {
        self.batch * self.out_h * self.out_w * self.channels
    }

    fn check(&self, input: usize, output: usize) {
        let product = |factors: [usize; 4]| factors.iter().try_fold(1usize, |product, factor| product.checked_mul(*factor));
        // Wrapped lengths could equal those of the slices.
        let fits = product([self.batch, self.in_h, self.in_w, self.channels]).is_some()
            && product([self.batch, self.out_h, self.out_w, self.channels]).is_some();
        assert!(fits, "the extents of {self:?} exceed the address space");
        assert!(self.stride.0 > 0 && self.stride.1 > 0, "strides are positive: {self:?}");
        assert_eq!(input, self.input_len(), "the input of {self:?}");
        assert_eq!(output, self.output_len(), "the output of {self:?}");
    }

    /// Visits the positions of a window that are not padding: index inside of the window, and the pixel's offset in its
    /// image.
    #[inline(always)]
    fn for_each_position(&self, y: usize, x: usize, mut visit: impl FnMut(usize, usize)) {
        for ky in 0..self.window.0 {
            let Some(row) = (y * self.stride.0 + ky).checked_sub(self.pad.0).filter(|&row| row < self.in_h) else { continue };
            for kx in 0..self.window.1 {
                let Some(column) = (x * self.stride.1 + kx).checked_sub(self.pad.1).filter(|&column| column < self.in_w) else { continue };
                visit(ky * self.window.1 + kx, (row * self.in_w + column) * self.channels);
            }
        }
    }

    /// Calls `pixel(image, y, x, output offset)` for all pixels; output rows are distributed over the pool.
    fn for_each_pixel(&self, pool: &ThreadPool, pixel: impl Fn(usize, usize, usize, usize) + Sync) {
        let rows = self.batch * self.out_h;
        let each = GRAIN.div_ceil((self.out_w * self.channels).max(1));
        run(pool, self.output_len() > 2 * GRAIN, rows.div_ceil(each), &|task, _| {
            for row in task * each..rows.min((task + 1) * each) {
                for x in 0..self.out_w {
                    pixel(row / self.out_h, row % self.out_h, x, (row * self.out_w + x) * self.channels);
                }
            }
        });
    }

    /// Calls `image(index, gradient of the image's input)` for all images; the windows of one image may overlap, so
    /// each image is one task.
    fn for_each_image(&self, pool: &ThreadPool, grad_in: &mut [f32], image: impl Fn(usize, &mut [f32]) + Sync) {
        let len = self.in_h * self.in_w * self.channels;
        let grad_in = DisjointSlices(grad_in.as_mut_ptr());
        run(pool, self.output_len() > 2 * GRAIN, self.batch, &|index, _| {
            // SAFETY: images are disjoint parts of the gradient, whose length was checked.
            image(index, unsafe { grad_in.slice(index * len, len) });
        });
    }

    fn image_of<'a, T>(&self, tensor: &'a [T], image: usize) -> &'a [T] {
        let len = tensor.len() / self.batch;
        &tensor[image * len..(image + 1) * len]
    }
}

/// A pointer through which tasks write disjoint parts.
#[derive(Clone, Copy)]
struct DisjointSlices<T>(*mut T);

// SAFETY: users take disjoint slices, one task each.
unsafe impl<T: Send> Send for DisjointSlices<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for DisjointSlices<T> {}

impl<T> DisjointSlices<T> {
    /// # Safety
    ///
    /// The range is inside of the original slice, and no other slice in use at the same time overlaps it.
    #[allow(clippy::mut_from_ref)]
    unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Channels widened at a time.
const CHANNELS: usize = 64;

/// Like [`max_pool`], in 16 bits.
///
/// # Panics
/// Same as [`max_pool`].
pub fn max_pool_halves(pool: &ThreadPool, shape: &PoolShape, input: FloatView<'_>, output: HalfViewMut<'_>, positions: &mut [u8]) {
    shape.check(input.len, output.len);
    assert_eq!(positions.len(), output.len, "the positions of {shape:?}");
    assert!(shape.window.0 * shape.window.1 <= usize::from(NO_POSITION), "a window of at most 255 elements: {shape:?}");
    let isa = Isa::best();
    let positions = DisjointSlices(positions.as_mut_ptr());
    let image_len = shape.in_h * shape.in_w * shape.channels;
    shape.for_each_pixel(pool, |image, y, x, at| {
        let (mut best, mut buffer) = ([0.0; CHANNELS], [0.0; CHANNELS]);
        for start in (0..shape.channels).step_by(CHANNELS) {
            let count = CHANNELS.min(shape.channels - start);
            let best = &mut best[..count];
            best.fill(0.0);
            // SAFETY: every pixel is visited once, and is inside of the tensors.
            unsafe {
                let positions = positions.slice(at + start, count);
                positions.fill(NO_POSITION);
                shape.for_each_position(y, x, |position, from| {
                    let values = input.fetch(isa, image * image_len + from + start, count, &mut buffer);
                    larger(isa, best, positions, values, position as u8);
                });
                output.store(isa, at + start, best);
            }
        }
    });
}

/// Like [`average_pool`], in 16 bits.
///
/// # Panics
/// Same as [`average_pool`].
pub fn average_pool_halves(pool: &ThreadPool, shape: &PoolShape, input: FloatView<'_>, output: HalfViewMut<'_>) {
    shape.check(input.len, output.len);
    let isa = Isa::best();
    let image_len = shape.in_h * shape.in_w * shape.channels;
    shape.for_each_pixel(pool, |image, y, x, at| {
        let (mut sum, mut buffer) = ([0.0; CHANNELS], [0.0; CHANNELS]);
        for start in (0..shape.channels).step_by(CHANNELS) {
            let count = CHANNELS.min(shape.channels - start);
            let sum = &mut sum[..count];
            sum.fill(0.0);
            let mut members = 0.0f32;
            // SAFETY: every pixel is visited once, and is inside of the tensors.
            unsafe {
                shape.for_each_position(y, x, |_, from| {
                    members += 1.0;
                    add_scaled(isa, sum, input.fetch(isa, image * image_len + from + start, count, &mut buffer), 1.0);
                });
                let scale = 1.0 / members.max(1.0);
                sum.iter_mut().for_each(|sum| *sum *= scale);
                output.store(isa, at + start, sum);
            }
        }
    });
}

/// Like [`max_pool_grad`], in 16 bits: every pixel gathers, so that sums are rounded once.
///
/// # Panics
/// Same as [`max_pool_grad`].
pub fn max_pool_grad_halves(pool: &ThreadPool, shape: &PoolShape, grad_out: FloatView<'_>, positions: &[u8], grad_in: HalfViewMut<'_>) {
    shape.check(grad_in.len, grad_out.len);
    assert_eq!(positions.len(), grad_out.len, "the positions of {shape:?}");
    let isa = Isa::best();
    gather(isa, pool, shape, grad_out, grad_in, |sum, position, values, at, _| {
        scatter(isa, sum, values, &positions[at..at + values.len()], position as u8);
    });
}

/// Like [`average_pool_grad`], in 16 bits: every pixel gathers, so that sums are rounded once.
///
/// # Panics
/// Same as [`average_pool_grad`].
pub fn average_pool_grad_halves(pool: &ThreadPool, shape: &PoolShape, grad_out: FloatView<'_>, grad_in: HalfViewMut<'_>) {
    shape.check(grad_in.len, grad_out.len);
    let isa = Isa::best();
    gather(isa, pool, shape, grad_out, grad_in, |sum, _, values, _, (y, x)| {
        let mut members = 0.0f32;
        shape.for_each_position(y, x, |_, _| members += 1.0);
        add_scaled(isa, sum, values, 1.0 / members.max(1.0));
    });
}

/// For every input pixel and each window that covers it, calls `add` with the sum so far, the pixel's position in the
/// window, the window's gradients, their offset, and the window's coordinates.
fn gather(
    isa: Isa,
    pool: &ThreadPool,
    shape: &PoolShape,
    grad_out: FloatView<'_>,
    grad_in: HalfViewMut<'_>,
    add: impl Fn(&mut [f32], usize, &[f32], usize, (usize, usize)) + Sync,
) {
    // The window `out` that covers a padded coordinate at this position.
    let window = |padded: usize, place: usize, stride: usize, extent: usize| {
        let distance = padded.checked_sub(place)?;
        (distance.is_multiple_of(stride) && distance / stride < extent).then_some(distance / stride)
    };
    let rows = shape.batch * shape.in_h;
    run(pool, shape.input_len() > 2 * GRAIN, rows, &|row, _| {
        let (image, y) = (row / shape.in_h, row % shape.in_h);
        let (mut sum, mut buffer) = ([0.0; CHANNELS], [0.0; CHANNELS]);
        for x in 0..shape.in_w {
            for start in (0..shape.channels).step_by(CHANNELS) {
                let count = CHANNELS.min(shape.channels - start);
                let sum = &mut sum[..count];
                sum.fill(0.0);
                for ky in 0..shape.window.0 {
                    let Some(v) = window(y + shape.pad.0, ky, shape.stride.0, shape.out_h) else { continue };
                    for kx in 0..shape.window.1 {
                        let Some(u) = window(x + shape.pad.1, kx, shape.stride.1, shape.out_w) else { continue };
                        let at = ((image * shape.out_h + v) * shape.out_w + u) * shape.channels + start;
                        // SAFETY: channels of a pixel of the output.
                        let values = unsafe { grad_out.fetch(isa, at, count, &mut buffer) };
                        add(sum, ky * shape.window.1 + kx, values, at, (v, u));
                    }
                }
                // SAFETY: every input pixel belongs to exactly one task.
                unsafe { grad_in.store(isa, (row * shape.in_w + x) * shape.channels + start, sum) };
            }
        }
    });
}

/// The maximum of each window and its position in the window, row-major. Padding never wins, the first of equal
/// elements does, and NaN wins over all.
///
/// # Panics
///
/// If a slice does not have the length of the shape, or the window has more than 255 elements.
pub fn max_pool(pool: &ThreadPool, shape: &PoolShape, input: &[f32], output: &mut [f32], positions: &mut [u8]) {
    shape.check(input.len(), output.len());
    assert_eq!(positions.len(), output.len(), "the positions of {shape:?}");
    assert!(shape.window.0 * shape.window.1 <= usize::from(NO_POSITION), "a window of at most 255 elements: {shape:?}");
    let isa = Isa::best();
    let channels = shape.channels;
    let (output, positions) = (DisjointSlices(output.as_mut_ptr()), DisjointSlices(positions.as_mut_ptr()));
    shape.for_each_pixel(pool, |image, y, x, at| {
        // SAFETY: every pixel is visited once.
        let (best, positions) = unsafe { (output.slice(at, channels), positions.slice(at, channels)) };
        let input = shape.image_of(input, image);
        best.fill(0.0);
        positions.fill(NO_POSITION);
        shape.for_each_position(y, x, |position, from| larger(isa, best, positions, &input[from..from + channels], position as u8));
    });
}

/// The gradient of [`max_pool`]: each output's gradient goes to the position of its maximum.
///
/// # Panics
///
/// If a slice does not have the length of the shape.
pub fn max_pool_grad(pool: &ThreadPool, shape: &PoolShape, grad_out: &[f32], positions: &[u8], grad_in: &mut [f32]) {
    shape.check(grad_in.len(), grad_out.len());
    assert_eq!(positions.len(), grad_out.len(), "the positions of {shape:?}");
    let isa = Isa::best();
    let channels = shape.channels;
    shape.for_each_image(pool, grad_in, |image, grad_in| {
        let (grad_out, positions) = (shape.image_of(grad_out, image), shape.image_of(positions, image));
        grad_in.fill(0.0);
        for pixel in 0..shape.out_h * shape.out_w {
            let range = pixel * channels..(pixel + 1) * channels;
            shape.for_each_position(pixel / shape.out_w, pixel % shape.out_w, |position, to| {
                scatter(isa, &mut grad_in[to..to + channels], &grad_out[range.clone()], &positions[range.clone()], position as u8);
            });
        }
    });
}

/// The mean of each window over elements that are not padding; zero if there are none.
///
/// # Panics
///
/// If a slice does not have the length of the shape.
pub fn average_pool(pool: &ThreadPool, shape: &PoolShape, input: &[f32], output: &mut [f32]) {
    shape.check(input.len(), output.len());
    let isa = Isa::best();
    let channels = shape.channels;
    let output = DisjointSlices(output.as_mut_ptr());
    shape.for_each_pixel(pool, |image, y, x, at| {
        // SAFETY: every pixel is visited once.
        let sum = unsafe { output.slice(at, channels) };
        let input = shape.image_of(input, image);
        let mut count = 0.0f32;
        sum.fill(0.0);
        shape.for_each_position(y, x, |_, from| {
            count += 1.0;
            add_scaled(isa, sum, &input[from..from + channels], 1.0);
        });
        let scale = 1.0 / count.max(1.0);
        sum.iter_mut().for_each(|sum| *sum *= scale);
    });
}

/// The gradient of [`average_pool`]: each output's gradient is distributed over its window.
///
/// # Panics
///
/// If a slice does not have the length of the shape.
pub fn average_pool_grad(pool: &ThreadPool, shape: &PoolShape, grad_out: &[f32], grad_in: &mut [f32]) {
    shape.check(grad_in.len(), grad_out.len());
    let isa = Isa::best();
    let channels = shape.channels;
    shape.for_each_image(pool, grad_in, |image, grad_in| {
        let grad_out = shape.image_of(grad_out, image);
        grad_in.fill(0.0);
        for pixel in 0..shape.out_h * shape.out_w {
            let (y, x) = (pixel / shape.out_w, pixel % shape.out_w);
            let mut count = 0.0f32;
            shape.for_each_position(y, x, |_, _| count += 1.0);
            let scale = 1.0 / count.max(1.0);
            let from = &grad_out[pixel * channels..(pixel + 1) * channels];
            shape.for_each_position(y, x, |_, to| add_scaled(isa, &mut grad_in[to..to + channels], from, scale));
        }
    });
}

vectorised! {
    /// Replaces smaller or unset values by those at a position.
    fn larger(best: &mut [f32], positions: &mut [u8], values: &[f32], position: u8) {
        for ((best, at), &value) in best.iter_mut().zip(positions).zip(values) {
            // A NaN compares as not larger, but must win, and must then stay.
            let wins = (value > *best) | (value.is_nan() & !best.is_nan()) | (*at == NO_POSITION);
            *best = if wins { value } else { *best };
            *at = if wins { position } else { *at };
        }
    }
}

vectorised! {
    /// Adds the gradients whose maximum was at a position.
    fn scatter(to: &mut [f32], from: &[f32], positions: &[u8], position: u8) {
        for ((to, &from), &at) in to.iter_mut().zip(from).zip(positions) {
            *to += if at == position { from } else { 0.0 };
        }
    }
}

vectorised! {
    /// `to += from · scale`
    fn add_scaled(to: &mut [f32], from: &[f32], scale: f32) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += from * scale;
        }
    }
}
