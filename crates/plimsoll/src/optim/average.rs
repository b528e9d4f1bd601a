//! Exponential moving averages of the parameters.

use super::remember;
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::{Graph, GraphError, StateId};

/// A slow average of every parameter beside it: often better to predict with than the last step's. The formula is Keras' `use_ema`: the
/// average begins as what the parameter is after the first step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Average {
    momentum: f32,
}

/// What of the average is kept at a step.
pub(crate) const KEEP: &str = "average_keep";

/// The last part of the name of a parameter's average.
pub(crate) const NAME: &str = "average";

impl Average {
    /// An average that keeps this share of itself at every step, such as 0.999.
    pub fn new(momentum: f32) -> Average {
        Average { momentum }
    }

    /// What of the average is kept at step `step`, counted from 1.
    pub(crate) fn keep(self, step: u64) -> f32 {
        if step <= 1 { 0.0 } else { self.momentum }
    }

    /// Adds the average of a parameter whose change is already in the graph.
    pub(crate) fn follow(self, g: &mut Graph, parameter: StateId) -> Result<(), GraphError> {
        let new = g.updates().iter().rev().find(|(state, _)| *state == parameter).map(|(_, value)| *value);
        let Some(new) = new else { return Ok(()) };
        let keep = g.scalar(KEEP);
        let (state, average) = remember(g, NAME, parameter)?;
        let mixed = Expr::build(|e| {
            let keep = e.input(0);
            e.add(e.mul(keep, e.input(1)), e.mul(e.sub(e.constant(1.0), keep), e.input(2)))
        });
        let mixed = g.pointwise(mixed, &[keep, average, new])?;
        g.update(state, mixed);
        Ok(())
    }
}

impl Default for Average {
    fn default() -> Average {
        Average::new(0.99)
    }
}
