//! Times the nodes of a training step and adds them to a cost table.

use super::CostTable;
use super::features::features;
use super::node_timer::NodeTimer;
use super::step_timer::time_step;
use crate::error::Result;
use plimsoll_core::device::Device;
use plimsoll_core::{Bytes, Graph};
use std::time::{Duration, Instant};

/// The largest node that is timed by itself.
pub(crate) const MAX_NODE_BYTES: Bytes = Bytes::mib(24);

/// The largest step that is timed as a whole, on devices with memory of their own.
pub(crate) const MAX_STEP_BYTES: Bytes = Bytes::mib(4096);

/// Feature distances below this are equal but for rounding.
const SAME: f64 = 0.02;

/// Which nodes of a step are timed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pass {
    /// Nodes whose features are farther than this from every sample.
    New(f64),
    /// Nodes that have one sample; the minimum of both times counts.
    Repeat,
}

/// Times the nodes of a run's own step that the table has no sample of. Returns how many were added.
pub(crate) fn profile_own_step(costs: &mut CostTable, device: &dyn Device, graph: &Graph, rows: usize, limit: Duration) -> Result<usize> {
    if device.capabilities().shares_host_memory {
        let timer = NodeTimer::new(device, MAX_NODE_BYTES)?;
        return Ok(profile_nodes(costs, &timer, graph, rows, Pass::New(SAME), Instant::now() + limit));
    }
    profile_step(costs, device, graph, rows, SAME)
}

/// Runs a step once with the device's own timers and adds the nodes that are farther than `distance` from every sample.
pub(crate) fn profile_step(costs: &mut CostTable, device: &dyn Device, graph: &Graph, rows: usize, distance: f64) -> Result<usize> {
    let before = costs.len();
    for (features, seconds) in time_step(device, graph, rows, MAX_STEP_BYTES)?.unwrap_or_default() {
        if !costs.has_sample_within(&features, distance) {
            costs.add(&features, seconds);
        }
    }
    Ok(costs.len() - before)
}

/// Times nodes one by one until the deadline. Returns how many were timed.
pub(crate) fn profile_nodes(
    costs: &mut CostTable,
    timer: &NodeTimer<'_>,
    graph: &Graph,
    rows: usize,
    pass: Pass,
    deadline: Instant,
) -> usize {
    let mut timed = 0;
    for (_, node) in graph.nodes().filter(|(_, node)| !node.op.is_leaf() && !node.op.rules().is_view()) {
        let features = features(graph, node, rows);
        let wanted = match pass {
            Pass::New(distance) => !costs.has_sample_within(&features, distance),
            Pass::Repeat => costs.sample_timed_once(&features, SAME).is_some(),
        };
        if Instant::now() > deadline || !wanted {
            continue;
        }
        if let Some(seconds) = timer.time(graph, node, rows) {
            match (pass, costs.sample_timed_once(&features, SAME)) {
                (Pass::Repeat, Some(sample)) => sample.repeat(seconds),
                _ => costs.add(&features, seconds),
            }
            timed += 1;
        }
    }
    timed
}
