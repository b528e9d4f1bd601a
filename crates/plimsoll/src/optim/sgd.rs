//! Stochastic gradient descent.

use super::{Optimizer, OptimizerDef, slot, value_of};
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::{Graph, GraphError, StateId};
use plimsoll_core::{DType, ValueId};
use std::sync::Arc;

/// Stochastic gradient descent, optionally with Nesterov momentum. The formulas are Keras'.
///
/// ```
/// use plimsoll::optim::Sgd;
/// let plain = Sgd::new(0.01);
/// let fast = Sgd::new(0.01).momentum(0.9).nesterov(true);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sgd {
    lr: f32,
    momentum: f32,
    nesterov: bool,
}

impl Sgd {
    /// Without momentum.
    pub fn new(lr: f32) -> Sgd {
        Sgd { lr, momentum: 0.0, nesterov: false }
    }

    /// Sets the momentum.
    pub fn momentum(self, momentum: f32) -> Sgd {
        Sgd { momentum, ..self }
    }

    /// Whether to use Nesterov momentum.
    pub fn nesterov(self, nesterov: bool) -> Sgd {
        Sgd { nesterov, ..self }
    }
}

impl Default for Sgd {
    fn default() -> Sgd {
        Sgd::new(0.01)
    }
}

/// `type = "sgd"`.
pub(super) const SGD: OptimizerDef = OptimizerDef {
    name: "sgd",
    about: "Stochastic gradient descent, optionally with Nesterov momentum",
    state: "0 or 4 bytes",
    from_config: |config| {
        let sgd = Sgd::new(config.non_negative_or("lr", 0.01)?).momentum(config.fraction_or("momentum", 0.0)?);
        Ok(Arc::new(sgd.nesterov(config.flag_or("nesterov", false)?)))
    },
};

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        SGD.name
    }

    fn learning_rate(&self) -> f32 {
        self.lr
    }

    fn update(&self, g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
        let (p, lr) = (value_of(g, parameter), g.scalar("lr"));
        let shape = g.shape(p).clone();
        if self.momentum == 0.0 {
            let descend = Expr::build(|e| e.sub(e.input(0), e.mul(e.input(2), e.input(1))));
            let new = g.pointwise(descend, &[p, gradient, lr])?;
            g.update(parameter, new);
            return Ok(());
        }
        let (velocity_state, velocity) = slot(g, "velocity", parameter)?;
        let descend = Expr::build_many(|e| {
            let (p, g, lr, momentum) = (e.input(0), e.input(1), e.input(2), e.constant(self.momentum));
            let down = e.mul(lr, g);
            let velocity = e.sub(e.mul(momentum, e.input(3)), down);
            let change = if self.nesterov { e.sub(e.mul(momentum, velocity), down) } else { velocity };
            vec![e.add(p, change), velocity]
        });
        let new = g.pointwise_many(descend, &[p, gradient, lr, velocity], shape, vec![DType::F32; 2])?;
        g.update(parameter, new[0]);
        g.update(velocity_state, new[1]);
        Ok(())
    }
}
