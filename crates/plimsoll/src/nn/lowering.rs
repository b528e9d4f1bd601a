//! Where a layer writes itself: the graph, and what the layer may declare in it.

use plimsoll_core::expr::{Expr, Unary};
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::{Graph, GraphError, ValueId};

/// The name of the scalar by which statistics of a piece of a batch are taken: one over the rows of the piece.
pub const PIECE_SHARE: &str = "piece_share";

/// Where a layer writes itself.
pub struct Lowering<'a> {
    /// The graph being written; the scope is the layer's name.
    pub graph: &'a mut Graph,
    /// Whether the graph is for learning; dropout is only then there.
    pub training: bool,
    /// Whether this layer learns; a frozen one keeps its weights.
    pub trainable: bool,
    /// The layer's full name.
    pub(super) name: &'a str,
    /// Whether a layer of this name was written before, whose weights are used again.
    pub(super) again: bool,
    /// What weights cost, as single numbers.
    pub(super) penalties: &'a mut Vec<ValueId>,
}

/// What large weights cost: `l1·Σ|w| + l2·Σw²`, added to the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Regularizer {
    /// The price of a weight's size.
    pub l1: f32,
    /// The price of its square.
    pub l2: f32,
}

impl Lowering<'_> {
    /// Declares a tensor that is learnt. A layer that is used again finds the one it declared before.
    pub fn parameter(&mut self, name: &str, shape: impl IntoIterator<Item = usize>, init: Init) -> Result<ValueId, GraphError> {
        // A frozen parameter belongs to the model and is not trained by gradients, which is what a statistic is.
        let kind = if self.trainable { StateKind::Parameter } else { StateKind::Statistic };
        self.state(name, kind, shape, init)
    }

    /// Declares a tensor that belongs to the model but is not learnt through gradients.
    pub fn statistic(&mut self, name: &str, shape: impl IntoIterator<Item = usize>, init: Init) -> Result<ValueId, GraphError> {
        self.state(name, StateKind::Statistic, shape, init)
    }

    fn state(&mut self, name: &str, kind: StateKind, shape: impl IntoIterator<Item = usize>, init: Init) -> Result<ValueId, GraphError> {
        let ty = TensorType::f32(Shape::fixed(shape));
        if self.again {
            let full = format!("{}/{name}", self.name);
            if let Some(known) = self.graph.states().iter().position(|state| state.name == full) {
                let shared = &self.graph.states()[known].ty;
                if *shared != ty {
                    return Err(self.graph.error(format!("shares `{full}`, which is {shared}, but needs {ty}")));
                }
                return Ok(self.graph.state_value(StateId(known as u32)).expect("declared by reading it"));
            }
        }
        self.graph.state(name, kind, ty, init)
    }

    /// Says what a state is after the step.
    pub fn update(&mut self, state: ValueId, value: ValueId) -> Result<(), GraphError> {
        let id = self.graph.as_state(state).ok_or_else(|| self.graph.error("changes a tensor that is not kept"))?;
        if self.graph.updates().iter().any(|(known, _)| *known == id) {
            return Err(self.graph.error("cannot be used twice: its statistics would change twice in one step"));
        }
        self.graph.update(id, value);
        Ok(())
    }

    /// Adds what a weight costs to the loss. Weights that are used again or frozen cost nothing more.
    pub fn regularize(&mut self, weight: ValueId, regularizer: Regularizer) -> Result<(), GraphError> {
        if regularizer == Regularizer::default() || self.again || !self.trainable {
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

    /// One over the rows of the piece of the batch that is computed, as the host says.
    pub fn piece_share(&mut self) -> ValueId {
        self.graph.scalar(PIECE_SHARE)
    }
}
