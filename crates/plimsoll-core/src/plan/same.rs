//! The other half of the checker: that a planned graph computes what the graph it was made from computes. Shares no code with the planner.
//!
//! [`check`](super::check) proves that a certificate runs a graph; this proves that the graph, with everything it computes twice, is the right
//! one. Two values are the same if the same op makes them from the same values. Randomness is part of the op, so a repeated mask is the
//! same mask; and a state is the value it has before the step, which `check` sees to be in its place whenever it is read.

use super::check::CheckError;
use crate::graph::{Graph, Node};
use crate::op::Op;
use std::collections::HashMap;

/// Checks that both graphs have the same columns, scalars and states, and give the same outputs and the same changes of state.
pub fn check_same(original: &Graph, planned: &Graph) -> Result<(), CheckError> {
    let fail = |what: String| Err(CheckError { at: String::new(), what });
    if original.inputs() != planned.inputs() || original.scalars() != planned.scalars() || original.states() != planned.states() {
        return fail("the planned graph has other columns, scalars or states than the model".to_string());
    }
    let mut numbers = Numbers::default();
    let (before, after) = (numbers.of(original), numbers.of(planned));
    let outputs = |graph: &Graph, numbers: &[u32]| -> Vec<(String, u32)> {
        graph.outputs().iter().map(|(name, value)| (name.clone(), numbers[value.0 as usize])).collect()
    };
    let (wanted, given) = (outputs(original, &before), outputs(planned, &after));
    if let Some((name, _)) = wanted.iter().find(|output| !given.contains(output)) {
        return fail(format!("the planned graph computes something else for the output `{name}`"));
    }
    let updates = |graph: &Graph, numbers: &[u32]| -> Vec<(u32, u32)> {
        graph.updates().iter().map(|(state, value)| (state.0, numbers[value.0 as usize])).collect()
    };
    let (wanted, given) = (updates(original, &before), updates(planned, &after));
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
    known: HashMap<(Op, Vec<u32>), u32>,
    next: u32,
}

impl Numbers {
    fn of(&mut self, graph: &Graph) -> Vec<u32> {
        let mut numbers = vec![u32::MAX; graph.value_count()];
        for (_, node) in graph.nodes() {
            let inputs: Vec<u32> = node.inputs.iter().map(|input| numbers[input.0 as usize]).collect();
            if is_copy(graph, node) {
                numbers[node.outputs[0].0 as usize] = inputs[0];
                continue;
            }
            let next = self.next;
            let first = *self.known.entry((node.op.clone(), inputs)).or_insert(next);
            self.next += if first == next { node.outputs.len() as u32 } else { 0 };
            node.outputs.iter().zip(first..).for_each(|(output, number)| numbers[output.0 as usize] = number);
        }
        numbers
    }
}

/// Whether a node only puts a value somewhere else: planning adds such nodes where a state cannot be written straight away.
fn is_copy(graph: &Graph, node: &Node) -> bool {
    match &node.op {
        Op::Store(_) | Op::Load(_) => true,
        Op::Pointwise(op) => op.expr.is_identity() && graph.ty(node.inputs[0]) == graph.ty(node.outputs[0]),
        _ => false,
    }
}
