//! Exponential moving averages of the parameters.

use super::slot;
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::{Graph, GraphError, StateId};

/// Exponential moving average of the weights, often better for prediction than the last step's. The formula is Keras'
/// `use_ema`: the average starts as the parameter after the first step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ema {
    momentum: f32,
}

/// The momentum at a step.
pub(crate) const MOMENTUM: &str = "average_keep";

/// The last component of the name of a parameter's average.
pub(crate) const NAME: &str = "average";

impl Ema {
    /// With this momentum, such as 0.999.
    pub fn new(momentum: f32) -> Ema {
        Ema { momentum }
    }

    /// The momentum at step `step`, counted from 1.
    pub(crate) fn keep(self, step: u64) -> f32 {
        if step <= 1 { 0.0 } else { self.momentum }
    }

    /// Adds the update of a parameter's average, after that of the parameter; gives the average.
    pub(crate) fn follow(self, g: &mut Graph, parameter: StateId) -> Result<Option<StateId>, GraphError> {
        let new = g.updates().iter().rev().find(|(state, _)| *state == parameter).map(|(_, value)| *value);
        let Some(new) = new else { return Ok(None) };
        let keep = g.scalar(MOMENTUM);
        let (state, average) = slot(g, NAME, parameter)?;
        let mixed = Expr::build(|e| {
            let keep = e.input(0);
            e.add(e.mul(keep, e.input(1)), e.mul(e.sub(e.constant(1.0), keep), e.input(2)))
        });
        let mixed = g.pointwise(mixed, &[keep, average, new])?;
        g.update(state, mixed);
        Ok(Some(state))
    }
}

impl Default for Ema {
    fn default() -> Ema {
        Ema::new(0.99)
    }
}
