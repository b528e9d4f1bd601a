//! Times all nodes of a step with the device's own timers, for asynchronous devices.

use super::features::{Features, features};
use super::numbers::{Columns, fill, pattern};
use crate::error::Result;
use plimsoll_core::device::{Device, StepInputs, StepMemory};
use plimsoll_core::graph::Graph;
use plimsoll_core::plan::{CheckedPlan, sketch};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType};

/// Seconds per node of a training step; none if the step takes more device memory than `most`.
pub(super) fn time_step(device: &dyn Device, graph: &Graph, rows: usize, most: Bytes) -> Result<Option<Vec<(Features, f64)>>> {
    let plan = CheckedPlan::new(sketch(&[(Role::Step, graph.clone())], rows, device)?)?;
    if plan.total() > most {
        return Ok(None);
    }
    let program = &plan.programs[0];
    let columns: u64 = graph.inputs().iter().map(|input| input.ty.bytes(rows).0).sum();
    let numbers = pattern(Bytes(columns).get().max(PATTERN));
    let (mut resident, arena) = (device.allocate(plan.resident)?, device.allocate(plan.arena)?);
    fill(&mut *resident, &numbers)?;
    // Integer states are counters or indices: start from zero.
    for state in plan.states.iter().zip(graph.states()).filter(|(_, state)| matches!(state.ty.dtype, DType::I32 | DType::I64 | DType::U8)) {
        resident.write(state.0.offset, &vec![0; state.0.size.get()])?;
    }
    let memory = StepMemory { resident: &*resident, arena: &*arena, backing: None };
    let mut loaded = device.load(&plan, program.role, rows, &memory)?;
    let columns = Columns::of(&program.graph, rows, &numbers, INDEX_BOUND);
    let scalars = vec![SMALL_SCALAR; program.graph.scalars().len()];
    let random = StepRandom { seed: 0, step: 0, first_row: 0 };
    let times = loaded.node_seconds(&StepInputs { columns: &columns.slices(&program.graph, rows), scalars: &scalars, random })?;
    Ok(Some(times.into_iter().map(|(node, seconds)| (features(&program.graph, program.graph.node(node), rows), seconds)).collect()))
}

/// Bytes of the pattern that memory is filled with.
const PATTERN: usize = 4 << 20;

/// Scalars such as learning rates, small so that parameters stay finite.
const SMALL_SCALAR: f32 = 1e-6;

/// Indices are below the size of the smallest vocabulary.
const INDEX_BOUND: u32 = 61;
