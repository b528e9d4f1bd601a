//! Times all nodes of a step with the device's own timers, for asynchronous devices.

use super::features::{Features, features};
use super::numbers::{Columns, fill, pattern};
use crate::error::Result;
use plimsoll_core::device::{Device, StepInputs, StepMemory};
use plimsoll_core::graph::{Graph, ValueId};
use plimsoll_core::plan::{CheckedPlan, sketch};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType, NodeId};

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

/// Times every node of a training step of `rows` rows in its execution order.
pub(crate) fn time_nodes(device: &dyn Device, graph: &Graph, rows: usize) -> Result<Vec<NodeTime>> {
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
    Ok(node_seconds(device, &plan, rows)?.into_iter().map(timed).collect())
}

/// The sources of the kernels of a training step of `rows` rows; empty for a device that generates none.
pub(crate) fn kernel_sources(device: &dyn Device, graph: &Graph, rows: usize) -> Result<Vec<String>> {
    let plan = CheckedPlan::new(sketch(&[(Role::Step, graph.clone())], rows, device)?)?;
    Ok(device.diagnostics().map(|device| device.kernel_sources(&plan, Role::Step, rows)).transpose()?.unwrap_or_default())
}

/// Seconds per node of the plan's first program, with arbitrary numbers in memory.
fn node_seconds(device: &dyn Device, plan: &CheckedPlan, rows: usize) -> Result<Vec<(NodeId, f64)>> {
    let program = &plan.programs[0];
    let graph = &program.graph;
    let columns: u64 = graph.inputs().iter().map(|input| input.ty.bytes(rows).0).sum();
    let numbers = pattern(Bytes(columns).get().max(PATTERN));
    let (mut resident, arena) = (device.allocate(plan.resident)?, device.allocate(plan.arena)?);
    fill(&mut *resident, &numbers)?;
    // Integer states are counters or indices: start from zero.
    for state in plan.states.iter().zip(graph.states()).filter(|(_, state)| matches!(state.ty.dtype, DType::I32 | DType::I64 | DType::U8)) {
        resident.write(state.0.offset, &vec![0; state.0.size.get()])?;
    }
    let memory = StepMemory { resident: &*resident, arena: &*arena, backing: None };
    let mut loaded = device.load(plan, program.role, rows, &memory)?;
    let columns = Columns::of(&program.graph, rows, &numbers, INDEX_BOUND);
    let scalars = vec![SMALL_SCALAR; program.graph.scalars().len()];
    let random = StepRandom { seed: 0, step: 0, first_row: 0 };
    Ok(loaded.node_seconds(&StepInputs { columns: &columns.slices(&program.graph, rows), scalars: &scalars, random })?)
}

/// Bytes of the pattern that memory is filled with.
const PATTERN: usize = 4 << 20;

/// Scalars such as learning rates, small so that parameters stay finite.
const SMALL_SCALAR: f32 = 1e-6;

/// Indices are below the size of the smallest vocabulary.
const INDEX_BOUND: u32 = 61;
