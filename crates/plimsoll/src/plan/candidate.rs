//! One candidate plan: the memory of a micro-batch laid out and checked, and everything else that the run holds.

use super::alternatives::{graphs, variants, ways};
use super::loads::Loads;
use super::page_tables::page_tables;
use super::pipelines::pipelines;
use super::split::planned_graphs;
use super::{Budgets, Request};
use crate::allow::Permission;
use crate::checkpoint::Checkpoints;
use crate::error::Result;
use crate::graphs::{GAPS_OF_SEARCH, PlanSpace, PlannedRun, ProgramInterface, Programs, Variant, nodes};
use crate::history::History;
use crate::prune::MaskUpdates;
use crate::spec::{Count, RunSpec};
use plimsoll_core::budget::Owner;
use plimsoll_core::plan::recompute::Recomputation;
use plimsoll_core::plan::{CheckedPlan, Plan, Program, check_equivalence, is_tight, sketch, tighten};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Graph};
use std::borrow::Cow;
use std::sync::Arc;

/// One micro-batch size with its strategies, laid out and checked.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub micro_batch: usize,
    pub variant: Variant,
    pub feed_rows: usize,
    pub memory: CheckedPlan,
    /// The smallest host budget that works.
    pub least: Bytes,
    pub fixed: Vec<(Owner, Bytes)>,
    /// What the device's own memory holds, if it has any.
    pub on_device: Option<Vec<(Owner, Bytes)>>,
    /// The rewritten graphs it was laid out from, if any: with split layers, or with loads and stores.
    pub written: Option<Arc<Vec<(Role, Graph)>>>,
}

impl Candidate {
    pub fn device_total(&self) -> Bytes {
        self.on_device.iter().flatten().map(|(_, size)| *size).sum()
    }

    pub fn fits(&self, budgets: Budgets) -> bool {
        self.least <= budgets.host && self.device_total() <= budgets.device
    }

    /// Whether it fits if its arena can be laid out without fragmentation.
    fn might_fit(&self, budgets: Budgets) -> bool {
        let gaps = self.memory.arena - self.memory.lower_bound;
        match &self.on_device {
            Some(_) => self.least <= budgets.host && self.device_total() - gaps <= budgets.device,
            None => self.least - gaps <= budgets.host,
        }
    }

    /// The same with a thorough arena layout.
    pub fn tightened(self, request: &Request<'_>) -> Result<Candidate> {
        if is_tight(&self.memory) {
            return Ok(self);
        }
        let Candidate { micro_batch, memory, written, .. } = self;
        Ok(finish(request, micro_batch, tighten(memory.into_plan(), request.device())?)?.from(written))
    }

    /// By how much it exceeds its budget.
    pub fn excess(&self, budgets: Budgets) -> Bytes {
        match &self.on_device {
            Some(_) => self.device_total().saturating_sub(budgets.device),
            None => self.least.saturating_sub(budgets.host),
        }
    }

    /// The same, with the rewritten graphs it was laid out from.
    pub fn from(self, written: Option<Arc<Vec<(Role, Graph)>>>) -> Candidate {
        Candidate { written, ..self }
    }

    /// The graphs it is laid out from.
    pub fn graphs<'a>(&'a self, request: &'a Request<'_>) -> Result<&'a [(Role, Graph)]> {
        self.written.as_ref().map_or_else(|| graphs(request, self.micro_batch), |written| Ok(&written[..]))
    }

    /// The largest arena that fits, if everything else does.
    pub fn arena_limit(&self, budgets: Budgets) -> Option<Bytes> {
        let (own, line) = match &self.on_device {
            Some(_) if self.least > budgets.host => return None,
            Some(_) => (self.device_total(), budgets.device),
            None => (self.least, budgets.host),
        };
        let others = Bytes(own.0 - self.memory.arena.0);
        (others < line).then(|| Bytes((line.0 - others.0) / self.memory.alignment.0 * self.memory.alignment.0))
    }

    /// Predicted seconds of a whole batch.
    pub fn seconds(&self, request: &Request<'_>) -> f64 {
        let (cost_model, rate) = (request.cost_model, request.machine.copy_rate);
        let of = |role: Role, rows: usize| self.memory.program(role).map_or(0.0, |program| program.seconds(rows, cost_model, rate));
        match request.batch.div_ceil(self.micro_batch) {
            1 => of(Role::Step, request.batch),
            pieces => {
                let middle = (pieces - 2) as f64 * of(Role::Middle, self.micro_batch);
                of(Role::First, self.micro_batch) + middle + of(Role::Last, self.micro_batch)
            }
        }
    }

    /// Whether it is the largest micro-batch without any strategy.
    pub fn untouched(&self, whole: &Candidate) -> bool {
        self.micro_batch == whole.micro_batch
            && self.recomputation().nodes.is_empty()
            && self.memory.backing == Bytes::ZERO
            && !self.is_cut()
    }

    /// Whether layers are split into slices of their rows.
    pub fn is_cut(&self) -> bool {
        self.memory.programs.iter().any(|program| program.graph.pieces() > 1)
    }

    /// The recomputation of the program with most of it.
    pub fn recomputation(&self) -> Recomputation {
        let programs = self.memory.programs.iter().map(|program| &program.recomputation);
        programs.max_by_key(|again| again.extra_flops).cloned().unwrap_or_default()
    }
}

/// A micro-batch without recomputation or offloading. Where that cannot fit the budgets, its layout is only sketched.
pub(super) fn candidate(request: &Request<'_>, micro_batch: usize, budgets: Option<Budgets>) -> Result<Candidate> {
    let is_same = |known: &&Candidate| known.micro_batch == micro_batch && known.variant == request.variant && !request.split;
    if let Some(known) = request.as_specified.get().filter(is_same) {
        return Ok(known.clone());
    }
    let graphs = planned_graphs(request, micro_batch)?;
    let plain = weighed(request, micro_batch, sketch(&graphs, micro_batch, request.device())?, budgets)?;
    Ok(match graphs {
        Cow::Borrowed(_) => plain,
        Cow::Owned(written) => plain.from(Some(Arc::new(written))),
    })
}

/// A sketched layout with everything else the run holds; laid out thoroughly if that can make it fit, or without
/// budgets.
pub(super) fn weighed(request: &Request<'_>, micro_batch: usize, sketch: Plan, budgets: Option<Budgets>) -> Result<Candidate> {
    let rough = finish(request, micro_batch, sketch)?;
    if budgets.is_some_and(|budgets| !rough.might_fit(budgets)) { Ok(rough) } else { rough.tightened(request) }
}

/// Checks a layout and adds everything else that the run holds.
pub(super) fn finish(request: &Request<'_>, micro_batch: usize, memory: Plan) -> Result<Candidate> {
    let memory = CheckedPlan::new(memory)?;
    // Recomputation, splitting and offloading rewrite the graph: prove that it still computes the same.
    for (program, (_, graph)) in memory.programs.iter().zip(graphs(request, micro_batch)?) {
        if !program.recomputation.nodes.is_empty() || program.graph.pieces() > 1 || memory.backing > Bytes::ZERO {
            check_equivalence(graph, &program.graph, request.device(), micro_batch)?;
        }
    }
    // A micro-batch needs the size of its batch; where an epoch may end anywhere, only a whole batch tells. Ranks have
    // all of their rows of a batch at once.
    let in_pieces = request.spec.ranks == 1 && request.data.training.epoch_rows.is_some() && request.batch.is_multiple_of(micro_batch);
    let feed_rows = if in_pieces { micro_batch } else { request.batch };
    if request.spec.count == Count::WeightsAndActivations {
        let mut fixed = memory.by_owner();
        fixed.retain(|(owner, _)| !matches!(owner, Owner::Optimizer | Owner::GradientSums | Owner::Masks | Owner::Staging));
        let least = fixed.iter().map(|(_, size)| *size).sum();
        return Ok(Candidate { micro_batch, variant: request.variant, feed_rows, memory, least, fixed, on_device: None, written: None });
    }
    let footprint = request.device().footprint(&memory);
    let (mut fixed, on_device) = if request.device().capabilities().shares_host_memory {
        (memory.by_owner(), None)
    } else {
        let mut on_device = memory.by_owner();
        let runtime = request.device().capabilities().runtime.map(Owner::DeviceRuntime);
        on_device.extend(runtime.clone().map(|owner| (owner, footprint.runtime.device)));
        if request.spec.ranks > 1 {
            on_device.push((Owner::Communication, request.machine.communication_on_device));
        }
        let on_host = runtime.map(|owner| (owner, footprint.runtime.host)).into_iter();
        (on_host.chain([(Owner::PinnedStaging, footprint.host_staging)]).collect(), Some(on_device))
    };
    if memory.backing > Bytes::ZERO {
        fixed.push((Owner::Offload, footprint.host_backing));
    }
    fixed.push((Owner::Process, request.machine.process));
    fixed.push((Owner::ThreadStacks, request.machine.thread_stacks));
    if request.spec.ranks > 1 {
        fixed.push((Owner::Communication, request.machine.communication));
    }
    let loads = loads(request, micro_batch);
    fixed.push((Owner::Graphs, Programs::heap(&memory, |role| loads.of(role))));
    fixed.extend(checkpoint_owner(request.spec, memory.states.len()));
    fixed.extend(model_file_owner(request.spec));
    fixed.extend(history_owner(request.spec, &request.programs.interface));
    fixed.extend(mask_update_owner(&request.programs.interface));
    fixed.extend(prediction_owner(request.spec, &request.programs.interface, micro_batch));
    let pipeline = pipelines(request.data, feed_rows, None)?;
    let mut least = fixed.iter().map(|(_, size)| *size).sum::<Bytes>() + pipeline.minimum;
    // Planning ends before the run allocates; it counts only if it takes more memory than the run.
    let whole = micro_batch == request.batch && request.variant == Variant::default();
    let planned = PlannedRun {
        nodes: nodes(memory.programs.iter().map(|program| &program.graph)),
        accumulates: micro_batch < request.batch,
        as_specified: (on_device.is_none() && whole && is_as_specified(&memory))
            .then(|| least + page_tables(least) - request.machine.process),
    };
    if planned.as_specified.is_none_or(|run| run > request.programs.search_heap(compared(request))) {
        let graphs = fixed.iter_mut().filter(|(owner, _)| *owner == Owner::Graphs);
        graphs.for_each(|(_, size)| *size += GAPS_OF_SEARCH);
        least += GAPS_OF_SEARCH;
    }
    let tables = page_tables(least);
    fixed.push((Owner::PageTables, tables));
    least += tables;
    let heap = request.programs.planning_heap(&planned, compared(request))?;
    let planning = request.machine.process + heap + page_tables(heap);
    if planning > least {
        fixed.push((Owner::Planning, planning - least));
        least = planning;
    }
    Ok(Candidate { micro_batch, variant: request.variant, feed_rows, memory, least, fixed, on_device, written: None })
}

/// How often the programs of a run are loaded.
pub(super) fn loads<'a>(request: &Request<'a>, micro_batch: usize) -> Loads<'a> {
    Loads { data: request.data, inference_only: request.spec.inference_only, ranks: request.spec.ranks, batch: request.batch, micro_batch }
}

/// Whether a plan recomputes, splits and offloads nothing.
pub(crate) fn is_as_specified(plan: &Plan) -> bool {
    let unchanged = |program: &Program| program.recomputation.nodes.is_empty() && program.graph.pieces() <= 1;
    plan.backing == Bytes::ZERO && plan.programs.iter().all(unchanged)
}

/// Host memory of a search, if the largest plans that are compared have this many nodes, for micro-batches of this many
/// rows.
pub(super) fn planning(request: &Request<'_>, planned: u64, micro_batch: usize) -> Result<Bytes> {
    let planned = PlannedRun { nodes: planned, accumulates: micro_batch < request.batch, as_specified: None };
    let heap = request.programs.planning_heap(&planned, compared(request))?;
    Ok(request.machine.process + heap + page_tables(heap))
}

/// The run as specified, in its largest micro-batches. Without recomputation there is no smaller layout of it than the
/// tightest.
pub(super) fn specified(request: &Request<'_>) -> Result<Candidate> {
    let plain = candidate(request, ways(request, request.allow)[0], Some(Budgets::NONE))?;
    if request.allow.has(Permission::Recompute) { Ok(plain) } else { plain.tightened(request) }
}

/// Whether a candidate is the run as specified, and takes no more memory than a search for a smaller plan.
pub(super) fn needs_no_search(request: &Request<'_>, candidate: &Candidate) -> bool {
    let whole = candidate.micro_batch == request.batch && candidate.variant == Variant::default();
    let counted = request.spec.count == Count::Everything && candidate.on_device.is_none();
    let search = request.machine.process + request.programs.search_heap(compared(request));
    counted && whole && is_as_specified(&candidate.memory) && candidate.least <= search
}

/// What planning compares.
pub(super) fn compared(request: &Request<'_>) -> PlanSpace {
    PlanSpace {
        batch: request.batch,
        micro_batches: ways(request, request.allow).iter().any(|rows| *rows < request.batch),
        offload: request.allow.has(Permission::Offload),
        several_variants: variants(request, request.allow).len() > 1,
        data: request.data.held,
    }
}

/// The memory of the scores of a run, which grows with its epochs and classes.
pub(crate) fn history_owner(spec: &RunSpec, interface: &ProgramInterface) -> Option<(Owner, Bytes)> {
    let metrics = &interface.model_metrics;
    let datasets = if spec.fit.validation.is_some() { 2 } else { 1 };
    let (values, counts) = metrics.class_values();
    let size = History::footprint(spec.fit.epochs, datasets * metrics.scalars(), datasets * values, counts);
    (!spec.inference_only).then_some((Owner::History, size + spec.fit.log_footprint()))
}

/// The host's buffers for updates of pruning masks.
pub(crate) fn mask_update_owner(interface: &ProgramInterface) -> Option<(Owner, Bytes)> {
    (!interface.pruned.is_empty()).then(|| (Owner::MaskUpdates, MaskUpdates::footprint(&interface.pruned)))
}

/// The memory of the predictions of a micro-batch, of a run that predicts.
pub(crate) fn prediction_owner(spec: &RunSpec, interface: &ProgramInterface, micro_batch: usize) -> Option<(Owner, Bytes)> {
    spec.inference_only.then_some((Owner::Predictions, prediction_bytes(interface, micro_batch)))
}

/// Bytes of all outputs of the model for some rows.
pub(crate) fn prediction_bytes(interface: &ProgramInterface, rows: usize) -> Bytes {
    let per_row: usize = interface.outputs.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    Bytes((rows * per_row * size_of::<f32>()) as u64)
}

/// The memory of reading the weights of a model of another program: its file is parsed while the run has its memory
/// already.
pub(crate) fn model_file_owner(spec: &RunSpec) -> Option<(Owner, Bytes)> {
    spec.fit.initial_weights.as_ref().map(|initial| (Owner::ModelFile, initial.heap)).filter(|(_, heap)| *heap > Bytes::ZERO)
}

/// The memory of writing checkpoints, or of reading the state or weights that a run starts from.
pub(crate) fn checkpoint_owner(spec: &RunSpec, states: usize) -> Option<(Owner, Bytes)> {
    let size = match (&spec.fit.checkpoints, &spec.fit.initial_weights) {
        (Some(_), _) => Checkpoints::footprint(states),
        (None, Some(_)) => Checkpoints::document(states),
        (None, None) if spec.distill.is_some() => Checkpoints::document(states),
        (None, None) => return None,
    };
    Some((Owner::Checkpoint, size))
}
