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
use std::ops::Range;

/// How many steps later the second sum may be planned. Recomputed operands of the second one come between.
const WINDOW: usize = 6;

/// Two sums that run together, by the steps at which they are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub first: usize,
    pub second: usize,
    /// Whether both run where the first one is planned, or else where the second one is.
    pub early: bool,
}

impl Pair {
    /// The step at which both run.
    pub fn at(self) -> usize {
        if self.early { self.first } else { self.second }
    }

    /// The step at which nothing runs.
    pub fn skipped(self) -> usize {
        if self.early { self.second } else { self.first }
    }
}

/// The sums that run together.
pub(super) fn pairs(lowering: &Lowering<'_>) -> Vec<Pair> {
    let (graph, order) = (&lowering.program.graph, &lowering.program.order);
    // Copies to and from the backing store run beside the steps, and read memory that is not free yet.
    if order.iter().any(|id| matches!(graph.node(*id).op, Op::Store(_) | Op::Load(_))) {
        return Vec::new();
    }
    let mut pairs = Vec::new();
    let mut taken = vec![false; order.len()];
    for first in 0..order.len() {
        if taken[first] || sum(graph.node(order[first])).is_none() {
            continue;
        }
        let later = (first + 1..order.len().min(first + 1 + WINDOW)).filter(|second| !taken[*second]);
        let found = later.into_iter().find_map(|second| fit(lowering, first, second));
        if let Some(pair) = found {
            (taken[pair.first], taken[pair.second]) = (true, true);
            pairs.push(pair);
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

/// The sum of a later step with that of an earlier one, if they can run together.
fn fit(lowering: &Lowering<'_>, first: usize, second: usize) -> Option<Pair> {
    let (program, rows) = (lowering.program, lowering.rows);
    let graph = &program.graph;
    let at = |step: usize| graph.node(program.order[step]);
    let (a, b) = (at(first), at(second));
    let (own, other) = (sum(a)?, sum(b)?);
    let full = |value: &&ValueId| *graph.shape(**value) == own.shape;
    let shares = a.inputs.iter().filter(full).any(|input| b.inputs.contains(input));
    if own.shape != other.shape || own.axes != other.axes || !shares || lowering.is_guarded(a) || lowering.is_guarded(b) {
        return None;
    }
    let (expr, inputs) = merged(a, b);
    let alike = lowering.with_expr(&own.expr, &own.shape, &a.inputs, &[], |one| {
        lowering.with_expr(&other.expr, &own.shape, &b.inputs, &[], |two| {
            lowering.with_expr(&expr, &own.shape, &inputs, &[], |both| kernels::are_split_alike(&[one, two, both], &own.axes))
        })
    });
    if !alike {
        return None;
    }
    let range = |value: ValueId| match program.places.get(value.0 as usize).copied().flatten() {
        Some(Place::Arena(offset)) => Some(offset.0..offset.0 + graph.ty(value).bytes(rows).0),
        _ => None,
    };
    let apart = |a: &Range<u64>, b: &Range<u64>| a.end <= b.start || b.end <= a.start;
    let scratch = |step: usize| {
        let (offset, _) = program.workspaces[step];
        offset.0..offset.0 + workspace(graph, at(step), rows, lowering.convolutions).0
    };
    // Both at the first step: what the second sum reads exists by then, and its result, which is written earlier than
    // planned, overwrites nothing that is used until its own step.
    let early = || {
        let between = first..second;
        let made = |input: &ValueId| between.clone().any(|step| at(step).outputs.contains(&root(program, *input)));
        let target = range(b.outputs[0])?;
        let used = between.clone().flat_map(|step| {
            let node = at(step);
            node.inputs.iter().chain(&node.outputs).filter_map(|value| range(*value)).chain([scratch(step)]).collect::<Vec<_>>()
        });
        let free = used.chain(b.inputs.iter().filter_map(|value| range(*value))).all(|used| apart(&used, &target));
        (free && !b.inputs.iter().any(made)).then_some(Pair { first, second, early: true })
    };
    // Both at the second step: nobody reads the result of the first sum before, what it reads is still there, and its
    // result and that of the second one are not where the other reads or works.
    let late = || {
        let target = range(a.outputs[0])?;
        let between = first + 1..second;
        let reads = |step: usize| at(step).inputs.iter().any(|input| root(program, *input) == a.outputs[0]);
        let sources: Vec<Range<u64>> = a.inputs.iter().filter_map(|value| range(*value)).collect();
        let writes = between
            .clone()
            .chain([second])
            .flat_map(|step| at(step).outputs.iter().filter_map(|value| range(*value)).chain([scratch(step)]).collect::<Vec<_>>());
        let kept = writes.into_iter().all(|written| sources.iter().all(|source| apart(source, &written)));
        let own_work = [scratch(second)].iter().chain(range(b.outputs[0]).iter()).all(|used| apart(used, &target));
        let distinct = b.inputs.iter().filter_map(|value| range(*value)).all(|source| apart(&source, &target));
        // A state that a node in between updates is not what the sum would have read.
        let resident = |value: &ValueId| !matches!(program.places.get(value.0 as usize).copied().flatten(), Some(Place::Arena(_)));
        let updates = between.clone().any(|step| at(step).outputs.iter().any(resident));
        let stable = !updates || !a.inputs.iter().any(|input| resident(&root(program, *input)));
        let unread = !between.clone().chain([second]).any(reads);
        (kept && own_work && distinct && stable && unread).then_some(Pair { first, second, early: false })
    };
    early().or_else(late)
}
