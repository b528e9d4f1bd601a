//! Learning-rate schedules: what the learning rate is multiplied by at every step.

use crate::error::{Error, Result};
use crate::metrics::lower_is_better;
use crate::reader::Reader;
use serde::{Deserialize, Serialize};

/// How the learning rate changes over the steps of a run.
///
/// Every schedule but [`ReduceOnPlateau`] is a function of the step's number, so a run that is resumed goes on exactly. One that has an end is
/// not carried on past it: training for more steps than it has is an error. Where nobody knows how many steps there will be, because the
/// data is a stream of unknown length, the learning rate stays where the schedule ended, with a warning.
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

/// Lowers the learning rate when a score has not improved for some epochs. The rule and its defaults are Keras' `ReduceLROnPlateau`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceOnPlateau {
    /// What the learning rate is multiplied by.
    pub factor: f64,
    /// Epochs without improvement before that.
    pub patience: u64,
    /// What counts as an improvement.
    pub min_delta: f64,
    /// Epochs to wait afterwards.
    pub cooldown: u64,
    /// The least the learning rate is ever multiplied by.
    pub floor: f64,
    /// The score that is watched, such as `val_loss`; scores other than losses and errors should grow.
    pub monitor: String,
}

impl Default for ReduceOnPlateau {
    fn default() -> ReduceOnPlateau {
        ReduceOnPlateau { factor: 0.1, patience: 10, min_delta: 1e-4, cooldown: 0, floor: 0.0, monitor: "val_loss".to_string() }
    }
}

/// What a plateau remembers: all that a resumed run needs beside the number of its step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// What the learning rate is multiplied by now.
    pub factor: f64,
    /// The best score so far.
    pub best: Option<f64>,
    /// Epochs since then.
    pub waited: u64,
    /// Epochs of rest that are left.
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

    /// The same learning rate at every step.
    pub fn constant() -> Schedule {
        Schedule::of(Decay::Constant)
    }

    /// Multiplied by `factor` once every `every` steps, as PyTorch's `StepLR`.
    pub fn step(every: u64, factor: f64) -> Schedule {
        Schedule::of(Decay::Step { every: every.max(1), factor })
    }

    /// Half a cosine from the learning rate down to nothing, as Keras' `CosineDecay`.
    pub fn cosine(steps: u64) -> Schedule {
        Schedule::of(Decay::Cosine { steps: Some(steps), floor: 0.0 })
    }

    /// A power of the share of steps that are left, from the learning rate down to `end` times it, as Keras' `PolynomialDecay`.
    pub fn polynomial(steps: u64, end: f64, power: f64) -> Schedule {
        Schedule::of(Decay::Polynomial { steps: Some(steps), end, power })
    }

    /// Multiplied by `rate` over every `steps` steps, little by little, as Keras' `ExponentialDecay`.
    pub fn exponential(steps: u64, rate: f64) -> Schedule {
        Schedule::of(Decay::Exponential { steps: steps.max(1), rate, staircase: false })
    }

    /// Up to the learning rate and down to almost nothing, both along cosines, as PyTorch's `OneCycleLR`.
    pub fn one_cycle(steps: u64) -> Schedule {
        Schedule::of(Decay::OneCycle { steps: Some(steps), rising: 0.3, start: 1.0 / 25.0, end: 1e-4 / 25.0 })
    }

    /// Constant until a score stops improving.
    pub fn plateau(plateau: ReduceOnPlateau) -> Schedule {
        Schedule { plateau: Some(plateau), ..Schedule::constant() }
    }

    /// For a cosine: down to this share of the learning rate instead of nothing.
    pub fn floor(mut self, share: f64) -> Schedule {
        if let Decay::Cosine { floor, .. } = &mut self.decay {
            *floor = share;
        }
        self
    }

    /// For an exponential decay: all at once at the end of every stretch of steps.
    pub fn staircase(mut self) -> Schedule {
        if let Decay::Exponential { staircase, .. } = &mut self.decay {
            *staircase = true;
        }
        self
    }

    /// For one cycle: the share of steps on the way up, and the first and the last learning rate as shares of the highest.
    pub fn cycle(mut self, up: f64, first: f64, last: f64) -> Schedule {
        if let Decay::OneCycle { rising, start, end, .. } = &mut self.decay {
            (*rising, *start, *end) = (up, first, last);
        }
        self
    }

    /// Before everything else, this many steps from nothing up to the learning rate, in a straight line.
    pub fn warm_up(self, steps: u64) -> Schedule {
        Schedule { warm_up: steps, ..self }
    }

    /// Without a length of its own: as long as the run turns out to be.
    pub(crate) fn open_ended(mut self) -> Schedule {
        if let Some(steps) = self.steps_mut() {
            *steps = None;
        }
        self
    }

    /// The same, as long as a run of this many steps, where no length was given.
    pub(crate) fn fitted(mut self, run: u64) -> Schedule {
        let rest = run.saturating_sub(self.warm_up).max(1);
        if let Some(steps) = self.steps_mut().filter(|steps| steps.is_none()) {
            *steps = Some(rest);
        }
        self
    }

    /// Whether it is as long as the run turns out to be.
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

    /// How many steps it has; none if it never ends.
    pub fn length(&self) -> Option<u64> {
        match self.decay {
            Decay::Cosine { steps, .. } | Decay::Polynomial { steps, .. } | Decay::OneCycle { steps, .. } => {
                steps.map(|steps| steps + self.warm_up)
            }
            _ => None,
        }
    }

    /// Refuses a run of more steps than it has.
    pub fn check(&self, steps: u64) -> Result<()> {
        match self.length() {
            Some(length) if length < steps => Err(Error::Config(format!(
                "the {} schedule ends after {length} steps, but training goes on to step {steps}; give the schedule more steps \
                 (`train.schedule.steps`, or leave them out to fit the run) or train for fewer epochs",
                self.name()
            ))),
            _ => Ok(()),
        }
    }

    /// What the learning rate is multiplied by at a step, counted from 0.
    pub fn factor(&self, step: u64) -> f64 {
        if step < self.warm_up {
            return step as f64 / self.warm_up as f64;
        }
        let at = step - self.warm_up;
        // Where a step stands between the first and the end.
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

    /// The score an epoch must report, if the schedule listens to one.
    pub fn monitor(&self) -> Option<&str> {
        self.plateau.as_ref().map(|plateau| plateau.monitor.as_str())
    }

    /// Listens to the score of an epoch.
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

/// How a configuration writes a schedule. The list of types, their keys and hints and the table in `docs/training.md` follow from it.
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
    fn schedules_are_those_of_keras_and_pytorch() {
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
    fn a_schedule_that_ends_too_early_is_refused() {
        let error = Schedule::cosine(90).warm_up(10).check(101).unwrap_err().to_string();
        assert_eq!(
            error,
            "the cosine schedule ends after 100 steps, but training goes on to step 101; give the schedule more steps \
             (`train.schedule.steps`, or leave them out to fit the run) or train for fewer epochs"
        );
        assert!(Schedule::cosine(90).warm_up(10).check(100).is_ok());
        assert_eq!(Schedule::cosine(1).open_ended().warm_up(10).fitted(500).length(), Some(500));
        assert!(Schedule::step(3, 0.5).check(u64::MAX).is_ok(), "it never ends");
    }

    #[test]
    fn a_plateau_lowers_the_rate_after_its_patience_and_rests() {
        let schedule =
            Schedule::plateau(ReduceOnPlateau { factor: 0.5, patience: 2, cooldown: 1, floor: 0.2, ..ReduceOnPlateau::default() });
        let mut state = ScheduleState::default();
        let factors: Vec<f64> = [1.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.5, 0.5, 0.5, 0.5]
            .into_iter()
            .map(|loss| {
                // As a resumed run would have it.
                state = serde_json::from_value(serde_json::to_value(state).unwrap()).unwrap();
                schedule.observe(&mut state, loss);
                state.factor
            })
            .collect();
        assert_eq!(factors, [1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2]);
    }
}
