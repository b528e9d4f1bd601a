//! How long each node of a program takes on the GPU's own clock.

use super::{CudaProgram, Instruction, resolve};
use crate::libraries::driver::{Event, Graph, Stream};
use crate::runtime::staging::Stage;
use crate::runtime::state::lock;
use cudarc::driver::{DriverError, result};
use plimsoll_core::NodeId;
use plimsoll_core::device::{DeviceError, StepInputs};
use std::sync::Arc;

/// A node is repeated in one recording until it takes about this many seconds, so that starting the recording does not count.
const SPAN: f64 = 150e-6;

/// So often at most.
const MOST: usize = 32;

/// How often a recording is run; the fastest counts.
const ROUNDS: usize = 2;

/// A step is not slower than its nodes by more than this; if it seems to be, something came in between.
const MOST_SLOWED: f64 = 2.0;

impl CudaProgram {
    /// Runs the nodes one after another, each several times in a row as recorded steps run them, and says how long each took.
    pub(super) fn time_nodes(&mut self, inputs: &StepInputs<'_>) -> Result<Vec<(NodeId, f64)>, DeviceError> {
        self.check(inputs)?;
        self.shared.bind()?;
        let stage = Arc::clone(&self.stage);
        let mut stage = lock(&stage);
        let slot = stage.begin(inputs, &self.offsets, self.header)?;
        stage.end(slot)?;
        self.shared.settle()?;
        let failed = |error| self.shared.context.failed("timing a node", error);
        let clock =
            Clock { begin: Event::timed(&self.shared.context).map_err(failed)?, end: Event::timed(&self.shared.context).map_err(failed)? };
        let whole = self.time_whole(&stage, slot, &clock)?;
        let mut times: Vec<(NodeId, f64)> = Vec::with_capacity(self.instructions.len());
        for (i, instruction) in self.instructions.iter().enumerate() {
            let Some(node) = instruction.node else { continue };
            self.lanes.as_ref().map_or(Ok(()), |lanes| lanes.make(i))?;
            if instruction.steps.is_empty() {
                continue;
            }
            self.allow_changes(&stage, slot).map_err(failed)?;
            times.push((node, self.time_one(instruction, &stage, slot, &clock)?));
        }
        // By itself a node finds its code and its operands near; in a step it takes its share of the whole.
        let sum: f64 = times.iter().map(|(_, seconds)| seconds).sum();
        let share = (whole / sum).clamp(1.0, MOST_SLOWED);
        times.iter_mut().for_each(|(_, seconds)| *seconds *= share);
        Ok(times)
    }

    /// Seconds of a recorded step.
    fn time_whole(&self, stage: &Stage, slot: usize, clock: &Clock) -> Result<f64, DeviceError> {
        let failed = |error| self.shared.context.failed("timing a step", error);
        let stream = &self.shared.compute;
        // The first run of a kernel loads it.
        self.issue(stage, slot)?;
        let graph = Graph::record(&self.shared.context, stream, failed, || self.issue(stage, slot))?;
        let mut least = f64::INFINITY;
        for _ in 0..=ROUNDS {
            self.shared.settle()?;
            self.allow_changes(stage, slot).map_err(failed)?;
            least = least.min(clock.time(stream, failed, || graph.launch(stream).map_err(failed))?);
        }
        Ok(least)
    }

    /// What was computed several times over need not be finite; states are changed all the same.
    fn allow_changes(&self, stage: &Stage, slot: usize) -> Result<(), DriverError> {
        let Some(loss) = self.loss else { return Ok(()) };
        // SAFETY: alarm and loss are four bytes each in memories that the program keeps, and nothing is under way.
        unsafe {
            result::memset_d8_sync(stage.alarm, 0, 4)?;
            result::memcpy_htod_sync(resolve(loss, stage, slot), &[1.0f32])
        }
    }

    fn time_one(&self, instruction: &Instruction, stage: &Stage, slot: usize, clock: &Clock) -> Result<f64, DeviceError> {
        let failed = |error| self.shared.context.failed("timing a node", error);
        let stream = &self.shared.compute;
        let timed = |work: &dyn Fn() -> Result<(), DeviceError>| clock.time(stream, failed, work);
        let once = || self.issue_one(instruction, stage, slot);
        // The first run of a kernel loads it.
        timed(&once)?;
        let plain = timed(&once)?;
        let copies = ((SPAN / plain).ceil() as usize).clamp(1, MOST);
        if copies == 1 {
            return Ok(timed(&once)?.min(plain));
        }
        let repeated = || (0..copies).try_for_each(|_| once());
        let graph = Graph::record(&self.shared.context, stream, failed, repeated)?;
        let launch = || graph.launch(stream).map_err(failed);
        timed(&launch)?;
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            least = least.min(timed(&launch)? / copies as f64);
        }
        Ok(least)
    }
}

/// Two points in the computing stream.
struct Clock {
    begin: Event,
    end: Event,
}

impl Clock {
    /// Seconds that what is put into the stream takes there.
    fn time(
        &self,
        stream: &Stream,
        failed: impl Fn(DriverError) -> DeviceError,
        work: impl Fn() -> Result<(), DeviceError>,
    ) -> Result<f64, DeviceError> {
        self.begin.record(stream).map_err(&failed)?;
        work()?;
        self.end.record(stream).map_err(&failed)?;
        self.end.wait().and_then(|()| self.end.seconds_since(&self.begin)).map_err(&failed)
    }
}
