//! The statement of a plan file, derived from its certificate, its configuration, its data and its assumptions. It
//! shares no code with the search for a plan; only sizes that are formulas by themselves (stages of a pipeline, a
//! checkpoint's document, heap per node, what a device takes beside its buffers) are asked for where the run itself
//! asks for them.

use super::assumptions::Stated;
use super::pipelines;
use super::subject::{Proven, Subject};
use super::untrue;
use crate::allow::Permission;
use crate::error::Result;
use crate::graphs::GAPS_OF_SEARCH;
use crate::plan::{checkpoint_owner, history_owner, mask_update_owner};
use crate::ranks::Shard;
use crate::spec::Count;
use plimsoll_core::graph::Graph;
use plimsoll_core::op::Op;
use plimsoll_core::plan::{BufferKind, Certificate, Claim, Program, Space};
use plimsoll_core::step::Role;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Bytes by owner.
type Owners = BTreeMap<String, u64>;

/// What a plan has to state.
pub(super) struct Statement {
    pub document: Value,
    pub host_peak: u64,
    pub host_budget: u64,
    pub device_peak: u64,
}

/// The numbers that the plan repeats from its certificate. Compared first, as that needs no graphs.
pub(super) fn matches_certificate(plan: &Map<String, Value>, certificate: &Certificate) -> Result<()> {
    let stated = [
        ("arena_bytes", certificate.arena.0),
        ("lower_bound_bytes", certificate.lower_bound.0),
        ("resident_bytes", certificate.resident.0),
        ("offload_bytes", certificate.backing.0),
        ("micro_batch", certificate.rows as u64),
    ];
    stated.into_iter().try_for_each(|(key, certified)| compare(key, plan.get(key).unwrap_or(&Value::Null), &json!(certified)))
}

/// Compares what a plan states with what follows, and names the first difference.
pub(super) fn compare(path: &str, stated: &Value, derived: &Value) -> Result<()> {
    let below = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match (stated, derived) {
        (Value::Object(stated), Value::Object(derived)) => {
            let keys = derived.keys().chain(stated.keys().filter(|key| !derived.contains_key(*key)));
            keys.into_iter().try_for_each(|key| match (stated.get(key), derived.get(key)) {
                (Some(stated), Some(derived)) => compare(&below(key), stated, derived),
                (None, Some(derived)) => Err(untrue(format!("the plan does not state {}, which is {derived}", below(key)))),
                (stated, _) => Err(untrue(format!("the plan states {} = {}, which it does not have", below(key), json!(stated)))),
            })
        }
        _ if stated == derived => Ok(()),
        _ => Err(untrue(format!("the plan states {path} = {stated}, but it is {derived}"))),
    }
}

/// Derives the statement. Claims that no certificate can prove are taken from the plan, after a check of their form and
/// bounds.
pub(super) fn derive(
    subject: &Subject,
    stated: &Map<String, Value>,
    assumptions: &Stated,
    certificate: &Certificate,
    proven: &Proven,
) -> Result<Statement> {
    let spec = &subject.spec;
    let device = &subject.opened.device;
    let footprint = device.footprint(&proven.plan);
    assumptions.verify(spec, &subject.data, &subject.opened, &footprint)?;
    let pieces = subject.batch.div_ceil(certificate.rows);
    // A micro-batch needs the size of its batch; where an epoch may end anywhere, only a whole batch tells.
    let fed_in_pieces = spec.ranks == 1 && subject.data.training.epoch_rows.is_some() && subject.batch.is_multiple_of(certificate.rows);
    let feed_rows = if fed_in_pieces { certificate.rows } else { subject.batch };
    let memory = in_memory(certificate)?;
    let weights = memory.get("weights").copied().unwrap_or(0);
    let host_budget = spec.budget.host.map(|bytes| bytes.0).or(assumptions.free_host_bytes).unwrap_or(0);
    let device_budget = spec.budget.device.map(|bytes| bytes.0).or(assumptions.free_device_bytes).unwrap_or(0);

    let (mut host, mut on_device): (Owners, Option<Owners>) = (Owners::new(), None);
    let (minimum_host, pipeline);
    if spec.count == Count::WeightsAndActivations {
        host = memory;
        host.retain(|owner, _| !["optimizer", "gradient sums", "pruning masks", "staging"].contains(&&owner[..]));
        minimum_host = weights;
        pipeline = pipelines::stages(&subject.data, feed_rows, None)?;
    } else {
        let process = assumptions.process_bytes.unwrap_or(0);
        let unavoidable = match (&assumptions.runtime, device.capabilities().runtime) {
            (Some(taken), Some(runtime)) => {
                let mut owners = memory;
                insert(&mut owners, runtime.name, taken.device_bytes)?;
                if spec.ranks > 1 {
                    insert(&mut owners, "communication", assumptions.device_communication_bytes)?;
                }
                on_device = Some(owners);
                insert(&mut host, runtime.name, taken.host_bytes)?;
                insert(&mut host, "pinned staging", footprint.host_staging.0)?;
                taken.host_bytes
            }
            _ => {
                host = memory;
                weights
            }
        };
        if certificate.backing.0 > 0 {
            insert(&mut host, "offload", footprint.host_backing.0)?;
        }
        insert(&mut host, "process", process)?;
        insert(&mut host, "thread stacks", assumptions.thread_stacks_bytes)?;
        if spec.ranks > 1 {
            insert(&mut host, "communication", assumptions.communication_bytes)?;
        }
        insert(&mut host, "graphs", proven.graphs)?;
        if let Some((owner, size)) = checkpoint_owner(spec, proven.plan.states.len()) {
            insert(&mut host, &owner.to_string(), size.0)?;
        }
        if let Some((owner, size)) = history_owner(spec, &proven.interface) {
            insert(&mut host, &owner.to_string(), size.0)?;
        }
        if let Some((owner, size)) = mask_update_owner(&proven.interface) {
            insert(&mut host, &owner.to_string(), size.0)?;
        }
        let run = add(total(&host)?, pipelines::minimum(&subject.data, feed_rows)?)?;
        // Planning ends before the run allocates; it counts only if it takes more memory than the run.
        let beside = add(run, page_tables(run))?.saturating_sub(process);
        let without_search = proven.planning_as_specified.filter(|(_, search)| beside <= *search);
        let gaps = if without_search.is_some() { 0 } else { GAPS_OF_SEARCH.0 };
        insert(&mut host, "graphs", gaps)?;
        let run = add(run, gaps)?;
        let run = add(run, page_tables(run))?;
        let planning = without_search.map_or(proven.planning, |(heap, _)| heap);
        let planning = add(process, add(planning, page_tables(planning))?)?;
        if planning > run {
            insert(&mut host, "planning", planning - run)?;
        }
        minimum_host = add(add(process, assumptions.thread_stacks_bytes)?, unavoidable)?;
        // Planning has page tables of its own, and ends before the run allocates.
        let beyond = planning.saturating_sub(run);
        let least = pipelines::minimum(&subject.data, feed_rows)?;
        let held = add(total(&host)?, least)? - beyond;
        let taken = add(held, add(page_tables(held), beyond)?)?;
        let spare = host_budget.checked_sub(taken);
        let spare = spare.ok_or_else(|| untrue(format!("it takes {taken} bytes at least, and the budget is {host_budget}")))?;
        let rest = add(least, spare.saturating_sub(page_tables(spare)))?;
        pipeline = pipelines::stages(&subject.data, feed_rows, Some(rest))?;
        insert(&mut host, "pipeline", pipeline.iter().try_fold(0, |sum, (_, size)| add(sum, *size))?)?;
        let held = total(&host)? - beyond;
        insert(&mut host, "page tables", page_tables(held))?;
    }
    host.retain(|_, size| *size > 0);
    on_device.iter_mut().for_each(|owners| owners.retain(|_, size| *size > 0));
    let (host_peak, device_peak) = (total(&host)?, on_device.as_ref().map_or(Ok(0), total)?);
    for (peak, budget, space) in [(host_peak, host_budget, "host memory"), (device_peak, device_budget, "device memory")] {
        if peak > budget {
            return Err(untrue(format!("it takes {peak} bytes of {space}, and the budget is {budget}")));
        }
    }

    let again = proven.plan.programs.iter().map(|program| &program.recomputation).max_by_key(|again| again.extra_flops);
    let recomputed = again.map_or(0, |again| again.nodes.len());
    let ratio = again.map_or(0.0, |again| again.extra_flops as f64 / again.flops.max(1) as f64);
    let flops = proven.plan.programs.first().map_or(0, |program| program.recomputation.flops);
    let flops = (flops / certificate.rows as u64).checked_mul(subject.batch as u64).ok_or_else(too_large)?;
    let split = certificate.programs.iter().zip(&proven.plan.programs).find(|(claim, _)| claim.pieces > 1);
    let mut used: Vec<Permission> = Vec::new();
    used.extend((recomputed > 0).then_some(Permission::Recompute));
    used.extend((certificate.backing.0 > 0).then_some(Permission::Offload));
    used.extend(split.map(|_| Permission::Split));
    if pieces > 1 {
        used.push(Permission::Microbatch);
    }
    let local = pieces > 1 || (spec.ranks > 1 && !proven.synchronized);
    used.extend((local && proven.batch_statistics).then_some(Permission::MicrobatchBatchnorm));
    used.extend(subject.variant.permissions());
    // Micro-batches that were asked for need no permission.
    let given = |permission: Permission| {
        subject.micro_batch.is_some() && matches!(permission, Permission::Microbatch | Permission::MicrobatchBatchnorm)
    };
    if let Some(permission) = used.iter().find(|permission| !spec.allow.has(**permission) && !given(**permission)) {
        return Err(untrue(format!("it uses {}, which its configuration does not allow", permission.name())));
    }
    let names: Vec<&str> = used.iter().map(|permission| permission.name()).collect();

    let document = json!({
        "feasible": true,
        "model": spec.model.title(),
        "device": device.name(),
        "count": spec.count.name(),
        "batch": match spec.ranks {
            1 => subject.batch,
            _ => subject.data.training.batch_rows()?,
        },
        "ranks": spec.ranks,
        "shard": if spec.sharding().is_some() { spec.parallel.shard } else { Shard::None }.name(),
        "peak_bytes": { "host": host_peak, "device": device_peak },
        "host_budget_bytes": host_budget,
        "device_budget_bytes": on_device.as_ref().map(|_| device_budget),
        "device_promised_bytes": null,
        "device_by_owner": on_device.as_ref(),
        "min_device_bytes": on_device.as_ref().map(|_| claimed(stated, "min_device_bytes", weights, device_budget)).transpose()?,
        "promised_bytes": null,
        "arena_bytes": certificate.arena.0,
        "lower_bound_bytes": certificate.lower_bound.0,
        "resident_bytes": certificate.resident.0,
        "micro_batch": certificate.rows,
        "reproducible": spec.parallel.reproducible,
        "accumulation_steps": pieces,
        "precision": proven.precision.name(),
        "optimizer_state_bits": if subject.variant.state { 8 } else { 32 },
        "results_unchanged": !proven.sums_reordered && !used.iter().any(|permission| permission.changes_results()),
        "sums_reordered": proven.sums_reordered,
        "allow": spec.allow.to_string(),
        "used": names,
        "choices": choices(stated, &names)?,
        "recompute_flops_ratio": as_written(ratio),
        "recomputed": recomputed,
        "split": split.map(|(claim, program)| split_layers(stated, claim, &program.graph)).transpose()?,
        "offload_bytes": certificate.backing.0,
        "offload_copied_bytes": copied(certificate, &proven.plan.programs, pieces)?,
        "predicted_step_s": duration(stated, "predicted_step_s")?,
        "predicted_by": predicted_by(stated)?,
        "by_owner": host,
        "pipeline": pipeline.into_iter().collect::<Owners>(),
        "min_bytes": claimed(stated, "min_bytes", minimum_host, host_budget)?,
        "flops_per_step": flops,
        "plan_ms": duration(stated, "plan_ms")?,
    });
    Ok(Statement { document, host_peak, host_budget, device_peak })
}

/// Bytes of the kernel's page tables for memory of a process: an entry of 8 bytes for each page of 4 KiB.
fn page_tables(memory: u64) -> u64 {
    8 * memory.div_ceil(4096)
}

/// The resident memory and the arena by owner: states by theirs, buffers by their kind at the first step with the
/// largest sum.
fn in_memory(certificate: &Certificate) -> Result<Owners> {
    let mut owners = Owners::new();
    for (i, (_, owner, _, size)) in (0..).zip(&certificate.states) {
        if !certificate.stored.contains(&i) {
            insert(&mut owners, owner, size.align_up(certificate.alignment.0).0)?;
        }
    }
    let mut largest: Option<(u128, &Claim, u32)> = None;
    for claim in &certificate.programs {
        let (held, step) = peak(claim);
        if largest.is_none_or(|(most, ..)| held >= most) {
            largest = Some((held, claim, step));
        }
    }
    let mut in_use = 0;
    if let Some((_, claim, step)) = largest {
        for (_, kind, _, size, ..) in claim.buffers.iter().filter(|buffer| buffer.4 <= step && step <= buffer.5) {
            let owner = match kind {
                BufferKind::Activation => "activations",
                BufferKind::Gradient => "gradients",
                BufferKind::Loaded => "loaded",
                BufferKind::Workspace => "workspace",
            };
            insert(&mut owners, owner, size.0)?;
            in_use = add(in_use, size.0)?;
        }
    }
    let gaps = certificate.arena.0.checked_sub(in_use).ok_or_else(|| untrue("its arena is smaller than what is in it"))?;
    insert(&mut owners, "fragmentation", gaps)?;
    owners.retain(|_, size| *size > 0);
    Ok(owners)
}

/// The largest sum of live buffers of a program, and the first step that has it.
fn peak(claim: &Claim) -> (u128, u32) {
    let mut starts: BTreeMap<u32, i128> = BTreeMap::new();
    for (.., size, first, last) in &claim.buffers {
        *starts.entry(*first).or_default() += i128::from(size.0);
        *starts.entry(last.saturating_add(1)).or_default() -= i128::from(size.0);
    }
    let (mut held, mut most) = (0i128, (0i128, 0));
    for (step, change) in starts {
        held += change;
        if held > most.0 {
            most = (held, step);
        }
    }
    (most.0.unsigned_abs(), most.1)
}

/// Bytes that a whole batch copies to the backing store and back.
fn copied(certificate: &Certificate, programs: &[Program], pieces: usize) -> Result<u64> {
    let of = |role: Role| -> Result<u64> {
        let Some((claim, _)) = certificate.programs.iter().zip(programs).find(|(claim, _)| claim.role == role) else { return Ok(0) };
        let ranges = claim.steps.iter().flat_map(|step| step.reads.iter().chain(&step.writes));
        ranges.filter(|range| range.space == Space::Backing).try_fold(0, |sum, range| add(sum, range.size.0))
    };
    match pieces as u64 {
        1 => of(Role::Step),
        pieces => {
            let middle = of(Role::Middle)?.checked_mul(pieces - 2).ok_or_else(too_large)?;
            add(add(of(Role::First)?, middle)?, of(Role::Last)?)
        }
    }
}

/// The split of the first program that has one: the layers with slices of the batch or of their rows. What it saves is
/// a claim.
fn split_layers(stated: &Map<String, Value>, claim: &Claim, graph: &Graph) -> Result<Value> {
    let mut layers: Vec<&str> = Vec::new();
    for (_, node) in graph.nodes() {
        let cuts = match &node.op {
            Op::Slice(op) => graph.shape(node.inputs[0]).dims()[op.axis].is_batch(),
            _ => graph.effective_op(node).result(graph).shape.dims().first().is_some_and(|dim| dim.part().is_some()),
        };
        if cuts && !layers.contains(&&*node.scope) {
            layers.push(&node.scope);
        }
    }
    let saved = stated.get("split").and_then(|split| split.get("saved_bytes")?.as_u64());
    let saved = saved.ok_or_else(|| untrue("the plan does not state what its split saves"))?;
    Ok(json!({ "layers": layers, "pieces": claim.pieces, "saved_bytes": saved }))
}

/// What each strategy saved and cost: claims about other plans, for strategies that this one uses.
fn choices(stated: &Map<String, Value>, used: &[&str]) -> Result<Value> {
    let wrong = || untrue("the plan states `choices` that it did not make");
    let list = stated.get("choices").and_then(Value::as_array).ok_or_else(wrong)?;
    let copy = |choice: &Value| {
        let names: Vec<&str> = choice["used"].as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?;
        let right = !names.is_empty() && names.iter().all(|name| used.contains(name));
        let numbers =
            json!({ "used": names, "saved_bytes": choice["saved_bytes"].as_i64()?, "added_step_s": choice["added_step_s"].as_f64()? });
        right.then_some(numbers)
    };
    list.iter().map(copy).collect::<Option<Vec<Value>>>().map(Value::Array).ok_or_else(wrong)
}

/// A claimed minimum: at most the budget that this plan fits, at least what every plan takes.
fn claimed(stated: &Map<String, Value>, key: &str, least: u64, most: u64) -> Result<u64> {
    let found = stated.get(key).and_then(Value::as_u64).filter(|bytes| (least..=most).contains(bytes));
    found.ok_or_else(|| untrue(format!("the plan states {key} = {}, but it is between {least} and {most}", json!(stated.get(key)))))
}

/// A time, which is no part of the proof.
fn duration(stated: &Map<String, Value>, key: &str) -> Result<Value> {
    let time = stated.get(key).filter(|time| time.as_f64().is_some_and(|time| time >= 0.0));
    time.cloned().ok_or_else(|| untrue(format!("the plan states {key} = {}, which is no time", json!(stated.get(key)))))
}

/// Where predictions come from.
fn predicted_by(stated: &Map<String, Value>) -> Result<Value> {
    let source = stated.get("predicted_by").filter(|source| **source == "measured speeds" || **source == "built-in rates");
    source.cloned().ok_or_else(|| untrue("the plan does not state where its predictions come from"))
}

/// A number as it is read back from a document.
fn as_written(number: f64) -> Value {
    serde_json::from_str(&json!(number).to_string()).unwrap_or(Value::Null)
}

fn insert(owners: &mut Owners, owner: &str, size: u64) -> Result<()> {
    let entry = owners.entry(owner.to_string()).or_default();
    *entry = add(*entry, size)?;
    Ok(())
}

fn total(owners: &Owners) -> Result<u64> {
    owners.values().try_fold(0, |sum, size| add(sum, *size))
}

fn add(a: u64, b: u64) -> Result<u64> {
    a.checked_add(b).ok_or_else(too_large)
}

fn too_large() -> crate::Error {
    untrue("its numbers are larger than any memory")
}
