//! Convolutions whose channels do not see each other: too few multiply-adds per value for a product, so all three passes walk whole pixels,
//! vectorised over channels.
//!
//! Output and input gradient are the same loop: along a row, pixels that the same taps reach make a run, and some pixels of a run are summed
//! at once in registers. With a multiplier (several filters per channel) input pixels are first spread to the output's channels.

use super::channels::{Meeting, Run, SUMS, Tap};
use super::patches::In;
use super::{ConvShape, SERIAL};
use crate::gemm::{self, Epilogue, LINE, Out};
use crate::simd::Isa;
use crate::threads::Pool;
use std::ops::Range;

/// Floats that a worker spreads `rows` rows of input pixels into; none if channels are the same on both sides.
pub(super) fn per_worker(shape: &ConvShape, rows: usize) -> usize {
    if multiplied(shape) { (rows * shape.in_w * shape.out_c).next_multiple_of(LINE) } else { 0 }
}

/// Several filters for each channel.
fn multiplied(shape: &ConvShape) -> bool {
    shape.in_c != shape.out_c
}

/// `output = input ∗ filter`, one output row per task. `scratch` has [`per_worker`] floats of `k_h` rows for every thread.
#[allow(clippy::too_many_arguments)]
pub(super) fn forward(
    isa: Isa,
    pool: &Pool,
    shape: &ConvShape,
    input: &[f32],
    filter: &[f32],
    output: &mut [f32],
    scratch: Out,
    epilogue: Epilogue,
) {
    let (input, filter, output) = (In(input.as_ptr()), In(filter.as_ptr()), Out(output.as_mut_ptr()));
    let channels = shape.out_c;
    let (down, across) = Axis::of(shape);
    let task = |row: usize, worker: usize| {
        let (image, y) = (row / shape.out_h, row % shape.out_h);
        let rows = down.reached(y);
        // SAFETY: rows are different parts of the output; the scratch is this worker's own; taps and runs stay inside the tensors.
        unsafe {
            let spread = scratch.add(worker * per_worker(shape, shape.k_h));
            // The row that a tap row reads, which `spread_row` leaves at the same place every time.
            let line = |ky: usize| {
                let from = input.add((image * shape.in_h + down.source(y, ky)) * shape.in_w * shape.in_c);
                (from, spread.wrapping_add(ky * shape.in_w * channels))
            };
            if multiplied(shape) {
                rows.clone().map(line).for_each(|(from, to)| spread_row(shape, from, to));
            }
            let line = |ky: usize| if multiplied(shape) { line(ky).1.cast_const() } else { line(ky).0 };
            across.each_run(shape.out_w, |pixels, columns| {
                let to = output.add((row * shape.out_w + pixels.start) * channels);
                let run = Run { pixels: pixels.len(), from_step: shape.stride.1 * channels, to, to_step: channels, channels };
                let taps = rows.clone().flat_map(|ky| {
                    let (line, start) = (line(ky), pixels.start);
                    columns.clone().map(move |kx| Tap {
                        from: line.wrapping_add(across.source(start, kx) * channels),
                        filter: filter.add((ky * shape.k_w + kx) * channels),
                    })
                });
                run.sum(isa, taps);
            });
        }
        if let Some(finish) = epilogue {
            finish(row * shape.out_w..(row + 1) * shape.out_w, 0..channels, worker);
        }
    };
    gemm::run(pool, shape.work() >= SERIAL / 8, shape.batch * shape.out_h, &task);
}

/// The gradient of the input, one input row per task. `scratch` has [`per_worker`] floats of one row for every thread.
pub(super) fn grad_input(isa: Isa, pool: &Pool, shape: &ConvShape, grad_out: &[f32], filter: &[f32], grad_in: &mut [f32], scratch: Out) {
    let (grad_out, filter, grad_in) = (In(grad_out.as_ptr()), In(filter.as_ptr()), Out(grad_in.as_mut_ptr()));
    let channels = shape.out_c;
    let task = |row: usize, worker: usize| {
        let (image, y) = (row / shape.in_h, row % shape.in_h);
        // SAFETY: rows are different parts of the gradient; the scratch is this worker's own; taps and runs stay inside the tensors.
        unsafe {
            let own = grad_in.add(row * shape.in_w * shape.in_c);
            let to = if multiplied(shape) { scratch.add(worker * per_worker(shape, 1)) } else { own };
            let rows = Phase::new(y + shape.pad.0, shape.stride.0, shape.dilation.0, shape.k_h, shape.out_h);
            for first in 0..shape.stride.1.min(shape.in_w) {
                let columns = Phase::new(first + shape.pad.1, shape.stride.1, shape.dilation.1, shape.k_w, shape.out_w);
                let reached = rows.axis.reached(0);
                columns.axis.each_run((shape.in_w - first).div_ceil(shape.stride.1), |pixels, across| {
                    let to = to.add((first + pixels.start * shape.stride.1) * channels);
                    let run = Run { pixels: pixels.len(), from_step: channels, to, to_step: shape.stride.1 * channels, channels };
                    let taps = reached.clone().flat_map(|ky| {
                        let line = (image * shape.out_h + rows.axis.source(0, ky)) * shape.out_w;
                        let (columns, rows, start) = (&columns, &rows, pixels.start);
                        across.clone().map(move |kx| Tap {
                            from: grad_out.add((line + columns.axis.source(start, kx)) * channels),
                            filter: filter.add((rows.tap(ky) * shape.k_w + columns.tap(kx)) * channels),
                        })
                    });
                    run.sum(isa, taps);
                });
            }
            if multiplied(shape) {
                gather_row(shape, to, std::slice::from_raw_parts_mut(own, shape.in_w * shape.in_c));
            }
        }
    };
    gemm::run(pool, shape.work() >= SERIAL / 8, shape.batch * shape.in_h, &task);
}

/// The gradient of the filter over a range of (flattened) output rows. `scratch` has [`per_worker`] floats of one row.
///
/// # Safety
/// The tensors have the extents of the shape; `to` is a filter gradient that nobody else uses.
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn grad_filter(
    isa: Isa,
    shape: &ConvShape,
    rows: Range<usize>,
    input: In,
    grad_out: In,
    to: *mut f32,
    add: bool,
    scratch: *mut f32,
) {
    let channels = shape.out_c;
    let (down, across) = Axis::of(shape);
    // SAFETY: the caller's promise; taps and runs stay inside the tensors.
    unsafe {
        if !add {
            to.write_bytes(0, shape.filter_len());
        }
        for row in rows {
            let (image, y) = (row / shape.out_h, row % shape.out_h);
            for ky in down.reached(y) {
                let line = input.add((image * shape.in_h + down.source(y, ky)) * shape.in_w * shape.in_c);
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
                            from: line.wrapping_add(across.source(pixels.start, kx) * channels),
                            from_step: shape.stride.1 * channels,
                            tap: shape.dilation.1 * channels,
                            with: grad_out.add((row * shape.out_w + pixels.start) * channels),
                            to: to.add((ky * shape.k_w + kx) * channels),
                            channels,
                        };
                        meeting.add(isa, SUMS.min(columns.end - kx));
                    }
                });
            }
        }
    }
}

/// Where the taps of output positions fall along one axis: tap `k` of position `p` reads source `p · step + from + k · tap`.
#[derive(Clone, Copy)]
struct Axis {
    step: usize,
    from: isize,
    tap: isize,
    taps: usize,
    /// Sources that exist.
    extent: usize,
}

impl Axis {
    /// Down and across a convolution's input.
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

    /// The source of a tap that exists.
    fn source(&self, position: usize, tap: usize) -> usize {
        self.place(position, tap) as usize
    }

    /// The taps whose sources exist: neighbours, for places rise or fall with the tap.
    fn reached(&self, position: usize) -> Range<usize> {
        let first = (0..self.taps).find(|tap| self.exists(position, *tap)).unwrap_or(0);
        let count = (first..self.taps).take_while(|tap| self.exists(position, *tap)).count();
        first..first + count
    }

    /// Cuts `count` positions into runs that the same taps reach.
    fn each_run(&self, count: usize, mut visit: impl FnMut(Range<usize>, Range<usize>)) {
        let mut start = 0;
        while start < count {
            let taps = self.reached(start);
            // Between two positions that all taps reach, they reach all: only the edges are looked at one by one.
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

/// The taps through which input pixels of one phase of a stride are read, and the outputs that read them.
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
        // The taps that meet a phase repeat.
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

/// Copies an input row so that each channel stands as often as it has filters.
///
/// # Safety
/// `from` is a row of the input, and `to` has room for a spread one.
unsafe fn spread_row(shape: &ConvShape, from: *const f32, to: *mut f32) {
    let many = shape.group_out();
    for value in 0..shape.in_w * shape.in_c {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(to.add(value * many), many).fill(*from.add(value)) };
    }
}

/// Sums the gradients of a row's spread channels.
///
/// # Safety
/// `from` is a spread row.
unsafe fn gather_row(shape: &ConvShape, from: *const f32, to: &mut [f32]) {
    let many = shape.group_out();
    for (value, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *to = unsafe { std::slice::from_raw_parts(from.add(value * many), many) }.iter().sum();
    }
}
