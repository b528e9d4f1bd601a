//! The heaviest layers in pieces of their rows: planned beside the whole ones where those do not fit as they are, and taken if that is faster.

use super::choose::{Lines, graphs, infeasible, plan_as_asked, run_plan, smallest, ways};
use super::{Request, RunPlan};
use crate::allow::Permission;
use crate::error::{Error, Result};
use plimsoll_core::Bytes;
use plimsoll_core::graph::Graph;
use plimsoll_core::op::Op;
use plimsoll_core::plan::{layout, split};
use plimsoll_core::step::Role;
use std::borrow::Cow;
use std::time::Instant;

/// More pieces than this save little.
const MOST_PIECES: usize = 16;

/// Layers that are computed a piece of their rows after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPieces {
    /// The layers.
    pub layers: Vec<String>,
    /// In how many pieces.
    pub pieces: usize,
    /// How much smaller the arena of everything kept becomes by that alone.
    pub saved: Bytes,
}

/// Finds the fastest plan that stays under the lines.
pub(in crate::trainer) fn plan_run(request: &Request<'_>) -> Result<RunPlan> {
    let start = Instant::now();
    let plain = plan_as_asked(request)?;
    let fits_as_it_is = plain.as_ref().is_some_and(|plan| plan.used.is_empty());
    let request = Request { in_pieces: request.allow.has(Permission::Split) && !fits_as_it_is, ..request.clone() };
    let cut = match planned_graphs(&request, request.batch)? {
        Cow::Owned(_) => plan_as_asked(&request)?.map(|plan| described(&request, plan)).transpose()?,
        // There is nothing to cut, or no reason to.
        Cow::Borrowed(_) => None,
    };
    let fastest = match (plain, cut) {
        (Some(plain), Some(cut)) => Some(if cut.predicted_s < plain.predicted_s { cut } else { plain }),
        (plain, cut) => plain.or(cut),
    };
    if let Some(fastest) = fastest {
        return Ok(fastest);
    }
    // What would be said to be the least is taken if it is enough.
    let lines = Lines::of(&request);
    let least = smallest(&request, lines, request.allow, &ways(&request, request.allow))?;
    if least.fits(lines) {
        return described(&request, run_plan(&request, lines, least, start)?);
    }
    Err(Error::Infeasible(Box::new(infeasible(&request, lines, least, start)?)))
}

/// The graphs that are planned: the model's, or those with their heaviest layers in pieces. What only predicts hands its scores over whole.
pub(super) fn planned_graphs<'a>(request: &Request<'a>, micro_batch: usize) -> Result<Cow<'a, [(Role, Graph)]>> {
    let graphs = graphs(request, micro_batch)?;
    if !request.in_pieces {
        return Ok(Cow::Borrowed(graphs));
    }
    let in_pieces = |(role, graph): &(Role, Graph)| {
        let pieces = if *role == Role::Predict { None } else { split::pieces(graph, micro_batch, request.device, MOST_PIECES) };
        pieces.and_then(|pieces| split::split(graph, micro_batch, request.device, pieces))
    };
    let cut: Vec<Option<Graph>> = graphs.iter().map(in_pieces).collect();
    if cut.iter().all(Option::is_none) {
        return Ok(Cow::Borrowed(graphs));
    }
    Ok(Cow::Owned(cut.into_iter().zip(graphs).map(|(cut, (role, graph))| (*role, cut.unwrap_or_else(|| graph.clone()))).collect()))
}

/// Says what was cut, and what that saves where nothing else is done.
fn described(request: &Request<'_>, mut plan: RunPlan) -> Result<RunPlan> {
    let whole = layout(graphs(request, plan.micro_batch)?, plan.micro_batch, request.device)?;
    let parts = layout(&planned_graphs(request, plan.micro_batch)?, plan.micro_batch, request.device)?;
    // The step comes first; what only measures may be cut finer.
    let Some(graph) = plan.memory.programs.iter().map(|program| &program.graph).find(|graph| graph.pieces() > 1) else {
        return Ok(plan);
    };
    let (mut layers, pieces): (Vec<String>, usize) = (Vec::new(), graph.pieces());
    for (_, node) in graph.nodes() {
        let cuts = matches!(&node.op, Op::Slice(op) if graph.shape(node.inputs[0]).dims()[op.axis].is_batch());
        if cuts && !layers.contains(&node.scope) {
            layers.push(node.scope.clone());
        }
    }
    plan.split = Some(InPieces { layers, pieces, saved: whole.arena.saturating_sub(parts.arena) });
    Ok(plan)
}
