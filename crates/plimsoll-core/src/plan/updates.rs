//! Makes every state update an in-place write, so that an update needs no second copy of the state.

use crate::base::expr::Expr;
use crate::ir::graph::{Graph, GraphError, Node, NodeId, Phase, StateId, ValueId};
use crate::ir::op::Op;
use std::collections::{HashMap, HashSet};

/// Inserts copies where the new value of a state cannot be written in place. Afterwards the producer of every new value
/// may write into the state if it runs after all other readers of the state ([`readers`] lists them and the order
/// respects them); an order that satisfies this for all states exists. Leaves that the host reads after their memory is
/// overwritten are copied too.
pub(super) fn legalise(graph: &Graph) -> Result<Graph, GraphError> {
    let mut graph = graph.clone();
    keep_outputs(&mut graph)?;
    let updates = std::mem::take(&mut graph.updates);
    let (mut waits, olds) = (Waits::of(&graph), graph.state_values());
    let mut taken: HashSet<ValueId> = HashSet::new();
    for (state, mut value) in updates {
        let old = olds[state.0 as usize];
        let direct = can_write_directly(&graph, old, value) && !taken.contains(&value) && !waits.in_circle(&graph, old, value);
        if !direct {
            value = copy(&mut graph, state, value, &mut waits)?;
        }
        // Even a copy may depend on itself if it reads a state that is updated; its input is then copied first.
        if waits.in_circle(&graph, old, value) {
            value = copy(&mut graph, state, value, &mut waits)?;
        }
        if let Some(old) = old {
            waits.writers.insert(old, graph.values[value.index()].producer);
        }
        taken.insert(value);
        graph.updates.push((state, value));
    }
    Ok(graph)
}

/// Copies outputs that are columns, scalars or updated states, whose memory is overwritten after the step.
fn keep_outputs(graph: &mut Graph) -> Result<(), GraphError> {
    for i in 0..graph.outputs.len() {
        let value = graph.outputs[i].1;
        let source = graph.producer(root(graph, value));
        let gone = match source.op {
            Op::Input(_) | Op::Scalar(_) => true,
            Op::State(state) => graph.updates.iter().any(|(changed, _)| *changed == state),
            _ => false,
        };
        if gone {
            let (ty, scope) = (graph.ty(value).clone(), source.scope.clone());
            let kept = graph.within(&scope, Phase::Forward, |g| g.pointwise_many(Expr::identity(), &[value], ty.shape, vec![ty.dtype]))?;
            graph.outputs[i].1 = kept[0];
        }
    }
    Ok(())
}

fn can_write_directly(graph: &Graph, old: Option<ValueId>, value: ValueId) -> bool {
    let producer = graph.producer(value);
    let rules = producer.op.rules();
    if producer.op.is_leaf() || rules.is_view() {
        return false;
    }
    let Some(old) = old else { return true };
    let output = producer.outputs.iter().position(|output| *output == value).expect("a value is among its producer's outputs");
    producer
        .inputs
        .iter()
        .enumerate()
        .all(|(i, input)| root(graph, *input) != old || (rules.in_place(i, output) && graph.ty(*input).same_bytes(graph.ty(value))))
}

/// Dependencies: readers on producers, and state writers on all other readers of those states.
struct Waits {
    /// For every root value, its readers.
    readers: Vec<Vec<NodeId>>,
    /// For the old value of every updated state, the node that overwrites it.
    writers: HashMap<ValueId, NodeId>,
}

impl Waits {
    fn of(graph: &Graph) -> Waits {
        let mut readers = vec![Vec::new(); graph.values.len()];
        for (id, node) in graph.nodes().filter(|(_, node)| runs(node)) {
            node.inputs.iter().for_each(|input| readers[root(graph, *input).index()].push(id));
        }
        Waits { readers, writers: HashMap::new() }
    }

    /// Whether a reader of the state's old value depends on the node that would overwrite it.
    fn in_circle(&self, graph: &Graph, old: Option<ValueId>, value: ValueId) -> bool {
        let Some(old) = old else { return false };
        let writer = graph.values[value.index()].producer;
        let (mut seen, mut open) = (HashSet::from([writer]), vec![writer]);
        while let Some(id) = open.pop() {
            let node = graph.node(id);
            let reads: Vec<ValueId> = node.inputs.iter().map(|input| root(graph, *input)).collect();
            if id != writer && reads.contains(&old) {
                return true;
            }
            let later = node.outputs.iter().flat_map(|output| &self.readers[output.index()]);
            let changes = reads.iter().filter_map(|read| self.writers.get(read));
            open.extend(later.chain(changes).filter(|next| **next != id && seen.insert(**next)));
        }
        false
    }
}

fn copy(graph: &mut Graph, state: StateId, value: ValueId, waits: &mut Waits) -> Result<ValueId, GraphError> {
    let ty = graph.ty(value).clone();
    let scope = graph.states[state.0 as usize].name.clone();
    let copied = graph.within(&scope, Phase::Update, |g| g.pointwise_many(Expr::identity(), &[value], ty.shape, vec![ty.dtype]))?[0];
    waits.readers.resize(graph.values.len(), Vec::new());
    waits.readers[root(graph, value).index()].push(graph.values[copied.index()].producer);
    Ok(copied)
}

/// The base of a value, resolving views.
pub(super) fn root(graph: &Graph, mut value: ValueId) -> ValueId {
    while graph.producer(value).op.rules().is_view() {
        value = graph.producer(value).inputs[0];
    }
    value
}

/// For every node that updates states, the readers that must run before it.
pub(super) fn readers(graph: &Graph) -> HashMap<NodeId, Vec<NodeId>> {
    let (mut writers, olds): (HashMap<ValueId, NodeId>, _) = (HashMap::new(), graph.state_values());
    for (state, value) in &graph.updates {
        if let Some(old) = olds[state.0 as usize] {
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

/// Whether a node executes: leaves and views are only names for bytes.
pub(super) fn runs(node: &Node) -> bool {
    !matches!(node.op, Op::Input(_) | Op::State(_) | Op::Scalar(_)) && !node.op.rules().is_view()
}
