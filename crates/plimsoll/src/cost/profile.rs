//! Times the nodes of training steps and adds them to a cost table.

use super::CostTable;
use super::features::{Features, features};
use super::node_timer::{NodeTimer, Timing};
use super::step_timer::{time_step, time_whole_step};
use crate::error::Result;
use plimsoll_core::device::Device;
use plimsoll_core::graph::NodeId;
use plimsoll_core::{Bytes, Graph};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The largest node that is timed by itself.
pub(crate) const MAX_NODE_BYTES: Bytes = Bytes::mib(24);

/// The largest step that is timed as a whole, on a device with memory of its own: a part of it, so that smaller devices
/// can be measured too.
pub(crate) fn max_step_bytes(device: &dyn Device) -> Bytes {
    let part = device.memory_info().map_or(Bytes::ZERO, |memory| Bytes(memory.available.0 / 4));
    part.clamp(Bytes::gib(2), Bytes::gib(12))
}

/// Feature distances below this are equal but for rounding.
const SAME: f64 = 0.02;

/// Nodes nearer than this to a sample, as the logarithm of a ratio of sizes, are not timed.
pub(crate) const NODE_DISTANCE: f64 = 0.5;

/// Nodes that take longer than this at base rates, in seconds, are left to estimates from smaller ones.
const MAX_NODE_SECONDS: f64 = 2e-3;

/// The part of the time in which nodes are timed for the first time; the rest is for repeated visits.
const FIRST_VISITS: f64 = 0.5;

/// The maximum number of visits of a node.
const MAX_VISITS: u32 = 4;

/// Times the nodes of a run's own step that the table has no sample of. Returns how many were added.
pub(crate) fn profile_own_step(costs: &mut CostTable, device: &dyn Device, graph: &Graph, rows: usize, limit: Duration) -> Result<usize> {
    if device.capabilities().shares_host_memory {
        let mut timer = NodeTimer::new(device, MAX_NODE_BYTES)?;
        let mut nodes = StepNodes::default();
        nodes.add(costs, graph.clone(), rows, f64::INFINITY);
        return Ok(nodes.time(costs, &mut timer, SAME, Instant::now() + limit));
    }
    profile_step(costs, device, graph, rows, SAME)
}

/// Runs a step once with the device's own timers and adds the nodes that are farther than `distance` from every sample.
pub(crate) fn profile_step(costs: &mut CostTable, device: &dyn Device, graph: &Graph, rows: usize, distance: f64) -> Result<usize> {
    let before = costs.len();
    for (features, seconds) in time_step(device, graph, rows, max_step_bytes(device))?.unwrap_or_default() {
        if !costs.has_sample_within(&features, distance) {
            costs.add(&features, seconds);
        }
    }
    Ok(costs.len() - before)
}

/// What many consecutive steps of a small network take each, beyond the sum of their nodes by the table; none if that
/// cannot be measured.
pub(crate) fn small_step_rest(costs: &CostTable, device: &dyn Device, graph: &Graph, rows: usize) -> Result<Option<f64>> {
    let rest = |(step, nodes): (f64, f64)| step - nodes;
    Ok(time_whole_step(device, graph, rows, &|graph, node| costs.uncorrected(graph, node, rows).1)?.map(rest))
}

/// The nodes of some training steps, to be timed one by one.
#[derive(Default)]
pub(crate) struct StepNodes {
    graphs: Vec<(Graph, usize)>,
    /// By class.
    nodes: BTreeMap<String, Vec<StepNode>>,
}

struct StepNode {
    graph: usize,
    node: NodeId,
    features: Features,
    /// Seconds at base rates.
    base: f64,
}

impl StepNodes {
    /// Adds the nodes of a step of `rows` rows that take at most some seconds at base rates.
    fn add(&mut self, costs: &CostTable, graph: Graph, rows: usize, max_seconds: f64) {
        for (node, found) in graph.nodes().filter(|(_, node)| !node.op.is_leaf() && !node.op.rules().is_view()) {
            let features = features(&graph, found, rows);
            let base = costs.base_seconds(&features);
            if base <= max_seconds && features.bytes <= MAX_NODE_BYTES.0 as f64 {
                let graph = self.graphs.len();
                self.nodes.entry(features.class.clone()).or_default().push(StepNode { graph, node, features, base });
            }
        }
        self.graphs.push((graph, rows));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds the nodes of a step that do not take long.
    pub fn add_short(&mut self, costs: &CostTable, graph: &Graph, rows: usize) {
        self.add(costs, graph.clone(), rows, MAX_NODE_SECONDS);
    }

    /// Times nodes that are farther than `distance` from every sample, the most telling ones first, and adds them to
    /// the table. All of them are visited again later, as often as there is time: other load slows a machine down for
    /// longer than a node runs, and the minimum counts. Returns how many were added.
    pub fn time(&self, costs: &mut CostTable, timer: &mut NodeTimer<'_>, distance: f64, deadline: Instant) -> usize {
        let begin = Instant::now();
        let first_deadline = begin + deadline.saturating_duration_since(begin).mul_f64(FIRST_VISITS);
        let mut time = |node: &StepNode| {
            let (graph, rows) = &self.graphs[node.graph];
            timer.time(graph, graph.node(node.node), *rows)
        };
        let mut timed: Vec<(&StepNode, Timing)> = Vec::new();
        for node in self.telling(costs, distance) {
            if Instant::now() > first_deadline {
                break;
            }
            timed.extend(time(node).map(|timing| (node, timing)));
        }
        for visit in 1..MAX_VISITS {
            // From the second visit on only those that were disturbed every time, and then all once more.
            let every = visit == 1 || visit == MAX_VISITS - 1;
            for (node, known) in timed.iter_mut().filter(|(_, known)| every || !known.undisturbed) {
                if Instant::now() > deadline {
                    break;
                }
                if let Some(again) = time(node) {
                    *known = known.and(again);
                }
            }
        }
        timed.iter().for_each(|(node, timing)| costs.add(&node.features, timing.seconds));
        timed.len()
    }

    /// One node of every class first, then those that are farthest from the ones before; classes that steps spend more
    /// time in are covered more densely.
    fn telling(&self, costs: &CostTable, distance: f64) -> Vec<&StepNode> {
        let mut ordered: Vec<(f64, &StepNode)> = Vec::new();
        let all: f64 = self.nodes.values().flatten().map(|node| node.base).sum();
        for (class, nodes) in &self.nodes {
            let share = nodes.iter().map(|node| node.base).sum::<f64>() / all.max(f64::MIN_POSITIVE);
            let mut gaps: Vec<f64> = nodes.iter().map(|node| costs.nearest_sample(class, &node.features).sqrt()).collect();
            loop {
                // The largest of those that are farthest: it is measured most precisely.
                let farther = |a: &usize, b: &usize| gaps[*a].total_cmp(&gaps[*b]).then(nodes[*a].base.total_cmp(&nodes[*b].base));
                let Some(next) = (0..nodes.len()).max_by(farther).filter(|next| gaps[*next] > distance) else { break };
                ordered.push((gaps[next] * share.sqrt(), &nodes[next]));
                for (gap, node) in gaps.iter_mut().zip(nodes) {
                    *gap = gap.min(nodes[next].features.distance(&node.features).sqrt());
                }
            }
        }
        ordered.sort_by(|a, b| b.0.total_cmp(&a.0));
        ordered.into_iter().map(|(_, node)| node).collect()
    }
}
