//! One node by itself against the clock, on any device.

use super::Transfers;
use crate::error::Result;
use crate::system::Waiting;
use plimsoll_core::device::{Device, Memory, StepInputs, StepMemory};
use plimsoll_core::graph::{Graph, Init, Node, StateKind};
use plimsoll_core::plan::{Plan, layout};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType, Op, TensorType};
use std::cell::RefCell;
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

/// How often a node stands in the longer of two programs, on devices where starting one takes long.
const COPIES: usize = 9;

/// No node takes less than the clock can tell.
const LEAST: f64 = 5e-8;

/// What reads and writes more than this finds little of it in the processor's caches, because all else went through them since.
const COLD: u64 = 12 << 20;

/// What is written in between to empty the caches.
pub(super) const FLUSH: Bytes = Bytes::mib(40);

/// Columns begin at a multiple of this.
const ALIGNED: usize = 64;

/// Bytes of memory that are filled at a time.
const PIECE: usize = 4096;

/// Memory of a device in which nodes are timed one after another.
pub(super) struct Stopwatch<'a> {
    device: &'a dyn Device,
    resident: Box<dyn Memory>,
    arena: Box<dyn Memory>,
    /// The batch that nodes read.
    batch: Vec<u8>,
    most: Bytes,
    waiting: Waiting,
    /// Written before what is [large](COLD), so that its bytes come from memory as they do in a step.
    flush: RefCell<Vec<u64>>,
}

impl<'a> Stopwatch<'a> {
    /// For nodes that read, write and work in at most `most` bytes.
    pub fn new(device: &'a dyn Device, most: Bytes) -> Result<Stopwatch<'a>> {
        let (mut resident, arena) = (device.allocate(most)?, device.allocate(most)?);
        let batch = numbers(most.get() + ALIGNED);
        for at in (0..most.0).step_by(PIECE) {
            resident.write(Bytes(at), &batch[..PIECE.min((most.0 - at) as usize)])?;
        }
        let flush = RefCell::new(vec![0; if device.shares_host_memory() { FLUSH.get() / size_of::<u64>() } else { 0 }]);
        Ok(Stopwatch { device, resident, arena, batch, most, waiting: Waiting::of_this_thread(), flush })
    }

    /// How fast bytes move to its memory, back, and to a file in the folder.
    pub fn transfers(&mut self, folder: Option<&Path>) -> Transfers {
        Transfers::measure(&mut *self.resident, folder)
    }

    /// The least seconds a run of the node took; none if it needs more memory than there is, or the device cannot run it by itself.
    pub fn time(&self, graph: &Graph, node: &Node, rows: usize) -> Option<f64> {
        let one = self.program(graph, node, rows, 1)?;
        if self.device.shares_host_memory() {
            return self.run(&one, rows);
        }
        // Copies to the device and starting a program are left out by taking the difference.
        let many = self.program(graph, node, rows, COPIES)?;
        let difference = self.run(&many, rows)? - self.run(&one, rows)?;
        Some((difference / (COPIES - 1) as f64).max(LEAST))
    }

    /// A program of copies of the node that read the same tensors.
    fn program(&self, graph: &Graph, node: &Node, rows: usize, copies: usize) -> Option<Plan> {
        let bytes: u64 = node.inputs.iter().chain(&node.outputs).map(|value| graph.ty(*value).bytes(rows).0).sum();
        if bytes > self.most.0 {
            return None;
        }
        let mut alone = Graph::new();
        let mut inputs = Vec::new();
        for (i, value) in node.inputs.iter().enumerate() {
            let ty: &TensorType = graph.ty(*value);
            let known = node.inputs[..i].iter().position(|earlier| earlier == value);
            let own = match known {
                Some(earlier) => inputs[earlier],
                None if matches!(graph.producer(*value).op, Op::Scalar(_)) => alone.scalar(&format!("scalar{i}")),
                None if ty.shape.has_batch() => alone.input(&format!("column{i}"), ty.clone()),
                None => alone.state(&format!("state{i}"), StateKind::Statistic, ty.clone(), Init::Constant(0.0)).ok()?,
            };
            inputs.push(own);
        }
        for copy in 0..copies {
            let outputs = alone.add(node.op.clone(), &inputs).ok()?;
            if copy + 1 == copies {
                outputs.iter().enumerate().for_each(|(i, output)| alone.output(&format!("output{i}"), *output));
            }
        }
        let plan = layout(&[(Role::Predict, alone)], rows, self.device).ok()?;
        (plan.resident <= self.most && plan.arena <= self.most).then_some(plan)
    }

    fn run(&self, plan: &Plan, rows: usize) -> Option<f64> {
        let program = &plan.programs[0];
        let memory = StepMemory { resident: &*self.resident, arena: &*self.arena, backing: None };
        let mut loaded = self.device.load(plan, program, rows, &memory).ok()?;
        // Whole numbers are places in tables and windows, which are valid where they are zero.
        let whole = program.graph.inputs().iter().filter(|input| !real(input.ty.dtype)).map(|input| input.ty.bytes(rows).get());
        let zeros = vec![0; whole.max().unwrap_or(0) + ALIGNED];
        let (zeros, numbers) = (aligned(&zeros), aligned(&self.batch));
        let mut at = 0;
        let columns: Vec<&[u8]> = program
            .graph
            .inputs()
            .iter()
            .map(|input| {
                let size = input.ty.bytes(rows).get();
                if !real(input.ty.dtype) {
                    return &zeros[..size];
                }
                let from = at;
                at += size.next_multiple_of(ALIGNED);
                if from + size <= numbers.len() { &numbers[from..from + size] } else { &numbers[..size] }
            })
            .collect();
        let scalars = vec![0.5; program.graph.scalars().len()];
        let inputs = StepInputs { columns: &columns, scalars: &scalars, random: StepRandom { seed: 0, step: 0, first_row: 0 } };
        let touched: u64 =
            program.graph.nodes().flat_map(|(_, node)| &node.outputs).map(|value| program.graph.ty(*value).bytes(rows).0).sum();
        let mut once = || {
            if touched > COLD {
                self.flush.borrow_mut().iter_mut().for_each(|word| *word = word.wrapping_add(1));
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

fn real(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Numbers that are neither large nor zero, whether they are read in 16 bits or in 32.
fn numbers(bytes: usize) -> Vec<u8> {
    let half = |i: usize| ((i % 17) as f32 / 17.0 - 0.4).to_bits() >> 16;
    (0..bytes / 2).flat_map(|i| (half(i / 2) as u16).to_ne_bytes()).collect()
}

fn aligned(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.as_ptr().align_offset(ALIGNED)..]
}
