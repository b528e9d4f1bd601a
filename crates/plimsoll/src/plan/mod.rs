//! Planning: what a run will hold, byte by byte, and how it is made to fit its budgets. A pure function of the run's
//! description, the machine and the data.

mod alternatives;
mod candidate;
mod choose;
mod data;
mod economy;
mod explain;
mod largest;
mod least;
mod loads;
mod machine;
mod more_ranks;
mod offload;
mod page_tables;
mod parallel;
mod pipelines;
mod planning_memory;
mod ranks;
mod recomputation;
mod replan;
mod split;
mod statement;
mod step_costs;
mod sweep;

use crate::allow::{Allow, Permission};
use crate::error::{Error, Result};
use crate::fixed_micro_batches::FixedMicroBatches;
use crate::graphs::{ProgramInterface, Programs, Variant, Variants};
use crate::numerics::Numerics;
use crate::precision::Precision;
use crate::ranks::Shard;
use crate::spec::{Count, Optimization, RunSpec};
use candidate::Candidate;
use choose::plan_run;
use plimsoll_core::budget::{Owner, give_back_memory_of_phase};
use plimsoll_core::device::Device;
use plimsoll_core::plan::recompute::{Effort, Recomputation};
use plimsoll_core::plan::{Certificate, CheckedPlan, CostModel};
use plimsoll_core::step::Role;
use plimsoll_core::{Budget, Bytes, Graph};
use plimsoll_data::{PipelinePlan, RankRows};
use std::sync::{Arc, OnceLock};

pub use data::{DataSummary, DatasetSummary};
pub use largest::LargestBatch;
pub use machine::{Assumptions, Machine};
pub use split::SplitLayers;
pub use sweep::{Sweep, SweepPoint};

pub(crate) use candidate::{checkpoint_owner, history_owner, is_as_specified, mask_update_owner, prediction_bytes};
pub(crate) use data::epoch_rows;
pub(crate) use loads::Loads;
pub(crate) use machine::Budgets;
pub(crate) use more_ranks::fitting_ranks;
pub(crate) use pipelines::NAMES;
pub(crate) use ranks::{check as check_ranks, check_reproducible, check_shards};

/// The memory of a run by owner, and the strategies that make it fit. Covers training, validation, checkpoints and
/// restored state. Displays as one screen; [`Trainer::run`](crate::Trainer::run) executes it.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The model's name.
    pub model: String,
    /// The device's name and description.
    pub device: (String, String),
    /// Rows of a batch.
    pub batch: usize,
    /// Ranks that train together.
    pub ranks: usize,
    /// What is divided over them.
    pub shard: Shard,
    /// Rows of a batch that a rank has, at most: all of them on one process.
    pub rank_batch: usize,
    /// Rows of a micro-batch.
    pub micro_batch: usize,
    /// Whether results have the same bits on any number of ranks; micro-batches are then those of the run itself.
    pub reproducible: bool,
    /// Whether batch normalization has the statistics of the rows of all ranks.
    pub synchronized: bool,
    /// Whether the user chose the micro-batch.
    pub micro_batch_given: bool,
    /// The host memory budget.
    pub host_budget: Bytes,
    /// Whether that budget was given; otherwise it is the free memory.
    pub host_budget_given: bool,
    /// The host budget that was given, if less than that was free when the run started.
    pub requested_host_budget: Option<Bytes>,
    /// Everything within the host budget, by owner, largest first.
    pub owners: Vec<(Owner, Bytes)>,
    /// The pipelines' part, stage by stage.
    pub pipeline_stages: Vec<(String, Bytes)>,
    /// The minimum host budget with the same permissions: a budget below it is refused.
    pub minimum: Bytes,
    /// Whether the planner may use micro-batches.
    pub may_micro_batch: bool,
    /// The device's own budget; none if it shares host memory.
    pub device_memory: Option<DeviceBudget>,
    /// Floating-point operations of a whole batch, without recomputation.
    pub flops: u64,
    /// The recomputation of the step, and its cost per micro-batch.
    pub recomputation: Recomputation,
    /// The layers that are computed in slices of their rows, if any.
    pub split: Option<SplitLayers>,
    /// Predicted seconds of a whole batch.
    pub predicted_s: f64,
    /// Whether that comes from measurements of the device; otherwise from built-in rates.
    pub measured_costs: bool,
    /// The data type of activations.
    pub precision: Precision,
    /// Whether optimizer state is stored in 8 bits because that was allowed.
    pub eight_bit_state: bool,
    /// The allowed strategies.
    pub allow: Allow,
    /// The applied strategies in order, with their savings and costs; empty if the run fits as specified.
    pub strategies: Vec<AppliedStrategy>,
    /// The permissions that were used.
    pub used: Vec<Permission>,
    /// Whether results are those of a run without a budget, bit for bit.
    pub results_unchanged: bool,
    /// Whether they are equal up to the order of sums, but not bit for bit: in micro-batches on a device whose sums do
    /// not resume from those of earlier micro-batches.
    pub sums_reordered: bool,
    /// What counts towards the budget.
    pub count: Count,
    /// Planning time in milliseconds; measured by the caller, since planning reads no clock.
    pub plan_ms: f64,
    /// What it takes from the machine it was made on.
    pub assumptions: Assumptions,
    /// The device's memory plan.
    pub memory: CheckedPlan,
    pub(crate) pipeline: PipelinePlan,
    pub(crate) validation: Option<PipelinePlan>,
    /// Rows the pipeline delivers at a time.
    pub(crate) feed_rows: usize,
    /// How the programs are fed and read.
    pub(crate) interface: Arc<ProgramInterface>,
    /// Programs of one role that are loaded at the same time, for different numbers of rows.
    pub(crate) programs_per_role: usize,
    /// How parameters are updated, with fewer bits where the plan uses them.
    pub(crate) optimization: Optimization,
}

/// One applied strategy, and its effect on memory and time.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedStrategy {
    /// The permissions it uses.
    pub permissions: Vec<Permission>,
    /// The minimum budget and the predicted seconds of a batch before.
    pub before: (Bytes, f64),
    /// And after.
    pub after: (Bytes, f64),
}

/// The budget of a device with memory of its own, and what is within it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceBudget {
    /// The budget.
    pub budget: Bytes,
    /// Whether it was given; otherwise it is the free memory.
    pub given: bool,
    /// The budget that was given, if less than that was free when the run started.
    pub requested: Option<Bytes>,
    /// Everything within it, by owner, largest first.
    pub owners: Vec<(Owner, Bytes)>,
    /// The minimum budget with the same permissions, within the same host budget.
    pub minimum: Bytes,
}

impl DeviceBudget {
    /// The peak: everything within the budget.
    pub fn total(&self) -> Bytes {
        self.owners.iter().map(|(_, size)| *size).sum()
    }
}

/// One search for a plan: the run, the machine and the data as they are, and what the search varies.
#[derive(Clone)]
pub(crate) struct Request<'a> {
    pub spec: &'a RunSpec,
    pub machine: &'a Machine,
    pub data: &'a DataSummary,
    pub variants: &'a Variants<'a>,
    /// The variant to plan, and its graphs.
    pub variant: Variant,
    pub programs: Arc<Programs>,
    pub batch: usize,
    pub micro_batch: Option<usize>,
    pub budget: Budget,
    pub allow: Allow,
    /// Whether the largest layers are computed in slices of their rows, where they can be.
    pub split: bool,
    /// How long to search for the fastest recomputation.
    pub effort: Effort,
    pub cost_model: &'a dyn CostModel,
    /// The minimum of the run, once it is known.
    pub minimum: &'a OnceLock<Candidate>,
    /// The run as it is specified, laid out thoroughly, if it is its own minimum.
    pub as_specified: &'a OnceLock<Candidate>,
}

impl<'a> Request<'a> {
    pub fn device(&self) -> &'a dyn Device {
        &*self.machine.device
    }
}

impl RunSpec {
    /// The plan of the run: the fastest that stays within the budgets. A pure function: equal inputs give equal plans.
    ///
    /// # Errors
    ///
    /// If the run does not fit, with the minimum that does ([`Error::Infeasible`](crate::Error::Infeasible)); or if its
    /// parts are incompatible.
    pub fn plan(&self, machine: &Machine, data: &DataSummary) -> Result<RunPlan> {
        self.search(machine, data, plan_run)
    }

    /// The plan of the minimum budget, whatever the budgets of the run are.
    ///
    /// # Errors
    ///
    /// If its parts are incompatible, or there is not enough memory to plan it.
    pub(crate) fn smallest(&self, machine: &Machine, data: &DataSummary, known: Option<&(Numerics, CheckedPlan)>) -> Result<RunPlan> {
        self.search(machine, data, |request| choose::smallest(request, known))
    }

    /// The host and device memory of micro-batches without recomputation, splitting or offload, and the predicted
    /// seconds per batch.
    pub(crate) fn plain(&self, machine: &Machine, data: &DataSummary, micro_batch: usize) -> Result<(Bytes, Bytes, f64)> {
        self.search(machine, data, |request| choose::plain(request, micro_batch))
    }

    /// The largest batch that runs without micro-batches; none if not even one row fits.
    ///
    /// # Errors
    ///
    /// If the parts of the run are incompatible.
    pub fn largest_batch(&self, machine: &Machine, data: &DataSummary) -> Result<Option<LargestBatch>> {
        if self.parallel.reproducible {
            let what = "the results of a reproducible run follow from its batch; state the batch, or leave `parallel.reproducible` out";
            return Err(Error::Config(what.to_string()));
        }
        self.search(machine, data, largest::largest_batch)
    }

    /// The predicted step time for decreasing budgets, down to the minimum. `progress` is called before each budget
    /// with the number of budgets done and of all.
    ///
    /// # Errors
    ///
    /// If the run does not fit, or its parts are incompatible.
    pub fn sweep(&self, machine: &Machine, data: &DataSummary, progress: &mut dyn FnMut(usize, usize)) -> Result<Sweep> {
        self.search(machine, data, |request| sweep::sweep(request, progress))
    }

    /// Proves that a certificate is an exact plan of this run's graphs on the device of the machine.
    ///
    /// # Errors
    ///
    /// With the first mismatch, if the certificate belongs to another run or was edited.
    pub fn prove(&self, machine: &Machine, data: &DataSummary, certificate: &Certificate) -> Result<()> {
        self.search(machine, data, |request| choose::prove(request, certificate))
    }

    /// Passes the training graph of a whole batch, and its rows, to `look`.
    pub(crate) fn with_step<T>(&self, machine: &Machine, data: &DataSummary, look: impl FnOnce(&Graph, usize) -> T) -> Result<T> {
        self.search(machine, data, |request| Ok(look(&request.programs.whole[0].1, request.batch)))
    }

    /// Lets the device prepare for the run while it is planned.
    pub(crate) fn prepare(&self, machine: &Machine, data: &DataSummary) -> Result<()> {
        self.search(machine, data, |request| {
            parallel::prepare(request);
            Ok(())
        })
    }

    fn search<T>(&self, machine: &Machine, data: &DataSummary, run: impl FnOnce(&Request<'_>) -> Result<T>) -> Result<T> {
        data.training.check_fixed_shapes()?;
        let batch = self.rank_batch(data.training.batch_rows()?);
        ranks::check_shards(self, &machine.device.capabilities())?;
        let variants = Variants::new(self, &data.training.schema, batch, &machine.device.capabilities())?;
        // The code that built the graphs.
        give_back_memory_of_phase();
        let programs = variants.programs(Variant::default())?;
        if self.parallel.reproducible && !self.inference_only {
            ranks::check_reproducible(&machine.device.capabilities(), &programs)?;
        }
        if self.ranks > 1 {
            ranks::check(self, &machine.device.capabilities(), &programs, batch)?;
        }
        run(&Request {
            spec: self,
            machine,
            data,
            variant: Variant::default(),
            programs,
            variants: &variants,
            batch,
            micro_batch: match self.fixed_micro_batches() {
                Some(fixed) => Some(fixed.rows()),
                None => self.numerics.as_ref().map(|fixed| fixed.micro_batch).or(self.micro_batch),
            },
            budget: self.budget,
            allow: self.allow,
            split: false,
            effort: Effort::default(),
            cost_model: &*machine.cost_model,
            minimum: &OnceLock::new(),
            as_specified: &OnceLock::new(),
        })
    }
}

impl RunPlan {
    /// The peak of host memory: everything within the budget.
    pub fn total(&self) -> Bytes {
        self.owners.iter().map(|(_, size)| *size).sum()
    }

    /// A short text that differs if the layout does.
    pub(crate) fn digest(&self) -> String {
        let mut sum = crc32fast::Hasher::new();
        let numbers = self.memory.programs.iter().flat_map(|program| &program.buffers);
        for buffer in numbers {
            sum.update(&buffer.offset.0.to_le_bytes());
            sum.update(&buffer.size.0.to_le_bytes());
            sum.update(&buffer.first.to_le_bytes());
            sum.update(&buffer.last.to_le_bytes());
        }
        format!("{}x{}-{:08x}", self.rank_batch, self.micro_batch, sum.finalize())
    }

    /// The choices that result bits depend on, as far as planning makes them.
    pub(crate) fn numerics(&self) -> Numerics {
        let (micro_batch, precision, eight_bit_state) = (self.micro_batch, self.precision, self.eight_bit_state);
        Numerics { micro_batch, precision, eight_bit_state, convolutions: None, algorithms: None }
    }

    /// Bytes that are offloaded: to host memory, or to a file on a device that shares host memory.
    pub fn offload_bytes(&self) -> Bytes {
        self.memory.backing
    }

    /// Bytes that are copied there and back in a whole batch.
    pub fn offload_copied(&self) -> Bytes {
        let of = |role| self.memory.program(role).map_or(0, |program| program.copied(self.micro_batch).0);
        Bytes(match self.accumulation_steps() as u64 {
            1 => of(Role::Step),
            pieces => of(Role::First) + (pieces - 2) * of(Role::Middle) + of(Role::Last),
        })
    }

    /// How every batch is divided, if that does not depend on the ranks.
    pub(crate) fn fixed_micro_batches(&self) -> Option<FixedMicroBatches> {
        self.reproducible.then(|| FixedMicroBatches::new(self.batch, Some(self.micro_batch)))
    }

    /// The rows of every batch that a rank trains on.
    pub(crate) fn rows_of_rank(&self, rank: usize) -> RankRows {
        let rows = match self.fixed_micro_batches() {
            Some(fixed) => fixed.rows_of_rank(self.ranks, rank),
            None => RankRows::new(self.batch as u64, self.ranks as u64, rank as u64),
        };
        rows.repeating()
    }

    /// Micro-batches per whole batch, on every rank.
    pub fn accumulation_steps(&self) -> usize {
        self.rank_batch.div_ceil(self.micro_batch)
    }
}
