//! How a trainer learns: optimiser, clipping, schedule, average of weights and precision, as one recipe.

use crate::error::{Error, Result};
use crate::history::Epoch;
use crate::optim::{Adam, Clip, EMA_MOMENTUM, Ema, Optimizer};
use crate::precision::Precision;
use crate::schedule::{Schedule, ScheduleState};
use plimsoll_core::ValueId;
use plimsoll_core::graph::{Graph, GraphError, StateId};
use plimsoll_core::loss_scale::LossScaling;
use plimsoll_core::step::{Role, Training, training_programs_with};
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct Learning {
    pub optimizer: Arc<dyn Optimizer>,
    pub clip: Option<Clip>,
    pub average: Option<Ema>,
    pub schedule: Schedule,
    pub state: ScheduleState,
    pub precision: Precision,
    /// A learning rate that was set by hand, instead of the schedule's.
    pub fixed: Option<f64>,
    /// Instead of what the precision asks for.
    pub scaling: Option<LossScaling>,
}

impl Default for Learning {
    fn default() -> Learning {
        Learning {
            optimizer: Arc::new(Adam::default()),
            clip: None,
            average: None,
            schedule: Schedule::default(),
            state: ScheduleState::default(),
            precision: Precision::default(),
            fixed: None,
            scaling: None,
        }
    }
}

impl Learning {
    /// How the loss is scaled, if it is.
    pub fn scaling(&self) -> Option<LossScaling> {
        self.scaling.or(self.precision.scaling())
    }

    /// The numbers a step is given, by name.
    pub fn scalar_names(&self) -> Vec<&'static str> {
        let average = self.average.map(|_| EMA_MOMENTUM);
        self.optimizer.scalar_names().iter().copied().chain(average).collect()
    }

    /// The learning rate of a step, counted from 1.
    pub fn rate(&self, step: u64) -> f64 {
        let scheduled = || f64::from(self.optimizer.learning_rate()) * self.schedule.factor(step - 1) * self.state.factor;
        self.fixed.unwrap_or_else(scheduled)
    }

    /// Those numbers for a step, counted from 1; steps that changed nothing are left out.
    pub fn scalars(&self, step: u64, numbers: &mut [f32]) {
        let own = self.optimizer.scalar_names().len();
        self.optimizer.scalars(step, self.rate(step), &mut numbers[..own]);
        if let Some(average) = self.average {
            numbers[own] = average.keep(step);
        }
    }

    /// Tells the schedule how an epoch went.
    pub fn observe(&mut self, epoch: &Epoch) -> Result<()> {
        let Some(monitor) = self.schedule.monitor() else { return Ok(()) };
        let Some(score) = epoch.score(monitor) else {
            let known = epoch.score_names().join(", ");
            return Err(Error::Config(format!("the schedule watches `{monitor}`, which this run does not report; it has {known}")));
        };
        self.schedule.observe(&mut self.state, score);
        Ok(())
    }

    /// The training programs of a forward graph.
    pub fn programs(
        &self,
        forward: &Graph,
        loss: ValueId,
        divisor: Option<ValueId>,
        accumulate: bool,
    ) -> Result<Vec<(Role, Graph)>, GraphError> {
        let local = self.clip.filter(|clip| clip.is_local());
        let rule = |g: &mut Graph, parameter: StateId, gradient: ValueId| {
            let gradient = local.map_or(Ok(gradient), |clip| clip.one(g, gradient))?;
            self.optimizer.update(g, parameter, gradient)?;
            self.average.map_or(Ok(()), |average| average.follow(g, parameter))
        };
        let global = self.clip.filter(|clip| !clip.is_local()).map(|clip| move |g: &mut Graph, all: &[ValueId]| clip.all(g, all));
        let gradients = global.as_ref().map(|rule| rule as &plimsoll_core::step::GradientsRule<'_>);
        let training = Training { rule: &rule, gradients, divisor, scaling: self.scaling() };
        training_programs_with(forward, loss, accumulate, &training)
    }
}

#[cfg(test)]
mod tests;
