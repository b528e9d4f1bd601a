//! The forward convolution as an implicit GEMM: rows of the product are output pixels, in memory order.

use std::ops::Range;

use super::depthwise::{self, Scratch};
use super::output::ConvOutput;
use super::patches::{self, HalfOperands, PIXELS, PatchSegments, Patches};
use super::{ConvShape, SERIAL};
use crate::kernels::gemm::{self, LINE, Matrix};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use crate::simd::float_view::FloatView;

/// Floats of workspace for [`forward`] on a pool of `threads`; monotone in the batch.
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

/// Zeros for a run in the padding.
fn zeros(shape: &ConvShape, run: PatchSegments) -> usize {
    shape.in_c.max(run.length)
}

/// Minimum channels for which a run of a single tap is worth a pointer.
const FEW: usize = 8;

/// Whether a padded convolution still uses whole filter rows as runs: nearly all are inside of the image, and the
/// others are copied.
fn over_edges(shape: &ConvShape) -> bool {
    shape.padded() && shape.groups == 1 && shape.dilation.1 == 1 && shape.in_c <= FEW && shape.k_w > 1
}

/// The taps of a filter row are contiguous in the input if they are adjacent and none is padding.
fn runs(shape: &ConvShape) -> PatchSegments {
    if over_edges(shape) || (shape.groups == 1 && shape.dilation.1 == 1 && !shape.padded()) {
        PatchSegments { segments: shape.k_h, length: shape.k_w * shape.in_c }
    } else {
        PatchSegments { segments: shape.taps(), length: shape.group_in() }
    }
}

/// `output = input ∗ filter`.
///
/// Bit-identical for any number of threads. An epilogue or block consumer sees each output pixel once, with all of its
/// channels: rows are pixels of the flattened `[batch · out_h · out_w, out_c]` output, columns always `0..out_c`,
/// except for a 1 × 1 convolution of more than 1024 channels, which is blocked like [`gemm::gemm`].
///
/// # Panics
///
/// If an operand does not have the length of the shape, or `workspace` is shorter than [`forward_workspace`].
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

/// Like [`forward`], with a given instruction set.
///
/// # Panics
/// Same as [`forward`], or if the processor does not support `isa`.
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
        let (target, scratch) = (target.shared(shape.out_c), gemm::aligned(workspace));
        // SAFETY: extents, lengths and workspace were just checked, and exclusive operands overlap nothing.
        return unsafe { depthwise::forward(isa, pool, shape, input, filter, target, halves, scratch) };
    }
    if shape.pointwise() {
        let (a, b) = (Matrix::of(&input, shape.pixels(), shape.in_c), Matrix::of(&filter, shape.in_c, shape.out_c));
        // SAFETY: the operands have the lengths of the matrices, and exclusive ones overlap nothing.
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
        // SAFETY: the workspace has every worker's tables; tasks write disjoint output pixels; the tables refer to runs
        // inside of the input or the zeros, and the filter's rows are contiguous tap by tap.
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

/// Fills the table with the runs of a range of output pixels, by output row and tap: a division per pixel would cost as
/// much as the arithmetic of a small filter.
///
/// # Safety
///
/// The table has space for the range, and `input` is the input of `shape`.
unsafe fn fill(shape: &ConvShape, run: PatchSegments, patches: &Patches, range: Range<usize>, input: FloatView<'_>) {
    let run_columns = run.segments / shape.k_h;
    let mut pixel = range.start;
    while pixel < range.end {
        let (row, x) = (pixel / shape.out_w, pixel % shape.out_w);
        let (image, y) = (row / shape.out_h, row % shape.out_h);
        let count = (shape.out_w - x).min(range.end - pixel);
        for ky in 0..shape.k_h {
            let line = shape.in_row(y, ky).map(|line| (image * shape.in_h + line) * shape.in_w);
            for kx in 0..run_columns {
                // SAFETY: the entries belong to the range; row and column are inside of the image.
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

/// Fills in one filter row of `count` adjacent pixels from column `x` on: a pointer into the input, or a copy of the
/// part inside of the image.
///
/// # Safety
///
/// Same as [`fill`], and the edge buffer is allocated; `line` is the first pixel of the image's row, if it is not
/// padding, and `first` the entry of the first pixel.
unsafe fn fill_row(
    shape: &ConvShape,
    run: PatchSegments,
    patches: &Patches,
    line: Option<usize>,
    (x, count): (usize, usize),
    first: usize,
    input: FloatView<'_>,
) {
    let size = input.dtype.size();
    for step in 0..count {
        // SAFETY: the entry belongs to the range; columns `from` to `to` are inside of the image, and their copy is
        // inside of the entry's edge buffer.
        unsafe {
            let entry = patches.runs.add(first + step);
            let Some(line) = line else {
                *entry = patches.zeros;
                continue;
            };
            // In padded coordinates.
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
