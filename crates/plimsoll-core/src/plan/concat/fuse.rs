//! Parts that are made where they go: a part that nobody but its whole reads need never be a tensor of its own, if its maker can write it in rows that lie as
//! far apart as they do in the whole.
//!
//! That saves the part's bytes and the time of copying them. It can also hold more, because the whole is there while its first part is made, which may be before
//! what that part is made of has gone; so [`schedule`](super::schedule) compares the exact peaks here too.

use crate::ir::graph::{Graph, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{FusedSliceWrite, SliceWrite};
use crate::plan::Target;
use crate::plan::updates::root;
use crate::transform::passes::rewrite::{append, finish, shell};

/// A graph with every [`SliceWrite`] that can be one with what makes its part written as an [`FusedSliceWrite`]; none if there are none. Computes the same bits, which
/// [`check_equivalence`](crate::plan::check_equivalence) proves from the result.
pub fn fuse_slice_writes(old: &Graph, device: &dyn Target) -> Option<Graph> {
    let counts = old.use_counts();
    let mut makers: Vec<bool> = vec![false; old.nodes.len()];
    let mut found = false;
    for node in &old.nodes {
        if let Op::SliceWrite(place) = &node.op
            && can_be_made_there(old, node, place, &counts, device)
        {
            makers[old.values[node.inputs[0].index()].producer.index()] = true;
            found = true;
        }
    }
    found.then(|| write(old, &makers))
}

/// Whether some part of a join could be made in its place.
pub(super) fn has_parts_made_there(graph: &Graph, join: &Node, counts: &[u32], device: &dyn Target) -> bool {
    let Op::Concat(op) = &join.op else { return false };
    // Where exactly does not matter to a device.
    let place = SliceWrite { axis: op.axis, start: 0, extent: usize::MAX };
    join.inputs.iter().any(|part| is_made_for(graph, *part, &place, counts, device))
}

fn can_be_made_there(graph: &Graph, put: &Node, place: &SliceWrite, counts: &[u32], device: &dyn Target) -> bool {
    let part = put.inputs[0];
    // What is read of the whole while it is written into would have to be kept beside it.
    let mut whole = put.inputs.get(1).copied();
    let mut so_far = Vec::new();
    while let Some(value) = whole {
        so_far.push(value);
        whole = graph.slice_write(graph.producer(value)).and_then(|(base, ..)| base);
    }
    let apart = graph.producer(part).inputs.iter().all(|input| !so_far.contains(&root(graph, *input)));
    apart && is_made_for(graph, part, place, counts, device)
}

/// Whether a part is read by its whole alone, and its maker can write it there.
fn is_made_for(graph: &Graph, part: ValueId, place: &SliceWrite, counts: &[u32], device: &dyn Target) -> bool {
    let maker = &graph.producer(part).op;
    counts[part.index()] == 1 && FusedSliceWrite::can_fuse(maker) && device.fuses_slice_write(maker, graph.ty(part), place)
}

/// Leaves out the makers, and lets the puts of what they make do their work.
fn write(old: &Graph, makers: &[bool]) -> Graph {
    let mut new = shell(old);
    let mut renamed: Vec<Option<ValueId>> = vec![None; old.values.len()];
    for (id, node) in old.nodes() {
        if makers[id.index()] {
            continue;
        }
        let rename = |values: &[ValueId]| -> Vec<ValueId> {
            values.iter().map(|value| renamed[value.index()].expect("what is read comes first, and is no part made elsewhere")).collect()
        };
        let part = node.inputs.first().map(|part| old.values[part.index()].producer).filter(|maker| makers[maker.index()]);
        let outputs = match (&node.op, part) {
            (Op::SliceWrite(place), Some(maker)) => {
                let maker = old.node(maker);
                let op = FusedSliceWrite { producer: Box::new(maker.op.clone()), slice: place.clone(), has_base: node.inputs.len() > 1 };
                let inputs = rename(&[&node.inputs[1..], &maker.inputs].concat());
                // It is a step of the layer that makes the part.
                let named = Node { scope: maker.scope.clone(), phase: maker.phase, ..node.clone() };
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
