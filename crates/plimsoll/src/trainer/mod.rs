//! The trainer: a model, data, a loss and a line go in; a plan comes out, then a trained model.

mod explain;
mod fit;
mod plan;
mod predict;
mod programs;
mod session;

use crate::devices::{self, Choice, Opened};
use crate::error::{Error, Result};
use crate::loss::{Loss, Metric};
use crate::nn::Model;
use crate::optim::{Adam, Optimizer};
use crate::{system, weights};
use plan::{PlanError, Request, plan_run};
use plimsoll_core::Budget;
use plimsoll_data::Dataset;
use programs::{Programs, programs};
use session::Session;
use std::path::Path;
use std::sync::Arc;

pub use fit::{Epoch, Event, Fit, History, Scores};
pub use plan::{DeviceLine, Infeasible, RunPlan};
pub use predict::Prediction;

/// Trains a model on data under a line.
///
/// ```
/// use plimsoll::prelude::*;
///
/// let data = Dataset::digits(Split::Train).shuffle(Shuffle::seed(7)).map("x", [scale(1.0 / 16.0)]).batch(32);
/// let held_out = Dataset::digits(Split::Test).map("x", [scale(1.0 / 16.0)]).batch(32);
/// let mut trainer = Trainer::new(zoo::mlp(10), &data)
///     .loss(Loss::SoftmaxCrossEntropy)
///     .optimizer(Adam::default())
///     .budget(Budget::host("96MiB")?);
/// println!("{}", trainer.plan()?);
/// let history = trainer.fit(Fit::epochs(2).validate(&held_out))?;
/// assert!(history.last().unwrap().validation.as_ref().unwrap().accuracy.unwrap() > 0.8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trainer {
    model: Model,
    data: Dataset,
    loss: Loss,
    metrics: Option<Vec<Metric>>,
    optimizer: Arc<dyn Optimizer>,
    budget: Budget,
    micro_batch: Option<usize>,
    seed: u64,
    threads: Option<usize>,
    choice: Choice,
    profile: Option<String>,
    device: Option<Opened>,
    programs: Option<Programs>,
    session: Option<Session>,
}

impl Trainer {
    /// A trainer with softmax cross-entropy, Adam, the system's memory as line and seed 0.
    pub fn new(model: impl Into<Model>, data: &Dataset) -> Trainer {
        Trainer {
            model: model.into(),
            data: data.clone(),
            loss: Loss::SoftmaxCrossEntropy,
            metrics: None,
            optimizer: Arc::new(Adam::default()),
            budget: Budget::default(),
            micro_batch: None,
            seed: 0,
            threads: None,
            choice: Choice::default(),
            profile: None,
            device: None,
            programs: None,
            session: None,
        }
    }

    /// With this loss.
    pub fn loss(mut self, loss: Loss) -> Trainer {
        self.loss = loss;
        self
    }

    /// With these metrics instead of those usual for the loss.
    pub fn metrics(mut self, metrics: impl IntoIterator<Item = Metric>) -> Trainer {
        self.metrics = Some(metrics.into_iter().collect());
        self
    }

    /// With this optimiser.
    pub fn optimizer(mut self, optimizer: impl Optimizer + 'static) -> Trainer {
        self.optimizer = Arc::new(optimizer);
        self
    }

    pub(crate) fn shared_optimizer(mut self, optimizer: Arc<dyn Optimizer>) -> Trainer {
        self.optimizer = optimizer;
        self
    }

    /// Under this line.
    pub fn budget(mut self, budget: Budget) -> Trainer {
        self.budget = budget;
        self
    }

    /// Cuts every batch into pieces of at most this many rows and sums their gradients; the result is that of the whole batch.
    /// Unless said, the largest piece that fits under the line is taken.
    pub fn micro_batch(mut self, rows: usize) -> Trainer {
        self.micro_batch = Some(rows);
        self
    }

    /// Chooses the first weights and every random number. The same seed gives the same result at any number of threads.
    pub fn seed(mut self, seed: u64) -> Trainer {
        self.seed = seed;
        self
    }

    /// Computes with this many threads instead of one per core.
    pub fn threads(mut self, threads: usize) -> Trainer {
        self.threads = Some(threads);
        self
    }

    /// Computes there instead of on the CPU.
    pub fn device(mut self, choice: Choice) -> Trainer {
        self.choice = choice;
        self
    }

    /// Plans as if the device were the one of this profile, such as `h200`. Nothing can be computed then.
    pub fn device_profile(mut self, profile: &str) -> Trainer {
        self.profile = Some(profile.to_string());
        self
    }

    /// What the run will need, exactly, or why it cannot be.
    pub fn plan(&mut self) -> Result<RunPlan> {
        self.plan_with(None)
    }

    /// The same for a run that also validates.
    pub fn plan_with(&mut self, validation: Option<&Dataset>) -> Result<RunPlan> {
        self.plan_under(self.budget, validation)
    }

    /// The plan for a run that starts now: if less is free than the plan would use, it is made again for what is there.
    fn plan_to_run(&mut self, validation: Option<&Dataset>) -> Result<RunPlan> {
        let plan = self.plan_with(validation)?;
        if self.session.is_some() {
            return Ok(plan);
        }
        let free = system::available_memory();
        let on_device = self.device.as_ref().and_then(|opened| opened.device.available());
        let host_short = plan.total() > free;
        let device_short = plan.device_memory.as_ref().zip(on_device).is_some_and(|(planned, free)| planned.total() > free);
        if !host_short && !device_short {
            return Ok(plan);
        }
        let budget = Budget {
            host: if host_short { Some(free) } else { self.budget.host },
            device: if device_short { on_device } else { self.budget.device },
        };
        let mut again = self.plan_under(budget, validation)?;
        again.promised = host_short.then_some(plan.line);
        if let (true, Some(now), Some(before)) = (device_short, &mut again.device_memory, &plan.device_memory) {
            now.promised = Some(before.line);
        }
        Ok(again)
    }

    fn plan_under(&mut self, budget: Budget, validation: Option<&Dataset>) -> Result<RunPlan> {
        self.prepare()?;
        let (Some(programs), Some(Opened { device, thread_stacks })) = (&self.programs, &self.device) else {
            unreachable!("prepared above")
        };
        let Some(rows) = self.data.batch_size() else {
            return Err(Error::Config("the data has no batch size; add `.batch(32)` or set `train.batch`".to_string()));
        };
        if self.data.size().is_none() && !self.data.drops_remainder() {
            let what = format!(
                "how many rows {} has is known only when they have come; add drop_remainder or assert_cardinality",
                self.data.describe()
            );
            return Err(Error::Config(what));
        }
        if self.data.is_empty() {
            return Err(Error::Config(format!("there is nothing to learn from: {} has no rows", self.data.describe())));
        }
        let batch = rows.min(usize::try_from(self.data.len()).unwrap_or(usize::MAX));
        let request = Request {
            model: self.model.title(),
            programs,
            device: &**device,
            data: &self.data,
            validation,
            batch,
            micro_batch: self.micro_batch,
            budget,
            thread_stacks: *thread_stacks,
        };
        plan_run(&request).map_err(|error| match error {
            PlanError::Infeasible(infeasible) => Error::Infeasible(infeasible),
            PlanError::Other(error) => error,
        })
    }

    /// Writes the weights as safetensors: whole or not at all.
    pub fn save_weights(&mut self, path: &Path) -> Result<()> {
        self.open_planned()?;
        weights::save(&self.session.as_ref().expect("opened above").executor, path)
    }

    /// Reads weights that [`save_weights`](Trainer::save_weights) wrote for the same model.
    pub fn load_weights(&mut self, path: &Path) -> Result<()> {
        self.open_planned()?;
        weights::load(&mut self.session.as_mut().expect("opened above").executor, path)
    }

    /// Writes the graphs and finds the device, once.
    fn prepare(&mut self) -> Result<()> {
        if self.device.is_none() {
            // Before libraries are loaded, whose size is not the program's own.
            system::process_footprint();
            self.device = Some(devices::open(self.choice, self.threads, self.profile.as_deref())?);
        }
        if self.programs.is_none() {
            let schema = self.data.output_schema()?;
            let metrics = self.metrics.clone().unwrap_or_else(|| self.loss.default_metrics());
            self.programs = Some(programs(&self.model, &schema, self.loss, &metrics, &*self.optimizer)?);
        }
        Ok(())
    }
}
