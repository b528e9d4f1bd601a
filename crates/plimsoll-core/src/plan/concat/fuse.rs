//! Fuses slice writes: a tensor whose only consumer is a concat is written straight into the concat's output, if its
//! producer supports the output's row stride.
//!
//! This saves the tensor's bytes and the copy. It can also raise the peak: the output is allocated with its first
//! slice, possibly before the operands of that slice are freed. [`schedule`](super::schedule) therefore compares exact
//! peaks.

use crate::ir::graph::{Graph, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{FusedSliceWrite, SliceWrite};
use crate::plan::Target;
use crate::plan::updates::root;
use crate::transform::passes::rewrite::{append, finish, shell};

/// The graph with every fusable [`SliceWrite`] replaced by a [`FusedSliceWrite`]; none if there is none. The result is
/// bit-identical, which [`check_equivalence`](crate::plan::check_equivalence) verifies.
pub fn fuse_slice_writes(old: &Graph, device: &dyn Target) -> Option<Graph> {
    let counts = old.use_counts();
    let mut producers: Vec<bool> = vec![false; old.nodes.len()];
    let mut found = false;
    for node in old.nodes.iter() {
        if let Op::SliceWrite(place) = &node.op
            && can_be_fused(old, node, place, &counts, device)
        {
            producers[old.values[node.inputs[0].index()].producer.index()] = true;
            found = true;
        }
    }
    found.then(|| write(old, &producers))
}

/// Whether the producer of some concat input can write its slice.
pub(super) fn has_fusable_input(graph: &Graph, join: &Node, counts: &[u32], device: &dyn Target) -> bool {
    let Op::Concat(op) = &join.op else { return false };
    // Device support does not depend on the offset.
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

/// Removes the producers and fuses them into the slice writes of their outputs.
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
                // The fused node belongs to the producer's layer.
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
