//! Fusing slice writes: a concat input that only the concat reads need not be a tensor of its own, if its producer can write with the row stride of the
//! concat output.
//!
//! This saves the input's bytes and the time to copy them. It can also raise the peak, because the output is allocated when its first slice is computed, which
//! may be before the operands of that slice are freed; so [`schedule`](super::schedule) compares the exact peaks.

use crate::ir::graph::{Graph, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{FusedSliceWrite, SliceWrite};
use crate::plan::Target;
use crate::plan::updates::root;
use crate::transform::passes::rewrite::{append, finish, shell};

/// A graph with every [`SliceWrite`] that can be fused with the producer of its input written as a [`FusedSliceWrite`]; none if there are none. Computes the same bits, which
/// [`check_equivalence`](crate::plan::check_equivalence) proves from the result.
pub fn fuse_slice_writes(old: &Graph, device: &dyn Target) -> Option<Graph> {
    let counts = old.use_counts();
    let mut producers: Vec<bool> = vec![false; old.nodes.len()];
    let mut found = false;
    for node in &old.nodes {
        if let Op::SliceWrite(place) = &node.op
            && can_be_fused(old, node, place, &counts, device)
        {
            producers[old.values[node.inputs[0].index()].producer.index()] = true;
            found = true;
        }
    }
    found.then(|| write(old, &producers))
}

/// Whether some input of a concat could be written by its producer.
pub(super) fn has_fusable_input(graph: &Graph, join: &Node, counts: &[u32], device: &dyn Target) -> bool {
    let Op::Concat(op) = &join.op else { return false };
    // The exact position does not matter to a device.
    let place = SliceWrite { axis: op.axis, start: 0, extent: usize::MAX };
    join.inputs.iter().any(|part| is_fusable(graph, *part, &place, counts, device))
}

fn can_be_fused(graph: &Graph, put: &Node, place: &SliceWrite, counts: &[u32], device: &dyn Target) -> bool {
    let part = put.inputs[0];
    // The producer must not read the buffer it writes into.
    let mut whole = put.inputs.get(1).copied();
    let mut so_far = Vec::new();
    while let Some(value) = whole {
        so_far.push(value);
        whole = graph.slice_write(graph.producer(value)).and_then(|(base, ..)| base);
    }
    let apart = graph.producer(part).inputs.iter().all(|input| !so_far.contains(&root(graph, *input)));
    apart && is_fusable(graph, part, place, counts, device)
}

/// Whether the concat is the only consumer of an input, and its producer can write the slice.
fn is_fusable(graph: &Graph, part: ValueId, place: &SliceWrite, counts: &[u32], device: &dyn Target) -> bool {
    let producer = &graph.producer(part).op;
    counts[part.index()] == 1 && FusedSliceWrite::can_fuse(producer) && device.fuses_slice_write(producer, graph.ty(part), place)
}

/// Drops the producers and fuses them into the slice writes of their results.
fn write(old: &Graph, producers: &[bool]) -> Graph {
    let mut new = shell(old);
    let mut renamed: Vec<Option<ValueId>> = vec![None; old.values.len()];
    for (id, node) in old.nodes() {
        if producers[id.index()] {
            continue;
        }
        let rename = |values: &[ValueId]| -> Vec<ValueId> {
            values.iter().map(|value| renamed[value.index()].expect("what is read comes first, and was not fused away")).collect()
        };
        let part = node.inputs.first().map(|part| old.values[part.index()].producer).filter(|producer| producers[producer.index()]);
        let outputs = match (&node.op, part) {
            (Op::SliceWrite(place), Some(producer)) => {
                let producer = old.node(producer);
                let op = FusedSliceWrite { producer: Box::new(producer.op.clone()), slice: place.clone(), has_base: node.inputs.len() > 1 };
                let inputs = rename(&[&node.inputs[1..], &producer.inputs].concat());
                // It belongs to the layer of the producer.
                let named = Node { scope: producer.scope.clone(), phase: producer.phase, ..node.clone() };
                append(&mut new, old, &named, Op::FusedSliceWrite(op), inputs)
            }
            _ => append(&mut new, old, node, node.op.clone(), rename(&node.inputs)),
        };
        node.outputs.iter().zip(outputs).for_each(|(output, new)| renamed[output.index()] = Some(new));
    }
    finish(&mut new, old, &renamed);
    new.concats_fused = true;
    new
}
