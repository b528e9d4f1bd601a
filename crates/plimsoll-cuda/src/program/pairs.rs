//! Two sums over the same elements in one pass over memory: the gradients of a normalization's scale and shift, for
//! instance. The second sum then runs where the first one is planned, which is only done where its result overwrites
//! nothing. Results have the same bits either way.

use super::lower::{LoweredOp, Lowering};
use super::{root, workspace};
use crate::kernels;
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::Node;
use plimsoll_core::ops::{Reduce, Reduction};
use plimsoll_core::plan::Place;
use plimsoll_core::{Op, ValueId};
use std::collections::HashMap;
use std::ops::Range;

/// How many steps later the second sum may be planned.
const WINDOW: usize = 3;

/// The steps of sums that run together: the first with the second.
pub(super) fn pairs(lowering: &Lowering<'_>) -> HashMap<usize, usize> {
    let (graph, order) = (&lowering.program.graph, &lowering.program.order);
    // Copies to and from the backing store run beside the steps, and read memory that is not free yet.
    if order.iter().any(|id| matches!(graph.node(*id).op, Op::Store(_) | Op::Load(_))) {
        return HashMap::new();
    }
    let mut pairs = HashMap::new();
    let mut taken = vec![false; order.len()];
    for first in 0..order.len() {
        let later = (first + 1..order.len().min(first + 1 + WINDOW)).find(|second| !taken[*second] && fit(lowering, first, *second));
        if let Some(second) = later.filter(|_| !taken[first]) {
            taken[second] = true;
            pairs.insert(first, second);
        }
    }
    pairs
}

/// The kernels of both sums.
pub(super) fn lower(lowering: &Lowering<'_>, first: &Node, second: &Node) -> LoweredOp {
    let (expr, inputs) = merged(first, second);
    let op = sum(first).expect("only sums are paired");
    let kernels = lowering.with_expr(&expr, &op.shape, &inputs, &[], |site| kernels::reduce(site, &op.axes, Reduction::Sum));
    LoweredOp::Kernels(kernels, inputs, vec![first.outputs[0], second.outputs[0]])
}

fn sum(node: &Node) -> Option<&Reduce> {
    match &node.op {
        Op::Reduce(op) if op.kind == Reduction::Sum && !op.onto => Some(op),
        _ => None,
    }
}

/// Both expressions over the inputs of both.
fn merged(first: &Node, second: &Node) -> (Expr, Vec<ValueId>) {
    let mut inputs: Vec<ValueId> = Vec::new();
    let mut place = |value: ValueId| {
        let known = inputs.iter().position(|known| *known == value);
        known.unwrap_or_else(|| {
            inputs.push(value);
            inputs.len() - 1
        }) as u16
    };
    let expr = Expr::build_many(|e| {
        let parts = [first, second].map(|node| {
            let op = sum(node).expect("only sums are paired");
            op.expr.inline(e, &mut |i| e.input(place(node.inputs[i as usize])))[0]
        });
        parts.to_vec()
    });
    (expr, inputs)
}

/// Whether the sum of a later step can run with that of an earlier one.
fn fit(lowering: &Lowering<'_>, first: usize, second: usize) -> bool {
    let (program, rows) = (lowering.program, lowering.rows);
    let graph = &program.graph;
    let at = |step: usize| graph.node(program.order[step]);
    let (a, b) = (at(first), at(second));
    let (Some(own), Some(other)) = (sum(a), sum(b)) else { return false };
    let full = |value: &&ValueId| *graph.shape(**value) == own.shape;
    let shares = a.inputs.iter().filter(full).any(|input| b.inputs.contains(input));
    if own.shape != other.shape || own.axes != other.axes || !shares || lowering.is_guarded(a) || lowering.is_guarded(b) {
        return false;
    }
    // What the second sum reads exists before the first one.
    let between = first..second;
    let made = |input: &ValueId| between.clone().any(|step| at(step).outputs.contains(&root(program, *input)));
    if b.inputs.iter().any(made) {
        return false;
    }
    let (expr, inputs) = merged(a, b);
    let alike = lowering.with_expr(&own.expr, &own.shape, &a.inputs, &[], |one| {
        lowering.with_expr(&other.expr, &own.shape, &b.inputs, &[], |two| {
            lowering.with_expr(&expr, &own.shape, &inputs, &[], |both| kernels::are_split_alike(&[one, two, both], &own.axes))
        })
    });
    // The result is written earlier than planned: nothing that is used until then may be in its place.
    let range = |value: ValueId| match program.places.get(value.0 as usize).copied().flatten() {
        Some(Place::Arena(offset)) => Some(offset.0..offset.0 + graph.ty(value).bytes(rows).0),
        _ => None,
    };
    let Some(target) = range(b.outputs[0]) else { return false };
    let apart = |range: Range<u64>| range.end <= target.start || target.end <= range.start;
    let used = between.flat_map(|step| {
        let node = at(step);
        let (offset, _) = program.workspaces[step];
        let scratch = offset.0..offset.0 + workspace(graph, node, rows, lowering.convolutions).0;
        node.inputs.iter().chain(&node.outputs).filter_map(|value| range(*value)).chain([scratch]).collect::<Vec<_>>()
    });
    alike && used.chain(b.inputs.iter().filter_map(|value| range(*value))).all(apart)
}
