//! Recurrent layers: one launch per step, which multiplies by the recurrent kernel and applies the gates. States are in
//! single precision in the workspace between steps; sums are split by shape and combined in a fixed order.

use super::tiled_matmul::TiledMatmul;
use super::{Argument, Kernel, THREADS, block_count, index_type, parameter};
use plimsoll_core::DType;
use plimsoll_core::ops::{Activation, Cell, Recurrent, RecurrentGrad};
use std::fmt::Write;

/// Units of a block, and its maximum rows.
const UNITS: usize = 32;
const ROWS: usize = 8;

/// The shape of a sequence, forward or backward.
#[derive(Clone, Copy, Debug)]
struct RecurrentShape {
    cell: Cell,
    batch: usize,
    steps: usize,
    units: usize,
    reverse: bool,
}

/// Workspace bytes of a layer: the hidden state before and after a step, and an LSTM's cell state.
pub(crate) fn recurrent_workspace(op: &Recurrent, batch: usize) -> u64 {
    let state = 4 * (batch * op.units) as u64;
    state * if op.cell == Cell::Lstm { 3 } else { 2 }
}

/// Workspace bytes of the backward pass, in the layout of [`Scratch`].
pub(crate) fn recurrent_grad_workspace(op: &RecurrentGrad, batch: usize, steps: usize) -> u64 {
    Scratch::new(&RecurrentShape { cell: op.cell, batch, steps, units: op.units, reverse: op.reverse }).size as u64
}

/// A layer's kernels in order. `dtype` returns the type of an input.
pub(crate) fn recurrent(op: &Recurrent, batch: usize, steps: usize, inputs: &[usize], dtype: impl Fn(usize) -> DType) -> Vec<Kernel> {
    let shape = RecurrentShape { cell: op.cell, batch, steps, units: op.units, reverse: op.reverse };
    let operands = op.operands(inputs).expect("checked when the node was added");
    let (x, out) = (operands.x, dtype(operands.x));
    let state = 4 * batch * op.units;
    let hidden = |parity: usize| Argument::WorkspaceAt(parity % 2 * state);
    let mut kernels = vec![shape.start(operands.hidden.map(|i| (i, dtype(i))), hidden(0))];
    if op.cell == Cell::Lstm {
        kernels.push(shape.start(operands.state.map(|i| (i, dtype(i))), Argument::WorkspaceAt(2 * state)));
    }
    let wide = shape.wide();
    for (number, step) in shape.order().enumerate() {
        let mut names = Parameters::default();
        names.read(Some(x), "x", &dtype, step * wide);
        names.read(Some(operands.kernel), "kernel", &dtype, 0);
        names.read(operands.bias, "bias", &dtype, 0);
        names.read(operands.mask, "mask", &dtype, step);
        names.take("const float* h_before", hidden(number));
        names.take("float* h_after", hidden(number + 1));
        names.take_if(op.cell == Cell::Lstm, DType::F32, "state", Argument::WorkspaceAt(2 * state));
        names.take_if(true, out, "hidden", Argument::OutputAt(0, step * op.units * out.size()));
        names.take_if(!matches!(op.cell, Cell::Simple(_)), out, "gates", Argument::OutputAt(1, step * wide * out.size()));
        let flags = format!("constexpr bool MASKED = {}, BIASED = {};\n", operands.mask.is_some(), operands.bias.is_some());
        kernels.push(shape.kernel(("recurrent_step", "a step of"), names, &flags, include_str!("recurrent.cu")));
    }
    if op.cell == Cell::Lstm {
        kernels.push(shape.finish(2 * state, out));
    }
    kernels
}

/// The kernels of the backward pass in order. `dtype` returns the type of an input; `out` is that of the sequence
/// gradients.
pub(crate) fn recurrent_grad(
    op: &RecurrentGrad,
    batch: usize,
    steps: usize,
    inputs: &[usize],
    dtype: impl Fn(usize) -> DType,
    out: DType,
) -> Vec<Kernel> {
    let shape = RecurrentShape { cell: op.cell, batch, steps, units: op.units, reverse: op.reverse };
    let operands = op.operands(inputs).expect("checked when the node was added");
    let (wide, units, scratch) = (shape.wide(), op.units, Scratch::new(&shape));
    let (lstm, gru) = (op.cell == Cell::Lstm, op.cell == Cell::Gru);
    let mut kernels = Vec::new();
    let masked = operands.mask.is_some();
    if lstm {
        kernels.push(shape.start(operands.d_state.map(|i| (i, dtype(i))), Argument::WorkspaceAt(scratch.state)));
        let mut names = Parameters::default();
        names.read(operands.gates, "gates", &dtype, 0);
        names.read(operands.mask, "mask", &dtype, 0);
        names.read(operands.before, "started", &dtype, 0);
        names.take("float* cells", Argument::WorkspaceAt(scratch.sequence));
        let flags = format!("constexpr bool MASKED = {masked}, STARTED = {}, REVERSE = {};\n", operands.before.is_some(), op.reverse);
        let text = include_str!("recurrent_cells.cu");
        kernels.push(Kernel {
            grid: [block_count(batch * units, THREADS), 1, 1],
            ..shape.kernel(("recurrent_cell_states", "cell states of"), names, &flags, text)
        });
    }
    if gru {
        kernels.push(shape.inner(operands.map(|i| (i, dtype(i))), scratch.sequence));
    }
    let order: Vec<usize> = shape.order().collect();
    // A final step propagates the gradient of the first step to the initial states.
    let behind = op.initial.then_some(None);
    for (number, at) in (0..steps).rev().map(Some).chain(behind).enumerate() {
        let step = at.map_or(0, |at| order[at]);
        let before = at.and_then(|at| at.checked_sub(1)).map(|at| order[at]);
        let mut names = Parameters::default();
        names.read(Some(operands.kernel), "kernel", &dtype, 0);
        names.read(operands.gates, "gates", &dtype, step * wide);
        names.read(operands.hidden, "hidden", &dtype, step * units);
        names.read(operands.hidden, "hidden_before", &dtype, before.unwrap_or(0) * units);
        names.read(operands.mask, "mask", &dtype, step);
        names.read(operands.before, "started", &dtype, 0);
        names.read(Some(operands.d_hidden), "d_hidden", &dtype, step * units);
        names.take_if(lstm, DType::F32, "cells", Argument::WorkspaceAt(scratch.sequence + 4 * step * units));
        names.take_if(lstm, DType::F32, "cells_before", Argument::WorkspaceAt(scratch.sequence + 4 * before.unwrap_or(0) * units));
        names.take_if(gru, DType::F32, "inner", Argument::WorkspaceAt(scratch.sequence + 4 * step * units));
        names.take("float* carry", Argument::WorkspaceAt(scratch.carry));
        names.take_if(lstm, DType::F32, "d_state", Argument::WorkspaceAt(scratch.state));
        names.take("const float* change_after", Argument::WorkspaceAt(scratch.changes[(number + 1) % 2]));
        names.take("float* change_now", Argument::WorkspaceAt(scratch.changes[number % 2]));
        names.take_if(true, out, "d_x", Argument::OutputAt(0, step * wide * out.size()));
        names.take_if(gru, out, "d_recurrent", Argument::OutputAt(1, step * wide * out.size()));
        let states = 1 + usize::from(gru);
        names.take_if(at.is_none(), DType::F32, "d_start", Argument::Output(states));
        names.take_if(at.is_none() && lstm, DType::F32, "d_cell", Argument::Output(states + 1));
        let flags = format!(
            "constexpr bool MASKED = {masked}, STARTED = {}, FIRST = {}, LAST = {}, BEFORE = {};\n",
            operands.before.is_some(),
            before.is_none(),
            number == 0,
            at.is_none()
        );
        kernels.push(shape.kernel(("recurrent_grad_step", "a backward step of"), names, &flags, include_str!("recurrent_grad.cu")));
    }
    kernels
}

/// The workspace layout of the backward pass: byte offsets.
struct Scratch {
    /// The gradient after the product, of this step and of the next.
    changes: [usize; 2],
    /// The part of the hidden state's gradient that reaches the previous step without the product.
    carry: usize,
    /// The gradient of an LSTM's cell state.
    state: usize,
    /// For all steps: the cell states of an LSTM, or the reset gate's operand of a GRU.
    sequence: usize,
    size: usize,
}

impl Scratch {
    fn new(shape: &RecurrentShape) -> Scratch {
        let state = 4 * shape.batch * shape.units;
        let change = shape.cell.gates() * state;
        let own = if shape.cell == Cell::Lstm { state } else { 0 };
        let sequence = 2 * change + state + own;
        let all = if matches!(shape.cell, Cell::Simple(_)) { 0 } else { shape.steps * state };
        Scratch { changes: [0, change], carry: 2 * change, state: 2 * change + state, sequence, size: sequence + all }
    }
}

/// The names in a kernel's source: parameters, and those that this shape does not have.
#[derive(Default)]
struct Parameters {
    parameters: Vec<(String, Argument)>,
    absent: Vec<String>,
}

impl Parameters {
    /// An input from this element on, if it exists.
    fn read(&mut self, input: Option<usize>, name: &str, dtype: &impl Fn(usize) -> DType, element: usize) {
        let argument = |input: usize| Argument::InputAt(input, element * dtype(input).size());
        match input {
            Some(input) => self.parameters.push(parameter(dtype(input), name, argument(input))),
            None => self.absent.push(name.to_string()),
        }
    }

    fn take(&mut self, text: &str, argument: Argument) {
        self.parameters.push((text.to_string(), argument));
    }

    fn take_if(&mut self, there: bool, dtype: DType, name: &str, argument: Argument) {
        match there {
            true => self.parameters.push(parameter(dtype, name, argument)),
            false => self.absent.push(name.to_string()),
        }
    }
}

impl RecurrentShape {
    fn wide(&self) -> usize {
        self.cell.gates() * self.units
    }

    /// The steps in processing order.
    fn order(&self) -> impl Iterator<Item = usize> {
        let RecurrentShape { steps, reverse, .. } = *self;
        (0..steps).map(move |step| if reverse { steps - 1 - step } else { step })
    }

    fn kernel(&self, (name, what): (&'static str, &str), names: Parameters, flags: &str, text: &str) -> Kernel {
        let RecurrentShape { cell, batch, steps, units, .. } = *self;
        let rows = batch.clamp(1, ROWS);
        let mut body = String::from("enum { LSTM, GRU, TANH, RELU };\n");
        let cell_name = match cell {
            Cell::Lstm => "LSTM",
            Cell::Gru => "GRU",
            Cell::Simple(Activation::Tanh) => "TANH",
            Cell::Simple(Activation::Relu) => "RELU",
        };
        let _ = writeln!(
            body,
            "constexpr int CELL = {cell_name}, GATES = {}, BATCH = {batch}, STEPS = {steps}, UNITS = {units}, ROWS = {rows};",
            cell.gates()
        );
        let _ = writeln!(body, "using Index = {};", index_type(batch * steps * self.wide().max(self.wide() * units / steps.max(1))));
        body += flags;
        for absent in names.absent {
            let _ = writeln!(body, "float* const {absent} = nullptr;");
        }
        Kernel {
            name,
            what: format!("{what} {}: {batch} × {steps} × {units}", cell.name()),
            parameters: names.parameters,
            body: body + text,
            grid: [block_count(units, UNITS), block_count(batch, rows), 1],
            threads: THREADS as u32,
        }
    }

    /// Copies an initial state, or zeros, into the workspace.
    fn start(&self, given: Option<(usize, DType)>, to: Argument) -> Kernel {
        let n = self.batch * self.units;
        let from = given.map(|(input, dtype)| parameter(dtype, "from", Argument::Input(input)));
        let value = if given.is_some() { "load(from[i])" } else { "0.0f" };
        let parameters = from.into_iter().chain([("float* to".to_string(), to)]).collect();
        per_element(("recurrent_initial_state", "the initial state"), n, parameters, &format!("to[i] = {value};\n"))
    }

    /// The last cell state.
    fn finish(&self, from: usize, dtype: DType) -> Kernel {
        let parameters = vec![("const float* from".to_string(), Argument::WorkspaceAt(from)), parameter(dtype, "to", Argument::Output(2))];
        per_element(("recurrent_final_state", "the final state"), self.batch * self.units, parameters, "store(to + i, from[i]);\n")
    }

    /// The reset gate's operand of a GRU for all steps at once: the previous hidden state times the candidate's kernel,
    /// plus the bias.
    fn inner(&self, operands: plimsoll_core::ops::RecurrentGradInputs<(usize, DType)>, to: usize) -> Kernel {
        let RecurrentShape { batch, steps, units, reverse, .. } = *self;
        let (first, before) = if reverse { (steps - 1, "m + 1") } else { (0, "m - 1") };
        let ((kernel, kernel_type), (bias, bias_type)) = (operands.kernel, operands.bias.expect("a GRU has one"));
        let (hidden, hidden_type) = operands.hidden.expect("a GRU keeps its states");
        let mut parameters = vec![
            parameter(hidden_type, "hidden", Argument::Input(hidden)),
            parameter(kernel_type, "kernel", Argument::Input(kernel)),
            parameter(bias_type, "bias", Argument::Input(bias)),
            ("float* inner".to_string(), Argument::WorkspaceAt(to)),
        ];
        let mut left = format!("if (m % {steps} != {first}) value = load(hidden[({before}) * {units} + k]);\n");
        if let Some((started, dtype)) = operands.before {
            parameters.push(parameter(dtype, "started", Argument::Input(started)));
            let _ = writeln!(left, "else value = load(started[m / {steps} * {units} + k]);");
        }
        TiledMatmul {
            name: "gru_candidate_matmul",
            what: format!("states by the candidate's kernel: {batch} × {steps} × {units}"),
            rows: batch * steps,
            columns: units,
            depth: units,
            groups: 1,
            chunks: 1,
            left,
            left_along_depth: true,
            right: format!("value = load(kernel[k * {} + {} + n]);\n", 3 * units, 2 * units),
            right_along_depth: false,
            store: format!("inner[m * {units} + n] = value + load(bias[{} + n]);\n", 2 * units),
            parameters,
            extent: (batch * steps * units).max(3 * units * units),
        }
        .kernel()
    }
}

/// One thread per element `i`.
fn per_element((name, what): (&'static str, &str), n: usize, parameters: Vec<(String, Argument)>, body: &str) -> Kernel {
    let index = index_type(n);
    let head = format!("const {index} i = ({index})blockIdx.x * {THREADS} + threadIdx.x;\nif (i >= {n}) return;\n");
    Kernel {
        name,
        what: format!("{what} of {n}"),
        parameters,
        body: head + body,
        grid: [block_count(n, THREADS), 1, 1],
        threads: THREADS as u32,
    }
}
