//! Recurrent layers: as `LSTM`, `GRU` and `RNN` of ONNX with their input projection; those with masks or given states,
//! step by step.

use super::builder::ImageLayout;
use super::{ExportProblem, Exporter, Recipe};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::{Activation, Cell, Recurrent, RecurrentInputs};
use plimsoll_core::{Dim, Op, ValueId};
use plimsoll_formats::onnx::Attribute;
use plimsoll_formats::tensor::DType as Stored;

/// The input projection of a recurrent layer: the sequence, its kernel and its bias.
struct OnnxProjection {
    sequence: ValueId,
    kernel: ValueId,
    bias: ValueId,
}

impl Exporter<'_> {
    pub(super) fn recurrent(&mut self, node: &Node, op: &Recurrent) -> Result<(), ExportProblem> {
        let Some(operands) = op.operands(&node.inputs) else { return Err(ExportProblem::unsupported("a recurrence of other operands")) };
        match self.projection(operands.x).filter(|_| !op.masked && !op.initial && self.is_state(operands.kernel)) {
            Some(projection) => self.fused(node, op, &operands, &projection),
            None => {
                self.unrolled(node, op, &operands);
                Ok(())
            }
        }
    }

    /// The projection that a value is, if both its weights are weights of the network.
    fn projection(&self, x: ValueId) -> Option<OnnxProjection> {
        let graph = self.builder.graph;
        let input = |value: ValueId, i: usize| graph.producer(value).inputs.get(i).copied();
        let is = |value: ValueId, name: &str| graph.producer(value).op.rules().name() == name;
        let sum = input(x, 0).filter(|_| matches!(graph.producer(x).op, Op::Reshape(_)))?;
        let Op::Pointwise(plus) = &graph.producer(sum).op else { return None };
        let product = input(sum, 0).filter(|product| is(*product, "matmul") && plus.expr.to_string() == "a + b")?;
        let (rows, kernel, bias) = (input(product, 0)?, input(product, 1)?, input(sum, 1)?);
        let Op::MatMul(matmul) = &graph.producer(product).op else { return None };
        let sequence = input(rows, 0).filter(|_| matches!(graph.producer(rows).op, Op::Reshape(_)))?;
        let steps = graph.shape(x).dims().get(1)?;
        let fits = graph.shape(sequence).rank() == 3 && graph.shape(sequence).dims()[1] == *steps;
        let plain = !matmul.transpose_a && !matmul.transpose_b && self.is_state(kernel) && self.is_state(bias);
        (fits && plain).then_some(OnnxProjection { sequence, kernel, bias })
    }

    fn fused(
        &mut self,
        node: &Node,
        op: &Recurrent,
        operands: &RecurrentInputs<ValueId>,
        projection: &OnnxProjection,
    ) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let units = op.units;
        let (name, gates): (&str, &[usize]) = match op.cell {
            Cell::Lstm => ("LSTM", &[0, 3, 1, 2]),
            Cell::Gru => ("GRU", &[0, 1, 2]),
            Cell::Simple(_) => ("RNN", &[0]),
        };
        let wide = gates.len() * units;
        let sequence = self.builder.plain(projection.sequence);
        let steps_first = self.builder.transpose(&sequence, &[1, 0, 2]);
        let kernel = |exporter: &mut Exporter<'_>, value: ValueId| {
            let weight = exporter.weight_name(value).expect("looked at before");
            let rows = graph.shape(value).dims()[0].factor();
            let recipe = Recipe::Gates { name: weight.clone(), rows, units, of: gates.len(), gates: gates.to_vec() };
            exporter.builder.weight(&weight, &[1, wide, rows], recipe)
        };
        let (input_kernel, recurrent_kernel) = (kernel(self, projection.kernel), kernel(self, operands.kernel));
        let bias_name = self.weight_name(projection.bias).expect("looked at before");
        let mut bias = Vec::with_capacity(2 * wide);
        for of in [Some(bias_name.clone()), operands.bias.and_then(|bias| self.weight_name(bias))] {
            match of {
                Some(name) => {
                    let numbers = self.walk.weights.read(&name).map_err(ExportProblem::Failed)?;
                    gates.iter().for_each(|gate| bias.extend_from_slice(&numbers[gate * units..][..units]));
                }
                None => bias.resize(bias.len() + wide, 0.0),
            }
        }
        let bias = self.builder.numbers(&bias_name, &[1, 2 * wide], bias);
        let mut attributes = vec![("hidden_size", Attribute::Int(units as i64))];
        attributes.push(("direction", Attribute::Text(if op.reverse { "reverse" } else { "forward" }.to_string())));
        match op.cell {
            Cell::Gru => attributes.push(("linear_before_reset", Attribute::Int(1))),
            Cell::Simple(Activation::Relu) => attributes.push(("activations", Attribute::Strings(vec!["Relu".to_string()]))),
            Cell::Lstm | Cell::Simple(Activation::Tanh) => {}
        }
        let cell = node.outputs.get(2).filter(|value| self.walk.readers.contains_key(value));
        let count = if cell.is_some() { 3 } else { 1 };
        let results = self.builder.node_of(name, &[&steps_first, &input_kernel, &recurrent_kernel, &bias], &attributes, count);
        let directions = self.builder.integers(&[1]);
        let hidden = self.builder.node("Squeeze", &[&results[0], &directions], &[]);
        let hidden = self.builder.transpose(&hidden, &[1, 0, 2]);
        self.builder.define(node.outputs[0], ImageLayout::Plain, hidden);
        if let Some(value) = cell {
            let first = self.builder.integers(&[0]);
            let last = self.builder.node("Squeeze", &[&results[2], &first], &[]);
            self.builder.define(*value, ImageLayout::Plain, last);
        }
        Ok(())
    }

    /// One step after the other: a step with mask 0 keeps the states.
    fn unrolled(&mut self, node: &Node, op: &Recurrent, operands: &RecurrentInputs<ValueId>) {
        let graph = self.builder.graph;
        let units = op.units;
        let dims = graph.shape(operands.x).dims().to_vec();
        let steps = dims[1].factor();
        let named = operands.map(|value| self.read(value));
        let state = [dims[0], Dim::fixed(units)];
        let start = |exporter: &mut Self, given: &Option<String>| match given {
            Some(name) => name.clone(),
            None => {
                let zero = exporter.builder.number(0.0);
                exporter.builder.expand(&zero, &[], &state)
            }
        };
        let mut hidden = start(self, &named.hidden);
        let mut cell = start(self, &named.state);
        let mut all = vec![String::new(); steps];
        let order: Vec<usize> = if op.reverse { (0..steps).rev().collect() } else { (0..steps).collect() };
        let rows = super::builder::extent(dims[0]);
        for step in order {
            let x = self.builder.slice(&named.x, 1, step, step + 1);
            let x = self.builder.reshape_to(&x, &[rows, (op.cell.gates() * units) as i64]);
            let product = self.builder.node("MatMul", &[&hidden, &named.kernel], &[]);
            let (next, next_cell) = match op.cell {
                Cell::Lstm => self.lstm_step(&x, &product, &cell, units),
                Cell::Gru => (self.gru_step(&x, &product, named.bias.as_deref().unwrap_or_default(), &hidden, units), cell.clone()),
                Cell::Simple(activation) => {
                    let sum = self.builder.node("Add", &[&x, &product], &[]);
                    let function = if activation == Activation::Relu { "Relu" } else { "Tanh" };
                    (self.builder.node(function, &[&sum], &[]), cell.clone())
                }
            };
            match &named.mask {
                None => (hidden, cell) = (next, next_cell),
                Some(mask) => {
                    let seen = self.builder.slice(mask, 1, step, step + 1);
                    let seen = self.builder.cast(&seen, Stored::Bool);
                    if op.cell == Cell::Lstm {
                        cell = self.builder.node("Where", &[&seen, &next_cell, &cell], &[]);
                    }
                    hidden = self.builder.node("Where", &[&seen, &next, &hidden], &[]);
                }
            }
            all[step] = self.builder.reshape_to(&hidden, &[rows, 1, units as i64]);
        }
        let names: Vec<&str> = all.iter().map(String::as_str).collect();
        let result = self.builder.node("Concat", &names, &[("axis", Attribute::Int(1))]);
        self.builder.define(node.outputs[0], ImageLayout::Plain, result);
        if let Some(last) = node.outputs.get(2) {
            self.builder.define(*last, ImageLayout::Plain, cell);
        }
    }

    fn gates(&mut self, all: &str, count: usize, units: usize) -> Vec<String> {
        (0..count).map(|gate| self.builder.slice(all, 1, gate * units, (gate + 1) * units)).collect()
    }

    fn lstm_step(&mut self, x: &str, product: &str, cell: &str, units: usize) -> (String, String) {
        let sum = self.builder.node("Add", &[x, product], &[]);
        let gates = self.gates(&sum, 4, units);
        let b = &mut self.builder;
        let [input, forget, output] = [0, 1, 3].map(|gate| b.node("Sigmoid", &[&gates[gate]], &[]));
        let candidate = b.node("Tanh", &[&gates[2]], &[]);
        let (kept, added) = (b.node("Mul", &[&forget, cell], &[]), b.node("Mul", &[&input, &candidate], &[]));
        let cell = b.node("Add", &[&kept, &added], &[]);
        let shown = b.node("Tanh", &[&cell], &[]);
        (b.node("Mul", &[&output, &shown], &[]), cell)
    }

    fn gru_step(&mut self, x: &str, product: &str, bias: &str, hidden: &str, units: usize) -> String {
        let product = self.builder.node("Add", &[product, bias], &[]);
        let (inner, outer) = (self.gates(&product, 3, units), self.gates(x, 3, units));
        let b = &mut self.builder;
        let [update, reset] = [0, 1].map(|gate| {
            let sum = b.node("Add", &[&outer[gate], &inner[gate]], &[]);
            b.node("Sigmoid", &[&sum], &[])
        });
        let reset = b.node("Mul", &[&reset, &inner[2]], &[]);
        let sum = b.node("Add", &[&outer[2], &reset], &[]);
        let candidate = b.node("Tanh", &[&sum], &[]);
        // z·h + (1 - z)·g = g + z·(h - g)
        let difference = b.node("Sub", &[hidden, &candidate], &[]);
        let kept = b.node("Mul", &[&update, &difference], &[]);
        b.node("Add", &[&candidate, &kept], &[])
    }
}
