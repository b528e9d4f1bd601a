//! The builder methods of a trainer. Each sets one part of its [`RunSpec`].

use super::Trainer;
use crate::allow::Allow;
use crate::cost::CostTable;
use crate::devices::DeviceSpec;
use crate::distill::Distill;
use crate::error::Result;
use crate::metrics::Metric;
use crate::nn::{Model, Quantize};
use crate::optim::{Clip, Ema, Optimizer};
use crate::output_loss::{OutputLoss, OutputLosses};
use crate::precision::Precision;
use crate::prune::Prune;
use crate::ranks::{Parallel, Ranks};
use crate::schedule::Schedule;
use crate::spec::{Count, RunSpec};
use plimsoll_core::Budget;
use plimsoll_core::loss_scale::LossScaling;
use plimsoll_data::Dataset;
use std::path::PathBuf;
use std::sync::Arc;

impl Trainer {
    /// A trainer with softmax cross-entropy, Adam, all free memory as budget and seed 0.
    pub fn new(model: impl Into<Model>, data: &Dataset) -> Trainer {
        RunSpec::new(model, data).into()
    }

    /// Sets the loss of a model with one output.
    pub fn loss(mut self, loss: impl Into<OutputLoss>) -> Trainer {
        self.spec.losses = OutputLosses::Only(loss.into());
        self
    }

    /// Sets a loss for each of the model's outputs, by name; the total is their weighted sum. Reports have the total as
    /// `loss` and each as `NAME_loss`, and so for metrics. An output without a loss, or a loss without an output, is an
    /// error.
    ///
    /// ```
    /// use plimsoll::nn::{Flatten, Functional};
    /// use plimsoll::prelude::*;
    ///
    /// let mut net = Functional::new("two-headed");
    /// let x = net.input();
    /// let flat = net.add(Flatten, [x]);
    /// let hidden = net.add(Dense::new(16).relu(), [flat]);
    /// let (digit, linear) = (net.add(Dense::new(10), [hidden]), net.add(Dense::new(10), [flat]));
    /// let data = Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).batch(32);
    /// let mut trainer = Trainer::new(net.build_many([("digit", digit), ("linear", linear)]), &data).losses([
    ///     ("digit", OutputLoss::new(Loss::SoftmaxCrossEntropy).labels("y")),
    ///     ("linear", OutputLoss::new(Loss::SoftmaxCrossEntropy).labels("y").weight(0.3).metrics([])),
    /// ]);
    /// let scores = trainer.fit(Fit::epochs(1))?.last().unwrap().training.clone();
    /// let names: Vec<&str> = scores.iter().map(|(name, _)| name).collect();
    /// assert_eq!(names, ["loss", "digit_loss", "linear_loss", "digit_accuracy"]);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn losses<'n>(mut self, losses: impl IntoIterator<Item = (&'n str, OutputLoss)>) -> Trainer {
        self.spec.losses = OutputLosses::Named(losses.into_iter().map(|(name, loss)| (name.to_string(), loss)).collect());
        self
    }

    /// Sets the metrics, instead of the usual ones of the loss. Those of several outputs are set with their
    /// [losses](Trainer::losses).
    pub fn metrics(mut self, metrics: impl IntoIterator<Item = Metric>) -> Trainer {
        self.spec.metrics = Some(metrics.into_iter().collect());
        self
    }

    /// Sets the optimizer.
    pub fn optimizer(mut self, optimizer: impl Optimizer + 'static) -> Trainer {
        self.spec.optimization.optimizer = Arc::new(optimizer);
        self
    }

    /// Clips gradients.
    pub fn clip(mut self, clip: Clip) -> Trainer {
        self.spec.optimization.clip = Some(clip);
        self
    }

    /// Sets the learning-rate schedule.
    pub fn schedule(mut self, schedule: Schedule) -> Trainer {
        self.spec.optimization.schedule = schedule;
        self
    }

    /// Tracks a moving average of the weights; see [`Trainer::averaged`].
    pub fn average(mut self, average: Ema) -> Trainer {
        self.spec.optimization.average = Some(average);
        self
    }

    /// Prunes weights by magnitude while training; their masks are planned as every other state.
    pub fn prune(mut self, prune: Prune) -> Trainer {
        self.spec.optimization.prune = Some(prune);
        self
    }

    /// Trains the model as an int8 model computes.
    ///
    /// # Errors
    /// As [`Model::quantize`].
    pub fn quantize(mut self, quantize: Quantize) -> Result<Trainer> {
        self.spec.model = self.spec.model.quantize(quantize)?;
        Ok(self)
    }

    /// Trains the model to predict what a trained teacher predicts, beside the labels.
    pub fn distill(mut self, distill: Distill) -> Trainer {
        self.spec.distill = Some(distill);
        self
    }

    /// Sets the data type of activations.
    pub fn precision(mut self, precision: Precision) -> Trainer {
        self.spec.optimization.precision = precision;
        self
    }

    /// Scales the loss while gradients are computed, and skips steps in which one overflows. Part of
    /// [`Precision::MixedF16`].
    pub fn loss_scaling(mut self, scaling: LossScaling) -> Trainer {
        self.spec.optimization.loss_scaling = Some(scaling);
        self
    }

    /// Sets the memory budgets.
    pub fn budget(mut self, budget: Budget) -> Trainer {
        self.spec.budget = budget;
        self
    }

    /// Splits every batch into micro-batches of at most this many rows and accumulates their gradients; the result is
    /// that of the whole batch. Without it, the planner takes the largest micro-batch that fits.
    pub fn micro_batch(mut self, rows: usize) -> Trainer {
        self.spec.micro_batch = Some(rows);
        self
    }

    /// Sets what the planner may do to make the run fit.
    pub fn allow(mut self, allow: Allow) -> Trainer {
        self.spec.allow = allow;
        self
    }

    /// Sets what counts towards the budget when planning, to compare with others. Running always counts everything.
    pub fn count(mut self, count: Count) -> Trainer {
        self.spec.count = count;
        self
    }

    /// Sets the seed of initial weights and every random number. The same seed gives the same result at any number of
    /// threads.
    pub fn seed(mut self, seed: u64) -> Trainer {
        self.spec.seed = seed;
        self
    }

    /// Computes with this many threads instead of one per core.
    pub fn threads(mut self, threads: usize) -> Trainer {
        self.spec.threads = Some(threads);
        self
    }

    /// Computes on this device instead of the CPU.
    pub fn device(mut self, device: DeviceSpec) -> Trainer {
        self.spec.device = device;
        self
    }

    /// Plans for the device of a stored profile, such as `h200`. Nothing can be computed then.
    pub fn device_profile(mut self, profile: &str) -> Trainer {
        self.spec.device_profile = Some(profile.to_string());
        self
    }

    /// Sets the folder of the offload file, which should be on a disk with free space. Without it, that is the system's
    /// folder for large temporary files; a run from a configuration uses its own folder. The file has no name and
    /// disappears with the run.
    pub fn offload_folder(mut self, folder: impl Into<PathBuf>) -> Trainer {
        self.spec.offload_folder = Some(folder.into());
        self
    }

    /// Predicts times, and chooses between strategies, by measured costs of the device. Without them, built-in rates
    /// predict them, so that the same run is planned the same on every machine.
    pub fn cost_table(mut self, costs: Arc<CostTable>) -> Trainer {
        self.spec.costs = Some(costs);
        self
    }

    /// Trains together with other ranks: each on its rows of every batch, with gradients that are summed over all of
    /// them. All ranks call the same methods. See [`Ranks::launched`].
    ///
    /// ```
    /// use plimsoll::Ranks;
    /// use plimsoll::prelude::*;
    ///
    /// let data = Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).batch(32);
    /// let mut trainer = Trainer::new(zoo::mlp(10), &data);
    /// if let Some(ranks) = Ranks::launched()? {
    ///     trainer = trainer.ranks(&ranks);
    /// }
    /// trainer.fit(Fit::epochs(1))?;
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn ranks(mut self, ranks: &Ranks) -> Trainer {
        self.spec.ranks = ranks.size();
        self.ranks = (ranks.size() > 1).then(|| ranks.clone());
        self
    }

    /// Plans for ranks that are not there. Nothing can be computed then, and what communication takes is
    /// [assumed](crate::Assumptions::communication).
    ///
    /// ```
    /// use plimsoll::prelude::*;
    ///
    /// let data = Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).batch(256);
    /// let trainer = Trainer::new(zoo::mlp(10), &data).plan_for_ranks(64);
    /// let plan = trainer.plan(&Fit::epochs(1))?;
    /// assert_eq!((plan.batch, plan.ranks, plan.rank_batch), (256, 64, 4));
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn plan_for_ranks(mut self, ranks: usize) -> Trainer {
        self.spec.ranks = ranks.max(1);
        self
    }

    /// Sets what the ranks of a job do.
    pub fn parallel(mut self, parallel: Parallel) -> Trainer {
        self.spec.parallel = parallel;
        self
    }

    /// Plans for predictions only: nothing is held for training.
    pub fn for_prediction(mut self) -> Trainer {
        self.spec.inference_only = true;
        self
    }
}
