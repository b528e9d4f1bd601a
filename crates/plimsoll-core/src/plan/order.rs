//! In which order to run: several candidate orders, each measured exactly, the smallest peak kept.

use super::liveness::{buffers, fullest};
use super::updates::{readers, root, runs};
use crate::graph::{Graph, NodeId, ValueId};
use crate::{Bytes, Dim};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

/// How a candidate order picks among the nodes that could run next.
#[derive(Clone, Copy)]
enum Policy {
    /// As the graph was written.
    AsWritten,
    /// As written, but what gives back at least as much as it takes goes first: gradients are consumed as soon as they are complete.
    ReleaseFirst,
    /// Always what grows memory least.
    SmallestGrowth,
}

/// An order of the nodes that run, chosen for the smallest peak.
pub(super) fn order(graph: &Graph, rows: usize, alignment: Bytes, workspace: &dyn Fn(NodeId) -> Bytes) -> Vec<NodeId> {
    let constraints = Constraints::of(graph);
    let mut best: Option<(Bytes, Vec<NodeId>)> = None;
    for policy in [Policy::ReleaseFirst, Policy::AsWritten, Policy::SmallestGrowth] {
        let candidate = schedule(graph, &constraints, rows, policy);
        assert_eq!(candidate.len(), constraints.nodes.len(), "no node of a legalised graph waits for itself");
        let live = buffers(graph, &candidate, rows, alignment, workspace);
        let (_, peak) = fullest(live.buffers.iter().map(|b| (b.first, b.last, b.size)), candidate.len());
        if best.as_ref().is_none_or(|(smallest, _)| peak < *smallest) {
            best = Some((peak, candidate));
        }
    }
    best.map(|(_, order)| order).unwrap_or_default()
}

/// What must come before what.
struct Constraints {
    nodes: Vec<NodeId>,
    successors: Vec<Vec<NodeId>>,
    waiting: Vec<u32>,
    /// For every root value, how many nodes read it.
    readers: Vec<u32>,
}

impl Constraints {
    fn of(graph: &Graph) -> Constraints {
        let mut successors = vec![Vec::new(); graph.nodes.len()];
        let mut waiting = vec![0; graph.nodes.len()];
        let mut counts = vec![0; graph.values.len()];
        let before_update = readers(graph);
        let writers: HashSet<NodeId> = graph.updates.iter().map(|(_, value)| graph.values[value.index()].producer).collect();
        let observed = observed_before(graph, &writers);
        let nodes: Vec<NodeId> = graph.nodes().filter(|(_, node)| runs(node)).map(|(id, _)| id).collect();
        for id in &nodes {
            let mut before: HashSet<NodeId> = before_update.get(id).into_iter().flatten().copied().collect();
            if writers.contains(id) {
                before.extend(&observed);
            }
            for source in roots(graph, *id) {
                counts[source.index()] += 1;
                let producer = graph.values[source.index()].producer;
                if runs(graph.node(producer)) {
                    before.insert(producer);
                }
            }
            waiting[id.index()] = before.len() as u32;
            before.into_iter().for_each(|earlier| successors[earlier.index()].push(*id));
        }
        // What the host reads is never given back.
        graph.outputs.iter().for_each(|(_, value)| counts[root(graph, *value).index()] += 1);
        Constraints { nodes, successors, waiting, readers: counts }
    }
}

/// The nodes that make the single numbers the host reads, unless they need a changed state. They run before any state changes, so that a
/// loss that is not finite can stop the step while all states are still good.
fn observed_before(graph: &Graph, writers: &HashSet<NodeId>) -> Vec<NodeId> {
    let mut late = vec![false; graph.nodes.len()];
    for (id, node) in graph.nodes() {
        late[id.index()] = writers.contains(&id) || node.inputs.iter().any(|input| late[graph.values[input.index()].producer.index()]);
    }
    let numbers = graph.outputs.iter().filter(|(_, value)| graph.shape(*value).elements() == Dim::fixed(1));
    let makers = numbers.map(|(_, value)| graph.values[root(graph, *value).index()].producer);
    makers.filter(|maker| !late[maker.index()] && runs(graph.node(*maker))).collect()
}

/// The distinct values whose bytes a node reads.
fn roots(graph: &Graph, id: NodeId) -> HashSet<ValueId> {
    graph.node(id).inputs.iter().map(|input| root(graph, *input)).collect()
}

fn schedule(graph: &Graph, constraints: &Constraints, rows: usize, policy: Policy) -> Vec<NodeId> {
    let size = |value: ValueId| graph.ty(value).bytes(rows).0 as i64;
    let in_state: HashSet<ValueId> = graph.updates.iter().map(|(_, value)| *value).collect();
    let owned = |value: ValueId| runs(graph.producer(value)) && !in_state.contains(&value);
    let mut waiting = constraints.waiting.clone();
    let mut left = constraints.readers.clone();
    let growth = |id: NodeId, left: &[u32]| -> i64 {
        let made: i64 = graph.node(id).outputs.iter().filter(|output| owned(**output)).map(|output| size(*output)).sum();
        let freed: i64 = roots(graph, id).iter().filter(|value| owned(**value) && left[value.index()] == 1).map(|value| size(*value)).sum();
        made - freed
    };
    // Growth only falls while a node waits (other readers of its inputs run). A node whose rank improved is queued again with the
    // better rank, and the entry it leaves behind is skipped when its turn comes.
    let rank = |id: NodeId, left: &[u32]| match policy {
        Policy::AsWritten => 0,
        Policy::ReleaseFirst => i64::from(growth(id, left) > 0),
        Policy::SmallestGrowth => growth(id, left),
    };
    let mut ready: BinaryHeap<Reverse<(i64, NodeId)>> = BinaryHeap::new();
    let mut ready_ids: HashSet<NodeId> = HashSet::new();
    for id in constraints.nodes.iter().filter(|id| waiting[id.index()] == 0) {
        ready.push(Reverse((rank(*id, &left), *id)));
        ready_ids.insert(*id);
    }
    let mut order = Vec::with_capacity(constraints.nodes.len());
    while let Some(Reverse((_, id))) = ready.pop() {
        if !ready_ids.remove(&id) {
            continue;
        }
        order.push(id);
        let sources = roots(graph, id);
        for source in &sources {
            left[source.index()] -= 1;
        }
        for next in &constraints.successors[id.index()] {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready_ids.insert(*next);
                ready.push(Reverse((rank(*next, &left), *next)));
            }
        }
        // A node that is now the only reader left of one of these values has become more attractive.
        if !matches!(policy, Policy::AsWritten) {
            for waiting_id in ready_ids.iter().filter(|other| roots(graph, **other).iter().any(|value| sources.contains(value))) {
                ready.push(Reverse((rank(*waiting_id, &left), *waiting_id)));
            }
        }
    }
    order
}
