//! Chooses an execution order: simulates several candidate orders exactly, takes the one with the smallest peak and
//! improves it locally.

use super::cost_model::Rates;
use super::offload::{is_stored, tighten};
use super::recompute::problem::Problem;
use super::recompute::simulate::Simulation;
use super::reorder::improve;
use super::updates::{readers, root, runs};
use crate::ir::graph::{Graph, NodeId, Phase, ValueId};
use crate::ir::op::Op;
use crate::{Bytes, Dim};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

/// How a candidate order picks the next ready node.
#[derive(Clone, Copy)]
enum Policy {
    /// As the graph was written.
    AsWritten,
    /// As written, but nodes that free at least as much as they allocate go first: gradients are consumed as soon as
    /// they are complete.
    ReleaseFirst,
    /// The node with the smallest memory growth first.
    SmallestGrowth,
}

/// An order of the executed nodes, chosen for the smallest peak.
pub(super) fn order(graph: &Graph, rows: usize, alignment: Bytes, workspace: &dyn Fn(NodeId) -> Bytes) -> Vec<NodeId> {
    let constraints = Constraints::of(graph);
    let problem = Problem::of(graph, &[], rows, alignment, workspace, &Rates::default());
    let mut simulation = Simulation::new(&problem);
    let mut best: Option<(u64, Vec<u32>)> = None;
    for policy in [Policy::ReleaseFirst, Policy::AsWritten, Policy::SmallestGrowth] {
        let candidate: Vec<u32> = tighten(graph, schedule(graph, &constraints, rows, policy)).iter().map(|id| id.0).collect();
        assert_eq!(candidate.len(), constraints.nodes.len(), "no node of a legalised graph waits for itself");
        let peak = simulation.play(&problem, &candidate, u64::MAX).peak;
        if best.as_ref().is_none_or(|(smallest, _)| peak < *smallest) {
            best = Some((peak, candidate));
        }
    }
    let Some((_, mut best)) = best else { return Vec::new() };
    // Loads and stores are already next to their consumers and producers; reordering would move them.
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Store(_) | Op::Load(_))) {
        improve(&problem, &constraints.successors, &mut best);
    }
    best.into_iter().map(NodeId).collect()
}

/// Largest parameter whose update is deferred, in elements: its gradient stays live until then.
const SMALL: usize = 1 << 16;

/// Moves the updates of small parameters to the end, those with equal expressions next to each other. Nothing reads a
/// state after its update, so that any later position is legal.
pub(super) fn small_updates_last(graph: &Graph, order: Vec<NodeId>) -> Vec<NodeId> {
    let copied = order.iter().any(|id| matches!(graph.node(*id).op, Op::Store(_) | Op::Load(_)));
    let new_values: HashSet<ValueId> = graph.updates.iter().map(|(_, value)| *value).collect();
    let read: HashSet<ValueId> = graph.nodes().flat_map(|(_, node)| node.inputs.iter().copied()).collect();
    let host_reads: HashSet<ValueId> = graph.outputs.iter().map(|(_, value)| *value).collect();
    let is_small = |id: &NodeId| {
        let node = graph.node(*id);
        let (Op::Pointwise(op), Phase::Update) = (&node.op, node.phase) else { return false };
        let only_updates = |value: &ValueId| new_values.contains(value) && !read.contains(value) && !host_reads.contains(value);
        op.shape.elements().as_fixed().is_some_and(|size| size <= SMALL) && node.outputs.iter().all(only_updates)
    };
    if copied {
        return order;
    }
    let (mut last, mut order): (Vec<NodeId>, Vec<NodeId>) = order.into_iter().partition(is_small);
    let mut kinds: Vec<&Op> = Vec::new();
    let mut kind = |id: &NodeId| {
        let op = &graph.node(*id).op;
        let same = |known: &&Op| matches!((known, op), (Op::Pointwise(a), Op::Pointwise(b)) if a.expr == b.expr && a.dtypes == b.dtypes);
        kinds.iter().position(same).unwrap_or_else(|| {
            kinds.push(op);
            kinds.len() - 1
        })
    };
    last.sort_by_cached_key(|id| kind(id));
    order.extend(last);
    order
}

/// The dependencies of the graph.
struct Constraints {
    nodes: Vec<NodeId>,
    successors: Vec<Vec<NodeId>>,
    waiting: Vec<u32>,
    /// For every root value, the number of readers; the host counts as one.
    readers: Vec<u32>,
    /// For every root value, its readers.
    read_by: Vec<Vec<NodeId>>,
    /// For every executed node, the distinct root values it reads.
    roots: Vec<Vec<ValueId>>,
}

impl Constraints {
    fn of(graph: &Graph) -> Constraints {
        let mut successors = vec![Vec::new(); graph.nodes.len()];
        let mut waiting = vec![0; graph.nodes.len()];
        let (mut counts, mut read_by) = (vec![0; graph.values.len()], vec![Vec::new(); graph.values.len()]);
        let mut sources = vec![Vec::new(); graph.nodes.len()];
        let before_update = readers(graph);
        let writers: HashSet<NodeId> = graph.updates.iter().map(|(_, value)| graph.values[value.index()].producer).collect();
        let observed = observed_before(graph, &writers);
        let nodes: Vec<NodeId> = graph.nodes().filter(|(_, node)| runs(node)).map(|(id, _)| id).collect();
        for id in &nodes {
            let mut before: HashSet<NodeId> = before_update.get(id).into_iter().flatten().copied().collect();
            if writers.contains(id) {
                before.extend(&observed);
            }
            sources[id.index()] = roots(graph, *id);
            for source in &sources[id.index()] {
                counts[source.index()] += 1;
                read_by[source.index()].push(*id);
                let producer = graph.values[source.index()].producer;
                if runs(graph.node(producer)) {
                    before.insert(producer);
                }
            }
            waiting[id.index()] = before.len() as u32;
            before.into_iter().for_each(|earlier| successors[earlier.index()].push(*id));
        }
        // Outputs that the host reads are never freed.
        graph.outputs.iter().for_each(|(_, value)| counts[root(graph, *value).index()] += 1);
        Constraints { nodes, successors, waiting, readers: counts, read_by, roots: sources }
    }
}

/// The producers of scalars that the host reads, unless they depend on an updated state. They run before any state
/// update, so that a non-finite loss can abort the step with all states intact.
fn observed_before(graph: &Graph, writers: &HashSet<NodeId>) -> Vec<NodeId> {
    let mut late = vec![false; graph.nodes.len()];
    for (id, node) in graph.nodes() {
        late[id.index()] = writers.contains(&id) || node.inputs.iter().any(|input| late[graph.values[input.index()].producer.index()]);
    }
    let numbers = graph.outputs.iter().filter(|(_, value)| graph.shape(*value).elements() == Dim::fixed(1));
    let makers = numbers.map(|(_, value)| graph.values[root(graph, *value).index()].producer);
    makers.filter(|maker| !late[maker.index()] && runs(graph.node(*maker))).collect()
}

/// The distinct root values that a node reads.
fn roots(graph: &Graph, id: NodeId) -> Vec<ValueId> {
    let mut roots: Vec<ValueId> = graph.node(id).inputs.iter().map(|input| root(graph, *input)).collect();
    roots.sort_unstable();
    roots.dedup();
    roots
}

fn schedule(graph: &Graph, constraints: &Constraints, rows: usize, policy: Policy) -> Vec<NodeId> {
    let size = |value: ValueId| graph.ty(value).bytes(rows).0 as i64;
    let in_state: HashSet<ValueId> = graph.updates.iter().map(|(_, value)| *value).collect();
    let owned = |value: ValueId| runs(graph.producer(value)) && !in_state.contains(&value) && !is_stored(graph, value);
    let mut waiting = constraints.waiting.clone();
    let mut left = constraints.readers.clone();
    let growth = |id: NodeId, left: &[u32]| -> i64 {
        let made: i64 = graph.node(id).outputs.iter().filter(|output| owned(**output)).map(|output| size(*output)).sum();
        let freed: i64 =
            constraints.roots[id.index()].iter().filter(|value| left[value.index()] == 1 && owned(**value)).map(|value| size(*value)).sum();
        made - freed
    };
    // The growth of a waiting node only falls, as other readers of its inputs run. A node whose rank improved is queued
    // again; its stale entry is skipped. Loads are moved to their readers afterwards, so they are emitted at once.
    let rank = |id: NodeId, left: &[u32]| match policy {
        _ if matches!(graph.node(id).op, Op::Load(_)) => i64::MIN,
        Policy::AsWritten => 0,
        Policy::ReleaseFirst => i64::from(growth(id, left) > 0),
        Policy::SmallestGrowth => growth(id, left),
    };
    let mut ready: BinaryHeap<Reverse<(i64, NodeId)>> = BinaryHeap::new();
    let mut is_ready = vec![false; graph.nodes.len()];
    for id in constraints.nodes.iter().filter(|id| waiting[id.index()] == 0) {
        ready.push(Reverse((rank(*id, &left), *id)));
        is_ready[id.index()] = true;
    }
    let mut order = Vec::with_capacity(constraints.nodes.len());
    while let Some(Reverse((_, id))) = ready.pop() {
        if !std::mem::take(&mut is_ready[id.index()]) {
            continue;
        }
        order.push(id);
        let sources = &constraints.roots[id.index()];
        for source in sources {
            left[source.index()] -= 1;
        }
        for next in &constraints.successors[id.index()] {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                is_ready[next.index()] = true;
                ready.push(Reverse((rank(*next, &left), *next)));
            }
        }
        // A node that became the last reader of one of these values has a better rank.
        if !matches!(policy, Policy::AsWritten) {
            let last_reader =
                sources.iter().filter(|source| left[source.index()] == 1).flat_map(|source| &constraints.read_by[source.index()]);
            last_reader.filter(|other| is_ready[other.index()]).for_each(|other| ready.push(Reverse((rank(*other, &left), *other))));
        }
    }
    order
}
