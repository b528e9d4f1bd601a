//! Masks before pooling: a mask (ReLU's) that is applied right after a max-pooling gradient is applied before it
//! instead.
//!
//! Pooling routes each gradient to the maximum element, whose value is the pooled value. The mask can therefore be
//! computed from the small pooled tensor, and the large one need not stay live.

use super::rewrite::{Rewrite, rewrite};
use crate::base::expr::{Binary, Expr, Term, TermId};
use crate::ir::graph::{Graph, GraphError, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{MaxPoolGrad, Pointwise};
use crate::{DType, Shape};

/// Moves masks from after max-pooling gradients to before them. A mask over a sum of gradients is applied to each
/// summand.
pub fn sink_masks(old: &Graph) -> Graph {
    let uses = old.use_counts();
    rewrite(old, |new, node, inputs| {
        let Op::Pointwise(op) = &node.op else { return Rewrite::Keep };
        let Some(mask) = Mask::of(op) else { return Rewrite::Keep };
        let same_type = mask.parts.iter().all(|part| new.ty(inputs[*part as usize]).dtype == op.dtypes[0]);
        // The order of a sum must not matter: with fewer bits, its summands would be rounded.
        if !same_type || (mask.parts.len() > 1 && op.dtypes[0] != DType::F32) {
            return Rewrite::Keep;
        }
        let looked_at = inputs[mask.looks_at as usize];
        let pooled = |part: &u16| match uses[node.inputs[*part as usize].index()] {
            1 => pool_of(new, inputs[*part as usize], looked_at, &op.shape),
            _ => None,
        };
        let pools: Vec<Option<Pool>> = mask.parts.iter().map(pooled).collect();
        if pools.iter().all(Option::is_none) {
            return Rewrite::Keep;
        }
        let parts: Vec<(ValueId, Option<Pool>)> = mask.parts.iter().map(|part| inputs[*part as usize]).zip(pools).collect();
        let cut = write(new, node, op, &mask, looked_at, parts);
        Rewrite::Replace(vec![cut.expect("gradients of the same shapes as before")])
    })
}

/// An expression `mask(x) ? a + b + … : 0`.
pub(super) struct Mask {
    /// The only input that the condition reads.
    pub looks_at: u16,
    condition: TermId,
    /// The summands, in order.
    parts: Vec<u16>,
}

impl Mask {
    pub fn of(op: &Pointwise) -> Option<Mask> {
        let ([root], terms) = (op.expr.roots(), op.expr.terms()) else { return None };
        let Term::Select(condition, sum, zero) = terms[*root as usize] else { return None };
        if terms[zero as usize] != Term::Const(0.0f32.to_bits()) || op.expr.is_positional() {
            return None;
        }
        let mut read = Vec::new();
        inputs_of(terms, condition, &mut read);
        let [looks_at] = read[..] else { return None };
        let parts = added(terms, sum)?;
        (!parts.contains(&looks_at)).then_some(Mask { looks_at, condition, parts })
    }

    /// The same mask over other values: input 0 is compared, input 1 is masked.
    fn cut(&self, expr: &Expr) -> Expr {
        Expr::build(|e| {
            // Only the condition is an output, so all other terms are dropped.
            let mut values: Vec<TermId> = Vec::new();
            for term in &expr.terms()[..=self.condition as usize] {
                let at = |id: TermId| values[id as usize];
                values.push(match *term {
                    Term::Input(i) if i == self.looks_at => e.input(0),
                    Term::Input(_) => e.constant(0.0),
                    Term::Const(bits) => e.constant(f32::from_bits(bits)),
                    Term::Unary(op, a) => e.unary(op, at(a)),
                    Term::Binary(op, a, b) => e.binary(op, at(a), at(b)),
                    Term::Select(c, a, b) => e.select(at(c), at(a), at(b)),
                    Term::Random(_) | Term::Coordinate(_) => unreachable!("such expressions are left alone"),
                });
            }
            e.select(values[self.condition as usize], e.input(1), e.constant(0.0))
        })
    }
}

/// The only input that the conditions of `a(x) ? b(x) ? y : 0 : 0` read: the gradient of a clamp.
pub(super) fn clamp_looks_at(op: &Pointwise) -> Option<u16> {
    let ([root], terms) = (op.expr.roots(), op.expr.terms()) else { return None };
    let is_zero = |id: TermId| terms[id as usize] == Term::Const(0.0f32.to_bits());
    let Term::Select(first, inside, zero) = terms[*root as usize] else { return None };
    let Term::Select(second, value, other) = terms[inside as usize] else { return None };
    let mut read = Vec::new();
    [first, second].iter().for_each(|condition| inputs_of(terms, *condition, &mut read));
    let ([looks_at], Term::Input(masked)) = (&read[..], terms[value as usize]) else { return None };
    (is_zero(zero) && is_zero(other) && masked != *looks_at && !op.expr.is_positional()).then_some(*looks_at)
}

/// The inputs a term depends on.
fn inputs_of(terms: &[Term], at: TermId, into: &mut Vec<u16>) {
    match terms[at as usize] {
        Term::Input(i) if !into.contains(&i) => into.push(i),
        Term::Unary(_, a) => inputs_of(terms, a, into),
        Term::Binary(_, a, b) => [a, b].iter().for_each(|term| inputs_of(terms, *term, into)),
        Term::Select(c, a, b) => [c, a, b].iter().for_each(|term| inputs_of(terms, *term, into)),
        _ => {}
    }
}

/// The inputs that a term sums from left to right, if it is only such a sum.
fn added(terms: &[Term], at: TermId) -> Option<Vec<u16>> {
    match terms[at as usize] {
        Term::Input(i) => Some(vec![i]),
        Term::Binary(Binary::Add, a, b) => match terms[b as usize] {
            Term::Input(last) => Some(added(terms, a)?.into_iter().chain([last]).collect()),
            _ => None,
        },
        _ => None,
    }
}

/// A max-pooling gradient and its operands.
struct Pool {
    op: MaxPoolGrad,
    places: ValueId,
    gradient: ValueId,
    /// The output of the pooling.
    result: ValueId,
}

/// The pooling of `of` whose gradient this value is.
fn pool_of(new: &Graph, value: ValueId, of: ValueId, shape: &Shape) -> Option<Pool> {
    let producer = new.producer(value);
    let Op::MaxPoolGrad(op) = &producer.op else { return None };
    let (places, gradient) = (producer.inputs[0], producer.inputs[1]);
    let pool = new.producer(places);
    let matches = matches!(pool.op, Op::MaxPool(_)) && pool.inputs[0] == of && op.input == *shape;
    matches.then(|| Pool { op: op.clone(), places, gradient, result: pool.outputs[0] })
}

fn write(
    new: &mut Graph,
    node: &Node,
    op: &Pointwise,
    mask: &Mask,
    looked_at: ValueId,
    parts: Vec<(ValueId, Option<Pool>)>,
) -> Result<ValueId, GraphError> {
    let cut = mask.cut(&op.expr);
    new.within(&node.scope, node.phase, |g| {
        let mut sum: Option<ValueId> = None;
        for (part, pool) in parts {
            let small = |g: &mut Graph, at: ValueId, value: ValueId| {
                let (shape, dtype) = (g.shape(value).clone(), g.ty(value).dtype);
                g.pointwise_many(cut.clone(), &[at, value], shape, vec![dtype]).map(|outputs| outputs[0])
            };
            let part = match pool {
                Some(pool) => {
                    let gradient = small(g, pool.result, pool.gradient)?;
                    g.add_one(Op::MaxPoolGrad(pool.op), &[pool.places, gradient])?
                }
                None => small(g, looked_at, part)?,
            };
            sum = Some(match sum {
                Some(sum) => g.plus(sum, part)?,
                None => part,
            });
        }
        Ok(sum.expect("a mask cuts at least one value"))
    })
}
