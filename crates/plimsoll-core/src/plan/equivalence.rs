//! The second part of the checker: verifies that a planned graph computes the same values as its original graph. Shares
//! no code with the planner.
//!
//! [`check`](super::check) proves that a certificate executes a graph; this module proves that the graph, with its
//! recomputation and splits, is the right one. It uses value numbering: two values are equal if the same op computes
//! them from equal values. Random streams are part of the op, so a recomputed dropout mask is equal. A state denotes
//! its value before the step; `check` verifies that it is in place at every read.
//!
//! A row piece of a value is a slice of it, or the output of a row-independent op applied to the same piece of its
//! inputs. Consecutive pieces form the whole; so do sums over pieces, each accumulated onto the previous one. The
//! device guarantees bit-identity ([`Device::can_split_rows`]).
//!
//! A buffer with all slices written equals the concat of the slices; a channel view equals the concat of the slices it
//! covers. Nested concats are flattened.

use super::check::CheckError;
use crate::base::expr::{Expr, Term};
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::{EffectiveOp, Graph, NodeId, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Concat, Reduction};
use crate::plan::{RowSplit, Target};
use std::collections::HashMap;

/// Checks that both graphs have the same columns, scalars and states, and compute the same outputs and state updates on
/// the device for up to `rows` rows.
pub fn check_equivalence(original: &Graph, planned: &Graph, device: &dyn Target, rows: usize) -> Result<(), CheckError> {
    let fail = |what: String| Err(CheckError { at: String::new(), what });
    if original.inputs() != planned.inputs() || original.scalars() != planned.scalars() || original.states() != planned.states() {
        return fail("the planned graph has other columns, scalars or states than the model".to_string());
    }
    if original.tf32() != planned.tf32() {
        return fail("the planned graph has other rules for TF32 products than the model".to_string());
    }
    let mut numbers = Numbers::default();
    let before = numbers.of_original(original);
    let after = Pieces { original, planned, device, most: rows, numbers: &mut numbers, before: &before }.meanings();
    // An output must be a whole value, not a piece.
    let whole = |meaning: &ValueNumber| if let ValueNumber::Whole(number) = meaning { *number } else { u32::MAX };
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

/// Value numbering: equal values get equal numbers, across graphs.
#[derive(Default)]
struct Numbers {
    /// For an op on values with these numbers: the number of its first output, and the node of the original graph.
    known: HashMap<(Op, Vec<u32>), (u32, Option<NodeId>)>,
    /// For a concat output, the axis and the numbers of its inputs.
    joined: HashMap<u32, (usize, Vec<u32>)>,
    next: u32,
}

impl Numbers {
    fn of_original(&mut self, graph: &Graph) -> Vec<u32> {
        let mut numbers = vec![u32::MAX; graph.value_count()];
        for (id, node) in graph.nodes() {
            let inputs: Vec<u32> = node.inputs.iter().map(|input| numbers[input.0 as usize]).collect();
            let effective_op = graph.effective_op(node);
            let first = if is_copy(graph, &effective_op) { inputs[0] } else { self.number(&effective_op, inputs, Some(id)) };
            node.outputs.iter().zip(first..).for_each(|(output, number)| numbers[output.0 as usize] = number);
        }
        numbers
    }

    /// The number of a node's first output.
    fn number(&mut self, node: &EffectiveOp<'_>, inputs: Vec<u32>, id: Option<NodeId>) -> u32 {
        if let Op::Concat(op) = node.op {
            return self.number_of_join(op.axis, &inputs, id);
        }
        let next = self.next;
        let first = self.known.entry((node.op.clone(), inputs)).or_insert((next, id)).0;
        self.next += if first == next { node.outputs.len() as u32 } else { 0 };
        first
    }

    /// The number of the concat of these values.
    fn number_of_join(&mut self, axis: usize, inputs: &[u32], id: Option<NodeId>) -> u32 {
        let parts: Vec<u32> = inputs
            .iter()
            .flat_map(|input| match self.joined.get(input) {
                Some((own, parts)) if *own == axis => parts.clone(),
                _ => vec![*input],
            })
            .collect();
        if let [part] = parts[..] {
            return part;
        }
        let next = self.next;
        let number = self.known.entry((Op::Concat(Concat { axis }), parts.clone())).or_insert((next, id)).0;
        self.next += u32::from(number == next);
        self.joined.insert(number, (axis, parts));
        number
    }
}

/// The meaning of a value of the planned graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueNumber {
    /// The value with this number.
    Whole(u32),
    /// These rows of it.
    Rows { of: u32, span: Span },
    /// The partial sum up to the end of these rows, where the value is the sum over all rows, from zero or a base on.
    Sum { of: u32, span: Span, base: Option<u32> },
    /// No value of the original graph.
    Other,
}

/// The slices written into a concat buffer, with their ranges.
#[derive(Clone, Copy)]
struct WrittenSlice {
    from: usize,
    to: usize,
    meaning: ValueNumber,
}

/// A range of a value's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    /// Whether it counts rows of the batch; otherwise it counts multiples of the batch.
    of_batch: bool,
    from: usize,
    /// `usize::MAX` for all remaining rows of a batch.
    to: usize,
}

impl Span {
    /// Whether a dimension has exactly these rows.
    fn is(self, dim: Dim) -> bool {
        if self.of_batch { dim.part() == Some((self.from, self.to)) } else { dim == Dim::times_batch(self.to - self.from) }
    }

    /// The dimension of all rows, given that of this range; `total` is the multiple if the batch itself is not split.
    fn grown(self, dim: Dim, total: usize) -> Dim {
        if self.of_batch { dim.rows(0, usize::MAX) } else { Dim::times_batch(total) }
    }

    /// Whether the range extends to the end of `total`.
    fn is_last(self, total: usize) -> bool {
        self.to == if self.of_batch { usize::MAX } else { total }
    }

    fn piece(self) -> RowSplit {
        match (self.of_batch, self.to) {
            (false, to) => RowSplit::Multiple(to - self.from),
            // The range before the last piece is a piece, too.
            (true, usize::MAX) => RowSplit::Rows(self.from),
            (true, to) => RowSplit::Rows(to - self.from),
        }
    }
}

struct Pieces<'a> {
    original: &'a Graph,
    planned: &'a Graph,
    device: &'a dyn Target,
    most: usize,
    numbers: &'a mut Numbers,
    /// The number of each value of the original.
    before: &'a [u32],
}

impl Pieces<'_> {
    fn meanings(mut self) -> Vec<ValueNumber> {
        let mut meanings = vec![ValueNumber::Other; self.planned.value_count()];
        // For each number, the multiple of the batch in its rows.
        let mut rows: HashMap<u32, usize> = HashMap::new();
        for (value, number) in self.before.iter().enumerate() {
            rows.insert(*number, row_count(self.original, ValueId(value as u32)).unwrap_or(0));
        }
        let mut put: HashMap<ValueId, Vec<WrittenSlice>> = HashMap::new();
        for (_, node) in self.planned.nodes() {
            let effective_op = self.planned.effective_op(node);
            let inputs: Vec<ValueNumber> = effective_op.inputs.iter().map(|input| meanings[input.0 as usize]).collect();
            let first = if let Some((base, op, along)) = self.planned.slice_write(node) {
                // A fused slice write is its producer followed by a slice write.
                let meaning = if effective_op.slice.is_some() { self.meaning(&effective_op, &inputs, &rows) } else { inputs[0] };
                // Overwriting a slice of a complete buffer would yield a different value.
                let mut parts = base
                    .map_or(Some(Vec::new()), |base| put.get(&base).filter(|_| put_along(self.planned, base) == Some(op.axis)).cloned());
                if let Some(parts) = &mut parts {
                    let (from, to) = op.span(along);
                    parts.push(WrittenSlice { from, to, meaning });
                    parts.sort_by_key(|part| part.from);
                    put.insert(node.outputs[0], parts.clone());
                }
                parts.and_then(|parts| self.of_parts(op.axis, &parts, 0, op.extent, &rows)).unwrap_or(ValueNumber::Other)
            } else if let Op::ChannelView(op) = effective_op.op {
                let axis = self.planned.shape(node.inputs[0]).rank() - 1;
                let parts = put.get(&node.inputs[0]).filter(|_| put_along(self.planned, node.inputs[0]) == Some(axis));
                parts.and_then(|parts| self.of_parts(axis, parts, op.start, op.start + op.length, &rows)).unwrap_or(ValueNumber::Other)
            } else {
                self.meaning(&effective_op, &inputs, &rows)
            };
            for (i, output) in (0..).zip(&node.outputs) {
                meanings[output.0 as usize] = match first {
                    ValueNumber::Whole(number) => ValueNumber::Whole(number + i),
                    ValueNumber::Rows { of, span } => ValueNumber::Rows { of: of + i, span },
                    other => other,
                };
            }
        }
        meanings
    }

    /// The meaning of a node's first output.
    fn meaning(&mut self, node: &EffectiveOp<'_>, inputs: &[ValueNumber], rows: &HashMap<u32, usize>) -> ValueNumber {
        if matches!(node.op, Op::Store(_) | Op::Load(_)) {
            // A stored and loaded value is unchanged, also if it is a piece.
            return inputs[0];
        }
        let wholes: Option<Vec<u32>> =
            inputs.iter().map(|input| if let ValueNumber::Whole(number) = input { Some(*number) } else { None }).collect();
        if let (Op::Slice(op), [ValueNumber::Whole(of)]) = (node.op, inputs)
            && op.axis == 0
            && row_count(self.planned, node.inputs[0]).is_some()
        {
            // The original may compute logits in blocks itself: its slices are values of their own.
            if let Some((number, Some(_))) = self.numbers.known.get(&(node.op.clone(), vec![*of])) {
                return ValueNumber::Whole(*number);
            }
            return ValueNumber::Rows { of: *of, span: Span { of_batch: false, from: op.start, to: op.start + op.length } };
        }
        if let (Op::BatchSlice(op), [ValueNumber::Whole(of)]) = (node.op, inputs) {
            return ValueNumber::Rows { of: *of, span: Span { of_batch: true, from: op.from, to: op.to } };
        }
        match (node.op, wholes) {
            (_, Some(wholes)) if is_copy(self.planned, node) => ValueNumber::Whole(wholes[0]),
            (_, Some(wholes)) => ValueNumber::Whole(self.numbers.number(node, wholes, None)),
            (Op::Concat(op), None) if op.axis == 0 => joined(inputs, rows).unwrap_or(ValueNumber::Other),
            (_, None) => self.of_piece(node, inputs, rows).unwrap_or(ValueNumber::Other),
        }
    }

    /// The meaning of the concat of the slices in a range, if they cover it exactly.
    fn of_parts(&mut self, axis: usize, parts: &[WrittenSlice], from: usize, to: usize, rows: &HashMap<u32, usize>) -> Option<ValueNumber> {
        let within: Vec<&WrittenSlice> = parts.iter().filter(|part| part.from < to && part.to > from).collect();
        let mut end = from;
        for part in &within {
            if part.from != end {
                return None;
            }
            end = part.to;
        }
        if end != to {
            return None;
        }
        let meanings: Vec<ValueNumber> = within.iter().map(|part| part.meaning).collect();
        let wholes: Option<Vec<u32>> =
            meanings.iter().map(|meaning| if let ValueNumber::Whole(number) = meaning { Some(*number) } else { None }).collect();
        match wholes {
            Some(wholes) => Some(ValueNumber::Whole(self.numbers.number_of_join(axis, &wholes, None))),
            None if axis == 0 => joined(&meanings, rows),
            None => None,
        }
    }

    /// The meaning of an op applied to pieces of its inputs.
    fn of_piece(&self, node: &EffectiveOp<'_>, inputs: &[ValueNumber], rows: &HashMap<u32, usize>) -> Option<ValueNumber> {
        let (piece_of, span) =
            inputs.iter().find_map(|input| if let ValueNumber::Rows { of, span } = input { Some((*of, *span)) } else { None })?;
        let total = *rows.get(&piece_of)?;
        // A sum starts at zero or at the last input; `read` counts the other inputs.
        let (whole, goes_on) = whole(node.op, |shape| Some(shape.with(0, span.grown(*shape.dims().first()?, total))))?;
        let read = inputs.len().checked_sub(usize::from(goes_on))?;
        let sums = self.sums(node, read, inputs, span)?;
        if goes_on && !sums {
            return None;
        }
        let of = |input: &ValueNumber| match input {
            ValueNumber::Whole(of) | ValueNumber::Rows { of, .. } => *of,
            ValueNumber::Sum { .. } | ValueNumber::Other => u32::MAX,
        };
        // The sum of all rows may itself start at a sum of earlier micro-batches.
        let base = match inputs.get(read) {
            Some(ValueNumber::Whole(base)) => Some(*base),
            Some(ValueNumber::Sum { base, .. }) => *base,
            _ => None,
        };
        let whole = if base.is_some() { whole.rules().with_rows(&|shape| shape.clone(), true)? } else { whole };
        let (number, id) = self.numbers.known.get(&(whole, inputs[..read].iter().map(of).chain(base).collect::<Vec<u32>>()))?;
        let asked = (*id)?;
        let runs = !matches!(node.op, Op::Reshape(_));
        if runs && !self.device.can_split_rows(self.original, self.original.node(asked), span.piece(), self.most) {
            return None;
        }
        if !sums {
            return Some(ValueNumber::Rows { of: *number, span });
        }
        let begun = match inputs.get(read) {
            None | Some(ValueNumber::Whole(_)) => span.from == 0,
            Some(ValueNumber::Sum { of, span: before, .. }) => (*of, before.of_batch, before.to) == (*number, span.of_batch, span.from),
            Some(_) => false,
        };
        match begun {
            true if span.is_last(total) => Some(ValueNumber::Whole(*number)),
            true => Some(ValueNumber::Sum { of: *number, span, base }),
            false => None,
        }
    }

    /// Whether an op reduces over these rows (true) or is row-independent (false). None if it is neither.
    fn sums(&self, node: &EffectiveOp<'_>, read: usize, inputs: &[ValueNumber], span: Span) -> Option<bool> {
        // Every input is this piece of a value, aligned with the result's rows, or has no rows.
        let shape = |i: usize| self.planned.shape(node.inputs[i]);
        let piece = |i: usize| {
            let first = shape(i).dims().first();
            matches!(inputs[i], ValueNumber::Rows { span: own, .. } if own == span) && first.is_some_and(|first| span.is(*first))
        };
        let none = |i: usize| matches!(inputs[i], ValueNumber::Whole(_)) && !shape(i).has_batch();
        let beside = |over: &Shape, i: usize| {
            none(i) || (piece(i) && shape(i).rank() == over.rank() && shape(i).dims().first() == over.dims().first())
        };
        let along =
            |over: &Shape, from: usize| over.dims().first().is_some_and(|first| span.is(*first)) && (from..read).all(|i| beside(over, i));
        let result = &node.result(self.planned).shape;
        let (legal, sums) = match node.op {
            Op::Pointwise(op) => (along(&op.shape, 0) && !is_drawn(&op.expr), false),
            Op::Reduce(op) if op.axes.contains(&0) => {
                let over_all = op.kind == Reduction::Sum && op.expr.arity() == read;
                (over_all && along(&op.shape, 0) && !is_drawn(&op.expr), true)
            }
            Op::Reduce(op) => (along(&op.shape, 0) && !is_drawn(&op.expr), false),
            Op::Reshape(op) => (op.shape.dims().first().is_some_and(|first| span.is(*first)) && piece(0), false),
            Op::MatMul(op) if op.transpose_a => (!op.transpose_b && op.epilogue.is_none() && read == 2 && piece(0) && piece(1), true),
            Op::MatMul(_) | Op::Conv2d(_) => (piece(0) && none(1) && along(result, 2), false),
            Op::Conv2dGradInput(_) => (none(0) && piece(1), false),
            Op::Conv2dGradFilter(_) => (read == 2 && piece(0) && piece(1), true),
            Op::MaxPool(_) | Op::AvgPool(_) | Op::AvgPoolGrad(_) => (piece(0), false),
            Op::MaxPoolGrad(_) => (piece(0) && piece(1), false),
            Op::Input(_) | Op::State(_) | Op::Scalar(_) | Op::Recurrent(_) | Op::RecurrentGrad(_) => return None,
            Op::Transpose(_) | Op::Slice(_) | Op::BatchSlice(_) | Op::Concat(_) | Op::Pad(_) | Op::Gather(_) | Op::ScatterAdd(_) => {
                return None;
            }
            Op::SliceWrite(_) | Op::FusedSliceWrite(_) | Op::ChannelView(_) | Op::Store(_) | Op::Load(_) => return None,
            Op::Attention(_) | Op::AttentionGrad(_) | Op::AllReduce(_) | Op::PairwiseSum(_) => return None,
            Op::ReduceScatter(_) | Op::Shard(_) | Op::AllGather(_) => return None,
        };
        legal.then_some(sums)
    }
}

/// The op over all rows, given the op over a piece, and whether it accumulates onto a sum. `grown` maps a piece's shape
/// to that of all rows.
fn whole(op: &Op, grown: impl Fn(&Shape) -> Option<Shape>) -> Option<(Op, bool)> {
    let mut op = op.clone();
    let mut goes_on = false;
    match &mut op {
        Op::Pointwise(op) => op.shape = grown(&op.shape)?,
        Op::Reduce(op) => (op.shape, goes_on) = (grown(&op.shape)?, std::mem::take(&mut op.onto)),
        Op::Reshape(op) => op.shape = grown(&op.shape)?,
        Op::MatMul(op) => goes_on = std::mem::take(&mut op.onto),
        Op::Conv2dGradFilter(op) => goes_on = std::mem::take(&mut op.onto),
        Op::Conv2dGradInput(op) => op.input = grown(&op.input)?,
        Op::MaxPoolGrad(op) => op.input = grown(&op.input)?,
        Op::AvgPoolGrad(op) => op.input = grown(&op.input)?,
        Op::Conv2d(_) | Op::MaxPool(_) | Op::AvgPool(_) => {}
        Op::Input(_) | Op::State(_) | Op::Scalar(_) | Op::Recurrent(_) | Op::RecurrentGrad(_) => return None,
        Op::Transpose(_) | Op::Slice(_) | Op::BatchSlice(_) | Op::Concat(_) | Op::Pad(_) | Op::Gather(_) | Op::ScatterAdd(_) => {
            return None;
        }
        Op::SliceWrite(_) | Op::FusedSliceWrite(_) | Op::ChannelView(_) | Op::Store(_) | Op::Load(_) => return None,
        Op::Attention(_) | Op::AttentionGrad(_) | Op::AllReduce(_) | Op::PairwiseSum(_) => return None,
        Op::ReduceScatter(_) | Op::Shard(_) | Op::AllGather(_) => return None,
    }
    Some((op, goes_on))
}

/// The whole value, from consecutive pieces.
fn joined(inputs: &[ValueNumber], rows: &HashMap<u32, usize>) -> Option<ValueNumber> {
    let (mut before, mut end): (Option<(u32, Span)>, usize) = (None, 0);
    for input in inputs {
        let ValueNumber::Rows { of, span } = input else { return None };
        if span.from != end || before.is_some_and(|(value, before)| (value, before.of_batch) != (*of, span.of_batch)) {
            return None;
        }
        (before, end) = (Some((*of, *span)), span.to);
    }
    let (value, last) = before?;
    last.is_last(*rows.get(&value)?).then_some(ValueNumber::Whole(value))
}

/// The axis along which slices are written into a value.
fn put_along(graph: &Graph, value: ValueId) -> Option<usize> {
    graph.slice_write(graph.producer(value)).map(|(_, place, _)| place.axis)
}

/// The multiple of the batch in a value's first dimension.
fn row_count(graph: &Graph, value: ValueId) -> Option<usize> {
    graph.shape(value).dims().first().filter(|dim| dim.is_batch() && dim.part().is_none()).map(|dim| dim.factor())
}

/// Whether an expression uses random numbers, which depend on an element's global index.
fn is_drawn(expr: &Expr) -> bool {
    expr.terms().iter().any(|term| matches!(term, Term::Random(_)))
}

/// Whether a node is a plain copy. Planning adds copies where a state cannot be updated in place.
fn is_copy(graph: &Graph, node: &EffectiveOp<'_>) -> bool {
    match node.op {
        Op::Store(_) | Op::Load(_) => true,
        Op::Pointwise(op) => op.expr.is_identity() && graph.ty(node.inputs[0]) == node.result(graph),
        _ => false,
    }
}
