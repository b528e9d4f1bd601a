//! Nadam.

use super::{Adam, Optimizer, OptimizerDef, exponent, slot, value_of};
use plimsoll_core::expr::{Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError, StateId};
use plimsoll_core::{DType, ValueId};
use std::sync::Arc;

/// Adam with Nesterov momentum (Dozat). The formulas and defaults are Keras'.
///
/// ```
/// use plimsoll::optim::Nadam;
/// let usual = Nadam::default();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Nadam {
    adam: Adam,
}

/// After this many steps the momentum schedule is constant: 0.96 to this power is below the resolution of f64.
const WARM: u64 = 1000;

impl Nadam {
    /// With a learning rate.
    pub fn new(lr: f32) -> Nadam {
        Nadam { adam: Adam::new(lr) }
    }

    /// Sets the decay rates of the first and second moment.
    pub fn betas(self, beta1: f32, beta2: f32) -> Nadam {
        Nadam { adam: self.adam.betas(beta1, beta2) }
    }

    /// Sets the small constant that is added to the denominator.
    pub fn epsilon(self, epsilon: f32) -> Nadam {
        Nadam { adam: self.adam.epsilon(epsilon) }
    }

    /// The momentum of a step.
    fn momentum(&self, step: u64) -> f64 {
        f64::from(self.adam.beta1) * (1.0 - 0.5 * 0.96f64.powi(exponent(step)))
    }
}

impl Default for Nadam {
    fn default() -> Nadam {
        Nadam::new(1e-3)
    }
}

/// `type = "nadam"`.
pub(super) const NADAM: OptimizerDef = OptimizerDef {
    name: "nadam",
    about: "Adam with Nesterov momentum (Dozat)",
    state: "8 bytes",
    from_config: |config| {
        let nadam = Nadam::new(config.non_negative_or("lr", 1e-3)?);
        let nadam = nadam.betas(config.fraction_or("beta1", 0.9)?, config.fraction_or("beta2", 0.999)?);
        Ok(Arc::new(nadam.epsilon(config.non_negative_or("epsilon", 1e-7)?)))
    },
};

impl Optimizer for Nadam {
    fn name(&self) -> &'static str {
        NADAM.name
    }

    fn learning_rate(&self) -> f32 {
        self.adam.lr
    }

    fn scalar_names(&self) -> &'static [&'static str] {
        &["nadam_ahead", "nadam_now", "nadam_square"]
    }

    /// The coefficients of first moment, gradient and second moment.
    fn scalars(&self, step: u64, lr: f64, numbers: &mut [f32]) {
        let warm: f64 = (1..=step.min(WARM)).map(|step| self.momentum(step)).product();
        let rest = exponent(step.saturating_sub(WARM));
        let product = warm * f64::from(self.adam.beta1).powi(rest);
        let (now, ahead) = (self.momentum(step), self.momentum(step + 1));
        numbers[0] = (lr * ahead / (1.0 - product * ahead)) as f32;
        numbers[1] = (lr * (1.0 - now) / (1.0 - product)) as f32;
        numbers[2] = (1.0 / (1.0 - f64::from(self.adam.beta2).powi(exponent(step)))) as f32;
    }

    fn update(&self, g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
        let p = value_of(g, parameter);
        let scalars = [g.scalar("nadam_ahead"), g.scalar("nadam_now"), g.scalar("nadam_square")];
        let shape = g.shape(p).clone();
        let (mean_state, mean) = slot(g, "mean", parameter)?;
        let (square_state, square) = slot(g, "square", parameter)?;
        let Adam { beta1, beta2, epsilon, .. } = self.adam;
        let step = Expr::build_many(|e| {
            let (p, g, mean, square) = (e.input(0), e.input(1), e.input(2), e.input(3));
            let mean = e.add(mean, e.mul(e.sub(g, mean), e.constant(1.0 - beta1)));
            let square = e.add(square, e.mul(e.sub(e.mul(g, g), square), e.constant(1.0 - beta2)));
            let towards = e.add(e.mul(mean, e.input(4)), e.mul(g, e.input(5)));
            let root = e.unary(Unary::Sqrt, e.mul(square, e.input(6)));
            vec![e.sub(p, e.div(towards, e.add(root, e.constant(epsilon)))), mean, square]
        });
        let inputs: Vec<ValueId> = [p, gradient, mean, square].into_iter().chain(scalars).collect();
        let new = g.pointwise_many(step, &inputs, shape, vec![DType::F32; 3])?;
        g.update(parameter, new[0]);
        g.update(mean_state, new[1]);
        g.update(square_state, new[2]);
        Ok(())
    }
}
