//! Recurrent layers: an LSTM as one operator with its input projection; others step by step.

use super::builder::TensorIndex;
use super::{ExportProblem, Recipe, TfliteExporter};
use crate::export::walk::GraphWalk;
use plimsoll_core::graph::Node;
use plimsoll_core::ops::{Activation, Cell, Recurrent, RecurrentInputs};
use plimsoll_core::{Dim, Op, Shape, ValueId};
use plimsoll_formats::tensor::DType as Stored;
use plimsoll_formats::tflite::{BuiltinOp, FusedActivation, OptionValue};

/// The input projection of a recurrent layer: the sequence, its kernel and its bias.
struct Projection {
    sequence: ValueId,
    kernel: ValueId,
    bias: ValueId,
}

/// Whether a layer becomes an operator with states, whose size is that of one row.
pub(super) fn has_fused(walk: &GraphWalk<'_>) -> bool {
    walk.graph.nodes().any(|(_, node)| matches!(&node.op, Op::Recurrent(op) if fused(walk, node, op).is_some()))
}

/// The projection of an LSTM without mask and given states, whose last cell state nothing reads.
fn fused(walk: &GraphWalk<'_>, node: &Node, op: &Recurrent) -> Option<Projection> {
    let operands = op.operands(&node.inputs)?;
    let cell_is_read = node.outputs.get(2).is_some_and(|value| walk.readers.contains_key(value));
    let plain = op.cell == Cell::Lstm && !op.masked && !op.initial && !cell_is_read && walk.is_state(operands.kernel);
    plain.then(|| projection(walk, operands.x)).flatten()
}

/// The projection that a value is, if both its weights are weights of the network.
fn projection(walk: &GraphWalk<'_>, x: ValueId) -> Option<Projection> {
    let graph = walk.graph;
    let input = |value: ValueId, i: usize| graph.producer(value).inputs.get(i).copied();
    let sum = input(x, 0).filter(|_| matches!(graph.producer(x).op, Op::Reshape(_)))?;
    let Op::Pointwise(plus) = &graph.producer(sum).op else { return None };
    let product = input(sum, 0).filter(|_| plus.expr.to_string() == "a + b")?;
    let Op::MatMul(matmul) = &graph.producer(product).op else { return None };
    let (rows, kernel, bias) = (input(product, 0)?, input(product, 1)?, input(sum, 1)?);
    let sequence = input(rows, 0).filter(|_| matches!(graph.producer(rows).op, Op::Reshape(_)))?;
    let fits = graph.shape(sequence).rank() == 3 && graph.shape(sequence).dims()[1] == *graph.shape(x).dims().get(1)?;
    let plain = !matmul.transpose_a && !matmul.transpose_b && walk.is_state(kernel) && walk.is_state(bias);
    (fits && plain).then_some(Projection { sequence, kernel, bias })
}

impl TfliteExporter<'_> {
    pub(super) fn recurrent(&mut self, node: &Node, op: &Recurrent) -> Result<(), ExportProblem> {
        let Some(operands) = op.operands(&node.inputs) else { return Err(ExportProblem::unsupported("a recurrence of other operands")) };
        match fused(&self.walk, node, op) {
            Some(projection) => self.lstm(node, op, &operands, &projection),
            None => self.unrolled(node, op, &operands),
        }
    }

    /// `UNIDIRECTIONAL_SEQUENCE_LSTM`; the gates of both are input, forget, candidate, output.
    fn lstm(
        &mut self,
        node: &Node,
        op: &Recurrent,
        operands: &RecurrentInputs<ValueId>,
        projection: &Projection,
    ) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let units = op.units;
        let mut sequence = self.read(projection.sequence);
        if op.reverse {
            sequence = self.reversed(sequence);
        }
        let kernels = |exporter: &mut Self, value: ValueId| {
            let name = exporter.walk.weight_name(value).expect("looked at before");
            let rows = graph.shape(value).dims()[0].factor();
            let gate = |exporter: &mut Self, gate: usize| {
                let recipe = Recipe::Gates { name: name.clone(), rows, units, of: 4, gates: vec![gate] };
                exporter.builder.weight(&format!("{name}/{}", GATES[gate]), &[units, rows], recipe) as i32
            };
            (0..4).map(|i| gate(exporter, i)).collect::<Vec<i32>>()
        };
        let (input, recurrent) = (kernels(self, projection.kernel), kernels(self, operands.kernel));
        let bias_name = self.walk.weight_name(projection.bias).expect("looked at before");
        let numbers = self.walk.weights.read(&bias_name).map_err(ExportProblem::Failed)?;
        let biases: Vec<i32> = (0..4)
            .map(|gate| {
                let bias = numbers[gate * units..][..units].to_vec();
                self.builder.numbers(&format!("{bias_name}/{}", GATES[gate]), &[units], bias) as i32
            })
            .collect();
        let states: Vec<i32> = ["output_state", "cell_state"]
            .iter()
            .map(|name| {
                let wanted = format!("{}/{name}", self.builder.scope);
                let state = self.builder.tensor(&wanted, Stored::F32, Shape::fixed([1, units]));
                self.builder.tensors[state].variable = true;
                state as i32
            })
            .collect();
        let none = |count: usize| vec![-1; count];
        let inputs = [vec![sequence as i32], input, recurrent, none(3), biases, none(2), states, none(4)].concat();
        let options = [("fused_activation_function", OptionValue::Byte(FusedActivation::Tanh as u8)), ("time_major", OptionValue::Byte(0))];
        let mut result = self.builder.op(BuiltinOp::UnidirectionalSequenceLstm, &[], &options, graph.shape(node.outputs[0]).clone());
        self.builder.operators.last_mut().expect("just added").inputs = inputs;
        if op.reverse {
            result = self.reversed(result);
        }
        self.builder.define(node.outputs[0], result);
        Ok(())
    }

    /// A sequence from its last step to its first.
    fn reversed(&mut self, sequence: TensorIndex) -> TensorIndex {
        let axis = self.builder.integers(&[1]);
        let shape = self.builder.shape(sequence).clone();
        self.builder.op(BuiltinOp::ReverseV2, &[sequence, axis], &[], shape)
    }

    /// One step after the other: a step with mask 0 keeps the states. A state that is `None` is zero.
    fn unrolled(&mut self, node: &Node, op: &Recurrent, operands: &RecurrentInputs<ValueId>) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let units = op.units;
        let Some(kernel_name) = self.walk.weight_name(operands.kernel) else {
            return Err(ExportProblem::unsupported("a recurrent layer whose kernel is computed"));
        };
        let wide = op.cell.gates() * units;
        let order = vec![1, 0];
        let recipe = Recipe::Weight { name: kernel_name.clone(), shape: vec![units, wide], order, scale: None };
        let kernel = self.builder.weight(&kernel_name, &[wide, units], recipe);
        let bias = match operands.bias {
            Some(bias) => self.read(bias) as i32,
            None => -1,
        };
        let dims = graph.shape(operands.x).dims().to_vec();
        let steps = dims[1].factor();
        let x = self.read(operands.x);
        let options = [("num", OptionValue::Int(steps as i32)), ("axis", OptionValue::Int(1))];
        let row = |wide: usize| Shape::new([dims[0], Dim::fixed(wide)]);
        let parts = self.builder.op_of(BuiltinOp::Unpack, &[x], &options, &vec![(Stored::F32, row(wide)); steps]);
        let mask = match operands.mask {
            Some(mask) => {
                let mask = self.read(mask);
                Some(self.builder.cast(mask, Stored::Bool))
            }
            None => None,
        };
        let mut hidden = operands.hidden.map(|hidden| self.read(hidden));
        let mut cell = operands.state.map(|cell| self.read(cell));
        let mut all = vec![0; steps];
        let order: Vec<usize> = if op.reverse { (0..steps).rev().collect() } else { (0..steps).collect() };
        for step in order {
            let product = match (hidden, bias) {
                (Some(hidden), bias) => {
                    let product = self.builder.op(BuiltinOp::FullyConnected, &[hidden, kernel], &[], row(wide));
                    self.builder.operators.last_mut().expect("just added").inputs.push(bias);
                    Some(product)
                }
                (None, -1) => None,
                (None, bias) => Some(bias as TensorIndex),
            };
            let x = parts[step];
            let sum = |exporter: &mut Self| product.map_or(x, |product| exporter.combined(BuiltinOp::Add, x, product));
            let (next, next_cell) = match op.cell {
                Cell::Lstm => {
                    let sum = sum(self);
                    let (next, next_cell) = self.lstm_step(sum, cell, units);
                    (next, Some(next_cell))
                }
                Cell::Gru => (self.gru_step(x, product.expect("a GRU has a recurrent bias"), hidden, units), None),
                Cell::Simple(activation) => {
                    let sum = sum(self);
                    let function = if activation == Activation::Relu { BuiltinOp::Relu } else { BuiltinOp::Tanh };
                    (self.builder.op(function, &[sum], &[], row(units)), None)
                }
            };
            match mask {
                None => (hidden, cell) = (Some(next), next_cell),
                Some(mask) => {
                    let seen = self.builder.slice(mask, 1, step, 1);
                    if let Some(next_cell) = next_cell {
                        cell = Some(self.masked_state(seen, next_cell, cell, row(units)));
                    }
                    hidden = Some(self.masked_state(seen, next, hidden, row(units)));
                }
            }
            all[step] = hidden.expect("after a step there is a state");
        }
        let options = [("values_count", OptionValue::Int(steps as i32)), ("axis", OptionValue::Int(1))];
        let result = self.builder.op(BuiltinOp::Pack, &all, &options, graph.shape(node.outputs[0]).clone());
        self.builder.define(node.outputs[0], result);
        if let (Some(last), Some(cell)) = (node.outputs.get(2), cell) {
            self.builder.define(*last, cell);
        }
        Ok(())
    }

    /// The next state where a step is seen, the one before where it is not.
    fn masked_state(&mut self, seen: TensorIndex, next: TensorIndex, before: Option<TensorIndex>, shape: Shape) -> TensorIndex {
        let before = before.unwrap_or_else(|| self.builder.number(0.0));
        self.builder.op(BuiltinOp::SelectV2, &[seen, next, before], &[], shape)
    }

    fn gates(&mut self, all: TensorIndex, count: usize, units: usize) -> Vec<TensorIndex> {
        let rank = self.builder.shape(all).rank();
        let axis = self.builder.integers_of(&[rank as i32 - 1], &[]);
        let shape = self.builder.shape(all).with(rank - 1, Dim::fixed(units));
        self.builder.op_of(
            BuiltinOp::Split,
            &[axis, all],
            &[("num_splits", OptionValue::Int(count as i32))],
            &vec![(Stored::F32, shape); count],
        )
    }

    fn apply(&mut self, op: BuiltinOp, x: TensorIndex) -> TensorIndex {
        let shape = self.builder.shape(x).clone();
        self.builder.op(op, &[x], &[], shape)
    }

    fn lstm_step(&mut self, sum: TensorIndex, cell: Option<TensorIndex>, units: usize) -> (TensorIndex, TensorIndex) {
        let gates = self.gates(sum, 4, units);
        let [input, forget, output] = [0, 1, 3].map(|gate| self.apply(BuiltinOp::Logistic, gates[gate]));
        let candidate = self.apply(BuiltinOp::Tanh, gates[2]);
        let mut next = self.combined(BuiltinOp::Mul, input, candidate);
        if let Some(cell) = cell {
            let kept = self.combined(BuiltinOp::Mul, forget, cell);
            next = self.combined(BuiltinOp::Add, kept, next);
        }
        let shown = self.apply(BuiltinOp::Tanh, next);
        (self.combined(BuiltinOp::Mul, output, shown), next)
    }

    fn gru_step(&mut self, x: TensorIndex, product: TensorIndex, hidden: Option<TensorIndex>, units: usize) -> TensorIndex {
        let (inner, outer) = (self.gates(product, 3, units), self.gates(x, 3, units));
        let [update, reset] = [0, 1].map(|gate| {
            let sum = self.combined(BuiltinOp::Add, outer[gate], inner[gate]);
            self.apply(BuiltinOp::Logistic, sum)
        });
        let reset = self.combined(BuiltinOp::Mul, reset, inner[2]);
        let sum = self.combined(BuiltinOp::Add, outer[2], reset);
        let candidate = self.apply(BuiltinOp::Tanh, sum);
        match hidden {
            // z·h + (1 - z)·g = g + z·(h - g)
            Some(hidden) => {
                let difference = self.combined(BuiltinOp::Sub, hidden, candidate);
                let kept = self.combined(BuiltinOp::Mul, update, difference);
                self.combined(BuiltinOp::Add, candidate, kept)
            }
            None => {
                let lost = self.combined(BuiltinOp::Mul, update, candidate);
                self.combined(BuiltinOp::Sub, candidate, lost)
            }
        }
    }
}

/// The gates of an LSTM in their order.
const GATES: [&str; 4] = ["input", "forget", "candidate", "output"];
