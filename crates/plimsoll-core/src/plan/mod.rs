//! From graphs to a plan: what runs when, what lives how long, and at which byte.

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
use crate::ir::graph::{Graph, GraphError, InputId, NodeId, ScalarId, StateKind, ValueId};
use crate::transform::passes::optimize;
use crate::transform::step::Role;
use crate::{Bytes, verify};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use arena::{Block, Goal, Layout, PackingEffort, Solution, assign, solve};
pub use certificate::{Certificate, Claim, Range, Space, Step};
pub use check::{CheckError, CheckedPlan, check};
pub use concat::{fuse_slice_writes, rewrite_concats, schedule};
pub use cost_model::{CopyRate, CostModel, Rates};
pub use equivalence::check_equivalence;
pub use prove::prove;
pub use recompute::{Recomputation, ScheduledGraph};
pub use staging::{SLOT_HEADER, Staging};
pub use target::{Capabilities, Footprint, Overhead, RowSplit, Target};

/// How many single numbers of a run are handed to the host by themselves.
pub const NUMBERS: usize = 31;

/// Where a value is while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the batch's slot, column by column.
    Input(InputId),
    /// Among the numbers the host gives to every step.
    Scalar(ScalarId),
    /// At this byte of the memory that lives from step to step.
    Resident(Bytes),
    /// At this byte of the arena.
    Arena(Bytes),
    /// At this byte of the backing store, where only stores and loads reach.
    Backing(Bytes),
}

impl Place {
    /// The place this many bytes further on.
    pub fn offset_by(self, bytes: u64) -> Place {
        match self {
            Place::Resident(offset) => Place::Resident(offset + Bytes(bytes)),
            Place::Arena(offset) => Place::Arena(offset + Bytes(bytes)),
            Place::Backing(offset) => Place::Backing(offset + Bytes(bytes)),
            given => given,
        }
    }
}

/// What a buffer of the arena holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferKind {
    /// A value of the forward part.
    Activation,
    /// A value of the backward or update part.
    Gradient,
    /// What was brought back from the backing store.
    Loaded,
    /// What a kernel needs while it runs.
    Workspace,
}

/// A piece of the arena and the steps during which it is held.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// What it holds.
    pub kind: BufferKind,
    /// The layer it belongs to.
    pub owner: String,
    /// The values that live in it, one after another or as views of each other.
    pub values: Vec<ValueId>,
    /// Its size for the planned rows.
    pub size: Bytes,
    /// The first step that holds it.
    pub first: u32,
    /// The last step that holds it.
    pub last: u32,
    /// Its place in the arena.
    pub offset: Bytes,
}

/// One program of the plan: the graph, the order its nodes run in, and where everything is.
#[derive(Clone, Debug)]
pub struct Program {
    /// What it is for.
    pub role: Role,
    /// The graph it runs.
    pub graph: Graph,
    /// The nodes in the order they run; leaves and views do not run.
    pub order: Vec<NodeId>,
    /// Where each value is.
    pub places: Vec<Option<Place>>,
    /// The workspace of each step of the order.
    pub workspaces: Vec<(Bytes, Bytes)>,
    /// The pieces of the arena.
    pub buffers: Vec<Buffer>,
    /// No order-preserving layout can be smaller than this.
    pub lower_bound: Bytes,
    /// What this program needs of the arena.
    pub arena: Bytes,
    /// What it computes more than once.
    pub recomputation: Recomputation,
    /// The pieces of the backing store that it uses within a run.
    pub stored: Vec<Buffer>,
    /// The values of the model's graph that are stored until a later part reads them.
    pub offloaded: Vec<ValueId>,
}

/// Where a state lives.
#[derive(Clone, Debug)]
pub struct Resident {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub kind: StateKind,
    /// Its size.
    pub size: Bytes,
    /// Its place in the memory that lives from step to step, or in the backing store.
    pub offset: Bytes,
    /// Whether it is in the backing store.
    pub stored: bool,
}

/// A proven layout of a run's memory on a device: all programs in one arena, all states beside it.
///
/// It is made for `rows` rows and holds for any smaller number, because every buffer only shrinks with the batch.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The most rows a program sees at once (the micro-batch).
    pub rows: usize,
    /// The programs.
    pub programs: Vec<Program>,
    /// The states, in their order.
    pub states: Vec<Resident>,
    /// Slots for the batch on a device that does not share the host's memory; part of `resident`.
    pub staging: Option<Staging>,
    /// Bytes that live from step to step.
    pub resident: Bytes,
    /// Bytes of the arena, shared by all programs.
    pub arena: Bytes,
    /// The largest lower bound of a program: no layout of these orders is smaller.
    pub lower_bound: Bytes,
    /// What every offset is a multiple of.
    pub alignment: Bytes,
    /// Bytes of the backing store: states that are kept there, then what programs put there for a while.
    pub backing: Bytes,
}

/// Improves the graphs and lays them out for at most `rows` rows on the device.
pub fn plan(graphs: Vec<(Role, Graph)>, rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
    let graphs = graphs.into_iter().map(|(role, graph)| Ok((role, optimize(&graph)?))).collect::<Result<Vec<_>, GraphError>>()?;
    layout(&graphs, rows, device)
}

/// Lays out graphs that are improved already. The same graphs can be laid out for many numbers of rows.
pub fn layout(graphs: &[(Role, Graph)], rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
    tighten(sketch(graphs, rows, device)?, device)
}

/// As [`layout`], but by greedy orders alone, which takes no search: the bound is the same, the arena may be somewhat larger.
pub fn sketch(graphs: &[(Role, Graph)], rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
    let programs =
        graphs.iter().map(|(role, graph)| Ok((*role, schedule(graph, rows, device)?))).collect::<Result<Vec<_>, GraphError>>()?;
    let greedy = |blocks: &[Block]| solve(blocks, Goal::Smallest, PackingEffort { work: 0, ..PackingEffort::default() }).layout;
    laid_out(programs, rows, device, &greedy)
}

/// The same plan with its arena as near to the bound as a search brings it. Programs that need less than that, or than another does, stay as they are.
pub fn tighten(mut plan: Plan, device: &dyn Target) -> Result<Plan, GraphError> {
    let mut enough = nearly(plan.lower_bound);
    for program in &mut plan.programs {
        if program.arena > enough {
            let (graph, order) = (std::mem::take(&mut program.graph), std::mem::take(&mut program.order));
            let (recomputation, offloaded) = (std::mem::take(&mut program.recomputation), std::mem::take(&mut program.offloaded));
            let sequenced = ScheduledGraph { graph, order, recomputation, limit: None };
            let unbound = |blocks: &[Block]| tight(blocks, enough);
            *program = Program { offloaded, ..placed(program.role, sequenced, plan.rows, device, &plan.states, &unbound)? };
        }
        // All programs have one arena: what one of them needs the others may use.
        enough = enough.max(program.arena);
    }
    plan.arena = plan.programs.iter().map(|program| program.arena).max().unwrap_or_default();
    Ok(plan)
}

/// Lays out graphs that have an order already, such as [`recompute::fit`] gives. The rows and the device are those the orders were made for.
pub fn layout_sequenced(programs: Vec<(Role, ScheduledGraph)>, rows: usize, device: &dyn Target) -> Result<Plan, GraphError> {
    laid_out(programs, rows, device, &nearly_tight)
}

fn laid_out(
    programs: Vec<(Role, ScheduledGraph)>,
    rows: usize,
    device: &dyn Target,
    unbound: &dyn Fn(&[Block]) -> Layout,
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

/// Finds an order for an improved graph as it is written: what it joins is copied, unless it is [rewritten](rewrite_concats) in another way.
pub fn as_written(graph: &Graph, rows: usize, device: &dyn Target) -> Result<ScheduledGraph, GraphError> {
    in_order(graph, rows, device).map(|found| found.sequenced)
}

/// A graph in an order of its own.
#[derive(Clone)]
struct InOrder {
    sequenced: ScheduledGraph,
    /// The most bytes held at once.
    peak: Bytes,
    /// Who runs then, if anything does.
    peak_step: Option<NodeId>,
}

/// The graph as it is, in an order of its own.
fn in_order(graph: &Graph, rows: usize, device: &dyn Target) -> Result<InOrder, GraphError> {
    let graph = updates::legalise(graph)?;
    verify(&graph)?;
    let alignment = device.capabilities().alignment;
    let workspace = |node: NodeId| device.workspace(&graph, graph.node(node), rows).align_up(alignment.0);
    let order = order::order(&graph, rows, alignment, &workspace);
    let live = liveness::buffers(&graph, &order, rows, alignment, &workspace);
    let (step, peak) = liveness::peak(live.buffers.iter().map(|b| (b.first, b.last, b.size)), order.len());
    let recomputation = Recomputation { flops: graph.flops(rows), ..Recomputation::default() };
    let peak_step = order.get(step as usize).copied();
    Ok(InOrder { sequenced: ScheduledGraph { graph, order, recomputation, limit: None }, peak, peak_step })
}

/// Gives everything in a sequenced graph its place: within the arena it was made for, or packed as `unbound` does it.
fn placed(
    role: Role,
    sequenced: ScheduledGraph,
    rows: usize,
    device: &dyn Target,
    states: &[Resident],
    unbound: &dyn Fn(&[Block]) -> Layout,
) -> Result<Program, GraphError> {
    let ScheduledGraph { graph, order, recomputation, limit } = sequenced;
    verify(&graph)?;
    let alignment = device.capabilities().alignment;
    let workspace = |node: NodeId| device.workspace(&graph, graph.node(node), rows).align_up(alignment.0);
    let live = liveness::buffers(&graph, &order, rows, alignment, &workspace);
    let blocks: Vec<Block> = live.buffers.iter().map(|b| Block { first: b.first, last: b.last, size: b.size }).collect();
    let Layout { offsets, size: arena, lower_bound } = match limit {
        Some(limit) => solve(&blocks, Goal::Within(limit), PackingEffort::default()).layout,
        None => unbound(&blocks),
    };

    let mut stored = live.stored;
    let kept = kept_in_backing(states, alignment);
    let blocks: Vec<Block> = stored.iter().map(|b| Block { first: b.first, last: b.last, size: b.size }).collect();
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

/// A layout as high as its peak, or hardly higher: where a short search leaves a gap of more than a thousandth, a longer one is worth a second.
fn nearly_tight(blocks: &[Block]) -> Layout {
    tight(blocks, Bytes::ZERO)
}

/// The same, or one that takes no more than is `enough`.
fn tight(blocks: &[Block], enough: Bytes) -> Layout {
    let short = assign(blocks);
    let near = nearly(short.lower_bound).max(enough);
    if short.size <= near {
        return short;
    }
    let long = solve(blocks, Goal::Within(near), PackingEffort { work: 60_000_000, ..PackingEffort::default() }).layout;
    if long.size < short.size { long } else { short }
}

/// An arena of so much is as good as one of its bound.
fn nearly(bound: Bytes) -> Bytes {
    Bytes(bound.0 + bound.0 / 1010)
}

/// One layout for the states of all programs; the longest list of states names them all.
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

/// What the states that are kept in the backing store take there.
fn kept_in_backing(states: &[Resident], alignment: Bytes) -> Bytes {
    states.iter().filter(|state| state.stored).map(|state| state.size.align_up(alignment.0)).sum()
}

/// The backing store: states, then whatever the program that stores most stores.
fn backing(states: &[Resident], programs: &[Program], alignment: Bytes) -> Bytes {
    let ends = programs.iter().flat_map(|program| &program.stored).map(|buffer| buffer.offset + buffer.size);
    ends.max().unwrap_or_default().max(kept_in_backing(states, alignment))
}

impl Resident {
    /// Where it is.
    pub fn place(&self) -> Place {
        if self.stored { Place::Backing(self.offset) } else { Place::Resident(self.offset) }
    }
}

impl Plan {
    /// The program for a role.
    pub fn program(&self, role: Role) -> Option<&Program> {
        self.programs.iter().find(|program| program.role == role)
    }

    /// The program for a role that the plan was made for.
    ///
    /// # Panics
    /// Where there is none.
    pub fn expect_program(&self, role: Role) -> &Program {
        self.program(role).expect("programs are asked for by the roles they were planned for")
    }

    /// Everything the run holds on the device.
    pub fn total(&self) -> Bytes {
        self.resident + self.arena
    }

    /// Bytes by owner: states by kind, and the arena by its contents at the peak. Adds up to [`Plan::total`].
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
    }
}

impl Program {
    /// The outputs that are a single real number, such as the loss: what the host wants to know of every run. At most [`NUMBERS`].
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
