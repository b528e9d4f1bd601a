//! Constant folding, no-op removal and common subexpression elimination in one traversal.

use super::rewrite::{Rewrite, rewrite};
use crate::DType;
use crate::base::expr::Expr;
use crate::ir::graph::{Graph, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Pointwise, Reduce, Reshape, Transpose};
use std::collections::HashMap;

/// Folds constants and broadcasts into their consumers, removes no-ops, and merges common subexpressions.
pub fn simplify(old: &Graph) -> Graph {
    let mut seen: HashMap<(Op, Vec<ValueId>), Vec<ValueId>> = HashMap::new();
    // Outputs of the new graph have consecutive ids, so the next node's ids are known before it is appended.
    rewrite(old, |new, node, inputs| {
        if node.op.is_leaf() {
            return Rewrite::Keep;
        }
        let (op, inputs) = match local(new, node, inputs) {
            Rewrite::Keep => (node.op.clone(), inputs.to_vec()),
            Rewrite::With(op, inputs) => (op, inputs),
            replace => return replace,
        };
        let key = (op, inputs);
        if let Some(known) = seen.get(&key) {
            return Rewrite::Replace(known.clone());
        }
        let first = new.values.len() as u32;
        seen.insert(key.clone(), (first..first + node.outputs.len() as u32).map(ValueId).collect());
        Rewrite::With(key.0, key.1)
    })
}

/// Local rewrite of one node, from the node and the producers of its inputs.
fn local(new: &Graph, node: &Node, inputs: &[ValueId]) -> Rewrite {
    match &node.op {
        Op::Pointwise(op) => {
            let (expr, reads) = absorb(new, &op.expr, inputs);
            if let ([x], true, [dtype]) = (&reads[..], expr.is_identity(), &op.dtypes[..])
                && *new.shape(*x) == op.shape
                && new.ty(*x).dtype == *dtype
            {
                return Rewrite::Replace(vec![*x]);
            }
            Rewrite::With(Op::Pointwise(Pointwise { expr, ..op.clone() }), reads)
        }
        Op::Reduce(op) => {
            let (expr, mut reads) = absorb(new, &op.expr, inputs);
            reads.extend(inputs.last().filter(|_| op.onto));
            Rewrite::With(Op::Reduce(Reduce { expr, ..op.clone() }), reads)
        }
        Op::Reshape(op) => {
            let source = match &new.producer(inputs[0]).op {
                Op::Reshape(_) => new.producer(inputs[0]).inputs[0],
                _ => inputs[0],
            };
            match new.producer(source).op {
                // A splat under another shape is a splat.
                Op::Pointwise(ref p) if p.expr.as_constant().is_some() => {
                    let op = Pointwise { shape: op.shape.clone(), ..p.clone() };
                    Rewrite::With(Op::Pointwise(op), vec![])
                }
                _ if *new.shape(source) == op.shape => Rewrite::Replace(vec![source]),
                _ => Rewrite::With(Op::Reshape(Reshape { shape: op.shape.clone() }), vec![source]),
            }
        }
        Op::Transpose(op) => {
            let (mut order, mut source) = (op.order.clone(), inputs[0]);
            if let Op::Transpose(inner) = &new.producer(source).op {
                order = order.iter().map(|axis| inner.order[*axis]).collect();
                source = new.producer(source).inputs[0];
            }
            if order.is_sorted() { Rewrite::Replace(vec![source]) } else { Rewrite::With(Op::Transpose(Transpose { order }), vec![source]) }
        }
        _ => Rewrite::Keep,
    }
}

/// Replaces constant inputs by the number, and broadcast or widened inputs by their source.
fn absorb(new: &Graph, expr: &Expr, inputs: &[ValueId]) -> (Expr, Vec<ValueId>) {
    let mut reads: Vec<ValueId> = Vec::new();
    let expr = Expr::build_many(|e| {
        expr.inline(e, &mut |i| {
            let value = inputs[i as usize];
            let source = match &new.producer(value).op {
                Op::Pointwise(p) if p.dtypes.len() == 1 => match p.expr.as_constant() {
                    Some(number) if p.dtypes[0].stored(f64::from(number)) == f64::from(number) => return e.constant(number),
                    None if p.expr.is_identity() && is_same_seen_wider(new, value) => new.producer(value).inputs[0],
                    _ => value,
                },
                _ => value,
            };
            let place = reads.iter().position(|known| *known == source).unwrap_or_else(|| {
                reads.push(source);
                reads.len() - 1
            });
            e.input(place as u16)
        })
    });
    (expr, reads)
}

/// Whether a value only broadcasts or widens another one, so that reading the other one gives the same numbers.
fn is_same_seen_wider(new: &Graph, value: ValueId) -> bool {
    let (from, to) = (new.ty(new.producer(value).inputs[0]).dtype, new.ty(value).dtype);
    from == to || (to == DType::F32 && from.size() <= to.size())
}
