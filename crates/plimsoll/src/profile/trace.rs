//! The profile as a trace for Chrome and Perfetto: steps, ops, pipeline stages and copies on their threads, and memory
//! as counters.

use super::{Profile, StageTime, WorkerTime};
use plimsoll_core::plan::{BufferKind, Program, state_owner};
use plimsoll_formats::trace::TraceWriter;
use std::io::{self, Write};

/// The tracks of the trace.
const PROCESS: u32 = 1;
const STEPS: u32 = 1;
const INPUT: u32 = 2;
const OPS: u32 = 3;
const COPIES: u32 = 4;
const WORKERS: u32 = 10;

impl Profile {
    /// Writes a trace that `ui.perfetto.dev` and `chrome://tracing` open: steps, ops, copies and pipeline stages as
    /// slices, memory as counters.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_trace(&self, writer: impl Write) -> io::Result<()> {
        let mut trace = TraceWriter::new(writer)?;
        trace.name_process(PROCESS, &format!("plimsoll · {} · {}", self.plan.model, self.plan.device.0))?;
        for (thread, name) in [(STEPS, "steps"), (INPUT, "waiting for input"), (OPS, "ops"), (COPIES, "copies")] {
            trace.name_thread(PROCESS, thread, name)?;
        }
        let stages: Vec<&str> = self.pipeline.stages.iter().filter(|stage| !stage.time.is_empty()).map(|stage| &stage.time[..]).collect();
        let workers = self.workers.iter().map(|time| time.worker + 1).max().unwrap_or(0);
        for (thread, worker) in (WORKERS..).zip(1..=workers) {
            trace.name_thread(PROCESS, thread, &format!("pipeline worker {worker}"))?;
        }
        for (i, step) in self.steps.iter().enumerate() {
            trace.slice(&format!("step {}", i + 1), (PROCESS, STEPS), us(step.begin_s), us(step.end_s - step.begin_s), &[])?;
            trace.slice("wait", (PROCESS, INPUT), us(step.begin_s), us(step.waited_s), &[])?;
        }
        for WorkerTime { worker, rows, start_s, end_s } in &self.workers {
            let track = (PROCESS, WORKERS + *worker as u32);
            trace.slice("produce rows", track, us(*start_s), us(end_s - start_s), &[("rows", *rows as f64)])?;
        }
        // How long a stage worked within a step is known, not when: the threads it kept busy on average.
        for StageTime { stage, from_s, to_s, busy_s } in &self.stages {
            let Some(name) = stages.get(*stage) else { continue };
            trace.counter("pipeline, busy threads", PROCESS, us(*from_s), &[(name, busy_s / (to_s - from_s).max(1e-12))])?;
        }
        self.write_ops(&mut trace)?;
        for sample in &self.memory {
            let device = sample.on_device.map_or(0.0, |bytes| bytes.0 as f64);
            let values = [("resident", sample.resident.0 as f64), ("device in use", device)];
            trace.counter("memory measured", PROCESS, us(sample.time_s), &values[..1 + usize::from(sample.on_device.is_some())])?;
        }
        trace.finish().map(drop)
    }

    /// The ops of the traced batches, with the memory of the plan as each begins.
    fn write_ops<W: Write>(&self, trace: &mut TraceWriter<W>) -> io::Result<()> {
        let mut fixed: Vec<(String, f64)> = Vec::new();
        for state in self.plan.memory.states.iter().filter(|state| !state.stored) {
            let owner = state_owner(state.kind).to_string();
            match fixed.iter_mut().find(|(known, _)| *known == owner) {
                Some((_, size)) => *size += state.size.0 as f64,
                None => fixed.push((owner, state.size.0 as f64)),
            }
        }
        let mut live: Option<(plimsoll_core::step::Role, Vec<[u64; 4]>)> = None;
        for span in &self.spans {
            let Some(program) = self.plan.memory.program(span.role) else { continue };
            if live.as_ref().is_none_or(|(role, _)| *role != span.role) {
                live = Some((span.role, live_by_kind(program)));
            }
            let node = program.graph.node(program.order[span.at]);
            let name = node.op.rules().name();
            let rows = self.plan.micro_batch;
            let arguments = [("flops", program.graph.node_flops(node, rows) as f64), ("bytes", program.graph.moved(node, rows) as f64)];
            let thread = if matches!(name, "store" | "load") { COPIES } else { OPS };
            let title = if node.scope.is_empty() { name.to_string() } else { format!("{name} · {}", node.scope) };
            trace.slice(&title, (PROCESS, thread), us(span.start_s), us(span.end_s - span.start_s), &arguments)?;
            if let Some((_, live)) = &live {
                let kinds = ["activations", "gradients", "loaded", "workspace"];
                let arena = kinds.into_iter().zip(live[span.at]).map(|(kind, bytes)| (kind, bytes as f64));
                let all: Vec<(&str, f64)> = fixed.iter().map(|(owner, size)| (&owner[..], *size)).chain(arena).collect();
                trace.counter("memory planned", PROCESS, us(span.start_s), &all)?;
            }
        }
        Ok(())
    }
}

fn us(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e3
}

/// Live bytes of the arena at every step, by kind.
pub(super) fn live_by_kind(program: &Program) -> Vec<[u64; 4]> {
    let mut changes = vec![[0i64; 4]; program.order.len() + 1];
    for buffer in &program.buffers {
        let kind = match buffer.kind {
            BufferKind::Activation => 0,
            BufferKind::Gradient => 1,
            BufferKind::Loaded => 2,
            BufferKind::Workspace => 3,
        };
        changes[buffer.first as usize][kind] += buffer.size.0 as i64;
        changes[(buffer.last as usize + 1).min(program.order.len())][kind] -= buffer.size.0 as i64;
    }
    let mut live = [0i64; 4];
    let add = |change: &[i64; 4]| {
        live.iter_mut().zip(change).for_each(|(live, change)| *live += change);
        live.map(|live| live.max(0) as u64)
    };
    changes[..program.order.len()].iter().map(add).collect()
}
