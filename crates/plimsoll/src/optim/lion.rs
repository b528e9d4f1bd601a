//! Lion.

use super::{Optimizer, OptimizerDef, slot, value_of};
use plimsoll_core::expr::{Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError, StateId};
use plimsoll_core::{DType, ValueId};
use std::sync::Arc;

/// Lion (Chen et al.): updates by the sign of the momentum. The formulas are Keras'.
///
/// ```
/// use plimsoll::optim::Lion;
/// let usual = Lion::default();
/// let decaying = Lion::new(1e-4).weight_decay(0.1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Lion {
    lr: f32,
    beta1: f32,
    beta2: f32,
    decay: f32,
}

impl Lion {
    /// With a learning rate.
    pub fn new(lr: f32) -> Lion {
        Lion { lr, beta1: 0.9, beta2: 0.99, decay: 0.0 }
    }

    /// Sets the decay rates of the update's interpolation and of the momentum.
    pub fn betas(self, beta1: f32, beta2: f32) -> Lion {
        Lion { beta1, beta2, ..self }
    }

    /// Sets the weight decay, per unit of learning rate.
    pub fn weight_decay(self, decay: f32) -> Lion {
        Lion { decay, ..self }
    }
}

impl Default for Lion {
    fn default() -> Lion {
        Lion::new(1e-3)
    }
}

/// `type = "lion"`.
pub(super) const LION: OptimizerDef = OptimizerDef {
    name: "lion",
    about: "Lion (Chen et al.)",
    state: "4 bytes",
    from_config: |config| {
        let lion = Lion::new(config.non_negative_or("lr", 1e-3)?);
        let lion = lion.betas(config.fraction_or("beta1", 0.9)?, config.fraction_or("beta2", 0.99)?);
        Ok(Arc::new(lion.weight_decay(config.non_negative_or("weight_decay", 0.0)?)))
    },
};

impl Optimizer for Lion {
    fn name(&self) -> &'static str {
        LION.name
    }

    fn learning_rate(&self) -> f32 {
        self.lr
    }

    fn update(&self, g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
        let (p, lr) = (value_of(g, parameter), g.scalar("lr"));
        let shape = g.shape(p).clone();
        let (mean_state, mean) = slot(g, "mean", parameter)?;
        let step = Expr::build_many(|e| {
            let (p, g, lr, mean) = (e.input(0), e.input(1), e.input(2), e.input(3));
            let average = |beta: f32| e.add(e.mul(mean, e.constant(beta)), e.mul(g, e.constant(1.0 - beta)));
            let decayed = if self.decay > 0.0 { e.sub(p, e.mul(p, e.mul(lr, e.constant(self.decay)))) } else { p };
            vec![e.sub(decayed, e.mul(lr, e.unary(Unary::Sign, average(self.beta1)))), average(self.beta2)]
        });
        let new = g.pointwise_many(step, &[p, gradient, lr, mean], shape, vec![DType::F32; 2])?;
        g.update(parameter, new[0]);
        g.update(mean_state, new[1]);
        Ok(())
    }
}
