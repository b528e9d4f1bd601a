//! Offload: moves tensors to a backing store (pinned host memory or a file) between uses.
//!
//! Offloading is expressed as nodes. A `store` copies a tensor to the backing store; a `load` copies it back into the
//! arena. An offloaded state is loaded before it is read, and its new value is stored. Ordering, liveness, packing,
//! checker and recomputation treat both as ordinary nodes; the only addition is a memory space that no other op may
//! access.
//!
//! A plan executes its copies sequentially, which is what the checker verifies. A device may overlap copies with
//! computation if no two access the same bytes, which [`Overlap`] derives from the finished plan.

mod ahead;
mod overlap;
mod write;

use super::recompute::seconds;
use super::{Plan, Program, sketch};
use crate::Bytes;
use crate::ir::graph::{Graph, GraphError, NodeId, Phase, StateId, StateKind, ValueId};
use crate::ir::op::Op;
use crate::plan::{CopyRate, CostModel, Target};
use crate::transform::step::Role;
use std::collections::{HashMap, HashSet};

pub use ahead::ahead;
pub use overlap::{Copy, Direction, Overlap};
pub use write::offload;

use super::updates::{root, runs};

/// The tensors to offload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// Offloaded states; the same in all programs.
    pub states: Vec<StateId>,
    /// For each program, the forward values that are stored until a later phase reads them.
    pub values: Vec<Vec<ValueId>>,
}

impl Offloaded {
    /// Whether nothing is offloaded.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty() && self.values.iter().all(Vec::is_empty)
    }

    /// The graphs with loads and stores inserted.
    pub fn write(&self, graphs: &[(Role, Graph)]) -> Result<Vec<(Role, Graph)>, GraphError> {
        let values = |i: usize| self.values.get(i).map_or(&[][..], Vec::as_slice);
        graphs.iter().enumerate().map(|(i, (role, graph))| Ok((*role, offload(graph, &self.states, values(i))?))).collect()
    }

    /// Lays out graphs returned by [`Offloaded::write`].
    pub fn layout(&self, written: &[(Role, Graph)], rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
        super::tighten(self.sketch(written, rows, device)?, device)
    }

    /// [Sketches](sketch) graphs returned by [`Offloaded::write`].
    pub fn sketch(&self, written: &[(Role, Graph)], rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
        let mut plan = sketch(written, rows, device)?;
        for (program, values) in plan.programs.iter_mut().zip(&self.values) {
            program.offloaded = values.clone();
        }
        Ok(plan)
    }
}

/// Candidates for offloading, largest first, with their bytes: computed values that both the forward pass and a later
/// phase read, and the host does not.
pub fn candidates(graph: &Graph, rows: usize) -> Vec<(ValueId, Bytes)> {
    let outputs: HashSet<ValueId> = graph.outputs.iter().map(|(_, value)| root(graph, *value)).collect();
    let updates: HashSet<ValueId> = graph.updates.iter().map(|(_, value)| root(graph, *value)).collect();
    let mut later = HashSet::new();
    for node in graph.nodes.iter().filter(|node| runs(node) && node.phase != Phase::Forward) {
        later.extend(node.inputs.iter().map(|input| root(graph, *input)));
    }
    let kept = |value: &ValueId| {
        let producer = graph.producer(*value);
        runs(producer) && producer.phase == Phase::Forward && !outputs.contains(value) && !updates.contains(value)
    };
    let mut found: Vec<(ValueId, Bytes)> =
        later.into_iter().filter(kept).map(|value| (value, graph.ty(value).bytes(rows))).filter(|(_, size)| *size > Bytes::ZERO).collect();
    found.sort_by_key(|(value, size)| (std::cmp::Reverse(*size), *value));
    found
}

/// The offloaded states: those that a load reads or a store updates. No other op may read them.
pub(super) fn stored_states<'a>(graphs: impl Iterator<Item = &'a Graph> + Clone, count: usize) -> Result<Vec<bool>, GraphError> {
    let mut stored = vec![false; count];
    for graph in graphs.clone() {
        for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::Load(_))) {
            if let Op::State(state) = graph.producer(root(graph, node.inputs[0])).op {
                stored[state.0 as usize] = true;
            }
        }
        for (state, value) in &graph.updates {
            if matches!(graph.producer(*value).op, Op::Store(_)) {
                stored[state.0 as usize] = true;
            }
        }
    }
    for graph in graphs {
        for node in graph.nodes.iter().filter(|node| runs(node) && !matches!(node.op, Op::Load(_))) {
            for input in &node.inputs {
                if let Op::State(state) = graph.producer(root(graph, *input)).op
                    && stored[state.0 as usize]
                {
                    let what =
                        format!("`{}` is in the backing store, but is read without being loaded", graph.states[state.0 as usize].name);
                    return Err(GraphError { scope: node.scope.to_string(), what });
                }
            }
        }
    }
    Ok(stored)
}

/// Maps the new value of every offloaded state to its loaded value.
pub(super) fn renewed(graph: &Graph) -> HashMap<ValueId, ValueId> {
    let mut loaded: HashMap<StateId, ValueId> = HashMap::new();
    for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::Load(_))) {
        if let Op::State(state) = graph.producer(root(graph, node.inputs[0])).op {
            loaded.insert(state, node.outputs[0]);
        }
    }
    let stored = graph.updates.iter().filter(|(_, value)| is_stored(graph, *value));
    stored.filter_map(|(state, value)| Some((root(graph, graph.producer(*value).inputs[0]), *loaded.get(state)?))).collect()
}

/// Checks that the new value of every offloaded state, except gradient accumulators, reuses the buffer of its loaded
/// value. A step with a non-finite loss can then skip the update and store the old bytes. On failure, returns the name
/// of a state that does not.
pub fn renewed_in_place(plan: &Plan, program: &Program) -> Result<(), String> {
    let graph = &program.graph;
    let renewed = renewed(graph);
    for (state, value) in graph.updates.iter().filter(|(_, value)| is_stored(graph, *value)) {
        let known = &plan.states[state.0 as usize];
        let new = root(graph, graph.producer(*value).inputs[0]);
        let place = |value: ValueId| program.places[value.index()];
        if known.kind != StateKind::Accumulator && renewed.get(&new).is_none_or(|old| place(*old) != place(new)) {
            return Err(known.name.clone());
        }
    }
    Ok(())
}

/// Whether a value is in the backing store.
pub(super) fn is_stored(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.producer(value).op, Op::Store(_))
}

/// The order with every load right before its first consumer and every store right after its producer, which minimizes
/// live bytes. Stores that update a state are not moved, and a state is loaded before its update.
pub(super) fn tighten(graph: &Graph, order: Vec<NodeId>) -> Vec<NodeId> {
    let is_load = |id: &NodeId| matches!(graph.node(*id).op, Op::Load(_));
    let producer = |value: ValueId| graph.values[root(graph, value).index()].producer;
    let changes: HashMap<NodeId, StateId> = graph.updates.iter().map(|(state, value)| (producer(*value), *state)).collect();
    let moves = |id: &NodeId| matches!(graph.node(*id).op, Op::Store(_)) && !changes.contains_key(id);
    if !order.iter().any(|id| is_load(id) || moves(id)) {
        return order;
    }
    // For every node, the stores of its outputs; for every state, its loads.
    let mut stores: Vec<Vec<NodeId>> = vec![Vec::new(); graph.nodes.len()];
    let mut loads: HashMap<StateId, Vec<NodeId>> = HashMap::new();
    for id in &order {
        let source = graph.node(*id).inputs.first().map(|input| producer(*input));
        match source {
            Some(source) if moves(id) && runs(graph.node(source)) => stores[source.index()].push(*id),
            Some(source) if is_load(id) => {
                if let Op::State(state) = graph.node(source).op {
                    loads.entry(state).or_default().push(*id);
                }
            }
            _ => {}
        }
    }
    let mut tight = Vec::with_capacity(order.len());
    let mut done = vec![false; graph.nodes.len()];
    let mut emit = |id: NodeId| {
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            if !std::mem::replace(&mut done[id.index()], true) {
                tight.push(id);
                open.extend(stores[id.index()].iter().rev());
            }
        }
    };
    let free = |id: &NodeId| is_load(id) || (moves(id) && runs(graph.node(producer(graph.node(*id).inputs[0]))));
    for id in order.iter().filter(|id| !free(id)) {
        changes.get(id).and_then(|state| loads.get(state)).into_iter().flatten().for_each(|load| emit(*load));
        graph.node(*id).inputs.iter().map(|input| producer(*input)).filter(is_load).for_each(&mut emit);
        emit(*id);
    }
    // Values that only the host reads are loaded at the end.
    order.iter().for_each(|id| emit(*id));
    tight
}

impl Program {
    /// Predicted seconds of one run over `rows` rows, including recomputation, with copies overlapped.
    pub fn seconds(&self, rows: usize, cost_model: &dyn CostModel, rate: CopyRate) -> f64 {
        let nodes = match self.copied(rows) {
            Bytes::ZERO => seconds(self, rows, cost_model),
            _ => Overlap::of(self, rows, 0).seconds(self, rows, cost_model, rate),
        };
        nodes + cost_model.start_seconds()
    }

    /// Bytes copied to and from the backing store in one run over `rows` rows.
    pub fn copied(&self, rows: usize) -> Bytes {
        let copies = self.order.iter().map(|id| self.graph.node(*id)).filter(|node| matches!(node.op, Op::Load(_) | Op::Store(_)));
        copies.map(|node| self.graph.ty(node.outputs[0]).bytes(rows)).sum()
    }
}
