//! Epilogues: an expression that follows a product or convolution is applied while the result is still in cache.

use super::rewrite::{Rewrite, rewrite};
use crate::DType;
use crate::expr::Expr;
use crate::graph::{Graph, ValueId};
use crate::op::Op;
use crate::ops::{Conv2d, MatMul};

/// Writes expressions into the product or convolution they follow, where nobody else reads that.
pub fn fuse_epilogues(old: &Graph) -> Graph {
    let uses = old.use_counts();
    rewrite(old, |new, node, inputs| {
        let Op::Pointwise(op) = &node.op else { return Rewrite::Keep };
        if op.dtypes != [DType::F32] || op.expr.is_positional() {
            return Rewrite::Keep;
        }
        let host = (0..inputs.len()).find(|i| {
            let producer = new.producer(inputs[*i]);
            let open = match &producer.op {
                Op::MatMul(host) => host.epilogue.is_none(),
                Op::Conv2d(host) => host.epilogue.is_none(),
                _ => false,
            };
            open && uses[node.inputs[*i].index()] == 1 && *new.shape(inputs[*i]) == op.shape && producer.phase == node.phase
        });
        let Some(host) = host else { return Rewrite::Keep };
        let rest: Vec<ValueId> = inputs.iter().copied().filter(|input| *input != inputs[host]).collect();
        let epilogue = Some(Expr::build_many(|e| {
            op.expr.inline(e, &mut |i| match rest.iter().position(|value| *value == inputs[i as usize]) {
                Some(place) => e.input(place as u16 + 1),
                None => e.input(0),
            })
        }));
        let producer = new.producer(inputs[host]);
        let inputs = [&producer.inputs[..], &rest].concat();
        match &producer.op {
            Op::MatMul(host) => Rewrite::With(Op::MatMul(MatMul { epilogue, ..host.clone() }), inputs),
            Op::Conv2d(host) => Rewrite::With(Op::Conv2d(Conv2d { epilogue, ..host.clone() }), inputs),
            _ => unreachable!("only these two were looked for"),
        }
    })
}
