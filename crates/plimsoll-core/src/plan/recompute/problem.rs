//! The graph as flat arrays, for the inner loops of the search.

use super::super::offload::is_stored;
use super::super::updates::{root, runs};
use super::CostModel;
use crate::Bytes;
use crate::ir::graph::{Graph, NodeId, Phase, ValueId};
use crate::ir::op::Op;

/// The value has no producer: it is a column, a scalar or a state.
pub(in crate::plan) const NOBODY: u32 = u32::MAX;

/// Lists of numbers, one per item, in one contiguous allocation (CSR).
#[derive(Default)]
pub(in crate::plan) struct Lists {
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    fn push(&mut self, items: impl IntoIterator<Item = u32>) {
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        self.items.extend(items);
        self.starts.push(self.items.len() as u32);
    }

    #[inline]
    pub fn of(&self, i: u32) -> &[u32] {
        &self.items[self.starts[i as usize] as usize..self.starts[i as usize + 1] as usize]
    }
}

/// The memory behaviour of a program. Nodes and values have the same numbers as in the graph; views are resolved to
/// their base.
pub(in crate::plan) struct Problem {
    /// Per node, the distinct values it reads. States are included because they must not be updated before.
    pub reads: Lists,
    /// Per node, its outputs.
    pub makes: Lists,
    /// Per node, pairs (output, input) where the output may reuse the input's buffer if the input dies there, best
    /// first.
    pub over: Lists,
    /// Per node, the old values of the states it overwrites.
    pub spoils: Lists,
    /// Per value, its bytes in the arena; 0 for values outside of it.
    pub size: Vec<u64>,
    /// Per value, its producer.
    pub maker: Vec<u32>,
    /// Per value, the node that overwrites it, if it is a state.
    pub writer: Vec<u32>,
    /// Per node, whether it belongs to the forward pass.
    pub forward: Vec<bool>,
    /// Per value, whether the host reads it after the step.
    pub wanted: Vec<bool>,
    /// Per node, its workspace in bytes.
    pub scratch: Vec<u64>,
    /// Per node, its predicted seconds.
    pub seconds: Vec<f64>,
    /// Per node, whether it updates a state.
    pub changes: Vec<bool>,
    /// Per node, whether it may run more than once: false for state updates and for outputs that the host reads.
    pub repeats: Vec<bool>,
    /// The order without recomputation.
    pub order: Vec<u32>,
}

impl Problem {
    pub fn of(
        graph: &Graph,
        order: &[NodeId],
        rows: usize,
        alignment: Bytes,
        workspace: &dyn Fn(NodeId) -> Bytes,
        cost_model: &dyn CostModel,
    ) -> Problem {
        let values = graph.values.len();
        let mut in_state = vec![false; values];
        let mut old = vec![NOBODY; values];
        let states = graph.state_values();
        for (state, value) in &graph.updates {
            in_state[value.index()] = true;
            old[value.index()] = states[state.0 as usize].map_or(NOBODY, |old| old.0);
        }
        let mut wanted = vec![false; values];
        graph.outputs.iter().for_each(|(_, value)| wanted[root(graph, *value).index()] = true);
        let mut problem = Problem {
            reads: Lists::default(),
            makes: Lists::default(),
            over: Lists::default(),
            spoils: Lists::default(),
            size: vec![0; values],
            maker: vec![NOBODY; values],
            writer: vec![NOBODY; values],
            forward: Vec::new(),
            wanted,
            scratch: Vec::new(),
            seconds: Vec::new(),
            changes: Vec::new(),
            repeats: Vec::new(),
            order: order.iter().map(|id| id.0).collect(),
        };
        for (id, node) in graph.nodes() {
            let run = runs(node);
            let mut reads: Vec<u32> = Vec::new();
            if run {
                for source in node.inputs.iter().map(|input| root(graph, *input)) {
                    let leaf = matches!(graph.producer(source).op, Op::Input(_) | Op::Scalar(_));
                    if !leaf && !reads.contains(&source.0) {
                        reads.push(source.0);
                    }
                }
                for output in &node.outputs {
                    problem.maker[output.index()] = id.0;
                    if !in_state[output.index()] && !is_stored(graph, *output) {
                        problem.size[output.index()] = graph.ty(*output).bytes(rows).align_up(alignment.0).0;
                    }
                }
            }
            let outputs: &[ValueId] = if run { &node.outputs } else { &[] };
            let mut over = Vec::new();
            for (place, output) in outputs.iter().enumerate().filter(|(_, output)| !in_state[output.index()]) {
                for (i, input) in node.inputs.iter().enumerate() {
                    let source = root(graph, *input);
                    let held = runs(graph.producer(source)) && !in_state[source.index()];
                    if held && node.op.rules().in_place(i, place) && graph.ty(source).same_bytes(graph.ty(*output)) {
                        over.extend([output.0, source.0]);
                    }
                }
            }
            let changes = outputs.iter().any(|output| in_state[output.index()]);
            let spoiled: Vec<u32> = outputs.iter().map(|output| old[output.index()]).filter(|old| *old != NOBODY).collect();
            spoiled.iter().for_each(|state| problem.writer[*state as usize] = id.0);
            problem.spoils.push(spoiled);
            problem.forward.push(node.phase == Phase::Forward);
            problem.reads.push(reads);
            problem.over.push(over);
            problem.makes.push(outputs.iter().map(|output| output.0));
            problem.scratch.push(if run { workspace(id).0 } else { 0 });
            problem.seconds.push(if run { cost_model.seconds(graph, node, rows) } else { 0.0 });
            problem.changes.push(changes);
            // A stored value can be loaded repeatedly. A state cannot: the loaded copy becomes its new value.
            let once = match &node.op {
                // Every rank runs a collective once.
                op if op.is_collective() => true,
                Op::Store(_) => true,
                Op::Load(_) => !is_stored(graph, node.inputs[0]),
                _ => false,
            };
            problem.repeats.push(run && !changes && !once && !outputs.iter().any(|output| problem.wanted[output.index()]));
        }
        problem
    }

    /// A lower bound on the peak of any sequence: the inputs, outputs and workspace of a node are live at once.
    pub fn least(&self) -> u64 {
        let alone = |node: &u32| {
            let sum = |values: &[u32]| values.iter().map(|value| self.size[*value as usize]).sum::<u64>();
            let makes = self.makes.of(*node);
            let over = |output: &u32| self.over.of(*node).chunks_exact(2).any(|pair| pair[0] == *output);
            let shared: u64 = makes.iter().filter(|output| over(output)).map(|output| self.size[*output as usize]).sum();
            sum(self.reads.of(*node)) + sum(makes) - shared.min(sum(makes)) + self.scratch[*node as usize]
        };
        self.order.iter().map(alone).max().unwrap_or(0)
    }
}
