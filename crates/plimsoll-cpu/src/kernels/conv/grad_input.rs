//! The input gradient as an implicit GEMM: rows of the product are input pixels, each the sum over the outputs that
//! read it.
//!
//! With a stride, input pixels are partitioned into phases; all pixels of a phase are read by the same taps. Each phase
//! is a separate dense product, so no multiply-adds are wasted.

use super::depthwise::{self, Scratch};
use super::output::{ConvOutput, SharedOutput};
use super::patches::{self, HalfOperands, PIXELS, PatchSegments, Patches};
use super::{ConvShape, SERIAL};
use crate::kernels::gemm::{self, LINE, Matrix};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use crate::simd::float_view::FloatView;

/// Floats of workspace for [`grad_input`] on a pool of `threads`; monotone in the batch.
pub fn grad_input_workspace(shape: &ConvShape, halves: HalfOperands, threads: usize) -> usize {
    if shape.is_empty() {
        0
    } else if shape.depthwise() {
        Scratch::grad_input(shape, halves).len() * threads.max(1) + LINE
    } else if shape.pointwise() && halves.output {
        gemm::blocks_workspace_len(shape.pixels(), shape.in_c, shape.out_c, threads)
    } else if shape.pointwise() {
        gemm::workspace_len(shape.pixels(), shape.in_c, shape.out_c, threads)
    } else {
        per_worker(shape, halves).next_multiple_of(LINE) * threads.max(1) + LINE
    }
}

fn per_worker(shape: &ConvShape, halves: HalfOperands) -> usize {
    patches::per_worker(shape.taps(), shape.out_c, shape.in_c, halves)
}

/// The gradient of the input from that of the output. The target has no epilogue; its rows are pixels.
///
/// Bit-identical for any number of threads.
///
/// # Panics
///
/// If an operand does not have the length of the shape, or `workspace` is shorter than [`grad_input_workspace`].
pub fn grad_input(
    pool: &ThreadPool,
    shape: &ConvShape,
    grad_out: FloatView<'_>,
    filter: FloatView<'_>,
    target: ConvOutput<'_>,
    workspace: &mut [f32],
) {
    grad_input_with(Isa::best(), pool, shape, grad_out, filter, target, workspace);
}

/// Like [`grad_input`], with a given instruction set.
///
/// # Panics
/// Same as [`grad_input`], or if the processor does not support `isa`.
pub fn grad_input_with(
    isa: Isa,
    pool: &ThreadPool,
    shape: &ConvShape,
    grad_out: FloatView<'_>,
    filter: FloatView<'_>,
    target: ConvOutput<'_>,
    workspace: &mut [f32],
) {
    assert!(isa.supported(), "this processor has no {isa:?}");
    shape.check_extents();
    let halves = HalfOperands { input: grad_out.is_half(), filter: filter.is_half(), output: target.is_blocks() };
    let operands = [
        ("output's gradient", grad_out.len, shape.output_len()),
        ("filter", filter.len, shape.filter_len()),
        ("input's gradient", target.len(shape.batch * shape.in_h * shape.in_w, shape.in_c), shape.input_len()),
    ];
    shape.check(operands, workspace.len(), grad_input_workspace(shape, halves, pool.threads()));
    if shape.is_empty() {
        return target.zeros(shape.batch * shape.in_h * shape.in_w, shape.in_c);
    }
    if shape.depthwise() {
        let (target, scratch) = (target.shared(shape.in_c), gemm::aligned(workspace));
        // SAFETY: extents, lengths and workspace were just checked, and exclusive operands overlap nothing.
        return unsafe { depthwise::grad_input(isa, pool, shape, grad_out, filter, target, halves, scratch) };
    }
    if shape.pointwise() {
        let a = Matrix::of(&grad_out, shape.pixels(), shape.out_c);
        let b = Matrix::of(&filter, shape.in_c, shape.out_c).transposed();
        // SAFETY: the operands have the lengths of the matrices, and exclusive ones overlap nothing.
        return unsafe { target.multiply(isa, pool, a, b, shape.in_c, workspace) };
    }

    let each = per_worker(shape, halves);
    let scratch = gemm::aligned(workspace);
    let pass = InputGradient { isa, shape, grad_out, filter, target: target.shared(shape.in_c) };
    let rows = shape.batch * shape.in_h;
    // Enough rows for a phase to fill its table.
    let block = (patches::block_of(rows * shape.in_w, shape.filter_len()) * shape.stride.0 * shape.stride.1).div_ceil(shape.in_w);
    let task = |task: usize, worker: usize| {
        // SAFETY: the workspace has every worker's tables, and tasks write disjoint rows of the gradient.
        unsafe {
            let patches = Patches::new(patches::part(scratch, worker, each), shape.taps(), shape.out_c, shape.in_c, halves);
            for phase_y in 0..shape.stride.0 {
                for phase_x in 0..shape.stride.1 {
                    pass.phase(&patches, (phase_y, phase_x), task * block..rows.min((task + 1) * block));
                }
            }
        }
    };
    gemm::run(pool, shape.work() >= SERIAL, rows.div_ceil(block), &task);
}

struct InputGradient<'a> {
    isa: Isa,
    shape: &'a ConvShape,
    grad_out: FloatView<'a>,
    filter: FloatView<'a>,
    target: SharedOutput<'a>,
}

impl InputGradient<'_> {
    /// Computes the pixels of one phase in a range of (flattened) input rows.
    ///
    /// # Safety
    ///
    /// The tables have space for all taps, and the rows are in bounds and exclusive to this call.
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
                            (Some(oy), Some(ox)) => self.grad_out.at(((image * shape.out_h + oy) * shape.out_w + ox) * shape.out_c),
                            _ => patches.zeros,
                        };
                    });
                    // If the output is not floats, the table has the pixel's index.
                    let pixel = row * shape.in_w + x;
                    *patches.outs.add(pixels) = match self.target.floats() {
                        Some(grad_in) => grad_in.row(pixel),
                        None => std::ptr::without_provenance_mut(pixel),
                    };
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

    /// The output coordinate that reads a padded input coordinate through a tap at this offset.
    #[inline(always)]
    fn out(&self, padded: usize, tap: usize, stride: usize, extent: usize) -> Option<usize> {
        padded.checked_sub(tap).map(|distance| distance / stride).filter(|&out| out < extent)
    }

    /// Visits the taps of a phase in order; returns their number.
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
    ///
    /// The tables have `pixels` pixels of this phase.
    unsafe fn flush(&self, patches: &Patches, phase: (usize, usize), pixels: usize) {
        let shape = self.shape;
        let segments = self.taps(phase, |_, _, _| {});
        if segments == 0 {
            for pixel in 0..pixels {
                let at = if self.target.floats().is_some() {
                    // SAFETY: the table points to whole pixels of the gradient.
                    unsafe { *patches.outs.add(pixel) }
                } else {
                    patches.block.wrapping_add(pixel * shape.in_c)
                };
                // SAFETY: as above, or a row of the block.
                unsafe { at.write_bytes(0, shape.in_c) };
            }
            // SAFETY: the rows were just written.
            return unsafe { self.hand_out(patches, pixels) };
        }
        let across = (0..shape.k_w).filter(|kx| kx * shape.dilation.1 % shape.stride.1 == phase.1).count();
        let tap = |segment: usize| {
            let ky = (0..shape.k_h).filter(|ky| ky * shape.dilation.0 % shape.stride.0 == phase.0).nth(segment / across);
            let kx = (0..shape.k_w).filter(|kx| kx * shape.dilation.1 % shape.stride.1 == phase.1).nth(segment % across);
            ky.zip(kx).map_or(0, |(ky, kx)| ky * shape.k_w + kx)
        };
        let run = PatchSegments { segments, length: shape.group_out() };
        for group in 0..shape.groups {
            let (to, from) = (group * shape.group_in(), group * shape.group_out());
            // The filter of a tap, transposed: [out channels, in channels].
            let right = |segment: usize| Matrix {
                // SAFETY: the tap and the group are inside of the filter.
                ptr: unsafe { self.filter.at(tap(segment) * shape.group_in() * shape.out_c + from) },
                dtype: self.filter.dtype,
                rows: run.length,
                cols: shape.group_in(),
                row_stride: 1,
                col_stride: shape.out_c as isize,
            };
            // SAFETY: runs are pixels of the output gradient or zeros; outs are pixels of the input gradient.
            unsafe {
                let blocked = self.target.floats().is_none().then_some(shape.in_c);
                patches.multiply(self.isa, (pixels, self.grad_out.dtype), blocked, run, (from, to), &right, false);
            }
        }
        // SAFETY: all channels of these pixels are complete.
        unsafe { self.hand_out(patches, pixels) };
    }

    /// Passes the pixels of the tables to the block consumer one by one, if the output is not written in place.
    ///
    /// # Safety
    ///
    /// They are complete.
    unsafe fn hand_out(&self, patches: &Patches, pixels: usize) {
        if self.target.floats().is_some() {
            return;
        }
        let channels = self.shape.in_c;
        for at in 0..pixels {
            // SAFETY: guaranteed by the caller; the table has pixel indices.
            unsafe {
                let pixel = (*patches.outs.add(at)).addr();
                self.target.finish(pixel..pixel + 1, 0..channels, patches.block.add(at * channels), 0);
            }
        }
    }
}
