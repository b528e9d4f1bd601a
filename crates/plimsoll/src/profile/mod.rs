//! Profiles: some real steps of a run, timed as a whole, then traced op by op in their place; with memory and the input
//! pipeline on the same time axis.

mod snapshot;
mod trace;

use crate::error::Result;
use crate::pipeline::Explain;
use crate::plan::{RunPlan, epoch_rows};
use crate::session::{HostRows, Session, feed, place_in_batch};
use crate::system;
use crate::trainer::Trainer;
use plimsoll_core::Bytes;
use plimsoll_core::device::NodeSpan;
use plimsoll_core::step::Role;
use plimsoll_data::{Feed, Options, Schema, WorkerSpan};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

/// Batches of which every node is in the trace, at most.
const TRACED: u64 = 20;

/// Times of one node that are kept, at most: their median is its time.
const SAMPLES: usize = 32;

/// Spans of pipeline workers that are recorded, at most.
const WORKER_SPANS: usize = 16 << 10;

/// Nodes on the screen.
const LINES: usize = 16;

/// What a run's steps do with time and memory.
///
/// ```
/// use plimsoll::{Trainer, config::Config};
/// let mut config = Config::digits();
/// config.set("train.threads=1")?;
/// let profile = Trainer::from(config.build()?).profile(3)?;
/// assert_eq!(profile.steps.len(), 3);
/// assert!(profile.ops.iter().any(|op| op.op == "conv2d" && op.seconds > 0.0));
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub struct Profile {
    /// The plan that ran.
    pub plan: RunPlan,
    /// The steps, in order.
    pub steps: Vec<StepSpan>,
    /// Every node of a whole batch, in order of execution, with its median time.
    pub ops: Vec<ProfiledOp>,
    /// The roofline: the most operations and bytes per second that were seen on this device.
    pub peak_flops_per_s: f64,
    /// See [`peak_flops_per_s`](Profile::peak_flops_per_s).
    pub peak_bytes_per_s: f64,
    /// The stages of the input pipeline.
    pub pipeline: Explain,
    /// Memory over time.
    pub memory: Vec<MemorySample>,
    /// When each node of the last batches ran.
    spans: Vec<Span>,
    /// Where the spans of the last batch begin.
    last_batch: usize,
    /// The program and the position in its order of every entry of `ops`.
    places: Vec<(Role, usize)>,
    /// Time that each stage of the pipeline took within each step.
    stages: Vec<StageTime>,
    /// When the worker threads of the pipeline produced rows.
    workers: Vec<WorkerTime>,
}

/// One step, in seconds since the profile began.
#[derive(Clone, Copy, Debug)]
pub struct StepSpan {
    /// When its rows were asked for.
    pub begin_s: f64,
    /// How long they were waited for.
    pub waited_s: f64,
    /// When it was done.
    pub end_s: f64,
}

/// One node of a program.
#[derive(Clone, Debug)]
pub struct ProfiledOp {
    /// The program.
    pub role: Role,
    /// The name of the op.
    pub op: &'static str,
    /// The layer.
    pub scope: String,
    /// Median seconds per run, times the runs per batch.
    pub seconds: f64,
    /// Operations per batch.
    pub flops: u64,
    /// Bytes read and written per batch.
    pub bytes: u64,
    /// How often it ran per batch.
    pub calls: u64,
    /// Planned memory of weights, optimizer state and live buffers while it runs.
    pub planned: Bytes,
}

/// Memory at one instant.
#[derive(Clone, Copy, Debug)]
pub struct MemorySample {
    /// Seconds since the profile began.
    pub time_s: f64,
    /// Resident memory of the process.
    pub resident: Bytes,
    /// Memory in use on the device, by all processes.
    pub on_device: Option<Bytes>,
}

/// A node in a traced batch.
struct Span {
    role: Role,
    /// The position in the order of its program.
    at: usize,
    start_s: f64,
    end_s: f64,
}

/// How long a stage of the pipeline worked between two instants, over its threads.
struct StageTime {
    stage: usize,
    from_s: f64,
    to_s: f64,
    busy_s: f64,
}

/// Rows that a worker thread of the pipeline produced.
struct WorkerTime {
    worker: usize,
    rows: usize,
    start_s: f64,
    end_s: f64,
}

impl ProfiledOp {
    /// The share of the roofline it reaches: its shortest possible time over the measured one.
    pub fn roofline(&self, flops_per_s: f64, bytes_per_s: f64) -> f64 {
        let least = (self.flops as f64 / flops_per_s).max(self.bytes as f64 / bytes_per_s);
        (least / self.seconds.max(1e-12)).min(1.0)
    }
}

impl Trainer {
    /// Trains for some steps and measures them. The trainer is used up: on a GPU, weights are undefined afterwards.
    ///
    /// # Errors
    /// If the run does not fit its budget, or fails.
    pub fn profile(self, steps: u64) -> Result<Profile> {
        let costs = self.spec().costs.clone();
        let data = self.spec().data.clone();
        let mut run = self.custom_loop()?;
        let plan = run.plan().clone();
        let session = run.session();
        let schema = data.output_schema()?;
        let options = Options { recorded_spans: WORKER_SPANS, ..Options::default() };
        let fed = data.clone().rebatch(plan.feed_rows);
        let begin = Instant::now();
        let feed = feed::start(&fed, &plan.pipeline, &session.ledger, options, session.executor.device())?;
        let rows = epoch_rows(&data);
        let mut profiler = Profiler { begin, session, schema: &schema, feed, batch: plan.batch as u64, epoch_rows: rows };
        let (mut spans, mut memory, mut stages) = (Vec::new(), Vec::new(), Vec::new());
        let mut before = Vec::new();
        // The first step touches memory for the first time.
        profiler.step(&mut None)?;
        // Where the host's clock times nodes, the steps themselves are traced; else a batch after them is.
        let mut tracing = (!profiler.session.lags).then(|| TracedRun::new(&plan));
        for _ in 0..steps {
            let span = profiler.step(&mut tracing)?;
            profiler.add_stages(&span, &mut before, &mut stages);
            memory.push(profiler.memory());
            spans.push(span);
        }
        if tracing.is_none() {
            tracing = Some(TracedRun::new(&plan));
            profiler.step(&mut tracing)?;
        }
        let traced = tracing.unwrap_or_else(|| TracedRun::new(&plan));
        let (ops, places) = traced.ops(&plan);
        let workers = profiler.worker_times();
        let activity = profiler.feed.activity();
        let pipeline = Explain::new(&plan.pipeline_stages, plan.pipeline.slots(), &activity);
        let seen = (peak_rate(&ops, |op| op.flops), peak_rate(&ops, |op| op.bytes));
        let known = costs.map_or((0.0, 0.0), |costs| {
            costs
                .rates()
                .iter()
                .fold((0.0, 0.0), |(flops, bytes): (f64, f64), rate| (flops.max(rate.flops_per_s.1), bytes.max(rate.bytes_per_s.1)))
        });
        Ok(Profile {
            steps: spans,
            ops,
            places,
            peak_flops_per_s: seen.0.max(known.0),
            peak_bytes_per_s: seen.1.max(known.1),
            pipeline,
            memory,
            spans: traced.spans,
            last_batch: traced.last_batch,
            stages,
            workers,
            plan,
        })
    }
}

/// Part of a step's time that ops above the roofline may take: bytes and operations are counted from shapes, and an op
/// that reads a part of its operands, such as a gather, seems to be faster than the device.
const ABOVE_ROOFLINE: f64 = 0.01;

/// The highest rate that is not just that of a few short ops.
fn peak_rate(ops: &[ProfiledOp], amount: impl Fn(&ProfiledOp) -> u64) -> f64 {
    let mut rates: Vec<(f64, f64)> = ops.iter().map(|op| (amount(op) as f64 / op.seconds.max(1e-9), op.seconds)).collect();
    rates.sort_by(|a, b| b.0.total_cmp(&a.0));
    let left_out = ABOVE_ROOFLINE * rates.iter().map(|(_, seconds)| seconds).sum::<f64>();
    let mut above = 0.0;
    let reached = rates.iter().find(|(_, seconds)| {
        above += seconds;
        above > left_out
    });
    reached.map_or(0.0, |(rate, _)| *rate)
}

/// A session under measurement.
struct Profiler<'a> {
    begin: Instant,
    session: &'a mut Session,
    schema: &'a Schema,
    feed: Feed,
    batch: u64,
    epoch_rows: Option<u64>,
}

impl Profiler<'_> {
    fn now(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    fn memory(&self) -> MemorySample {
        let on_device = self.session.executor.device().memory_info().map(|memory| memory.in_use);
        MemorySample { time_s: self.now(), resident: system::resident(), on_device }
    }

    /// What the worker threads of the pipeline did, in seconds since the profile began.
    fn worker_times(&self) -> Vec<WorkerTime> {
        let since = |instant: Instant| instant.saturating_duration_since(self.begin).as_secs_f64();
        let time =
            |span: WorkerSpan| WorkerTime { worker: span.worker, rows: span.rows, start_s: since(span.start), end_s: since(span.end) };
        self.feed.spans().into_iter().map(time).collect()
    }

    /// Trains on one batch, or traces it.
    fn step(&mut self, tracing: &mut Option<TracedRun>) -> Result<StepSpan> {
        let (begin_s, mut waited_s) = (self.now(), 0.0);
        let mut tally = self.session.begin()?;
        let began = self.begin;
        let now = || began.elapsed().as_secs_f64();
        loop {
            let asked = Instant::now();
            let Some(block) = self.feed.next()? else {
                self.session.epochs += 1;
                continue;
            };
            waited_s += asked.elapsed().as_secs_f64();
            let mut at = 0;
            while at < block.rows {
                let micro_batch = self.session.plan.micro_batch;
                let (role, piece) =
                    place_in_batch(micro_batch, HostRows::Fed(&block), at, block.first_row, block.rows, self.batch, self.epoch_rows);
                match tracing {
                    Some(traced) => {
                        let start_s = now();
                        let spans = self.session.trace(role, &piece, self.schema)?;
                        // The end of an epoch may be smaller than the planned micro-batch.
                        traced.add(&self.session.plan, role, start_s, spans, piece.rows == micro_batch);
                    }
                    None => self.session.run(role, &piece, self.schema, &mut tally)?,
                }
                at += piece.rows;
                if matches!(role, Role::Step | Role::Last) {
                    self.session.step += 1;
                    if tracing.is_none() {
                        self.session.settle(self.schema, &mut tally)?;
                    }
                    return Ok(StepSpan { begin_s, waited_s, end_s: now() });
                }
            }
        }
    }

    /// What the stages of the pipeline did since the last step.
    fn add_stages(&self, span: &StepSpan, before: &mut Vec<f64>, stages: &mut Vec<StageTime>) {
        let now = self.feed.activity().times;
        before.resize(now.len(), 0.0);
        for (stage, (spent, before)) in now.iter().zip(before.iter_mut()).enumerate() {
            let total = spent.time.as_secs_f64();
            let busy_s = (total - *before).max(0.0);
            *before = total;
            stages.push(StageTime { stage, from_s: span.begin_s, to_s: span.end_s, busy_s });
        }
    }
}

/// Times of nodes.
struct TracedRun {
    /// Of every program and node: its runs with whole micro-batches.
    runs: Vec<Vec<NodeRuns>>,
    batches: u64,
    /// The nodes of the last batches, and where those of the last one begin.
    spans: Vec<Span>,
    last_batch: usize,
}

/// The runs of one node, with the seconds of the last of them.
#[derive(Clone, Default)]
struct NodeRuns {
    count: u64,
    seconds: Vec<f32>,
}

impl NodeRuns {
    fn add(&mut self, seconds: f64) {
        let at = (self.count % SAMPLES as u64) as usize;
        match self.seconds.get_mut(at) {
            Some(oldest) => *oldest = seconds as f32,
            None => self.seconds.push(seconds as f32),
        }
        self.count += 1;
    }

    /// A pause of the machine within a step does not change the median.
    fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f32::total_cmp);
        sorted.get(sorted.len() / 2).map_or(0.0, |seconds| f64::from(*seconds))
    }
}

impl TracedRun {
    fn new(plan: &RunPlan) -> TracedRun {
        let runs = plan.memory.programs.iter().map(|program| vec![NodeRuns::default(); program.order.len()]).collect();
        TracedRun { runs, batches: 0, spans: Vec::new(), last_batch: 0 }
    }

    /// Adds the nodes of a micro-batch that began at `start_s`; only those of `whole` ones are counted.
    fn add(&mut self, plan: &RunPlan, role: Role, start_s: f64, spans: Vec<NodeSpan>, whole: bool) {
        if matches!(role, Role::Step | Role::First) {
            self.batches += 1;
            if self.batches > TRACED {
                self.spans.clear();
            }
            self.last_batch = self.spans.len();
        }
        let Some(program) = plan.memory.programs.iter().position(|program| program.role == role) else { return };
        let order = &plan.memory.programs[program].order;
        let mut place = 0;
        for span in spans {
            // Nodes come in the order of the program; some are not timed.
            let Some(found) = order[place..].iter().position(|id| *id == span.node) else { break };
            place += found;
            if whole {
                self.runs[program][place].add(span.end_s - span.start_s);
            }
            self.spans.push(Span { role, at: place, start_s: start_s + span.start_s, end_s: start_s + span.end_s });
        }
    }

    /// Every node with its time per batch, and its program and place in the order.
    fn ops(&self, plan: &RunPlan) -> (Vec<ProfiledOp>, Vec<(Role, usize)>) {
        let (mut ops, mut places) = (Vec::new(), Vec::new());
        for (program, runs) in plan.memory.programs.iter().zip(&self.runs) {
            let live = trace::live_by_kind(program);
            for (at, (id, runs)) in program.order.iter().zip(runs).enumerate().filter(|(_, (_, runs))| runs.count > 0) {
                let node = program.graph.node(*id);
                let calls = runs.count.div_ceil(self.batches.max(1));
                places.push((program.role, at));
                ops.push(ProfiledOp {
                    role: program.role,
                    op: node.op.rules().name(),
                    scope: node.scope.to_string(),
                    seconds: runs.median() * calls as f64,
                    flops: program.graph.node_flops(node, plan.micro_batch) * calls,
                    bytes: program.graph.moved(node, plan.micro_batch) * calls,
                    calls,
                    planned: Bytes(plan.memory.resident.0 + live[at].iter().sum::<u64>()),
                });
            }
        }
        (ops, places)
    }
}

impl Profile {
    /// The median seconds of a step.
    pub fn step_seconds(&self) -> f64 {
        let mut seconds: Vec<f64> = self.steps.iter().map(|step| step.end_s - step.begin_s).collect();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
    }

    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        let op = |op: &ProfiledOp| {
            let roofline = op.roofline(self.peak_flops_per_s, self.peak_bytes_per_s);
            json!({ "role": op.role.name(), "op": op.op, "scope": op.scope, "seconds": op.seconds, "flops": op.flops, "bytes": op.bytes,
                    "calls": op.calls, "flops_per_s": op.flops as f64 / op.seconds, "bytes_per_s": op.bytes as f64 / op.seconds,
                    "roofline": roofline, "planned_bytes": op.planned.0 })
        };
        // The last batch, on the time axis of the steps: which op ran when.
        let index: HashMap<(Role, usize), usize> = self.places.iter().enumerate().map(|(i, place)| (*place, i)).collect();
        let spans = self.spans[self.last_batch.min(self.spans.len())..].iter();
        let spans: Vec<Value> =
            spans.filter_map(|span| Some(json!([index.get(&(span.role, span.at))?, span.start_s, span.end_s]))).collect();
        let worker = |time: &WorkerTime| json!([time.worker, time.start_s, time.end_s, time.rows]);
        let step = |step: &StepSpan| json!({ "begin_s": step.begin_s, "waited_s": step.waited_s, "end_s": step.end_s });
        let memory = |sample: &MemorySample| json!({ "time_s": sample.time_s, "resident_bytes": sample.resident.0, "device_bytes": sample.on_device.map(|bytes| bytes.0) });
        json!({
            "model": self.plan.model,
            "device": self.plan.device.0,
            "batch": self.plan.batch,
            "micro_batch": self.plan.micro_batch,
            "steps": self.steps.len(),
            "step_s": self.step_seconds(),
            "predicted_step_s": self.plan.predicted_s,
            "planned_bytes": self.plan.total().0,
            "planned_device_bytes": self.plan.device_memory.as_ref().map(|device| device.total().0),
            "measured_peak_rss_bytes": system::peak_resident().0,
            "peak_flops_per_s": self.peak_flops_per_s,
            "peak_bytes_per_s": self.peak_bytes_per_s,
            "ops": self.ops.iter().map(op).collect::<Vec<_>>(),
            "timeline": self.steps.iter().map(step).collect::<Vec<_>>(),
            "spans": spans,
            "workers": self.workers.iter().map(worker).collect::<Vec<_>>(),
            "memory": self.memory.iter().map(memory).collect::<Vec<_>>(),
            "pipeline": self.pipeline.to_json(),
        })
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: f64 = self.ops.iter().map(|op| op.seconds).sum();
        let waited: f64 = self.steps.iter().map(|step| step.waited_s).sum::<f64>() / self.steps.len().max(1) as f64;
        let (step, steps) = (short(self.step_seconds()), self.steps.len());
        writeln!(f, "profile · {} · batch {} · {} ({})\n", self.plan.model, self.plan.batch, self.plan.device.0, self.plan.device.1)?;
        writeln!(f, "  step      {step} median of {steps}, {} of it waiting for input; {} in ops", short(waited), short(total))?;
        let (flops, bytes) = (self.peak_flops_per_s / 1e9, self.peak_bytes_per_s / 1e9);
        writeln!(f, "  roofline  {flops:.1} GFLOP/s, {bytes:.1} GB/s")?;
        writeln!(f, "  memory    {} planned, {} measured peak\n", self.plan.total(), system::peak_resident())?;
        let mut ops: Vec<&ProfiledOp> = self.ops.iter().collect();
        ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        writeln!(f, "  {:>9}  {:>6}  {:>9}  {:>8}  {:>8}  op", "time", "share", "GFLOP/s", "GB/s", "roofline")?;
        for op in ops.iter().take(LINES) {
            let (seconds, share) = (short(op.seconds), 100.0 * op.seconds / total.max(1e-12));
            let (flops, bytes) = (op.flops as f64 / op.seconds / 1e9, op.bytes as f64 / op.seconds / 1e9);
            let roofline = 100.0 * op.roofline(self.peak_flops_per_s, self.peak_bytes_per_s);
            let scope = if op.scope.is_empty() { String::new() } else { format!(" of {}", op.scope) };
            writeln!(f, "  {seconds:>9}  {share:>4.1} %  {flops:>9.2}  {bytes:>8.2}  {roofline:>6.0} %  {}{scope}", op.op)?;
        }
        if ops.len() > LINES {
            let rest: f64 = ops[LINES..].iter().map(|op| op.seconds).sum();
            writeln!(f, "  {:>9}  {:>4.1} %  {} more nodes", short(rest), 100.0 * rest / total.max(1e-12), ops.len() - LINES)?;
        }
        write!(f, "\n{}", self.pipeline)
    }
}

fn short(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", 1e6 * s),
        s if s < 1.0 => format!("{:.2} ms", 1e3 * s),
        s => format!("{s:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_op_that_reads_part_of_its_operands_does_not_set_the_roofline() {
        let op = |seconds: f64, bytes: u64| ProfiledOp {
            role: Role::Step,
            op: "gather",
            scope: String::new(),
            seconds,
            flops: 0,
            bytes,
            calls: 1,
            planned: Bytes::ZERO,
        };
        let long = || op(1e-3, 4_000_000);
        assert_eq!(peak_rate(&[op(1e-6, 1_000_000), long(), op(2e-3, 2_000_000)], |op| op.bytes), 4e9);
        assert_eq!(peak_rate(&[op(1e-4, 1_000_000), long()], |op| op.bytes), 1e10, "a tenth of the time is no exception");
        assert_eq!((peak_rate(&[], |op| op.bytes), peak_rate(&[long()], |op| op.flops)), (0.0, 0.0));
    }
}
