//! The trainer: a model, data, a loss and a line go in; a plan comes out, then a trained model.

mod average;
mod custom;
mod predict;

use crate::allow::Allow;
use crate::cost::{Bandwidths, CostTable, profile_own_step};
use crate::devices::{self, Choice, Opened};
use crate::error::{Error, Result};
use crate::graphs::{Learning, Variant, Variants};
use crate::loss::Loss;
use crate::metrics::Metric;
use crate::nn::Model;
use crate::optim::{Clip, Ema, Optimizer};
use crate::output_loss::{OutputLoss, OutputLosses};
use crate::plan::{self, Count, LargestBatch, Request, RunPlan, Sweep, largest_batch, plan_run, prove, sweep};
use crate::precision::Precision;
use crate::schedule::{Schedule, ScheduleState};
use crate::session::Session;
use crate::{system, tensors};
use plimsoll_core::device::Device;
use plimsoll_core::loss_scale::LossScaling;
use plimsoll_core::passes::Columns;
use plimsoll_core::plan::Certificate;
use plimsoll_core::plan::{CostModel, Rates};
use plimsoll_core::{Budget, Graph};
use plimsoll_data::{Dataset, Extent};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use custom::{Batches, CustomLoop, HostBatch, Numbers};
pub use predict::{Predicted, Prediction};

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
    pub(crate) model: Model,
    pub(crate) data: Dataset,
    pub(crate) targets: OutputLosses,
    metrics: Option<Vec<Metric>>,
    pub(crate) learning: Learning,
    budget: Budget,
    pub(crate) micro_batch: Option<usize>,
    allow: Allow,
    count: Count,
    cost_model: Arc<dyn CostModel>,
    /// Whether that cost model was measured.
    measured: bool,
    /// How fast bytes move, as far as that was measured.
    transfers: Bandwidths,
    pub(crate) seed: u64,
    threads: Option<usize>,
    choice: Choice,
    profile: Option<String>,
    pub(crate) device: Option<Opened>,
    pub(crate) variants: Option<Variants>,
    /// The variant that runs, once memory is laid out for it.
    pub(crate) settled: Option<Variant>,
    /// Where tensors go that a plan keeps out of memory, on a device that shares the host's.
    pub(crate) offload_folder: Option<PathBuf>,
    /// Whether the run writes checkpoints, which takes memory too.
    pub(crate) checkpointed: bool,
    pub(crate) only_predicts: bool,
    pub(crate) session: Option<Session>,
}

impl Trainer {
    /// A trainer with softmax cross-entropy, Adam, the system's memory as line and seed 0.
    pub fn new(model: impl Into<Model>, data: &Dataset) -> Trainer {
        Trainer {
            model: model.into(),
            data: data.clone(),
            targets: OutputLosses::Only(Loss::SoftmaxCrossEntropy.into()),
            metrics: None,
            learning: Learning::default(),
            budget: Budget::default(),
            micro_batch: None,
            allow: Allow::default(),
            count: Count::default(),
            cost_model: Arc::new(Rates::default()),
            measured: false,
            transfers: Bandwidths::default(),
            seed: 0,
            threads: None,
            choice: Choice::default(),
            profile: None,
            device: None,
            variants: None,
            settled: None,
            offload_folder: None,
            checkpointed: false,
            only_predicts: false,
            session: None,
        }
    }

    /// With this loss, and what goes with it, for a model with one result.
    pub fn loss(mut self, loss: impl Into<OutputLoss>) -> Trainer {
        self.targets = OutputLosses::Only(loss.into());
        self
    }

    /// With a loss for each of the model's results, by its name; the total is their weighted sum. Reports have the total as `loss` and each
    /// as `NAME_loss`, and so for metrics. A result without a loss, or a loss without a result, is refused.
    ///
    /// ```
    /// use plimsoll::nn::{Flatten, Functional};
    /// use plimsoll::prelude::*;
    ///
    /// let mut net = Functional::new("two-headed");
    /// let x = net.input();
    /// let flat = net.add(Flatten, [x]);
    /// let hidden = net.add(Dense::new(16).relu(), [flat]);
    /// let (digit, again) = (net.add(Dense::new(10), [hidden]), net.add(Dense::new(10), [flat]));
    /// let data = Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).batch(32);
    /// let mut trainer = Trainer::new(net.build_many([("digit", digit), ("again", again)]), &data).losses([
    ///     ("digit", OutputLoss::new(Loss::SoftmaxCrossEntropy).labels("y")),
    ///     ("again", OutputLoss::new(Loss::SoftmaxCrossEntropy).labels("y").weight(0.3).metrics([])),
    /// ]);
    /// let scores = trainer.fit(Fit::epochs(1))?.last().unwrap().training.clone();
    /// let names: Vec<&str> = scores.iter().map(|(name, _)| name).collect();
    /// assert_eq!(names, ["loss", "digit_loss", "again_loss", "digit_accuracy"]);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn losses<'n>(mut self, losses: impl IntoIterator<Item = (&'n str, OutputLoss)>) -> Trainer {
        self.targets = OutputLosses::Named(losses.into_iter().map(|(name, target)| (name.to_string(), target)).collect());
        self
    }

    pub(crate) fn targets(mut self, targets: OutputLosses) -> Trainer {
        self.targets = targets;
        self
    }

    /// With these metrics instead of those usual for the loss. Those of several results are said with their [losses](Trainer::losses).
    pub fn metrics(mut self, metrics: impl IntoIterator<Item = Metric>) -> Trainer {
        self.metrics = Some(metrics.into_iter().collect());
        self
    }

    /// With this optimiser.
    pub fn optimizer(mut self, optimizer: impl Optimizer + 'static) -> Trainer {
        self.learning.optimizer = Arc::new(optimizer);
        self
    }

    pub(crate) fn shared_optimizer(mut self, optimizer: Arc<dyn Optimizer>) -> Trainer {
        self.learning.optimizer = optimizer;
        self
    }

    /// Keeps gradients small.
    pub fn clip(mut self, clip: Clip) -> Trainer {
        self.learning.clip = Some(clip);
        self
    }

    /// Varies the learning rate over the steps.
    pub fn schedule(mut self, schedule: Schedule) -> Trainer {
        self.learning.schedule = schedule;
        self
    }

    /// Keeps a slow average of the weights beside them; see [`Trainer::averaged`].
    pub fn average(mut self, average: Ema) -> Trainer {
        self.learning.average = Some(average);
        self
    }

    /// Keeps activations in this precision.
    pub fn precision(mut self, precision: Precision) -> Trainer {
        self.learning.precision = precision;
        self
    }

    /// Scales the loss while gradients are computed, and leaves out steps in which one overflows. Part of [`Precision::MixedF16`].
    pub fn loss_scaling(mut self, scaling: LossScaling) -> Trainer {
        self.learning.scaling = Some(scaling);
        self
    }

    /// What the schedule remembers, which a resumed run needs.
    pub fn schedule_state(&self) -> ScheduleState {
        self.session.as_ref().map_or(self.learning.state, |session| session.learning.state)
    }

    /// Gives the schedule back what it remembered.
    pub fn set_schedule_state(&mut self, state: ScheduleState) {
        self.learning.state = state;
        if let Some(session) = &mut self.session {
            session.learning.state = state;
        }
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

    /// Lets the planner do this to make the run fit, and nothing else.
    pub fn allow(mut self, allow: Allow) -> Trainer {
        self.allow = allow;
        self
    }

    /// Counts this towards the line when planning, to compare with others. Runs are always held to all that they take.
    pub fn count(mut self, count: Count) -> Trainer {
        self.count = count;
        self
    }

    pub(crate) fn set_count(&mut self, count: Count) {
        self.count = count;
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

    /// Puts tensors that a plan keeps out of memory into a file in this folder, which should be on a disk with room. Unless said, that is the
    /// system's folder for large temporary files; a run from a configuration uses its own folder. The file has no name and is gone with the
    /// run, however that ends.
    pub fn offload_folder(mut self, folder: impl Into<PathBuf>) -> Trainer {
        self.set_offload_folder(folder.into());
        self
    }

    pub(crate) fn set_offload_folder(&mut self, folder: PathBuf) {
        self.offload_folder = Some(folder);
    }

    /// Predicts times, and chooses between ways to fit, by what was measured of the device. Without it, by rates that are the same
    /// everywhere, so that the same run is planned alike on every machine.
    pub fn cost_table(mut self, costs: Arc<CostTable>) -> Trainer {
        self.set_cost_table(costs);
        self
    }

    pub(crate) fn set_cost_table(&mut self, costs: Arc<CostTable>) {
        self.transfers = costs.transfers;
        (self.cost_model, self.measured) = (costs, true);
    }

    /// Plans with room for writing checkpoints.
    pub(crate) fn with_checkpoints(mut self) -> Trainer {
        self.checkpointed = true;
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
    pub(crate) fn plan_to_run(&mut self, validation: Option<&Dataset>) -> Result<RunPlan> {
        self.count = Count::Everything;
        let plan = self.plan_with(validation)?;
        if self.session.is_some() {
            return Ok(plan);
        }
        let free = system::available_memory();
        let on_device = self.device.as_ref().and_then(|opened| opened.device.memory_info()).map(|memory| memory.available);
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
        plan_run(&self.request(budget, validation)?)
    }

    /// That the schedule lasts for this many epochs, as far as anybody knows how many steps they have.
    pub(crate) fn check_schedule(&self, epochs: u64, batch: usize) -> Result<()> {
        let Some(rows) = self.data.size_if_readable() else { return Ok(()) };
        self.learning.schedule.check(epochs.saturating_mul(rows.div_ceil(batch.max(1) as u64)))
    }

    /// The largest batch that runs in one piece under the line, answered from plans; none if not even one row fits.
    pub fn largest_batch(&mut self) -> Result<Option<LargestBatch>> {
        self.prepare()?;
        largest_batch(&self.request(self.budget, None)?)
    }

    /// The predicted time of a step under lower and lower lines, down to the least that works.
    pub fn sweep(&mut self) -> Result<Sweep> {
        self.prepare()?;
        sweep(&self.request(self.budget, None)?)
    }

    /// Proves that a certificate is an exact plan of this run's graphs on its device. A plan of something else, or one that was edited, is
    /// refused with the first thing that is wrong.
    pub fn prove(&mut self, certificate: &Certificate) -> Result<()> {
        self.prepare()?;
        prove(&self.request(self.budget, None)?, certificate)
    }

    /// Times the nodes of this run's own step that `costs` does not know yet, and adds them. Gives how many were timed.
    pub fn profile_own_step(&mut self, costs: &mut CostTable, limit: Duration) -> Result<usize> {
        let device = self.open_device()?;
        self.with_step(|graph, rows| profile_own_step(costs, &*device, graph, rows, limit))?
    }

    /// Opens the device it computes on, unless that is done already.
    pub(crate) fn open_device(&mut self) -> Result<Arc<dyn Device>> {
        if self.device.is_none() {
            // Before libraries are loaded, whose size is not the program's own.
            system::process_footprint();
            self.device = Some(devices::open(self.choice, self.threads, self.profile.as_deref())?);
            if !self.measured {
                self.cost_model = self.device.as_ref().expect("opened above").device.cost_model();
            }
        }
        Ok(Arc::clone(&self.device.as_ref().expect("opened above").device))
    }

    pub(crate) fn lines(&self) -> Budget {
        self.budget
    }

    pub(crate) fn chosen_threads(&self) -> Option<usize> {
        self.threads
    }

    /// Computes on a device that is open already.
    pub(crate) fn use_device(&mut self, opened: Opened) {
        self.device = Some(opened);
    }

    /// Shows the graph of a whole batch's step, and the batch.
    pub(crate) fn with_step<T>(&mut self, look: impl FnOnce(&Graph, usize) -> T) -> Result<T> {
        self.prepare()?;
        let request = self.request(self.budget, None)?;
        Ok(look(&request.programs.whole[0].1, request.batch))
    }

    /// What is to be planned; everything is prepared.
    fn request<'a>(&'a self, budget: Budget, validation: Option<&'a Dataset>) -> Result<Request<'a>> {
        let (Some(variants), Some(Opened { device, thread_stacks })) = (&self.variants, &self.device) else {
            unreachable!("prepared before")
        };
        let variant = self.settled.unwrap_or_default();
        let Some(rows) = self.data.batch_size() else {
            return Err(Error::Config("the data has no batch size; add `.batch(32)` or set `train.batch`".to_string()));
        };
        if self.data.is_empty() {
            return Err(Error::Config(format!("there is nothing to learn from: {} has no rows", self.data.describe())));
        }
        Ok(Request {
            model: self.model.title(),
            programs: variants.programs(variant)?,
            variants,
            variant,
            settled: self.settled.is_some(),
            device: &**device,
            data: &self.data,
            validation,
            batch: rows.min(usize::try_from(self.data.len()).unwrap_or(usize::MAX)),
            micro_batch: self.micro_batch,
            budget,
            thread_stacks: *thread_stacks,
            checkpointed: self.checkpointed,
            allow: self.allow,
            count: self.count,
            precision: variants.learning(variant).precision,
            in_pieces: false,
            effort: plan::THOROUGH,
            cost_model: &*self.cost_model,
            measured: self.measured,
            copy_rate: self.transfers.offload(&**device),
        })
    }

    /// What it learns from.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// Writes the weights as safetensors: whole or not at all.
    pub fn save_weights(&mut self, path: &Path) -> Result<()> {
        self.open_planned()?;
        tensors::save_weights(&self.session.as_ref().expect("opened above").executor, path)
    }

    /// Reads weights that [`save_weights`](Trainer::save_weights) wrote for the same model.
    pub fn load_weights(&mut self, path: &Path) -> Result<()> {
        self.open_planned()?;
        tensors::load_weights(&mut self.session.as_mut().expect("opened above").executor, path)
    }

    /// Writes the graphs and finds the device, once.
    fn prepare(&mut self) -> Result<()> {
        self.open_device()?;
        if self.variants.is_none() {
            let schema = self.data.output_schema()?;
            if let Some(column) = schema.columns().iter().find(|column| column.extent != Extent::Fixed) {
                let what = format!(
                    "a step is planned for rows of one shape, and those of `{column}` differ; pad them to the longest that was declared (`padded_batch`)"
                );
                return Err(Error::Config(what));
            }
            let targets = self.targets_with_metrics()?;
            // The CPU's products read any types; on a GPU the library wants one.
            let shared = self.device.as_ref().is_some_and(|opened| opened.device.capabilities().shares_host_memory);
            let columns = if shared { Columns::AsTheyAre } else { Columns::Narrowed };
            self.variants = Some(Variants::new(&self.model, schema, targets, &self.learning, columns, self.only_predicts)?);
        }
        Ok(())
    }

    /// The targets, with the metrics that were asked for apart from them.
    fn targets_with_metrics(&self) -> Result<OutputLosses> {
        let mut targets = self.targets.clone();
        let Some(metrics) = &self.metrics else { return Ok(targets) };
        match &mut targets {
            OutputLosses::Only(target) => target.metrics = Some(metrics.clone()),
            OutputLosses::Named(named) => match &mut named[..] {
                [(_, target)] => target.metrics = Some(metrics.clone()),
                _ => {
                    let what = "with several outputs, metrics belong to their losses: `OutputLoss::metrics`, or `metrics` beside `type`";
                    return Err(Error::Config(what.to_string()));
                }
            },
        }
        Ok(targets)
    }
}
