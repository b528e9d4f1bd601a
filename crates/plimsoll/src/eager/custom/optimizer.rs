//! Optimizers from closures.

use super::add_to_graph;
use crate::eager::error::{Error, Result};
use crate::eager::tensor::Tensor;
use crate::optim::Optimizer;
use plimsoll_core::graph::{Graph, GraphError, Init, StateId, StateKind};
use plimsoll_core::{TensorType, ValueId};
use std::fmt;

/// An optimizer from a closure over eager tensors: it maps a parameter, its gradient and its slot variables to their
/// new values. It is traced once per parameter into the training step.
///
/// ```
/// use plimsoll::eager::{CustomOptimizer, Result, Tensor, UpdateCall};
///
/// /// Gradient descent with momentum.
/// fn momentum(call: &UpdateCall<'_>) -> Result<Vec<Tensor>> {
///     let velocity = call.slots[0].mul_scalar(0.9)?.sub(&call.gradient.mul(call.learning_rate)?)?;
///     Ok(vec![call.parameter.add(&velocity)?, velocity])
/// }
/// let optimizer = CustomOptimizer::new("momentum", 0.01, momentum).slot("velocity", 0.0);
/// # let _ = optimizer;
/// ```
pub struct CustomOptimizer<F> {
    name: &'static str,
    learning_rate: f32,
    slots: Vec<(&'static str, f32)>,
    closure: F,
}

/// What the closure of a [`CustomOptimizer`] computes an update from.
pub struct UpdateCall<'a> {
    /// The parameter.
    pub parameter: &'a Tensor,
    /// Its gradient.
    pub gradient: &'a Tensor,
    /// The learning rate of the step, as a scalar.
    pub learning_rate: &'a Tensor,
    /// The number of the step, counted from 1, as a scalar.
    pub step: &'a Tensor,
    /// The slot variables of the parameter, in the order of their declaration.
    pub slots: &'a [Tensor],
}

impl<F: Fn(&UpdateCall<'_>) -> Result<Vec<Tensor>> + Send + Sync> CustomOptimizer<F> {
    /// An optimizer with a base learning rate, which a schedule multiplies. The closure returns the new parameter and
    /// then the new value of every slot variable.
    pub fn new(name: &'static str, learning_rate: f32, closure: F) -> CustomOptimizer<F> {
        CustomOptimizer { name, learning_rate, slots: Vec::new(), closure }
    }

    /// Declares a slot variable of the parameter's shape, filled with a number at first.
    pub fn slot(mut self, name: &'static str, first: f32) -> CustomOptimizer<F> {
        self.slots.push((name, first));
        self
    }
}

impl<F> fmt::Debug for CustomOptimizer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomOptimizer")
            .field("name", &self.name)
            .field("learning_rate", &self.learning_rate)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

const LEARNING_RATE: &str = "lr";
const STEP: &str = "optimizer_step";

impl<F: Fn(&UpdateCall<'_>) -> Result<Vec<Tensor>> + Send + Sync> Optimizer for CustomOptimizer<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn learning_rate(&self) -> f32 {
        self.learning_rate
    }

    fn scalar_names(&self) -> &'static [&'static str] {
        &[LEARNING_RATE, STEP]
    }

    fn scalars(&self, step: u64, lr: f64, numbers: &mut [f32]) {
        (numbers[0], numbers[1]) = (lr as f32, step as f32);
    }

    fn update(&self, graph: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
        let Some(value) = graph.updated_value(parameter) else {
            return Err(graph.error("updates a parameter that the step does not read"));
        };
        let ty = graph.ty(value).clone();
        let (mut states, mut values) = (vec![parameter], vec![value, gradient, graph.scalar(LEARNING_RATE), graph.scalar(STEP)]);
        for (name, first) in &self.slots {
            let slot = graph.state(name, StateKind::Optimizer, TensorType::f32(ty.shape.clone()), Init::Constant(*first))?;
            states.push(graph.as_state(slot).ok_or_else(|| graph.error("declares a slot variable twice"))?);
            values.push(slot);
        }
        let slots = vec![TensorType::f32(ty.shape.clone()); self.slots.len()];
        let types: Vec<TensorType> = std::iter::once(ty).chain(slots).collect();
        let new = add_to_graph(graph, &values, |t| {
            let call = UpdateCall { parameter: &t[0], gradient: &t[1], learning_rate: &t[2], step: &t[3], slots: &t[4..] };
            let new = (self.closure)(&call)?;
            if new.len() != types.len() {
                let what = format!("the closure returned {} tensors instead of the parameter and {} slots", new.len(), types.len() - 1);
                return Err(Error::Invalid { op: self.name, what });
            }
            match new.iter().zip(&types).find(|(new, ty)| new.ty() != *ty) {
                Some((new, ty)) => {
                    Err(Error::Invalid { op: self.name, what: format!("the closure returned {} instead of {ty}", new.ty()) })
                }
                None => Ok(new),
            }
        })?;
        for (state, value) in states.into_iter().zip(new) {
            graph.update(state, value);
        }
        Ok(())
    }
}
