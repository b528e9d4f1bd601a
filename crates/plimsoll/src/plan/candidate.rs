//! One way to run a batch: its memory laid out and checked, and everything else that the run holds put beside it.

use super::choose::{graphs, variants};
use super::pipelines::pipelines;
use super::split::planned_graphs;
use super::{Budgets, Request};
use crate::checkpoint::Checkpoints;
use crate::error::Result;
use crate::graphs::Variant;
use crate::spec::{Count, RunSpec};
use plimsoll_core::budget::Owner;
use plimsoll_core::plan::recompute::Recomputation;
use plimsoll_core::plan::{CheckedPlan, Plan, check_equivalence, sketch, tighten};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Graph};
use std::borrow::Cow;
use std::sync::Arc;

/// Peak memory of the search, in multiples of the graphs: 2.9 were measured for a network of 2,000 nodes in many micro-batches.
const SEARCH_FACTOR: u64 = 4;

/// One way to cut the batch, laid out and checked.
#[derive(Clone)]
pub(super) struct Candidate {
    pub micro_batch: usize,
    pub variant: Variant,
    pub feed_rows: usize,
    pub memory: CheckedPlan,
    /// The smallest total this way can have.
    pub least: Bytes,
    pub fixed: Vec<(Owner, Bytes)>,
    /// What stands under the device's own line, if it has one.
    pub on_device: Option<Vec<(Owner, Bytes)>>,
    /// The graphs it was laid out from, if they are not the model's own: with layers in pieces, or copies to and from elsewhere in them.
    pub written: Option<Arc<Vec<(Role, Graph)>>>,
}

impl Candidate {
    pub fn device_total(&self) -> Bytes {
        self.on_device.iter().flatten().map(|(_, size)| *size).sum()
    }

    pub fn fits(&self, budgets: Budgets) -> bool {
        self.least <= budgets.host && self.device_total() <= budgets.device
    }

    /// Whether it fits if its arena can be laid out without gaps.
    fn might_fit(&self, budgets: Budgets) -> bool {
        let gaps = self.memory.arena - self.memory.lower_bound;
        match &self.on_device {
            Some(_) => self.least <= budgets.host && self.device_total() - gaps <= budgets.device,
            None => self.least - gaps <= budgets.host,
        }
    }

    /// The same with its arena laid out well.
    pub fn tightened(self, request: &Request<'_>) -> Result<Candidate> {
        let Candidate { micro_batch, memory, written, .. } = self;
        Ok(finish(request, micro_batch, tighten(memory.into_plan(), request.device())?)?.from(written))
    }

    /// By how much it is over its line.
    pub fn excess(&self, budgets: Budgets) -> Bytes {
        match &self.on_device {
            Some(_) => self.device_total().saturating_sub(budgets.device),
            None => self.least.saturating_sub(budgets.host),
        }
    }

    /// The same, laid out from these graphs.
    pub fn from(self, written: Option<Arc<Vec<(Role, Graph)>>>) -> Candidate {
        Candidate { written, ..self }
    }

    /// The graphs it is laid out from.
    pub fn graphs<'a>(&'a self, request: &Request<'a>) -> Result<&'a [(Role, Graph)]> {
        self.written.as_ref().map_or_else(|| graphs(request, self.micro_batch), |written| Ok(&written[..]))
    }

    /// What the arena may take at most, if everything else fits.
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

    /// Whether nothing was done to the largest pieces.
    pub fn untouched(&self, whole: &Candidate) -> bool {
        self.micro_batch == whole.micro_batch
            && self.recomputation().nodes.is_empty()
            && self.memory.backing == Bytes::ZERO
            && !self.is_cut()
    }

    /// Whether layers are computed in pieces of their rows.
    pub fn is_cut(&self) -> bool {
        self.memory.programs.iter().any(|program| program.graph.pieces() > 1)
    }

    /// What the program that computes most again computes again.
    pub fn recomputation(&self) -> Recomputation {
        let programs = self.memory.programs.iter().map(|program| &program.recomputation);
        programs.max_by_key(|again| again.extra_flops).cloned().unwrap_or_default()
    }
}

/// The batch in pieces of this size, everything kept that is needed again. Where that cannot be within the budgets, it is only sketched.
pub(super) fn candidate(request: &Request<'_>, micro_batch: usize, budgets: Option<Budgets>) -> Result<Candidate> {
    let graphs = planned_graphs(request, micro_batch)?;
    let plain = weighed(request, micro_batch, sketch(&graphs, micro_batch, request.device())?, budgets)?;
    Ok(match graphs {
        Cow::Borrowed(_) => plain,
        Cow::Owned(written) => plain.from(Some(Arc::new(written))),
    })
}

/// A sketched layout with everything else beside it; laid out well if that can bring it within the budgets, or there are none.
pub(super) fn weighed(request: &Request<'_>, micro_batch: usize, sketch: Plan, budgets: Option<Budgets>) -> Result<Candidate> {
    let rough = finish(request, micro_batch, sketch)?;
    if budgets.is_some_and(|budgets| !rough.might_fit(budgets)) { Ok(rough) } else { rough.tightened(request) }
}

/// Checks a layout and puts everything else that the run holds beside it.
pub(super) fn finish(request: &Request<'_>, micro_batch: usize, memory: Plan) -> Result<Candidate> {
    let memory = CheckedPlan::new(memory)?;
    // Where something is computed again or in pieces, or leaves, the graph is another one: it has to give the same results.
    for (program, (_, graph)) in memory.programs.iter().zip(graphs(request, micro_batch)?) {
        if !program.recomputation.nodes.is_empty() || program.graph.pieces() > 1 || memory.backing > Bytes::ZERO {
            check_equivalence(graph, &program.graph, request.device(), micro_batch)?;
        }
    }
    // A piece has to know how many rows its batch has, and where nobody knows when an epoch ends, only a whole batch says.
    let in_pieces = request.data.training.epoch_rows.is_some() && request.batch.is_multiple_of(micro_batch);
    let feed_rows = if in_pieces { micro_batch } else { request.batch };
    if request.spec.count == Count::WeightsAndActivations {
        let mut fixed = memory.by_owner();
        fixed.retain(|(owner, _)| !matches!(owner, Owner::Optimizer | Owner::GradientSums | Owner::Staging));
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
        let on_host = runtime.map(|owner| (owner, footprint.runtime.host)).into_iter();
        (on_host.chain([(Owner::PinnedStaging, footprint.host_staging)]).collect(), Some(on_device))
    };
    if memory.backing > Bytes::ZERO {
        fixed.push((Owner::Offload, footprint.host_backing));
    }
    fixed.push((Owner::Process, request.machine.process));
    fixed.push((Owner::ThreadStacks, request.machine.thread_stacks));
    // Planning looks at the graphs of every variant that is allowed.
    let looked_at = variants(request, request.allow).len() as u64;
    let graphs = request.programs.footprint(&memory, looked_at);
    fixed.push((Owner::Graphs, graphs));
    fixed.extend(checkpoint_owner(request.spec, memory.states.len()));
    let pipeline = pipelines(request.data, feed_rows, None)?;
    let mut least = fixed.iter().map(|(_, size)| *size).sum::<Bytes>() + pipeline.minimum;
    // Planning is over before the run takes its memory; it counts only where the run takes less.
    let planning = request.machine.process + Bytes(SEARCH_FACTOR * graphs.0);
    if planning > least {
        fixed.push((Owner::Planning, planning - least));
        least = planning;
    }
    Ok(Candidate { micro_batch, variant: request.variant, feed_rows, memory, least, fixed, on_device, written: None })
}

/// What writing checkpoints takes, or reading the state or the weights that a run starts from.
pub(super) fn checkpoint_owner(spec: &RunSpec, states: usize) -> Option<(Owner, Bytes)> {
    let size = match (&spec.fit.checkpoints, &spec.fit.initial_weights) {
        (Some(_), _) => Checkpoints::footprint(states),
        (None, Some(_)) => Checkpoints::document(states),
        (None, None) => return None,
    };
    Some((Owner::Checkpoint, size))
}
