//! The search for the fastest way to fit: whole batches if they fit, else pieces, or values computed again, or both; whatever is
//! predicted to take the least time.

use super::offload;
use super::pipelines::{Pipelines, pipelines};
use super::split::{described, planned_graphs};
use super::{Count, DeviceLine, HOST, Infeasible, OFFLOAD, Request, RunPlan, Taken, Variant};
use crate::allow::{Allow, Permission};
use crate::checkpoint::Checkpoints;
use crate::error::{Error, Result};
use crate::system;
use plimsoll_core::plan::recompute::{self, Again, Effort, FitError};
use plimsoll_core::plan::{self, Certificate, Plan, check, check_same, layout};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Graph};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

/// Searches for what is only a hint.
const GLANCE: Effort = Effort(2_000_000);

/// Searches for the least that works.
pub(in crate::trainer) const THOROUGH: Effort = Effort(20_000_000);

/// How many ways of computing again are compared before the fastest is taken.
const COMPARED: usize = 2;

/// How often an arena is made a little smaller because what is computed again takes memory by itself.
const ADJUSTMENTS: usize = 4;

/// One way to cut the batch, laid out and checked.
#[derive(Clone)]
pub(super) struct Candidate {
    pub micro_batch: usize,
    variant: Variant,
    feed_rows: usize,
    pub memory: Arc<Plan>,
    /// The smallest total this way can have.
    pub least: Bytes,
    fixed: Vec<(String, Bytes)>,
    /// What stands under the device's own line, if it has one.
    on_device: Option<Vec<(String, Bytes)>>,
    /// The graphs it was laid out from, if they are not the model's own: with layers in pieces, or copies to and from elsewhere in them.
    pub written: Option<Arc<Vec<(Role, Graph)>>>,
}

/// The lines of a run.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub host: Bytes,
    pub device: Bytes,
}

impl Lines {
    pub fn of(request: &Request<'_>) -> Lines {
        Lines {
            host: request.budget.host.unwrap_or_else(system::available_memory),
            device: request.budget.device.or_else(|| request.device.available()).unwrap_or_default(),
        }
    }
}

impl Candidate {
    fn device_total(&self) -> Bytes {
        self.on_device.iter().flatten().map(|(_, size)| *size).sum()
    }

    pub fn fits(&self, lines: Lines) -> bool {
        self.least <= lines.host && self.device_total() <= lines.device
    }

    /// By how much it is over its line.
    pub fn excess(&self, lines: Lines) -> Bytes {
        match &self.on_device {
            Some(_) => self.device_total().saturating_sub(lines.device),
            None => self.least.saturating_sub(lines.host),
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
    pub fn arena_limit(&self, lines: Lines) -> Option<Bytes> {
        let (own, line) = match &self.on_device {
            Some(_) if self.least > lines.host => return None,
            Some(_) => (self.device_total(), lines.device),
            None => (self.least, lines.host),
        };
        let others = Bytes(own.0 - self.memory.arena.0);
        (others < line).then(|| Bytes((line.0 - others.0) / self.memory.alignment.0 * self.memory.alignment.0))
    }

    /// Predicted seconds of a whole batch.
    pub fn seconds(&self, request: &Request<'_>) -> f64 {
        let (pace, rate) = (request.pace, request.copy_rate);
        let of = |role: Role, rows: usize| self.memory.program(role).map_or(0.0, |program| program.seconds(rows, pace, rate));
        match request.batch.div_ceil(self.micro_batch) {
            1 => of(Role::Step, request.batch),
            pieces => {
                let middle = (pieces - 2) as f64 * of(Role::Middle, self.micro_batch);
                of(Role::First, self.micro_batch) + middle + of(Role::Last, self.micro_batch)
            }
        }
    }

    /// Whether nothing was done to the largest pieces.
    fn untouched(&self, whole: &Candidate) -> bool {
        self.micro_batch == whole.micro_batch && self.again().nodes.is_empty() && self.memory.backing == Bytes::ZERO && !self.is_cut()
    }

    /// Whether layers are computed in pieces of their rows.
    pub fn is_cut(&self) -> bool {
        self.memory.programs.iter().any(|program| program.graph.pieces() > 1)
    }

    /// What the program that computes most again computes again.
    pub fn again(&self) -> Again {
        let programs = self.memory.programs.iter().map(|program| &program.again);
        programs.max_by_key(|again| again.extra_flops).cloned().unwrap_or_default()
    }
}

/// Two predictions that differ by less than this do not decide whether the result may change.
const WORTH_CHANGING: f64 = 0.98;

/// Finds the fastest plan that stays under the lines.
pub(in crate::trainer) fn plan_run(request: &Request<'_>) -> Result<RunPlan> {
    let (start, lines) = (Instant::now(), Lines::of(request));
    let mut chosen: Option<(Request<'_>, Candidate, Vec<Candidate>)> = None;
    let mut asked: Option<Candidate> = None;
    for variant in variants(request, request.allow) {
        let request = varied(request, variant)?;
        let (whole, found) = fastest(&request, lines)?;
        let asked = &*asked.get_or_insert_with(|| whole.clone());
        // What was asked for and fits as it is stays as it is.
        let done = variant == Variant::default() && found.as_ref().is_some_and(|found| found.untouched(&whole));
        if let Some(found) = found {
            let faster = |(known, best, _): &(Request<'_>, Candidate, _)| found.seconds(&request) < WORTH_CHANGING * best.seconds(known);
            if chosen.as_ref().is_none_or(faster) {
                let on_the_way = if variant == Variant::default() { vec![whole] } else { vec![asked.clone(), whole] };
                chosen = Some((request, found, on_the_way));
            }
        }
        if done {
            break;
        }
    }
    match chosen {
        Some((request, candidate, on_the_way)) => {
            let taken = choices(&request, &candidate, on_the_way)?;
            described(&request, RunPlan { taken, ..run_plan(&request, lines, candidate, start)? })
        }
        None => {
            // What would be said to be the least is taken if it is enough.
            let request = &Request { in_pieces: request.allow.has(Permission::Split), ..request.clone() };
            let least = smallest(request, lines, request.allow)?;
            if least.fits(lines) {
                let request = varied(request, least.variant)?;
                return described(&request, run_plan(&request, lines, least, start)?);
            }
            Err(Error::Infeasible(Box::new(infeasible(request, lines, least, start)?)))
        }
    }
}

/// What each choice saved and cost, from what was asked for on: fewer bits, then smaller pieces, then layers in pieces, computing again and leaving.
fn choices(request: &Request<'_>, chosen: &Candidate, on_the_way: Vec<Candidate>) -> Result<Vec<Taken>> {
    let mut way: Vec<(Vec<Permission>, Candidate)> =
        on_the_way.into_iter().map(|whole| (whole.variant.permissions().collect(), whole)).collect();
    let last = &way[way.len() - 1].1;
    let again = (!chosen.again().nodes.is_empty()).then_some(Permission::Recompute);
    let elsewhere = (chosen.memory.backing > Bytes::ZERO).then_some(Permission::Offload);
    let cut = chosen.is_cut().then_some(Permission::Split);
    let more: Vec<Permission> = cut.into_iter().chain(again).chain(elsewhere).collect();
    if chosen.micro_batch != last.micro_batch {
        let pieces = if more.is_empty() { chosen.clone() } else { candidate(request, chosen.micro_batch)? };
        way.push((vec![Permission::Microbatch], pieces));
    }
    if !more.is_empty() {
        way.push((more, chosen.clone()));
    }
    let weigh = |candidate: &Candidate| -> Result<(Bytes, f64)> {
        let bytes = if candidate.on_device.is_some() { candidate.device_total() } else { candidate.least };
        Ok((bytes, candidate.seconds(&varied(request, candidate.variant)?)))
    };
    let weighed = way.iter().map(|(permissions, candidate)| Ok((permissions, weigh(candidate)?))).collect::<Result<Vec<_>>>()?;
    let step = |pair: &[(&Vec<Permission>, (Bytes, f64))]| {
        let ((_, before), (permissions, after)) = (&pair[0], &pair[1]);
        Taken { permissions: permissions.to_vec(), before: *before, after: *after }
    };
    Ok(weighed.windows(2).map(step).collect())
}

/// The variants that may be chosen under some permissions.
fn variants(request: &Request<'_>, allow: Allow) -> Vec<Variant> {
    if request.settled { vec![request.variant] } else { request.variants.allowed(allow).collect() }
}

/// The same run in another variant.
fn varied<'a>(request: &Request<'a>, variant: Variant) -> Result<Request<'a>> {
    let (programs, precision) = (request.variants.programs(variant)?, request.variants.learning(variant).precision);
    Ok(Request { programs, variant, precision, ..request.clone() })
}

/// The largest pieces of one variant as they are, and its fastest plan that stays under the lines: with its heaviest layers in pieces of their rows, or with
/// tensors that leave, where that is allowed and faster.
fn fastest(request: &Request<'_>, lines: Lines) -> Result<(Candidate, Option<Candidate>)> {
    let (plain, too_large) = fastest_as_written(request, lines)?;
    let whole = too_large.first().or(plain.as_ref()).expect("there is always a way to try").clone();
    if plain.as_ref().is_some_and(|found| found.untouched(&whole)) {
        return Ok((whole, plain));
    }
    let in_pieces = Request { in_pieces: true, ..request.clone() };
    let (cut, too_large_cut) = match planned_graphs(&in_pieces, request.batch)? {
        Cow::Owned(_) if request.allow.has(Permission::Split) => fastest_as_written(&in_pieces, lines)?,
        // It is not allowed, or there is nothing to cut.
        _ => (None, Vec::new()),
    };
    let faster = |a: Option<Candidate>, b: Option<Candidate>| match (a, b) {
        (Some(a), Some(b)) => Some(if b.seconds(request) < a.seconds(request) { b } else { a }),
        (a, b) => a.or(b),
    };
    let mut found = faster(plain, cut);
    if offload::considered(request, found.is_some()) {
        let mut elsewhere = offload::fastest(request, &too_large, lines)?;
        if elsewhere.is_none() && !too_large_cut.is_empty() {
            elsewhere = offload::fastest(&in_pieces, &too_large_cut, lines)?;
        }
        found = faster(found, elsewhere);
    }
    Ok((whole, found))
}

/// The fastest plan in which nothing leaves, with the layers as the request has them; and the pieces that are too large as they are.
fn fastest_as_written(request: &Request<'_>, lines: Lines) -> Result<(Option<Candidate>, Vec<Candidate>)> {
    let mut too_large: Vec<Candidate> = Vec::new();
    let mut chosen: Option<Candidate> = None;
    for micro_batch in ways(request, request.allow) {
        let candidate = candidate(request, micro_batch)?;
        if candidate.fits(lines) {
            chosen = Some(candidate);
            break;
        }
        too_large.push(candidate);
    }
    if request.allow.has(Permission::Recompute) {
        let mut compared = 0;
        for large in &too_large {
            if let Ok(again) = computed_again(request, large, lines, Effort::default(), None)? {
                let faster = chosen.as_ref().is_none_or(|chosen| again.seconds(request) < chosen.seconds(request));
                chosen = if faster { Some(again) } else { chosen };
                compared += 1;
            }
            if compared == COMPARED {
                break;
            }
        }
    }
    Ok((chosen, too_large))
}

/// The same pieces with values computed again, if that is enough; else the smallest arena that was found.
pub(super) fn computed_again(
    request: &Request<'_>,
    large: &Candidate,
    lines: Lines,
    effort: Effort,
    from: Option<&Candidate>,
) -> Result<Result<Candidate, Option<Bytes>>> {
    let Some(mut limit) = large.arena_limit(lines) else { return Ok(Err(None)) };
    for _ in 0..ADJUSTMENTS {
        let found = within(request, large, limit, effort, from)?;
        match &found {
            // Repetitions are nodes too, which take heap: what that is more than before comes off the arena.
            Ok(again) if !again.fits(lines) => match again.arena_limit(lines) {
                Some(less) if less < limit => limit = less,
                _ => return Ok(Err(None)),
            },
            _ => return Ok(found),
        }
    }
    Ok(Err(None))
}

/// The same pieces in an arena of this size, or the smallest one that was found.
pub(super) fn within(
    request: &Request<'_>,
    large: &Candidate,
    limit: Bytes,
    effort: Effort,
    from: Option<&Candidate>,
) -> Result<Result<Candidate, Option<Bytes>>> {
    let graphs = large.graphs(request)?;
    match recompute::refit(&large.memory, graphs, request.device, limit, request.pace, effort, from.map(|from| &*from.memory)) {
        Ok(plan) => Ok(Ok(finish(request, large.micro_batch, plan)?.from(large.written.clone()))),
        Err(FitError::TooSmall { least, .. }) => Ok(Err(Some(least))),
        Err(FitError::Graph(error)) => Err(error.into()),
    }
}

/// Proves a certificate against the graphs it has to be a plan of.
pub(in crate::trainer) fn prove(request: &Request<'_>, certificate: &Certificate) -> Result<()> {
    let wrong = |what: String| Err(Error::Config(what));
    if certificate.rows == 0 || certificate.rows > request.batch {
        return wrong(format!("the plan does not hold: it is for {} rows of a batch of {}", certificate.rows, request.batch));
    }
    // Which of the allowed variants it is a plan of is found by trying; what is wrong is told of the one that was asked for.
    let mut first = None;
    for variant in variants(request, request.allow) {
        let request = varied(request, variant)?;
        match plan::prove(certificate, graphs(&request, certificate.rows)?, request.device) {
            Ok(()) => return Ok(()),
            Err(error) => first = first.or(Some(error.to_string())),
        }
    }
    // Not the planner's fault: the file is not what was planned.
    wrong(first.unwrap_or_default())
}

pub(super) fn graphs<'a>(request: &Request<'a>, micro_batch: usize) -> Result<&'a [(Role, Graph)]> {
    if micro_batch == request.batch { Ok(&request.programs.whole) } else { Ok(request.programs.accumulating()?) }
}

/// The smallest plan under some permissions, found by search and laid out. Of the variants that are allowed, the one with the fewest bits is the smallest; of the ways
/// to cut the batch, that into the fewest rows, or none, which needs no sums of gradients.
fn smallest(request: &Request<'_>, lines: Lines, allow: Allow) -> Result<Candidate> {
    let mut ways = ways(request, allow);
    ways.drain(1..ways.len().max(2) - 1);
    let fewest = variants(request, allow).pop().unwrap_or_default();
    let request = &Request { allow, ..varied(request, fewest)? };
    let mut best: Option<Candidate> = None;
    // What leaves a device is on the host: as long as that has room, only the device counts.
    let size = |candidate: &Candidate| match candidate.on_device {
        Some(_) => (candidate.least.saturating_sub(lines.host), candidate.device_total(), candidate.least),
        None => (Bytes::ZERO, Bytes::ZERO, candidate.least),
    };
    let keep = |found: Candidate, best: &mut Option<Candidate>| {
        if best.as_ref().is_none_or(|best| size(&found) < size(best)) {
            *best = Some(found);
        }
    };
    for rows in &ways {
        let plain = candidate(request, *rows)?;
        keep(if allow.has(Permission::Recompute) { least_again(request, plain)? } else { plain }, &mut best);
    }
    if offload::considered(request, false) {
        let mut ends: Vec<usize> = best.iter().map(|best| best.micro_batch).chain(ways.last().copied()).collect();
        ends.dedup();
        for rows in ends {
            offload::smallest(request, allow, &candidate(request, rows)?)?.into_iter().for_each(|found| keep(found, &mut best));
        }
    }
    Ok(best.expect("there is always the whole batch to try"))
}

/// The same pieces in the smallest arena that computing again can give them.
pub(super) fn least_again(request: &Request<'_>, plain: Candidate) -> Result<Candidate> {
    // Asked for the impossible, the search says the least that it found; asked for that, it must give it.
    let mut limit = match within(request, &plain, Bytes::ZERO, request.effort, None)? {
        Err(Some(least)) => least,
        _ => return Ok(plain),
    };
    for _ in 0..8 {
        match within(request, &plain, limit, request.effort, None)? {
            Ok(found) if found.least + found.device_total() < plain.least + plain.device_total() => return Ok(found),
            Err(Some(least)) if least < plain.memory.arena => limit = least.max(Bytes(limit.0 + limit.0 / 64)),
            _ => break,
        }
    }
    Ok(plain)
}

/// Why there is no plan, and what would do.
pub(super) fn infeasible(request: &Request<'_>, lines: Lines, least: Candidate, start: Instant) -> Result<Infeasible> {
    let pipeline = pipelines(request, least.feed_rows, None)?;
    let on_host = least.least > lines.host || least.on_device.is_none();
    let own = |candidate: &Candidate| if on_host { candidate.least } else { candidate.device_total() };
    let mut least_with = Vec::new();
    let more = [
        request.allow.with(Permission::Split),
        request.allow.with(Permission::Recompute),
        request.allow.with(Permission::Microbatch),
        request.allow.with(Permission::Microbatch).with(Permission::MicrobatchBatchnorm),
        request.allow.with(Permission::Recompute).with(Permission::Microbatch).with(Permission::MicrobatchBatchnorm),
        request.allow.with(Permission::MixedPrecision),
        request.allow.with(Permission::MixedPrecision).with(Permission::State8bit),
        request.allow.with(Permission::Offload),
        request.allow.with(Permission::Recompute).with(Permission::Microbatch).with(Permission::Offload),
    ];
    for allow in more {
        // A permission that opens nothing new need not be tried.
        let opens =
            variants(request, allow).len() > variants(request, request.allow).len() || ways(request, allow) != ways(request, request.allow);
        let newly = |permission: Permission| allow.has(permission) && !request.allow.has(permission);
        let opens = opens || newly(Permission::Recompute) || newly(Permission::Offload) || newly(Permission::Split);
        // Nor one beside another that already opens as much.
        let mixed = request.allow.with(Permission::MixedPrecision);
        let opens = opens && (!newly(Permission::State8bit) || variants(request, allow).len() > variants(request, mixed).len());
        if opens && !least_with.iter().any(|(known, _)| *known == allow) {
            // Hints need not be the very least.
            let request = Request { in_pieces: allow.has(Permission::Split), effort: GLANCE, ..request.clone() };
            let with = own(&smallest(&request, lines, allow)?);
            if with < own(&least) {
                least_with.push((allow, with));
            }
        }
    }
    let (space, line, owners) = match &least.on_device {
        Some(owners) if !on_host => (format!("memory of {}", request.device.name()), lines.device, sorted(owners)),
        _ => (HOST.to_string(), lines.host, owners(request, &least, &pipeline)),
    };
    Ok(Infeasible {
        space,
        line,
        least: own(&least),
        owners,
        micro_batch: least.micro_batch,
        batch: request.batch,
        micro_batch_asked: request.micro_batch.is_some(),
        allow: request.allow,
        least_with,
        plan_ms: start.elapsed().as_secs_f64() * 1e3,
    })
}

pub(super) fn run_plan(request: &Request<'_>, lines: Lines, candidate: Candidate, start: Instant) -> Result<RunPlan> {
    // Buffers only shrink with the rows, so nothing between the chosen pieces and single rows needs less than both.
    let (least, least_on_device) = match ways(request, request.allow).last() {
        Some(rows) if *rows < candidate.micro_batch => {
            let smallest = self::candidate(request, *rows)?;
            (candidate.least.min(smallest.least), candidate.device_total().min(smallest.device_total()))
        }
        _ => (candidate.least, candidate.device_total()),
    };
    let fixed: Bytes = candidate.fixed.iter().map(|(_, size)| *size).sum();
    let left = match request.count {
        Count::Everything => Some(lines.host - fixed),
        Count::WeightsAndActivations => None,
    };
    let pipeline = pipelines(request, candidate.feed_rows, left)?;
    let again = candidate.again();
    let step = &candidate.memory.programs[0];
    let flops = step.again.flops / candidate.micro_batch as u64 * request.batch as u64;
    let pieces = request.batch.div_ceil(candidate.micro_batch);
    let mut used = Vec::new();
    if !again.nodes.is_empty() {
        used.push(Permission::Recompute);
    }
    if candidate.memory.backing > Bytes::ZERO {
        used.push(Permission::Offload);
    }
    if candidate.is_cut() {
        used.push(Permission::Split);
    }
    if pieces > 1 {
        used.push(Permission::Microbatch);
        if request.programs.batch_statistics {
            used.push(Permission::MicrobatchBatchnorm);
        }
    }
    used.extend(candidate.variant.permissions());
    Ok(RunPlan {
        model: request.model.to_string(),
        device: (request.device.name(), request.device.description()),
        batch: request.batch,
        micro_batch: candidate.micro_batch,
        micro_batch_asked: request.micro_batch.is_some(),
        line: lines.host,
        line_given: request.budget.host.is_some(),
        promised: None,
        owners: owners(request, &candidate, &pipeline),
        least,
        may_cut: ways(request, request.allow).len() > 1,
        device_memory: candidate.on_device.as_ref().map(|owners| DeviceLine {
            line: lines.device,
            given: request.budget.device.is_some(),
            promised: None,
            owners: sorted(owners),
            least: least_on_device,
        }),
        flops,
        predicted_s: candidate.seconds(request),
        by_measured_speeds: request.measured,
        split: None,
        again,
        precision: request.precision,
        allow: request.allow,
        taken: Vec::new(),
        small_state: candidate.variant.state,
        variant: candidate.variant,
        results_unchanged: !used.iter().any(|permission| permission.changes_results()),
        used,
        count: request.count,
        plan_ms: start.elapsed().as_secs_f64() * 1e3,
        memory: candidate.memory,
        pipeline_stages: pipeline.stages,
        pipeline: pipeline.training,
        validation: pipeline.validation,
        feed_rows: candidate.feed_rows,
    })
}

/// The micro-batches to try, largest first. Those the planner picks divide the batch, so that the pipeline can deliver them one by one.
pub(super) fn ways(request: &Request<'_>, allow: Allow) -> Vec<usize> {
    let cut = allow.has(Permission::Microbatch) && (!request.programs.batch_statistics || allow.has(Permission::MicrobatchBatchnorm));
    match request.micro_batch {
        Some(rows) => vec![rows.clamp(1, request.batch)],
        None if cut => divisors(request.batch),
        None => vec![request.batch],
    }
}

/// The divisors of a number, largest first.
fn divisors(number: usize) -> Vec<usize> {
    let small: Vec<usize> = (1..).take_while(|n| n * n <= number).filter(|n| number.is_multiple_of(*n)).collect();
    let mut all: Vec<usize> = small.iter().map(|n| number / n).chain(small.iter().rev().copied()).collect();
    all.dedup();
    all
}

/// The batch in pieces of this size, everything kept that is needed again.
pub(super) fn candidate(request: &Request<'_>, micro_batch: usize) -> Result<Candidate> {
    let graphs = planned_graphs(request, micro_batch)?;
    let plain = finish(request, micro_batch, layout(&graphs, micro_batch, request.device)?)?;
    Ok(match graphs {
        Cow::Borrowed(_) => plain,
        Cow::Owned(written) => plain.from(Some(Arc::new(written))),
    })
}

/// Checks a layout and puts everything else that the run holds beside it.
pub(super) fn finish(request: &Request<'_>, micro_batch: usize, memory: Plan) -> Result<Candidate> {
    let planned: Vec<&Graph> = memory.programs.iter().map(|program| &program.graph).collect();
    check(&memory.certificate(), &planned)?;
    // Where something is computed again or in pieces, or leaves, the graph is another one: it has to give the same results.
    for (program, (_, graph)) in memory.programs.iter().zip(graphs(request, micro_batch)?) {
        if !program.again.nodes.is_empty() || program.graph.pieces() > 1 || memory.backing > Bytes::ZERO {
            check_same(graph, &program.graph, request.device, micro_batch)?;
        }
    }
    let feed_rows = if request.batch.is_multiple_of(micro_batch) { micro_batch } else { request.batch };
    if request.count == Count::WeightsAndActivations {
        let mut fixed = memory.by_owner();
        fixed.retain(|(name, _)| !matches!(name.as_str(), "optimiser" | "gradient sums" | "staging"));
        let least = fixed.iter().map(|(_, size)| *size).sum();
        return Ok(Candidate {
            micro_batch,
            variant: request.variant,
            feed_rows,
            memory: Arc::new(memory),
            least,
            fixed,
            on_device: None,
            written: None,
        });
    }
    let overhead = request.device.overhead(&memory);
    let (mut fixed, on_device) = if request.device.shares_host_memory() {
        (memory.by_owner(), None)
    } else {
        let mut on_device = memory.by_owner();
        on_device.push(("CUDA itself".to_string(), overhead.device));
        let staging = request.device.host_staging(&memory);
        (vec![("CUDA itself".to_string(), overhead.host), ("pinned staging".to_string(), staging)], Some(on_device))
    };
    if memory.backing > Bytes::ZERO {
        fixed.push((OFFLOAD.to_string(), request.device.host_backing(&memory)));
    }
    fixed.push(("process".to_string(), system::process_footprint()));
    fixed.push(("thread stacks".to_string(), request.thread_stacks));
    // Planning looks at the graphs of every variant that is allowed.
    let looked_at = variants(request, request.allow).len() as u64;
    fixed.push(("graphs".to_string(), request.programs.footprint(&memory, looked_at)));
    if request.checkpointed {
        fixed.push(("checkpoint".to_string(), Checkpoints::footprint(memory.states.len())));
    }
    let pipeline = pipelines(request, feed_rows, None)?;
    let least = fixed.iter().map(|(_, size)| *size).sum::<Bytes>() + pipeline.minimum;
    Ok(Candidate { micro_batch, variant: request.variant, feed_rows, memory: Arc::new(memory), least, fixed, on_device, written: None })
}

fn owners(request: &Request<'_>, candidate: &Candidate, pipeline: &Pipelines) -> Vec<(String, Bytes)> {
    let mut owners = candidate.fixed.clone();
    if request.count == Count::Everything {
        owners.push(("pipeline".to_string(), pipeline.stages.iter().map(|(_, size)| *size).sum()));
    }
    sorted(&owners)
}

/// Those that hold something, largest first.
fn sorted(owners: &[(String, Bytes)]) -> Vec<(String, Bytes)> {
    let mut owners = owners.to_vec();
    owners.retain(|(_, size)| *size > Bytes::ZERO);
    owners.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    owners
}
