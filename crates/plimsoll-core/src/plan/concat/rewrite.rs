//! Concats as slice writes: each input is written into the output as soon as it is computed, and is then freed.
//!
//! If the device reads [channel views](crate::ir::ops::ChannelView), a concat that extends the output of another one
//! shares its buffer: consumers of the smaller output, and gradients that read an input, read a channel view of the
//! largest one.
//!
//! An output is allocated with its first slice. Whether that lowers the peak depends on all other buffers, so
//! [`schedule`](super::schedule) compares exact peaks. The certificate records the choice, and
//! [`prove`](crate::plan::prove()) repeats the rewrite.

use crate::base::shape::TensorType;
use crate::ir::graph::{ConcatStrategy, Graph, Node, NodeId, Phase, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{ChannelView, SliceWrite};
use crate::plan::Target;
use crate::plan::updates::root;
use crate::transform::passes::rewrite::{append, finish, shell};
use std::collections::HashMap;

/// An optimized graph with the concats that produce these values rewritten, or all concats if `only` is empty; none if
/// nothing changes. The result is bit-identical, which [`check_equivalence`](crate::plan::check_equivalence) verifies.
pub fn rewrite_concats(old: &Graph, how: ConcatStrategy, only: &[ValueId], device: &dyn Target) -> Option<Graph> {
    if how == ConcatStrategy::Copy || !old.nodes.iter().any(|node| matches!(node.op, Op::Concat(_))) {
        return None;
    }
    let sharing = how == ConcatStrategy::SharedBuffer;
    if sharing && !device.capabilities().reads_channel_views {
        return None;
    }
    let joins = Concats::of(old, sharing, only);
    if joins.buffers.is_empty() || (sharing && joins.views.is_empty()) {
        return None;
    }
    let mut new = ConcatWriter::new(old, &joins).write()?;
    (new.joining, new.joined) = (how, only.to_vec());
    Some(new)
}

/// The concat output of the old graph that node `id` of the rewritten graph still produces by copying.
pub(super) fn copied(old: &Graph, new: &Graph, id: NodeId) -> Option<ValueId> {
    let is_join = |node: &&Node| matches!(node.op, Op::Concat(_));
    if !is_join(&new.node(id)) {
        return None;
    }
    // The remaining concats are in the same order.
    let before = new.nodes[..id.index()].iter().filter(is_join).count();
    let left = old.nodes.iter().filter(is_join).map(|node| node.outputs[0]).filter(|value| !new.joined.contains(value));
    left.into_iter().nth(before)
}

/// A concat output that is written slice by slice.
struct ConcatBuffer {
    axis: usize,
    ty: TensorType,
    extent: usize,
    /// The slices in write order: the value, its offset, and its concat.
    parts: Vec<(ValueId, usize, NodeId)>,
    /// The output of the concat.
    result: ValueId,
}

/// A read through a channel view: the concat buffer, the channels, and the number of slices that must be written
/// before.
#[derive(Clone, Copy)]
struct ViewRead {
    whole: usize,
    channels: (usize, usize),
    parts: usize,
}

/// All concats of a graph that are rewritten.
struct Concats {
    buffers: Vec<ConcatBuffer>,
    /// The outputs that exist only as the leading channels of another one.
    beginnings: Vec<bool>,
    /// The channel view that a node reads instead of a value.
    views: HashMap<(NodeId, ValueId), ViewRead>,
}

impl Concats {
    fn of(graph: &Graph, sharing: bool, only: &[ValueId]) -> Concats {
        let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.values.len()];
        for (id, node) in graph.nodes() {
            for input in &node.inputs {
                if readers[input.index()].last() != Some(&id) {
                    readers[input.index()].push(id);
                }
            }
        }
        let mut kept = vec![false; graph.values.len()];
        let handed_over = graph.outputs.iter().map(|(_, value)| value).chain(graph.updates.iter().map(|(_, value)| value));
        handed_over.for_each(|value| kept[value.index()] = true);
        let changes: Vec<ValueId> = graph.updates.iter().map(|(_, value)| *value).collect();
        let joined = |node: &Node| match &node.op {
            Op::Concat(_) if !only.is_empty() && !only.contains(&node.outputs[0]) => None,
            Op::Concat(op) if node.inputs.len() > 1 && !changes.contains(&node.outputs[0]) => Some(op.axis),
            _ => None,
        };

        let mut joins = Concats { buffers: Vec::new(), beginnings: vec![false; graph.values.len()], views: HashMap::new() };
        if sharing {
            // An output that is the first input of exactly one other concat, and is otherwise read only through channel
            // views.
            for (id, node) in graph.nodes().filter(|(_, node)| joined(node).is_some()) {
                let value = node.inputs[0];
                let last = joined(node) == graph.shape(value).rank().checked_sub(1);
                let mut others = readers[value.index()].iter().filter(|reader| **reader != id);
                joins.beginnings[value.index()] = joined(graph.producer(value)) == joined(node)
                    && node.phase == Phase::Forward
                    && !kept[value.index()]
                    && node.inputs.iter().filter(|input| **input == value).count() == 1
                    && others.all(|reader| last && reads_channel_views(graph, *reader, value));
            }
        }
        for (id, _) in graph.nodes().filter(|(_, node)| joined(node).is_some_and(|_| !joins.beginnings[node.outputs[0].index()])) {
            let grown = ExtendedBuffer::of(graph, id, &joins.beginnings);
            if sharing {
                grown.read_views(graph, &readers, &kept, joins.buffers.len(), &mut joins.views);
            }
            joins.buffers.push(grown.whole);
        }
        joins
    }
}

/// A concat buffer and the concats it extends.
struct ExtendedBuffer {
    whole: ConcatBuffer,
    /// Outputs that are its leading channels: the number of channels and of slices of each.
    beginnings: Vec<(ValueId, usize, usize)>,
}

impl ExtendedBuffer {
    fn of(graph: &Graph, last: NodeId, known: &[bool]) -> ExtendedBuffer {
        let mut nodes = vec![last];
        while let Some(first) = graph.node(nodes[nodes.len() - 1]).inputs.first()
            && known[first.index()]
        {
            nodes.push(graph.values[first.index()].producer);
        }
        nodes.reverse();
        let result = graph.node(last).outputs[0];
        let Op::Concat(op) = &graph.node(last).op else { unreachable!("called for concats only") };
        let dim = |value: ValueId| graph.shape(value).dims()[op.axis];
        let (mut start, mut parts, mut beginnings) = (0, Vec::new(), Vec::new());
        for (i, id) in nodes.iter().enumerate() {
            let node = graph.node(*id);
            let mut own = Vec::new();
            for part in node.inputs.iter().skip(usize::from(i > 0)) {
                own.push((*part, start, *id));
                start = dim(*part).part().map_or(start + dim(*part).factor(), |(_, to)| to);
            }
            // In computation order; leaves are written last.
            own.sort_by_key(|(part, ..)| made_at(graph, *part));
            parts.extend(own);
            if *id != last {
                beginnings.push((node.outputs[0], start, parts.len()));
            }
        }
        let whole = ConcatBuffer { axis: op.axis, ty: graph.ty(result).clone(), extent: start, parts, result };
        ExtendedBuffer { whole, beginnings }
    }

    /// Records which nodes read a channel view: all consumers of an output that is the leading channels of another, and
    /// gradients that read an input, if that frees at least as much as it retains.
    fn read_views(
        &self,
        graph: &Graph,
        readers: &[Vec<NodeId>],
        kept: &[bool],
        number: usize,
        views: &mut HashMap<(NodeId, ValueId), ViewRead>,
    ) {
        let ConcatBuffer { axis, ty, parts, result, .. } = &self.whole;
        let all = parts.len();
        let later = |reader: &NodeId| graph.node(*reader).phase != Phase::Forward;
        let joins = |reader: &NodeId| parts.iter().any(|(.., join)| join == reader);
        let mut note = |value: ValueId, reader: NodeId, channels: (usize, usize), parts: usize| {
            // The backward pass reads the complete buffer, so no earlier version stays live.
            let parts = if later(&reader) { all } else { parts };
            views.insert((reader, value), ViewRead { whole: number, channels, parts });
        };
        for (value, end, count) in &self.beginnings {
            readers[value.index()].iter().filter(|reader| !joins(reader)).for_each(|reader| note(*value, *reader, (0, *end), *count));
        }
        if graph.node(parts[0].2).phase != Phase::Forward || axis + 1 != ty.shape.rank() {
            return;
        }
        // Inputs that have no other use.
        let mut freed: Vec<(usize, ValueId)> = Vec::new();
        for (place, (part, ..)) in parts.iter().enumerate() {
            let others: Vec<NodeId> = readers[part.index()].iter().copied().filter(later).collect();
            let single = parts.iter().filter(|(other, ..)| other == part).count() == 1 && !kept[part.index()];
            let elsewhere = views.keys().any(|(_, value)| value == part) || graph.producer(*part).op.is_leaf();
            let viewed = root(graph, *part) != *part;
            if single
                && !elsewhere
                && !viewed
                && !others.is_empty()
                && others.iter().all(|reader| reads_channel_views(graph, *reader, *part))
            {
                freed.push((place, *part));
            }
        }
        let extent = |value: ValueId| graph.shape(value).dims()[*axis].factor();
        let held = !self.beginnings.is_empty() || readers[result.index()].iter().any(later) || kept[result.index()];
        if !held && freed.iter().map(|(_, part)| extent(*part)).sum::<usize>() < self.whole.extent {
            return;
        }
        for (place, part) in freed {
            let start = parts[place].1;
            let channels = (start, start + extent(part));
            // If no forward node needs it as a tensor, it is freed once it is written.
            let alone = readers[part.index()].iter().all(|reader| joins(reader) || reads_channel_views(graph, *reader, part));
            for reader in readers[part.index()].iter().filter(|reader| !joins(reader) && (alone || later(reader))) {
                views.insert((*reader, part), ViewRead { whole: number, channels, parts: if later(reader) { all } else { place + 1 } });
            }
        }
    }
}

/// The position of a value's producer; leaves come last.
fn made_at(graph: &Graph, part: ValueId) -> u32 {
    let source = root(graph, part);
    if graph.producer(source).op.is_leaf() { u32::MAX } else { graph.values[source.index()].producer.0 }
}

/// Whether a node may read a value as a channel view of another.
fn reads_channel_views(graph: &Graph, reader: NodeId, value: ValueId) -> bool {
    let shape = graph.shape(value);
    match &graph.node(reader).op {
        Op::Pointwise(op) => op.shape == *shape,
        Op::Reduce(op) => op.shape == *shape && !op.axes.contains(&(shape.rank() - 1)) && !op.onto,
        _ => false,
    }
}

/// Rebuilds a graph with its concats written as slice writes and channel views.
struct ConcatWriter<'a> {
    old: &'a Graph,
    joins: &'a Concats,
    new: Graph,
    renamed: Vec<Option<ValueId>>,
    /// For each concat buffer, its value after each slice written so far.
    grown: Vec<Vec<ValueId>>,
    /// For each value, the concat buffers it is written into.
    part_of: HashMap<ValueId, Vec<usize>>,
    views: HashMap<(ValueId, usize, usize), ValueId>,
}

impl<'a> ConcatWriter<'a> {
    fn new(old: &'a Graph, joins: &'a Concats) -> ConcatWriter<'a> {
        let mut part_of: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for (i, whole) in joins.buffers.iter().enumerate() {
            for (part, ..) in &whole.parts {
                part_of.entry(*part).or_default().push(i);
            }
        }
        let (renamed, grown) = (vec![None; old.values.len()], vec![Vec::new(); joins.buffers.len()]);
        ConcatWriter { old, joins, new: shell(old), renamed, grown, part_of, views: HashMap::new() }
    }

    /// None if a value would be read before it is written.
    fn write(mut self) -> Option<Graph> {
        let by_result: HashMap<ValueId, usize> = (0..).zip(&self.joins.buffers).map(|(i, whole)| (whole.result, i)).collect();
        for (id, node) in self.old.nodes() {
            let joined = node.outputs.first().and_then(|output| by_result.get(output)).copied();
            let begins = node.outputs.first().is_some_and(|output| self.joins.beginnings[output.index()]);
            if let Some(whole) = joined {
                self.put(whole, true);
                let parts = self.joins.buffers[whole].parts.len();
                self.renamed[node.outputs[0].index()] = Some(*self.grown[whole].get(parts - 1)?);
            } else if !begins {
                let inputs = node.inputs.iter().map(|input| self.read(id, *input)).collect::<Option<Vec<_>>>()?;
                let outputs = append(&mut self.new, self.old, node, node.op.clone(), inputs);
                node.outputs.iter().zip(outputs).for_each(|(output, new)| self.renamed[output.index()] = Some(new));
            }
            // Computed inputs are written immediately; leaves are written last.
            if !node.op.is_leaf() {
                for output in &node.outputs {
                    self.part_of.get(output).cloned().into_iter().flatten().for_each(|whole| self.put(whole, false));
                }
            }
        }
        finish(&mut self.new, self.old, &self.renamed);
        Some(self.new)
    }

    /// Writes the next slices of a concat buffer whose inputs exist; with `all`, every remaining slice.
    fn put(&mut self, number: usize, all: bool) {
        let whole = &self.joins.buffers[number];
        while let Some((part, start, join)) = whole.parts.get(self.grown[number].len()).copied() {
            let Some(value) = self.renamed[part.index()].filter(|_| all || made_at(self.old, part) != u32::MAX) else { return };
            let base = self.grown[number].last().copied();
            let along_batch = self.old.shape(part).dims()[whole.axis].part().is_some();
            let extent = if along_batch { usize::MAX } else { whole.extent };
            let inputs = [Some(value), base].into_iter().flatten().collect();
            let outputs = self.new.push(Op::SliceWrite(SliceWrite { axis: whole.axis, start, extent }), inputs, vec![whole.ty.clone()]);
            let (node, last) = (self.old.node(join), self.new.nodes_mut().last_mut().expect("just pushed"));
            (last.scope, last.phase) = (node.scope.clone(), node.phase);
            self.grown[number].push(outputs[0]);
        }
    }

    /// The new value that a node reads in place of an old one.
    fn read(&mut self, reader: NodeId, value: ValueId) -> Option<ValueId> {
        let Some(ViewRead { whole, channels: (start, end), parts }) = self.joins.views.get(&(reader, value)).copied() else {
            return self.renamed[value.index()];
        };
        let of = *self.grown[whole].get(parts - 1)?;
        if let Some(known) = self.views.get(&(of, start, end)) {
            return Some(*known);
        }
        let node = self.old.node(reader);
        let view = Op::ChannelView(ChannelView { start, length: end - start });
        let value = self.new.within(&node.scope, node.phase, |new| new.add_one(view, &[of])).ok()?;
        self.views.insert((of, start, end), value);
        Some(value)
    }
}
