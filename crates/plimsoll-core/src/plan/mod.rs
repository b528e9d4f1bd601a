//! From graphs to a plan: execution order, lifetimes and offsets.

mod arena;
mod certificate;
mod check;
mod concat;
mod cost_model;
mod equivalence;
mod liveness;
pub mod offload;
mod order;
mod prove;
pub mod recompute;
mod reorder;
pub mod split;
mod staging;
mod target;
mod updates;

use crate::base::budget::Owner;
use crate::base::shape::{Dim, TensorType};
use crate::ir::graph::{Graph, GraphError, InputId, NodeId, ScalarId, Scope, StateKind, ValueId};
use crate::transform::passes::optimize;
use crate::transform::step::Role;
use crate::{Bytes, verify};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use arena::{BufferInterval, Goal, Layout, PackingEffort, Solution, assign, solve};
pub use certificate::{Certificate, Claim, Range, Space, Step};
pub use check::{CheckError, CheckedPlan, check};
pub use concat::{fuse_slice_writes, rewrite_concats, schedule};
pub use cost_model::{CopyRate, CostModel, Rates};
pub use equivalence::check_equivalence;
pub use prove::prove;
pub use recompute::{Recomputation, ScheduledGraph};
pub use staging::{SLOT_HEADER, Staging};
pub use target::{Capabilities, Footprint, Overhead, RowSplit, Target};

/// Maximum number of scalar outputs that a run returns to the host.
pub const NUMBERS: usize = 31;

/// Location of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A column in the batch's slot.
    Input(InputId),
    /// A scalar from the host.
    Scalar(ScalarId),
    /// Offset in the memory that persists across steps.
    Resident(Bytes),
    /// Offset in the arena.
    Arena(Bytes),
    /// Offset in the backing store, which only stores and loads access.
    Backing(Bytes),
}

impl Place {
    /// The location this many bytes further on.
    pub fn offset_by(self, bytes: u64) -> Place {
        match self {
            Place::Resident(offset) => Place::Resident(offset + Bytes(bytes)),
            Place::Arena(offset) => Place::Arena(offset + Bytes(bytes)),
            Place::Backing(offset) => Place::Backing(offset + Bytes(bytes)),
            given => given,
        }
    }
}

/// Kind of a buffer in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferKind {
    /// A value of the forward pass.
    Activation,
    /// A value of the backward pass or the update.
    Gradient,
    /// A value loaded from the backing store.
    Loaded,
    /// Workspace of a kernel.
    Workspace,
}

/// A buffer in the arena and its lifetime.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Kind of its contents.
    pub kind: BufferKind,
    /// The layer it belongs to.
    pub owner: Scope,
    /// Its values: reused in sequence, or views of each other.
    pub values: Vec<ValueId>,
    /// Size for the planned rows.
    pub size: Bytes,
    /// The first step at which it is live.
    pub first: u32,
    /// The last step at which it is live.
    pub last: u32,
    /// Offset in the arena.
    pub offset: Bytes,
}

/// One program of the plan: the graph, its execution order, and the location of every value.
#[derive(Clone, Debug)]
pub struct Program {
    /// Role of the program.
    pub role: Role,
    /// The graph it runs.
    pub graph: Graph,
    /// Nodes in execution order; leaves and views do not execute.
    pub order: Vec<NodeId>,
    /// Location of each value.
    pub places: Vec<Option<Place>>,
    /// Offset and size of each step's workspace.
    pub workspaces: Vec<(Bytes, Bytes)>,
    /// Buffers in the arena.
    pub buffers: Vec<Buffer>,
    /// Lower bound on the arena for this order.
    pub lower_bound: Bytes,
    /// Arena size of this program.
    pub arena: Bytes,
    /// Its recomputation.
    pub recomputation: Recomputation,
    /// Its temporary buffers in the backing store.
    pub stored: Vec<Buffer>,
    /// The values of the model's graph that are offloaded until a later phase reads them.
    pub offloaded: Vec<ValueId>,
}

/// Location of a state.
#[derive(Clone, Debug)]
pub struct Resident {
    /// Its name.
    pub name: String,
    /// Kind of the state.
    pub kind: StateKind,
    /// Its size.
    pub size: Bytes,
    /// Offset in the resident memory, or in the backing store.
    pub offset: Bytes,
    /// Whether it is offloaded to the backing store.
    pub stored: bool,
}

/// The memory layout of a run on a device: all programs share one arena; states are resident.
///
/// It is planned for `rows` rows and valid for any smaller number, because no buffer grows when the batch shrinks.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Maximum rows of a program (the micro-batch).
    pub rows: usize,
    /// The programs.
    pub programs: Vec<Program>,
    /// The states, in their order.
    pub states: Vec<Resident>,
    /// Staging slots for batches on a device with its own memory; part of `resident`.
    pub staging: Option<Staging>,
    /// Bytes that persist across steps.
    pub resident: Bytes,
    /// Bytes of the arena, shared by all programs.
    pub arena: Bytes,
    /// Largest lower bound of a program: no layout of these orders is smaller.
    pub lower_bound: Bytes,
    /// Alignment of all offsets.
    pub alignment: Bytes,
    /// Size of the backing store: offloaded states, then temporary buffers of the programs.
    pub backing: Bytes,
}

/// Optimizes the graphs and lays them out for at most `rows` rows on the device.
pub fn plan(graphs: Vec<(Role, Graph)>, rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
    let graphs = graphs.into_iter().map(|(role, graph)| Ok((role, optimize(&graph)?))).collect::<Result<Vec<_>, GraphError>>()?;
    layout(&graphs, rows, device)
}

/// Lays out optimized graphs. The same graphs can be laid out for different numbers of rows.
pub fn layout(graphs: &[(Role, Graph)], rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
    tighten(sketch(graphs, rows, device)?, device)
}

/// Like [`layout`], with greedy packing only: the lower bound is the same, the arena may be slightly larger.
pub fn sketch(graphs: &[(Role, Graph)], rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
    let programs =
        graphs.iter().map(|(role, graph)| Ok((*role, schedule(graph, rows, device)?))).collect::<Result<Vec<_>, GraphError>>()?;
    let greedy = |blocks: &[BufferInterval]| solve(blocks, Goal::Smallest, PackingEffort { work: 0, ..PackingEffort::default() }).layout;
    laid_out(programs, rows, device, &greedy)
}

/// The same plan with its arena packed closer to the lower bound by search. Programs that are not larger than the
/// target or than another program are not repacked.
pub fn tighten(mut plan: Plan, device: &dyn Target) -> Result<Plan, GraphError> {
    let mut enough = nearly(plan.lower_bound);
    for program in &mut plan.programs {
        if program.arena > enough {
            let (graph, order) = (std::mem::take(&mut program.graph), std::mem::take(&mut program.order));
            let (recomputation, offloaded) = (std::mem::take(&mut program.recomputation), std::mem::take(&mut program.offloaded));
            let sequenced = ScheduledGraph { graph, order, recomputation, limit: None };
            let unbound = |blocks: &[BufferInterval]| tight(blocks, enough, LONG_SEARCH);
            *program = Program { offloaded, ..placed(program.role, sequenced, plan.rows, device, &plan.states, &unbound)? };
        }
        // All programs share one arena, so its size is the maximum over them.
        enough = enough.max(program.arena);
    }
    plan.arena = plan.programs.iter().map(|program| program.arena).max().unwrap_or_default();
    Ok(plan)
}

/// Whether [`tighten`] would leave a plan as it is.
pub fn is_tight(plan: &Plan) -> bool {
    plan.arena <= nearly(plan.lower_bound)
}

/// Lays out scheduled graphs, such as those of [`recompute::fit`]. Rows and device are those of the schedules.
pub fn layout_sequenced(programs: Vec<(Role, ScheduledGraph)>, rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
    laid_out(programs, rows, device, &nearly_tight)
}

fn laid_out(
    programs: Vec<(Role, ScheduledGraph)>,
    rows: usize,
    device: &dyn Target,
    unbound: &dyn Fn(&[BufferInterval]) -> Layout,
) -> Result<Plan, GraphError> {
    let alignment = device.capabilities().alignment;
    let (states, kept) = place_states(programs.iter().map(|(role, sequenced)| (*role, &sequenced.graph)), alignment)?;
    let graphs = programs.iter().map(|(_, sequenced)| &sequenced.graph);
    let staging = (!device.capabilities().shares_host_memory).then(|| Staging::new(graphs, rows, alignment, kept));
    let resident = kept + staging.map_or(Bytes::ZERO, |staging| staging.size());
    let programs: Vec<Program> = programs
        .into_iter()
        .map(|(role, program)| placed(role, program, rows, device, &states, unbound))
        .collect::<Result<_, GraphError>>()?;
    let arena = programs.iter().map(|program| program.arena).max().unwrap_or_default();
    let lower_bound = programs.iter().map(|program| program.lower_bound).max().unwrap_or_default();
    let backing = backing(&states, &programs, alignment);
    Ok(Plan { rows, programs, states, staging, resident, arena, lower_bound, alignment, backing })
}

/// Schedules an optimized graph as it is: concats are copied unless they were [rewritten](rewrite_concats).
pub fn as_written(graph: &Graph, rows: usize, device: &dyn Target) -> Result<ScheduledGraph, GraphError> {
    in_order(graph, rows, device).map(|found| found.sequenced)
}

/// A graph with an execution order.
#[derive(Clone)]
struct InOrder {
    sequenced: ScheduledGraph,
    /// The largest sum of live bytes.
    peak: Bytes,
    /// The node that runs at the peak, if any.
    peak_step: Option<NodeId>,
}

/// Schedules the graph as it is.
fn in_order(graph: &Graph, rows: usize, device: &dyn Target) -> Result<InOrder, GraphError> {
    let graph = updates::legalise(graph)?;
    verify(&graph)?;
    let alignment = device.capabilities().alignment;
    let workspace = |node: NodeId| device.workspace(&graph, graph.node(node), rows).align_up(alignment.0);
    let mut order = order::order(&graph, rows, alignment, &workspace);
    if device.capabilities().groups_updates {
        order = order::small_updates_last(&graph, order);
    }
    let live = liveness::buffers(&graph, &order, rows, alignment, &workspace);
    let (step, peak) = liveness::peak(live.buffers.iter().map(|b| (b.first, b.last, b.size)), order.len());
    let recomputation = Recomputation { flops: graph.flops(rows), ..Recomputation::default() };
    let peak_step = order.get(step as usize).copied();
    Ok(InOrder { sequenced: ScheduledGraph { graph, order, recomputation, limit: None }, peak, peak_step })
}

/// Assigns locations in a scheduled graph: within the arena size it was scheduled for, or packed by `unbound`.
fn placed(
    role: Role,
    sequenced: ScheduledGraph,
    rows: usize,
    device: &dyn Target,
    states: &[Resident],
    unbound: &dyn Fn(&[BufferInterval]) -> Layout,
) -> Result<Program, GraphError> {
    let ScheduledGraph { graph, order, recomputation, limit } = sequenced;
    let alignment = device.capabilities().alignment;
    let workspace = |node: NodeId| device.workspace(&graph, graph.node(node), rows).align_up(alignment.0);
    let live = liveness::buffers(&graph, &order, rows, alignment, &workspace);
    let blocks: Vec<BufferInterval> = live.buffers.iter().map(|b| BufferInterval { first: b.first, last: b.last, size: b.size }).collect();
    let Layout { offsets, size: arena, lower_bound } = match limit {
        Some(limit) => solve(&blocks, Goal::Within(limit), PackingEffort::default()).layout,
        None => unbound(&blocks),
    };

    let mut stored = live.stored;
    let kept = kept_in_backing(states, alignment);
    let blocks: Vec<BufferInterval> = stored.iter().map(|b| BufferInterval { first: b.first, last: b.last, size: b.size }).collect();
    let elsewhere = assign(&blocks).offsets;
    stored.iter_mut().zip(&elsewhere).for_each(|(buffer, offset)| buffer.offset = kept + *offset);
    let mut buffers = live.buffers;
    buffers.iter_mut().zip(&offsets).for_each(|(buffer, offset)| buffer.offset = *offset);
    let places = live
        .homes
        .iter()
        .map(|home| {
            home.map(|home| match home {
                liveness::Home::Input(id) => Place::Input(id),
                liveness::Home::Scalar(id) => Place::Scalar(id),
                liveness::Home::State(id) => states[id.0 as usize].place(),
                liveness::Home::Stored(id) => Place::Backing(stored[id].offset),
                liveness::Home::Buffer(id) => Place::Arena(offsets[id]),
            })
        })
        .collect();
    let workspaces = live.workspaces.iter().map(|id| id.map_or((Bytes::ZERO, Bytes::ZERO), |id| (offsets[id], buffers[id].size))).collect();
    Ok(Program { role, graph, order, places, workspaces, buffers, lower_bound, arena, recomputation, stored, offloaded: Vec::new() })
}

/// Packing work of about a second, for plans that are compared.
const SHORT_SEARCH: u64 = 60_000_000;

/// Packing work of some seconds, for a plan that is stated.
const LONG_SEARCH: u64 = 240_000_000;

/// A layout at or close to its lower bound. If a short search leaves a gap above a thousandth, a search of about a
/// second follows.
fn nearly_tight(blocks: &[BufferInterval]) -> Layout {
    tight(blocks, Bytes::ZERO, SHORT_SEARCH)
}

/// Like [`nearly_tight`] with other work, or any layout within `enough`.
fn tight(blocks: &[BufferInterval], enough: Bytes, work: u64) -> Layout {
    let short = assign(blocks);
    let near = nearly(short.lower_bound).max(enough);
    if short.size <= near {
        return short;
    }
    let long = solve(blocks, Goal::Within(near), PackingEffort { work, ..PackingEffort::default() }).layout;
    if long.size < short.size { long } else { short }
}

/// Like [`tight`], in about a tenth of the time.
fn modest(blocks: &[BufferInterval], enough: Bytes) -> Layout {
    let goal = |work: u64, near: Bytes| solve(blocks, Goal::Within(near), PackingEffort { work, ..PackingEffort::default() }).layout;
    let greedy = goal(0, enough);
    let near = nearly(greedy.lower_bound).max(enough);
    if greedy.size <= near { greedy } else { goal(6_000_000, near) }
}

/// The largest arena that counts as tight for this lower bound.
fn nearly(bound: Bytes) -> Bytes {
    Bytes(bound.0 + bound.0 / 1010)
}

/// One layout for the states of all programs; the longest list of states contains them all.
fn place_states<'a>(
    graphs: impl Iterator<Item = (Role, &'a Graph)> + Clone,
    alignment: Bytes,
) -> Result<(Vec<Resident>, Bytes), GraphError> {
    let longest = graphs.clone().map(|(_, graph)| graph.states()).max_by_key(|states| states.len()).unwrap_or_default();
    for (role, graph) in graphs.clone() {
        let differs = graph.states().iter().zip(longest).find(|(a, b)| a.name != b.name || a.ty != b.ty);
        if let Some((a, b)) = differs {
            let what = format!("the program `{}` numbers its states differently: `{}` where others have `{}`", role.name(), a.name, b.name);
            return Err(GraphError { scope: String::new(), what });
        }
    }
    let stored = offload::stored_states(graphs.map(|(_, graph)| graph), longest.len())?;
    let (mut total, mut elsewhere) = (Bytes::ZERO, Bytes::ZERO);
    let states = longest
        .iter()
        .zip(stored)
        .map(|(state, stored)| {
            let total = if stored { &mut elsewhere } else { &mut total };
            let (size, offset) = (state.ty.bytes(1), *total);
            *total += size.align_up(alignment.0);
            Resident { name: state.name.clone(), kind: state.kind, size, offset, stored }
        })
        .collect();
    Ok((states, total))
}

/// Bytes of offloaded states in the backing store.
fn kept_in_backing(states: &[Resident], alignment: Bytes) -> Bytes {
    states.iter().filter(|state| state.stored).map(|state| state.size.align_up(alignment.0)).sum()
}

/// Size of the backing store: states, plus the largest temporary use of a program.
fn backing(states: &[Resident], programs: &[Program], alignment: Bytes) -> Bytes {
    let ends = programs.iter().flat_map(|program| &program.stored).map(|buffer| buffer.offset + buffer.size);
    ends.max().unwrap_or_default().max(kept_in_backing(states, alignment))
}

impl Resident {
    /// Its location.
    pub fn place(&self) -> Place {
        if self.stored { Place::Backing(self.offset) } else { Place::Resident(self.offset) }
    }
}

impl Plan {
    /// The program with a role.
    pub fn program(&self, role: Role) -> Option<&Program> {
        self.programs.iter().find(|program| program.role == role)
    }

    /// The program with a role that the plan contains.
    ///
    /// # Panics
    ///
    /// If there is no such program.
    pub fn expect_program(&self, role: Role) -> &Program {
        self.program(role).expect("programs are asked for by the roles they were planned for")
    }

    /// Device bytes of the run.
    pub fn total(&self) -> Bytes {
        self.resident + self.arena
    }

    /// Bytes by owner: states by kind, and the arena by its contents at the peak. Sums to [`Plan::total`].
    pub fn by_owner(&self) -> Vec<(Owner, Bytes)> {
        let mut owners: BTreeMap<Owner, Bytes> = BTreeMap::new();
        for state in self.states.iter().filter(|state| !state.stored) {
            *owners.entry(state_owner(state.kind)).or_default() += state.size.align_up(self.alignment.0);
        }
        if let Some(staging) = &self.staging {
            owners.insert(Owner::Staging, staging.size());
        }
        let mut in_arena = Bytes::ZERO;
        if let Some(program) = self.programs.iter().max_by_key(|program| program.lower_bound) {
            for buffer in program.at_peak() {
                let owner = match buffer.kind {
                    BufferKind::Activation => Owner::Activations,
                    BufferKind::Gradient => Owner::Gradients,
                    BufferKind::Loaded => Owner::Loaded,
                    BufferKind::Workspace => Owner::Workspace,
                };
                *owners.entry(owner).or_default() += buffer.size;
                in_arena += buffer.size;
            }
        }
        *owners.entry(Owner::Fragmentation).or_default() += self.arena - in_arena;
        let mut owners: Vec<(Owner, Bytes)> = owners.into_iter().filter(|(_, size)| *size > Bytes::ZERO).collect();
        owners.sort_by_cached_key(|(owner, size)| (std::cmp::Reverse(*size), owner.to_string()));
        owners
    }
}

/// The owner of a state's bytes.
pub fn state_owner(kind: StateKind) -> Owner {
    match kind {
        StateKind::Parameter | StateKind::Statistic => Owner::Weights,
        StateKind::Optimizer => Owner::Optimizer,
        StateKind::Accumulator => Owner::GradientSums,
        StateKind::Metric => Owner::Metrics,
        StateKind::Mask => Owner::Masks,
        StateKind::Teacher => Owner::Teacher,
    }
}

impl Program {
    /// The scalar real outputs, such as the loss, which the host reads after every run. At most [`NUMBERS`].
    pub fn numbers(&self) -> impl Iterator<Item = (&str, ValueId)> {
        let single = |value: &ValueId| *self.graph.ty(*value) == TensorType::f32(self.graph.shape(*value).clone());
        let outputs = self.graph.outputs().iter().map(|(name, value)| (name.as_str(), *value));
        outputs.filter(move |(_, value)| single(value) && self.graph.shape(*value).elements() == Dim::fixed(1)).take(NUMBERS)
    }

    /// The buffers that are live at the peak.
    pub fn at_peak(&self) -> impl Iterator<Item = &Buffer> {
        let peak = liveness::peak(self.buffers.iter().map(|b| (b.first, b.last, b.size)), self.order.len()).0;
        self.buffers.iter().filter(move |buffer| buffer.first <= peak && peak <= buffer.last)
    }
}
