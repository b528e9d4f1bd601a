//! The plan of a whole run: device and pipeline, process and threads under their lines, and how it was made to fit.

mod candidate;
mod choose;
mod explain;
mod largest;
mod least;
mod offload;
mod pipelines;
mod split;
mod sweep;

use crate::allow::{Allow, Permission};
use crate::graphs::{Programs, Variant, Variants};
use crate::precision::Precision;
use plimsoll_core::budget::Owner;
use plimsoll_core::device::Device;
use plimsoll_core::plan::CheckedPlan;
use plimsoll_core::plan::CopyRate;
use plimsoll_core::plan::CostModel;
use plimsoll_core::plan::recompute::{Effort, Recomputation};
use plimsoll_core::step::Role;
use plimsoll_core::{Budget, Bytes};
use plimsoll_data::{Dataset, PipelinePlan};

pub use largest::LargestBatch;
pub use split::InPieces;
pub use sweep::{Sweep, SweepPoint};

pub(crate) use choose::{plan_run, prove};
pub(crate) use largest::largest_batch;
pub(crate) use least::THOROUGH;
pub(crate) use pipelines::epoch_rows;
pub(crate) use sweep::sweep;

/// What a run will hold, by owner, and how it was made to fit. Prints as one screen.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The model's name.
    pub model: String,
    /// The device's name and what it is.
    pub device: (String, String),
    /// Rows of a batch.
    pub batch: usize,
    /// Rows of a micro-batch.
    pub micro_batch: usize,
    /// Whether the user chose the micro-batch.
    pub micro_batch_asked: bool,
    /// The line for host memory.
    pub line: Bytes,
    /// Whether the line was given or is what the system has.
    pub line_given: bool,
    /// The line that was given, if less than that was free when the run was about to start.
    pub promised: Option<Bytes>,
    /// Everything that stands under the line, by owner, largest first.
    pub owners: Vec<(Owner, Bytes)>,
    /// The pipeline's part, stage by stage.
    pub pipeline_stages: Vec<(String, Bytes)>,
    /// The smallest line that works with what is allowed, if nothing is computed again.
    pub least: Bytes,
    /// Whether the planner may cut batches into pieces.
    pub may_cut: bool,
    /// What stands under the device's own line; none if it shares the host's memory.
    pub device_memory: Option<DeviceLine>,
    /// The step's floating-point operations for a whole batch, without what is computed again.
    pub flops: u64,
    /// What a program of the step computes again, and what that costs for one micro-batch.
    pub recomputation: Recomputation,
    /// The layers that are computed in pieces of their rows, if some are.
    pub split: Option<InPieces>,
    /// Predicted seconds of a whole batch.
    pub predicted_s: f64,
    /// Whether that comes from measurements of the device, or from built-in rates.
    pub by_measured_speeds: bool,
    /// In how many bits activations are kept.
    pub precision: Precision,
    /// Whether the optimiser's state is kept in 8 bits because that was allowed.
    pub small_state: bool,
    /// What the planner was allowed.
    pub allow: Allow,
    /// What each choice saved and cost, from the run as it was asked for on; empty if nothing had to be done.
    pub taken: Vec<Taken>,
    /// What of that it made use of.
    pub used: Vec<Permission>,
    /// Whether the memory choices leave the result as it is.
    pub results_unchanged: bool,
    /// What stands under the line.
    pub count: Count,
    /// Milliseconds planning took.
    pub plan_ms: f64,
    /// The device's part.
    pub memory: CheckedPlan,
    pub(crate) pipeline: PipelinePlan,
    pub(crate) validation: Option<PipelinePlan>,
    /// Rows the feed delivers at a time.
    pub(crate) feed_rows: usize,
    /// What is kept in fewer bits than was asked for.
    pub(crate) variant: Variant,
}

/// One thing that was done to make a run fit, and what it did to memory and time.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// What was made use of.
    pub permissions: Vec<Permission>,
    /// The least line and the predicted seconds of a batch before.
    pub before: (Bytes, f64),
    /// And after.
    pub after: (Bytes, f64),
}

/// What counts towards the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Count {
    /// All that the process holds.
    #[default]
    Everything,
    /// Only the model's weights and the arena of activations, gradients and workspace, as papers count.
    WeightsAndActivations,
}

/// The line of a device with a memory of its own, and what stands under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLine {
    /// The line.
    pub line: Bytes,
    /// Whether it was given or is what is free.
    pub given: bool,
    /// The line that was given, if less than that was free when the run was about to start.
    pub promised: Option<Bytes>,
    /// Everything under it, by owner, largest first.
    pub owners: Vec<(Owner, Bytes)>,
    /// The smallest line that works with what is allowed.
    pub least: Bytes,
}

impl DeviceLine {
    /// Everything under the line.
    pub fn total(&self) -> Bytes {
        self.owners.iter().map(|(_, size)| *size).sum()
    }
}

/// What a plan is made of.
#[derive(Clone)]
pub(crate) struct Request<'a> {
    pub model: &'a str,
    /// The graphs of the variant to be planned.
    pub programs: &'a Programs,
    pub variants: &'a Variants,
    pub variant: Variant,
    /// Whether the variant runs already, and cannot be chosen any more.
    pub settled: bool,
    pub device: &'a dyn Device,
    pub data: &'a Dataset,
    pub validation: Option<&'a Dataset>,
    pub batch: usize,
    pub micro_batch: Option<usize>,
    pub budget: Budget,
    pub thread_stacks: Bytes,
    pub checkpointed: bool,
    pub allow: Allow,
    pub count: Count,
    pub precision: Precision,
    /// Whether the heaviest layers are computed in pieces of their rows, where they can be.
    pub in_pieces: bool,
    /// How long to search for the least that works.
    pub effort: Effort,
    pub cost_model: &'a dyn CostModel,
    /// Whether the cost_model was measured.
    pub measured: bool,
    /// How fast tensors leave and come back.
    pub copy_rate: CopyRate,
}

impl RunPlan {
    /// Everything under the line.
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
        format!("{}x{}-{:08x}", self.batch, self.micro_batch, sum.finalize())
    }

    /// Bytes that are kept out of the device's memory: in the host's, or in a file on a device that shares that.
    pub fn offload_bytes(&self) -> Bytes {
        self.memory.backing
    }

    /// Bytes that go there and come back in a whole batch.
    pub fn offload_copied(&self) -> Bytes {
        let of = |role| self.memory.program(role).map_or(0, |program| program.copied(self.micro_batch).0);
        Bytes(match self.accumulation_steps() as u64 {
            1 => of(Role::Step),
            pieces => of(Role::First) + (pieces - 2) * of(Role::Middle) + of(Role::Last),
        })
    }

    /// Micro-batches per whole batch.
    pub fn accumulation_steps(&self) -> usize {
        self.batch.div_ceil(self.micro_batch)
    }
}
