//! Making every state change a write in place, so that changing a state needs no second copy of it.

use crate::DType;
use crate::expr::Expr;
use crate::graph::{Graph, GraphError, Node, NodeId, Phase, StateId, ValueId};
use crate::op::Op;
use std::collections::{HashMap, HashSet};

/// Inserts copies where the value a state takes cannot be written straight into the state's memory. Afterwards, for every update,
/// the producer of the new value may write into the state, provided that it runs after all others that read the state
/// (which [`readers`] lists, and the order keeps).
pub(super) fn legalise(graph: &Graph) -> Result<Graph, GraphError> {
    let mut graph = graph.clone();
    let updates = std::mem::take(&mut graph.updates);
    let mut taken: HashSet<ValueId> = HashSet::new();
    for (state, value) in updates {
        let direct = can_write_directly(&graph, state, value) && !taken.contains(&value);
        let value = if direct { value } else { copy(&mut graph, state, value)? };
        taken.insert(value);
        graph.updates.push((state, value));
    }
    Ok(graph)
}

fn can_write_directly(graph: &Graph, state: StateId, value: ValueId) -> bool {
    let producer = graph.producer(value);
    let define = producer.op.define();
    if producer.op.is_leaf() || define.is_view() {
        return false;
    }
    let Some(old) = graph.state_value(state) else { return true };
    let output = producer.outputs.iter().position(|output| *output == value).expect("a value is among its producer's outputs");
    let reads_in_place = producer
        .inputs
        .iter()
        .enumerate()
        .all(|(i, input)| root(graph, *input) != old || (define.in_place(i, output) && graph.ty(*input).same_bytes(graph.ty(value))));
    reads_in_place && !someone_needs_both(graph, old, value)
}

/// Whether a node that reads the old value also depends on the new one, so that both must exist at once.
fn someone_needs_both(graph: &Graph, old: ValueId, new: ValueId) -> bool {
    let start = graph.values[new.index()].producer;
    let mut depends = vec![false; graph.nodes.len()];
    depends[start.index()] = true;
    graph.nodes().skip(start.index() + 1).any(|(id, node)| {
        depends[id.index()] = node.inputs.iter().any(|input| depends[graph.values[input.index()].producer.index()]);
        depends[id.index()] && node.inputs.iter().any(|input| root(graph, *input) == old)
    })
}

fn copy(graph: &mut Graph, state: StateId, value: ValueId) -> Result<ValueId, GraphError> {
    let ty = graph.ty(value).clone();
    assert_eq!(ty.dtype, DType::F32, "states that are copied are single precision");
    let scope = graph.states[state.0 as usize].name.clone();
    graph.within(&scope, Phase::Update, |g| g.pointwise_over(Expr::identity(), &[value], ty.shape))
}

/// The value whose bytes this one is, looking through views.
pub(super) fn root(graph: &Graph, mut value: ValueId) -> ValueId {
    while graph.producer(value).op.define().is_view() {
        value = graph.producer(value).inputs[0];
    }
    value
}

/// For every node that changes states, the nodes that must have read them before.
pub(super) fn readers(graph: &Graph) -> HashMap<NodeId, Vec<NodeId>> {
    let mut writers: HashMap<ValueId, NodeId> = HashMap::new();
    for (state, value) in &graph.updates {
        if let Some(old) = graph.state_value(*state) {
            writers.insert(old, graph.values[value.index()].producer);
        }
    }
    let mut readers: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
    for (id, node) in graph.nodes().filter(|(_, node)| runs(node)) {
        for input in &node.inputs {
            if let Some(writer) = writers.get(&root(graph, *input)).filter(|writer| **writer != id) {
                readers.entry(*writer).or_default().push(id);
            }
        }
    }
    readers
}

/// Whether a node is a step of the program: leaves and views are only names for bytes.
pub(super) fn runs(node: &Node) -> bool {
    !matches!(node.op, Op::Input(_) | Op::State(_) | Op::Scalar(_)) && !node.op.define().is_view()
}
