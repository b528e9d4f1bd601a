//! Masks of gradients are recomputed by their consumers instead of stored.
//!
//! The gradient of an activation is masked (ReLU's) and then read by the sums and by the expression of the preceding
//! normalization's gradient. Those read the normalization's input anyway, from which the mask follows: the masked
//! gradient need not be written and read again.

use super::fuse::{MAX_INPUTS, MAX_TERMS, merge};
use super::rewrite::{Rewrite, rewrite};
use crate::base::expr::{Expr, Term, TermId};
use crate::ir::graph::{Graph, Node, NodeId, Phase, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Pointwise, Reduce};
use std::collections::HashSet;

/// Larger masks cost more than the memory traffic they save.
const MAX_MASK_TERMS: usize = 24;

/// Inlines masks into all of their consumers, where these then move fewer bytes. No result changes.
pub fn inline_masks(old: &Graph) -> Graph {
    let chosen = chosen(old);
    rewrite(old, |new, node, inputs| {
        let Some((expr, _)) = expression(node) else { return Rewrite::Keep };
        let marked: Vec<bool> = node.inputs.iter().enumerate().map(|(i, input)| expr.reads(i) && chosen.contains(input)).collect();
        if !marked.contains(&true) {
            return Rewrite::Keep;
        }
        let (expr, mut reads) = merge(new, expr, inputs, &marked);
        match &node.op {
            Op::Pointwise(op) => Rewrite::With(Op::Pointwise(Pointwise { expr, ..op.clone() }), reads),
            Op::Reduce(op) => {
                reads.extend(inputs.last().filter(|_| op.onto));
                Rewrite::With(Op::Reduce(Reduce { expr, ..op.clone() }), reads)
            }
            _ => unreachable!("only these have expressions"),
        }
    })
}

fn expression(node: &Node) -> Option<(&Expr, &crate::Shape)> {
    match &node.op {
        Op::Pointwise(op) => Some((&op.expr, &op.shape)),
        Op::Reduce(op) => Some((&op.expr, &op.shape)),
        _ => None,
    }
}

/// The masked gradients to inline.
fn chosen(graph: &Graph) -> HashSet<ValueId> {
    let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.values.len()];
    for (id, node) in graph.nodes() {
        node.inputs.iter().for_each(|input| readers[input.index()].push(id));
    }
    let mut kept: HashSet<ValueId> = graph.outputs.iter().map(|(_, value)| *value).collect();
    kept.extend(graph.updates.iter().map(|(_, value)| *value));
    let pays = |node: &Node| {
        let [value] = node.outputs[..] else { return None };
        let is = !kept.contains(&value) && saves_memory_traffic(graph, node, &readers[value.index()], &readers);
        is.then_some(value)
    };
    graph.nodes().filter_map(|(_, node)| pays(node)).collect()
}

/// Whether consumers that recompute the mask move fewer bytes, and keep nothing alive but the gradient instead of the
/// masked gradient.
fn saves_memory_traffic(graph: &Graph, node: &Node, consumers: &[NodeId], readers: &[Vec<NodeId>]) -> bool {
    let (Op::Pointwise(op), value) = (&node.op, node.outputs[0]) else { return false };
    let Some(masked) = masked_input(op).filter(|_| node.phase == Phase::Backward && consumers.len() > 1) else { return false };
    let gradient = node.inputs[masked];
    // A product applies the mask to its results, and only it reads a gradient of the same type.
    let from_product = matches!(graph.producer(gradient).op, Op::MatMul(_) | Op::Conv2d(_)) && readers[gradient.index()].len() == 1;
    if from_product || graph.ty(gradient).dtype != graph.ty(value).dtype {
        return false;
    }
    let full: Vec<ValueId> = node.inputs.iter().copied().filter(|input| *graph.shape(*input) == op.shape).collect();
    let size = |value: &ValueId| graph.ty(*value).dtype.size();
    let before = full.iter().map(size).sum::<usize>() + size(&value) * (1 + consumers.len());
    let mut after = 0;
    for id in consumers {
        let consumer = graph.node(*id);
        let Some((expr, shape)) = expression(consumer) else { return false };
        let reads = (0..expr.arity()).filter(|i| consumer.inputs[*i] == value && expr.reads(*i)).count();
        let all = consumer.inputs.iter().filter(|input| **input == value).count();
        let inputs: HashSet<ValueId> = consumer.inputs.iter().chain(&node.inputs).copied().collect();
        let terms = expr.terms().len() + op.expr.terms().len();
        if *shape != op.shape || reads != all || terms > MAX_TERMS || inputs.len() > MAX_INPUTS + 1 {
            return false;
        }
        after += full.iter().filter(|input| !consumer.inputs.contains(input)).map(size).sum::<usize>();
    }
    let read_anyway = |input: &ValueId| consumers.iter().any(|id| graph.node(*id).inputs.contains(input));
    after < before && full.iter().all(|input| *input == gradient || read_anyway(input))
}

/// The only input that an expression passes on or replaces by zero.
fn masked_input(op: &Pointwise) -> Option<usize> {
    let ([root], terms) = (op.expr.roots(), op.expr.terms()) else { return None };
    let is_zero = |id: TermId| terms[id as usize] == Term::Const(0.0f32.to_bits());
    let (mut at, mut selected) = (*root, false);
    while let Term::Select(_, inside, zero) = terms[at as usize] {
        if !is_zero(zero) {
            return None;
        }
        (at, selected) = (inside, true);
    }
    let Term::Input(masked) = terms[at as usize] else { return None };
    (selected && terms.len() <= MAX_MASK_TERMS && !op.expr.is_positional()).then_some(usize::from(masked))
}
