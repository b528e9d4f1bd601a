//! One node by itself against the host's clock.

use super::Bandwidths;
use crate::error::Result;
use crate::system::Waiting;
use plimsoll_core::device::{Device, Memory, StepInputs, StepMemory};
use plimsoll_core::graph::{Graph, Init, Node, StateKind};
use plimsoll_core::plan::{Plan, layout};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType, Op, TensorType};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// A node is run this often after the first time, which does not count; the least time is its time.
const RUNS: usize = 3;

/// Short ones are run more often, for as many seconds; long ones less often.
const SECONDS: f64 = 1.2e-3;

/// So often at most, where other programs get in the way every time.
const AGAIN: usize = 8;

/// What is long, in seconds.
const LONG: f64 = 8e-3;

/// No node takes less than the clock can tell.
const LEAST: f64 = 5e-8;

/// What reads and writes more than this finds little of it in the processor's caches, because all else went through them since.
const COLD: u64 = 12 << 20;

/// What is read in between to empty the caches.
pub(crate) const FLUSH: Bytes = Bytes::mib(40);

/// Columns begin at a multiple of this.
const ALIGNED: usize = 64;

/// Bytes of memory that are filled at a time.
const PIECE: usize = 4 << 20;

/// Memory of a device in which nodes are timed one after another. The device has finished when a run returns.
pub(crate) struct NodeTimer<'a> {
    device: &'a dyn Device,
    resident: Box<dyn Memory>,
    arena: Box<dyn Memory>,
    /// The batch that nodes read.
    batch: Vec<u8>,
    most: Bytes,
    waiting: Waiting,
    /// Read before what is [large](COLD), so that its bytes come from memory as they do in a step. Not written: what is in the caches then would have to go to
    /// memory while the node runs.
    flush: Vec<u64>,
}

impl<'a> NodeTimer<'a> {
    /// For nodes that read, write and work in at most `most` bytes.
    pub fn new(device: &'a dyn Device, most: Bytes) -> Result<NodeTimer<'a>> {
        let (mut resident, arena) = (device.allocate(most)?, device.allocate(most)?);
        let batch = numbers(most.get() + ALIGNED);
        fill(&mut *resident, &batch)?;
        // Not zeros, which would all be one page.
        let flush = vec![1; FLUSH.get() / size_of::<u64>()];
        Ok(NodeTimer { device, resident, arena, batch, most, waiting: Waiting::of_this_thread(), flush })
    }

    /// How fast bytes move to its memory, back, and to a file in the folder.
    pub fn bandwidths(&mut self, folder: Option<&Path>) -> Bandwidths {
        Bandwidths::measure(&mut *self.resident, folder)
    }

    /// The least seconds a run of the node took; none if it needs more memory than there is, or the device cannot run it by itself.
    pub fn time(&self, graph: &Graph, node: &Node, rows: usize) -> Option<f64> {
        self.run(&self.program(graph, node, rows)?, rows)
    }

    /// A program of the node alone; a part that is made where it goes is made by itself.
    fn program(&self, graph: &Graph, node: &Node, rows: usize) -> Option<Plan> {
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
        let plan = layout(&[(Role::Predict, alone)], rows, self.device).ok()?;
        (plan.resident <= self.most && plan.arena <= self.most).then_some(plan)
    }

    fn run(&self, plan: &Plan, rows: usize) -> Option<f64> {
        let program = &plan.programs[0];
        let memory = StepMemory { resident: &*self.resident, arena: &*self.arena, backing: None };
        let mut loaded = self.device.load(plan, program, rows, &memory).ok()?;
        let columns = Columns::of(&program.graph, rows, &self.batch, 1);
        let columns = columns.slices();
        let scalars = vec![0.5; program.graph.scalars().len()];
        let inputs = StepInputs { columns: &columns, scalars: &scalars, random: StepRandom { seed: 0, step: 0, first_row: 0 } };
        let touched: u64 =
            program.graph.nodes().flat_map(|(_, node)| &node.outputs).map(|value| program.graph.ty(*value).bytes(rows).0).sum();
        let mut once = || {
            if touched > COLD {
                black_box(self.flush.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
            }
            let before = self.waiting.so_far();
            let start = Instant::now();
            loaded.run(&inputs).ok()?;
            loaded.outcome(0, &mut []).ok()?;
            let took = start.elapsed().as_secs_f64();
            Some((took, self.waiting.so_far() == before))
        };
        let least_runs = if once()?.0 < LONG { RUNS } else { 1 };
        // Runs in which this thread had to wait for a processor count only if there are no others.
        let (mut least, mut held_up) = (f64::INFINITY, f64::INFINITY);
        let begin = Instant::now();
        let mut runs = 0;
        while runs < least_runs || (begin.elapsed().as_secs_f64() < SECONDS && runs < 200) || (least.is_infinite() && runs < AGAIN) {
            match once()? {
                (seconds, true) => least = least.min(seconds),
                (seconds, false) => held_up = held_up.min(seconds),
            }
            runs += 1;
        }
        Some(if least.is_finite() { least } else { held_up }.max(LEAST))
    }
}

/// What nodes are given to read.
pub(super) struct Columns<'a> {
    numbers: &'a [u8],
    whole: Vec<u8>,
    /// Whether each column holds real numbers, and its bytes.
    columns: Vec<(bool, usize)>,
}

impl<'a> Columns<'a> {
    /// For the inputs of a graph, cut out of [`numbers`]. Whole numbers are below `places`: of a table, a window or the classes, of which there is
    /// always a first.
    pub fn of(graph: &Graph, rows: usize, numbers: &'a [u8], places: i32) -> Columns<'a> {
        let columns: Vec<(bool, usize)> = graph.inputs().iter().map(|input| (real(input.ty.dtype), input.ty.bytes(rows).get())).collect();
        let longest = columns.iter().filter(|(real, _)| !real).map(|(_, size)| *size).max().unwrap_or(0) + ALIGNED;
        let whole = (0..longest.div_ceil(size_of::<i32>()) as i32).flat_map(|i| (i % places).to_ne_bytes()).collect();
        Columns { numbers: aligned(numbers), whole, columns }
    }

    pub fn slices(&self) -> Vec<&[u8]> {
        let (whole, mut at) = (aligned(&self.whole), 0);
        let slice = |(real, size): &(bool, usize)| {
            if !*real {
                return &whole[..*size];
            }
            let from = at;
            at += size.next_multiple_of(ALIGNED);
            if from + size <= self.numbers.len() { &self.numbers[from..from + size] } else { &self.numbers[..*size] }
        };
        self.columns.iter().map(slice).collect()
    }
}

fn real(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Numbers that are neither large nor zero, whether they are read in 16 bits or in 32.
pub(super) fn numbers(bytes: usize) -> Vec<u8> {
    let half = |i: usize| ((i % 17) as f32 / 17.0 - 0.4).to_bits() >> 16;
    (0..bytes / 2).flat_map(|i| (half(i / 2) as u16).to_ne_bytes()).collect()
}

/// Fills memory with such numbers, over and over.
pub(super) fn fill(memory: &mut dyn Memory, numbers: &[u8]) -> Result<()> {
    let piece = &numbers[..numbers.len().min(PIECE)];
    for at in (0..memory.size().0).step_by(piece.len().max(1)) {
        let length = piece.len().min((memory.size().0 - at) as usize);
        memory.write(Bytes(at), &piece[..length])?;
    }
    Ok(())
}

fn aligned(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.as_ptr().align_offset(ALIGNED)..]
}
