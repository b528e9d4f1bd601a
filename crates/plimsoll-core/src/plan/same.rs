//! The other half of the checker: that a planned graph computes what the graph it was made from computes. Shares no code with the planner.
//!
//! [`check`](super::check) proves that a certificate runs a graph; this proves that the graph, with everything it computes twice or piece by
//! piece, is the right one. Two values are the same if the same op makes them from the same values. Randomness is part of the op, so a
//! repeated mask is the same mask; and a state is the value it has before the step, which `check` sees to be in its place whenever it is read.
//!
//! A piece of a value's rows is what a slice of it is, or what an op that treats every row by itself makes of the same piece of what it reads.
//! Pieces that follow each other make the whole; so do the sums of products over them, each begun with the one before. The device vouches for
//! the bits ([`Device::cut_rows`]).

use super::check::CheckError;
use crate::device::Device;
use crate::expr::{Expr, Term};
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::op::Op;
use crate::ops::MatMul;
use crate::shape::{Dim, Shape};
use std::collections::HashMap;

/// Checks that both graphs have the same columns, scalars and states, and give the same outputs and the same changes of state, on the
/// device and for up to `rows` rows.
pub fn check_same(original: &Graph, planned: &Graph, device: &dyn Device, rows: usize) -> Result<(), CheckError> {
    let fail = |what: String| Err(CheckError { at: String::new(), what });
    if original.inputs() != planned.inputs() || original.scalars() != planned.scalars() || original.states() != planned.states() {
        return fail("the planned graph has other columns, scalars or states than the model".to_string());
    }
    let mut numbers = Numbers::default();
    let before = numbers.of_original(original);
    let after = Pieces { original, planned, device, most: rows, numbers: &mut numbers, before: &before }.meanings();
    // What is only a piece is nothing that a model gives.
    let whole = |meaning: &Meaning| if let Meaning::Whole(number) = meaning { *number } else { u32::MAX };
    let wanted: Vec<(String, u32)> = original.outputs().iter().map(|(name, value)| (name.clone(), before[value.0 as usize])).collect();
    let given: Vec<(String, u32)> = planned.outputs().iter().map(|(name, value)| (name.clone(), whole(&after[value.0 as usize]))).collect();
    if let Some((name, _)) = wanted.iter().find(|output| !given.contains(output)) {
        return fail(format!("the planned graph computes something else for the output `{name}`"));
    }
    let wanted: Vec<(u32, u32)> = original.updates().iter().map(|(state, value)| (state.0, before[value.0 as usize])).collect();
    let given: Vec<(u32, u32)> = planned.updates().iter().map(|(state, value)| (state.0, whole(&after[value.0 as usize]))).collect();
    if let Some((state, _)) = wanted.iter().find(|update| !given.contains(update)) {
        return fail(format!("the planned graph changes `{}` to something else", original.states()[*state as usize].name));
    }
    if given.len() != wanted.len() || planned.outputs().len() != original.outputs().len() {
        return fail("the planned graph has other outputs or changes other states".to_string());
    }
    Ok(())
}

/// Gives every value a number; equal values get equal numbers, across graphs.
#[derive(Default)]
struct Numbers {
    /// For an op on values with these numbers: the number of its first result, and the node of the original that does it.
    known: HashMap<(Op, Vec<u32>), (u32, Option<NodeId>)>,
    next: u32,
}

impl Numbers {
    fn of_original(&mut self, graph: &Graph) -> Vec<u32> {
        let mut numbers = vec![u32::MAX; graph.value_count()];
        for (id, node) in graph.nodes() {
            let inputs: Vec<u32> = node.inputs.iter().map(|input| numbers[input.0 as usize]).collect();
            let first = if is_copy(graph, node) { inputs[0] } else { self.number(node, inputs, Some(id)) };
            node.outputs.iter().zip(first..).for_each(|(output, number)| numbers[output.0 as usize] = number);
        }
        numbers
    }

    /// The number of a node's first result.
    fn number(&mut self, node: &Node, inputs: Vec<u32>, id: Option<NodeId>) -> u32 {
        let next = self.next;
        let first = self.known.entry((node.op.clone(), inputs)).or_insert((next, id)).0;
        self.next += if first == next { node.outputs.len() as u32 } else { 0 };
        first
    }
}

/// What a value of the planned graph is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The value with this number.
    Whole(u32),
    /// These rows of it, in multiples of the batch.
    Rows { of: u32, from: usize, to: usize },
    /// The sum over the rows up to there, where the value is the sum over all.
    Sum { of: u32, to: usize },
    /// Nothing that the original has.
    Other,
}

struct Pieces<'a> {
    original: &'a Graph,
    planned: &'a Graph,
    device: &'a dyn Device,
    most: usize,
    numbers: &'a mut Numbers,
    /// The number of each value of the original.
    before: &'a [u32],
}

impl Pieces<'_> {
    fn meanings(mut self) -> Vec<Meaning> {
        let mut meanings = vec![Meaning::Other; self.planned.value_count()];
        // For a number, what stands before the batch in its rows.
        let mut rows: HashMap<u32, usize> = HashMap::new();
        for (value, number) in self.before.iter().enumerate() {
            rows.insert(*number, row_count(self.original, ValueId(value as u32)).unwrap_or(0));
        }
        for (_, node) in self.planned.nodes() {
            let inputs: Vec<Meaning> = node.inputs.iter().map(|input| meanings[input.0 as usize]).collect();
            let first = self.meaning(node, &inputs, &rows);
            for (i, output) in (0..).zip(&node.outputs) {
                meanings[output.0 as usize] = match first {
                    Meaning::Whole(number) => Meaning::Whole(number + i),
                    Meaning::Rows { of, from, to } => Meaning::Rows { of: of + i, from, to },
                    other => other,
                };
            }
        }
        meanings
    }

    /// What the first result of a node is.
    fn meaning(&mut self, node: &Node, inputs: &[Meaning], rows: &HashMap<u32, usize>) -> Meaning {
        if matches!(node.op, Op::Store(_) | Op::Load(_)) {
            // What leaves and comes back is what it was, a piece too.
            return inputs[0];
        }
        let wholes: Option<Vec<u32>> =
            inputs.iter().map(|input| if let Meaning::Whole(number) = input { Some(*number) } else { None }).collect();
        if let (Op::Slice(op), [Meaning::Whole(of)]) = (&node.op, inputs)
            && op.axis == 0
            && row_count(self.planned, node.inputs[0]).is_some()
        {
            return Meaning::Rows { of: *of, from: op.start, to: op.start + op.length };
        }
        match (&node.op, wholes) {
            (_, Some(wholes)) if is_copy(self.planned, node) => Meaning::Whole(wholes[0]),
            (_, Some(wholes)) => Meaning::Whole(self.numbers.number(node, wholes, None)),
            (Op::Concat(op), None) if op.axis == 0 => joined(inputs, rows).unwrap_or(Meaning::Other),
            (_, None) => self.of_piece(node, inputs, rows).unwrap_or(Meaning::Other),
        }
    }

    /// What an op makes of a piece of the rows of some of what it reads.
    fn of_piece(&self, node: &Node, inputs: &[Meaning], rows: &HashMap<u32, usize>) -> Option<Meaning> {
        let (from, to) =
            inputs.iter().find_map(|input| if let Meaning::Rows { from, to, .. } = input { Some((*from, *to)) } else { None })?;
        let length = to.checked_sub(from)?;
        let first = Dim::times_batch(length);
        // Every input is this piece of something, laid along the result's rows, or has no rows; a sum comes last.
        let is_piece = |i: usize| matches!(inputs[i], Meaning::Rows { from: a, to: b, .. } if (a, b) == (from, to));
        let shape = |i: usize| self.planned.shape(node.inputs[i]);
        let piece_of = |i: usize, rank: usize| is_piece(i) && shape(i).rank() == rank && shape(i).dims()[0] == first;
        let none = |i: usize| matches!(inputs[i], Meaning::Whole(_)) && !shape(i).has_batch();
        let by_rows = |over: &Shape, inputs: std::ops::Range<usize>| {
            over.dims().first() == Some(&first) && inputs.into_iter().all(|i| piece_of(i, over.rank()) || none(i))
        };
        let all = 0..inputs.len();
        let (whole, sums) = match &node.op {
            Op::Pointwise(op) if by_rows(&op.shape, all.clone()) && !is_drawn(&op.expr) => (self.grown(&node.op, inputs, rows)?, false),
            Op::Reduce(op) if by_rows(&op.shape, all) && !op.axes.contains(&0) && !is_drawn(&op.expr) => {
                (self.grown(&node.op, inputs, rows)?, false)
            }
            Op::Reshape(op) if op.shape.dims().first() == Some(&first) && is_piece(0) => (self.grown(&node.op, inputs, rows)?, false),
            Op::MatMul(op) if !op.transpose_a && !op.onto => {
                let over = self.planned.shape(node.outputs[0]);
                let legal = piece_of(0, 2) && none(1) && by_rows(over, 2..inputs.len());
                (legal.then(|| node.op.clone())?, false)
            }
            Op::MatMul(op) if op.transpose_a && !op.transpose_b && op.epilogue.is_none() => {
                let legal = piece_of(0, 2) && piece_of(1, 2) && inputs.len() == 2 + usize::from(op.onto);
                (legal.then(|| Op::MatMul(MatMul { onto: false, ..op.clone() }))?, true)
            }
            _ => return None,
        };
        let of = |input: &Meaning| match input {
            Meaning::Whole(of) | Meaning::Rows { of, .. } | Meaning::Sum { of, .. } => *of,
            Meaning::Other => u32::MAX,
        };
        let read = if sums { &inputs[..2] } else { inputs };
        let (number, id) = self.numbers.known.get(&(whole, read.iter().map(of).collect::<Vec<u32>>()))?;
        let asked = (*id)?;
        let runs = !matches!(node.op, Op::Reshape(_));
        if runs && !self.device.cut_rows(self.original, self.original.node(asked), length, self.most) {
            return None;
        }
        if !sums {
            return Some(Meaning::Rows { of: *number, from, to });
        }
        let begun = match inputs.get(2) {
            None => from == 0,
            Some(before) => *before == Meaning::Sum { of: *number, to: from },
        };
        let total = rows.get(&of(&inputs[0])).copied()?;
        match begun {
            true if to == total => Some(Meaning::Whole(*number)),
            true => Some(Meaning::Sum { of: *number, to }),
            false => None,
        }
    }

    /// The op over all rows that this one is over a piece of.
    fn grown(&self, op: &Op, inputs: &[Meaning], rows: &HashMap<u32, usize>) -> Option<Op> {
        let total = inputs.iter().find_map(|input| if let Meaning::Rows { of, .. } = input { rows.get(of) } else { None })?;
        let all = Dim::times_batch(*total);
        let mut op = op.clone();
        match &mut op {
            Op::Pointwise(op) => op.shape = op.shape.with(0, all),
            Op::Reduce(op) => op.shape = op.shape.with(0, all),
            Op::Reshape(op) => op.shape = op.shape.with(0, all),
            _ => return None,
        }
        Some(op)
    }
}

/// All rows of a value, one piece after another.
fn joined(inputs: &[Meaning], rows: &HashMap<u32, usize>) -> Option<Meaning> {
    let (mut value, mut end) = (None, 0);
    for input in inputs {
        let Meaning::Rows { of, from, to } = input else { return None };
        if *from != end || value.is_some_and(|value| value != *of) {
            return None;
        }
        (value, end) = (Some(*of), *to);
    }
    value.filter(|value| rows.get(value) == Some(&end)).map(Meaning::Whole)
}

/// What stands before the batch in a value's first axis.
fn row_count(graph: &Graph, value: ValueId) -> Option<usize> {
    graph.shape(value).dims().first().filter(|dim| dim.is_batch()).map(|dim| dim.factor())
}

/// Whether an expression draws random numbers, which depend on where an element stands among all.
fn is_drawn(expr: &Expr) -> bool {
    expr.terms().iter().any(|term| matches!(term, Term::Random(_)))
}

/// Whether a node only puts a value somewhere else: planning adds such nodes where a state cannot be written straight away.
fn is_copy(graph: &Graph, node: &Node) -> bool {
    match &node.op {
        Op::Store(_) | Op::Load(_) => true,
        Op::Pointwise(op) => op.expr.is_identity() && graph.ty(node.inputs[0]) == graph.ty(node.outputs[0]),
        _ => false,
    }
}
