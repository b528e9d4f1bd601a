//! Depthwise convolutions: too few multiply-adds per value for a GEMM, so all three passes iterate over whole pixels,
//! vectorized over channels.
//!
//! Forward and input gradient use the same loop: pixels of a row that the same taps cover form a run, and several
//! pixels of a run are accumulated in registers. Rows in 16 bits are widened first. With a depth multiplier, input
//! pixels are first replicated to the output's channels.

use super::channels::{Meeting, PixelRun, SUMS, Tap};
use super::output::SharedOutput;
use super::patches::HalfOperands;
use super::{ConvShape, SERIAL};
use crate::kernels::gemm::{self, LINE, Out};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use crate::simd::float_view::FloatView;
use std::ops::Range;

/// Floats for `rows` rows of replicated input pixels; 0 without a depth multiplier.
fn spread_len(shape: &ConvShape, rows: usize) -> usize {
    if multiplied(shape) { (rows * shape.in_w * shape.out_c).next_multiple_of(LINE) } else { 0 }
}

/// A worker's workspace: rows of replicated pixels, widened 16-bit operands, and an output row before rounding to 16
/// bits.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    spread: usize,
    /// Length of a row of the operand that is read at several positions, and the number of such rows.
    source: (usize, usize),
    filter: usize,
    /// Length of the output row.
    result: usize,
    halves: HalfOperands,
}

impl Scratch {
    pub fn forward(shape: &ConvShape, halves: HalfOperands) -> Scratch {
        let source = (shape.in_w * shape.in_c, shape.k_h);
        Scratch { spread: spread_len(shape, shape.k_h), source, filter: shape.filter_len(), result: shape.out_w * shape.out_c, halves }
    }

    pub fn grad_input(shape: &ConvShape, halves: HalfOperands) -> Scratch {
        let source = (shape.out_w * shape.out_c, shape.k_h);
        Scratch { spread: spread_len(shape, 1), source, filter: shape.filter_len(), result: shape.in_w * shape.in_c, halves }
    }

    /// For the filter gradient: a row of the input, and one of the output gradient in place of the filter. Its operands
    /// may be 16 bits.
    pub fn grad_filter(shape: &ConvShape) -> Scratch {
        let halves = HalfOperands { input: true, filter: true, output: false };
        let source = (shape.in_w * shape.in_c, 1);
        Scratch { spread: spread_len(shape, 1), source, filter: shape.out_w * shape.out_c, result: 0, halves }
    }

    /// Floats per worker.
    pub fn len(&self) -> usize {
        self.offsets()[3]
    }

    /// Offsets of the widened sources, the widened filter and the result, and the end.
    fn offsets(&self) -> [usize; 4] {
        let part = |needed: bool, len: usize| if needed { len.next_multiple_of(LINE) } else { 0 };
        let filter = self.spread + part(self.halves.input, self.source.0.next_multiple_of(LINE) * self.source.1);
        let result = filter + part(self.halves.filter, self.filter);
        [self.spread, filter, result, result + part(self.halves.output, self.result)]
    }

    /// Row `row` of a tensor as floats: in place, or widened into the `place`-th row of the workspace.
    ///
    /// # Safety
    ///
    /// The row is in bounds, and the workspace was laid out for 16-bit operands.
    unsafe fn line(&self, isa: Isa, tensor: &FloatView<'_>, row: usize, place: usize, scratch: *mut f32) -> *const f32 {
        let to = scratch.wrapping_add(self.offsets()[0] + place * self.source.0.next_multiple_of(LINE));
        // SAFETY: guaranteed by the caller.
        unsafe { tensor.fetch_to(isa, row * self.source.0, self.source.0, to) }
    }

    /// `len` floats of the tensor in the filter's place.
    ///
    /// # Safety
    /// Same as [`Scratch::line`].
    unsafe fn filter(&self, isa: Isa, tensor: &FloatView<'_>, start: usize, scratch: *mut f32) -> *const f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { tensor.fetch_to(isa, start, self.filter, scratch.wrapping_add(self.offsets()[1])) }
    }

    /// The address where an output row that starts at this pixel is accumulated, and the stride of its pixels: in the
    /// output, or in the workspace.
    ///
    /// # Safety
    ///
    /// The pixel is in bounds.
    unsafe fn result(&self, target: &SharedOutput<'_>, pixel: usize, channels: usize, scratch: *mut f32) -> (*mut f32, usize) {
        match target.floats() {
            // SAFETY: guaranteed by the caller.
            Some(floats) => (unsafe { floats.row(pixel) }, floats.pitch),
            None => (scratch.wrapping_add(self.offsets()[2]), channels),
        }
    }
}

/// Whether there is a depth multiplier.
fn multiplied(shape: &ConvShape) -> bool {
    shape.in_c != shape.out_c
}

/// `output = input ∗ filter`, one output row per task.
///
/// # Safety
///
/// The shape is depthwise and was checked, tensors and `target` have its lengths, and `scratch` has a [`Scratch`] for
/// every thread.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn forward(
    isa: Isa,
    pool: &ThreadPool,
    shape: &ConvShape,
    input: FloatView<'_>,
    filter: FloatView<'_>,
    target: SharedOutput<'_>,
    halves: HalfOperands,
    scratch: Out,
) {
    let layout = Scratch::forward(shape, halves);
    let channels = shape.out_c;
    let (down, across) = Axis::of(shape);
    let task = |row: usize, worker: usize| {
        let (image, y) = (row / shape.out_h, row % shape.out_h);
        let rows = down.reached(y);
        // SAFETY: rows are disjoint parts of the output; the workspace is exclusive to this worker; taps and runs stay
        // in bounds.
        unsafe {
            let scratch = scratch.add(worker * layout.len());
            let filter = layout.filter(isa, &filter, 0, scratch);
            let (output, step) = layout.result(&target, row * shape.out_w, channels, scratch);
            // The row that a tap row reads as floats, and the fixed location where `spread_row` writes it.
            let spread = |ky: usize| scratch.wrapping_add(ky * shape.in_w * channels);
            let place = |ky: usize| image * shape.in_h + down.source(y, ky);
            for ky in rows.clone().filter(|_| multiplied(shape) || halves.input) {
                let from = layout.line(isa, &input, place(ky), ky, scratch);
                if multiplied(shape) {
                    spread_row(shape, from, spread(ky));
                }
            }
            let widened = |ky: usize| scratch.wrapping_add(layout.offsets()[0] + ky * layout.source.0.next_multiple_of(LINE)).cast_const();
            let line = |ky: usize| match (multiplied(shape), halves.input) {
                (true, _) => spread(ky).cast_const(),
                (false, true) => widened(ky),
                (false, false) => input.at(place(ky) * layout.source.0),
            };
            across.each_run(shape.out_w, |pixels, columns| {
                let to = output.add(pixels.start * step);
                let run = PixelRun { pixels: pixels.len(), from_step: shape.stride.1 * channels, to, to_step: step, channels };
                let taps = rows.clone().flat_map(|ky| {
                    let (line, start) = (line(ky), pixels.start);
                    columns.clone().map(move |kx| Tap {
                        from: line.wrapping_add(across.source(start, kx) * channels),
                        filter: filter.wrapping_add((ky * shape.k_w + kx) * channels),
                    })
                });
                run.sum(isa, taps);
            });
            target.finish(row * shape.out_w..(row + 1) * shape.out_w, 0..channels, output, worker);
        }
    };
    gemm::run(pool, shape.work() >= SERIAL / 8, shape.batch * shape.out_h, &task);
}

/// The gradient of the input, one input row per task.
///
/// # Safety
///
/// The shape is depthwise and was checked, tensors and `target` have its lengths, and `scratch` has a [`Scratch`] for
/// every thread.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn grad_input(
    isa: Isa,
    pool: &ThreadPool,
    shape: &ConvShape,
    grad_out: FloatView<'_>,
    filter: FloatView<'_>,
    target: SharedOutput<'_>,
    halves: HalfOperands,
    scratch: Out,
) {
    let layout = Scratch::grad_input(shape, halves);
    let channels = shape.out_c;
    let task = |row: usize, worker: usize| {
        let (image, y) = (row / shape.in_h, row % shape.in_h);
        // SAFETY: rows are disjoint parts of the gradient; the workspace is exclusive to this worker; taps and runs
        // stay in bounds.
        unsafe {
            let scratch = scratch.add(worker * layout.len());
            let filter = layout.filter(isa, &filter, 0, scratch);
            let (own, apart) = layout.result(&target, row * shape.in_w, shape.in_c, scratch);
            let (to, step) = if multiplied(shape) { (scratch, channels) } else { (own, apart) };
            let rows = Phase::new(y + shape.pad.0, shape.stride.0, shape.dilation.0, shape.k_h, shape.out_h);
            let reached = rows.axis.reached(0);
            let place = |ky: usize| image * shape.out_h + rows.axis.source(0, ky);
            for ky in reached.clone().filter(|_| halves.input) {
                layout.line(isa, &grad_out, place(ky), ky, scratch);
            }
            let widened = |ky: usize| scratch.wrapping_add(layout.offsets()[0] + ky * layout.source.0.next_multiple_of(LINE)).cast_const();
            let line = |ky: usize| if halves.input { widened(ky) } else { grad_out.at(place(ky) * layout.source.0) };
            for first in 0..shape.stride.1.min(shape.in_w) {
                let columns = Phase::new(first + shape.pad.1, shape.stride.1, shape.dilation.1, shape.k_w, shape.out_w);
                columns.axis.each_run((shape.in_w - first).div_ceil(shape.stride.1), |pixels, across| {
                    let to = to.add((first + pixels.start * shape.stride.1) * step);
                    let run = PixelRun { pixels: pixels.len(), from_step: channels, to, to_step: shape.stride.1 * step, channels };
                    let taps = reached.clone().flat_map(|ky| {
                        let line = line(ky);
                        let (columns, rows, start) = (&columns, &rows, pixels.start);
                        across.clone().map(move |kx| Tap {
                            from: line.wrapping_add(columns.axis.source(start, kx) * channels),
                            filter: filter.wrapping_add((rows.tap(ky) * shape.k_w + columns.tap(kx)) * channels),
                        })
                    });
                    run.sum(isa, taps);
                });
            }
            if multiplied(shape) {
                gather_row(shape, to, own, apart);
            }
            target.finish(row * shape.in_w..(row + 1) * shape.in_w, 0..shape.in_c, own, worker);
        }
    };
    gemm::run(pool, shape.work() >= SERIAL / 8, shape.batch * shape.in_h, &task);
}

/// Number of blocks of channels into which `chunks` of a filter gradient are split, to have several tasks. Rows in 16
/// bits and replicated ones are widened for every block.
pub(super) fn channel_blocks(shape: &ConvShape, chunks: usize, half: bool) -> usize {
    let most = if half || multiplied(shape) { 2 } else { 8 };
    (8 / chunks).min(shape.out_c / 32).clamp(1, most)
}

/// The filter gradient of a range of channels over a range of (flattened) output rows. `scratch` is a [`Scratch`].
///
/// # Safety
///
/// The tensors have the extents of the shape; `to` is a filter gradient of which these channels are exclusive to this
/// call.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn grad_filter(
    isa: Isa,
    shape: &ConvShape,
    rows: Range<usize>,
    own: Range<usize>,
    input: FloatView<'_>,
    grad_out: FloatView<'_>,
    to: *mut f32,
    add: bool,
    scratch: *mut f32,
) {
    let layout = Scratch::grad_filter(shape);
    let channels = shape.out_c;
    let (down, across) = Axis::of(shape);
    // SAFETY: guaranteed by the caller; taps and runs stay in bounds.
    unsafe {
        if own.is_empty() {
            return;
        }
        if !add {
            (0..shape.taps()).for_each(|tap| to.add(tap * channels + own.start).write_bytes(0, own.len()));
        }
        for row in rows {
            let (image, y) = (row / shape.out_h, row % shape.out_h);
            let with = layout.filter(isa, &grad_out, row * shape.out_w * channels, scratch);
            for ky in down.reached(y) {
                let line = layout.line(isa, &input, image * shape.in_h + down.source(y, ky), 0, scratch);
                let line = if multiplied(shape) {
                    spread_row(shape, line, scratch);
                    scratch.cast_const()
                } else {
                    line
                };
                across.each_run(shape.out_w, |pixels, columns| {
                    for kx in columns.clone().step_by(SUMS) {
                        let meeting = Meeting {
                            pixels: pixels.len(),
                            from: line.wrapping_add(across.source(pixels.start, kx) * channels + own.start),
                            from_step: shape.stride.1 * channels,
                            tap: shape.dilation.1 * channels,
                            with: with.wrapping_add(pixels.start * channels + own.start),
                            to: to.add((ky * shape.k_w + kx) * channels + own.start),
                            stride: channels,
                            channels: own.len(),
                        };
                        meeting.add(isa, SUMS.min(columns.end - kx));
                    }
                });
            }
        }
    }
}

/// The taps of output positions along one axis: tap `k` of position `p` reads source `p · step + from + k · tap`.
#[derive(Clone, Copy)]
struct Axis {
    step: usize,
    from: isize,
    tap: isize,
    taps: usize,
    /// Number of sources.
    extent: usize,
}

impl Axis {
    /// The vertical and horizontal axis of a convolution's input.
    fn of(shape: &ConvShape) -> (Axis, Axis) {
        let axis = |step: usize, pad: usize, dilation: usize, taps: usize, extent: usize| Axis {
            step,
            from: -(pad as isize),
            tap: dilation as isize,
            taps,
            extent,
        };
        let down = axis(shape.stride.0, shape.pad.0, shape.dilation.0, shape.k_h, shape.in_h);
        (down, axis(shape.stride.1, shape.pad.1, shape.dilation.1, shape.k_w, shape.in_w))
    }

    fn place(&self, position: usize, tap: usize) -> isize {
        (position * self.step) as isize + self.from + tap as isize * self.tap
    }

    fn exists(&self, position: usize, tap: usize) -> bool {
        (0..self.extent as isize).contains(&self.place(position, tap))
    }

    /// The source of an in-bounds tap.
    fn source(&self, position: usize, tap: usize) -> usize {
        self.place(position, tap) as usize
    }

    /// The in-bounds taps, which are contiguous because sources are monotone in the tap.
    fn reached(&self, position: usize) -> Range<usize> {
        let first = (0..self.taps).find(|tap| self.exists(position, *tap)).unwrap_or(0);
        let count = (first..self.taps).take_while(|tap| self.exists(position, *tap)).count();
        first..first + count
    }

    /// Splits `count` positions into runs with the same in-bounds taps.
    fn each_run(&self, count: usize, mut visit: impl FnMut(Range<usize>, Range<usize>)) {
        let mut start = 0;
        while start < count {
            let taps = self.reached(start);
            // Between two positions with all taps in bounds, all taps are in bounds: only the edges are checked
            // individually.
            let mut end = start + 1;
            if taps.len() == self.taps {
                let most = (0..self.taps).map(|tap| (self.extent as isize - 1 - self.place(start, tap)) / self.step.max(1) as isize).min();
                end = count.min(start + 1 + most.unwrap_or(0) as usize);
            }
            while end < count && self.reached(end) == taps {
                end += 1;
            }
            visit(start..end, taps);
            start = end;
        }
    }
}

/// The taps that read input pixels of one phase of a stride, and the outputs that read them.
struct Phase {
    axis: Axis,
    first: usize,
    every: usize,
}

impl Phase {
    /// For the input pixels at `padded`, `padded + stride`, … in padded coordinates.
    fn new(padded: usize, stride: usize, dilation: usize, taps: usize, extent: usize) -> Phase {
        let meets = |tap: &usize| tap * dilation % stride == padded % stride;
        let first = (0..taps).find(meets);
        // The taps of a phase are periodic.
        let every = (1..=stride).find(|every| (every * dilation).is_multiple_of(stride)).unwrap_or(1);
        let count = first.map_or(0, |first| (taps - first).div_ceil(every));
        let first = first.unwrap_or(0);
        let from = (padded as isize - (first * dilation) as isize).div_euclid(stride as isize);
        Phase { axis: Axis { step: 1, from, tap: -((every * dilation / stride) as isize), taps: count, extent }, first, every }
    }

    /// The filter's tap.
    fn tap(&self, tap: usize) -> usize {
        self.first + tap * self.every
    }
}

/// Copies an input row with each channel replicated by the depth multiplier.
///
/// # Safety
///
/// `from` is a row of the input, and `to` is writable for a replicated one.
unsafe fn spread_row(shape: &ConvShape, from: *const f32, to: *mut f32) {
    let many = shape.group_out();
    for value in 0..shape.in_w * shape.in_c {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(to.add(value * many), many).fill(*from.add(value)) };
    }
}

/// Sums the gradients of a row's replicated channels into pixels that are `apart` floats apart.
///
/// # Safety
///
/// `from` is a replicated row, and `to` is writable for its pixels.
unsafe fn gather_row(shape: &ConvShape, from: *const f32, to: *mut f32, apart: usize) {
    let many = shape.group_out();
    for pixel in 0..shape.in_w {
        for channel in 0..shape.in_c {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let spread = from.add((pixel * shape.in_c + channel) * many);
                *to.add(pixel * apart + channel) = std::slice::from_raw_parts(spread, many).iter().sum();
            }
        }
    }
}
