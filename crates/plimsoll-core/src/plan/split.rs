//! Splitting: where some layers hold far more than all others (the scores of a large vocabulary, and their gradient), they are computed for a
//! piece of the rows after another, so that only a piece of what they hold exists at a time.
//!
//! What may be cut is decided by the ops: whatever computes each row by itself, and products that sum over the rows, each piece onto
//! the sum so far. Whether that leaves every bit as it was is for the [device](Device::cut_rows) to say; otherwise nothing is cut.

use super::updates::runs;
use crate::device::Device;
use crate::expr::Term;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::op::Op;
use crate::ops::{Concat, MatMul, Pointwise, Reduce, Reshape, Slice};
use crate::shape::{Dim, TensorType};
use std::collections::{HashMap, HashSet};

/// Layers are looked at around this many of the largest tensors.
const SEEDS: usize = 6;

/// A tensor is cut along with the largest if it is at least that over this.
const SHARE: u64 = 4;

/// The largest number of pieces, of at most `most`, that the heaviest layers of an improved graph can be computed in on the device.
/// None if nothing can be cut.
pub fn pieces(graph: &Graph, rows: usize, device: &dyn Device, most: usize) -> Option<usize> {
    let segment = Segment::find(graph, rows, device)?;
    (2..=most.min(segment.rows)).rev().find(|pieces| segment.allows(graph, rows, device, *pieces))
}

/// The graph with its heaviest layers computed in this many pieces. None if that cannot be.
///
/// Computes the same bits, which [`check_same`](super::check_same) proves from the result.
pub fn split(graph: &Graph, rows: usize, device: &dyn Device, pieces: usize) -> Option<Graph> {
    let segment = Segment::find(graph, rows, device)?;
    (pieces > 1 && segment.allows(graph, rows, device, pieces)).then(|| segment.write(graph, pieces))
}

/// Nodes that are computed piece by piece.
struct Segment {
    nodes: Vec<bool>,
    /// What stands before the batch in their rows.
    rows: usize,
}

/// What becomes of a node's rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Each row of the result is made from the same row of what it reads, and from what has no rows.
    Rows,
    /// Rows are summed.
    Sum,
}

impl Segment {
    /// The nodes around the largest tensor that can be cut.
    fn find(graph: &Graph, rows: usize, device: &dyn Device) -> Option<Segment> {
        let bytes = |value: ValueId| graph.ty(value).bytes(rows).0;
        let made = (0..graph.values.len() as u32).map(ValueId).filter(|value| runs(graph.producer(*value)) && row_count(graph, *value) > 1);
        let mut seeds: Vec<ValueId> = made.collect();
        seeds.sort_by_key(|value| (std::cmp::Reverse(bytes(*value)), *value));
        seeds.into_iter().take(SEEDS).find_map(|seed| {
            // Best with the layers before and after that hold much too; if those cannot be cut, without.
            let least = bytes(seed) / SHARE;
            let segment = Segment::around(graph, seed, least, rows, true).or_else(|| Segment::around(graph, seed, least, rows, false))?;
            (2..=segment.rows).any(|pieces| segment.allows(graph, rows, device, pieces)).then_some(segment)
        })
    }

    /// All that reads tensors as large as `least` that hang together with the seed, and all between; with all that makes such tensors, if `back`.
    fn around(graph: &Graph, seed: ValueId, least: u64, rows: usize, back: bool) -> Option<Segment> {
        let count = row_count(graph, seed);
        let great = |value: ValueId| row_count(graph, value) == count && graph.ty(value).bytes(rows).0 >= least;
        let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.values.len()];
        for (id, node) in graph.nodes() {
            node.inputs.iter().for_each(|input| readers[input.index()].push(id));
        }
        let mut segment = Segment { nodes: vec![false; graph.nodes.len()], rows: count };
        let mut open = vec![graph.values[seed.index()].producer];
        loop {
            while let Some(id) = open.pop() {
                if std::mem::replace(&mut segment.nodes[id.index()], true) {
                    continue;
                }
                let node = graph.node(id);
                segment.kind(graph, node)?;
                for input in node.inputs.iter().filter(|input| back && great(**input)) {
                    // What cannot be cut is there as a whole, and read piece by piece.
                    if segment.kind(graph, graph.producer(*input)).is_some() {
                        open.push(graph.values[input.index()].producer);
                    }
                }
                node.outputs.iter().filter(|output| great(**output)).for_each(|output| open.extend(&readers[output.index()]));
            }
            open = segment.between(graph);
            if open.is_empty() {
                break;
            }
        }
        // A sum is complete only after the last piece: nothing that is cut may wait for it.
        let early = |node: &Node| {
            let sums = |input: &ValueId| {
                let producer = graph.values[input.index()].producer;
                segment.nodes[producer.index()] && segment.kind(graph, graph.node(producer)) == Some(Kind::Sum)
            };
            node.inputs.iter().any(sums)
        };
        let waits = graph.nodes().any(|(id, node)| segment.nodes[id.index()] && early(node));
        (!waits).then_some(segment)
    }

    /// Nodes outside that need something inside and are needed inside.
    fn between(&self, graph: &Graph) -> Vec<NodeId> {
        let (mut after, mut before) = (self.nodes.clone(), self.nodes.clone());
        for (id, node) in graph.nodes() {
            after[id.index()] |= node.inputs.iter().any(|input| after[graph.values[input.index()].producer.index()]);
        }
        for (id, node) in graph.nodes().collect::<Vec<_>>().into_iter().rev() {
            if before[id.index()] {
                node.inputs.iter().for_each(|input| before[graph.values[input.index()].producer.index()] = true);
            }
        }
        let inside = |id: &NodeId| after[id.index()] && before[id.index()] && !self.nodes[id.index()];
        graph.nodes().map(|(id, _)| id).filter(inside).collect()
    }

    fn has_rows(&self, graph: &Graph, value: ValueId) -> bool {
        row_count(graph, value) == self.rows
    }

    /// How the node treats its rows. None if it cannot be cut.
    fn kind(&self, graph: &Graph, node: &Node) -> Option<Kind> {
        let rows = |value: &ValueId| self.has_rows(graph, *value);
        let none = |value: &ValueId| !graph.shape(*value).has_batch();
        let first = Dim::times_batch(self.rows);
        let along = |shape: &crate::Shape| shape.rank() > 0 && shape.dims()[0] == first;
        let aligned = |value: &ValueId, rank: usize| none(value) || (rows(value) && graph.shape(*value).rank() == rank);
        let drawn = |expr: &crate::expr::Expr| expr.terms().iter().any(|term| matches!(term, Term::Random(_)));
        let by_rows = match &node.op {
            Op::Pointwise(op) => along(&op.shape) && !drawn(&op.expr) && node.inputs.iter().all(|input| aligned(input, op.shape.rank())),
            Op::Reduce(op) => {
                let kept = along(&op.shape) && !op.axes.contains(&0);
                kept && !drawn(&op.expr) && node.inputs.iter().all(|input| aligned(input, op.shape.rank()))
            }
            Op::Reshape(op) => along(&op.shape) && rows(&node.inputs[0]),
            Op::MatMul(op) if op.onto => false,
            Op::MatMul(op) if op.transpose_a => {
                let both = rows(&node.inputs[0]) && rows(&node.inputs[1]) && !op.transpose_b && op.epilogue.is_none();
                return both.then_some(Kind::Sum);
            }
            Op::MatMul(_) => rows(&node.inputs[0]) && none(&node.inputs[1]) && node.inputs[2..].iter().all(|input| aligned(input, 2)),
            _ => false,
        };
        by_rows.then_some(Kind::Rows)
    }

    fn allows(&self, graph: &Graph, rows: usize, device: &dyn Device, pieces: usize) -> bool {
        let all = || graph.nodes().filter(|(id, node)| self.nodes[id.index()] && runs(node));
        self.rows.is_multiple_of(pieces) && all().all(|(_, node)| device.cut_rows(graph, node, self.rows / pieces, rows))
    }

    /// Writes the graph anew: what does not need the segment, its pieces one by one, then the rest.
    fn write(&self, old: &Graph, pieces: usize) -> Graph {
        let mut new = Graph::new();
        (new.inputs, new.states, new.scalars, new.streams) = (old.inputs.clone(), old.states.clone(), old.scalars.clone(), old.streams);
        new.pieces = pieces;
        let mut after = self.nodes.clone();
        for (id, node) in old.nodes() {
            after[id.index()] |= node.inputs.iter().any(|input| after[old.values[input.index()].producer.index()]);
        }
        let mut writer = Writer { old, new, whole: vec![None; old.values.len()] };
        for (id, _) in old.nodes().filter(|(id, _)| !after[id.index()]) {
            writer.copy(id);
        }
        self.write_pieces(&mut writer, pieces);
        for (id, _) in old.nodes().filter(|(id, _)| after[id.index()] && !self.nodes[id.index()]) {
            writer.copy(id);
        }
        let Writer { mut new, whole, .. } = writer;
        let renamed = |value: &ValueId| whole[value.index()].expect("what is kept is made");
        new.outputs = old.outputs.iter().map(|(name, value)| (name.clone(), renamed(value))).collect();
        new.updates = old.updates.iter().map(|(state, value)| (*state, renamed(value))).collect();
        new
    }

    fn write_pieces(&self, writer: &mut Writer<'_>, pieces: usize) {
        let (old, length) = (writer.old, self.rows / pieces);
        let inside: Vec<NodeId> = old.nodes().map(|(id, _)| id).filter(|id| self.nodes[id.index()]).collect();
        let mut parts: HashMap<ValueId, Vec<ValueId>> = HashMap::new();
        let mut sums: HashMap<ValueId, ValueId> = HashMap::new();
        for piece in 0..pieces {
            let mut here: HashMap<ValueId, ValueId> = HashMap::new();
            for id in &inside {
                let node = old.node(*id);
                let mut inputs: Vec<ValueId> = node
                    .inputs
                    .iter()
                    .map(|input| match here.get(input) {
                        Some(known) => *known,
                        None if self.has_rows(old, *input) => {
                            let op = Op::Slice(Slice { axis: 0, start: piece * length, length });
                            let whole = writer.whole[input.index()].expect("what is read inside is made before");
                            let slice = writer.push(node, op, vec![whole], vec![cut(old.ty(*input), length)])[0];
                            here.insert(*input, slice);
                            slice
                        }
                        None => writer.whole[input.index()].expect("what is read inside is made before"),
                    })
                    .collect();
                if self.kind(old, node) == Some(Kind::Sum) {
                    let Op::MatMul(op) = &node.op else { unreachable!("only products sum over rows") };
                    inputs.extend(sums.get(&node.outputs[0]));
                    let op = Op::MatMul(MatMul { onto: piece > 0, ..op.clone() });
                    let sum = writer.push(node, op, inputs, vec![old.ty(node.outputs[0]).clone()])[0];
                    sums.insert(node.outputs[0], sum);
                    continue;
                }
                let types = node.outputs.iter().map(|output| cut(old.ty(*output), length)).collect();
                let made = writer.push(node, of_piece(&node.op, length), inputs, types);
                for (output, part) in node.outputs.iter().zip(made) {
                    here.insert(*output, part);
                    parts.entry(*output).or_default().push(part);
                }
            }
        }
        // What others read, or the host, is put together again.
        let mut read: HashSet<ValueId> = old.outputs.iter().map(|(_, value)| *value).collect();
        read.extend(old.updates.iter().map(|(_, value)| *value));
        read.extend(old.nodes().filter(|(id, _)| !self.nodes[id.index()]).flat_map(|(_, node)| node.inputs.iter().copied()));
        for id in inside {
            let node = old.node(id);
            for output in node.outputs.iter().filter(|output| read.contains(output)) {
                let whole = match sums.get(output) {
                    Some(sum) => *sum,
                    None => writer.push(node, Op::Concat(Concat { axis: 0 }), parts[output].clone(), vec![old.ty(*output).clone()])[0],
                };
                writer.whole[output.index()] = Some(whole);
            }
        }
    }
}

/// The op over a piece of its rows.
fn of_piece(op: &Op, length: usize) -> Op {
    let rows = Dim::times_batch(length);
    match op {
        Op::Pointwise(op) => Op::Pointwise(Pointwise { shape: op.shape.with(0, rows), ..op.clone() }),
        Op::Reduce(op) => Op::Reduce(Reduce { shape: op.shape.with(0, rows), ..op.clone() }),
        Op::Reshape(op) => Op::Reshape(Reshape { shape: op.shape.with(0, rows) }),
        other => other.clone(),
    }
}

fn cut(ty: &TensorType, length: usize) -> TensorType {
    TensorType::new(ty.dtype, ty.shape.with(0, Dim::times_batch(length)))
}

/// What stands before the batch in a value's first axis; none for what has no rows there.
fn row_count(graph: &Graph, value: ValueId) -> usize {
    graph.shape(value).dims().first().filter(|dim| dim.is_batch()).map_or(0, |dim| dim.factor())
}

struct Writer<'a> {
    old: &'a Graph,
    new: Graph,
    /// For each old value that is there as a whole, which it is.
    whole: Vec<Option<ValueId>>,
}

impl Writer<'_> {
    fn push(&mut self, like: &Node, op: Op, inputs: Vec<ValueId>, types: Vec<TensorType>) -> Vec<ValueId> {
        let outputs = self.new.push(op, inputs, types);
        let node = self.new.nodes.last_mut().expect("just pushed");
        (node.scope, node.phase) = (like.scope.clone(), like.phase);
        outputs
    }

    fn copy(&mut self, id: NodeId) {
        let node = self.old.node(id);
        let inputs = node.inputs.iter().map(|input| self.whole[input.index()].expect("made before")).collect();
        let types = node.outputs.iter().map(|output| self.old.ty(*output).clone()).collect();
        let made = self.push(node, node.op.clone(), inputs, types);
        node.outputs.iter().zip(made).for_each(|(output, new)| self.whole[output.index()] = Some(new));
    }
}
