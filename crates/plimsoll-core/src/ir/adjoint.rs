//! The context of a gradient rule.

use super::graph::{Graph, GraphError, ValueId};
use crate::base::expr::Expr;
use crate::base::shape::TensorType;

/// The context of a gradient rule: the node's values, the gradients of its outputs, and the graph to extend.
pub struct Adjoint<'a> {
    /// The graph being extended.
    pub graph: &'a mut Graph,
    /// The node's inputs.
    pub inputs: Vec<ValueId>,
    /// The node's outputs.
    pub outputs: Vec<ValueId>,
    /// The gradient of each output, if any.
    pub gradients: Vec<Option<ValueId>>,
    /// Which inputs need a gradient.
    pub wants: Vec<bool>,
}

impl Adjoint<'_> {
    /// The inputs that need a gradient.
    pub fn wanted(&self) -> impl Iterator<Item = usize> + use<> {
        let wants = self.wants.clone();
        (0..wants.len()).filter(move |i| wants[*i])
    }

    /// The gradient of output `i`; zeros if the loss does not depend on it.
    pub fn output_gradient(&mut self, i: usize) -> Result<ValueId, GraphError> {
        match self.gradients[i] {
            Some(gradient) => Ok(gradient),
            None => zeros(self.graph, self.outputs[i]),
        }
    }

    /// The gradients of all outputs; zeros if the loss does not depend on one.
    pub fn outputs_gradients(&mut self) -> Result<Vec<ValueId>, GraphError> {
        (0..self.outputs.len()).map(|i| self.output_gradient(i)).collect()
    }
}

/// Zeros of a value's type.
pub(crate) fn zeros(graph: &mut Graph, value: ValueId) -> Result<ValueId, GraphError> {
    let TensorType { dtype, shape } = graph.ty(value).clone();
    graph.pointwise_many(Expr::build(|e| e.constant(0.0)), &[], shape, vec![dtype]).map(|outputs| outputs[0])
}
