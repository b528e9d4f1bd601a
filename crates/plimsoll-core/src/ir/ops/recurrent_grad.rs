//! Backpropagation through time for recurrent layers.

use super::recurrent::{Cell, POINTWISE, expect_mask, expect_shape, sequence_dims, text};
use crate::base::shape::{Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{OpRules, expect_real};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// The gradient of a [`Recurrent`](super::Recurrent) with respect to its projected input and initial states.
///
/// [`RecurrentGradInputs`] names the inputs. Outputs are the gradient of the projected input, `[batch, steps,
/// gates·units]`, in the type of the layer's results; for a GRU also that of `h·U + b`, likewise (for other cells both
/// are equal); and with initial states, the gradients of the hidden state and of an LSTM's cell state, `[batch, units]`
/// in single precision.
///
/// Cheap values are recomputed instead of stored: the cell states of an LSTM from its gates, the candidate's product of
/// a GRU.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecurrentGrad {
    /// As in the layer.
    pub cell: Cell,
    /// As in the layer.
    pub units: usize,
    /// As in the layer.
    pub reverse: bool,
    /// As in the layer.
    pub masked: bool,
    /// As in the layer.
    pub initial: bool,
    /// For an LSTM: whether the gradient of the last cell state is an input.
    pub last_state: bool,
}

/// The inputs of a [`RecurrentGrad`] by name, in their order.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentGradInputs<T> {
    /// Recurrent kernel `[units, gates·units]`.
    pub kernel: T,
    /// For a GRU, the recurrent bias.
    pub bias: Option<T>,
    /// For an LSTM or a GRU, the activated gates.
    pub gates: Option<T>,
    /// For a GRU or a simple cell, the hidden states.
    pub hidden: Option<T>,
    /// As in the layer.
    pub mask: Option<T>,
    /// The initial state that the recurrence reads: the cell state of an LSTM, the hidden state of a GRU.
    pub before: Option<T>,
    /// Gradient of the hidden states.
    pub d_hidden: T,
    /// Gradient of the last cell state.
    pub d_state: Option<T>,
}

impl<T> RecurrentGradInputs<T> {
    /// Applies a function to each input.
    pub fn map<U>(self, mut of: impl FnMut(T) -> U) -> RecurrentGradInputs<U> {
        RecurrentGradInputs {
            kernel: of(self.kernel),
            bias: self.bias.map(&mut of),
            gates: self.gates.map(&mut of),
            hidden: self.hidden.map(&mut of),
            mask: self.mask.map(&mut of),
            before: self.before.map(&mut of),
            d_hidden: of(self.d_hidden),
            d_state: self.d_state.map(&mut of),
        }
    }
}

impl RecurrentGrad {
    /// The inputs by name, if their number matches.
    pub fn operands<T: Copy>(&self, inputs: &[T]) -> Option<RecurrentGradInputs<T>> {
        let simple = matches!(self.cell, Cell::Simple(_));
        let mut rest = inputs.iter().copied();
        let mut next_if = |there: bool| if there { rest.next().map(Some) } else { Some(None) };
        let operands = RecurrentGradInputs {
            kernel: next_if(true)??,
            bias: next_if(self.cell == Cell::Gru)?,
            gates: next_if(!simple)?,
            hidden: next_if(self.cell != Cell::Lstm)?,
            mask: next_if(self.masked)?,
            before: next_if(self.initial && !simple)?,
            d_hidden: next_if(true)??,
            d_state: next_if(self.last_state)?,
        };
        rest.next().is_none().then_some(operands)
    }
}

impl OpRules for RecurrentGrad {
    fn name(&self) -> &'static str {
        "recurrent_grad"
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
        let operands = self.operands(inputs).filter(|_| !self.last_state || self.cell == Cell::Lstm);
        let Some(operands) = operands else {
            return Err(format!("the gradient of a walk of {} does not take {} tensors", self.attributes(), inputs.len()));
        };
        let RecurrentGradInputs { kernel, bias, gates, hidden, mask, before, d_hidden, d_state } = operands;
        expect_real(&[Some(kernel), bias, gates, hidden, before, Some(d_hidden), d_state].into_iter().flatten().collect::<Vec<_>>())?;
        let (batch, steps, units) = sequence_dims("gradient", &d_hidden.shape)?;
        if units != self.units {
            return Err(format!("a gradient of {d_hidden} does not belong to {} units", self.units));
        }
        let wide = units.saturating_mul(self.cell.gates());
        let walked = Shape::new([batch, steps.into(), wide.into()]);
        let state = Shape::new([batch, units.into()]);
        expect_shape("recurrent kernel", Some(kernel), &Shape::fixed([units, wide]))?;
        expect_shape("recurrent bias", bias, &Shape::fixed([wide]))?;
        expect_shape("gates", gates, &walked)?;
        expect_shape("hidden states", hidden, &d_hidden.shape)?;
        expect_mask(mask, batch, steps)?;
        expect_shape("state before the first step", before, &state)?;
        expect_shape("gradient of the last cell state", d_state, &state)?;
        let kept = gates.or(hidden).map_or(d_hidden.dtype, |kept| kept.dtype);
        let d_x = TensorType::new(kept, walked);
        let initial = if self.initial { 1 + usize::from(self.cell == Cell::Lstm) } else { 0 };
        let mut outputs = vec![d_x; 1 + usize::from(self.cell == Cell::Gru)];
        outputs.extend(std::iter::repeat_n(TensorType::f32(state), initial));
        Ok(outputs)
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("the gradient of a recurrent layer cannot be differentiated again"))
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        let operands = self.operands(inputs).expect("checked when the node was added");
        let states = operands.d_hidden.shape.elements().bind(rows) as u64;
        let again = if self.cell == Cell::Gru { (self.units as u64).saturating_mul(2) } else { 0 };
        let gate = (self.units as u64).saturating_mul(2).saturating_add(POINTWISE);
        states.saturating_mul(gate.saturating_mul(self.cell.gates() as u64).saturating_add(again))
    }

    /// A step's gates, or the state and gradient of a simple cell, are read before the step's gradient is written.
    fn in_place(&self, input: usize, output: usize) -> bool {
        let read = match self.cell {
            Cell::Lstm => input == 1,
            Cell::Gru => input == 2,
            Cell::Simple(_) => input == 1 || input == 2 + usize::from(self.masked),
        };
        read && output == 0
    }
}
