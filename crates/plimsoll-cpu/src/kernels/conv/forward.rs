//! The forward convolution: rows of the product are output pixels, in the order they lie in memory.

use std::ops::Range;

use super::depthwise::{self, Scratch};
use super::output::ConvOutput;
use super::patches::{self, HalfOperands, PIXELS, Patches, Run};
use super::{ConvShape, SERIAL};
use crate::kernels::gemm::{self, LINE, Matrix};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use crate::simd::float_view::FloatView;

/// Floats of workspace [`forward`] needs on a pool of `threads`; it never falls when the batch grows.
pub fn forward_workspace(shape: &ConvShape, halves: HalfOperands, threads: usize) -> usize {
    if shape.is_empty() {
        0
    } else if shape.depthwise() {
        Scratch::forward(shape, halves).len() * threads.max(1) + LINE
    } else if shape.pointwise() && halves.output {
        gemm::blocks_workspace_len(shape.pixels(), shape.out_c, shape.in_c, threads)
    } else if shape.pointwise() {
        gemm::workspace_len(shape.pixels(), shape.out_c, shape.in_c, threads)
    } else {
        per_worker(shape, halves).next_multiple_of(LINE) * threads.max(1) + LINE
    }
}

fn per_worker(shape: &ConvShape, halves: HalfOperands) -> usize {
    let run = runs(shape);
    let edges = if over_edges(shape) { PIXELS * run.segments * run.length } else { 0 };
    patches::per_worker(run.segments, zeros(shape, run), shape.out_c, halves) + edges
}

/// Zeros that stand in for a run in the padding.
fn zeros(shape: &ConvShape, run: Run) -> usize {
    shape.in_c.max(run.length)
}

/// Channels below which a run of one tap is too short to be worth its pointer.
const FEW: usize = 8;

/// Whether runs of a padded convolution are whole filter rows all the same: nearly all of them lie inside the image, and the few that do not are copied.
fn over_edges(shape: &ConvShape) -> bool {
    shape.padded() && shape.groups == 1 && shape.dilation.1 == 1 && shape.in_c <= FEW && shape.k_w > 1
}

/// The taps of a filter row are contiguous in the input when they are neighbours and none can be padding.
fn runs(shape: &ConvShape) -> Run {
    if over_edges(shape) || (shape.groups == 1 && shape.dilation.1 == 1 && !shape.padded()) {
        Run { segments: shape.k_h, length: shape.k_w * shape.in_c }
    } else {
        Run { segments: shape.taps(), length: shape.group_in() }
    }
}

/// `output = input ∗ filter`.
///
/// The result is bit-identical at any number of threads. An epilogue or the taker of blocks sees each output pixel once, with all of its channels: rows are pixels
/// of the flattened `[batch · out_h · out_w, out_c]` output, columns always `0..out_c`, except for a 1 × 1 convolution of more than 1024 channels, which is cut as
/// [`gemm::gemm`] says.
///
/// # Panics
/// When an operand does not have the length the shape gives it, or `workspace` is shorter than [`forward_workspace`] asks for.
pub fn forward(
    pool: &ThreadPool,
    shape: &ConvShape,
    input: FloatView<'_>,
    filter: FloatView<'_>,
    target: ConvOutput<'_>,
    workspace: &mut [f32],
) {
    forward_with(Isa::best(), pool, shape, input, filter, target, workspace);
}

/// [`forward`] with chosen instructions.
///
/// # Panics
/// As [`forward`], and when the processor lacks `isa`.
pub fn forward_with(
    isa: Isa,
    pool: &ThreadPool,
    shape: &ConvShape,
    input: FloatView<'_>,
    filter: FloatView<'_>,
    target: ConvOutput<'_>,
    workspace: &mut [f32],
) {
    assert!(isa.supported(), "this processor has no {isa:?}");
    shape.check_extents();
    let halves = HalfOperands { input: input.is_half(), filter: filter.is_half(), output: target.is_blocks() };
    let operands = [
        ("input", input.len, shape.input_len()),
        ("filter", filter.len, shape.filter_len()),
        ("output", target.len(shape.pixels(), shape.out_c), shape.output_len()),
    ];
    shape.check(operands, workspace.len(), forward_workspace(shape, halves, pool.threads()));
    if shape.output_len() == 0 {
        return;
    }
    if shape.is_empty() {
        return target.zeros(shape.pixels(), shape.out_c);
    }
    if shape.depthwise() {
        return depthwise::forward(isa, pool, shape, input, filter, target.shared(shape.out_c), halves, gemm::aligned(workspace));
    }
    if shape.pointwise() {
        let (a, b) = (Matrix::of(&input, shape.pixels(), shape.in_c), Matrix::of(&filter, shape.in_c, shape.out_c));
        // SAFETY: the operands have the lengths of the matrices, and what is exclusive overlaps nothing.
        return unsafe { target.multiply(isa, pool, a, b, shape.out_c, workspace) };
    }

    let run = runs(shape);
    let each = per_worker(shape, halves);
    let scratch = gemm::aligned(workspace);
    let target = target.shared(shape.out_c);
    let pixels = shape.pixels();
    let block = patches::block_of(pixels, shape.filter_len());
    let task = |task: usize, worker: usize| {
        let range = task * block..pixels.min((task + 1) * block);
        // SAFETY: the workspace holds every worker's tables; pixels of different tasks are different parts of the output; the tables name runs
        // inside the input or the zeros, and the filter's rows follow each other tap by tap.
        unsafe {
            let patches = Patches::new(patches::part(scratch, worker, each), run.segments, zeros(shape, run), shape.out_c, halves);
            fill(shape, run, &patches, range.clone(), input);
            if let Some(output) = target.floats() {
                for (at, pixel) in range.clone().enumerate() {
                    *patches.outs.add(at) = output.row(pixel);
                }
            }
            for group in 0..shape.groups {
                let (from, to) = (group * shape.group_in(), group * shape.group_out());
                let right = |segment: usize| Matrix {
                    ptr: filter.at(segment * run.length * shape.out_c + to),
                    dtype: filter.dtype,
                    rows: run.length,
                    cols: shape.group_out(),
                    row_stride: shape.out_c as isize,
                    col_stride: 1,
                };
                let blocked = halves.output.then_some(shape.out_c);
                patches.multiply(isa, (range.len(), input.dtype), blocked, run, (from, to), &right, true);
            }
            target.finish(range, 0..shape.out_c, patches.block, worker);
        }
    };
    gemm::run(pool, shape.work() >= SERIAL, pixels.div_ceil(block), &task);
}

/// Enters the runs of a range of output pixels into the table, one row of the output and one tap at a time: a division per pixel would cost as much
/// as the arithmetic of a small filter.
///
/// # Safety
/// The table holds the range, and `input` is the input of `shape`.
unsafe fn fill(shape: &ConvShape, run: Run, patches: &Patches, range: Range<usize>, input: FloatView<'_>) {
    let run_columns = run.segments / shape.k_h;
    let mut pixel = range.start;
    while pixel < range.end {
        let (row, x) = (pixel / shape.out_w, pixel % shape.out_w);
        let (image, y) = (row / shape.out_h, row % shape.out_h);
        let count = (shape.out_w - x).min(range.end - pixel);
        for ky in 0..shape.k_h {
            let line = shape.in_row(y, ky).map(|line| (image * shape.in_h + line) * shape.in_w);
            for kx in 0..run_columns {
                // SAFETY: the entries belong to the range; line and column lie inside the image.
                unsafe {
                    let table = patches.runs.add((ky * run_columns + kx) * PIXELS + pixel - range.start);
                    if over_edges(shape) {
                        let first = ky * PIXELS + pixel - range.start;
                        fill_row(shape, run, patches, line, (x, count), first, input);
                        continue;
                    }
                    for step in 0..count {
                        *table.add(step) = match (line, shape.in_col(x + step, kx)) {
                            (Some(line), Some(column)) => input.at((line + column) * shape.in_c),
                            _ => patches.zeros,
                        };
                    }
                }
            }
        }
        pixel += count;
    }
}

/// Enters one filter row of `count` neighbouring pixels from column `x` on: a pointer into the input, or a copy of the part that is inside of the image.
///
/// # Safety
/// As for [`fill`], and the edges are allocated; `line` is the first pixel of the image's row, if it is not padding, and `first` the entry of the first pixel.
unsafe fn fill_row(
    shape: &ConvShape,
    run: Run,
    patches: &Patches,
    line: Option<usize>,
    (x, count): (usize, usize),
    first: usize,
    input: FloatView<'_>,
) {
    let size = input.dtype.size();
    for step in 0..count {
        // SAFETY: the entry belongs to the range; the columns from `from` to `to` lie inside the image, and their copy inside the entry's own part of the edges.
        unsafe {
            let entry = patches.runs.add(first + step);
            let Some(line) = line else {
                *entry = patches.zeros;
                continue;
            };
            // Columns of the padded image.
            let left = (x + step) * shape.stride.1;
            if left >= shape.pad.1 && left + shape.k_w <= shape.pad.1 + shape.in_w {
                *entry = input.at((line + left - shape.pad.1) * shape.in_c);
                continue;
            }
            let copy = patches.edges.add((first + step) * run.length);
            copy.write_bytes(0, run.length);
            let (from, to) = (left.max(shape.pad.1), (left + shape.k_w).min(shape.pad.1 + shape.in_w));
            if from < to {
                let source = input.at((line + from - shape.pad.1) * shape.in_c).cast::<u8>();
                let target = copy.cast::<u8>().add((from - left) * shape.in_c * size);
                target.copy_from_nonoverlapping(source, (to - from) * shape.in_c * size);
            }
            *entry = copy;
        }
    }
}
