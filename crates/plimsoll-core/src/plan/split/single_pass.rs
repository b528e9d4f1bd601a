//! Single-pass splits: a large tensor, the large tensors connected to it, and all nodes on paths between them.

use super::{Cut, RowRule, row_count};
use crate::ir::graph::{Graph, Node, NodeId, ValueId};
use crate::plan::Target;

/// A connected tensor is split too if it has at least this fraction of the largest one's bytes (as a divisor).
const SHARE: u64 = 4;

impl Cut {
    /// Tries to include large layers on both sides of the seed; falls back to a smaller set if those cannot be split.
    pub(super) fn in_one_pass(mut self, graph: &Graph, seed: ValueId, rows: usize, device: Option<&dyn Target>) -> Option<Cut> {
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

    /// Consumers of tensors of at least `least` bytes that are connected to the seed, and nodes between them; with
    /// `back`, also their producers.
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
                    // An input whose producer cannot be split stays whole and is sliced per piece.
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
        // A sum is complete only after the last piece, so no split node may depend on it.
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

/// The nodes and all their transitive consumers.
fn after(graph: &Graph, nodes: &[bool]) -> Vec<bool> {
    let mut after = nodes.to_vec();
    for (id, node) in graph.nodes() {
        after[id.index()] |= node.inputs.iter().any(|input| after[graph.values[input.index()].producer.index()]);
    }
    after
}

/// Nodes outside the set on a path from the set back into it.
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
