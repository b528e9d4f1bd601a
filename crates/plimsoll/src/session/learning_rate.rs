//! The learning rate of a running session: the schedule with its observed scores, or a manual rate.

use crate::error::{Error, Result};
use crate::history::Epoch;
use crate::schedule::ScheduleState;
use crate::spec::Optimization;

/// The learning rate as the run continues.
#[derive(Clone, Debug, Default)]
pub(crate) struct LearningRate {
    /// State of a schedule that monitors a score.
    pub state: ScheduleState,
    /// A rate that was set by hand, instead of the schedule's.
    pub manual: Option<f64>,
}

impl LearningRate {
    /// The learning rate of a step, counted from 1.
    pub fn at(&self, step: u64, optimization: &Optimization) -> f64 {
        let scheduled = || f64::from(optimization.optimizer.learning_rate()) * optimization.schedule.factor(step - 1) * self.state.factor;
        self.manual.unwrap_or_else(scheduled)
    }

    /// Lets the schedule observe the scores of an epoch.
    pub fn observe(&mut self, epoch: &Epoch, optimization: &Optimization) -> Result<()> {
        let Some(monitor) = optimization.schedule.monitor() else { return Ok(()) };
        let Some(score) = epoch.score(monitor) else {
            let known = epoch.score_names().join(", ");
            return Err(Error::Config(format!("the schedule watches `{monitor}`, which this run does not report; it has {known}")));
        };
        optimization.schedule.observe(&mut self.state, score);
        Ok(())
    }
}
