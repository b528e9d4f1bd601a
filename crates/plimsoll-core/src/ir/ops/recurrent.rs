//! Recurrent layers over a whole sequence. The input projection is one matrix product outside of this op, which covers
//! only the sequential part.

use crate::base::shape::{Dim, Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules, expect_real};
use crate::ir::ops::{Concat, MatMul, Pad, Reduction, Slice};
use crate::ir::rules::{Precision, RowContext, RowRule};
use crate::{DType, ops::recurrent_grad::RecurrentGrad};

/// The recurrence of one step, from the projected input `x` and the previous hidden state `h`; `U` is the recurrent
/// kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Gates in the order input, forget, candidate, output: `c = f·c + i·g`, `h = o·tanh(c)`.
    Lstm,
    /// Gates in the order update, reset, candidate, with `reset_after`: `g = tanh(x + r·(h·U + b))`, `h = z·h + (1 -
    /// z)·g`.
    Gru,
    /// One activation: `h = f(x + h·U)`.
    Simple(Activation),
}

/// The activation of a [`Cell::Simple`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Hyperbolic tangent.
    Tanh,
    /// Rectified linear unit.
    Relu,
}

impl Cell {
    /// Number of gates: blocks of units in the projected input and in the recurrent kernel.
    pub const fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
            Cell::Simple(_) => 1,
        }
    }

    /// The name in print-outs.
    pub const fn name(self) -> &'static str {
        match self {
            Cell::Lstm => "lstm",
            Cell::Gru => "gru",
            Cell::Simple(Activation::Tanh) => "tanh",
            Cell::Simple(Activation::Relu) => "relu",
        }
    }
}

/// Runs the recurrence over a projected input `[batch, steps, gates·units]`.
///
/// [`RecurrentInputs`] names the inputs. Outputs are the hidden states `[batch, steps, units]`; for an LSTM or a GRU
/// the activated gates `[batch, steps, gates·units]`, which only the gradient reads and which may overwrite the
/// projected input; and for an LSTM the last cell state `[batch, units]`. They have the type of the projected input.
///
/// A step with mask 0 is skipped: its hidden state is the previous one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recurrent {
    /// The recurrence.
    pub cell: Cell,
    /// Length of the hidden state.
    pub units: usize,
    /// Runs from the last step to the first. Outputs stay at their input's position, so the final state is at step 0.
    pub reverse: bool,
    /// Whether there is a mask.
    pub masked: bool,
    /// Whether there are initial states; otherwise they are zero.
    pub initial: bool,
}

/// The inputs of a [`Recurrent`] by name, in their order.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentInputs<T> {
    /// Projected input `[batch, steps, gates·units]`, including the bias.
    pub x: T,
    /// Recurrent kernel `[units, gates·units]`.
    pub kernel: T,
    /// For a GRU, the recurrent bias `[gates·units]`.
    pub bias: Option<T>,
    /// `[batch, steps]`; steps with 0 are skipped.
    pub mask: Option<T>,
    /// Hidden state before the first step, `[batch, units]`.
    pub hidden: Option<T>,
    /// For an LSTM, the cell state before the first step, `[batch, units]`.
    pub state: Option<T>,
}

impl<T> RecurrentInputs<T> {
    /// Applies a function to each input.
    pub fn map<U>(self, mut of: impl FnMut(T) -> U) -> RecurrentInputs<U> {
        RecurrentInputs {
            x: of(self.x),
            kernel: of(self.kernel),
            bias: self.bias.map(&mut of),
            mask: self.mask.map(&mut of),
            hidden: self.hidden.map(&mut of),
            state: self.state.map(&mut of),
        }
    }
}

impl Recurrent {
    /// The inputs by name, if their number matches.
    pub fn operands<T: Copy>(&self, inputs: &[T]) -> Option<RecurrentInputs<T>> {
        let mut rest = inputs.iter().copied();
        let mut next_if = |there: bool| if there { rest.next().map(Some) } else { Some(None) };
        let operands = RecurrentInputs {
            x: next_if(true)??,
            kernel: next_if(true)??,
            bias: next_if(self.cell == Cell::Gru)?,
            mask: next_if(self.masked)?,
            hidden: next_if(self.initial)?,
            state: next_if(self.initial && self.cell == Cell::Lstm)?,
        };
        rest.next().is_none().then_some(operands)
    }

    /// The previous hidden state of each step, `[batch, steps, units]`.
    fn hidden_before(&self, g: &mut Graph, hidden: ValueId, initial: Option<ValueId>) -> Result<ValueId, GraphError> {
        let shape = g.shape(hidden).clone();
        let steps = shape.dims()[1].factor();
        let first = match initial {
            Some(initial) => {
                let initial = g.cast(initial, g.ty(hidden).dtype)?;
                Some(g.reshape(initial, shape.with(1, Dim::fixed(1)))?)
            }
            None => None,
        };
        let kept = Slice { axis: 1, start: usize::from(self.reverse), length: steps - 1 };
        match first {
            Some(first) if steps == 1 => Ok(first),
            Some(first) => {
                let kept = g.add_one(Op::Slice(kept), &[hidden])?;
                let order = if self.reverse { [kept, first] } else { [first, kept] };
                g.add_one(Op::Concat(Concat { axis: 1 }), &order)
            }
            None => {
                let kept = g.add_one(Op::Slice(kept), &[hidden])?;
                let (before, after) = if self.reverse { (0, 1) } else { (1, 0) };
                g.add_one(Op::Pad(Pad { axis: 1, before, after }), &[kept])
            }
        }
    }

    /// The gradient of the recurrent kernel: one product over all steps.
    fn kernel_gradient(&self, adjoint: &mut Adjoint<'_>, hidden: Option<ValueId>, change: ValueId) -> Result<ValueId, GraphError> {
        let (kernel, states) = (adjoint.inputs[1], adjoint.outputs[0]);
        let g = &mut *adjoint.graph;
        let (shape, dtype) = (g.shape(kernel).clone(), g.ty(kernel).dtype);
        let steps = g.shape(states).dims()[1].factor();
        if steps == 1 && hidden.is_none() {
            let zeros = g.full(0.0, shape)?;
            return g.cast(zeros, dtype);
        }
        let before = self.hidden_before(g, states, hidden)?;
        let rows = g.shape(states).dims()[0];
        let rows = if rows.is_batch() {
            Dim::times_batch(rows.factor().saturating_mul(steps))
        } else {
            Dim::fixed(rows.factor().saturating_mul(steps))
        };
        let before = g.reshape(before, Shape::new([rows, shape.dims()[0]]))?;
        let change = g.reshape(change, Shape::new([rows, shape.dims()[1]]))?;
        let product = g.add_one(Op::MatMul(MatMul { transpose_a: true, ..MatMul::default() }), &[before, change])?;
        g.cast(product, dtype)
    }
}

/// The three dimensions of a sequence with static steps and features.
pub(super) fn sequence_dims(what: &str, shape: &Shape) -> Result<(Dim, usize, usize), String> {
    match shape.dims() {
        &[batch, steps, features] => match (steps.as_fixed(), features.as_fixed()) {
            (Some(0), _) => Err(format!("walks over at least one step, but the {what} has the shape {shape}")),
            (Some(steps), Some(features)) => Ok((batch, steps, features)),
            _ => Err(format!("only the first dimension of a sequence may be the batch, but the {what} has the shape {shape}")),
        },
        _ => Err(format!("takes a sequence [batch, steps, features], but the {what} has the shape {shape}")),
    }
}

/// Checks the shape of an operand.
pub(super) fn expect_shape(what: &str, operand: Option<&TensorType>, shape: &Shape) -> Result<(), String> {
    match operand {
        Some(operand) if operand.shape != *shape => Err(format!("the {what} should have the shape {shape}, but is {operand}")),
        _ => Ok(()),
    }
}

/// Checks that a mask covers each step and has a supported type.
pub(super) fn expect_mask(mask: Option<&TensorType>, batch: Dim, steps: usize) -> Result<(), String> {
    expect_shape("mask", mask, &Shape::new([batch, steps.into()]))?;
    match mask {
        Some(mask) if mask.dtype != DType::U8 && !mask.dtype.is_float() => {
            Err(format!("the mask is u8 or real, but is {mask}; cast it first"))
        }
        _ => Ok(()),
    }
}

/// The attributes as text.
pub(super) fn text(cell: Cell, units: usize, reverse: bool, masked: bool, initial: bool) -> String {
    let part = |there: bool, text: &'static str| if there { text } else { "" };
    let (reverse, masked) = (part(reverse, ", backwards"), part(masked, ", masked"));
    format!("{}, {units} units{reverse}{masked}{}", cell.name(), part(initial, ", from given states"))
}

impl OpRules for Recurrent {
    fn name(&self) -> &'static str {
        "recurrent"
    }

    fn precision(&self) -> Precision {
        Precision::Window
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        text(self.cell, self.units, self.reverse, self.masked, self.initial)
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let Some(operands) = self.operands(inputs) else {
            return Err(format!("a walk of {} does not take {} tensors", self.attributes(), inputs.len()));
        };
        let real = [Some(operands.x), Some(operands.kernel), operands.bias, operands.hidden, operands.state];
        expect_real(&real.into_iter().flatten().collect::<Vec<_>>())?;
        let (batch, steps, features) = sequence_dims("projected input", &operands.x.shape)?;
        let wide = self.units.saturating_mul(self.cell.gates());
        if features != wide || self.units == 0 {
            let (name, units) = (self.cell.name(), self.units);
            return Err(format!("a step of {units} units of {name} reads {wide} features, but the projected input is {}", operands.x));
        }
        expect_shape("recurrent kernel", Some(operands.kernel), &Shape::fixed([self.units, wide]))?;
        expect_shape("recurrent bias", operands.bias, &Shape::fixed([wide]))?;
        expect_mask(operands.mask, batch, steps)?;
        let state = Shape::new([batch, self.units.into()]);
        expect_shape("hidden state", operands.hidden, &state)?;
        expect_shape("cell state", operands.state, &state)?;
        let dtype = operands.x.dtype;
        let hidden = TensorType::new(dtype, Shape::new([batch, steps.into(), self.units.into()]));
        Ok(match self.cell {
            Cell::Lstm => vec![hidden, operands.x.clone(), TensorType::new(dtype, state)],
            Cell::Gru => vec![hidden, operands.x.clone()],
            Cell::Simple(_) => vec![hidden],
        })
    }

    /// The backward recurrence yields the gradient of the projected input; the gradients of kernel and bias follow from
    /// it over all steps at once.
    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let Recurrent { cell, units, reverse, masked, initial } = *self;
        if adjoint.gradients.get(1).is_some_and(Option::is_some) {
            return Err(adjoint.graph.error("the gates of a recurrent layer are kept for its gradient and cannot be differentiated"));
        }
        let operands = self.operands(&adjoint.inputs).expect("checked when the node was added");
        let d_hidden = adjoint.output_gradient(0)?;
        let d_state = adjoint.gradients.get(2).copied().flatten();
        let op = RecurrentGrad { cell, units, reverse, masked, initial, last_state: d_state.is_some() };
        let (hidden, gates) = (adjoint.outputs[0], adjoint.outputs.get(1).copied());
        let inputs: Vec<ValueId> = match cell {
            Cell::Lstm => {
                [Some(operands.kernel), gates, operands.mask, operands.state, Some(d_hidden), d_state].into_iter().flatten().collect()
            }
            Cell::Gru => [Some(operands.kernel), operands.bias, gates, Some(hidden), operands.mask, operands.hidden, Some(d_hidden)]
                .into_iter()
                .flatten()
                .collect(),
            Cell::Simple(_) => [Some(operands.kernel), Some(hidden), operands.mask, Some(d_hidden)].into_iter().flatten().collect(),
        };
        let mut found = adjoint.graph.add(Op::RecurrentGrad(op), &inputs)?.into_iter();
        let d_x = found.next();
        let change = if cell == Cell::Gru { found.next() } else { d_x }.expect("the walk back has these results");
        let mut gradients = vec![d_x];
        gradients.push(if adjoint.wants[1] { Some(self.kernel_gradient(adjoint, operands.hidden, change)?) } else { None });
        if let Some(bias) = operands.bias {
            let g = &mut *adjoint.graph;
            let (shape, dtype) = (g.shape(bias).clone(), g.ty(bias).dtype);
            let wanted = adjoint.wants[2].then(|| {
                let sum = g.reduce(Reduction::Sum, change, &[0, 1])?;
                let sum = g.reshape(sum, shape)?;
                g.cast(sum, dtype)
            });
            gradients.push(wanted.transpose()?);
        }
        gradients.extend(operands.mask.map(|_| None));
        for (state, found) in [operands.hidden, operands.state].into_iter().flatten().zip(found) {
            let g = &mut *adjoint.graph;
            let dtype = g.ty(state).dtype;
            gradients.push(Some(g.cast(found, dtype)?));
        }
        Ok(gradients)
    }

    fn flops(&self, _: &[&TensorType], outputs: &[&TensorType], rows: usize) -> u64 {
        let states = outputs[0].shape.elements().bind(rows) as u64;
        states.saturating_mul(self.cell.gates() as u64).saturating_mul((self.units as u64).saturating_mul(2).saturating_add(POINTWISE))
    }

    /// The gates overwrite the projected input; a cell with one gate writes its state there.
    fn in_place(&self, input: usize, output: usize) -> bool {
        input == 0 && output == usize::from(!matches!(self.cell, Cell::Simple(_)))
    }
}

/// Approximate operations per gate besides its product: an activation and its share of the state update.
pub(super) const POINTWISE: u64 = 10;
