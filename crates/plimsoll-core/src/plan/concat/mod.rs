//! Concats: decides which of them are copied, written slice by slice, or share a buffer. Exact peaks decide; predicted
//! time breaks ties.

mod fuse;
mod rewrite;

use super::{BufferInterval, Goal, InOrder, PackingEffort, ScheduledGraph, in_order, liveness, nearly, solve};
use crate::Bytes;
use crate::ir::graph::{ConcatStrategy, Graph, GraphError, NodeId, ValueId};
use crate::ir::op::Op;
use crate::plan::Target;
use fuse::has_fusable_input;
use rewrite::copied;

pub use fuse::fuse_slice_writes;
pub use rewrite::rewrite_concats;

/// A concat is rewritten only if that lowers the peak by 1/`WORTH`, because an output that is allocated early fragments
/// the arena.
const WORTH: u64 = 150;

/// Maximum number of concats that are tried in turn.
const MAX_CONCATS: usize = 12;

/// Schedules an optimized graph without recomputation, with the concat strategy that has the lowest peak.
pub fn schedule(graph: &Graph, rows: usize, device: &dyn Target) -> Result<ScheduledGraph, GraphError> {
    let plain = in_order(graph, rows, device)?;
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Concat(_))) {
        return Ok(plain.sequenced);
    }
    let worth_it = Bytes(plain.peak.0 - plain.peak.0 / WORTH);
    let mut best = plain.clone();
    // While a concat determines the peak and rewriting it lowers the peak, write it slice by slice.
    let mut put: Vec<ValueId> = Vec::new();
    while put.len() < MAX_CONCATS
        && let Some(value) = best.peak_step.and_then(|id| copied(graph, &best.sequenced.graph, id))
    {
        put.push(value);
        let Some(joined) = rewrite_concats(graph, ConcatStrategy::SliceWrite, &put, device) else { break };
        let found = least(&joined, rows, device)?;
        if found.peak >= best.peak {
            break;
        }
        best = found;
    }
    if let Some(joined) = rewrite_concats(graph, ConcatStrategy::SharedBuffer, &[], device) {
        let found = least(&joined, rows, device)?;
        if found.peak < best.peak {
            best = found;
        }
    }
    let best = if best.peak <= worth_it { best } else { plain };
    Ok(without_copies(graph, &best, rows, device)?.unwrap_or(best).sequenced)
}

/// A schedule of a graph with slice writes, fused into their producers unless that raises the peak.
fn least(joined: &Graph, rows: usize, device: &dyn Target) -> Result<InOrder, GraphError> {
    let put = in_order(joined, rows, device)?;
    let Some(concats_fused) = fuse_slice_writes(joined, device) else { return Ok(put) };
    let made = in_order(&concats_fused, rows, device)?;
    Ok(if made.peak <= put.peak { made } else { put })
}

/// A schedule with a peak no higher than that of `best` and fewer copies: concats away from the peak are fused into
/// their producers too. Outputs that are allocated early can fragment the arena, so this is used only if a short search
/// packs the arena as tightly.
fn without_copies(graph: &Graph, best: &InOrder, rows: usize, device: &dyn Target) -> Result<Option<InOrder>, GraphError> {
    let known = &best.sequenced.graph;
    if known.joining() == ConcatStrategy::SharedBuffer {
        return Ok(None);
    }
    let counts = graph.use_counts();
    let made_there = |value: &ValueId| has_fusable_input(graph, graph.producer(*value), &counts, device);
    let joins = graph.nodes.iter().filter(|node| matches!(node.op, Op::Concat(_))).map(|node| node.outputs[0]);
    let chosen: Vec<ValueId> = joins.filter(|value| known.joined().contains(value) || made_there(value)).collect();
    if chosen.is_empty() {
        return Ok(None);
    }
    let Some(made) =
        rewrite_concats(graph, ConcatStrategy::SliceWrite, &chosen, device).and_then(|joined| fuse_slice_writes(&joined, device))
    else {
        return Ok(None);
    };
    let made = in_order(&made, rows, device)?;
    Ok((made.peak <= best.peak && packs(&made, rows, device)).then_some(made))
}

/// Whether a short search packs the buffers almost without fragmentation.
fn packs(found: &InOrder, rows: usize, device: &dyn Target) -> bool {
    let ScheduledGraph { graph, order, .. } = &found.sequenced;
    let alignment = device.capabilities().alignment;
    let workspace = |node: NodeId| device.workspace(graph, graph.node(node), rows).align_up(alignment.0);
    let live = liveness::buffers(graph, order, rows, alignment, &workspace);
    let blocks: Vec<BufferInterval> = live.buffers.iter().map(|b| BufferInterval { first: b.first, last: b.last, size: b.size }).collect();
    let near = nearly(found.peak);
    solve(&blocks, Goal::Within(near), PackingEffort::default()).layout.size <= near
}
