//! RMSprop.

use super::{Optimizer, OptimizerDef, slot, value_of};
use plimsoll_core::expr::{Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError, StateId};
use plimsoll_core::{DType, ValueId};
use std::sync::Arc;

/// RMSprop (Tieleman and Hinton), optionally centered and with momentum. The formulas and defaults are Keras'.
///
/// ```
/// use plimsoll::optim::RmsProp;
/// let plain = RmsProp::default();
/// let graves = RmsProp::new(1e-4).rho(0.95).momentum(0.9).centered(true);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RmsProp {
    lr: f32,
    rho: f32,
    momentum: f32,
    epsilon: f32,
    centered: bool,
}

impl RmsProp {
    /// With a learning rate.
    pub fn new(lr: f32) -> RmsProp {
        RmsProp { lr, rho: 0.9, momentum: 0.0, epsilon: 1e-7, centered: false }
    }

    /// Sets the decay rate of the moving averages.
    pub fn rho(self, rho: f32) -> RmsProp {
        RmsProp { rho, ..self }
    }

    /// Sets the momentum.
    pub fn momentum(self, momentum: f32) -> RmsProp {
        RmsProp { momentum, ..self }
    }

    /// Sets the small constant that is added to the denominator.
    pub fn epsilon(self, epsilon: f32) -> RmsProp {
        RmsProp { epsilon, ..self }
    }

    /// Divides by an estimate of the gradient's variance instead of its second moment.
    pub fn centered(self, centered: bool) -> RmsProp {
        RmsProp { centered, ..self }
    }
}

impl Default for RmsProp {
    fn default() -> RmsProp {
        RmsProp::new(1e-3)
    }
}

/// `type = "rmsprop"`.
pub(super) const RMSPROP: OptimizerDef = OptimizerDef {
    name: "rmsprop",
    about: "RMSprop (Tieleman and Hinton)",
    state: "4 to 12 bytes",
    from_config: |config| {
        let rmsprop = RmsProp::new(config.non_negative_or("lr", 1e-3)?).rho(config.fraction_or("rho", 0.9)?);
        let rmsprop = rmsprop.momentum(config.fraction_or("momentum", 0.0)?).epsilon(config.non_negative_or("epsilon", 1e-7)?);
        Ok(Arc::new(rmsprop.centered(config.flag_or("centered", false)?)))
    },
};

impl Optimizer for RmsProp {
    fn name(&self) -> &'static str {
        RMSPROP.name
    }

    fn learning_rate(&self) -> f32 {
        self.lr
    }

    fn update(&self, g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
        let (p, lr) = (value_of(g, parameter), g.scalar("lr"));
        let shape = g.shape(p).clone();
        let square = slot(g, "square", parameter)?;
        let mean = self.centered.then(|| slot(g, "mean", parameter)).transpose()?;
        let velocity = (self.momentum > 0.0).then(|| slot(g, "velocity", parameter)).transpose()?;
        let slots: Vec<(StateId, ValueId)> = [Some(square), mean, velocity].into_iter().flatten().collect();
        let step = Expr::build_many(|e| {
            let (p, g, lr, square) = (e.input(0), e.input(1), e.input(2), e.input(3));
            let average = |old, new| e.add(e.mul(e.constant(self.rho), old), e.mul(e.constant(1.0 - self.rho), new));
            let mut next = 4;
            let mut input = || {
                next += 1;
                e.input(next - 1)
            };
            let square = average(square, e.mul(g, g));
            let mut results = vec![p, square];
            let mut spread = square;
            if self.centered {
                let mean = average(input(), g);
                spread = e.sub(spread, e.mul(mean, mean));
                results.push(mean);
            }
            let root = e.unary(Unary::Sqrt, e.add(spread, e.constant(self.epsilon)));
            let mut change = e.div(e.mul(lr, g), root);
            if self.momentum > 0.0 {
                change = e.add(e.mul(e.constant(self.momentum), input()), change);
                results.push(change);
            }
            results[0] = e.sub(p, change);
            results
        });
        let inputs: Vec<ValueId> = [p, gradient, lr].into_iter().chain(slots.iter().map(|(_, value)| *value)).collect();
        let new = g.pointwise_many(step, &inputs, shape, vec![DType::F32; 1 + slots.len()])?;
        let states = [parameter].into_iter().chain(slots.iter().map(|(state, _)| *state));
        states.zip(new).for_each(|(state, new)| g.update(state, new));
        Ok(())
    }
}
