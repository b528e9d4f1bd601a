//! Rebuilds a graph node by node; all passes are written this way.

use crate::base::shape::TensorType;
use crate::ir::graph::{Graph, Node, ValueId};
use crate::ir::op::Op;

/// The decision about a node.
pub(crate) enum Rewrite {
    /// Copy it unchanged.
    Keep,
    /// Replace its outputs by existing values.
    Replace(Vec<ValueId>),
    /// Replace its op and inputs; its outputs retain their types.
    With(Op, Vec<ValueId>),
}

/// Rebuilds the graph. `decide` is called for every node with the new graph so far, which it may extend, the node, and
/// its inputs there.
pub(crate) fn rewrite(old: &Graph, mut decide: impl FnMut(&mut Graph, &Node, &[ValueId]) -> Rewrite) -> Graph {
    let mut new = shell(old);
    let mut renamed: Vec<Option<ValueId>> = vec![None; old.values.len()];
    for node in old.nodes.iter() {
        let inputs: Vec<ValueId> = node.inputs.iter().map(|input| renamed[input.index()].expect("inputs come first")).collect();
        let outputs = match decide(&mut new, node, &inputs) {
            Rewrite::Keep => {
                let outputs = append(&mut new, old, node, node.op.clone(), inputs);
                // Gradients may be taken later.
                let stopped = node.outputs.iter().zip(&outputs).filter(|(output, _)| old.stopped.contains(output));
                new.stopped.extend(stopped.map(|(_, output)| *output));
                outputs
            }
            Rewrite::Replace(outputs) => outputs,
            Rewrite::With(op, inputs) => append(&mut new, old, node, op, inputs),
        };
        node.outputs.iter().zip(outputs).for_each(|(output, new)| renamed[output.index()] = Some(new));
    }
    finish(&mut new, old, &renamed);
    new
}

/// A graph with the same declarations and no nodes.
pub(crate) fn shell(old: &Graph) -> Graph {
    let mut new = Graph::new();
    new.inputs = old.inputs.clone();
    new.states = old.states.clone();
    new.scalars = old.scalars.clone();
    (new.streams, new.tf32, new.logits_in_blocks) = (old.streams, old.tf32, old.logits_in_blocks);
    (new.pieces, new.joining, new.joined, new.concats_fused) = (old.pieces, old.joining, old.joined.clone(), old.concats_fused);
    new
}

pub(crate) fn append(new: &mut Graph, old: &Graph, node: &Node, op: Op, inputs: Vec<ValueId>) -> Vec<ValueId> {
    let types: Vec<TensorType> = node.outputs.iter().map(|output| old.ty(*output).clone()).collect();
    let outputs = new.push(op, inputs, types);
    let copy = new.nodes_mut().last_mut().expect("just pushed");
    (copy.scope, copy.phase) = (node.scope.clone(), node.phase);
    outputs
}

pub(crate) fn finish(new: &mut Graph, old: &Graph, renamed: &[Option<ValueId>]) {
    let rename = |value: ValueId| renamed[value.index()].expect("what is kept is made");
    new.outputs = old.outputs.iter().map(|(name, value)| (name.clone(), rename(*value))).collect();
    new.updates = old.updates.iter().map(|(state, value)| (*state, rename(*value))).collect();
    new.shrink();
}
