//! Prefetch: moves copies away from the steps that wait for them, so that they overlap with computation where the arena
//! has space.

use super::super::{Plan, Program, ScheduledGraph, nearly_tight, placed};
use super::Overlap;
use crate::Bytes;
use crate::ir::graph::{GraphError, NodeId, ValueId};
use crate::ir::op::Op;
use crate::plan::{CopyRate, CostModel, Target};
use std::collections::HashMap;

/// Lead times to try, as multiples of a copy's own duration.
const SHARES: [f64; 4] = [4.0, 2.0, 1.0, 0.5];

/// The plan with loads moved earlier and stores later, where the arena stays within `limit` and the plan becomes
/// faster.
pub fn ahead(plan: &Plan, device: &dyn Target, limit: Bytes, cost_model: &dyn CostModel, rate: CopyRate) -> Result<Plan, GraphError> {
    let mut plan = plan.clone();
    let predicted = |program: &Program, rows: usize| Overlap::of(program, rows, 0).seconds(program, rows, cost_model, rate);
    for program in plan.programs.iter_mut().filter(|program| program.copied(plan.rows) > Bytes::ZERO) {
        let start = (program.order.clone(), program.offloaded.clone());
        let mut best = predicted(program, plan.rows);
        for share in SHARES {
            let order = moved(program, &start.0, plan.rows, cost_model, &|bytes| share * bytes as f64 / rate.bytes_per_s);
            let sequenced =
                ScheduledGraph { graph: program.graph.clone(), order, recomputation: program.recomputation.clone(), limit: Some(limit) };
            let found = placed(program.role, sequenced, plan.rows, device, &plan.states, &nearly_tight)?;
            let seconds = predicted(&found, plan.rows);
            if found.arena <= limit && seconds < best {
                best = seconds;
                *program = Program { offloaded: start.1.clone(), ..found };
            }
        }
    }
    plan.arena = plan.programs.iter().map(|program| program.arena).max().unwrap_or_default();
    plan.lower_bound = plan.programs.iter().map(|program| program.lower_bound).max().unwrap_or_default();
    plan.backing = super::super::backing(&plan.states, &plan.programs, plan.alignment);
    Ok(plan)
}

/// The order with every load earlier and every store later by the time that `ahead` assigns to its bytes.
fn moved(program: &Program, order: &[NodeId], rows: usize, cost_model: &dyn CostModel, ahead: &dyn Fn(u64) -> f64) -> Vec<NodeId> {
    let graph = &program.graph;
    let seconds: Vec<f64> = order
        .iter()
        .map(|id| match graph.node(*id).op {
            Op::Load(_) | Op::Store(_) => 0.0,
            _ => cost_model.seconds(graph, graph.node(*id), rows),
        })
        .collect();
    let bytes = |value: ValueId| graph.ty(value).bytes(rows).0;
    let at: HashMap<NodeId, usize> = order.iter().enumerate().map(|(i, id)| (*id, i)).collect();
    let step_of = |value: ValueId| at.get(&graph.values[value.index()].producer).copied();
    let root = |value: ValueId| super::root(graph, value);
    // The first step that loads each stored value.
    let mut loaded_at: HashMap<ValueId, usize> = HashMap::new();
    for (i, id) in order.iter().enumerate().filter(|(_, id)| matches!(graph.node(**id).op, Op::Load(_))) {
        loaded_at.entry(root(graph.node(*id).inputs[0])).or_insert(i);
    }
    // A store and its load each get half of the steps between them.
    let between = |stored: usize, loaded: usize| stored + 1 + (loaded - stored - 1) / 2;
    // Sort keys: loads go before a step, stores after one. At equal positions, nodes that free memory go first.
    let mut keyed: Vec<((usize, u8, usize), NodeId)> = order
        .iter()
        .enumerate()
        .map(|(i, id)| {
            let node = graph.node(*id);
            let key = match node.op {
                Op::Load(_) => {
                    let source = root(node.inputs[0]);
                    let earliest = step_of(source).map_or(0, |stored| between(stored, loaded_at[&source]));
                    let (mut place, mut gained, wanted) = (i, 0.0, ahead(bytes(node.outputs[0])));
                    while place > earliest && gained < wanted {
                        place -= 1;
                        gained += seconds[place];
                    }
                    (place, 1, i)
                }
                Op::Store(_) => {
                    let latest = loaded_at.get(&node.outputs[0]).map_or(order.len(), |loaded| between(i, *loaded));
                    let (mut place, mut gained, wanted) = (i, 0.0, ahead(bytes(node.outputs[0])));
                    while place + 1 < latest && gained < wanted {
                        place += 1;
                        gained += seconds[place];
                    }
                    (place + 1, 0, i)
                }
                _ => (i, 2, i),
            };
            (key, *id)
        })
        .collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, id)| id).collect()
}
