//! Epilogue fusion: an expression after a matrix product or convolution is applied in single precision while the result
//! is in cache; only its output is stored, in its own type. A cast becomes the product's element type.

use super::rewrite::{Rewrite, rewrite};
use crate::DType;
use crate::base::expr::Expr;
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::{Graph, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Conv2d, MatMul, Pointwise};

/// Fuses expressions into the matrix product or convolution they follow, if it has no other consumer. A view in between
/// is allowed if all inputs of the expression can be viewed in the product's shape.
pub fn fuse_epilogues(old: &Graph) -> Graph {
    let uses = old.use_counts();
    let single = |value: ValueId| uses[value.index()] == 1;
    rewrite(old, |new, node, inputs| {
        let Op::Pointwise(op) = &node.op else { return Rewrite::Keep };
        let [dtype] = op.dtypes[..] else { return Rewrite::Keep };
        if !dtype.is_float() || op.expr.is_positional() {
            return Rewrite::Keep;
        }
        // `old` and `new` have the same node order, so use counts of `old` apply.
        let host = (0..inputs.len()).find_map(|i| {
            let (value, source) = (node.inputs[i], old.producer(node.inputs[i]));
            match &source.op {
                _ if !single(value) => None,
                Op::Reshape(_) if single(source.inputs[0]) && sees_through(new, op, inputs) => {
                    is_open(new, node, new.producer(inputs[i]).inputs.first().copied()?).map(|host| (i, host))
                }
                _ if *new.shape(inputs[i]) == op.shape => is_open(new, node, inputs[i]).map(|host| (i, host)),
                _ => None,
            }
        });
        match host {
            Some((place, host)) => fuse(new, node, (op, dtype), inputs, place, host),
            None => Rewrite::Keep,
        }
    })
}

/// The value, if its producer is a product or convolution without epilogue in the same phase.
fn is_open(new: &Graph, node: &Node, value: ValueId) -> Option<ValueId> {
    let producer = new.producer(value);
    let open = match &producer.op {
        Op::MatMul(host) => host.epilogue.is_none() && !host.onto,
        Op::Conv2d(host) => host.epilogue.is_none(),
        _ => false,
    };
    (open && producer.phase == node.phase).then_some(value)
}

/// Whether every input is a scalar or has the result's size, so that it can be viewed under any shape.
fn sees_through(new: &Graph, op: &Pointwise, inputs: &[ValueId]) -> bool {
    inputs.iter().all(|input| *new.shape(*input) == op.shape || new.shape(*input).elements() == Dim::fixed(1))
}

fn fuse(new: &mut Graph, node: &Node, (op, dtype): (&Pointwise, DType), inputs: &[ValueId], place: usize, host: ValueId) -> Rewrite {
    let shape = new.shape(host).clone();
    let rest: Vec<ValueId> = inputs.iter().copied().filter(|input| *input != inputs[place]).collect();
    let expr = Expr::build_many(|e| {
        op.expr.inline(e, &mut |i| match rest.iter().position(|value| *value == inputs[i as usize]) {
            Some(place) => e.input(place as u16 + 1),
            None => e.input(0),
        })
    });
    let epilogue = (!expr.is_identity()).then_some(expr);
    let fused = |new: &Graph, rest: &[ValueId]| {
        let producer = new.producer(host);
        let inputs = [&producer.inputs[..], rest].concat();
        match &producer.op {
            Op::MatMul(host) => (Op::MatMul(MatMul { epilogue: epilogue.clone(), dtype, ..host.clone() }), inputs),
            Op::Conv2d(host) => (Op::Conv2d(Conv2d { epilogue: epilogue.clone(), dtype, ..host.clone() }), inputs),
            _ => unreachable!("only these two are open"),
        }
    };
    if shape == op.shape {
        let (op, inputs) = fused(new, &rest);
        return Rewrite::With(op, inputs);
    }
    let viewed = new.within(&node.scope, node.phase, |g| {
        let view = |g: &mut Graph, value: ValueId| {
            let target = if g.shape(value).elements() == Dim::fixed(1) { Shape::scalar() } else { shape.clone() };
            g.reshape(value, target)
        };
        let rest = rest.iter().map(|value| view(g, *value)).collect::<Result<Vec<_>, _>>()?;
        let (op_fused, inputs) = fused(g, &rest);
        let product = g.add_one(op_fused, &inputs)?;
        g.reshape(product, op.shape.clone())
    });
    Rewrite::Replace(vec![viewed.expect("views of the same elements fit where the elements did")])
}
