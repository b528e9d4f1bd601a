//! Learning-rate schedules.

use crate::error::{Error, Result};
use crate::metrics::lower_is_better;
use crate::reader::Reader;
use serde::{Deserialize, Serialize};

/// A learning-rate schedule: the factor of the learning rate at every step.
///
/// Every schedule but [`ReduceOnPlateau`] is a function of the step, so a resumed run continues exactly. A schedule
/// with a length cannot be exceeded: training for more steps is an error. Over a stream of unknown length, the learning
/// rate stays at the final value, with a warning.
///
/// ```
/// use plimsoll::Schedule;
/// let schedule = Schedule::cosine(900).warm_up(100);
/// assert_eq!(schedule.length(), Some(1000));
/// assert_eq!((schedule.factor(0), schedule.factor(100)), (0.0, 1.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    decay: Decay,
    warm_up: u64,
    plateau: Option<ReduceOnPlateau>,
}

/// The curve after the warm-up.
#[derive(Clone, Debug, PartialEq)]
enum Decay {
    Constant,
    Step { every: u64, factor: f64 },
    Cosine { steps: Option<u64>, floor: f64 },
    Polynomial { steps: Option<u64>, end: f64, power: f64 },
    Exponential { steps: u64, rate: f64, staircase: bool },
    OneCycle { steps: Option<u64>, rising: f64, start: f64, end: f64 },
}

/// Reduces the learning rate when a metric has stopped improving. The rule and its defaults are Keras'
/// `ReduceLROnPlateau`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceOnPlateau {
    /// The factor by which the learning rate is reduced.
    pub factor: f64,
    /// Epochs without improvement before a reduction.
    pub patience: u64,
    /// The minimum change that counts as an improvement.
    pub min_delta: f64,
    /// Epochs to wait after a reduction before counting again.
    pub cooldown: u64,
    /// The minimum factor.
    pub floor: f64,
    /// The monitored metric, such as `val_loss`; metrics other than losses and errors improve as they increase.
    pub monitor: String,
}

impl Default for ReduceOnPlateau {
    fn default() -> ReduceOnPlateau {
        ReduceOnPlateau { factor: 0.1, patience: 10, min_delta: 1e-4, cooldown: 0, floor: 0.0, monitor: "val_loss".to_string() }
    }
}

/// The state of [`ReduceOnPlateau`], saved in checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// The current factor of the learning rate.
    pub factor: f64,
    /// The best value so far.
    pub best: Option<f64>,
    /// Epochs since then.
    pub waited: u64,
    /// Remaining epochs of cooldown.
    pub resting: u64,
}

impl Default for ScheduleState {
    fn default() -> ScheduleState {
        ScheduleState { factor: 1.0, best: None, waited: 0, resting: 0 }
    }
}

impl Schedule {
    fn of(decay: Decay) -> Schedule {
        Schedule { decay, warm_up: 0, plateau: None }
    }

    /// A constant learning rate.
    pub fn constant() -> Schedule {
        Schedule::of(Decay::Constant)
    }

    /// Multiplies by `factor` every `every` steps, as PyTorch's `StepLR`.
    pub fn step(every: u64, factor: f64) -> Schedule {
        Schedule::of(Decay::Step { every: every.max(1), factor })
    }

    /// Cosine decay from the learning rate to zero, as Keras' `CosineDecay`.
    pub fn cosine(steps: u64) -> Schedule {
        Schedule::of(Decay::Cosine { steps: Some(steps), floor: 0.0 })
    }

    /// Polynomial decay from the learning rate to `end` times it, as Keras' `PolynomialDecay`.
    pub fn polynomial(steps: u64, end: f64, power: f64) -> Schedule {
        Schedule::of(Decay::Polynomial { steps: Some(steps), end, power })
    }

    /// Exponential decay by `rate` per `steps` steps, as Keras' `ExponentialDecay`.
    pub fn exponential(steps: u64, rate: f64) -> Schedule {
        Schedule::of(Decay::Exponential { steps: steps.max(1), rate, staircase: false })
    }

    /// One cycle up to the learning rate and down again with cosine annealing, as PyTorch's `OneCycleLR`.
    pub fn one_cycle(steps: u64) -> Schedule {
        Schedule::of(Decay::OneCycle { steps: Some(steps), rising: 0.3, start: 1.0 / 25.0, end: 1e-4 / 25.0 })
    }

    /// Constant until the monitored metric stops improving.
    pub fn plateau(plateau: ReduceOnPlateau) -> Schedule {
        Schedule { plateau: Some(plateau), ..Schedule::constant() }
    }

    /// For cosine decay: the final learning rate as a fraction of the initial one.
    pub fn floor(mut self, share: f64) -> Schedule {
        if let Decay::Cosine { floor, .. } = &mut self.decay {
            *floor = share;
        }
        self
    }

    /// For exponential decay: decays at discrete intervals.
    pub fn staircase(mut self) -> Schedule {
        if let Decay::Exponential { staircase, .. } = &mut self.decay {
            *staircase = true;
        }
        self
    }

    /// For one cycle: the fraction of steps with increasing rate, and the first and last rate as fractions of the
    /// maximum.
    pub fn cycle(mut self, up: f64, first: f64, last: f64) -> Schedule {
        if let Decay::OneCycle { rising, start, end, .. } = &mut self.decay {
            (*rising, *start, *end) = (up, first, last);
        }
        self
    }

    /// Linear warm-up from zero over this many steps.
    pub fn warm_up(self, steps: u64) -> Schedule {
        Schedule { warm_up: steps, ..self }
    }

    /// Without a length of its own: as long as the run.
    pub(crate) fn open_ended(mut self) -> Schedule {
        if let Some(steps) = self.steps_mut() {
            *steps = None;
        }
        self
    }

    /// The same with the length of a run of this many steps, unless a length was given.
    pub(crate) fn fitted(mut self, run: u64) -> Schedule {
        let rest = run.saturating_sub(self.warm_up).max(1);
        if let Some(steps) = self.steps_mut().filter(|steps| steps.is_none()) {
            *steps = Some(rest);
        }
        self
    }

    /// Whether its length is that of the run.
    pub(crate) fn is_open_ended(&self) -> bool {
        let (Decay::Cosine { steps, .. } | Decay::Polynomial { steps, .. } | Decay::OneCycle { steps, .. }) = self.decay else {
            return false;
        };
        steps.is_none()
    }

    fn steps_mut(&mut self) -> Option<&mut Option<u64>> {
        match &mut self.decay {
            Decay::Cosine { steps, .. } | Decay::Polynomial { steps, .. } | Decay::OneCycle { steps, .. } => Some(steps),
            _ => None,
        }
    }

    /// The name in configurations.
    pub fn name(&self) -> &'static str {
        match self.decay {
            Decay::Constant if self.plateau.is_some() => PLATEAU,
            Decay::Constant => CONSTANT,
            Decay::Step { .. } => STEP,
            Decay::Cosine { .. } => COSINE,
            Decay::Polynomial { .. } => POLYNOMIAL,
            Decay::Exponential { .. } => EXPONENTIAL,
            Decay::OneCycle { .. } => ONE_CYCLE,
        }
    }

    /// Its length in steps; none if it has no end.
    pub fn length(&self) -> Option<u64> {
        match self.decay {
            Decay::Cosine { steps, .. } | Decay::Polynomial { steps, .. } | Decay::OneCycle { steps, .. } => {
                steps.map(|steps| steps + self.warm_up)
            }
            _ => None,
        }
    }

    /// An error if a run has more steps than the schedule.
    pub fn check(&self, steps: u64) -> Result<()> {
        match self.length() {
            Some(length) if length < steps => Err(Error::Config(format!(
                "the {} schedule ends after {length} steps, but training continues to step {steps}; give it more steps \
                 (`train.schedule.steps`; by default, the length of the run) or train for fewer epochs",
                self.name()
            ))),
            _ => Ok(()),
        }
    }

    /// The factor of the learning rate at a step, counted from 0.
    pub fn factor(&self, step: u64) -> f64 {
        if step < self.warm_up {
            return step as f64 / self.warm_up as f64;
        }
        let at = step - self.warm_up;
        // The fraction of the schedule that is done.
        let share = |steps: Option<u64>| (at as f64 / steps.unwrap_or(1).max(1) as f64).min(1.0);
        let falling = |share: f64| 0.5 * (1.0 + (std::f64::consts::PI * share).cos());
        match self.decay {
            Decay::Constant => 1.0,
            Decay::Step { every, factor } => factor.powf((at / every) as f64),
            Decay::Cosine { steps, floor } => floor + (1.0 - floor) * falling(share(steps)),
            Decay::Polynomial { steps, end, power } => end + (1.0 - end) * (1.0 - share(steps)).powf(power),
            Decay::Exponential { steps, rate, staircase } => {
                let stretches = at as f64 / steps as f64;
                rate.powf(if staircase { stretches.floor() } else { stretches })
            }
            Decay::OneCycle { steps, rising, start, end } => {
                let steps = steps.unwrap_or(1) as f64;
                let (top, last) = (rising * steps - 1.0, steps - 1.0);
                let at = (at as f64).min(last);
                if at <= top {
                    1.0 + (start - 1.0) * falling(if top > 0.0 { at / top } else { 1.0 })
                } else {
                    end + (1.0 - end) * falling(if last > top { (at - top) / (last - top) } else { 1.0 })
                }
            }
        }
    }

    /// The monitored metric, if any.
    pub fn monitor(&self) -> Option<&str> {
        self.plateau.as_ref().map(|plateau| plateau.monitor.as_str())
    }

    /// Updates the state with the metric of an epoch.
    pub fn observe(&self, state: &mut ScheduleState, score: f64) {
        let Some(plateau) = &self.plateau else { return };
        let falls = lower_is_better(&plateau.monitor);
        let better = state.best.is_none_or(|best| if falls { score < best - plateau.min_delta } else { score > best + plateau.min_delta });
        if state.resting > 0 {
            state.resting -= 1;
            state.waited = 0;
        }
        if better {
            state.best = Some(score);
            state.waited = 0;
        } else if state.resting == 0 {
            state.waited += 1;
            if state.waited >= plateau.patience {
                state.factor = (state.factor * plateau.factor).max(plateau.floor);
                state.resting = plateau.cooldown;
                state.waited = 0;
            }
        }
    }
}

/// How a configuration writes a schedule. The list of types, their keys and hints and the table in `docs/training.md`
/// follow from it.
#[derive(Clone, Copy)]
pub(crate) struct ScheduleDef {
    /// The `type`.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// The required keys with typical values, as TOML.
    pub example: &'static str,
    /// Builds the schedule from its table; every type takes `warm_up` too.
    from_config: fn(&Reader<'_>) -> Result<Schedule>,
}

/// Every schedule that a configuration can name, in the order of the docs.
pub(crate) const SCHEDULES: &[ScheduleDef] = &[
    ScheduleDef { name: CONSTANT, about: "A constant learning rate", example: "", from_config: |_| Ok(Schedule::constant()) },
    ScheduleDef {
        name: STEP,
        about: "PyTorch `StepLR`",
        example: "every = 1000",
        from_config: |config| {
            let every = config.required_count("every", 1, "the number of steps between two decays")?;
            Ok(Schedule::step(every as u64, f64::from(config.non_negative_or("factor", 0.1)?)))
        },
    },
    ScheduleDef {
        name: COSINE,
        about: "Keras `CosineDecay`",
        example: "",
        from_config: |config| Ok(sized(config, Schedule::cosine)?.floor(f64::from(config.non_negative_or("floor", 0.0)?))),
    },
    ScheduleDef {
        name: POLYNOMIAL,
        about: "Keras `PolynomialDecay`",
        example: "",
        from_config: |config| {
            let (end, power) = (f64::from(config.non_negative_or("end", 0.1)?), f64::from(config.non_negative_or("power", 1.0)?));
            sized(config, |steps| Schedule::polynomial(steps, end, power))
        },
    },
    ScheduleDef {
        name: EXPONENTIAL,
        about: "Keras `ExponentialDecay`",
        example: "steps = 1000",
        from_config: |config| {
            let steps = config.required_count("steps", 1, "the number of steps of one decay by `rate`")?;
            let schedule = Schedule::exponential(steps as u64, f64::from(config.non_negative_or("rate", 0.96)?));
            Ok(if config.flag_or("staircase", false)? { schedule.staircase() } else { schedule })
        },
    },
    ScheduleDef {
        name: ONE_CYCLE,
        about: "PyTorch `OneCycleLR`",
        example: "",
        from_config: |config| {
            let number = |key: &'static str, default: f32| config.non_negative_or(key, default).map(f64::from);
            Ok(sized(config, Schedule::one_cycle)?.cycle(number("rising", 0.3)?, number("first", 0.04)?, number("last", 4e-6)?))
        },
    },
    ScheduleDef {
        name: PLATEAU,
        about: "Keras `ReduceLROnPlateau`",
        example: "",
        from_config: |config| {
            let default = ReduceOnPlateau::default();
            let number = |key: &'static str, default: f64| config.non_negative_or(key, default as f32).map(f64::from);
            Ok(Schedule::plateau(ReduceOnPlateau {
                factor: number("factor", default.factor)?,
                patience: config.count_from_zero_or("patience", default.patience)?,
                min_delta: number("min_delta", default.min_delta)?,
                cooldown: config.count_from_zero_or("cooldown", default.cooldown)?,
                floor: number("floor", default.floor)?,
                monitor: config.text("monitor")?.map_or(default.monitor, str::to_string),
            }))
        },
    },
];

const CONSTANT: &str = "constant";
const STEP: &str = "step";
const COSINE: &str = "cosine";
const POLYNOMIAL: &str = "polynomial";
const EXPONENTIAL: &str = "exponential";
const ONE_CYCLE: &str = "one_cycle";
const PLATEAU: &str = "plateau";

/// A schedule of `steps` steps, or as long as the run.
fn sized(config: &Reader<'_>, schedule: impl FnOnce(u64) -> Schedule) -> Result<Schedule> {
    match config.count("steps", 1)? {
        Some(steps) => Ok(schedule(steps)),
        None => Ok(schedule(1).open_ended()),
    }
}

impl ScheduleDef {
    /// The schedule that a table describes.
    pub fn build(&self, config: &Reader<'_>) -> Result<Schedule> {
        let schedule = (self.from_config)(config)?;
        Ok(schedule.warm_up(config.count_from_zero_or("warm_up", 0)?))
    }
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule::constant()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn check(name: &str, schedule: &Schedule, reference: &Value) {
        for (step, expected) in reference[name].as_array().unwrap().iter().enumerate() {
            let (factor, expected) = (schedule.factor(step as u64), expected.as_f64().unwrap());
            assert!((factor - expected).abs() < 1e-6, "{name}, step {step}: {factor} instead of {expected}");
        }
    }

    #[test]
    fn schedules_match_keras_and_pytorch() {
        let keras = serde_json::from_str(include_str!("../tests/references/schedules_keras.json")).unwrap();
        check("cosine", &Schedule::cosine(20).floor(0.1), &keras);
        check("cosine_warm_up", &Schedule::cosine(15).warm_up(5), &keras);
        check("polynomial", &Schedule::polynomial(20, 0.2, 2.0), &keras);
        check("exponential", &Schedule::exponential(4, 0.7), &keras);
        check("exponential_staircase", &Schedule::exponential(4, 0.7).staircase(), &keras);
        let torch = serde_json::from_str(include_str!("../tests/references/schedules_torch.json")).unwrap();
        check("step", &Schedule::step(6, 0.3), &torch);
        check("one_cycle", &Schedule::one_cycle(20), &torch);
    }

    #[test]
    fn a_schedule_shorter_than_the_run_is_refused() {
        let error = Schedule::cosine(90).warm_up(10).check(101).unwrap_err().to_string();
        assert_eq!(
            error,
            "the cosine schedule ends after 100 steps, but training continues to step 101; give it more steps \
             (`train.schedule.steps`; by default, the length of the run) or train for fewer epochs"
        );
        assert!(Schedule::cosine(90).warm_up(10).check(100).is_ok());
        assert_eq!(Schedule::cosine(1).open_ended().warm_up(10).fitted(500).length(), Some(500));
        assert!(Schedule::step(3, 0.5).check(u64::MAX).is_ok(), "it never ends");
    }

    #[test]
    fn reduce_on_plateau_waits_for_patience_and_cooldown() {
        let schedule =
            Schedule::plateau(ReduceOnPlateau { factor: 0.5, patience: 2, cooldown: 1, floor: 0.2, ..ReduceOnPlateau::default() });
        let mut state = ScheduleState::default();
        let factors: Vec<f64> = [1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.5, 0.5, 0.5, 0.5]
            .into_iter()
            .map(|loss| {
                // Through JSON, as a resumed run does.
                state = serde_json::from_value(serde_json::to_value(state).unwrap()).unwrap();
                schedule.observe(&mut state, loss);
                state.factor
            })
            .collect();
        assert_eq!(factors, [1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2]);
    }
}
