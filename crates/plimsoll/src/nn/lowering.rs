//! What a layer adds itself to: a graph, with parameters and statistics.

use super::Quantize;
use plimsoll_core::expr::{Expr, Unary};
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::ops::AllReduce;
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::{Graph, GraphError, Op, ValueId};

/// The scalar that batch statistics multiply by: one over the rows of the micro-batch.
pub const MICRO_BATCH_RECIPROCAL: &str = "micro_batch_reciprocal";

/// The scalar that is one, or zero on a rank whose rows are those of another one.
pub(crate) const COUNTED_ROWS: &str = "counted_rows";

/// What a layer adds its nodes to.
pub struct Lowering<'a> {
    /// The graph; its scope is the layer's name.
    pub graph: &'a mut Graph,
    /// Whether the graph is for training; dropout is the identity otherwise.
    pub training: bool,
    /// Whether the layer is trainable; a frozen layer keeps its weights.
    pub trainable: bool,
    /// The layer's full name.
    pub(super) name: &'a str,
    /// Whether a layer of this name was lowered before, whose weights it shares.
    pub(super) shared: bool,
    /// The mask `[batch, time]` of the first input, if an embedding before it made one: zero for padding.
    pub(super) mask: Option<ValueId>,
    /// The mask that the layer makes.
    pub(super) new_mask: Option<ValueId>,
    /// Regularization losses, as scalars.
    pub(super) penalties: &'a mut Vec<ValueId>,
    /// How the layer is trained for int8, if it is.
    pub(super) quantize: Option<&'a Quantize>,
    /// Tensors that have a range in an int8 model.
    pub(super) observed: &'a mut Vec<(String, ValueId)>,
    /// Whether the layer is part of the teacher of another model.
    pub(super) is_teacher: bool,
    /// The ranks that statistics are synchronized over, if they are.
    pub(super) synchronized: Option<u32>,
}

/// L1 and L2 regularization: `l1·Σ|w| + l2·Σw²` is added to the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Regularizer {
    /// The factor of the sum of absolute values.
    pub l1: f32,
    /// The factor of the sum of squares.
    pub l2: f32,
}

impl<'a> Lowering<'a> {
    /// A layer of this name by itself, for inference: to infer shapes while a model is imported.
    pub(crate) fn to_infer(
        graph: &'a mut Graph,
        name: &'a str,
        penalties: &'a mut Vec<ValueId>,
        observed: &'a mut Vec<(String, ValueId)>,
    ) -> Lowering<'a> {
        let (mask, new_mask, quantize) = (None, None, None);
        Lowering {
            graph,
            training: false,
            trainable: true,
            name,
            shared: false,
            mask,
            new_mask,
            penalties,
            quantize,
            observed,
            is_teacher: false,
            synchronized: None,
        }
    }
}

impl Lowering<'_> {
    /// Declares a trainable tensor. A shared layer gets the one it declared at its first call.
    pub fn parameter(&mut self, name: &str, shape: impl IntoIterator<Item = usize>, init: Init) -> Result<ValueId, GraphError> {
        // A frozen parameter belongs to the model without being trained, as statistics do.
        let kind = if self.trainable { StateKind::Parameter } else { StateKind::Statistic };
        self.state(name, kind, shape, init)
    }

    /// Declares a non-trainable tensor.
    pub fn statistic(&mut self, name: &str, shape: impl IntoIterator<Item = usize>, init: Init) -> Result<ValueId, GraphError> {
        self.state(name, StateKind::Statistic, shape, init)
    }

    fn state(&mut self, name: &str, kind: StateKind, shape: impl IntoIterator<Item = usize>, init: Init) -> Result<ValueId, GraphError> {
        let ty = TensorType::f32(Shape::fixed(shape));
        let kind = if self.is_teacher { StateKind::Teacher } else { kind };
        if self.shared {
            let full = format!("{}/{name}", self.name);
            if let Some(known) = self.graph.states().iter().position(|state| state.name == full) {
                let shared = &self.graph.states()[known].ty;
                if *shared != ty {
                    return Err(self.graph.error(format!("shares the weight `{full}` of type {shared}, but needs {ty}")));
                }
                return Ok(self.graph.state_value(StateId(known as u32)).expect("declared by reading it"));
            }
        }
        self.graph.state(name, kind, ty, init)
    }

    /// Sets the value of a state after the step.
    pub fn update(&mut self, state: ValueId, value: ValueId) -> Result<(), GraphError> {
        let id = self.graph.as_state(state).ok_or_else(|| self.graph.error("updates a tensor that is not a state"))?;
        if self.graph.updates().iter().any(|(known, _)| *known == id) {
            return Err(self.graph.error("cannot be shared: its moving statistics would be updated twice in one step"));
        }
        self.graph.update(id, value);
        Ok(())
    }

    /// Adds the regularization loss of a weight, unless it is shared or frozen.
    pub fn regularize(&mut self, weight: ValueId, regularizer: Regularizer) -> Result<(), GraphError> {
        if regularizer == Regularizer::default() || self.shared || !self.trainable {
            return Ok(());
        }
        let cost = Expr::build(|e| {
            let w = e.input(0);
            let size = e.mul(e.constant(regularizer.l1), e.unary(Unary::Abs, w));
            let square = e.mul(e.constant(regularizer.l2), e.mul(w, w));
            match (regularizer.l1 == 0.0, regularizer.l2 == 0.0) {
                (true, _) => square,
                (_, true) => size,
                _ => e.add(size, square),
            }
        });
        let cost = self.graph.pointwise(cost, &[weight])?;
        let cost = self.graph.sum(cost)?;
        self.penalties.push(cost);
        Ok(())
    }

    /// The sum of a tensor without rows over the ranks that train together; itself on one process, and where batch
    /// normalization is local. For statistics of the batch, whose rows
    /// [`micro_batch_reciprocal`](Lowering::micro_batch_reciprocal) counts on all of these ranks.
    pub fn sum_over_ranks(&mut self, value: ValueId) -> Result<ValueId, GraphError> {
        let Some(ranks) = self.synchronized.filter(|_| self.training) else { return Ok(value) };
        // A rank that repeats a row of another one adds nothing.
        let counted = self.graph.scalar(COUNTED_ROWS);
        let own = self.graph.times(value, counted)?;
        let token = self.graph.collective_token();
        let op = AllReduce { ranks, has_token: token.is_some(), order: None };
        let inputs: Vec<ValueId> = [own].into_iter().chain(token).collect();
        Ok(self.graph.add(Op::AllReduce(op), &inputs)?[0])
    }

    /// One over the rows of the micro-batch, set by the host at every step; over those of all ranks where statistics
    /// are synchronized.
    pub fn micro_batch_reciprocal(&mut self) -> ValueId {
        self.graph.scalar(MICRO_BATCH_RECIPROCAL)
    }
}
