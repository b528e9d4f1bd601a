//! Which joins of a graph are written in which way: the exact peaks decide, and where they leave a choice, time does.

mod fuse;
mod rewrite;

use super::{Block, Effort, Goal, InOrder, ScheduledGraph, in_order, liveness, nearly, solve};
use crate::Bytes;
use crate::ir::graph::{ConcatStrategy, Graph, GraphError, NodeId, ValueId};
use crate::ir::op::Op;
use crate::plan::Target;
use fuse::has_parts_made_there;
use rewrite::copied;

pub use fuse::fuse_slice_writes;
pub use rewrite::rewrite_concats;

/// Joins come together in another way only for one part in so many of the peak: a whole that waits for its parts is in the way of others.
const WORTH: u64 = 150;

/// Joins that are looked at one after another: as many as one step can be full of.
const MOST_JOINS: usize = 12;

/// Finds an order for an improved graph in which nothing is computed twice, and lets joined tensors come together in the way that needs least.
pub fn schedule(graph: &Graph, rows: usize, device: &dyn Target) -> Result<ScheduledGraph, GraphError> {
    let plain = in_order(graph, rows, device)?;
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Concat(_))) {
        return Ok(plain.sequenced);
    }
    let worth_it = Bytes(plain.peak.0 - plain.peak.0 / WORTH);
    let mut best = plain.clone();
    // Parts are put where most is held while something is joined, one join after another, while that is less.
    let mut put: Vec<ValueId> = Vec::new();
    while put.len() < MOST_JOINS
        && let Some(value) = best.fullest.and_then(|id| copied(graph, &best.sequenced.graph, id))
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

/// A graph with puts in an order of its own, with parts made in their places unless that holds more.
fn least(joined: &Graph, rows: usize, device: &dyn Target) -> Result<InOrder, GraphError> {
    let put = in_order(joined, rows, device)?;
    let Some(concats_fused) = fuse_slice_writes(joined, device) else { return Ok(put) };
    let made = in_order(&concats_fused, rows, device)?;
    Ok(if made.peak <= put.peak { made } else { put })
}

/// What holds no more than `best` and copies less: also joins that are not where most is held have their parts made in their places. A whole that waits for its
/// parts is in the way of others, so this is taken only if the arena is packed as tightly without much of a search.
fn without_copies(graph: &Graph, best: &InOrder, rows: usize, device: &dyn Target) -> Result<Option<InOrder>, GraphError> {
    let known = &best.sequenced.graph;
    if known.joining() == ConcatStrategy::SharedBuffer {
        return Ok(None);
    }
    let counts = graph.use_counts();
    let made_there = |value: &ValueId| has_parts_made_there(graph, graph.producer(*value), &counts, device);
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

/// Whether buffers are soon placed with hardly a gap between them.
fn packs(found: &InOrder, rows: usize, device: &dyn Target) -> bool {
    let ScheduledGraph { graph, order, .. } = &found.sequenced;
    let alignment = device.capabilities().alignment;
    let workspace = |node: NodeId| device.workspace(graph, graph.node(node), rows).align_up(alignment.0);
    let live = liveness::buffers(graph, order, rows, alignment, &workspace);
    let blocks: Vec<Block> = live.buffers.iter().map(|b| Block { first: b.first, last: b.last, size: b.size }).collect();
    let near = nearly(found.peak);
    solve(&blocks, Goal::Within(near), Effort::default()).layout.size <= near
}
