//! Liveness: buffers with their lifetimes for a given order, with views and in-place reuse.

use super::offload::{self, is_stored};
use super::updates::{root, runs};
use super::{Buffer, BufferKind};
use crate::Bytes;
use crate::ir::graph::{Graph, InputId, Node, NodeId, Phase, ScalarId, StateId, ValueId};
use crate::ir::op::Op;
use std::collections::HashMap;

/// Location of a value before offsets are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    Input(InputId),
    Scalar(ScalarId),
    State(StateId),
    /// An index into the buffers.
    Buffer(usize),
    /// An index into the stored buffers.
    Stored(usize),
}

pub(super) struct Liveness {
    pub buffers: Vec<Buffer>,
    /// Temporary buffers in the backing store.
    pub stored: Vec<Buffer>,
    /// Location of each value.
    pub homes: Vec<Option<Home>>,
    /// The workspace buffer of each step.
    pub workspaces: Vec<Option<usize>>,
}

/// The buffers of the graph run in this order.
pub(super) fn buffers(graph: &Graph, order: &[NodeId], rows: usize, alignment: Bytes, workspace: &dyn Fn(NodeId) -> Bytes) -> Liveness {
    let last_use = last_uses(graph, order);
    let assigned: HashMap<ValueId, StateId> = graph.updates.iter().map(|(state, value)| (*value, *state)).collect();
    let renewed = offload::renewed(graph);
    let mut live = Liveness {
        buffers: Vec::new(),
        stored: Vec::new(),
        homes: vec![None; graph.values.len()],
        workspaces: Vec::with_capacity(order.len()),
    };
    for node in graph.nodes.iter().filter(|node| !runs(node)) {
        live.homes[node.outputs[0].index()] = leaf_home(&node.op);
    }
    let size = |value: ValueId| graph.ty(value).bytes(rows).align_up(alignment.0);
    for (time, id) in order.iter().enumerate() {
        let (node, time) = (graph.node(*id), time as u32);
        let mut reused: Vec<usize> = Vec::new();
        for (place, output) in node.outputs.iter().enumerate() {
            let last = last_use[output.index()].unwrap_or(time).min(order.len() as u32 - 1);
            let home = if let Some(state) = assigned.get(output) {
                Home::State(*state)
            } else if let Some(buffer) = reusable(graph, node, place, time, &live, &last_use, &reused, &renewed) {
                reused.push(buffer);
                live.buffers[buffer].last = last;
                live.buffers[buffer].values.push(*output);
                Home::Buffer(buffer)
            } else {
                let kind = match node.op {
                    Op::Load(_) => BufferKind::Loaded,
                    _ if node.phase == Phase::Forward => BufferKind::Activation,
                    _ => BufferKind::Gradient,
                };
                let stored = is_stored(graph, *output);
                let buffers = if stored { &mut live.stored } else { &mut live.buffers };
                buffers.push(Buffer {
                    kind,
                    owner: node.scope.clone(),
                    values: vec![*output],
                    size: size(*output),
                    first: time,
                    last,
                    offset: Bytes::ZERO,
                });
                if stored { Home::Stored(live.stored.len() - 1) } else { Home::Buffer(live.buffers.len() - 1) }
            };
            live.homes[output.index()] = Some(home);
        }
        let scratch = workspace(*id);
        live.workspaces.push((scratch > Bytes::ZERO).then(|| {
            live.buffers.push(Buffer {
                kind: BufferKind::Workspace,
                owner: node.scope.clone(),
                values: vec![],
                size: scratch,
                first: time,
                last: time,
                offset: Bytes::ZERO,
            });
            live.buffers.len() - 1
        }));
    }
    // A view shares the location of its base: a state, an input or a buffer.
    for node in graph.nodes.iter().filter(|node| node.op.rules().is_view()) {
        let home = live.homes[root(graph, node.outputs[0]).index()];
        live.homes[node.outputs[0].index()] = home;
        if let Some(Home::Buffer(buffer)) = home {
            live.buffers[buffer].values.push(node.outputs[0]);
        }
    }
    live
}

fn leaf_home(op: &Op) -> Option<Home> {
    match op {
        Op::Input(id) => Some(Home::Input(*id)),
        Op::Scalar(id) => Some(Home::Scalar(*id)),
        Op::State(id) => Some(Home::State(*id)),
        _ => None,
    }
}

/// A buffer that dies at this node and that this output may reuse. The loaded copy of a state is reserved for the
/// state's new value, so that an aborted step stores the old bytes.
#[allow(clippy::too_many_arguments, reason = "the state of one walk")]
fn reusable(
    graph: &Graph,
    node: &Node,
    output: usize,
    time: u32,
    live: &Liveness,
    last_use: &[Option<u32>],
    taken: &[usize],
    renewed: &HashMap<ValueId, ValueId>,
) -> Option<usize> {
    let ty = graph.ty(node.outputs[output]);
    let own = renewed.get(&node.outputs[output]);
    let others = |source: ValueId| node.outputs.iter().any(|o| *o != node.outputs[output] && renewed.get(o) == Some(&source));
    let own_first = node.inputs.iter().enumerate().filter(|(_, input)| own == Some(&root(graph, **input)));
    own_first.chain(node.inputs.iter().enumerate()).find_map(|(i, input)| {
        let source = root(graph, *input);
        if others(source) {
            return None;
        }
        match live.homes[source.index()] {
            Some(Home::Buffer(buffer))
                if node.op.rules().in_place(i, output)
                    && last_use[source.index()] == Some(time)
                    && graph.ty(source).same_bytes(ty)
                    && !taken.contains(&buffer) =>
            {
                Some(buffer)
            }
            _ => None,
        }
    })
}

/// The last step that reads each value or a view of it. Host reads count as after the last step, so no step overwrites
/// them.
fn last_uses(graph: &Graph, order: &[NodeId]) -> Vec<Option<u32>> {
    let mut last = vec![None; graph.values.len()];
    for (time, id) in order.iter().enumerate() {
        for input in &graph.node(*id).inputs {
            last[root(graph, *input).index()] = Some(time as u32);
        }
    }
    for (_, value) in &graph.outputs {
        last[root(graph, *value).index()] = Some(order.len() as u32);
    }
    last
}

/// The step with the largest sum of live bytes, and that sum.
pub(super) fn peak(lifetimes: impl Iterator<Item = (u32, u32, Bytes)>, steps: usize) -> (u32, Bytes) {
    let mut change = vec![0i128; steps + 1];
    for (first, last, size) in lifetimes {
        change[first as usize] += i128::from(size.0);
        change[last as usize + 1] -= i128::from(size.0);
    }
    let (mut held, mut peak) = (0i128, (0, 0i128));
    for (step, change) in change.iter().enumerate() {
        held += change;
        if held > peak.1 {
            peak = (step, held);
        }
    }
    (peak.0 as u32, Bytes(peak.1 as u64))
}
