//! Adagrad.

use super::{Optimizer, OptimizerDef, slot_of_type, value_of};
use plimsoll_core::expr::{Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError, StateId};
use plimsoll_core::{DType, TensorType, ValueId};
use std::sync::Arc;

/// Adagrad (Duchi, Hazan and Singer). The formulas and defaults are Keras'.
///
/// ```
/// use plimsoll::optim::Adagrad;
/// let usual = Adagrad::default();
/// let bold = Adagrad::new(0.05).initial_accumulator(0.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Adagrad {
    lr: f32,
    first: f32,
    epsilon: f32,
}

impl Adagrad {
    /// With a learning rate.
    pub fn new(lr: f32) -> Adagrad {
        Adagrad { lr, first: 0.1, epsilon: 1e-7 }
    }

    /// Sets the initial value of the accumulators.
    pub fn initial_accumulator(self, first: f32) -> Adagrad {
        Adagrad { first, ..self }
    }

    /// Sets the small constant that is added to the denominator.
    pub fn epsilon(self, epsilon: f32) -> Adagrad {
        Adagrad { epsilon, ..self }
    }
}

impl Default for Adagrad {
    fn default() -> Adagrad {
        Adagrad::new(1e-3)
    }
}

/// `type = "adagrad"`.
pub(super) const ADAGRAD: OptimizerDef = OptimizerDef {
    name: "adagrad",
    about: "Adagrad (Duchi et al.)",
    state: "4 bytes",
    from_config: |config| {
        let adagrad = Adagrad::new(config.non_negative_or("lr", 1e-3)?).initial_accumulator(config.non_negative_or("first", 0.1)?);
        Ok(Arc::new(adagrad.epsilon(config.non_negative_or("epsilon", 1e-7)?)))
    },
};

impl Optimizer for Adagrad {
    fn name(&self) -> &'static str {
        ADAGRAD.name
    }

    fn learning_rate(&self) -> f32 {
        self.lr
    }

    fn update(&self, g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
        let (p, lr) = (value_of(g, parameter), g.scalar("lr"));
        let shape = g.shape(p).clone();
        let (sum_state, sum) = slot_of_type(g, "sum", TensorType::f32(shape.clone()), self.first)?;
        let step = Expr::build_many(|e| {
            let (p, g, lr) = (e.input(0), e.input(1), e.input(2));
            let sum = e.add(e.input(3), e.mul(g, g));
            let root = e.unary(Unary::Sqrt, e.add(sum, e.constant(self.epsilon)));
            vec![e.sub(p, e.div(e.mul(lr, g), root)), sum]
        });
        let new = g.pointwise_many(step, &[p, gradient, lr, sum], shape, vec![DType::F32; 2])?;
        g.update(parameter, new[0]);
        g.update(sum_state, new[1]);
        Ok(())
    }
}
