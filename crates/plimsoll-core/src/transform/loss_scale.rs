//! Dynamic loss scaling: keeps 16-bit gradients from underflow and overflow; a step with an overflow leaves all states
//! unchanged.

use crate::base::expr::{Binary, Expr, Unary};
use crate::base::shape::{Shape, TensorType};
use crate::ir::graph::{Graph, GraphError, Init, NodeId, Phase, StateKind, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Pointwise, Reduction};

/// Scope of the loss-scaling states, and the prefix of their names.
pub const SCOPE: &str = "loss_scale";

/// The state that counts skipped steps, from which the host derives the number of actual updates.
pub const SKIPPED: &str = "loss_scale/skipped";

/// The state that holds the scale.
pub const SCALE: &str = "loss_scale/scale";

/// Initial scale and growth. A non-finite gradient halves the scale and skips the step. The rule is Keras'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaling {
    /// Initial scale.
    pub start: f32,
    /// Steps without an overflow after which it doubles.
    pub growth_steps: u32,
}

impl Default for LossScaling {
    fn default() -> LossScaling {
        LossScaling { start: 32768.0, growth_steps: 2000 }
    }
}

/// The states of loss scaling in one graph.
pub(crate) struct Scale {
    rule: LossScaling,
    scale: ValueId,
    clean: ValueId,
    skipped: ValueId,
}

impl Scale {
    pub fn declare(graph: &mut Graph, rule: LossScaling) -> Result<Scale, GraphError> {
        graph.within(SCOPE, Phase::Backward, |g| {
            let mut number = |name, first| g.state(name, StateKind::Optimizer, TensorType::f32(Shape::scalar()), Init::Constant(first));
            Ok(Scale { rule, scale: number("scale", rule.start)?, clean: number("clean_steps", 0.0)?, skipped: number("skipped", 0.0)? })
        })
    }

    /// The scaled loss.
    pub fn times(&self, graph: &mut Graph, loss: ValueId) -> Result<ValueId, GraphError> {
        graph.within(SCOPE, Phase::Backward, |g| g.times(loss, self.scale))
    }

    /// Unscales a gradient.
    pub fn divide(&self, g: &mut Graph, gradient: ValueId) -> Result<ValueId, GraphError> {
        g.binary(Binary::Div, gradient, self.scale)
    }

    /// One if all gradients are finite, otherwise zero.
    pub fn gate(&self, graph: &mut Graph, gradients: &[ValueId]) -> Result<ValueId, GraphError> {
        graph.within(SCOPE, Phase::Update, |g| {
            let mut broken: Option<ValueId> = None;
            for gradient in gradients {
                let finite = Expr::build(|e| {
                    let finite = e.binary(Binary::LessEq, e.unary(Unary::Abs, e.input(0)), e.constant(f32::MAX));
                    e.sub(e.constant(1.0), finite)
                });
                let here = g.pointwise(finite, &[*gradient])?;
                let axes: Vec<usize> = (0..g.shape(here).rank()).collect();
                let any = if axes.is_empty() { here } else { g.reduce(Reduction::Max, here, &axes)? };
                let any = g.reshape(any, Shape::scalar())?;
                broken = Some(broken.map_or(Ok(any), |before| g.plus(before, any))?);
            }
            match broken.map(|broken| g.sum_of_shards(broken)).transpose()? {
                Some(broken) => g.map(broken, |e, broken| e.binary(Binary::Equal, broken, e.constant(0.0))),
                None => g.full(1.0, Shape::scalar()),
            }
        })
    }

    /// The scale and its counters after this step.
    pub fn adapt(&self, graph: &mut Graph, gate: ValueId) -> Result<(), GraphError> {
        let next = Expr::build_many(|e| {
            let (gate, scale, clean, skipped) = (e.input(0), e.input(1), e.input(2), e.input(3));
            let (zero, one) = (e.constant(0.0), e.constant(1.0));
            let grows = e.binary(Binary::Equal, clean, e.constant(self.rule.growth_steps.saturating_sub(1) as f32));
            let kept = e.select(grows, e.mul(scale, e.constant(2.0)), scale);
            let counted = e.select(grows, zero, e.add(clean, one));
            vec![
                e.select(gate, kept, e.mul(scale, e.constant(0.5))),
                e.select(gate, counted, zero),
                e.select(gate, skipped, e.add(skipped, one)),
            ]
        });
        graph.within(SCOPE, Phase::Update, |g| {
            let inputs = [gate, self.scale, self.clean, self.skipped];
            let new = g.pointwise_many(next, &inputs, Shape::scalar(), vec![crate::DType::F32; 3])?;
            for (old, new) in inputs[1..].iter().zip(new) {
                let state = g.as_state(*old).expect("declared as one");
                g.update(state, new);
            }
            Ok(())
        })
    }
}

/// Makes the state updates since `updates` conditional on a nonzero `gate`. Nodes since `nodes` may be rewritten: a
/// select fused into the expression of the new value is free, whereas a separate one would first materialize the new
/// value.
pub(crate) fn only_if(graph: &mut Graph, gate: ValueId, nodes: usize, updates: usize) -> Result<(), GraphError> {
    for i in updates..graph.updates.len() {
        let (state, new) = graph.updates[i];
        let old = graph.updated_value(state).expect("a state that changes is declared by the graph");
        let NodeId(made) = graph.values[new.index()].producer;
        let before = graph.values[old.index()].producer.0 < made;
        let expression = matches!(&graph.nodes[made as usize].op, Op::Pointwise(op) if op.shape == *graph.shape(old));
        let own = graph.updates.iter().filter(|(_, value)| *value == new).count() == 1;
        if made as usize >= nodes && before && expression && own {
            gate_inside(graph, NodeId(made), new, gate, old);
        } else {
            let ty = graph.ty(new).clone();
            let select = Expr::build(|e| e.select(e.input(0), e.input(1), e.input(2)));
            graph.updates[i].1 = graph.pointwise_many(select, &[gate, new, old], ty.shape, vec![ty.dtype])?[0];
        }
    }
    Ok(())
}

/// Fuses the select between new and old value into the expression that computes the new value.
fn gate_inside(graph: &mut Graph, id: NodeId, new: ValueId, gate: ValueId, old: ValueId) {
    let node = &mut graph.nodes_mut()[id.index()];
    let Op::Pointwise(Pointwise { expr, .. }) = &mut node.op else { unreachable!("only asked for expressions") };
    let root = node.outputs.iter().position(|output| *output == new).expect("a value is among its producer's outputs");
    let mut place = |value: ValueId| match node.inputs.iter().position(|input| *input == value) {
        Some(known) => known as u16,
        None => {
            node.inputs.push(value);
            node.inputs.len() as u16 - 1
        }
    };
    let (gate, old) = (place(gate), place(old));
    *expr = Expr::build_many(|e| {
        let mut results = expr.inline(e, &mut |i| e.input(i));
        results[root] = e.select(e.input(gate), results[root], e.input(old));
        results
    });
}
