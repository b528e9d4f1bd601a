//! Backpropagation through time.

use super::forward::in_single;
use super::gates::{self, GruBack, LstmBack};
use super::panel::Panel;
use super::tensor_ptr::TensorPtr;
use super::{MOST_ROWS, RecurrentShape, for_each_block, padded, rows_of};
use crate::kernels::gemm::{self, LINE, Matrix, Out};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use plimsoll_core::ops::{Cell, RecurrentGradInputs};

/// The arguments of the backward pass, as [`plimsoll_core::ops::RecurrentGrad`] describes them.
#[derive(Clone, Copy, Debug)]
pub struct BackwardArgs {
    /// Extents.
    pub shape: RecurrentShape,
    /// Input tensors.
    pub inputs: RecurrentGradInputs<TensorPtr>,
    /// Gradient of the projected input; may alias the gates, or a simple cell's states or their gradients.
    pub d_x: TensorPtr,
    /// For a GRU, gradient of the products with the recurrent kernel.
    pub d_recurrent: Option<TensorPtr>,
    /// Gradient of the first hidden state.
    pub d_first: Option<TensorPtr>,
    /// Gradient of the first cell state.
    pub d_state: Option<TensorPtr>,
}

/// Floats of workspace for [`backward`] on a pool of `threads`, for any types; monotone in the batch.
pub fn backward_workspace(shape: &RecurrentShape, threads: usize) -> usize {
    if shape.batch == 0 {
        return 0;
    }
    shared(shape) + per_worker(shape) * shape.slots(threads) + LINE
}

/// The packed kernels, a single-precision copy if the kernel has another type, and the bias.
fn shared(shape: &RecurrentShape) -> usize {
    let (n, wide) = (shape.units, shape.wide());
    Panel::len(wide, n) + Panel::len(n, n) + (n * wide).next_multiple_of(LINE) + padded(wide)
}

/// Four states per row, its gates and products where the tensors cannot be used, and an LSTM's cell states of all
/// steps.
fn per_worker(shape: &RecurrentShape) -> usize {
    let cells = if shape.cell == Cell::Lstm { shape.steps + 1 } else { 0 };
    shape.rows() * ((4 + cells) * shape.stride() + 2 * padded(shape.wide()))
}

/// Runs the backward pass over all steps.
///
/// # Safety
///
/// The tensors have the extents and types of the shape, and alias only as [`BackwardArgs`] states; the tensors of the
/// cell are present.
///
/// # Panics
///
/// If `workspace` is shorter than [`backward_workspace`].
pub unsafe fn backward(pool: &ThreadPool, args: &BackwardArgs, workspace: &mut [f32]) {
    // SAFETY: same contract as this function.
    unsafe { backward_with(Isa::best(), pool, args, workspace) }
}

/// Like [`backward`], with a given instruction set.
///
/// # Safety
/// Same as [`backward`].
///
/// # Panics
/// Same as [`backward`], or if the processor does not support `isa`.
pub unsafe fn backward_with(isa: Isa, pool: &ThreadPool, args: &BackwardArgs, workspace: &mut [f32]) {
    assert!(isa.supported(), "this processor has no {isa:?}");
    let shape = &args.shape;
    let needed = backward_workspace(shape, pool.threads());
    assert!(workspace.len() >= needed, "{shape:?} needs {needed} floats of workspace, not {}", workspace.len());
    if shape.batch == 0 || shape.units == 0 {
        return;
    }
    let scratch = gemm::aligned(workspace);
    let (n, wide) = (shape.units, shape.wide());
    // SAFETY: the parts sum to `shared`; the caller guarantees the tensors.
    unsafe {
        let single = scratch.add(Panel::len(wide, n) + Panel::len(n, n));
        let bias = single.add((n * wide).next_multiple_of(LINE));
        if let Some(given) = args.inputs.bias {
            given.load(isa, 0, wide, bias);
        }
        let kernel = in_single(isa, args.inputs.kernel, n, wide, single);
        let turned = Panel::pack(isa, pool, kernel.transposed(), scratch.add(0));
        let candidate = (shape.cell == Cell::Gru)
            .then(|| Panel::pack(isa, pool, Matrix { ptr: kernel.at(0, 2 * n), cols: n, ..kernel }, scratch.add(Panel::len(wide, n))));
        let pass = BackwardSteps { isa, args, turned, candidate, bias: std::slice::from_raw_parts(bias, wide) };
        let workers = Out(scratch.add(shared(shape)));
        for_each_block(pool, shape, &|block, slot| pass.block(block, workers.add(slot * per_worker(shape))));
    }
}

struct BackwardSteps<'a> {
    isa: Isa,
    args: &'a BackwardArgs,
    /// The kernel, transposed.
    turned: Panel,
    /// The part of the kernel for a GRU's candidate.
    candidate: Option<Panel>,
    bias: &'a [f32],
}

/// A block's parts of the workspace, one pointer per row.
struct Parts {
    dh: [*mut f32; MOST_ROWS],
    dc: [*mut f32; MOST_ROWS],
    q: [*mut f32; MOST_ROWS],
    /// A row of states in single precision, if the tensor has another type.
    state: [*mut f32; MOST_ROWS],
    gates: [*mut f32; MOST_ROWS],
    inner: [*mut f32; MOST_ROWS],
    /// Cell states before the first step and after each.
    cells: *mut f32,
}

impl BackwardSteps<'_> {
    /// Runs a block of rows backward over all steps.
    ///
    /// # Safety
    ///
    /// The tensors satisfy the contract of [`backward`], and `scratch` has [`per_worker`] exclusive floats.
    unsafe fn block(&self, block: usize, scratch: *mut f32) {
        let (isa, shape) = (self.isa, &self.args.shape);
        let BackwardArgs { inputs, d_x, d_recurrent, d_first, d_state, .. } = *self.args;
        let (n, wide, stride) = (shape.units, shape.wide(), shape.stride());
        let rows = shape.block(block);
        let count = rows.len();
        let part = |which: usize| scratch.wrapping_add(which * shape.rows() * stride);
        let parts = Parts {
            dh: rows_of(part(0), stride),
            dc: rows_of(part(1), stride),
            q: rows_of(part(2), stride),
            state: rows_of(part(3), stride),
            gates: rows_of(part(4), padded(wide)),
            inner: rows_of(part(4).wrapping_add(shape.rows() * padded(wide)), padded(wide)),
            cells: part(4).wrapping_add(2 * shape.rows() * padded(wide)),
        };
        let floats = |from: *const f32, count: usize| {
            // SAFETY: rows of the workspace or of a tensor, with the length of the current step.
            unsafe { std::slice::from_raw_parts(from, count) }
        };
        // SAFETY: rows and steps are inside of the tensors, workspace rows inside of their parts, and no two of them
        // overlap.
        unsafe {
            for (i, row) in rows.clone().enumerate() {
                parts.dh[i].write_bytes(0, n);
                match inputs.d_state {
                    Some(given) => given.load(isa, row * n, n, parts.dc[i]),
                    None => parts.dc[i].write_bytes(0, n),
                }
            }
            if shape.cell == Cell::Lstm {
                self.cells(block, &parts);
            }
            for at in (0..shape.steps).rev() {
                let step = shape.step(at);
                let before = self.states_before(block, at, &parts);
                if let Some(candidate) = self.candidate {
                    candidate.multiply(count, &before, &parts.q, false);
                }
                let mut change = parts.gates.map(<*mut f32>::cast_const);
                for (i, row) in rows.clone().enumerate() {
                    let kept = inputs.mask.is_none_or(|mask| mask.is_set(row * shape.steps + step));
                    let (here, there) = (shape.at(row, step, n), shape.at(row, step, wide));
                    let dh = std::slice::from_raw_parts_mut(parts.dh[i], n);
                    match inputs.d_hidden.single(here) {
                        Some(from) => gates::add(isa, dh, floats(from, n)),
                        // The row of gates is not in use yet.
                        None => {
                            inputs.d_hidden.load(isa, here, n, parts.gates[i]);
                            gates::add(isa, dh, floats(parts.gates[i], n));
                        }
                    }
                    let own = d_x.single(there).unwrap_or(parts.gates[i]);
                    let inner = d_recurrent.and_then(|inner| inner.single(there)).unwrap_or(parts.inner[i]);
                    if kept {
                        inputs.gates.or(inputs.hidden).expect("every cell keeps one of them").load(isa, there, wide, own);
                        let line = std::slice::from_raw_parts_mut(own, wide);
                        match shape.cell {
                            Cell::Lstm => {
                                let cells = |at: usize| floats(parts.cells.add((at * shape.rows() + i) * stride), n);
                                let dc = std::slice::from_raw_parts_mut(parts.dc[i], n);
                                gates::lstm_back(isa, line, LstmBack { before: cells(at), after: cells(at + 1), dh, dc });
                            }
                            Cell::Gru => {
                                let (h, q) = (floats(before[i], n), floats(parts.q[i], n));
                                let inner = std::slice::from_raw_parts_mut(inner, wide);
                                gates::gru_back(isa, line, GruBack { h, q, bias: self.bias, dh, inner });
                            }
                            Cell::Simple(activation) => gates::simple_back(isa, activation, line, dh),
                        }
                    } else {
                        // A skipped step has no input gradient; the state's gradient passes through unchanged.
                        own.write_bytes(0, wide);
                        if d_recurrent.is_some() {
                            inner.write_bytes(0, wide);
                        }
                    }
                    d_x.store(isa, there, wide, own);
                    change[i] = own;
                    if let Some(to) = d_recurrent {
                        to.store(isa, there, wide, inner);
                        change[i] = inner;
                    }
                }
                self.turned.multiply(count, &change, &parts.dh, true);
            }
            for (i, row) in rows.enumerate() {
                for (to, from) in [(d_first, parts.dh[i]), (d_state, parts.dc[i])] {
                    if let Some(to) = to {
                        to.store(isa, row * n, n, from);
                    }
                }
            }
        }
    }

    /// The cell states of all steps, recomputed from the gates.
    ///
    /// # Safety
    /// Same as [`BackwardSteps::block`], for an LSTM.
    unsafe fn cells(&self, block: usize, parts: &Parts) {
        let (isa, shape, inputs) = (self.isa, &self.args.shape, &self.args.inputs);
        let (n, wide, stride) = (shape.units, shape.wide(), shape.stride());
        let all = inputs.gates.expect("an LSTM keeps its gates");
        for (i, row) in shape.block(block).enumerate() {
            let cell = |at: usize| parts.cells.wrapping_add((at * shape.rows() + i) * stride);
            // SAFETY: as in `block`; a cell state is read after it was written, and never written twice.
            unsafe {
                match inputs.before {
                    Some(given) => given.load(isa, row * n, n, cell(0)),
                    None => cell(0).write_bytes(0, n),
                }
                for at in 0..shape.steps {
                    let step = shape.step(at);
                    if inputs.mask.is_some_and(|mask| !mask.is_set(row * shape.steps + step)) {
                        std::ptr::copy_nonoverlapping(cell(at), cell(at + 1), n);
                        continue;
                    }
                    let there = shape.at(row, step, wide);
                    let gates = all.single(there).unwrap_or(parts.gates[i]);
                    // The output gate does not affect the cell state.
                    all.load(isa, there, 3 * n, gates);
                    let before = std::slice::from_raw_parts(cell(at), n);
                    gates::lstm_cells(
                        isa,
                        std::slice::from_raw_parts(gates, 3 * n),
                        before,
                        std::slice::from_raw_parts_mut(cell(at + 1), n),
                    );
                }
            }
        }
    }

    /// The hidden states before the `at`-th step, for a GRU; unused for other cells.
    ///
    /// # Safety
    ///
    /// Same as [`BackwardSteps::block`].
    unsafe fn states_before(&self, block: usize, at: usize, parts: &Parts) -> [*const f32; MOST_ROWS] {
        let (shape, inputs) = (&self.args.shape, &self.args.inputs);
        let mut before = parts.state.map(<*mut f32>::cast_const);
        if shape.cell != Cell::Gru {
            return before;
        }
        let n = shape.units;
        for (i, row) in shape.block(block).enumerate() {
            let (source, place) = match at.checked_sub(1) {
                Some(earlier) => (inputs.hidden, shape.at(row, shape.step(earlier), n)),
                None => (inputs.before, row * n),
            };
            // SAFETY: the row is inside of its tensor, or is set to zeros.
            unsafe {
                match source {
                    Some(source) => match source.single(place) {
                        Some(from) => before[i] = from,
                        None => source.load(self.isa, place, n, parts.state[i]),
                    },
                    None => parts.state[i].write_bytes(0, n),
                }
            }
        }
        before
    }
}
