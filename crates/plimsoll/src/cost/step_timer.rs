//! Times all nodes of a step with the device's own timers, for asynchronous devices.

use super::features::{Features, features};
use super::numbers::{Columns, fill, parameters, pattern};
use crate::error::Result;
use plimsoll_core::budget::SlotMemory;
use plimsoll_core::device::{Device, DeviceError, Loaded, StepInputs, StepMemory};
use plimsoll_core::graph::{Graph, Node, StateKind, ValueId};
use plimsoll_core::plan::{CheckedPlan, sketch};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType, NodeId};
use std::time::Instant;

/// Seconds per node of a training step; none if the step takes more device memory than `most`.
pub(super) fn time_step(device: &dyn Device, graph: &Graph, rows: usize, most: Bytes) -> Result<Option<Vec<(Features, f64)>>> {
    let plan = CheckedPlan::new(sketch(&[(Role::Step, graph.clone())], rows, device)?)?;
    if plan.total() > most {
        return Ok(None);
    }
    let graph = &plan.programs[0].graph;
    let times = node_seconds(device, &plan, rows)?;
    Ok(Some(times.into_iter().map(|(node, seconds)| (features(graph, graph.node(node), rows), seconds)).collect()))
}

/// Seconds per step of many consecutive ones, each with a batch copied to the device, and of the sum of its nodes; none
/// if the loss of arbitrary numbers is not finite.
pub(super) fn time_whole_step(
    device: &dyn Device,
    graph: &Graph,
    rows: usize,
    seconds: &dyn Fn(&Graph, &Node) -> f64,
) -> Result<Option<(f64, f64)>> {
    let plan = CheckedPlan::new(sketch(&[(Role::Step, graph.clone())], rows, device)?)?;
    let program = &plan.programs[0];
    let nodes = program.order.iter().map(|id| seconds(&program.graph, program.graph.node(*id))).sum();
    let step = with_loaded(device, &plan, rows, |loaded, inputs| from_slots(device, &plan, loaded, inputs, SMALL_STEPS_SECONDS))?;
    Ok(step.map(|step| (step, nodes)))
}

/// The time of a node of a training step, with its work.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeTime {
    /// The op.
    pub op: &'static str,
    /// The layer it belongs to.
    pub scope: String,
    /// Shapes and types of its inputs and outputs.
    pub types: String,
    /// Its attributes.
    pub attributes: String,
    /// Measured seconds.
    pub seconds: f64,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// The times of a training step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepProfile {
    /// Seconds per step of many consecutive steps, each with a batch copied to the device; none if the loss of
    /// arbitrary numbers is not finite, because such steps update nothing.
    pub step_seconds: Option<f64>,
    /// Every node in its execution order; empty for a device without a clock for single nodes, such as the CPU.
    pub nodes: Vec<NodeTime>,
}

/// Times a training step of `rows` rows and every node of it.
pub(crate) fn profile(device: &dyn Device, graph: &Graph, rows: usize) -> Result<StepProfile> {
    let plan = CheckedPlan::new(sketch(&[(Role::Step, graph.clone())], rows, device)?)?;
    let graph = &plan.programs[0].graph;
    let types = |values: &[ValueId]| values.iter().map(|value| graph.ty(*value).to_string()).collect::<Vec<_>>().join(" ");
    let timed = |(id, seconds): (NodeId, f64)| {
        let node = graph.node(id);
        NodeTime {
            op: node.op.rules().name(),
            scope: node.scope.to_string(),
            types: format!("{} → {}", types(&node.inputs), types(&node.outputs)),
            attributes: node.op.rules().attributes(),
            seconds,
            flops: graph.node_flops(node, rows),
            bytes: graph.moved(node, rows),
        }
    };
    let (step_seconds, nodes) = with_loaded(device, &plan, rows, |loaded, inputs| {
        Ok((from_slots(device, &plan, loaded, inputs, STEPS_SECONDS)?, loaded.node_seconds(inputs)?))
    })?;
    Ok(StepProfile { step_seconds, nodes: nodes.into_iter().map(timed).collect() })
}

/// Seconds per step, with inputs as pipelines assemble them: in memory that the device copies from by itself.
fn from_slots(device: &dyn Device, plan: &CheckedPlan, loaded: &mut dyn Loaded, inputs: &StepInputs<'_>, span: f64) -> Result<Option<f64>> {
    let slots = inputs.columns.iter().map(|column| slot(device, column)).collect::<Result<Vec<_>>>()?;
    let columns: Vec<&[u8]> = inputs.columns.iter().zip(&slots).map(|(column, slot)| slot_or(column, slot)).collect();
    step_seconds(loaded, &StepInputs { columns: &columns, ..*inputs }, plan.programs[0].numbers().count(), span)
}

/// A copy of a column in the device's own kind of slot, if it has one.
fn slot(device: &dyn Device, column: &[u8]) -> Result<Option<Box<dyn SlotMemory>>> {
    let mut slot = device.slot_memory(Bytes(column.len() as u64))?;
    if let Some(slot) = &mut slot {
        slot.bytes_mut()[..column.len()].copy_from_slice(column);
    }
    Ok(slot)
}

fn slot_or<'a>(column: &'a [u8], slot: &'a Option<Box<dyn SlotMemory>>) -> &'a [u8] {
    slot.as_ref().map_or(column, |slot| &slot.bytes()[..column.len()])
}

/// Seconds per step.
fn step_seconds(loaded: &mut dyn Loaded, inputs: &StepInputs<'_>, numbers: usize, span: f64) -> Result<Option<f64>> {
    let mut numbers = vec![0.0; numbers];
    let mut steps = |count: u32| -> Result<Option<f64>> {
        let start = Instant::now();
        (0..count).try_for_each(|_| loaded.run(inputs))?;
        match loaded.outcome(0, &mut numbers) {
            Err(DeviceError::NonFinite) => Ok(None),
            outcome => outcome.map(|()| Some(start.elapsed().as_secs_f64() / f64::from(count))).map_err(Into::into),
        }
    };
    // The first steps load kernels.
    let Some(first) = steps(WARM_STEPS)? else { return Ok(None) };
    steps(((span / first) as u32).clamp(MIN_STEPS, MAX_STEPS))
}

/// Steps before the clock starts.
const WARM_STEPS: u32 = 3;
/// About how long steps are timed, and how many.
const STEPS_SECONDS: f64 = 2.0;
const SMALL_STEPS_SECONDS: f64 = 0.02;
const MIN_STEPS: u32 = 5;
const MAX_STEPS: u32 = 400;

/// The sources of the kernels of a training step of `rows` rows; empty for a device that generates none.
pub(crate) fn kernel_sources(device: &dyn Device, graph: &Graph, rows: usize) -> Result<Vec<String>> {
    let plan = CheckedPlan::new(sketch(&[(Role::Step, graph.clone())], rows, device)?)?;
    Ok(device.diagnostics().map(|device| device.kernel_sources(&plan, Role::Step, rows)).transpose()?.unwrap_or_default())
}

/// Seconds per node of the plan's first program.
fn node_seconds(device: &dyn Device, plan: &CheckedPlan, rows: usize) -> Result<Vec<(NodeId, f64)>> {
    with_loaded(device, plan, rows, |loaded, inputs| Ok(loaded.node_seconds(inputs)?))
}

/// Loads the plan's first program, with arbitrary numbers in memory.
fn with_loaded<T>(
    device: &dyn Device,
    plan: &CheckedPlan,
    rows: usize,
    look: impl FnOnce(&mut dyn Loaded, &StepInputs<'_>) -> Result<T>,
) -> Result<T> {
    let program = &plan.programs[0];
    let graph = &program.graph;
    let columns: u64 = graph.inputs().iter().map(|input| input.ty.bytes(rows).0).sum();
    let numbers = pattern(Bytes(columns).get().max(PATTERN));
    let (mut resident, arena) = (device.allocate(plan.resident)?, device.allocate(plan.arena)?);
    fill(&mut *resident, &numbers)?;
    // No earlier run has had a loss that is not finite.
    if let Some(staging) = &plan.staging {
        resident.write(staging.alarm(), &[0; 4])?;
    }
    let small = parameters(PATTERN);
    for (place, _) in plan.states.iter().zip(graph.states()).filter(|(_, state)| state.kind == StateKind::Parameter) {
        for at in (0..place.size.get()).step_by(PATTERN) {
            resident.write(place.offset + Bytes(at as u64), &small[..PATTERN.min(place.size.get() - at)])?;
        }
    }
    // Integer states are counters or indices, and those of optimizers may be squares: both start from zero.
    let is_zero = |kind: StateKind, dtype: DType| kind == StateKind::Optimizer || matches!(dtype, DType::I32 | DType::I64 | DType::U8);
    for state in plan.states.iter().zip(graph.states()).filter(|(_, state)| is_zero(state.kind, state.ty.dtype)) {
        resident.write(state.0.offset, &vec![0; state.0.size.get()])?;
    }
    let memory = StepMemory { resident: &*resident, arena: &*arena, backing: None };
    let mut loaded = device.load(plan, program.role, rows, &memory)?;
    let columns = Columns::of(&program.graph, rows, &numbers, INDEX_BOUND);
    let scalars = vec![SMALL_SCALAR; program.graph.scalars().len()];
    let random = StepRandom { seed: 0, step: 0, first_row: 0 };
    look(&mut *loaded, &StepInputs { columns: &columns.slices(&program.graph, rows), scalars: &scalars, random })
}

/// Bytes of the pattern that memory is filled with.
const PATTERN: usize = 4 << 20;

/// Scalars such as learning rates, small so that parameters stay finite.
const SMALL_SCALAR: f32 = 1e-6;

/// Indices are below the size of the smallest vocabulary.
const INDEX_BOUND: u32 = 61;
