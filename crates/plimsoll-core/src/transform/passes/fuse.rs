//! Pointwise fusion: chains of expressions become one, without intermediate tensors. Intermediates that are no longer
//! stored in 16 bits are no longer rounded either.

use super::masks::{Mask, clamp_looks_at};
use super::rewrite::{Rewrite, rewrite};
use crate::DType;
use crate::base::expr::Expr;
use crate::base::shape::Shape;
use crate::ir::graph::{Graph, Node, NodeId, Phase, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Pointwise, Reduce};

/// A larger expression exceeds the registers of a tile; more inputs make it memory-bound.
pub(super) const MAX_TERMS: usize = 96;
pub(super) const MAX_INPUTS: usize = 12;

/// Fuses expressions with a single consumer into that consumer.
pub fn fuse_pointwise(old: &Graph) -> Graph {
    let uses = old.use_counts();
    rewrite(old, |new, node, inputs| {
        let (expr, shape) = match &node.op {
            Op::Pointwise(op) => (&op.expr, &op.shape),
            Op::Reduce(op) => (&op.expr, &op.shape),
            _ => return Rewrite::Keep,
        };
        let fusible = |i: usize| uses[node.inputs[i].index()] == 1 && can_fuse(new, node, inputs[i], shape);
        let (mut chosen, mut best) = (vec![false; inputs.len()], None);
        for i in (0..expr.arity()).filter(|i| fusible(*i)) {
            chosen[i] = true;
            let (fused, reads) = merge(new, expr, inputs, &chosen);
            if fused.terms().len() <= MAX_TERMS && reads.len() <= MAX_INPUTS {
                best = Some((fused, reads));
            } else {
                chosen[i] = false;
            }
        }
        match (best, &node.op) {
            (Some((expr, reads)), Op::Pointwise(op)) => Rewrite::With(Op::Pointwise(Pointwise { expr, ..op.clone() }), reads),
            (Some((expr, mut reads)), Op::Reduce(op)) => {
                reads.extend(inputs.last().filter(|_| op.onto));
                Rewrite::With(Op::Reduce(Reduce { expr, ..op.clone() }), reads)
            }
            _ => Rewrite::Keep,
        }
    })
}

/// Computes masks from values that the next gradient reads anyway.
///
/// A gradient with ReLU's mask feeds the gradient of the preceding normalization, which reads the normalization's
/// input. The same arithmetic yields the mask from that input; the normalized activation then need not stay live or be
/// recomputed.
pub fn read_what_is_kept(old: &Graph) -> Graph {
    let mut read_by: Vec<Vec<NodeId>> = vec![Vec::new(); old.values.len()];
    for (id, node) in old.nodes() {
        node.inputs.iter().for_each(|input| read_by[input.index()].push(id));
    }
    rewrite(old, |new, node, inputs| {
        let Op::Pointwise(op) = &node.op else { return Rewrite::Keep };
        // Masks only: an equality comparison must read the stored number.
        let Some(looks_at) = looks_at(op).filter(|_| node.phase == Phase::Backward) else { return Rewrite::Keep };
        let kept_anyway = |value: ValueId| {
            let full = |value: &ValueId| *old.shape(*value) == op.shape;
            let producer = old.producer(value);
            let Op::Pointwise(p) = &producer.op else { return false };
            let mut sources = producer.inputs.iter().filter(|input| full(input));
            let (Some(source), None) = (sources.next(), sources.next()) else { return false };
            // Where rounding to 16 bits would change the comparison, the unrounded number is correct.
            let real = |dtype: DType| dtype == DType::F32 || dtype.is_half();
            let same = p.dtypes.len() == 1 && real(p.dtypes[0]) && real(old.ty(*source).dtype) && !p.expr.is_positional();
            let reads_source = |reader: &NodeId| old.node(*reader).inputs.contains(source);
            same && p.shape == op.shape
                && producer.phase == Phase::Forward
                && !node.inputs.contains(source)
                && node.outputs.iter().any(|output| read_by[output.index()].iter().any(reads_source))
        };
        let chosen: Vec<bool> = (0..inputs.len()).map(|i| i == looks_at as usize && kept_anyway(node.inputs[i])).collect();
        if !chosen.contains(&true) {
            return Rewrite::Keep;
        }
        let (expr, reads) = merge(new, &op.expr, inputs, &chosen);
        if expr.terms().len() > MAX_TERMS || reads.len() > MAX_INPUTS {
            return Rewrite::Keep;
        }
        Rewrite::With(Op::Pointwise(Pointwise { expr, ..op.clone() }), reads)
    })
}

/// The input that masks compare: ReLU's, or a clamp's with its two bounds.
fn looks_at(op: &Pointwise) -> Option<u16> {
    Mask::of(op).map(|mask| mask.looks_at).or_else(|| clamp_looks_at(op))
}

fn can_fuse(new: &Graph, reader: &Node, value: ValueId, shape: &Shape) -> bool {
    let producer = new.producer(value);
    let Op::Pointwise(p) = &producer.op else { return false };
    let [dtype] = p.dtypes[..] else { return false };
    if p.shape != *shape || !dtype.is_float() {
        return false;
    }
    // Fusing a forward expression into a backward consumer retains its inputs instead of its result; only done if that
    // is not more.
    let full: usize = producer.inputs.iter().filter(|input| new.shape(**input) == shape).map(|input| new.ty(*input).dtype.size()).sum();
    full <= dtype.size() || producer.phase == reader.phase || reader.phase == Phase::Update
}

pub(super) fn merge(new: &Graph, expr: &Expr, inputs: &[ValueId], chosen: &[bool]) -> (Expr, Vec<ValueId>) {
    let mut reads: Vec<ValueId> = Vec::new();
    let mut place = |value: ValueId| {
        let known = reads.iter().position(|known| *known == value);
        known.unwrap_or_else(|| {
            reads.push(value);
            reads.len() - 1
        }) as u16
    };
    let fused = Expr::build_many(|e| {
        expr.inline(e, &mut |i| {
            let value = inputs[i as usize];
            match &new.producer(value).op {
                Op::Pointwise(p) if chosen[i as usize] => {
                    let sources = &new.producer(value).inputs;
                    p.expr.inline(e, &mut |j| e.input(place(sources[j as usize])))[0]
                }
                _ => e.input(place(value)),
            }
        })
    });
    (fused, reads)
}
