//! Updates of several small parameters in one launch: biases and normalizations would otherwise take a launch each. The
//! planner puts such updates next to each other ([`Capabilities::groups_updates`](plimsoll_core::plan::Capabilities)).
//! Results have the same bits either way.

use super::lower::{LoweredOp, Lowering};
use super::root;
use crate::kernels;
use plimsoll_core::graph::{Node, Phase};
use plimsoll_core::ops::Pointwise;
use plimsoll_core::plan::Place;
use plimsoll_core::{DType, Op, ValueId};
use std::collections::HashMap;
use std::ops::Range;

/// Larger tensors fill the GPU by themselves, with wider accesses.
const LARGEST: usize = 1 << 20;
/// Maximum addresses of a launch: a kernel takes 4 KiB of them, some for its guard.
const MOST_ADDRESSES: usize = 480;

/// The steps that run together, by the first of them.
pub(super) fn groups(lowering: &Lowering<'_>) -> HashMap<usize, Range<usize>> {
    let (graph, order) = (&lowering.program.graph, &lowering.program.order);
    let mut groups = HashMap::new();
    // Copies to and from the backing store run beside the steps.
    if order.iter().any(|id| matches!(graph.node(*id).op, Op::Store(_) | Op::Load(_))) {
        return groups;
    }
    let mut first = 0;
    while first < order.len() {
        let mut end = first + 1;
        while end < order.len() && joins(lowering, first..end, end) {
            end += 1;
        }
        if end - first > 1 {
            groups.insert(first, first..end);
        }
        first = end;
    }
    groups
}

/// The kernel of the updates of these steps.
pub(super) fn lower(lowering: &Lowering<'_>, steps: &Range<usize>, after_loss: bool) -> LoweredOp {
    let nodes: Vec<&Node> = steps.clone().map(|step| node(lowering, step)).collect();
    let sizes: Vec<usize> = nodes.iter().map(|node| elements(lowering, node.outputs[0])).collect();
    // The code of the largest one is valid for all: it tells whole operands from single numbers.
    let largest = nodes.iter().zip(&sizes).max_by_key(|(_, size)| **size).expect("groups have members").0;
    let op = update(largest).expect("only updates are grouped");
    let outputs = dtypes(lowering, &largest.outputs);
    let kernel = lowering.with_expr(&op.expr, &op.shape, &largest.inputs, &[], |site| kernels::pointwise_group(site, &outputs, &sizes));
    let all = |values: fn(&Node) -> &[ValueId]| nodes.iter().flat_map(|node| values(node).iter().copied()).collect::<Vec<_>>();
    let group = LoweredOp::Kernels(vec![kernel], all(|node| &node.inputs), all(|node| &node.outputs));
    if lowering.is_guarded(largest) { group.guarded(after_loss) } else { group }
}

/// Whether the update of step `next` can run together with those of `steps`.
fn joins(lowering: &Lowering<'_>, steps: Range<usize>, next: usize) -> bool {
    let (a, b) = (node(lowering, steps.start), node(lowering, next));
    let (Some(own), Some(other)) = (update(a), update(b)) else { return false };
    let alike = own.expr == other.expr
        && own.dtypes == other.dtypes
        && dtypes(lowering, &a.inputs) == dtypes(lowering, &b.inputs)
        && (0..own.expr.arity()).all(|i| is_number(lowering, a, i) == is_number(lowering, b, i))
        && lowering.is_guarded(a) == lowering.is_guarded(b);
    let addresses = (steps.len() + 1) * (a.inputs.len() + a.outputs.len());
    alike
        && addresses <= MOST_ADDRESSES
        && [a, b].iter().all(|node| is_small(lowering, node))
        && steps.clone().all(|step| are_independent(lowering, node(lowering, step), b))
}

fn node<'a>(lowering: &Lowering<'a>, step: usize) -> &'a Node {
    lowering.program.graph.node(lowering.program.order[step])
}

fn update(node: &Node) -> Option<&Pointwise> {
    match &node.op {
        Op::Pointwise(op) if node.phase == Phase::Update && !op.expr.is_positional() => Some(op),
        _ => None,
    }
}

fn elements(lowering: &Lowering<'_>, value: ValueId) -> usize {
    lowering.program.graph.shape(value).elements().bind(lowering.rows)
}

fn dtypes(lowering: &Lowering<'_>, values: &[ValueId]) -> Vec<DType> {
    values.iter().map(|value| lowering.program.graph.ty(*value).dtype).collect()
}

/// Whether an input is a number that the host supplies, rather than a tensor of the update's size.
fn is_number(lowering: &Lowering<'_>, node: &Node, input: usize) -> bool {
    matches!(lowering.program.graph.producer(node.inputs[input]).op, Op::Scalar(_))
}

/// Whether an update is small, and all its operands have its size or are numbers.
fn is_small(lowering: &Lowering<'_>, node: &Node) -> bool {
    let size = elements(lowering, node.outputs[0]);
    let fits = |i: usize| is_number(lowering, node, i) || elements(lowering, node.inputs[i]) == size;
    let is_view = |value: &ValueId| matches!(lowering.program.graph.producer(*value).op, Op::ChannelView(_));
    (1..=LARGEST).contains(&size) && (0..node.inputs.len()).all(fits) && !node.inputs.iter().any(is_view)
}

/// Whether two updates read and write different memory, apart from what both only read.
fn are_independent(lowering: &Lowering<'_>, a: &Node, b: &Node) -> bool {
    let (program, rows) = (lowering.program, lowering.rows);
    let range = |value: ValueId| {
        let bytes = program.graph.ty(value).bytes(rows).0;
        match program.places.get(value.0 as usize).copied().flatten()? {
            Place::Arena(offset) => Some((false, offset.0..offset.0 + bytes)),
            Place::Resident(offset) => Some((true, offset.0..offset.0 + bytes)),
            _ => None,
        }
    };
    let overlap = |a: ValueId, b: ValueId| match (range(a), range(b)) {
        (Some((here, a)), Some((there, b))) => here == there && a.start < b.end && b.start < a.end,
        _ => root(program, a) == root(program, b),
    };
    let writes_into = |writer: &Node, other: &Node| {
        let used = other.inputs.iter().chain(&other.outputs);
        used.into_iter().any(|value| writer.outputs.iter().any(|output| overlap(*output, *value)))
    };
    !writes_into(a, b) && !writes_into(b, a)
}
