//! Offload: tensors that leave the device's memory between uses, for a backing store: pinned host memory, or a file.
//!
//! What leaves is written down as nodes. A `store` makes a copy of a tensor that lives in the backing store, a `load` makes one of that in the
//! arena. A state that is kept there is loaded before it is read, and its new value is stored. So order, liveness, arena, checker and
//! recomputation see ordinary nodes; the only new thing is a memory that nothing but these two ops may touch.
//!
//! A plan runs its copies one after another with everything else, and that is what the checker plays. A device may run them beside the
//! computation as far as no two touch the same bytes, which [`Overlap`] works out from the finished plan.

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

/// What leaves the device's memory between uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloaded {
    /// States that live in the backing store, the same in all programs.
    pub states: Vec<StateId>,
    /// For each program, values of the forward part that are stored until a later part reads them.
    pub values: Vec<Vec<ValueId>>,
}

impl Offloaded {
    /// Whether nothing leaves.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty() && self.values.iter().all(Vec::is_empty)
    }

    /// The graphs with these copies in them.
    pub fn write(&self, graphs: &[(Role, Graph)]) -> Result<Vec<(Role, Graph)>, GraphError> {
        let values = |i: usize| self.values.get(i).map_or(&[][..], Vec::as_slice);
        graphs.iter().enumerate().map(|(i, (role, graph))| Ok((*role, offload(graph, &self.states, values(i))?))).collect()
    }

    /// Lays out graphs that [`Offloaded::write`] gave.
    pub fn layout(&self, written: &[(Role, Graph)], rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
        super::tighten(self.sketch(written, rows, device)?, device)
    }

    /// [Sketches](sketch) graphs that [`Offloaded::write`] gave.
    pub fn sketch(&self, written: &[(Role, Graph)], rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
        let mut plan = sketch(written, rows, device)?;
        for (program, values) in plan.programs.iter_mut().zip(&self.values) {
            program.offloaded = values.clone();
        }
        Ok(plan)
    }
}

/// Values that could be stored between the forward part and what reads them later, with their bytes: those that are made by a node, read
/// by both, and not read by the host. Largest first.
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

/// Which states live in the backing store: those that a load reads or a store changes. Nothing else may read them.
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
                    return Err(GraphError { scope: node.scope.clone(), what });
                }
            }
        }
    }
    Ok(stored)
}

/// For the new value of every state that is loaded and stored, what was loaded of it.
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

/// That every state that a program loads from the backing store and stores again, but for sums of gradients, has its new value made where the old
/// one was loaded: a step whose loss is broken can then leave the bytes alone, and stores what was there. Else the name of one that has not.
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

/// Whether a value is a copy in the backing store.
pub(super) fn is_stored(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.producer(value).op, Op::Store(_))
}

/// The order with every load right before what first reads it and every store right behind what it stores: as little as possible is held.
/// Stores that change a state stay where they are, and a state is loaded before it changes.
pub(super) fn tighten(graph: &Graph, order: Vec<NodeId>) -> Vec<NodeId> {
    let is_load = |id: &NodeId| matches!(graph.node(*id).op, Op::Load(_));
    let producer = |value: ValueId| graph.values[root(graph, value).index()].producer;
    let changes: HashMap<NodeId, StateId> = graph.updates.iter().map(|(state, value)| (producer(*value), *state)).collect();
    let moves = |id: &NodeId| matches!(graph.node(*id).op, Op::Store(_)) && !changes.contains_key(id);
    if !order.iter().any(|id| is_load(id) || moves(id)) {
        return order;
    }
    // For every node the stores of what it makes, and for every state the loads of it.
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
    // What only the host reads is loaded at the end.
    order.iter().for_each(|id| emit(*id));
    tight
}

impl Program {
    /// Predicted seconds of one run over `rows` rows: repetitions included, copies beside computation.
    pub fn seconds(&self, rows: usize, cost_model: &dyn CostModel, rate: CopyRate) -> f64 {
        match self.copied(rows) {
            Bytes::ZERO => seconds(self, rows, cost_model),
            _ => Overlap::of(self, rows, 0).seconds(self, rows, cost_model, rate),
        }
    }

    /// Bytes that go to the backing store and come back in one run over `rows` rows.
    pub fn copied(&self, rows: usize) -> Bytes {
        let copies = self.order.iter().map(|id| self.graph.node(*id)).filter(|node| matches!(node.op, Op::Load(_) | Op::Store(_)));
        copies.map(|node| self.graph.ty(node.outputs[0]).bytes(rows)).sum()
    }
}
