//! Times single nodes with the host's clock.

use super::Bandwidths;
use super::numbers::{ALIGNMENT, Columns, fill, index_bound, integers, is_float, pattern};
use crate::error::Result;
use crate::system::{Waiting, process_cpu_time};
use plimsoll_core::device::{Device, Memory, StepInputs, StepMemory};
use plimsoll_core::graph::{Graph, Init, Node, StateKind};
use plimsoll_core::plan::{CheckedPlan, layout};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Op, TensorType};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// A node is run back to back for about this many seconds, so that the threads stay awake as in a step. That is a
/// series.
const SERIES_SECONDS: f64 = 2.5e-4;

/// The maximum number of runs in a series.
const MAX_RUNS: usize = 50;

/// The minimum and the maximum number of series per visit; more than the minimum only if other load disturbed each one.
const SERIES: std::ops::RangeInclusive<usize> = 2..=4;

/// Nodes that take longer, in seconds, have the minimum of series only.
const LONG_SECONDS: f64 = 2e-3;

/// The minimum time of a node: the resolution of the clock.
const MIN_SECONDS: f64 = 5e-8;

/// Nodes that touch more than this are timed with cold caches, as in a step.
const COLD_CACHE_BYTES: u64 = 12 << 20;

/// Bytes read to flush the CPU caches.
pub(crate) const FLUSH_BYTES: Bytes = Bytes::mib(40);

/// Device memory in which nodes are timed one by one, on devices that run synchronously.
pub(crate) struct NodeTimer<'a> {
    device: &'a dyn Device,
    resident: Box<dyn Memory>,
    arena: Box<dyn Memory>,
    /// The contents of input columns.
    batch: Vec<u8>,
    most: Bytes,
    own: Waiting,
    others: Waiting,
    /// Read before [large](COLD_CACHE_BYTES) nodes to flush the CPU caches, as in a step. Not written: dirty lines
    /// would be written back while the node runs.
    flush: Vec<u64>,
}

/// The time of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timing {
    /// The minimum in seconds. If every series was disturbed, CPU time by number of threads, if that is less.
    pub seconds: f64,
    /// Whether some series was not disturbed: none of the threads waited for a processor.
    pub undisturbed: bool,
}

impl Timing {
    /// Both visits of a node together: a disturbed one counts only if both were.
    pub fn and(self, other: Timing) -> Timing {
        match (self.undisturbed, other.undisturbed) {
            (true, false) => self,
            (false, true) => other,
            (undisturbed, _) => Timing { seconds: self.seconds.min(other.seconds), undisturbed },
        }
    }
}

impl<'a> NodeTimer<'a> {
    /// For nodes that take at most `most` bytes of inputs, outputs and workspace.
    pub fn new(device: &'a dyn Device, most: Bytes) -> Result<NodeTimer<'a>> {
        let (mut resident, arena) = (device.allocate(most)?, device.allocate(most)?);
        let batch = pattern(most.get() + ALIGNMENT);
        fill(&mut *resident, &batch)?;
        // Not zeros, which would map to one page.
        let flush = vec![1; FLUSH_BYTES.get() / size_of::<u64>()];
        let (own, others) = (Waiting::of_this_thread(), Waiting::of_other_threads());
        Ok(NodeTimer { device, resident, arena, batch, most, own, others, flush })
    }

    /// Bandwidths to and from its memory, and to and from a file in the folder.
    pub fn bandwidths(&mut self, folder: Option<&Path>) -> Bandwidths {
        Bandwidths::measure(&mut *self.resident, &self.batch, folder)
    }

    /// The time of a node; none if it exceeds the memory, or the device cannot run it by itself.
    pub fn time(&mut self, graph: &Graph, node: &Node, rows: usize) -> Option<Timing> {
        let plan = self.program(graph, node, rows)?;
        let graph = &plan.programs[0].graph;
        let bound = index_bound(graph);
        let whole: Vec<_> = plan.states.iter().zip(graph.states()).filter(|(_, state)| !is_float(state.ty.dtype)).collect();
        for (place, state) in &whole {
            self.resident.write(place.offset, &integers(state.ty.dtype, place.size.get(), bound)).ok()?;
        }
        let timing = self.run(&plan, rows, bound);
        if !whole.is_empty() {
            fill(&mut *self.resident, &self.batch).ok()?;
        }
        timing
    }

    /// A program of a single node; a fused slice write runs as its op by itself.
    fn program(&self, graph: &Graph, node: &Node, rows: usize) -> Option<CheckedPlan> {
        if graph.moved(node, rows) > self.most.0 {
            return None;
        }
        let mut alone = Graph::new().with_tf32(graph.tf32());
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

    fn run(&self, plan: &CheckedPlan, rows: usize, bound: u32) -> Option<Timing> {
        let program = &plan.programs[0];
        let memory = StepMemory { resident: &*self.resident, arena: &*self.arena, backing: None };
        let mut loaded = self.device.load(plan, program.role, rows, &memory).ok()?;
        let columns = Columns::of(&program.graph, rows, &self.batch, bound);
        let columns = columns.slices(&program.graph, rows);
        let scalars = vec![0.5; program.graph.scalars().len()];
        let inputs = StepInputs { columns: &columns, scalars: &scalars, random: StepRandom { seed: 0, step: 0, first_row: 0 } };
        let touched: u64 =
            program.graph.nodes().flat_map(|(_, node)| &node.outputs).map(|value| program.graph.ty(*value).bytes(rows).0).sum();
        let mut once = || {
            if touched > COLD_CACHE_BYTES {
                black_box(self.flush.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
            }
            let start = Instant::now();
            loaded.run(&inputs).ok()?;
            loaded.outcome(0, &mut []).ok()?;
            Some(start.elapsed().as_secs_f64())
        };
        let slices = self.others.timeslices();
        let mut least = once()?.min(once()?);
        let runs = ((SERIES_SECONDS / least) as usize).clamp(1, MAX_RUNS);
        let (mut undisturbed, mut calm_before, mut cpu) = (false, false, f64::INFINITY);
        for series in 1..=*SERIES.end() {
            let before = (self.own.so_far() + self.others.so_far(), process_cpu_time());
            for _ in 0..runs {
                least = least.min(once()?);
            }
            cpu = cpu.min((process_cpu_time() - before.1).as_secs_f64() / runs as f64);
            let calm = self.own.so_far() + self.others.so_far() == before.0;
            // A thread that comes late to one series is counted in the next.
            undisturbed |= calm && calm_before;
            calm_before = calm;
            if series >= *SERIES.start() && (undisturbed || least > LONG_SECONDS) {
                break;
            }
        }
        // On a machine with other load, threads rarely run at the same time. Which of them took part, they were woken
        // for.
        let woken = self.others.timeslices().iter().zip(&slices).filter(|(after, before)| after > before).count();
        let shared = if touched > COLD_CACHE_BYTES { f64::INFINITY } else { cpu / (1 + woken) as f64 };
        let seconds = if undisturbed { least } else { least.min(shared) };
        Some(Timing { seconds: seconds.max(MIN_SECONDS), undisturbed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::{DType, Shape};
    use plimsoll_cpu::CpuDevice;

    /// Whether the memory that nodes read has ordinary floats only: subnormal ones take much longer.
    fn all_normal(timer: &NodeTimer<'_>) -> bool {
        let mut bytes = vec![0; timer.resident.size().get()];
        timer.resident.read(Bytes::ZERO, &mut bytes).unwrap();
        let mut floats = bytes.chunks_exact(4).map(|word| f32::from_ne_bytes(word.try_into().unwrap()));
        floats.all(|x| x.is_normal() && (0.5..2.0).contains(&x.abs()))
    }

    #[test]
    fn an_undisturbed_visit_counts_more_than_a_disturbed_one() {
        let timing = |seconds: f64, undisturbed: bool| Timing { seconds, undisturbed };
        for (a, b, both) in [
            (timing(2.0, true), timing(1.0, false), timing(2.0, true)),
            (timing(2.0, true), timing(3.0, true), timing(2.0, true)),
            (timing(2.0, false), timing(1.0, false), timing(1.0, false)),
        ] {
            assert_eq!((a.and(b), b.and(a)), (both, both));
        }
    }

    #[test]
    fn nodes_are_timed_on_normal_numbers_whatever_was_measured_before() {
        let device = CpuDevice::new(1).unwrap();
        let mut timer = NodeTimer::new(&device, Bytes::mib(2)).unwrap();
        assert!(all_normal(&timer));
        let folder = tempfile::tempdir().unwrap();
        let measured = timer.bandwidths(Some(folder.path()));
        assert!(measured.to_device.is_some() && measured.to_file.is_some());
        assert!(all_normal(&timer), "after the bandwidth to the device");
        // A table, and fixed indices into it: those have to be in range while the node runs.
        let mut graph = Graph::new();
        let state = |graph: &mut Graph, name: &str, ty| graph.state(name, StateKind::Statistic, ty, Init::Constant(0.0)).unwrap();
        let table = state(&mut graph, "table", TensorType::f32(Shape::fixed([50, 8])));
        let indices = state(&mut graph, "indices", TensorType::new(DType::I32, Shape::fixed([100])));
        let gather = Op::Gather(plimsoll_core::ops::Gather { dtype: DType::F32 });
        let rows = graph.add(gather, &[table, indices]).unwrap()[0];
        let timing = timer.time(&graph, graph.producer(rows), 4).expect("a gather runs by itself");
        assert!(timing.seconds > 0.0);
        assert!(all_normal(&timer), "after integers were written");
    }
}
