//! Converts a sequence back to a graph: a node that occurs twice becomes two nodes.

use crate::ir::graph::{Graph, Node, NodeId, Value, ValueId};
use std::sync::Arc;

/// A graph whose nodes are in sequence order.
pub(in crate::plan) struct Written {
    pub graph: Graph,
    /// Executed nodes, in order.
    pub order: Vec<NodeId>,
    /// The nodes among them that recompute an earlier one.
    pub repeated: Vec<NodeId>,
}

/// Writes the sequence as a graph. A node reads the most recent definition of each input.
pub(in crate::plan) fn write(old: &Graph, sequence: &[u32]) -> Written {
    let mut writer = RecomputeWriter { old, nodes: Vec::new(), values: Vec::new(), latest: vec![None; old.values.len()] };
    for (id, _) in old.nodes().filter(|(_, node)| node.op.is_leaf()) {
        writer.append(id);
    }
    let mut ran = vec![false; old.nodes.len()];
    let (mut order, mut repeated) = (Vec::with_capacity(sequence.len()), Vec::new());
    for id in sequence.iter().copied().map(NodeId) {
        let copy = writer.append(id);
        order.push(copy);
        if std::mem::replace(&mut ran[id.index()], true) {
            repeated.push(copy);
        }
    }
    let outputs = old.outputs.iter().map(|(name, value)| (name.clone(), writer.latest(*value))).collect();
    let updates = old.updates.iter().map(|(state, value)| (*state, writer.latest(*value))).collect();
    let (nodes, values) = (writer.nodes, writer.values);
    let mut graph = Graph::new();
    (graph.nodes, graph.values, graph.outputs, graph.updates) = (Arc::new(nodes), Arc::new(values), outputs, updates);
    (graph.inputs, graph.states, graph.scalars, graph.streams) = (old.inputs.clone(), old.states.clone(), old.scalars.clone(), old.streams);
    (graph.tf32, graph.logits_in_blocks) = (old.tf32, old.logits_in_blocks);
    (graph.pieces, graph.joining, graph.joined, graph.concats_fused) = (old.pieces, old.joining, old.joined.clone(), old.concats_fused);
    Written { graph, order, repeated }
}

struct RecomputeWriter<'a> {
    old: &'a Graph,
    nodes: Vec<Node>,
    values: Vec<Value>,
    /// The most recent copy of each old value; for a view, also the base it was created from.
    latest: Vec<Option<(ValueId, Option<ValueId>)>>,
}

impl RecomputeWriter<'_> {
    /// The copy of a value that the node being written reads. Views are created on demand.
    fn latest(&mut self, value: ValueId) -> ValueId {
        let producer = self.old.values[value.index()].producer;
        if !self.old.node(producer).op.rules().is_view() {
            return self.latest[value.index()].expect("a legal sequence makes what it reads").0;
        }
        let seen = self.latest(self.old.node(producer).inputs[0]);
        match self.latest[value.index()] {
            Some((copy, Some(of))) if of == seen => copy,
            _ => {
                self.append(producer);
                let copy = self.latest[value.index()].expect("just written").0;
                self.latest[value.index()] = Some((copy, Some(seen)));
                copy
            }
        }
    }

    fn append(&mut self, id: NodeId) -> NodeId {
        let node = self.old.node(id);
        let inputs = node.inputs.iter().map(|input| self.latest(*input)).collect();
        let copy = NodeId(self.nodes.len() as u32);
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for output in &node.outputs {
            let value = ValueId(self.values.len() as u32);
            self.values.push(Value { ty: self.old.ty(*output).clone(), producer: copy });
            self.latest[output.index()] = Some((value, None));
            outputs.push(value);
        }
        self.nodes.push(Node { inputs, outputs, ..node.clone() });
        copy
    }
}
