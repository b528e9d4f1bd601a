//! The gradient of a convolution with respect to its input: rows of the product are input pixels, each the sum over the outputs that read it.
//!
//! With a stride, input pixels fall into phases, and all pixels of a phase are read through the same few taps. A phase is a dense product of its own,
//! so no multiply-add is spent on taps that cannot meet.

use super::patches::{self, In, PIXELS, Patches, Run};
use super::{ConvShape, SERIAL, depthwise};
use crate::gemm::{self, LINE, Matrix, Out, Write};
use crate::simd::Isa;
use crate::threads::Pool;

/// Floats of workspace [`grad_input`] needs on a pool of `threads`; it never falls when the batch grows.
pub fn grad_input_workspace(shape: &ConvShape, threads: usize) -> usize {
    if shape.is_empty() {
        0
    } else if shape.depthwise() {
        depthwise::per_worker(shape, 1) * threads.max(1) + LINE
    } else if shape.pointwise() {
        gemm::workspace_len(shape.pixels(), shape.in_c, shape.out_c, threads)
    } else {
        per_worker(shape).next_multiple_of(LINE) * threads.max(1) + LINE
    }
}

fn per_worker(shape: &ConvShape) -> usize {
    patches::per_worker(shape.taps(), shape.out_c)
}

/// `grad_in = ` the gradient of the input, given that of the output.
///
/// The result is bit-identical at any number of threads.
///
/// # Panics
/// When a slice does not have the length the shape gives it, or `workspace` is shorter than [`grad_input_workspace`] asks for.
pub fn grad_input(pool: &Pool, shape: &ConvShape, grad_out: &[f32], filter: &[f32], grad_in: &mut [f32], workspace: &mut [f32]) {
    grad_input_with(Isa::best(), pool, shape, grad_out, filter, grad_in, workspace);
}

/// [`grad_input`] with chosen instructions.
///
/// # Panics
/// As [`grad_input`], and when the processor lacks `isa`.
pub fn grad_input_with(
    isa: Isa,
    pool: &Pool,
    shape: &ConvShape,
    grad_out: &[f32],
    filter: &[f32],
    grad_in: &mut [f32],
    workspace: &mut [f32],
) {
    assert!(isa.supported(), "this processor has no {isa:?}");
    let operands = [
        ("output's gradient", grad_out.len(), shape.output_len()),
        ("filter", filter.len(), shape.filter_len()),
        ("input's gradient", grad_in.len(), shape.input_len()),
    ];
    shape.check(operands, workspace.len(), grad_input_workspace(shape, pool.threads()));
    if shape.is_empty() {
        return grad_in.fill(0.0);
    }
    if shape.depthwise() {
        return depthwise::grad_input(isa, pool, shape, grad_out, filter, grad_in, gemm::aligned(workspace));
    }
    if shape.pointwise() {
        let a = Matrix::new(grad_out.as_ptr(), shape.pixels(), shape.out_c);
        let b = Matrix::new(filter.as_ptr(), shape.in_c, shape.out_c).transposed();
        // SAFETY: the slices have the lengths of the matrices, and an exclusive one overlaps no other.
        return unsafe { gemm::gemm_with(isa, pool, Write::Set, a, b, grad_in.as_mut_ptr(), shape.in_c, workspace, None) };
    }

    let each = per_worker(shape);
    let scratch = gemm::aligned(workspace);
    let pass = Pass { isa, shape, grad_out: In(grad_out.as_ptr()), filter: In(filter.as_ptr()), grad_in: Out(grad_in.as_mut_ptr()) };
    let rows = shape.batch * shape.in_h;
    // Enough rows that a phase fills its table.
    let block = (patches::block_of(rows * shape.in_w, shape.filter_len()) * shape.stride.0 * shape.stride.1).div_ceil(shape.in_w);
    let task = |task: usize, worker: usize| {
        // SAFETY: the workspace has room for every worker's tables, and rows of different tasks are different parts of the gradient.
        unsafe {
            let patches = Patches::new(patches::part(scratch, worker, each), shape.taps(), shape.out_c);
            for phase_y in 0..shape.stride.0 {
                for phase_x in 0..shape.stride.1 {
                    pass.phase(&patches, (phase_y, phase_x), task * block..rows.min((task + 1) * block));
                }
            }
        }
    };
    gemm::run(pool, shape.work() >= SERIAL, rows.div_ceil(block), &task);
}

struct Pass<'a> {
    isa: Isa,
    shape: &'a ConvShape,
    grad_out: In,
    filter: In,
    grad_in: Out,
}

impl Pass<'_> {
    /// The pixels of one phase in a range of (flattened) input rows.
    ///
    /// # Safety
    /// The tables have room for all taps, and the rows lie inside the gradient and are written by nobody else.
    unsafe fn phase(&self, patches: &Patches, phase: (usize, usize), rows: std::ops::Range<usize>) {
        let shape = self.shape;
        let mut pixels = 0;
        for row in rows {
            let (image, y) = (row / shape.in_h, row % shape.in_h);
            if (y + shape.pad.0) % shape.stride.0 != phase.0 {
                continue;
            }
            let first = (phase.1 + shape.stride.1 - shape.pad.1 % shape.stride.1) % shape.stride.1;
            for x in (first..shape.in_w).step_by(shape.stride.1) {
                // SAFETY: fewer than `PIXELS` entries are in the tables.
                unsafe {
                    self.taps(phase, |segment, ky, kx| {
                        let oy = self.out(y + shape.pad.0, ky * shape.dilation.0, shape.stride.0, shape.out_h);
                        let ox = self.out(x + shape.pad.1, kx * shape.dilation.1, shape.stride.1, shape.out_w);
                        *patches.runs.add(segment * PIXELS + pixels) = match (oy, ox) {
                            (Some(oy), Some(ox)) => self.grad_out.add(((image * shape.out_h + oy) * shape.out_w + ox) * shape.out_c),
                            _ => patches.zeros,
                        };
                    });
                    *patches.outs.add(pixels) = self.grad_in.add((row * shape.in_w + x) * shape.in_c);
                    pixels += 1;
                    if pixels == PIXELS {
                        self.flush(patches, phase, pixels);
                        pixels = 0;
                    }
                }
            }
        }
        if pixels > 0 {
            // SAFETY: the first `pixels` entries are filled in.
            unsafe { self.flush(patches, phase, pixels) };
        }
    }

    /// The output coordinate that reads a padded input coordinate through a tap at this distance.
    #[inline(always)]
    fn out(&self, padded: usize, tap: usize, stride: usize, extent: usize) -> Option<usize> {
        padded.checked_sub(tap).map(|distance| distance / stride).filter(|&out| out < extent)
    }

    /// Visits the taps that meet a phase, numbered in order; returns how many there are.
    #[inline(always)]
    fn taps(&self, phase: (usize, usize), mut visit: impl FnMut(usize, usize, usize)) -> usize {
        let shape = self.shape;
        let mut segment = 0;
        for ky in (0..shape.k_h).filter(|ky| ky * shape.dilation.0 % shape.stride.0 == phase.0) {
            for kx in (0..shape.k_w).filter(|kx| kx * shape.dilation.1 % shape.stride.1 == phase.1) {
                visit(segment, ky, kx);
                segment += 1;
            }
        }
        segment
    }

    /// Computes the pixels in the tables.
    ///
    /// # Safety
    /// The tables hold `pixels` pixels of this phase.
    unsafe fn flush(&self, patches: &Patches, phase: (usize, usize), pixels: usize) {
        let shape = self.shape;
        let segments = self.taps(phase, |_, _, _| {});
        if segments == 0 {
            for pixel in 0..pixels {
                // SAFETY: the table points at whole pixels of the gradient.
                unsafe { (*patches.outs.add(pixel)).write_bytes(0, shape.in_c) };
            }
            return;
        }
        let across = (0..shape.k_w).filter(|kx| kx * shape.dilation.1 % shape.stride.1 == phase.1).count();
        let tap = |segment: usize| {
            let ky = (0..shape.k_h).filter(|ky| ky * shape.dilation.0 % shape.stride.0 == phase.0).nth(segment / across);
            let kx = (0..shape.k_w).filter(|kx| kx * shape.dilation.1 % shape.stride.1 == phase.1).nth(segment % across);
            ky.zip(kx).map_or(0, |(ky, kx)| ky * shape.k_w + kx)
        };
        let run = Run { segments, length: shape.group_out() };
        for group in 0..shape.groups {
            let (to, from) = (group * shape.group_in(), group * shape.group_out());
            // The filter of a tap, transposed: [out channels, in channels].
            let right = |segment: usize| Matrix {
                // SAFETY: the tap and the group lie inside the filter.
                ptr: unsafe { self.filter.add(tap(segment) * shape.group_in() * shape.out_c + from) },
                rows: run.length,
                cols: shape.group_in(),
                row_stride: 1,
                col_stride: shape.out_c as isize,
            };
            // SAFETY: runs are pixels of the output's gradient or zeros, outs pixels of the input's.
            unsafe { patches.multiply(self.isa, pixels, run, (from, to), &right, false) };
        }
    }
}
