//! Op splitting: the largest layers computed in slices of their rows, where the run does not fit otherwise, or where
//! that is faster.

use super::alternatives::graphs;
use super::{Request, RunPlan};
use crate::error::Result;
use plimsoll_core::Bytes;
use plimsoll_core::graph::Graph;
use plimsoll_core::op::Op;
use plimsoll_core::plan::{layout, sketch, split};
use plimsoll_core::step::Role;
use std::borrow::Cow;

/// More slices than this save little.
const MAX_SLICES: usize = 16;

/// Layers that are computed in slices of their rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitLayers {
    /// The layers.
    pub layers: Vec<String>,
    /// Into how many slices.
    pub pieces: usize,
    /// How much smaller the arena becomes by that alone.
    pub saved: Bytes,
}

/// The graphs that are planned: the model's, or those with their largest layers split. Predictions are returned whole,
/// so that splitting may save nothing there: it is used only where the arena becomes smaller.
pub(super) fn planned_graphs<'a>(request: &'a Request<'_>, micro_batch: usize) -> Result<Cow<'a, [(Role, Graph)]>> {
    let graphs = graphs(request, micro_batch)?;
    if !request.split {
        return Ok(Cow::Borrowed(graphs));
    }
    let arena = |role: Role, graph: &Graph| sketch(&[(role, graph.clone())], micro_batch, request.device()).map(|plan| plan.arena);
    let in_pieces = |(role, graph): &(Role, Graph)| -> Result<Option<Graph>> {
        let pieces = split::pieces(graph, micro_batch, request.device(), MAX_SLICES);
        let cut = pieces.and_then(|pieces| split::split(graph, micro_batch, request.device(), pieces));
        Ok(match cut {
            Some(cut) if *role == Role::Predict && arena(*role, &cut)? >= arena(*role, graph)? => None,
            cut => cut,
        })
    };
    let cut = graphs.iter().map(in_pieces).collect::<Result<Vec<Option<Graph>>>>()?;
    if cut.iter().all(Option::is_none) {
        return Ok(Cow::Borrowed(graphs));
    }
    Ok(Cow::Owned(cut.into_iter().zip(graphs).map(|(cut, (role, graph))| (*role, cut.unwrap_or_else(|| graph.clone()))).collect()))
}

/// Adds the split and its savings to the plan.
pub(super) fn described(request: &Request<'_>, mut plan: RunPlan) -> Result<RunPlan> {
    // The training step comes first; evaluation may be split finer.
    let Some(graph) = plan.memory.programs.iter().map(|program| &program.graph).find(|graph| graph.pieces() > 1) else {
        return Ok(plan);
    };
    let request = &Request { split: true, ..request.clone() };
    let whole = layout(graphs(request, plan.micro_batch)?, plan.micro_batch, request.device())?;
    let parts = layout(&planned_graphs(request, plan.micro_batch)?, plan.micro_batch, request.device())?;
    let (mut layers, pieces): (Vec<String>, usize) = (Vec::new(), graph.pieces());
    for (_, node) in graph.nodes() {
        let cuts = match &node.op {
            Op::Slice(op) => graph.shape(node.inputs[0]).dims()[op.axis].is_batch(),
            _ => graph.effective_op(node).result(graph).shape.dims().first().is_some_and(|dim| dim.part().is_some()),
        };
        if cuts && !layers.iter().any(|known| node.scope == **known) {
            layers.push(node.scope.to_string());
        }
    }
    plan.split = Some(SplitLayers { layers, pieces, saved: whole.arena.saturating_sub(parts.arena) });
    Ok(plan)
}
