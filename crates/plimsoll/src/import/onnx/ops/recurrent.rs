//! Recurrent layers: the usual ones as one op over the sequence, others step by step.

use super::super::OnnxImporter;
use super::super::call::NodeCall;
use super::super::values::{Computed, Found, Value};
use super::Mapping;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::ops::{Activation as CellActivation, Cell, Concat, MatMul, Recurrent, Slice, Transpose};
use plimsoll_core::shape::{Dim, Shape};
use plimsoll_core::{Graph, GraphError, Op, ValueId};

pub(super) const OPERATORS: &[(&str, Mapping)] = &[
    ("LSTM", |i, c| recurrent(i, c, OnnxRecurrent::Lstm)),
    ("GRU", |i, c| recurrent(i, c, OnnxRecurrent::Gru)),
    ("RNN", |i, c| recurrent(i, c, OnnxRecurrent::Rnn)),
];

/// Steps of a layer that is computed step by step.
const MOST_STEPS: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq)]
enum OnnxRecurrent {
    Lstm,
    Gru,
    Rnn,
}

impl OnnxRecurrent {
    fn gates(self) -> usize {
        match self {
            OnnxRecurrent::Lstm => 4,
            OnnxRecurrent::Gru => 3,
            OnnxRecurrent::Rnn => 1,
        }
    }

    fn activations(self) -> &'static [&'static str] {
        match self {
            OnnxRecurrent::Lstm => &["sigmoid", "tanh", "tanh"],
            OnnxRecurrent::Gru => &["sigmoid", "tanh"],
            OnnxRecurrent::Rnn => &["tanh"],
        }
    }
}

/// A layer of the file.
#[derive(Clone)]
struct Setting {
    layer: OnnxRecurrent,
    units: usize,
    steps: usize,
    directions: usize,
    reverse: bool,
    /// Activations of all directions, in lower case.
    activations: Vec<String>,
    linear_before_reset: bool,
    coupled: bool,
    clip: Option<f32>,
    /// Which of bias, lengths, initial hidden state, initial cell state and peepholes are there, in this order.
    given: [bool; 5],
}

/// The results of one direction.
struct RecurrentOutputs {
    /// `[batch, steps, units]`.
    hidden: ValueId,
    /// `[batch, units]`.
    last: ValueId,
    cell: Option<ValueId>,
}

fn recurrent(i: &mut OnnxImporter, c: &NodeCall<'_>, layer: OnnxRecurrent) -> Found<Vec<Value>> {
    let batch_first = c.flag("layout", false)?;
    let x = i.computed(&c.input(0)?)?;
    if x.order.len() != 3 {
        return Err("it takes sequences of three dimensions".to_string());
    }
    let x = i.ordered(&x, if batch_first { &[0, 1, 2] } else { &[1, 0, 2] })?;
    let dims = i.graph.shape(x.value).dims().to_vec();
    let Some(steps) = dims[1].as_fixed() else { return Err("its sequences are as long as the batch".to_string()) };
    let mut read = vec![x];
    let mut given = [false; 5];
    // Weights, bias, lengths, states and peepholes with their ranks.
    for (index, rank) in [(1, 3), (2, 3), (3, 2), (4, 1), (5, 3), (6, 3), (7, 2)] {
        let value = match c.given(index) {
            Some(value) if value.rank() == rank => value,
            Some(_) => return Err(format!("its input {index} does not have {rank} dimensions")),
            None if index < 3 => return Err(format!("it has no input {index}")),
            None => continue,
        };
        let tensor = i.computed(&value)?;
        // States are `[directions, batch, units]`, or with the batch first.
        let states = matches!(index, 5 | 6) && batch_first;
        read.push(if states { i.ordered(&tensor, &[1, 0, 2])? } else { i.plain(&tensor)? });
        if index >= 3 {
            given[index - 3] = true;
        }
    }
    let direction = c.text("direction", "forward")?;
    let directions = if direction == "bidirectional" { 2 } else { 1 };
    let mut activations: Vec<String> = c.texts("activations")?.iter().map(|name| name.to_lowercase()).collect();
    if activations.is_empty() {
        activations = layer.activations().repeat(directions).iter().map(|name| name.to_string()).collect();
    }
    if activations.len() != layer.activations().len() * directions {
        return Err(format!("it has {} activations", activations.len()));
    }
    if let Some(other) = activations.iter().find(|name| !["sigmoid", "tanh", "relu"].contains(&name.as_str())) {
        return Err(format!("its activation `{other}` is not imported"));
    }
    let weights = super::conv::fixed(&i.dims(&read[2]))?;
    let &[_, _, units] = &weights[..] else { return Err("its recurrent weights do not have three dimensions".to_string()) };
    let setting = Setting {
        layer,
        units,
        steps,
        directions,
        reverse: direction == "reverse",
        activations,
        linear_before_reset: c.flag("linear_before_reset", false)?,
        coupled: c.flag("input_forget", false)?,
        clip: if c.has("clip") { Some(c.float("clip", 0.0)?) } else { None },
        given,
    };
    if !setting.is_usual() && steps > MOST_STEPS {
        return Err(format!("it has {steps} steps; up to {MOST_STEPS} are imported with its settings"));
    }
    let read: Vec<&Computed> = read.iter().collect();
    let mut outputs = Vec::new();
    // All steps: `[batch, steps, directions, units]` in memory.
    let own = setting.clone();
    let all = i.node("recurrent", &read, move |g, x| own.stacked(g, x, |results| Some(results.hidden), 2))?;
    outputs.push(all.laid_out(if batch_first { vec![0, 1, 2, 3] } else { vec![2, 0, 1, 3] }).into());
    let state_order = || if batch_first { vec![0, 1, 2] } else { vec![1, 0, 2] };
    if c.wants(1) || c.wants(2) {
        let own = setting.clone();
        let last = i.node("recurrent", &read, move |g, x| own.stacked(g, x, |results| Some(results.last), 1))?;
        outputs.push(last.laid_out(state_order()).into());
    }
    if c.wants(2) && layer == OnnxRecurrent::Lstm {
        let own = setting.clone();
        let cell = i.node("recurrent", &read, move |g, x| own.stacked(g, x, |results| results.cell, 1))?;
        outputs.push(cell.laid_out(state_order()).into());
    }
    Ok(outputs)
}

fn part(g: &mut Graph, x: ValueId, axis: usize, start: usize, length: usize) -> Result<ValueId, GraphError> {
    if g.shape(x).dims()[axis] == Dim::fixed(length) {
        return Ok(x);
    }
    g.add_one(Op::Slice(Slice { axis, start, length }), &[x])
}

impl Setting {
    /// Whether the op over whole sequences computes it.
    fn is_usual(&self) -> bool {
        let usual = self.layer.activations();
        let activations = self
            .activations
            .chunks(usual.len())
            .all(|own| own.iter().zip(usual).all(|(own, usual)| own == usual) || self.layer == OnnxRecurrent::Rnn && own[0] == "relu");
        activations
            && self.clip.is_none()
            && !self.coupled
            && !self.given[4]
            && (self.layer != OnnxRecurrent::Gru || self.linear_before_reset)
    }

    /// One result of all directions, with an axis for them.
    fn stacked(
        &self,
        g: &mut Graph,
        x: &[ValueId],
        pick: fn(&RecurrentOutputs) -> Option<ValueId>,
        axis: usize,
    ) -> Result<ValueId, GraphError> {
        let mut parts = Vec::with_capacity(self.directions);
        for direction in 0..self.directions {
            let results = self.direction(g, x, direction)?;
            let Some(result) = pick(&results) else { return Err(g.error("it has no such output")) };
            let mut dims = g.shape(result).dims().to_vec();
            dims.insert(axis, Dim::fixed(1));
            parts.push(g.reshape(result, Shape::new(dims))?);
        }
        if parts.len() == 1 { Ok(parts[0]) } else { g.add_one(Op::Concat(Concat { axis }), &parts) }
    }

    fn direction(&self, g: &mut Graph, x: &[ValueId], direction: usize) -> Result<RecurrentOutputs, GraphError> {
        let (units, gates) = (self.units, self.layer.gates());
        let width = units * gates;
        let mut rest = x[3..].iter().copied();
        let mut optional = self.given.iter().map(|given| if *given { rest.next() } else { None });
        let (bias, lengths) = (optional.next().flatten(), optional.next().flatten());
        let (hidden, cell, peepholes) = (optional.next().flatten(), optional.next().flatten(), optional.next().flatten());
        let reverse = self.reverse || direction == 1;
        // The weights of this direction as matrices.
        let own = |g: &mut Graph, weight: ValueId| -> Result<ValueId, GraphError> {
            let one = part(g, weight, 0, direction, 1)?;
            let dims: Vec<Dim> = g.shape(one).dims()[1..].to_vec();
            g.reshape(one, Shape::new(dims))
        };
        let (mut w, mut r) = (own(g, x[1])?, own(g, x[2])?);
        let mut biases = match bias {
            Some(bias) => {
                let both = own(g, bias)?;
                Some((part(g, both, 0, 0, width)?, part(g, both, 0, width, width)?))
            }
            None => None,
        };
        let usual = self.is_usual();
        if usual && self.layer == OnnxRecurrent::Lstm {
            // Input, output, forget, cell in the file; input, forget, cell, output here.
            let sorted = |g: &mut Graph, x: ValueId| -> Result<ValueId, GraphError> {
                let parts = [0, 2, 3, 1].map(|gate| g.add_one(Op::Slice(Slice { axis: 0, start: gate * units, length: units }), &[x]));
                let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
                g.add_one(Op::Concat(Concat { axis: 0 }), &parts)
            };
            (w, r) = (sorted(g, w)?, sorted(g, r)?);
            biases = match biases {
                Some((a, b)) => Some((sorted(g, a)?, sorted(g, b)?)),
                None => None,
            };
        }
        let shape = g.shape(x[0]).clone();
        let (batch, features) = (shape.dims()[0], shape.dims()[2]);
        let rows = Shape::new([batch, Dim::fixed(self.steps)]).elements();
        let flat = g.reshape(x[0], Shape::new([rows, features]))?;
        let mut projected = g.add_one(Op::MatMul(MatMul { transpose_b: true, ..MatMul::default() }), &[flat, w])?;
        // A GRU adds the recurrent bias inside of its reset gate.
        let apart = self.layer == OnnxRecurrent::Gru && self.linear_before_reset;
        if let Some((input, recurrent)) = biases {
            projected = g.plus(projected, input)?;
            if !apart {
                projected = g.plus(projected, recurrent)?;
            }
        }
        let projected = g.reshape(projected, Shape::new([batch, Dim::fixed(self.steps), Dim::fixed(width)]))?;
        let mask = match lengths {
            Some(lengths) => {
                let lengths = g.reshape(lengths, Shape::new([batch, Dim::fixed(1)]))?;
                let expr = Expr::build(|e| e.binary(Binary::Less, e.coordinate(1), e.input(0)));
                Some(g.pointwise_over(expr, &[lengths], Shape::new([batch, Dim::fixed(self.steps)]))?)
            }
            None => None,
        };
        let state = |g: &mut Graph, state: Option<ValueId>| match state {
            Some(state) => own(g, state).map(Some),
            None => Ok(None),
        };
        let (hidden, cell) = (state(g, hidden)?, state(g, cell)?);
        let peepholes = state(g, peepholes)?;
        let recurrent_bias = match (biases, apart) {
            (Some((_, recurrent)), true) => Some(recurrent),
            _ => None,
        };
        let mut results = match usual {
            true => self.at_once(g, projected, r, recurrent_bias, mask, hidden, cell, reverse)?,
            false => self.step_by_step(g, projected, r, recurrent_bias, mask, hidden, cell, peepholes, reverse, direction)?,
        };
        if let Some(mask) = mask {
            // Steps behind the end of a sequence are zero.
            let mask = g.reshape(mask, Shape::new([batch, Dim::fixed(self.steps), Dim::fixed(1)]))?;
            results.hidden = g.times(results.hidden, mask)?;
        }
        Ok(results)
    }

    #[allow(clippy::too_many_arguments, reason = "the operands of a recurrent layer")]
    fn at_once(
        &self,
        g: &mut Graph,
        x: ValueId,
        r: ValueId,
        bias: Option<ValueId>,
        mask: Option<ValueId>,
        hidden: Option<ValueId>,
        cell: Option<ValueId>,
        reverse: bool,
    ) -> Result<RecurrentOutputs, GraphError> {
        let units = self.units;
        let kernel = g.add_one(Op::Transpose(Transpose { order: vec![1, 0] }), &[r])?;
        let mut inputs = vec![x, kernel];
        let kind = match self.layer {
            OnnxRecurrent::Lstm => Cell::Lstm,
            OnnxRecurrent::Gru => Cell::Gru,
            OnnxRecurrent::Rnn if self.activations[0] == "relu" => Cell::Simple(CellActivation::Relu),
            OnnxRecurrent::Rnn => Cell::Simple(CellActivation::Tanh),
        };
        let batch = g.shape(x).dims()[0];
        if self.layer == OnnxRecurrent::Gru {
            inputs.push(match bias {
                Some(bias) => bias,
                None => g.full(0.0, Shape::fixed([3 * units]))?,
            });
        }
        inputs.extend(mask);
        let initial = hidden.is_some() || cell.is_some();
        if initial {
            let zero = |g: &mut Graph| g.full(0.0, Shape::new([batch, Dim::fixed(units)]));
            inputs.push(match hidden {
                Some(hidden) => hidden,
                None => zero(g)?,
            });
            if self.layer == OnnxRecurrent::Lstm {
                inputs.push(match cell {
                    Some(cell) => cell,
                    None => zero(g)?,
                });
            }
        }
        let op = Recurrent { cell: kind, units, reverse, masked: mask.is_some(), initial };
        let outputs = g.add(Op::Recurrent(op), &inputs)?;
        let at = if reverse { 0 } else { self.steps - 1 };
        let last = g.add_one(Op::Slice(Slice { axis: 1, start: at, length: 1 }), &[outputs[0]])?;
        let last = g.reshape(last, Shape::new([batch, Dim::fixed(units)]))?;
        Ok(RecurrentOutputs {
            hidden: outputs[0],
            last,
            cell: if self.layer == OnnxRecurrent::Lstm { outputs.get(2).copied() } else { None },
        })
    }

    #[allow(clippy::too_many_arguments, reason = "the operands of a recurrent layer")]
    fn step_by_step(
        &self,
        g: &mut Graph,
        x: ValueId,
        r: ValueId,
        bias: Option<ValueId>,
        mask: Option<ValueId>,
        hidden: Option<ValueId>,
        cell: Option<ValueId>,
        peepholes: Option<ValueId>,
        reverse: bool,
        direction: usize,
    ) -> Result<RecurrentOutputs, GraphError> {
        let (units, width) = (self.units, self.units * self.layer.gates());
        let batch = g.shape(x).dims()[0];
        let row = Shape::new([batch, Dim::fixed(units)]);
        let count = self.layer.activations().len();
        let names: Vec<String> = self.activations[direction * count..][..count].to_vec();
        let zero = g.full(0.0, row.clone())?;
        let (mut h, mut state) = (hidden.unwrap_or(zero), cell.unwrap_or(zero));
        let mut outputs: Vec<Option<ValueId>> = vec![None; self.steps];
        let activate = |g: &mut Graph, name: &str, x: ValueId| -> Result<ValueId, GraphError> {
            let clipped = match self.clip {
                Some(limit) => g.map(x, |e, x| e.binary(Binary::Min, e.binary(Binary::Max, x, e.constant(-limit)), e.constant(limit)))?,
                None => x,
            };
            match name {
                "relu" => g.map(clipped, |e, x| e.binary(Binary::Max, x, e.constant(0.0))),
                "tanh" => g.unary(Unary::Tanh, clipped),
                _ => g.unary(Unary::Sigmoid, clipped),
            }
        };
        let peephole = |g: &mut Graph, gate: usize, x: ValueId, state: ValueId| -> Result<ValueId, GraphError> {
            let Some(peepholes) = peepholes else { return Ok(x) };
            let own = g.add_one(Op::Slice(Slice { axis: 0, start: gate * units, length: units }), &[peepholes])?;
            let seen = g.times(own, state)?;
            g.plus(x, seen)
        };
        for step in 0..self.steps {
            let at = if reverse { self.steps - 1 - step } else { step };
            let now = g.add_one(Op::Slice(Slice { axis: 1, start: at, length: 1 }), &[x])?;
            let now = g.reshape(now, Shape::new([batch, Dim::fixed(width)]))?;
            let from = |g: &mut Graph, h: ValueId, first: usize, gates: usize| -> Result<ValueId, GraphError> {
                let own = part(g, r, 0, first * units, gates * units)?;
                g.add_one(Op::MatMul(MatMul { transpose_b: true, ..MatMul::default() }), &[h, own])
            };
            let gate = |g: &mut Graph, x: ValueId, gate: usize| part(g, x, 1, gate * units, units);
            let (new_h, new_state) = match self.layer {
                OnnxRecurrent::Rnn => {
                    let recurrent = from(g, h, 0, 1)?;
                    let sum = g.plus(now, recurrent)?;
                    (activate(g, &names[0], sum)?, state)
                }
                OnnxRecurrent::Lstm => {
                    let recurrent = from(g, h, 0, 4)?;
                    let sum = g.plus(now, recurrent)?;
                    let (i, o, f, c) = (gate(g, sum, 0)?, gate(g, sum, 1)?, gate(g, sum, 2)?, gate(g, sum, 3)?);
                    let (i, f) = (peephole(g, 0, i, state)?, peephole(g, 2, f, state)?);
                    let i = activate(g, &names[0], i)?;
                    let f = if self.coupled { g.map(i, |e, i| e.sub(e.constant(1.0), i))? } else { activate(g, &names[0], f)? };
                    let c = activate(g, &names[1], c)?;
                    let (kept, added) = (g.times(f, state)?, g.times(i, c)?);
                    let new = g.plus(kept, added)?;
                    let o = peephole(g, 1, o, new)?;
                    let o = activate(g, &names[0], o)?;
                    let seen = activate(g, &names[2], new)?;
                    (g.times(o, seen)?, new)
                }
                OnnxRecurrent::Gru => {
                    let recurrent = from(g, h, 0, 2)?;
                    let mut both = g.add_one(Op::Slice(Slice { axis: 1, start: 0, length: 2 * units }), &[now])?;
                    both = g.plus(both, recurrent)?;
                    let biased = |g: &mut Graph, x: ValueId, first: usize, gates: usize| -> Result<ValueId, GraphError> {
                        let Some(bias) = bias else { return Ok(x) };
                        let own = g.add_one(Op::Slice(Slice { axis: 0, start: first * units, length: gates * units }), &[bias])?;
                        g.plus(x, own)
                    };
                    both = biased(g, both, 0, 2)?;
                    let (z, reset) = (gate(g, both, 0)?, gate(g, both, 1)?);
                    let (z, reset) = (activate(g, &names[0], z)?, activate(g, &names[0], reset)?);
                    let seen = match self.linear_before_reset {
                        true => {
                            let seen = from(g, h, 2, 1)?;
                            let seen = biased(g, seen, 2, 1)?;
                            g.times(reset, seen)?
                        }
                        false => {
                            let kept = g.times(reset, h)?;
                            from(g, kept, 2, 1)?
                        }
                    };
                    let candidate = gate(g, now, 2)?;
                    let candidate = g.plus(candidate, seen)?;
                    let candidate = activate(g, &names[1], candidate)?;
                    let expr = Expr::build(|e| {
                        let (z, h, candidate) = (e.input(0), e.input(1), e.input(2));
                        e.add(e.mul(z, h), e.mul(e.sub(e.constant(1.0), z), candidate))
                    });
                    (g.pointwise(expr, &[z, h, candidate])?, state)
                }
            };
            (h, state) = match mask {
                Some(mask) => {
                    let own = g.add_one(Op::Slice(Slice { axis: 1, start: at, length: 1 }), &[mask])?;
                    let expr = Expr::build(|e| e.select(e.input(0), e.input(1), e.input(2)));
                    (g.pointwise(expr.clone(), &[own, new_h, h])?, g.pointwise(expr, &[own, new_state, state])?)
                }
                None => (new_h, new_state),
            };
            outputs[at] = Some(g.reshape(h, Shape::new([batch, Dim::fixed(1), Dim::fixed(units)]))?);
        }
        let outputs: Vec<ValueId> = outputs.into_iter().flatten().collect();
        let all = if outputs.len() == 1 { outputs[0] } else { g.add_one(Op::Concat(Concat { axis: 1 }), &outputs)? };
        Ok(RecurrentOutputs { hidden: all, last: h, cell: (self.layer == OnnxRecurrent::Lstm).then_some(state) })
    }
}
