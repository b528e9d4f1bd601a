//! The forward pass over all steps.

use super::panel::Panel;
use super::tensor_ptr::TensorPtr;
use super::{MOST_ROWS, RecurrentShape, for_each_block, gates, padded, rows_of};
use crate::kernels::gemm::{self, LINE, Matrix, Out};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use plimsoll_core::DType;
use plimsoll_core::ops::{Cell, RecurrentInputs};

/// The arguments of the forward pass, as [`plimsoll_core::ops::Recurrent`] describes them.
#[derive(Clone, Copy, Debug)]
pub struct ForwardArgs {
    /// Extents.
    pub shape: RecurrentShape,
    /// Input tensors.
    pub inputs: RecurrentInputs<TensorPtr>,
    /// Hidden states.
    pub hidden: TensorPtr,
    /// Activated gates of an LSTM or a GRU; may alias the projected input.
    pub gates: Option<TensorPtr>,
    /// The last cell state of an LSTM.
    pub last: Option<TensorPtr>,
}

/// Floats of workspace for [`forward`] on a pool of `threads`, for any types; monotone in the batch.
pub fn forward_workspace(shape: &RecurrentShape, threads: usize) -> usize {
    if shape.batch == 0 {
        return 0;
    }
    shared(shape) + per_worker(shape) * shape.slots(threads) + LINE
}

/// The packed kernel, a single-precision copy if the kernel has another type, and the bias.
fn shared(shape: &RecurrentShape) -> usize {
    let (n, wide) = (shape.units, shape.wide());
    // A GRU's kernel is packed in two parts.
    Panel::len(n, wide) + Panel::len(n, n) + (n * wide).next_multiple_of(LINE) + padded(wide)
}

/// Two states and a product per row, and its sums where the tensors cannot be used.
fn per_worker(shape: &RecurrentShape) -> usize {
    shape.rows() * (3 * shape.stride() + padded(shape.wide()))
}

/// Runs the forward pass over all steps.
///
/// # Safety
///
/// The tensors have the extents and types of the shape, and alias only as [`ForwardArgs`] states; the tensors of the
/// cell are present.
///
/// # Panics
///
/// If `workspace` is shorter than [`forward_workspace`].
pub unsafe fn forward(pool: &ThreadPool, args: &ForwardArgs, workspace: &mut [f32]) {
    // SAFETY: same contract as this function.
    unsafe { forward_with(Isa::best(), pool, args, workspace) }
}

/// Like [`forward`], with a given instruction set.
///
/// # Safety
/// Same as [`forward`].
///
/// # Panics
/// Same as [`forward`], or if the processor does not support `isa`.
pub unsafe fn forward_with(isa: Isa, pool: &ThreadPool, args: &ForwardArgs, workspace: &mut [f32]) {
    assert!(isa.supported(), "this processor has no {isa:?}");
    let shape = &args.shape;
    let needed = forward_workspace(shape, pool.threads());
    assert!(workspace.len() >= needed, "{shape:?} needs {needed} floats of workspace, not {}", workspace.len());
    if shape.batch == 0 || shape.units == 0 {
        return;
    }
    let scratch = gemm::aligned(workspace);
    let (n, wide) = (shape.units, shape.wide());
    // SAFETY: the parts sum to `shared`; the caller guarantees the tensors.
    unsafe {
        let single = scratch.add(Panel::len(n, wide) + Panel::len(n, n));
        let bias = single.add((n * wide).next_multiple_of(LINE));
        if let Some(given) = args.inputs.bias {
            given.load(isa, 0, wide, bias);
        }
        let kernel = in_single(isa, args.inputs.kernel, n, wide, single);
        // The candidate of a GRU has a separate product.
        let first = if shape.cell == Cell::Gru { 2 * n } else { wide };
        let sums = Panel::pack(isa, pool, Matrix { cols: first, ..kernel }, scratch.add(0));
        let candidate = (shape.cell == Cell::Gru)
            .then(|| Panel::pack(isa, pool, Matrix { ptr: kernel.at(0, first), cols: n, ..kernel }, scratch.add(Panel::len(n, wide))));
        let pass = ForwardSteps { isa, args, sums, candidate, bias: std::slice::from_raw_parts(bias, wide) };
        let workers = Out(scratch.add(shared(shape)));
        for_each_block(pool, shape, &|block, slot| pass.block(block, workers.add(slot * per_worker(shape))));
    }
}

/// A kernel as a matrix in single precision, copied to `to` if it has another type.
///
/// # Safety
/// The kernel is `[rows, columns]`, and `to` is writable for it.
pub(super) unsafe fn in_single(isa: Isa, kernel: TensorPtr, rows: usize, columns: usize, to: *mut f32) -> Matrix {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if kernel.dtype != DType::F32 {
            kernel.load(isa, 0, rows * columns, to);
        }
    }
    Matrix::new(kernel.single(0).unwrap_or(to), rows, columns)
}

struct ForwardSteps<'a> {
    isa: Isa,
    args: &'a ForwardArgs,
    sums: Panel,
    candidate: Option<Panel>,
    bias: &'a [f32],
}

impl ForwardSteps<'_> {
    /// Runs a block of rows over all steps.
    ///
    /// # Safety
    ///
    /// The tensors satisfy the contract of [`forward`], and `scratch` has [`per_worker`] exclusive floats.
    unsafe fn block(&self, block: usize, scratch: *mut f32) {
        let (isa, shape) = (self.isa, &self.args.shape);
        let ForwardArgs { inputs, hidden, gates, last, .. } = *self.args;
        let (n, wide, stride) = (shape.units, shape.wide(), shape.stride());
        let rows = shape.block(block);
        let count = rows.len();
        let part = |which: usize| scratch.wrapping_add(which * shape.rows() * stride);
        let h: [*mut f32; MOST_ROWS] = rows_of(part(0), stride);
        let (c, q): ([_; MOST_ROWS], [_; MOST_ROWS]) = (rows_of(part(1), stride), rows_of(part(2), stride));
        let spare: [_; MOST_ROWS] = rows_of(part(3), padded(wide));
        let from = h.map(<*mut f32>::cast_const);
        let results = gates.unwrap_or(hidden);
        // SAFETY: rows and steps are inside of the tensors, workspace rows inside of their parts, and no two of them
        // overlap.
        unsafe {
            for (i, row) in rows.clone().enumerate() {
                for (to, given) in [(h[i], inputs.hidden), (c[i], inputs.state)] {
                    match given {
                        Some(given) => given.load(isa, row * n, n, to),
                        None => to.write_bytes(0, n),
                    }
                }
            }
            for step in (0..shape.steps).map(|at| shape.step(at)) {
                let mut sums = spare;
                let mut kept = [true; MOST_ROWS];
                for (i, row) in rows.clone().enumerate() {
                    kept[i] = inputs.mask.is_none_or(|mask| mask.is_set(row * shape.steps + step));
                    let at = shape.at(row, step, wide);
                    sums[i] = results.single(at).unwrap_or(spare[i]);
                    inputs.x.load(isa, at, wide, sums[i]);
                }
                self.sums.multiply(count, &from, &sums, true);
                if let Some(candidate) = self.candidate {
                    candidate.multiply(count, &from, &q, false);
                }
                for (i, row) in rows.clone().enumerate() {
                    let line = std::slice::from_raw_parts_mut(sums[i], wide);
                    let state = std::slice::from_raw_parts_mut(h[i], n);
                    match shape.cell {
                        Cell::Lstm => gates::lstm(isa, line, std::slice::from_raw_parts_mut(c[i], n), state, kept[i]),
                        Cell::Gru => gates::gru(isa, line, std::slice::from_raw_parts(q[i], n), self.bias, state, kept[i]),
                        Cell::Simple(activation) if kept[i] => {
                            gates::simple(isa, activation, line);
                            state.copy_from_slice(line);
                        }
                        Cell::Simple(_) => line.copy_from_slice(state),
                    }
                    if let Some(gates) = gates {
                        gates.store(isa, shape.at(row, step, wide), wide, sums[i]);
                        hidden.store(isa, shape.at(row, step, n), n, h[i]);
                    } else {
                        hidden.store(isa, shape.at(row, step, n), n, sums[i]);
                    }
                }
            }
            if let Some(last) = last {
                rows.enumerate().for_each(|(i, row)| last.store(isa, row * n, n, c[i]));
            }
        }
    }
}
