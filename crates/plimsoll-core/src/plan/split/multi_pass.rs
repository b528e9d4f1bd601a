//! Splits the batch in several passes. A pass ends where nodes depend on a sum over the whole batch, such as
//! normalization on its statistics.
//!
//! The largest tensors never exist as a whole: each pass that needs them recomputes them piece by piece from retained
//! values. Other outputs of a pass are concatenated.

use super::{Cut, RowRule, root, row_count};
use crate::ir::graph::{Graph, NodeId, ValueId};
use crate::plan::Target;
use std::collections::HashSet;

/// More passes would recompute the largest tensors too often.
const MOST_PASSES: usize = 8;

impl Cut {
    /// Splits all producers and consumers of tensors larger than half the seed, where a whole tensor is not required.
    pub(super) fn in_passes(mut self, graph: &Graph, seed: ValueId, rows: usize, device: Option<&dyn Target>) -> Option<Cut> {
        let passing = self.passing(graph, seed, rows, device);
        if !passing[seed.index()] {
            return None;
        }
        let producer = |value: &ValueId| graph.values[value.index()].producer;
        let mut inside = vec![false; graph.nodes.len()];
        for (id, node) in graph.nodes() {
            inside[id.index()] = node.inputs.iter().chain(&node.outputs).any(|value| passing[value.index()]);
        }
        // The number of passes each node runs after: transient values are recomputed in the pass that needs them; all
        // others exist after their own pass.
        let mut behind = vec![0; graph.nodes.len()];
        for (id, node) in graph.nodes() {
            let needs = |input: &ValueId| {
                let made = producer(input).index();
                behind[made] + usize::from(inside[made] && !passing[input.index()])
            };
            behind[id.index()] = node.inputs.iter().map(needs).max().unwrap_or(0);
        }
        let kept = |id: &NodeId| graph.node(*id).outputs.iter().any(|output| !passing[output.index()]);
        let ends: Vec<NodeId> = graph.nodes().map(|(id, _)| id).filter(|id| inside[id.index()] && kept(id)).collect();
        let passes = 1 + ends.iter().map(|id| behind[id.index()]).max()?;
        if passes > MOST_PASSES {
            return None;
        }
        self.passes = (0..passes)
            .map(|pass| {
                let mut needed = vec![false; graph.nodes.len()];
                ends.iter().filter(|id| behind[id.index()] == pass).for_each(|id| needed[id.index()] = true);
                let nodes: Vec<NodeId> = graph.nodes().map(|(id, _)| id).collect();
                for id in nodes.iter().rev().filter(|id| inside[id.index()]) {
                    if needed[id.index()] {
                        let made_again = graph.node(*id).inputs.iter().filter(|input| passing[input.index()]);
                        made_again.for_each(|input| needed[producer(input).index()] = true);
                    }
                }
                nodes.into_iter().filter(|id| needed[id.index()]).collect()
            })
            .collect();
        self.behind = behind;
        Some(self)
    }

    /// Transient values, which never exist as a whole: large ones whose producer and consumers can all be split.
    fn passing(&self, graph: &Graph, seed: ValueId, rows: usize, device: Option<&dyn Target>) -> Vec<bool> {
        let large = |value: ValueId| {
            let made = !graph.producer(root(graph, value)).op.is_leaf();
            made && row_count(graph, value) > 0 && 2 * graph.ty(value).bytes(rows).0 > graph.ty(seed).bytes(rows).0
        };
        let mut passing: Vec<bool> = (0..graph.values.len() as u32).map(|value| large(ValueId(value))).collect();
        let given = graph.outputs.iter().map(|(_, value)| value).chain(graph.updates.iter().map(|(_, value)| value));
        given.collect::<HashSet<_>>().into_iter().for_each(|value| passing[value.index()] = false);
        for (id, node) in graph.nodes() {
            let touched = node.inputs.iter().chain(&node.outputs).any(|value| passing[value.index()]);
            let kind = if touched { self.row_rule(graph, node).filter(|_| self.allows(graph, id, rows, device)) } else { continue };
            if kind.is_none() {
                node.inputs.iter().for_each(|input| passing[input.index()] = false);
            }
            if kind != Some(RowRule::Independent) {
                node.outputs.iter().for_each(|output| passing[output.index()] = false);
            }
        }
        passing
    }
}
