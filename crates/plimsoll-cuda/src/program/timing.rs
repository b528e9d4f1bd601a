//! Measures the time of each node with GPU events.

use super::{CudaProgram, Instruction, resolve};
use crate::libraries::driver::{Context, CudaGraph, Event, Stream};
use crate::runtime::staging::StagingRing;
use crate::runtime::state::lock;
use cudarc::driver::{DriverError, result};
use plimsoll_core::NodeId;
use plimsoll_core::device::{DeviceError, StepInputs};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A node is repeated in one CUDA graph for about this many seconds, so that launch overhead does not count.
const SPAN: f64 = 150e-6;

/// Maximum repetitions.
const MOST: usize = 32;

/// Number of launches of a graph; the fastest counts.
const ROUNDS: usize = 2;

/// Steps that take longer are run for this many seconds: the clock of a GPU that computes all the time falls after some
/// tenths of a second.
const LONG_STEP: f64 = 2e-3;
const SUSTAINED: f64 = 0.5;

/// Maximum slowdown of a step relative to the sum of its nodes; a larger one is treated as a disturbance.
const MOST_SLOWED: f64 = 2.0;

impl CudaProgram {
    /// Runs each node several times in a CUDA graph and returns its time.
    pub(super) fn time_nodes(&mut self, inputs: &StepInputs<'_>) -> Result<Vec<(NodeId, f64)>, DeviceError> {
        self.check(inputs)?;
        self.shared.bind()?;
        let staging_ring = Arc::clone(&self.staging_ring);
        let mut staging_ring = lock(&staging_ring);
        let slot = staging_ring.begin(inputs, &self.offsets, self.header)?;
        staging_ring.end(slot)?;
        self.shared.synchronize()?;
        let failed = |error| self.shared.context.failed("timing a node", error);
        let clock = Clock::new(&self.shared.context).map_err(failed)?;
        let (whole, sustained) = self.time_step(&staging_ring, slot, &clock)?;
        let mut times: Vec<(NodeId, f64)> = Vec::with_capacity(self.instructions.len());
        let (mut of_arithmetic, mut arithmetic) = (0.0, HashSet::new());
        for (i, instruction) in self.instructions.iter().enumerate() {
            let Some(node) = instruction.node else { continue };
            self.copies.as_ref().map_or(Ok(()), |copies| copies.copy_now(i))?;
            if instruction.steps.is_empty() {
                continue;
            }
            self.clear_non_finite(&staging_ring, slot).map_err(failed)?;
            let seconds = self.time_instruction(instruction, &staging_ring, slot, &clock)?;
            if instruction.arithmetic {
                of_arithmetic += seconds;
                arithmetic.insert(node);
            }
            // Nodes that run in one launch share its time by the bytes they move.
            let bytes: f64 = instruction.shares.iter().map(|(_, bytes)| bytes).sum();
            match &instruction.shares[..] {
                [] => times.push((node, seconds)),
                shares => times.extend(shares.iter().map(|(node, own)| (*node, seconds * own / bytes))),
            }
        }
        // In the order of the program, also where several nodes run with one of them.
        let places: HashMap<NodeId, usize> = self.instructions.iter().enumerate().filter_map(|(i, own)| Some((own.node?, i))).collect();
        times.sort_by_key(|(node, _)| places.get(node).copied());
        // An isolated node has warm caches; its time is scaled to its share of the whole step.
        let sum: f64 = times.iter().map(|(_, seconds)| seconds).sum();
        let share = (whole / sum).clamp(1.0, MOST_SLOWED);
        // What a long load adds is due to what keeps the arithmetic busy.
        let slowed = if of_arithmetic > 0.0 { 1.0 + (sustained - whole).max(0.0) / (share * of_arithmetic) } else { 1.0 };
        let slowed = slowed.min(MOST_SLOWED);
        times.iter_mut().for_each(|(node, seconds)| *seconds *= if arithmetic.contains(node) { share * slowed } else { share });
        Ok(times)
    }

    /// Seconds of a captured step: at least, and after a long load.
    fn time_step(&self, staging_ring: &StagingRing, slot: usize, clock: &Clock) -> Result<(f64, f64), DeviceError> {
        let failed = |error| self.shared.context.failed("timing a step", error);
        let stream = &self.shared.compute;
        // The first launch of a kernel loads it.
        self.enqueue(staging_ring, slot)?;
        let graph = CudaGraph::record(&self.shared.context, stream, failed, || self.enqueue(staging_ring, slot))?;
        let mut least = f64::INFINITY;
        for _ in 0..=ROUNDS {
            self.shared.synchronize()?;
            self.clear_non_finite(staging_ring, slot).map_err(failed)?;
            least = least.min(clock.time(stream, failed, || graph.launch(stream).map_err(failed))?);
        }
        if least < LONG_STEP {
            return Ok((least, least));
        }
        let steps = |count: usize| -> Result<f64, DeviceError> {
            let seconds = clock.time(stream, failed, || (0..count).try_for_each(|_| graph.launch(stream).map_err(failed)))?;
            Ok(seconds / count as f64)
        };
        let count = (0.5 * SUSTAINED / least).ceil() as usize;
        steps(count)?;
        Ok((least, steps(count)?))
    }

    /// Repeated execution may yield non-finite values; states are changed regardless.
    fn clear_non_finite(&self, staging_ring: &StagingRing, slot: usize) -> Result<(), DriverError> {
        let Some(loss) = self.loss else { return Ok(()) };
        // SAFETY: flag and loss are four bytes each in memory that the program keeps alive, and the GPU is idle.
        unsafe {
            result::memset_d8_sync(staging_ring.non_finite_flag, 0, 4)?;
            result::memcpy_htod_sync(resolve(loss, staging_ring, slot), &[1.0f32])
        }
    }

    fn time_instruction(
        &self,
        instruction: &Instruction,
        staging_ring: &StagingRing,
        slot: usize,
        clock: &Clock,
    ) -> Result<f64, DeviceError> {
        let failed = |error| self.shared.context.failed("timing a node", error);
        let stream = &self.shared.compute;
        let timed = |work: &dyn Fn() -> Result<(), DeviceError>| clock.time(stream, failed, work);
        let once = || self.enqueue_instruction(instruction, staging_ring, slot);
        // The first launch of a kernel loads it.
        timed(&once)?;
        let plain = timed(&once)?;
        let copies = ((SPAN / plain).ceil() as usize).clamp(1, MOST);
        if copies == 1 {
            return Ok(timed(&once)?.min(plain));
        }
        let repeated = || (0..copies).try_for_each(|_| once());
        let graph = CudaGraph::record(&self.shared.context, stream, failed, repeated)?;
        let launch = || graph.launch(stream).map_err(failed);
        timed(&launch)?;
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            least = least.min(timed(&launch)? / copies as f64);
        }
        Ok(least)
    }
}

/// A pair of events in the compute stream.
pub(super) struct Clock {
    begin: Event,
    end: Event,
}

impl Clock {
    pub fn new(context: &Arc<Context>) -> Result<Clock, DriverError> {
        Ok(Clock { begin: Event::timed(context)?, end: Event::timed(context)? })
    }

    /// GPU seconds of the work that is enqueued.
    pub fn time<E>(&self, stream: &Stream, failed: impl Fn(DriverError) -> E, work: impl Fn() -> Result<(), E>) -> Result<f64, E> {
        self.begin.record(stream).map_err(&failed)?;
        work()?;
        self.end.record(stream).map_err(&failed)?;
        self.end.wait().and_then(|()| self.end.seconds_since(&self.begin)).map_err(&failed)
    }
}
