//! Recomputation (rematerialization): forward values are evicted and recomputed when the backward pass needs them,
//! which lowers the peak of a step.
//!
//! A schedule is a *sequence* of nodes in which a node may occur several times. Random numbers are counter-based, so a
//! recomputed node yields the same bits; no node reads a state after its update. [`fit`] searches for the sequence with
//! the lowest predicted time whose exact peak is within the limit. It returns a graph in which every recomputation is a
//! separate node.

mod moves;
pub(super) mod problem;
mod search;
pub(super) mod simulate;
mod starts;
pub(super) mod write;

use super::arena::{BufferInterval, Layout};
use super::{Plan, Program, Resident, as_written, backing, modest, nearly_tight, place_states, placed, schedule};
use crate::Bytes;
use crate::ir::graph::{Graph, GraphError, Node, NodeId};
use crate::ir::op::Op;
use crate::plan::cost_model::{CostModel, WithCopies};
use crate::plan::target::Target;
use crate::transform::step::Role;
use problem::Problem;

/// How long to search, in simulated steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort(pub u64);

impl Effort {
    /// Whether it is a fraction of the default: few targets are tried then, and layouts are not searched for
    /// thoroughly.
    fn is_short(self) -> bool {
        self.0 < Effort::default().0 / 4
    }
}

impl Default for Effort {
    /// At most a few seconds for networks of some thousand nodes.
    fn default() -> Effort {
        Effort(60_000_000)
    }
}

/// A graph with its execution order and the cost of that order.
#[derive(Clone, Debug)]
pub struct ScheduledGraph {
    /// The graph; state updates are in-place writes.
    pub graph: Graph,
    /// Executed nodes, in order.
    pub order: Vec<NodeId>,
    /// The recomputation in the order.
    pub recomputation: Recomputation,
    /// The arena size it was scheduled for; the layout need not be smaller.
    pub limit: Option<Bytes>,
}

/// The recomputation of a program and its cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recomputation {
    /// The nodes that recompute an earlier one, without repeated loads.
    pub nodes: Vec<NodeId>,
    /// Execution order in node numbers of the graph without recomputation; empty if nothing is recomputed.
    pub sequence: Vec<u32>,
    /// Floating-point operations without recomputation.
    pub flops: u64,
    /// Floating-point operations of the recomputation.
    pub extra_flops: u64,
    /// Predicted seconds without recomputation.
    pub seconds: f64,
    /// Predicted seconds of the recomputation.
    pub extra_seconds: f64,
}

impl Recomputation {
    /// Recomputed operations relative to the program's own.
    pub fn flops_ratio(&self) -> f64 {
        self.extra_flops as f64 / self.flops.max(1) as f64
    }

    /// Number of recomputed nodes per layer, in order of first appearance.
    pub fn by_scope(&self, graph: &Graph) -> Vec<(String, usize)> {
        let mut scopes: Vec<(String, usize)> = Vec::new();
        for id in self.nodes.iter() {
            let scope = &graph.node(*id).scope;
            match scopes.iter_mut().find(|(known, _)| *scope == *known) {
                Some((_, count)) => *count += 1,
                None => scopes.push((scope.to_string(), 1)),
            }
        }
        scopes
    }
}

/// Why no plan fits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// No sequence that was found fits.
    #[error("recomputing everything that can be still needs {least} of arena, but the limit is {limit}")]
    TooSmall {
        /// The requested limit.
        limit: Bytes,
        /// The smallest arena found; this value works as a limit.
        least: Bytes,
    },
    /// The graph cannot be planned at all.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Thousandths by which the target peak is lowered in successive attempts, to compensate for fragmentation.
const LOWER: [u64; 7] = [0, 10, 25, 50, 80, 120, 170];
/// The number of attempts of a short search.
const SHORT_ATTEMPTS: usize = 3;

/// Schedules an optimized graph for `rows` rows on the device such that its arena takes at most `limit` bytes, with the
/// lowest predicted time.
///
/// ```
/// use plimsoll_core::plan::Rates;
/// use plimsoll_core::plan::recompute::{Effort, FitError, fit};
/// # use plimsoll_core::plan::Target;
/// # use plimsoll_core::{Bytes, Graph};
/// # fn example(graph: &Graph, device: &dyn Target) -> Result<(), FitError> {
/// let sequenced = fit(graph, 32, device, Bytes::mib(512), &Rates::default(), Effort::default())?;
/// println!("{:.1} % more operations", 100.0 * sequenced.recomputation.flops_ratio());
/// # Ok(())
/// # }
/// ```
pub fn fit(
    graph: &Graph,
    rows: usize,
    device: &dyn Target,
    limit: Bytes,
    cost_model: &dyn CostModel,
    effort: Effort,
) -> Result<ScheduledGraph, FitError> {
    fit_from(graph, rows, device, limit, cost_model, effort, None)
}

/// Like [`fit`], with an initial sequence that was found for other rows or another limit.
fn fit_from(
    graph: &Graph,
    rows: usize,
    device: &dyn Target,
    limit: Bytes,
    cost_model: &dyn CostModel,
    effort: Effort,
    from: Option<&[u32]>,
) -> Result<ScheduledGraph, FitError> {
    let alignment = device.capabilities().alignment;
    // Rewritten concats may suffice. Recomputation uses copied concats: a shared buffer could only be recomputed from
    // its first slice.
    let joined = schedule(graph, rows, device)?;
    let mut least_joined = None;
    if !joined.graph.joining().is_copy() {
        let (states, _) = place_states([(Role::Step, &joined.graph)].into_iter(), alignment)?;
        let program = placed(Role::Step, joined, rows, device, &states, &nearly_tight)?;
        if program.arena <= limit {
            return Ok(ScheduledGraph { limit: None, ..program.within(limit) });
        }
        least_joined = Some(program.arena);
    }
    let ScheduledGraph { graph, order, .. } = as_written(graph, rows, device)?;
    let workspace = |node: NodeId| device.workspace(&graph, graph.node(node), rows).align_up(alignment.0);
    let cost_model = &WithCopies { cost_model, bytes_per_s: device.capabilities().copy_rate.bytes_per_s };
    let problem = Problem::of(&graph, &order, rows, alignment, &workspace, cost_model);
    let (states, _) = place_states([(Role::Step, &graph)].into_iter(), alignment)?;
    let place = |found: &search::Candidate| -> Result<Program, GraphError> {
        let program =
            placed(Role::Step, sequenced(&graph, &found.sequence, rows, limit, cost_model), rows, device, &states, &nearly_tight)?;
        debug_assert_eq!(program.lower_bound.0, found.outcome.peak, "the search and the liveness see the same bytes");
        Ok(program)
    };
    // Fragmentation may push the cheapest sequence above the limit. Each attempt lowers the target and also packs the
    // runners-up; the cheapest sequence that packs within the limit wins.
    let mut packed: Option<(f64, Program)> = None;
    let mut seed: Option<Vec<u32>> = from.map(<[u32]>::to_vec);
    let attempts = if effort.is_short() { SHORT_ATTEMPTS } else { LOWER.len() };
    for (attempt, lower) in LOWER.into_iter().take(attempts).enumerate() {
        let share = if attempt == 0 { effort.0 / 2 } else { effort.0 / 8 };
        let target = limit.0 - limit.0 / 1000 * lower;
        let pool = search::search(&problem, target, share, seed.as_deref());
        let Some(first) = pool.first() else { break };
        seed = Some(first.sequence.clone());
        let cheaper = |found: &search::Candidate, packed: &Option<(f64, Program)>| {
            packed.as_ref().is_none_or(|(seconds, _)| found.outcome.seconds < *seconds)
        };
        let hopeless = !cheaper(first, &packed);
        for found in &pool {
            if !cheaper(found, &packed) {
                break;
            }
            let program = place(found)?;
            if program.arena <= limit {
                packed = Some((found.outcome.seconds, program));
            }
        }
        // Lower targets only increase the time.
        if packed.is_some() && (attempt == 0 || hopeless) {
            break;
        }
    }
    if let Some((_, program)) = packed {
        return Ok(program.within(limit));
    }
    // The minimum in the error must work as a limit, so it is computed independently of the limit.
    let smallest = search::squeeze(&problem, 0, 0, effort.0 / 4);
    let mut unbound = sequenced(&graph, &smallest.sequence, rows, limit, cost_model);
    unbound.limit = None;
    let packing: &dyn Fn(&[BufferInterval]) -> Layout = if effort.is_short() { &|blocks| modest(blocks, limit) } else { &nearly_tight };
    let program = placed(Role::Step, unbound, rows, device, &states, packing)?;
    if program.arena > limit {
        let least = least_joined.map_or(program.arena, |joined| joined.min(program.arena));
        return Err(FitError::TooSmall { limit, least });
    }
    for found in search::search(&problem, limit.0, effort.0 / 4, Some(&smallest.sequence)) {
        let cheaper = place(&found)?;
        if cheaper.arena <= limit {
            return Ok(cheaper.within(limit));
        }
    }
    // Packed with the same goal as when it was found to fit.
    Ok(ScheduledGraph { limit: None, ..program.within(limit) })
}

impl Program {
    fn within(self, limit: Bytes) -> ScheduledGraph {
        ScheduledGraph { graph: self.graph, order: self.order, recomputation: self.recomputation, limit: Some(limit) }
    }
}

/// A plan of the same graphs whose arena takes at most `limit`; larger training programs are rescheduled. `from` is a
/// plan that was fitted for other rows, and seeds the search.
pub fn refit(
    plan: &Plan,
    graphs: &[(Role, Graph)],
    device: &dyn Target,
    limit: Bytes,
    cost_model: &dyn CostModel,
    effort: Effort,
    from: Option<&Plan>,
) -> Result<Plan, FitError> {
    let mut plan = plan.clone();
    for (program, (role, graph)) in plan.programs.iter_mut().zip(graphs).filter(|(program, _)| program.arena > limit) {
        // The program may only be sketched.
        if program.lower_bound <= limit {
            let offloaded = program.offloaded.clone();
            let packed = placed(*role, program.clone().within(limit), plan.rows, device, &plan.states, &nearly_tight)?;
            if packed.arena <= limit {
                *program = Program { offloaded, ..packed };
                continue;
            }
        }
        if !recomputes(*role) {
            // Without a backward pass there is nothing to recompute.
            let unbound = ScheduledGraph { limit: None, ..program.clone().within(limit) };
            let packed = placed(*role, unbound, plan.rows, device, &plan.states, &nearly_tight)?;
            return Err(FitError::TooSmall { limit, least: packed.arena });
        }
        let known =
            from.and_then(|from| from.program(*role)).map(|program| &program.recomputation.sequence[..]).filter(|known| !known.is_empty());
        let sequenced = fit_from(graph, plan.rows, device, limit, cost_model, effort, known)?;
        let offloaded = std::mem::take(&mut program.offloaded);
        *program = Program { offloaded, ..placed(*role, sequenced, plan.rows, device, &plan.states, &nearly_tight)? };
    }
    plan.arena = plan.programs.iter().map(|program| program.arena).max().unwrap_or_default();
    plan.lower_bound = plan.programs.iter().map(|program| program.lower_bound).max().unwrap_or_default();
    plan.backing = backing(&plan.states, &plan.programs, plan.alignment);
    Ok(plan)
}

/// A lower bound on the arena of a plan under any recomputation: the largest node with its inputs, outputs and
/// workspace. Programs without a backward pass have nothing to recompute.
pub fn floor(plan: &Plan, device: &dyn Target) -> Bytes {
    let alignment = device.capabilities().alignment;
    let of = |program: &Program| {
        if !recomputes(program.role) {
            return program.lower_bound;
        }
        let graph = &program.graph;
        let workspace = |node: NodeId| device.workspace(graph, graph.node(node), plan.rows).align_up(alignment.0);
        Bytes(Problem::of(graph, &program.order, plan.rows, alignment, &workspace, &PerNode).least())
    };
    plan.programs.iter().map(of).max().unwrap_or_default()
}

/// A plan of the same graphs with the smallest sum of its arena and `per_node` bytes for every recomputed node that the
/// search finds, at any cost in time. It depends only on the graphs, the rows, the device and the effort: the minimum
/// budget derived from it is reproducible.
pub fn smallest(
    plan: &Plan,
    graphs: &[(Role, Graph)],
    device: &dyn Target,
    per_node: Bytes,
    (cost_model, effort): (&dyn CostModel, Effort),
) -> Result<Plan, GraphError> {
    let mut plan = plan.clone();
    // All programs share one arena: one that is no larger than another need not shrink.
    let mut arena = Bytes::ZERO;
    let mut largest_first: Vec<usize> = (0..plan.programs.len()).collect();
    largest_first.sort_by_key(|i| std::cmp::Reverse(plan.programs[*i].arena));
    for i in largest_first {
        let (role, graph) = &graphs[i];
        let program = &mut plan.programs[i];
        if program.arena <= arena {
            continue;
        }
        let offloaded = program.offloaded.clone();
        let unbound = ScheduledGraph { limit: None, ..program.clone().within(program.arena) };
        let mut best = placed(*role, unbound, plan.rows, device, &plan.states, &|blocks| modest(blocks, arena))?;
        if recomputes(*role) && best.arena > arena {
            let squeezed = squeezed((*role, graph), plan.rows, device, &plan.states, (arena, per_node), (cost_model, effort))?;
            if squeezed.arena < best.arena {
                best = squeezed;
            }
        }
        *program = Program { offloaded, ..best };
        arena = arena.max(program.arena);
    }
    plan.arena = plan.programs.iter().map(|program| program.arena).max().unwrap_or_default();
    plan.lower_bound = plan.programs.iter().map(|program| program.lower_bound).max().unwrap_or_default();
    plan.backing = backing(&plan.states, &plan.programs, plan.alignment);
    Ok(plan)
}

/// One program in the smallest arena that the search finds; an arena of `enough` is as good as any smaller one.
fn squeezed(
    (role, graph): (Role, &Graph),
    rows: usize,
    device: &dyn Target,
    states: &[Resident],
    (enough, per_node): (Bytes, Bytes),
    (cost_model, effort): (&dyn CostModel, Effort),
) -> Result<Program, GraphError> {
    let alignment = device.capabilities().alignment;
    let ScheduledGraph { graph, order, .. } = as_written(graph, rows, device)?;
    let workspace = |node: NodeId| device.workspace(&graph, graph.node(node), rows).align_up(alignment.0);
    let problem = Problem::of(&graph, &order, rows, alignment, &workspace, &PerNode);
    let found = search::squeeze(&problem, enough.0, per_node.0, effort.0);
    let unbound = ScheduledGraph { limit: None, ..sequenced(&graph, &found.sequence, rows, Bytes::ZERO, cost_model) };
    placed(role, unbound, rows, device, states, &|blocks| modest(blocks, enough))
}

/// Whether a program has a backward pass, and so values to recompute.
fn recomputes(role: Role) -> bool {
    !matches!(role, Role::Evaluate | Role::Predict)
}

/// The same cost for every node: the search for the smallest arena prefers fewer recomputed nodes, and does not depend
/// on the machine.
struct PerNode;

impl CostModel for PerNode {
    fn seconds(&self, _: &Graph, _: &Node, _: usize) -> f64 {
        1.0
    }
}

/// Predicted seconds of one run of a program, including recomputation.
pub fn seconds(program: &Program, rows: usize, cost_model: &dyn CostModel) -> f64 {
    program.order.iter().map(|id| cost_model.seconds(&program.graph, program.graph.node(*id), rows)).sum()
}

fn sequenced(graph: &Graph, sequence: &[u32], rows: usize, limit: Bytes, cost_model: &dyn CostModel) -> ScheduledGraph {
    let mut written = write::write(graph, sequence);
    // A reordering alone needs no new graph: nodes retain their ids in the model.
    if written.repeated.is_empty() {
        (written.graph, written.order) = (graph.clone(), sequence.iter().copied().map(NodeId).collect());
    }
    let new = &written.graph;
    let flops = |nodes: &[NodeId]| nodes.iter().fold(0u64, |sum, id| sum.saturating_add(new.node_flops(new.node(*id), rows)));
    let seconds = |nodes: &[NodeId]| nodes.iter().map(|id| cost_model.seconds(new, new.node(*id), rows)).sum::<f64>();
    let (extra_flops, extra_seconds) = (flops(&written.repeated), seconds(&written.repeated));
    let recomputation = Recomputation {
        flops: flops(&written.order).saturating_sub(extra_flops),
        extra_flops,
        seconds: seconds(&written.order) - extra_seconds,
        extra_seconds,
        sequence: if written.repeated.is_empty() { Vec::new() } else { sequence.to_vec() },
        nodes: written.repeated.into_iter().filter(|id| !matches!(new.node(*id).op, Op::Load(_))).collect(),
    };
    ScheduledGraph { graph: written.graph, order: written.order, recomputation, limit: Some(limit) }
}
