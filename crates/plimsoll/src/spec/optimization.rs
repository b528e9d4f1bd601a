//! How parameters are updated: optimizer, gradient clipping, learning-rate schedule, weight average and precision.

use crate::optim::{Adam, Clip, EMA_MOMENTUM, Ema, Optimizer};
use crate::precision::Precision;
use crate::schedule::Schedule;
use plimsoll_core::loss_scale::LossScaling;
use std::sync::Arc;

/// How parameters are updated.
#[derive(Clone, Debug)]
pub struct Optimization {
    /// The optimizer.
    pub optimizer: Arc<dyn Optimizer>,
    /// How gradients are clipped.
    pub clip: Option<Clip>,
    /// The learning-rate schedule.
    pub schedule: Schedule,
    /// A moving average of the weights.
    pub average: Option<Ema>,
    /// The data type of activations.
    pub precision: Precision,
    /// Loss scaling, instead of what the precision implies.
    pub loss_scaling: Option<LossScaling>,
}

impl Default for Optimization {
    fn default() -> Optimization {
        Optimization {
            optimizer: Arc::new(Adam::default()),
            clip: None,
            schedule: Schedule::default(),
            average: None,
            precision: Precision::default(),
            loss_scaling: None,
        }
    }
}

impl Optimization {
    /// How the loss is scaled, if it is.
    pub(crate) fn loss_scaling(&self) -> Option<LossScaling> {
        self.loss_scaling.or(self.precision.scaling())
    }

    /// The names of the scalars that a step reads.
    pub(crate) fn scalar_names(&self) -> Vec<&'static str> {
        let average = self.average.map(|_| EMA_MOMENTUM);
        self.optimizer.scalar_names().iter().copied().chain(average).collect()
    }

    /// The values of those scalars in a step, counted from 1 without skipped steps, at a learning rate.
    pub(crate) fn scalars(&self, step: u64, learning_rate: f64, values: &mut [f32]) {
        let own = self.optimizer.scalar_names().len();
        self.optimizer.scalars(step, learning_rate, &mut values[..own]);
        if let Some(average) = self.average {
            values[own] = average.keep(step);
        }
    }
}
