//! Dead code elimination.

use super::rewrite::{append, finish, shell};
use crate::ir::graph::{Graph, ValueId};
use crate::ir::op::Op;

/// Removes nodes whose results are unused. Declared inputs remain, so that the batch's columns retain their indices.
pub fn remove_dead(old: &Graph) -> Graph {
    let mut alive = vec![false; old.values.len()];
    let kept = old.outputs.iter().map(|(_, value)| value).chain(old.updates.iter().map(|(_, value)| value));
    kept.for_each(|value| alive[value.index()] = true);
    let mut keep = vec![false; old.nodes.len()];
    for (id, node) in old.nodes.iter().enumerate().rev() {
        if node.outputs.iter().any(|output| alive[output.index()]) || matches!(node.op, Op::Input(_)) {
            keep[id] = true;
            node.inputs.iter().for_each(|input| alive[input.index()] = true);
        }
    }
    if keep.iter().all(|keep| *keep) {
        return old.clone();
    }
    let mut new = shell(old);
    let mut renamed: Vec<Option<ValueId>> = vec![None; old.values.len()];
    for (node, _) in old.nodes.iter().zip(&keep).filter(|(_, keep)| **keep) {
        let inputs = node.inputs.iter().map(|input| renamed[input.index()].expect("inputs come first")).collect();
        let outputs = append(&mut new, old, node, node.op.clone(), inputs);
        node.outputs.iter().zip(outputs).for_each(|(output, new)| renamed[output.index()] = Some(new));
    }
    finish(&mut new, old, &renamed);
    new
}
