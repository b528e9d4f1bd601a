//! Everything that is cut in a single pass: what hangs together with a large tensor, and all between.

use super::{Cut, RowRule, row_count};
use crate::ir::graph::{Graph, Node, NodeId, ValueId};
use crate::plan::Target;

/// A tensor is cut along with the largest if it is at least that over this.
const SHARE: u64 = 4;

impl Cut {
    /// Best with the layers before and after that hold much too; if those cannot be cut, without.
    pub(super) fn in_one_pass(mut self, graph: &Graph, seed: ValueId, rows: usize, device: &dyn Target) -> Option<Cut> {
        let least = graph.ty(seed).bytes(rows).0 / SHARE;
        let nodes =
            self.hanging_together(graph, seed, least, rows, true).or_else(|| self.hanging_together(graph, seed, least, rows, false))?;
        let inside: Vec<NodeId> = graph.nodes().map(|(id, _)| id).filter(|id| nodes[id.index()]).collect();
        if !inside.iter().all(|id| self.allows(graph, *id, rows, device)) {
            return None;
        }
        self.behind = after(graph, &nodes).into_iter().map(usize::from).collect();
        self.passes = vec![inside];
        Some(self)
    }

    /// All that reads tensors as large as `least` that hang together with the seed, and all between; with all that makes such tensors, if `back`.
    fn hanging_together(&self, graph: &Graph, seed: ValueId, least: u64, rows: usize, back: bool) -> Option<Vec<bool>> {
        let count = row_count(graph, seed);
        let great = |value: ValueId| row_count(graph, value) == count && graph.ty(value).bytes(rows).0 >= least;
        let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.values.len()];
        for (id, node) in graph.nodes() {
            node.inputs.iter().for_each(|input| readers[input.index()].push(id));
        }
        let mut nodes = vec![false; graph.nodes.len()];
        let mut open = vec![graph.values[seed.index()].producer];
        loop {
            while let Some(id) = open.pop() {
                if std::mem::replace(&mut nodes[id.index()], true) {
                    continue;
                }
                let node = graph.node(id);
                self.row_rule(graph, node)?;
                for input in node.inputs.iter().filter(|input| back && great(**input)) {
                    // What cannot be cut is there as a whole, and read piece by piece.
                    if self.row_rule(graph, graph.producer(*input)).is_some() {
                        open.push(graph.values[input.index()].producer);
                    }
                }
                node.outputs.iter().filter(|output| great(**output)).for_each(|output| open.extend(&readers[output.index()]));
            }
            open = between(graph, &nodes);
            if open.is_empty() {
                break;
            }
        }
        // A sum is complete only after the last piece: nothing that is cut may wait for it.
        let early = |node: &Node| {
            let sums = |input: &ValueId| {
                let producer = graph.values[input.index()].producer;
                nodes[producer.index()] && self.row_rule(graph, graph.node(producer)) == Some(RowRule::Sum)
            };
            node.inputs.iter().any(sums)
        };
        let waits = graph.nodes().any(|(id, node)| nodes[id.index()] && early(node));
        (!waits).then_some(nodes)
    }
}

/// The nodes, and all that needs something of them.
fn after(graph: &Graph, nodes: &[bool]) -> Vec<bool> {
    let mut after = nodes.to_vec();
    for (id, node) in graph.nodes() {
        after[id.index()] |= node.inputs.iter().any(|input| after[graph.values[input.index()].producer.index()]);
    }
    after
}

/// Nodes outside that need something inside and are needed inside.
fn between(graph: &Graph, nodes: &[bool]) -> Vec<NodeId> {
    let (after, mut before) = (after(graph, nodes), nodes.to_vec());
    for (id, node) in graph.nodes().collect::<Vec<_>>().into_iter().rev() {
        if before[id.index()] {
            node.inputs.iter().for_each(|input| before[graph.values[input.index()].producer.index()] = true);
        }
    }
    let inside = |id: &NodeId| after[id.index()] && before[id.index()] && !nodes[id.index()];
    graph.nodes().map(|(id, _)| id).filter(inside).collect()
}
