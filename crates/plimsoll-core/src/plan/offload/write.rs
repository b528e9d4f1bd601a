//! Inserts loads and stores into a graph.

use super::super::updates::root;
use crate::ir::graph::{Graph, GraphError, Node, NodeId, Phase, Scope, StateId, Value, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Load, Store};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The graph with these states in the backing store, and these forward values stored until a later phase reads them.
/// The result is bit-identical.
pub fn offload(old: &Graph, states: &[StateId], values: &[ValueId]) -> Result<Graph, GraphError> {
    if let Some(value) = values.iter().find(|value| value.index() >= old.values.len() || old.producer(**value).op.is_leaf()) {
        return Err(GraphError { scope: String::new(), what: format!("{value} is nothing that a step makes and could store") });
    }
    let states: HashSet<StateId> = states.iter().copied().collect();
    let writer = OffloadWriter {
        old,
        values: values.iter().map(|value| (root(old, *value), None)).collect(),
        nodes: Vec::new(),
        made: Vec::new(),
        copies: vec![None; old.values.len()],
        loaded: HashMap::new(),
        views: HashMap::new(),
        states,
    };
    writer.write()
}

struct OffloadWriter<'a> {
    old: &'a Graph,
    states: HashSet<StateId>,
    /// Offloaded values, with their stored copies once written.
    values: HashMap<ValueId, Option<ValueId>>,
    nodes: Vec<Node>,
    made: Vec<Value>,
    /// For each old value, the new one.
    copies: Vec<Option<ValueId>>,
    /// Maps a value in the backing store to its loaded copy.
    loaded: HashMap<ValueId, ValueId>,
    /// Views by base.
    views: HashMap<(ValueId, ValueId), ValueId>,
}

impl OffloadWriter<'_> {
    fn write(mut self) -> Result<Graph, GraphError> {
        let old = self.old;
        // Positions at which the new values of offloaded states are produced.
        let mut becomes: HashMap<NodeId, Vec<usize>> = HashMap::new();
        let mut updates: Vec<(StateId, Option<ValueId>)> = old.updates.iter().map(|(state, _)| (*state, None)).collect();
        for (i, (_, value)) in old.updates.iter().enumerate().filter(|(_, (state, _))| self.states.contains(state)) {
            becomes.entry(old.values[root(old, *value).index()].producer).or_default().push(i);
        }
        for (id, node) in old.nodes().filter(|(_, node)| !node.op.rules().is_view()) {
            let inputs = node.inputs.iter().map(|input| self.read(*input, node)).collect();
            let types = node.outputs.iter().map(|output| old.ty(*output).clone()).collect();
            let outputs = self.push(Node { inputs, outputs: Vec::new(), ..node.clone() }, types);
            for (output, copy) in node.outputs.iter().zip(outputs) {
                self.copies[output.index()] = Some(copy);
                if self.values.contains_key(output) {
                    let stored = self.copy(Op::Store(Store), copy, &node.scope, Phase::Forward);
                    self.values.insert(*output, Some(stored));
                }
            }
            // Leaves become states at the end.
            if !node.op.is_leaf() {
                for i in becomes.remove(&id).into_iter().flatten() {
                    updates[i].1 = Some(self.store_state(i));
                }
            }
        }
        for i in becomes.into_values().flatten().collect::<std::collections::BTreeSet<_>>() {
            updates[i].1 = Some(self.store_state(i));
        }
        let end = Node { op: Op::Store(Store), inputs: vec![], outputs: vec![], scope: Scope::default(), phase: Phase::Forward };
        let outputs = old.outputs.iter().map(|(name, value)| (name.clone(), self.read(*value, &end))).collect();
        let updates = updates
            .into_iter()
            .zip(&old.updates)
            .map(|((state, stored), (_, value))| (state, stored.unwrap_or_else(|| self.read(*value, &end))))
            .collect();
        let mut graph = Graph::new();
        (graph.nodes, graph.values, graph.outputs, graph.updates) = (Arc::new(self.nodes), Arc::new(self.made), outputs, updates);
        (graph.inputs, graph.states, graph.scalars, graph.streams) =
            (old.inputs.clone(), old.states.clone(), old.scalars.clone(), old.streams);
        (graph.pieces, graph.tf32, graph.logits_in_blocks) = (old.pieces, old.tf32, old.logits_in_blocks);
        graph.shrink();
        crate::verify(&graph)?;
        Ok(graph)
    }

    /// Stores the new value of a state.
    fn store_state(&mut self, update: usize) -> ValueId {
        let (state, value) = self.old.updates[update];
        let name = Scope::from(&self.old.states[state.0 as usize].name);
        let node = Node { op: Op::Store(Store), inputs: vec![], outputs: vec![], scope: name.clone(), phase: Phase::Update };
        let source = self.read(value, &node);
        self.copy(Op::Store(Store), source, &name, Phase::Update)
    }

    /// The value that a node reads in place of an old one; inserts a load if it is in the backing store.
    fn read(&mut self, value: ValueId, reader: &Node) -> ValueId {
        let old = self.old;
        let producer = old.producer(value);
        if producer.op.rules().is_view() {
            let of = self.read(producer.inputs[0], reader);
            if let Some(view) = self.views.get(&(value, of)) {
                return *view;
            }
            let node = Node { inputs: vec![of], outputs: Vec::new(), ..producer.clone() };
            let view = self.push(node, vec![self.old.ty(value).clone()])[0];
            self.views.insert((value, of), view);
            return view;
        }
        let copy = self.copies[value.index()].expect("nodes stand in an order in which they can run");
        let (backed, scope) = match &producer.op {
            Op::State(state) if self.states.contains(state) => (Some(copy), Scope::from(&self.old.states[state.0 as usize].name)),
            _ if reader.phase != Phase::Forward => (self.values.get(&value).copied().flatten(), producer.scope.clone()),
            _ => (None, Scope::default()),
        };
        let Some(backed) = backed else { return copy };
        if let Some(loaded) = self.loaded.get(&backed) {
            return *loaded;
        }
        let loaded = self.copy(Op::Load(Load), backed, &scope, reader.phase);
        self.loaded.insert(backed, loaded);
        loaded
    }

    fn copy(&mut self, op: Op, of: ValueId, scope: &Scope, phase: Phase) -> ValueId {
        let ty = self.made[of.index()].ty.clone();
        self.push(Node { op, inputs: vec![of], outputs: Vec::new(), scope: scope.clone(), phase }, vec![ty])[0]
    }

    fn push(&mut self, mut node: Node, types: Vec<crate::base::shape::TensorType>) -> Vec<ValueId> {
        let id = NodeId(self.nodes.len() as u32);
        for ty in types {
            node.outputs.push(ValueId(self.made.len() as u32));
            self.made.push(Value { ty, producer: id });
        }
        let outputs = node.outputs.clone();
        self.nodes.push(node);
        outputs
    }
}
