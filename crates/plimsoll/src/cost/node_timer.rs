//! Times single nodes with the host's clock.

use super::Bandwidths;
use crate::error::Result;
use crate::system::Waiting;
use plimsoll_core::device::{Device, Memory, StepInputs, StepMemory};
use plimsoll_core::graph::{Graph, Init, Node, StateKind};
use plimsoll_core::plan::{CheckedPlan, layout};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType, Op, TensorType};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// Timed runs per node after a warm-up run; the minimum counts.
const TIMED_RUNS: usize = 3;

/// Short nodes are repeated for this many seconds.
const REPEAT_SECONDS: f64 = 1.2e-3;

/// The maximum number of runs where other load interrupts each one.
const MAX_RETRIES: usize = 8;

/// Nodes that take longer, in seconds, are run once.
const LONG_SECONDS: f64 = 8e-3;

/// The minimum time of a node: the resolution of the clock.
const MIN_SECONDS: f64 = 5e-8;

/// Nodes that touch more than this are timed with cold caches, as in a step.
const COLD_CACHE_BYTES: u64 = 12 << 20;

/// Bytes read to flush the CPU caches.
pub(crate) const FLUSH_BYTES: Bytes = Bytes::mib(40);

/// Alignment of columns.
const ALIGNMENT: usize = 64;

/// Bytes written at a time when memory is filled.
const CHUNK: usize = 4 << 20;

/// Device memory in which nodes are timed one by one, on devices that run synchronously.
pub(crate) struct NodeTimer<'a> {
    device: &'a dyn Device,
    resident: Box<dyn Memory>,
    arena: Box<dyn Memory>,
    /// The contents of input columns.
    batch: Vec<u8>,
    most: Bytes,
    waiting: Waiting,
    /// Read before [large](COLD_CACHE_BYTES) nodes to flush the CPU caches, as in a step. Not written: dirty lines would be written back
    /// while the node runs.
    flush: Vec<u64>,
}

impl<'a> NodeTimer<'a> {
    /// For nodes that take at most `most` bytes of inputs, outputs and workspace.
    pub fn new(device: &'a dyn Device, most: Bytes) -> Result<NodeTimer<'a>> {
        let (mut resident, arena) = (device.allocate(most)?, device.allocate(most)?);
        let batch = pattern(most.get() + ALIGNMENT);
        fill(&mut *resident, &batch)?;
        // Not zeros, which would map to one page.
        let flush = vec![1; FLUSH_BYTES.get() / size_of::<u64>()];
        Ok(NodeTimer { device, resident, arena, batch, most, waiting: Waiting::of_this_thread(), flush })
    }

    /// Bandwidths to and from its memory, and to and from a file in the folder.
    pub fn bandwidths(&mut self, folder: Option<&Path>) -> Bandwidths {
        Bandwidths::measure(&mut *self.resident, folder)
    }

    /// The minimum time of a node in seconds; none if it exceeds the memory, or the device cannot run it by itself.
    pub fn time(&self, graph: &Graph, node: &Node, rows: usize) -> Option<f64> {
        self.run(&self.program(graph, node, rows)?, rows)
    }

    /// A program of a single node; a fused slice write runs as its op by itself.
    fn program(&self, graph: &Graph, node: &Node, rows: usize) -> Option<CheckedPlan> {
        if graph.moved(node, rows) > self.most.0 {
            return None;
        }
        let mut alone = Graph::new();
        let mut inputs = Vec::new();
        let doing = graph.effective_op(node);
        for (i, value) in doing.inputs.iter().enumerate() {
            let ty: &TensorType = graph.ty(*value);
            let known = doing.inputs[..i].iter().position(|earlier| earlier == value);
            let own = match known {
                Some(earlier) => inputs[earlier],
                None if matches!(graph.producer(*value).op, Op::Scalar(_)) => alone.scalar(&format!("scalar{i}")),
                None if ty.shape.has_batch() => alone.input(&format!("column{i}"), ty.clone()),
                None => alone.state(&format!("state{i}"), StateKind::Statistic, ty.clone(), Init::Constant(0.0)).ok()?,
            };
            inputs.push(own);
        }
        let outputs = alone.add(doing.op.clone(), &inputs).ok()?;
        outputs.iter().enumerate().for_each(|(i, output)| alone.output(&format!("output{i}"), *output));
        let plan = CheckedPlan::new(layout(&[(Role::Predict, alone)], rows, self.device).ok()?).ok()?;
        (plan.resident <= self.most && plan.arena <= self.most).then_some(plan)
    }

    fn run(&self, plan: &CheckedPlan, rows: usize) -> Option<f64> {
        let program = &plan.programs[0];
        let memory = StepMemory { resident: &*self.resident, arena: &*self.arena, backing: None };
        let mut loaded = self.device.load(plan, program.role, rows, &memory).ok()?;
        let columns = Columns::of(&program.graph, rows, &self.batch, 1);
        let columns = columns.slices();
        let scalars = vec![0.5; program.graph.scalars().len()];
        let inputs = StepInputs { columns: &columns, scalars: &scalars, random: StepRandom { seed: 0, step: 0, first_row: 0 } };
        let touched: u64 =
            program.graph.nodes().flat_map(|(_, node)| &node.outputs).map(|value| program.graph.ty(*value).bytes(rows).0).sum();
        let mut once = || {
            if touched > COLD_CACHE_BYTES {
                black_box(self.flush.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
            }
            let before = self.waiting.so_far();
            let start = Instant::now();
            loaded.run(&inputs).ok()?;
            loaded.outcome(0, &mut []).ok()?;
            let took = start.elapsed().as_secs_f64();
            Some((took, self.waiting.so_far() == before))
        };
        let least_runs = if once()?.0 < LONG_SECONDS { TIMED_RUNS } else { 1 };
        // Runs in which the thread was descheduled count only if there are no others.
        let (mut least, mut descheduled) = (f64::INFINITY, f64::INFINITY);
        let begin = Instant::now();
        let mut runs = 0;
        while runs < least_runs
            || (begin.elapsed().as_secs_f64() < REPEAT_SECONDS && runs < 200)
            || (least.is_infinite() && runs < MAX_RETRIES)
        {
            match once()? {
                (seconds, true) => least = least.min(seconds),
                (seconds, false) => descheduled = descheduled.min(seconds),
            }
            runs += 1;
        }
        Some(if least.is_finite() { least } else { descheduled }.max(MIN_SECONDS))
    }
}

/// The inputs of timed nodes.
pub(super) struct Columns<'a> {
    numbers: &'a [u8],
    whole: Vec<u8>,
    /// Whether each column holds floats, and its bytes.
    columns: Vec<(bool, usize)>,
}

impl<'a> Columns<'a> {
    /// For the inputs of a graph, slices of [`pattern`]. Integers are below `index_bound`, so that every index is in range.
    pub fn of(graph: &Graph, rows: usize, numbers: &'a [u8], index_bound: i32) -> Columns<'a> {
        let columns: Vec<(bool, usize)> =
            graph.inputs().iter().map(|input| (is_float(input.ty.dtype), input.ty.bytes(rows).get())).collect();
        let longest = columns.iter().filter(|(real, _)| !real).map(|(_, size)| *size).max().unwrap_or(0) + ALIGNMENT;
        let whole = (0..longest.div_ceil(size_of::<i32>()) as i32).flat_map(|i| (i % index_bound).to_ne_bytes()).collect();
        Columns { numbers: aligned(numbers), whole, columns }
    }

    pub fn slices(&self) -> Vec<&[u8]> {
        let (whole, mut at) = (aligned(&self.whole), 0);
        let slice = |(real, size): &(bool, usize)| {
            if !*real {
                return &whole[..*size];
            }
            let from = at;
            at += size.next_multiple_of(ALIGNMENT);
            if from + size <= self.numbers.len() { &self.numbers[from..from + size] } else { &self.numbers[..*size] }
        };
        self.columns.iter().map(slice).collect()
    }
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// A pattern of moderate numbers, read as 16-bit or as 32-bit floats.
pub(super) fn pattern(bytes: usize) -> Vec<u8> {
    let half = |i: usize| ((i % 17) as f32 / 17.0 - 0.4).to_bits() >> 16;
    (0..bytes / 2).flat_map(|i| (half(i / 2) as u16).to_ne_bytes()).collect()
}

/// Fills memory with the repeated pattern.
pub(super) fn fill(memory: &mut dyn Memory, numbers: &[u8]) -> Result<()> {
    let piece = &numbers[..numbers.len().min(CHUNK)];
    for at in (0..memory.size().0).step_by(piece.len().max(1)) {
        let length = piece.len().min((memory.size().0 - at) as usize);
        memory.write(Bytes(at), &piece[..length])?;
    }
    Ok(())
}

fn aligned(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.as_ptr().align_offset(ALIGNMENT)..]
}
