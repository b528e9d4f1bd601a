//! The filter gradient as an implicit GEMM: rows of the product are filter elements, k runs over output pixels.
//!
//! The pixels of a large image are split into chunks by its extents, independent of the batch (split-K); each chunk
//! yields a partial gradient, and these are added in order. The gradient of a large filter or of small images is a
//! single chunk, accumulated in place in the order of the pixels. A gradient that stops at any image and resumes later
//! therefore performs the same additions in the same order.

use std::ops::Range;

use super::depthwise::{self, Scratch};
use super::patches;
use super::split_k::{SEGMENTS, SplitK, in_place, segments};
use super::{ConvShape, SERIAL};
use crate::kernels::gemm::micro_kernel::{MAX_COLUMNS, MAX_ROWS, Shape};
use crate::kernels::gemm::panel::{DEPTH, PanelProduct, SLIVERS, for_each_part};
use crate::kernels::gemm::{self, LINE, Matrix, Out, WriteMode};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use crate::simd::element::{Bf16, Element, F16};
use crate::simd::float_view::{FloatView, load_one};
use plimsoll_core::DType;

/// Maximum filter elements (rows of the product) per task.
const ROWS: usize = 128;
/// Target number of tasks.
const TASKS: usize = 16;

/// Filter elements per task. Fewer if there are few tasks otherwise, but enough to amortize packing the output
/// gradient.
fn rows_each(shape: &ConvShape, chunks: usize) -> usize {
    let elements = shape.taps() * shape.group_in();
    let least = if shape.group_out() > MAX_COLUMNS { ROWS / 2 } else { ROWS / 8 };
    let tasks = TASKS.div_ceil(chunks * shape.groups);
    elements.div_ceil(tasks).next_multiple_of(MAX_ROWS).clamp(least, ROWS)
}

/// Floats of workspace for [`grad_filter`] on a pool of `threads`; monotone in the batch. An accumulating gradient
/// needs more.
pub fn grad_filter_workspace(shape: &ConvShape, write: WriteMode, threads: usize) -> usize {
    if shape.is_empty() {
        0
    } else if shape.pointwise() {
        gemm::gemm_over_rows_workspace(shape.in_c, shape.out_c, shape.pixels(), shape.out_h * shape.out_w, threads)
    } else {
        per_worker(shape) * threads.max(1) + SplitK::new(shape, write).partials() * shape.filter_len() + LINE
    }
}

fn per_worker(shape: &ConvShape) -> usize {
    if shape.depthwise() { Scratch::grad_filter(shape).len() } else { PER_WORKER }
}

/// Packed columns of the output gradient and packed patches.
const PER_WORKER: usize = SLIVERS + ROWS * DEPTH;

/// `grad_filter (=|+=)` the gradient of the filter, from the input and the output gradient.
///
/// Bit-identical for any number of threads, and for images in several calls of which all but the first add.
///
/// # Panics
///
/// If a slice does not have the length of the shape, or `workspace` is shorter than [`grad_filter_workspace`].
pub fn grad_filter(
    pool: &ThreadPool,
    shape: &ConvShape,
    write: WriteMode,
    input: FloatView<'_>,
    grad_out: FloatView<'_>,
    grad: &mut [f32],
    workspace: &mut [f32],
) {
    grad_filter_with(Isa::best(), pool, shape, write, input, grad_out, grad, workspace);
}

/// Like [`grad_filter`], with a given instruction set.
///
/// # Panics
/// Same as [`grad_filter`], or if the processor does not support `isa`.
#[allow(clippy::too_many_arguments)]
pub fn grad_filter_with(
    isa: Isa,
    pool: &ThreadPool,
    shape: &ConvShape,
    write: WriteMode,
    input: FloatView<'_>,
    grad_out: FloatView<'_>,
    grad: &mut [f32],
    workspace: &mut [f32],
) {
    assert!(isa.supported(), "this processor has no {isa:?}");
    shape.check_extents();
    let operands = [
        ("input", input.len, shape.input_len()),
        ("output's gradient", grad_out.len, shape.output_len()),
        ("filter's gradient", grad.len(), shape.filter_len()),
    ];
    shape.check(operands, workspace.len(), grad_filter_workspace(shape, write, pool.threads()));
    if shape.is_empty() {
        if write == WriteMode::Set {
            grad.fill(0.0);
        }
        return;
    }
    if shape.pointwise() {
        let a = Matrix::of(&input, shape.pixels(), shape.in_c).transposed();
        let b = Matrix::of(&grad_out, shape.pixels(), shape.out_c);
        // SAFETY: the slices have the lengths of the matrices, and an exclusive one overlaps no other.
        return unsafe {
            gemm::gemm_over_rows(isa, pool, write, shape.out_h * shape.out_w, a, b, grad.as_mut_ptr(), shape.out_c, workspace, None)
        };
    }

    let pass = FilterGradient { isa, shape, input, grad_out };
    let scratch = gemm::aligned(workspace);
    let grad = Out(grad.as_mut_ptr());
    let len = shape.filter_len();
    // SAFETY: the workspace consists of the workers' parts, then the partial gradients.
    let partials = Out(unsafe { scratch.add(per_worker(shape) * pool.threads()) });
    let chunks = SplitK::new(shape, write);
    for wave in chunks.waves() {
        // The first chunk of a new gradient, and a gradient in a single chunk, are written in place; all other chunks
        // are partial gradients.
        let straight = usize::from(wave.start == 0 && (chunks.begins || chunks.wave == 1));
        let chunk = |index: usize| {
            // SAFETY: the workspace has a partial gradient of `len` for each chunk of a wave.
            let to = if index < straight { grad } else { Out(unsafe { partials.add((index - straight) * len) }) };
            (chunks.range(wave.start + index), to, index < straight && !chunks.begins)
        };
        // SAFETY: extents, lengths and workspace were checked above, and exclusive operands overlap nothing.
        unsafe { pass.wave(pool, wave.len(), &chunk, scratch) };
        let aside = wave.len() - straight;
        let sum = |task: usize, _: usize| {
            let range = task * SUM..len.min((task + 1) * SUM);
            for chunk in 0..aside {
                // SAFETY: the range is exclusive to this task, and the partial gradients are complete.
                unsafe {
                    let to = std::slice::from_raw_parts_mut(grad.add(range.start), range.len());
                    let from = std::slice::from_raw_parts(partials.add(chunk * len + range.start), range.len());
                    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                }
            }
        };
        if aside > 0 {
            gemm::run(pool, len * (aside + 1) > 8 * SUM, len.div_ceil(SUM), &sum);
        }
    }
}

/// Gradient elements summed per task.
const SUM: usize = 1 << 12;

struct FilterGradient<'a> {
    isa: Isa,
    shape: &'a ConvShape,
    input: FloatView<'a>,
    grad_out: FloatView<'a>,
}

impl FilterGradient<'_> {
    /// Computes a wave of chunks in parallel: for each its rows, its output, and whether it accumulates.
    ///
    /// # Safety
    ///
    /// The shape was checked, tensors have its lengths, every chunk has its own filter gradient, and `scratch` has
    /// [`per_worker`] floats for every thread.
    unsafe fn wave(&self, pool: &ThreadPool, chunks: usize, chunk: &(dyn Fn(usize) -> (Range<usize>, Out, bool) + Sync), scratch: Out) {
        let (shape, parallel) = (self.shape, self.shape.work() >= SERIAL);
        if shape.depthwise() {
            let blocks = depthwise::channel_blocks(shape, chunks, self.input.is_half() || self.grad_out.is_half());
            let each = shape.out_c.div_ceil(blocks).next_multiple_of(LINE);
            let task = |task: usize, worker: usize| {
                let (rows, to, add) = chunk(task / blocks);
                let channels = (task % blocks * each).min(shape.out_c)..shape.out_c.min((task % blocks + 1) * each);
                // SAFETY: each chunk has its own gradient, of which the block has its own channels, and the workspace
                // is exclusive to this worker.
                unsafe {
                    let scratch = scratch.add(worker * per_worker(shape));
                    depthwise::grad_filter(self.isa, shape, rows, channels, self.input, self.grad_out, to.0, add, scratch);
                }
            };
            return gemm::run(pool, parallel, chunks * blocks, &task);
        }
        let elements = shape.taps() * shape.group_in();
        let each = rows_each(shape, chunks);
        let blocks = elements.div_ceil(each);
        let task = |task: usize, worker: usize| {
            let (index, rest) = (task / (blocks * shape.groups), task % (blocks * shape.groups));
            let (group, block) = (rest / blocks, rest % blocks);
            let (rows, to, add) = chunk(index);
            // SAFETY: the workspace is exclusive to this worker; block, group and chunk select a disjoint part of the
            // gradients.
            unsafe {
                let scratch = patches::part(scratch, worker, PER_WORKER);
                self.block(group, block * each..elements.min((block + 1) * each), rows, to, add, scratch);
            }
        };
        gemm::run(pool, parallel, chunks * blocks * shape.groups, &task);
    }

    /// The gradient of some filter elements of a group, over a range of (flattened) output rows.
    ///
    /// # Safety
    ///
    /// The ranges are in bounds, `to` is a whole filter gradient of which these elements are exclusive to this call,
    /// and `scratch` has [`PER_WORKER`] floats.
    unsafe fn block(&self, group: usize, elements: Range<usize>, rows: Range<usize>, to: Out, add: bool, scratch: *mut f32) {
        let shape = self.shape;
        // SAFETY: the group's columns are in bounds of the gradient.
        let to = Out(unsafe { to.add(group * shape.group_out()) });
        if rows.is_empty() {
            if !add {
                for element in elements {
                    // SAFETY: the group's part of a filter row.
                    unsafe { to.add(element * shape.out_c).write_bytes(0, shape.group_out()) };
                }
            }
            return;
        }
        // SAFETY: same contract as this function.
        unsafe {
            if !in_place(shape) || self.input.is_half() || self.grad_out.is_half() {
                self.packed(group, elements, rows, to, add, scratch);
            } else {
                self.in_place(group, elements, rows, to, add);
            }
        }
    }

    /// Reads the patches in place: for few output channels, where a copy would not be reused enough.
    ///
    /// # Safety
    /// Same as [`FilterGradient::block`]; the shape is not padded.
    unsafe fn in_place(&self, group: usize, elements: Range<usize>, rows: Range<usize>, to: Out, add: bool) {
        let shape = self.shape;
        let mut table = [[std::ptr::null::<f32>(); MAX_ROWS]; SEGMENTS];
        let mut outs = [std::ptr::null_mut::<f32>(); MAX_ROWS];
        let most = segments(shape);
        for first in rows.clone().step_by(most) {
            let segments = most.min(rows.end - first);
            let right = self.right(group, first * shape.out_w);
            let sweep = PanelProduct {
                isa: self.isa,
                rows: elements.len(),
                columns: 0..shape.group_out(),
                segments,
                length: shape.out_w,
                accumulate: add || first > rows.start,
                right: &|_| right,
                packed: None,
            };
            // SAFETY: without padding every tap of every output is inside of the input.
            unsafe {
                sweep.run(|part, tile| {
                    for (at, element) in part.enumerate() {
                        let element = elements.start + element;
                        let (ky, kx, channel) = self.element(element);
                        let offset =
                            (ky * shape.dilation.0 * shape.in_w + kx * shape.dilation.1) * shape.in_c + group * shape.group_in() + channel;
                        for (segment, table) in table[..segments].iter_mut().enumerate() {
                            let (image, y) = ((first + segment) / shape.out_h, (first + segment) % shape.out_h);
                            table[at] = self.input.at((image * shape.in_h + y * shape.stride.0) * shape.in_w * shape.in_c + offset);
                        }
                        outs[at] = to.add(element * shape.out_c);
                    }
                    tile.a = table.as_ptr().cast();
                    tile.a_table = MAX_ROWS;
                    tile.a_step = (shape.stride.1 * shape.in_c) as isize;
                    tile.c = outs.as_ptr();
                });
            }
        }
    }

    /// Packs patches into k-major panels first.
    ///
    /// # Safety
    /// Same as [`FilterGradient::block`].
    unsafe fn packed(&self, group: usize, elements: Range<usize>, rows: Range<usize>, to: Out, add: bool, scratch: *mut f32) {
        let shape = self.shape;
        let tile_rows = Shape::of(self.isa).rows;
        // SAFETY: `PER_WORKER` is the sum of both parts.
        let panels = unsafe { scratch.add(SLIVERS) };
        let mut table = [std::ptr::null::<f32>(); MAX_ROWS];
        let mut outs = [std::ptr::null_mut::<f32>(); MAX_ROWS];
        let pixels = rows.start * shape.out_w..rows.end * shape.out_w;
        for first in pixels.clone().step_by(DEPTH) {
            let depth = DEPTH.min(pixels.end - first);
            for_each_part(0..elements.len(), tile_rows, 1, |part| {
                // SAFETY: contiguous panels of at most `ROWS` rows in total.
                unsafe { self.panel(group, elements.start + part.start, part.len(), first..first + depth, panels.add(part.start * depth)) };
            });
            let right = self.right(group, first);
            let sweep = PanelProduct {
                isa: self.isa,
                rows: elements.len(),
                columns: 0..shape.group_out(),
                segments: 1,
                length: depth,
                accumulate: add || first > pixels.start,
                right: &|_| right,
                packed: (shape.group_out() > MAX_COLUMNS || self.grad_out.is_half()).then_some(scratch),
            };
            // SAFETY: the panels are packed, and the rows of the gradient are in bounds.
            unsafe {
                sweep.run(|part, tile| {
                    table = std::array::from_fn(|at| panels.cast_const().wrapping_add(part.start * depth + at));
                    outs = std::array::from_fn(|at| to.0.wrapping_add((elements.start + part.start + at) * shape.out_c));
                    tile.a = table.as_ptr();
                    tile.a_step = part.len() as isize;
                    tile.c = outs.as_ptr();
                });
            }
        }
    }

    /// Packs the input values of `count` filter elements at each pixel: `to[pixel · count + element]`, zero in the
    /// padding.
    ///
    /// # Safety
    ///
    /// Elements and pixels are in bounds, and `to` is writable for them.
    unsafe fn panel(&self, group: usize, first: usize, count: usize, pixels: Range<usize>, mut to: *mut f32) {
        let shape = self.shape;
        let mut pixel = pixels.start;
        while pixel < pixels.end {
            let (row, x) = (pixel / shape.out_w, pixel % shape.out_w);
            let (image, y) = (row / shape.out_h, row % shape.out_h);
            let run = (shape.out_w - x).min(pixels.end - pixel);
            let mut at = 0;
            while at < count {
                let (ky, kx, channel) = self.element(first + at);
                let stretch = self.stretch(kx, channel).min(count - at);
                let line = shape
                    .in_row(y, ky)
                    .map(|line| ((image * shape.in_h + line) * shape.in_w) * shape.in_c + group * shape.group_in() + channel);
                // The taps of the stretch; for some pixels they may be partly in the padding.
                let taps = kx..kx + (channel + stretch).div_ceil(shape.in_c);
                for step in 0..run {
                    // SAFETY: reads are inside of the input, writes inside of the panel.
                    unsafe {
                        let to = to.add(step * count + at);
                        let Some(line) = line else {
                            to.write_bytes(0, stretch);
                            continue;
                        };
                        if let (Some(column), Some(_)) = (shape.in_col(x + step, kx), shape.in_col(x + step, taps.end - 1)) {
                            self.copy(line + column * shape.in_c, stretch, to);
                            continue;
                        }
                        for i in 0..stretch {
                            // Only a stretch over several taps can be partly inside, and it covers all channels of a
                            // pixel.
                            let (tap, channel_on) = ((channel + i) / shape.in_c, (channel + i) % shape.in_c);
                            let from = shape.in_col(x + step, kx + tap).map(|column| line - channel + column * shape.in_c + channel_on);
                            *to.add(i) = from.map_or(0.0, |from| load_one(self.input.dtype, self.input.at(from)));
                        }
                    }
                }
                at += stretch;
            }
            // SAFETY: inside the panel, or one past its end.
            to = unsafe { to.add(run * count) };
            pixel += run;
        }
    }

    /// Number of filter elements from this one on that are contiguous in the input: the channels of the tap, and
    /// adjacent taps.
    fn stretch(&self, kx: usize, channel: usize) -> usize {
        let shape = self.shape;
        let taps = if shape.groups == 1 && shape.dilation.1 == 1 { shape.k_w - kx } else { 1 };
        taps * shape.group_in() - channel
    }

    /// Copies up to eight contiguous input elements.
    ///
    /// # Safety
    ///
    /// They are in bounds, and the destination is writable for them.
    #[inline(always)]
    unsafe fn copy(&self, from: usize, count: usize, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (self.input.dtype, count) {
                (_, 8) => to.cast::<[f32; 8]>().write_unaligned(self.eight(from)),
                (DType::F32, _) => {
                    let mut from = self.input.at(from);
                    let mut to = to;
                    // By halves: a `memcpy` call costs more than copying a few bytes.
                    if count & 4 != 0 {
                        to.cast::<[f32; 4]>().write_unaligned(from.cast::<[f32; 4]>().read_unaligned());
                        (from, to) = (from.add(4), to.add(4));
                    }
                    if count & 2 != 0 {
                        to.cast::<[f32; 2]>().write_unaligned(from.cast::<[f32; 2]>().read_unaligned());
                        (from, to) = (from.add(2), to.add(2));
                    }
                    if count & 1 != 0 {
                        *to = *from;
                    }
                }
                _ => (0..count).for_each(|i| *to.add(i) = load_one(self.input.dtype, self.input.at(from + i))),
            }
        }
    }

    /// Eight input elements.
    ///
    /// # Safety
    ///
    /// They are in bounds.
    #[inline(always)]
    unsafe fn eight(&self, from: usize) -> [f32; 8] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let from = self.input.at(from);
            match self.input.dtype {
                DType::BF16 => from.cast::<[Bf16; 8]>().read_unaligned().map(Bf16::load),
                DType::F16 => from.cast::<[F16; 8]>().read_unaligned().map(F16::load),
                _ => from.cast::<[f32; 8]>().read_unaligned(),
            }
        }
    }

    /// Tap row, tap column and channel of a filter element of a group.
    #[inline(always)]
    fn element(&self, element: usize) -> (usize, usize, usize) {
        let (tap, channel) = (element / self.shape.group_in(), element % self.shape.group_in());
        (tap / self.shape.k_w, tap % self.shape.k_w, channel)
    }

    /// The output gradient from a pixel on, for the channels of a group.
    fn right(&self, group: usize, pixel: usize) -> Matrix {
        let shape = self.shape;
        // SAFETY: the pixel is inside of the output.
        let ptr = unsafe { self.grad_out.at(pixel * shape.out_c + group * shape.group_out()) };
        Matrix {
            ptr,
            dtype: self.grad_out.dtype,
            rows: shape.pixels() - pixel,
            cols: shape.group_out(),
            row_stride: shape.out_c as isize,
            col_stride: 1,
        }
    }
}
