//! The plan of a whole run: device and pipeline, process and threads under their lines, and the largest micro-batch that fits.

use super::programs::Programs;
use crate::checkpoint::Checkpoints;
use crate::system;
use plimsoll_core::device::Device;
use plimsoll_core::plan::{Plan, check, layout};
use plimsoll_core::{Budget, Bytes, Graph};
use plimsoll_data::{DataError, Dataset, PipelinePlan};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The name of the host's memory in refusals.
pub(super) const HOST: &str = "host memory";

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
    pub owners: Vec<(String, Bytes)>,
    /// The pipeline's part, stage by stage.
    pub pipeline_stages: Vec<(String, Bytes)>,
    /// The smallest line that works with what is allowed.
    pub least: Bytes,
    /// What stands under the device's own line; none if it shares the host's memory.
    pub device_memory: Option<DeviceLine>,
    /// The step's floating-point operations for a whole batch.
    pub flops: u64,
    /// Milliseconds planning took.
    pub plan_ms: f64,
    /// The device's part.
    pub memory: Arc<Plan>,
    pub(super) pipeline: PipelinePlan,
    pub(super) validation: Option<PipelinePlan>,
    /// Rows the feed delivers at a time.
    pub(super) feed_rows: usize,
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
    pub owners: Vec<(String, Bytes)>,
    /// The smallest line that works with what is allowed.
    pub least: Bytes,
}

impl DeviceLine {
    /// Everything under the line.
    pub fn total(&self) -> Bytes {
        self.owners.iter().map(|(_, size)| *size).sum()
    }
}

/// A run that does not fit under its line: what it needs, who holds the most, and what would help.
#[derive(Clone, Debug)]
pub struct Infeasible {
    /// Whose line: `host memory`, or `memory of cuda:0`.
    pub space: String,
    /// The line.
    pub line: Bytes,
    /// The smallest line that works.
    pub least: Bytes,
    /// What stands under the smallest line, by owner, largest first.
    pub owners: Vec<(String, Bytes)>,
    /// The micro-batch of the smallest plan.
    pub micro_batch: usize,
    /// The batch.
    pub batch: usize,
    /// Whether the user chose the micro-batch.
    pub micro_batch_asked: bool,
    /// Milliseconds planning took.
    pub plan_ms: f64,
}

impl std::error::Error for Infeasible {}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owners: Vec<String> = self.owners.iter().take(4).map(|(name, size)| format!("{name} {size}")).collect();
        let relax = if self.micro_batch_asked && self.micro_batch > 1 { "; a smaller micro-batch may need less" } else { "" };
        // The exact number of bytes works as a line; the rounded one may fall just short.
        write!(
            f,
            "this run does not fit into {} of {}; the smallest line that works is {} ({} bytes), with micro-batches of {}: {}{relax}",
            self.line,
            self.space,
            self.least,
            self.least.0,
            self.micro_batch,
            owners.join(", ")
        )
    }
}

/// What a plan is made of.
pub(super) struct Request<'a> {
    pub model: &'a str,
    pub programs: &'a Programs,
    pub device: &'a dyn Device,
    pub data: &'a Dataset,
    pub validation: Option<&'a Dataset>,
    pub batch: usize,
    pub micro_batch: Option<usize>,
    pub budget: Budget,
    pub thread_stacks: Bytes,
    pub checkpointed: bool,
}

pub(super) enum PlanError {
    Infeasible(Box<Infeasible>),
    Other(crate::Error),
}

impl<E: Into<crate::Error>> From<E> for PlanError {
    fn from(error: E) -> PlanError {
        PlanError::Other(error.into())
    }
}

/// One way to cut the batch, laid out and checked.
struct Candidate {
    micro_batch: usize,
    feed_rows: usize,
    memory: Arc<Plan>,
    /// The smallest total this way can have.
    least: Bytes,
    fixed: Vec<(String, Bytes)>,
    /// What stands under the device's own line, if it has one.
    on_device: Option<Vec<(String, Bytes)>>,
}

impl Candidate {
    fn device_total(&self) -> Bytes {
        self.on_device.iter().flatten().map(|(_, size)| *size).sum()
    }
}

/// Finds the largest micro-batch whose plan stays under the line.
pub(super) fn plan_run(request: &Request<'_>) -> Result<RunPlan, PlanError> {
    let start = Instant::now();
    let line = request.budget.host.unwrap_or_else(system::available_memory);
    let device_line = request.budget.device.or_else(|| request.device.available()).unwrap_or_default();
    let mut smallest: Option<Candidate> = None;
    let mut chosen: Option<Candidate> = None;
    for micro_batch in ways(request) {
        let candidate = candidate(request, micro_batch)?;
        if candidate.least <= line && candidate.device_total() <= device_line {
            chosen = Some(candidate);
            break;
        }
        smallest = smaller(smallest, candidate);
    }
    let plan_ms = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    let Some(candidate) = chosen else {
        let smallest = smallest.expect("there is always the whole batch to try");
        let pipeline = pipelines(request, smallest.feed_rows, None)?;
        let on_host = smallest.least > line;
        let (space, line, least, owners) = match &smallest.on_device {
            Some(owners) if !on_host => {
                (format!("memory of {}", request.device.name()), device_line, smallest.device_total(), sorted(owners))
            }
            _ => (HOST.to_string(), line, smallest.least, owners(&smallest, &pipeline)),
        };
        return Err(PlanError::Infeasible(Box::new(Infeasible {
            space,
            line,
            least,
            owners,
            micro_batch: smallest.micro_batch,
            batch: request.batch,
            micro_batch_asked: request.micro_batch.is_some(),
            plan_ms: plan_ms(start),
        })));
    };
    // Buffers only shrink with the rows, so nothing between the chosen pieces and single rows needs less than both.
    let (least, least_on_device) = match ways(request).last() {
        Some(rows) if *rows < candidate.micro_batch => {
            let smallest = self::candidate(request, *rows)?;
            (candidate.least.min(smallest.least), candidate.device_total().min(smallest.device_total()))
        }
        _ => (candidate.least, candidate.device_total()),
    };
    let fixed: Bytes = candidate.fixed.iter().map(|(_, size)| *size).sum();
    let pipeline = pipelines(request, candidate.feed_rows, Some(line - fixed))?;
    let step = &candidate.memory.programs[0].graph;
    let flops = step.flops(candidate.micro_batch) / candidate.micro_batch as u64 * request.batch as u64;
    Ok(RunPlan {
        model: request.model.to_string(),
        device: (request.device.name(), request.device.description()),
        batch: request.batch,
        micro_batch: candidate.micro_batch,
        micro_batch_asked: request.micro_batch.is_some(),
        line,
        line_given: request.budget.host.is_some(),
        promised: None,
        owners: owners(&candidate, &pipeline),
        pipeline_stages: pipeline.stages,
        least,
        device_memory: candidate.on_device.as_ref().map(|owners| DeviceLine {
            line: device_line,
            given: request.budget.device.is_some(),
            promised: None,
            owners: sorted(owners),
            least: least_on_device,
        }),
        flops,
        plan_ms: plan_ms(start),
        memory: candidate.memory,
        pipeline: pipeline.training,
        validation: pipeline.validation,
        feed_rows: candidate.feed_rows,
    })
}

fn smaller(known: Option<Candidate>, other: Candidate) -> Option<Candidate> {
    match known {
        Some(known) if known.least + known.device_total() <= other.least + other.device_total() => Some(known),
        _ => Some(other),
    }
}

/// The micro-batches to try, largest first. Those the planner picks divide the batch, so that the pipeline can deliver them one by one.
fn ways(request: &Request<'_>) -> Vec<usize> {
    match request.micro_batch {
        Some(rows) => vec![rows.clamp(1, request.batch)],
        None => divisors(request.batch),
    }
}

/// The divisors of a number, largest first.
fn divisors(number: usize) -> Vec<usize> {
    let small: Vec<usize> = (1..).take_while(|n| n * n <= number).filter(|n| number.is_multiple_of(*n)).collect();
    let mut all: Vec<usize> = small.iter().map(|n| number / n).chain(small.iter().rev().copied()).collect();
    all.dedup();
    all
}

fn candidate(request: &Request<'_>, micro_batch: usize) -> Result<Candidate, PlanError> {
    let graphs = if micro_batch == request.batch { &request.programs.whole } else { &request.programs.accumulating };
    let memory = layout(graphs, micro_batch, request.device)?;
    let planned: Vec<&Graph> = memory.programs.iter().map(|program| &program.graph).collect();
    check(&memory.certificate(), &planned)?;
    let feed_rows = if request.batch.is_multiple_of(micro_batch) { micro_batch } else { request.batch };
    let overhead = request.device.overhead();
    let (mut fixed, on_device) = if request.device.shares_host_memory() {
        (memory.by_owner(), None)
    } else {
        let mut on_device = memory.by_owner();
        on_device.push(("CUDA itself".to_string(), overhead.device));
        (
            vec![("CUDA itself".to_string(), overhead.host), ("pinned staging".to_string(), request.device.host_staging(&memory))],
            Some(on_device),
        )
    };
    fixed.push(("process".to_string(), system::process_footprint()));
    fixed.push(("thread stacks".to_string(), request.thread_stacks));
    fixed.push(("graphs".to_string(), request.programs.footprint()));
    if request.checkpointed {
        fixed.push(("checkpoint".to_string(), Checkpoints::footprint(memory.states.len())));
    }
    let pipeline = pipelines(request, feed_rows, None)?;
    let least = fixed.iter().map(|(_, size)| *size).sum::<Bytes>() + pipeline.minimum;
    Ok(Candidate { micro_batch, feed_rows, memory: Arc::new(memory), least, fixed, on_device })
}

struct Pipelines {
    training: PipelinePlan,
    validation: Option<PipelinePlan>,
    stages: Vec<(String, Bytes)>,
    minimum: Bytes,
}

/// The pipelines in what is left under the line; without a limit, their smallest arrangement.
fn pipelines(request: &Request<'_>, feed_rows: usize, left: Option<Bytes>) -> Result<Pipelines, DataError> {
    let training = request.data.clone().rebatch(feed_rows);
    let validation = request.validation.map(|data| data.clone().rebatch(feed_rows));
    let minimum = |data: &Dataset| data.plan(None).map(|plan| plan.minimum());
    let for_validation = validation.as_ref().map(&minimum).transpose()?;
    let least = minimum(&training)? + for_validation.unwrap_or_default();
    let left = left.unwrap_or(least);
    // Validation is short: it gets its minimum plus a quarter of what is left over.
    let spare = Bytes(left.saturating_sub(least).0 / 4);
    let validation = validation.zip(for_validation).map(|(data, least)| data.plan(Some(least + spare))).transpose()?;
    let taken = validation.as_ref().map_or(Bytes::ZERO, PipelinePlan::total);
    let training = training.plan(Some(left - taken))?;
    let name =
        |prefix: &str, stages: &[(String, Bytes)]| stages.iter().map(|(name, size)| (format!("{prefix}{name}"), *size)).collect::<Vec<_>>();
    let mut stages = name("", training.stages());
    stages.extend(validation.iter().flat_map(|plan| name("validation ", plan.stages())));
    Ok(Pipelines { training, validation, stages, minimum: least })
}

fn owners(candidate: &Candidate, pipeline: &Pipelines) -> Vec<(String, Bytes)> {
    let mut owners = candidate.fixed.clone();
    owners.push(("pipeline".to_string(), pipeline.stages.iter().map(|(_, size)| *size).sum()));
    sorted(&owners)
}

/// Those that hold something, largest first.
fn sorted(owners: &[(String, Bytes)]) -> Vec<(String, Bytes)> {
    let mut owners = owners.to_vec();
    owners.retain(|(_, size)| *size > Bytes::ZERO);
    owners.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    owners
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

    /// Micro-batches per whole batch.
    pub fn accumulation_steps(&self) -> usize {
        self.batch.div_ceil(self.micro_batch)
    }
}
