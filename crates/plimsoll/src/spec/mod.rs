//! The description of a run, as plain data. A configuration file, the builder methods of [`Trainer`](crate::Trainer)
//! and [`Fit`](crate::Fit), and every other front end produce a [`RunSpec`]; planning and training read nothing else
//! about what the user wants. The configuration key of a field is read beside the field, so that adding one is an edit
//! of one file.

mod data_report;
mod fit;
mod objective;
mod optimization;

use crate::allow::Allow;
use crate::cost::CostTable;
use crate::devices::{Algorithms, DeviceSpec};
use crate::distill::Distill;
use crate::error::{Error, Result};
use crate::fixed_micro_batches::FixedMicroBatches;
use crate::loss::Loss;
use crate::metrics::Metric;
use crate::nn::{Model, Quantize, Sequential};
use crate::numerics::Numerics;
use crate::output_loss::OutputLosses;
use crate::prune::Prune;
use crate::ranks::{BatchNormStatistics, DataParallelism, Parallel, Shard};
use crate::reader::Reader;
use plimsoll_core::sharding::Sharding;
use plimsoll_core::{Budget, Bytes};
use plimsoll_data::{Dataset, Split};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Value;

pub use data_report::HeldOut;
pub use fit::{FitSpec, InitialWeights};
pub use optimization::Optimization;

/// Everything that describes a run.
///
/// ```
/// use plimsoll::prelude::*;
/// use plimsoll::{DataSummary, Machine, RunSpec};
///
/// let data = Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).batch(32);
/// let spec = RunSpec { seed: 7, ..RunSpec::new(zoo::mlp(10), &data) };
/// // All I/O comes first; planning is a pure function of what was read.
/// let (machine, summary) = (Machine::open(&spec)?, DataSummary::read(&spec)?);
/// let plan = spec.plan(&machine, &summary)?;
/// assert_eq!(plan.to_string(), spec.plan(&machine, &summary)?.to_string());
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// The name of the run, after which its folder is called.
    pub name: String,
    /// The model.
    pub model: Model,
    /// The training data, with its batch size.
    pub data: Dataset,
    /// How validation rows were chosen.
    pub held_out: HeldOut,
    /// The rows to test on, once training is done; no plan of training covers them.
    pub test: Option<Dataset>,
    /// The losses of the model's outputs.
    pub losses: OutputLosses,
    /// Metrics of a model with one output, instead of the usual ones of its loss.
    pub metrics: Option<Vec<Metric>>,
    /// The teacher that the model is distilled from.
    pub distill: Option<Distill>,
    /// How parameters are updated.
    pub optimization: Optimization,
    /// The memory budgets; one that is not given is what is free.
    pub budget: Budget,
    /// What the planner may do to make the run fit.
    pub allow: Allow,
    /// Rows of a micro-batch; without it, the planner picks them.
    pub micro_batch: Option<usize>,
    /// Fixes the choices of the planner that result bits depend on, as a resumed run must.
    pub numerics: Option<Numerics>,
    /// What counts towards the budget.
    pub count: Count,
    /// The seed of initial weights and every random number.
    pub seed: u64,
    /// Threads that compute, instead of one per core.
    pub threads: Option<usize>,
    /// The device to compute on.
    pub device: DeviceSpec,
    /// How the algorithms of matrix products and convolutions are selected on a GPU.
    pub algorithms: Algorithms,
    /// A stored device profile to plan for, such as `h200`, instead of a device that is present.
    pub device_profile: Option<String>,
    /// Measured costs of the device; without them, built-in rates that are the same on every machine predict times.
    pub costs: Option<Arc<CostTable>>,
    /// The folder of the offload file, on a device that shares host memory.
    pub offload_folder: Option<PathBuf>,
    /// What the ranks of a job do.
    pub parallel: Parallel,
    /// Ranks that train together, which a launcher starts.
    pub ranks: usize,
    /// Whether only predictions are computed: nothing is held for training.
    pub inference_only: bool,
    /// Epochs, validation, checkpoints and callbacks.
    pub fit: FitSpec,
    /// The configuration file's text, if the run comes from one; checkpoints store it.
    pub config: String,
}

/// Upper limit on threads.
pub(crate) const MAX_THREADS: usize = 1024;

/// Keys of `[train]` that other tables depend on.
#[derive(Default)]
pub(crate) struct TrainKeys {
    /// The batch size, unless the data has one.
    pub batch: Option<usize>,
    /// Whether the loss is set; a network of the zoo has its own default.
    pub loss_given: bool,
    /// How the model is trained for int8, if it is.
    pub quantize: Option<Quantize>,
    /// The teacher, if there is one.
    pub distill: Option<DistillKeys>,
}

/// `[distill]`.
pub(crate) struct DistillKeys {
    /// The folder of the teacher's run.
    pub teacher: PathBuf,
    pub temperature: f32,
    pub alpha: f32,
}

/// What counts towards the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// All memory of the process.
    #[default]
    Everything,
    /// Only the model's weights and the arena of activations, gradients and workspace, as papers count.
    WeightsAndActivations,
}

impl Count {
    const ALL: [Count; 2] = [Count::Everything, Count::WeightsAndActivations];

    /// Its name in plans and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Count::Everything => "everything",
            Count::WeightsAndActivations => "weights+activations",
        }
    }

    /// The one of this name.
    pub(crate) fn named(name: &str) -> Option<Count> {
        Count::ALL.into_iter().find(|count| count.name() == name)
    }
}

impl Default for RunSpec {
    /// An empty model on the embedded digits, with softmax cross-entropy, Adam, all free memory as budget, seed 0 and
    /// one epoch.
    fn default() -> RunSpec {
        RunSpec {
            name: "run".to_string(),
            model: Sequential::new().into(),
            data: Dataset::digits(Split::Train),
            held_out: HeldOut::default(),
            test: None,
            losses: OutputLosses::Only(Loss::SoftmaxCrossEntropy.into()),
            metrics: None,
            distill: None,
            optimization: Optimization::default(),
            budget: Budget::default(),
            allow: Allow::default(),
            micro_batch: None,
            numerics: None,
            count: Count::default(),
            seed: 0,
            threads: None,
            device: DeviceSpec::default(),
            algorithms: Algorithms::default(),
            device_profile: None,
            costs: None,
            offload_folder: None,
            parallel: Parallel::default(),
            ranks: 1,
            inference_only: false,
            fit: FitSpec::default(),
            config: String::new(),
        }
    }
}

impl RunSpec {
    /// A run of this model on this data, the rest by default.
    pub fn new(model: impl Into<Model>, data: &Dataset) -> RunSpec {
        let model = model.into();
        RunSpec { name: model.title().to_string(), model, data: data.clone(), ..RunSpec::default() }
    }

    /// Reads `[train]`, `[prune]`, `[quantize]`, `[distill]`, `[checkpoint]`, `[log]`, `[parallel]` and
    /// `[budget]`. Paths are relative to `folder`.
    pub(crate) fn read(&mut self, root: &Reader<'_>, folder: &Path) -> Result<TrainKeys> {
        let mut keys = TrainKeys::default();
        if let Some(train) = root.section("train")? {
            keys.batch = train.count("batch", 1)?.map(|rows| rows as usize);
            self.micro_batch = match train.value("micro_batch") {
                None => None,
                Some(Value::String(word)) if word == "auto" => None,
                Some(Value::Integer(rows)) if *rows >= 1 => Some(*rows as usize),
                Some(other) => return Err(train.wrong("micro_batch", other, "\"auto\" or an integer of 1 or more")),
            };
            self.seed = train.count("seed", 0)?.unwrap_or(self.seed);
            self.threads = match train.count("threads", 1)? {
                Some(threads) if threads > MAX_THREADS as u64 => {
                    return Err(Error::Config(format!("`train.threads` is {threads}, but should be at most {MAX_THREADS}")));
                }
                threads => threads.map(|threads| threads as usize),
            };
            if let Some(losses) = objective::losses(&train)? {
                (self.losses, keys.loss_given) = (losses, true);
            }
            self.metrics = objective::metrics(&train)?;
            self.optimization.read(&train)?;
            self.fit.read(&train, folder)?;
            self.device = train.text("device")?.unwrap_or("cpu").parse()?;
            self.algorithms = train.choice("algorithms", &Algorithms::NAMES)?.unwrap_or_default();
            self.device_profile = train.text("device_profile")?.map(str::to_string);
            train.finish()?;
        }
        self.optimization.prune = Prune::read(root)?;
        keys.quantize = quantize(root)?;
        keys.distill = distill(root, folder)?;
        self.fit.read_checkpoint(root)?;
        self.fit.read_log(root)?;
        if let Some(parallel) = root.section("parallel")? {
            self.parallel.data = parallel.choice("data", &DataParallelism::NAMES)?.unwrap_or_default();
            self.parallel.batch_norm = parallel.choice("batch_norm", &BatchNormStatistics::NAMES)?.unwrap_or_default();
            self.parallel.reproducible = parallel.flag("reproducible")?.unwrap_or(false);
            self.parallel.shard = shard(&parallel)?;
            parallel.finish()?;
        }
        if let Some(budget) = root.section("budget")? {
            self.budget = Budget { host: size(&budget, "host")?, device: size(&budget, "device")? };
            self.allow = allow(&budget)?;
            budget.finish()?;
        }
        Ok(keys)
    }

    /// The losses of the outputs, with the metrics that were given apart from them.
    pub(crate) fn losses_with_metrics(&self) -> Result<OutputLosses> {
        let mut losses = self.losses.clone();
        let Some(metrics) = &self.metrics else { return Ok(losses) };
        match &mut losses {
            OutputLosses::Only(loss) => loss.metrics = Some(metrics.clone()),
            OutputLosses::Named(named) => match &mut named[..] {
                [(_, loss)] => loss.metrics = Some(metrics.clone()),
                _ => {
                    let what = "with several outputs, metrics belong to their losses: `OutputLoss::metrics`, or `metrics` beside `type`";
                    return Err(Error::Config(what.to_string()));
                }
            },
        }
        Ok(losses)
    }

    /// The rows that a rank has of a dataset of the run. With `repeats`, it has some of every batch, as a step needs.
    pub(crate) fn rows_of_rank(&self, data: &Dataset, rank: usize, repeats: bool) -> Result<Dataset> {
        if let Some(fixed) = self.fixed_micro_batches() {
            // Of validation batches too, so that the same rows are evaluated together on any number of ranks.
            return Ok(data.rows_of_share(fixed.rows_of_rank(self.ranks, rank), repeats)?);
        }
        // A batch has no more rows than an epoch.
        let data = match (data.size(), data.batch_size()) {
            (Some(rows @ 1..), Some(batch)) if rows < batch as u64 => data.clone().rebatch(rows as usize),
            _ => data.clone(),
        };
        Ok(data.rows_of_rank(self.ranks as u64, rank as u64, repeats)?)
    }

    /// How every batch is divided, if that does not depend on the ranks.
    pub(crate) fn fixed_micro_batches(&self) -> Option<FixedMicroBatches> {
        if !self.parallel.reproducible || self.inference_only {
            return None;
        }
        let epoch = usize::try_from(self.data.len()).unwrap_or(usize::MAX);
        let rows = self.numerics.as_ref().map(|fixed| fixed.micro_batch).or(self.micro_batch);
        Some(FixedMicroBatches::new(self.data.batch_size()?.min(epoch), rows))
    }

    /// The ranks that the statistics of batch normalization are synchronized over, if they are.
    pub(crate) fn synchronized_ranks(&self) -> Option<u32> {
        let over_ranks = self.ranks > 1 && self.parallel.batch_norm == BatchNormStatistics::Synchronized && !self.inference_only;
        (over_ranks && self.model.has_batch_statistics() && !self.model.has_local_statistics()).then_some(self.ranks as u32)
    }

    /// What is divided over the ranks, if there are several.
    pub(crate) fn sharding(&self) -> Option<Sharding> {
        match self.parallel.shard {
            _ if self.ranks <= 1 || self.inference_only => None,
            Shard::None => None,
            Shard::Optimizer => Some(Sharding::Optimizer),
            Shard::Gradients => Some(Sharding::Gradients),
        }
    }

    /// Rows of a batch of `batch` rows that a rank has, at most.
    pub(crate) fn rank_batch(&self, batch: usize) -> usize {
        self.fixed_micro_batches().map_or(batch.div_ceil(self.ranks.max(1)), |fixed| fixed.rank_batch(self.ranks))
    }

    /// That the schedule covers all epochs, as far as their number of steps is known.
    pub(crate) fn check_schedule(&self, batch: usize) -> Result<()> {
        let Some(rows) = self.data.size_if_readable() else { return Ok(()) };
        self.optimization.schedule.check(self.fit.epochs.saturating_mul(rows.div_ceil(batch.max(1) as u64)))
    }
}

/// What is divided over ranks: `parallel.shard`.
fn shard(parallel: &Reader<'_>) -> Result<Shard> {
    let read = parallel.choice("shard", &Shard::NAMES);
    if read.is_err() && matches!(parallel.text("shard"), Ok(Some("parameters"))) {
        let what = "`parallel.shard` is \"parameters\", but parameters cannot be sharded over ranks yet; use \"gradients\"";
        return Err(Error::Config(what.to_string()));
    }
    Ok(read?.unwrap_or_default())
}

/// How the model is trained for int8: `[quantize]`.
fn quantize(root: &Reader<'_>) -> Result<Option<Quantize>> {
    let Some(table) = root.section("quantize")? else { return Ok(None) };
    let quantize = Quantize::new().momentum(table.fraction_or("momentum", 0.99)?);
    let kept = table.texts("keep_float")?.unwrap_or_default();
    table.finish()?;
    Ok(Some(kept.iter().fold(quantize, |quantize, pattern| quantize.keep_float(pattern))))
}

/// The teacher: `[distill]`.
fn distill(root: &Reader<'_>, folder: &Path) -> Result<Option<DistillKeys>> {
    let Some(table) = root.section("distill")? else { return Ok(None) };
    let Some(teacher) = table.text("teacher")? else {
        return Err(table.missing("teacher", "the folder of a trained run, such as \"runs/large-1\""));
    };
    let keys = DistillKeys {
        teacher: folder.join(teacher),
        temperature: table.number_or("temperature", 3.0)?,
        alpha: table.number_or("alpha", 0.1)?,
    };
    table.finish()?;
    Ok(Some(keys))
}

/// The allowed strategies: a list of names.
fn allow(budget: &Reader<'_>) -> Result<Allow> {
    let wanted = "a list, such as [\"recompute\", \"microbatch\"]";
    match budget.value("allow") {
        None => Ok(Allow::default()),
        Some(Value::String(names)) => Ok(names.parse()?),
        Some(value) => {
            let list = value.as_array().ok_or_else(|| budget.wrong("allow", value, wanted))?;
            let names = list.iter().map(|name| name.as_str().ok_or_else(|| budget.wrong("allow", value, wanted)));
            Ok(names.collect::<Result<Vec<_>>>()?.join(",").parse()?)
        }
    }
}

fn size(budget: &Reader<'_>, key: &'static str) -> Result<Option<Bytes>> {
    match budget.value(key) {
        None => Ok(None),
        Some(Value::Integer(bytes)) if *bytes > 0 => Ok(Some(Bytes(*bytes as u64))),
        Some(Value::String(text)) => match text.parse() {
            Ok(size) => Ok(Some(size)),
            Err(error) => Err(Error::Config(format!("`{}`: {error}", budget.name(key)))),
        },
        Some(other) => Err(budget.wrong(key, other, "a size, such as \"256MiB\"")),
    }
}
