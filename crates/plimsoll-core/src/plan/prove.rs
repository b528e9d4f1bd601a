//! Proves from the document alone that a certificate is an unmodified plan of the given graphs on a device.
//!
//! [`check`] verifies that a plan is sound. An edited plan may still be sound, for example with a lifetime that is too
//! long. Here every number and every name must be exactly the one that follows from the steps and the graphs.
//!
//! Rewrites of the graph (splits, offload, concats, recomputation) are repeated with the planner's writers, but not
//! trusted: the [value numbering](check_equivalence) of the checker proves that the result computes the model's graph.
//! How such a rewrite was found is no part of the proof.

use super::certificate::{Certificate, Claim, Space};
use super::check::{CheckError, check, home, most_held};
use super::concat::{fuse_slice_writes, rewrite_concats};
use super::equivalence::check_equivalence;
use super::offload::offload;
use super::recompute::Recomputation;
use super::recompute::write::{Written, write};
use super::split::split;
use super::staging::{SLOT_HEADER, Staging};
use super::updates::{legalise, root};
use super::{Buffer, BufferKind, Place, Plan, Program, Resident};
use crate::ir::graph::{ConcatStrategy, Graph, GraphError, InputId, Node, NodeId, Phase, ScalarId, State, StateId, StateKind, ValueId};
use crate::ir::op::Op;
use crate::plan::Target;
use crate::transform::step::Role;
use crate::{Bytes, verify};
use std::collections::{BTreeMap, HashSet};

/// More pieces than any plan has.
const MAX_PIECES: usize = 1 << 12;

/// Proves that a certificate is an exact plan of these graphs (optimized, one per program, in order) on this device.
/// Returns the plan that it describes, rebuilt from the certificate and the graphs.
pub fn prove(certificate: &Certificate, graphs: &[(Role, Graph)], device: &dyn Target) -> Result<Plan, CheckError> {
    let fail = |at: String, what: String| Err(CheckError { at, what });
    if certificate.rows == 0 {
        return fail(String::new(), "it is for no rows".to_string());
    }
    let roles = |roles: Vec<Role>| roles.into_iter().map(Role::name).collect::<Vec<_>>().join(", ");
    let (claimed, wanted) =
        (roles(certificate.programs.iter().map(|c| c.role).collect()), roles(graphs.iter().map(|(role, _)| *role).collect()));
    if claimed != wanted {
        return fail(String::new(), format!("it has the programs {claimed}, but the model has {wanted}"));
    }
    if certificate.alignment != device.capabilities().alignment {
        return fail(
            String::new(),
            format!("its offsets are multiples of {}, but the device asks for {}", certificate.alignment, device.capabilities().alignment),
        );
    }
    let mut planned: Vec<Written> = Vec::with_capacity(graphs.len());
    for (claim, (role, graph)) in certificate.programs.iter().zip(graphs) {
        let replayed = replay(graph, certificate, claim, device)?;
        check_equivalence(graph, &replayed.graph, device, certificate.rows)
            .map_err(|error| CheckError { at: role.name().to_string(), ..error })?;
        planned.push(replayed);
    }
    check(certificate, &planned.iter().map(|written| &written.graph).collect::<Vec<_>>())?;
    for (claim, written) in certificate.programs.iter().zip(&planned) {
        scratch_is_enough(certificate, claim, &written.graph, device)?;
        lifetimes_are_exact(certificate, claim, &written.graph)?;
        stored_is_exact(certificate, claim)?;
    }
    let states = longest_states(planned.iter().map(|written| &written.graph));
    let staging = states_are_exact(certificate, states, &planned, device)?;
    let end = |ends: &mut dyn Iterator<Item = u64>| Bytes(ends.max().unwrap_or(0)).align_up(certificate.alignment.0);
    // Everything is within its memory, as `check` verified, so that no sum overflows.
    let arena = end(&mut certificate.programs.iter().flat_map(|claim| &claim.buffers).map(|b| b.2.0 + b.3.0));
    if arena != certificate.arena {
        return fail(String::new(), format!("it states an arena of {} where its buffers end at {}", certificate.arena.0, arena.0));
    }
    let there = certificate.stored.iter().map(|i| &certificate.states[*i as usize]).map(|state| state.2.0 + state.3.0);
    let stored = certificate.programs.iter().flat_map(|claim| &claim.stored).map(|b| b.1.0 + b.2.0);
    let backing = end(&mut there.chain(stored));
    if backing != certificate.backing {
        return fail(
            String::new(),
            format!("it states a backing store of {} where what is in it ends at {}", certificate.backing.0, backing.0),
        );
    }
    let states = states.to_vec();
    Ok(described(certificate, planned, &states, staging))
}

/// The longest list of states, which contains those of all programs.
fn longest_states<'a>(graphs: impl Iterator<Item = &'a Graph>) -> &'a [State] {
    graphs.map(|graph| graph.states()).max_by_key(|states| states.len()).unwrap_or_default()
}

/// The states are those of the graphs, each with its owner, packed without gaps, and on a device with its own memory
/// followed by the staging slots, whose bytes are returned.
fn states_are_exact(
    certificate: &Certificate,
    states: &[State],
    planned: &[Written],
    device: &dyn Target,
) -> Result<Option<Bytes>, CheckError> {
    let fail = |what: String| Err(CheckError { at: String::new(), what });
    let align = |size: Bytes| size.align_up(certificate.alignment.0);
    let slots = (!device.capabilities().shares_host_memory).then(|| {
        // Two slots of the columns, a header and the scalars, and an aligned word behind them.
        let slot = |graph: &Graph| {
            let columns: Bytes = graph.inputs().iter().map(|input| align(input.ty.bytes(certificate.rows))).sum();
            align(columns + SLOT_HEADER + Bytes(4) * graph.scalars().len() as u64)
        };
        planned.iter().map(|written| slot(&written.graph)).max().unwrap_or_default() * 2 + certificate.alignment
    });
    let owned = |state: &State| match state.kind {
        StateKind::Parameter | StateKind::Statistic => "weights",
        StateKind::Optimizer => "optimizer",
        StateKind::Accumulator => "gradient sums",
        StateKind::Metric => "metrics",
        StateKind::Mask => "pruning masks",
        StateKind::Teacher => "teacher",
    };
    let named = states.iter().map(|state| (state.name.as_str(), owned(state), state.ty.bytes(1)));
    let wanted: Vec<(&str, &str, Bytes)> = named.chain(slots.map(|size| ("staging", "staging", size))).collect();
    if wanted.len() != certificate.states.len() {
        return fail(format!("it has {} states, but the model has {}", certificate.states.len(), wanted.len()));
    }
    for ((name, owner, _, size), wanted) in certificate.states.iter().zip(&wanted) {
        if (name.as_str(), owner.as_str(), *size) != *wanted {
            let (own, of, bytes) = wanted;
            return fail(format!("it states `{name}` of {owner} with {} bytes, which is `{own}` of {of} with {}", size.0, bytes.0));
        }
    }
    if certificate.stored.windows(2).any(|pair| pair[0] >= pair[1]) {
        return fail("the states in its backing store are not in order".to_string());
    }
    for space in [Space::Resident, Space::Backing] {
        let own = (0..).zip(&certificate.states).filter(|(i, _)| home(certificate, *i) == space).map(|(_, state)| state);
        let (size, last) = own.fold((Bytes::ZERO, 0), |(size, last), state| (size + align(state.3), last.max(state.2.0 + state.3.0)));
        if Bytes(last).align_up(certificate.alignment.0) != size {
            return fail(format!("it states {} of states that end at {last}", size.0));
        }
        if space == Space::Resident && size != certificate.resident {
            return fail(format!("it states {} of states where they end at {}", certificate.resident.0, size.0));
        }
    }
    Ok(slots)
}

/// The plan that a proven certificate describes.
fn described(certificate: &Certificate, planned: Vec<Written>, states: &[State], slots: Option<Bytes>) -> Plan {
    let rows = certificate.rows;
    let staging = slots.map(|slots| {
        let offset = certificate.resident.saturating_sub(slots);
        Staging::new(planned.iter().map(|written| &written.graph), rows, certificate.alignment, offset)
    });
    let programs = certificate.programs.iter().zip(planned).map(|(claim, written)| program(claim, written, rows));
    let states = states.iter().zip(&certificate.states).enumerate().map(|(i, (state, (name, _, offset, size)))| Resident {
        name: name.clone(),
        kind: state.kind,
        size: *size,
        offset: *offset,
        stored: home(certificate, i) == Space::Backing,
    });
    Plan {
        rows,
        programs: programs.collect(),
        states: states.collect(),
        staging,
        resident: certificate.resident,
        arena: certificate.arena,
        lower_bound: certificate.lower_bound,
        alignment: certificate.alignment,
        backing: certificate.backing,
    }
}

/// One program of it. The buffers list no values: the certificate has none.
fn program(claim: &Claim, written: Written, rows: usize) -> Program {
    let Written { graph, repeated, .. } = written;
    let order: Vec<NodeId> = claim.steps.iter().map(|step| NodeId(step.node)).collect();
    let mut places = vec![None; graph.value_count()];
    let accessed =
        claim.steps.iter().flat_map(|step| step.reads.iter().chain(&step.writes)).chain(claim.outputs.iter().map(|(_, range)| range));
    for range in accessed {
        places[range.value as usize] = Some(match range.space {
            Space::Arena => Place::Arena(range.offset),
            Space::Resident => Place::Resident(range.offset),
            Space::Backing => Place::Backing(range.offset),
            Space::Input(column) => Place::Input(InputId(column)),
            Space::Scalars => Place::Scalar(ScalarId((range.offset.0 / 4) as u32)),
        });
    }
    let flops = |nodes: &[NodeId]| nodes.iter().fold(0u64, |sum, id| sum.saturating_add(graph.node_flops(graph.node(*id), rows)));
    let (all, extra_flops) = (flops(&order), flops(&repeated));
    let recomputation = Recomputation {
        flops: all.saturating_sub(extra_flops),
        extra_flops,
        sequence: claim.sequence.clone(),
        nodes: repeated.into_iter().filter(|id| !matches!(graph.node(*id).op, Op::Load(_))).collect(),
        ..Recomputation::default()
    };
    let buffer =
        |owner: &String, kind, offset, size, first, last| Buffer { kind, owner: owner.into(), values: vec![], size, first, last, offset };
    Program {
        role: claim.role,
        workspaces: claim.steps.iter().map(|step| (step.workspace_offset, step.workspace_size)).collect(),
        buffers: claim
            .buffers
            .iter()
            .map(|(owner, kind, offset, size, first, last)| buffer(owner, *kind, *offset, *size, *first, *last))
            .collect(),
        lower_bound: most_held(claim),
        arena: claim.buffers.iter().map(|b| b.2 + b.3).max().unwrap_or_default(),
        stored: claim
            .stored
            .iter()
            .map(|(owner, offset, size, first, last)| buffer(owner, BufferKind::Activation, *offset, *size, *first, *last))
            .collect(),
        offloaded: claim.offloaded.iter().copied().map(ValueId).collect(),
        order,
        places,
        recomputation,
        graph,
    }
}

/// The graph that a claim refers to: the model's graph with the claimed recomputation, splits and offloading applied.
fn replay(graph: &Graph, certificate: &Certificate, claim: &Claim, device: &dyn Target) -> Result<Written, CheckError> {
    let fail = |what: String| CheckError { at: claim.role.name().to_string(), what };
    let wrong = |error: GraphError| fail(error.to_string());
    let states: Vec<StateId> = certificate.stored.iter().copied().map(StateId).collect();
    let values: Vec<ValueId> = claim.offloaded.iter().copied().map(ValueId).collect();
    for (list, what) in [(&claim.offloaded, "offloads"), (&claim.joined, "joins")] {
        if list.iter().collect::<HashSet<_>>().len() != list.len() {
            return Err(fail(format!("it {what} a value twice")));
        }
    }
    let graph = match claim.pieces {
        1 => graph.clone(),
        pieces if pieces > MAX_PIECES => {
            return Err(fail(format!("it states layers computed in {pieces} pieces, but this graph cannot be cut so")));
        }
        pieces => {
            let cut = split(graph, certificate.rows, device, pieces);
            cut.ok_or_else(|| fail(format!("it states layers computed in {pieces} pieces, but this graph cannot be cut so")))?
        }
    };
    // Where one program offloads something, all of them were written for it.
    let offloads = !states.is_empty() || certificate.programs.iter().any(|claim| !claim.offloaded.is_empty());
    let graph = if offloads { offload(&graph, &states, &values).map_err(wrong)? } else { graph };
    let joined: Vec<ValueId> = claim.joined.iter().copied().map(ValueId).collect();
    let is_concat = |value: &ValueId| value.index() < graph.values.len() && matches!(graph.producer(*value).op, Op::Concat(_));
    if let Some(value) = joined.iter().find(|value| claim.joining == ConcatStrategy::Copy || !is_concat(value)) {
        return Err(fail(format!("it joins {value}, which is no concat that is written slice by slice")));
    }
    let graph = match claim.joining {
        ConcatStrategy::Copy => graph,
        how => rewrite_concats(&graph, how, &joined, device)
            .ok_or_else(|| fail("it states that concats are written slice by slice, but this graph has none".to_string()))?,
    };
    let graph = match claim.concats_fused {
        false => graph,
        true => fuse_slice_writes(&graph, device)
            .ok_or_else(|| fail("it states that slice writes are fused, but this device fuses none".to_string()))?,
    };
    let graph = legalise(&graph).map_err(wrong)?;
    verify(&graph).map_err(wrong)?;
    if claim.sequence.is_empty() {
        return Ok(Written { graph, order: Vec::new(), repeated: Vec::new() });
    }
    // Reject sequences that cannot be written before writing them.
    let mut made = vec![false; graph.values.len()];
    for (_, node) in graph.nodes().filter(|(_, node)| node.op.is_leaf()) {
        node.outputs.iter().for_each(|output| made[output.index()] = true);
    }
    for (i, id) in claim.sequence.iter().enumerate() {
        let Some(node) = graph.nodes.get(*id as usize).filter(|node| !node.op.is_leaf() && !node.op.rules().is_view()) else {
            return Err(fail(format!("entry {i} of its sequence is {id}, which is nothing that runs")));
        };
        if let Some(read) = node.inputs.iter().find(|input| !made[root(&graph, **input).index()]) {
            let (op, scope) = (node.op.rules().name(), &node.scope);
            return Err(fail(format!("entry {i} of its sequence, {op} of `{scope}`, reads %{} before that is made", read.0)));
        }
        node.outputs.iter().for_each(|output| made[output.index()] = true);
    }
    if let Some((_, value)) = graph.outputs.iter().find(|(_, value)| !made[root(&graph, *value).index()]) {
        return Err(fail(format!("its sequence never makes the output %{}", value.0)));
    }
    if let Some((state, _)) = graph.updates.iter().find(|(_, value)| !made[root(&graph, *value).index()]) {
        return Err(fail(format!("its sequence never changes `{}`", graph.states()[state.0 as usize].name)));
    }
    let written = write(&graph, &claim.sequence);
    if written.repeated.is_empty() {
        return Err(fail("it has a sequence, but nothing in it is recomputed".to_string()));
    }
    Ok(written)
}

/// Every kernel has the workspace it requires.
fn scratch_is_enough(certificate: &Certificate, claim: &Claim, graph: &Graph, device: &dyn Target) -> Result<(), CheckError> {
    for (time, step) in claim.steps.iter().enumerate() {
        let asked = device.workspace(graph, graph.node(NodeId(step.node)), certificate.rows).align_up(certificate.alignment.0);
        if asked != step.workspace_size {
            let at = format!("{} step {time} ({} of `{}`)", claim.role.name(), step.op, step.scope);
            return Err(CheckError {
                at,
                what: format!("it states {} of scratch where the kernel asks for {}", step.workspace_size.0, asked.0),
            });
        }
    }
    Ok(())
}

/// Every buffer in the backing store starts at the step that stores it, ends at the last step that loads it, and has
/// the size of its contents.
fn stored_is_exact(certificate: &Certificate, claim: &Claim) -> Result<(), CheckError> {
    let kept: Vec<Bytes> = certificate.stored.iter().map(|state| certificate.states[*state as usize].2).collect();
    let mut pieces: Vec<(&str, Bytes, Bytes, u32, u32)> = Vec::new();
    for (time, step) in (0..).zip(&claim.steps) {
        for range in step.reads.iter().filter(|range| range.space == Space::Backing) {
            if let Some(piece) = pieces.iter_mut().rev().find(|piece| piece.1 == range.offset) {
                piece.4 = time;
            }
        }
        let writes = step.writes.iter().filter(|range| range.space == Space::Backing && !kept.contains(&range.offset));
        pieces.extend(writes.map(|range| (step.scope.as_str(), range.offset, range.size.align_up(certificate.alignment.0), time, time)));
    }
    let stated: Vec<(&str, Bytes, Bytes, u32, u32)> =
        claim.stored.iter().map(|piece| (piece.0.as_str(), piece.1, piece.2, piece.3, piece.4)).collect();
    match stated.iter().zip(&pieces).position(|(stated, found)| stated != found) {
        None if stated.len() == pieces.len() => Ok(()),
        at => {
            let at = at.unwrap_or(stated.len().min(pieces.len()));
            let what = format!("piece {at} of what it stores is {:?}, but its steps make that {:?}", stated.get(at), pieces.get(at));
            Err(CheckError { at: claim.role.name().to_string(), what })
        }
    }
}

/// Every buffer starts at the first step that accesses it, ends at the last one, or with the program if the host reads
/// it, has the size of its contents, and the owner and kind of what is written to it first.
fn lifetimes_are_exact(certificate: &Certificate, claim: &Claim, graph: &Graph) -> Result<(), CheckError> {
    let mut begins: Vec<Vec<usize>> = vec![Vec::new(); claim.steps.len()];
    let mut fail_at = None;
    for (i, buffer) in claim.buffers.iter().enumerate() {
        match begins.get_mut(buffer.4 as usize) {
            Some(begins) if buffer.4 <= buffer.5 && (buffer.5 as usize) < claim.steps.len() => begins.push(i),
            _ => fail_at = fail_at.or(Some((i, format!("it lives from step {} to {}", buffer.4, buffer.5)))),
        }
    }
    // For each buffer, the first and last access and the end of its contents.
    let mut touched: Vec<Option<(u32, u32, u64)>> = vec![None; claim.buffers.len()];
    let mut held: BTreeMap<u64, usize> = BTreeMap::new();
    let touch = |held: &BTreeMap<u64, usize>, touched: &mut Vec<Option<(u32, u32, u64)>>, offset: Bytes, size: Bytes, time: u32| {
        if let Some((_, buffer)) = held.range(..=offset.0).next_back()
            && size > Bytes::ZERO
        {
            let (first, _, end) = touched[*buffer].unwrap_or((time, time, 0));
            touched[*buffer] = Some((first, time, end.max(offset.0 + size.0)));
        }
    };
    for (time, step) in claim.steps.iter().enumerate() {
        held.retain(|_, buffer| claim.buffers[*buffer].5 as usize >= time);
        held.extend(begins[time].iter().filter(|i| claim.buffers[**i].3 > Bytes::ZERO).map(|i| (claim.buffers[*i].2.0, *i)));
        for range in step.reads.iter().chain(&step.writes).filter(|range| range.space == Space::Arena) {
            touch(&held, &mut touched, range.offset, range.size, time as u32);
        }
        touch(&held, &mut touched, step.workspace_offset, step.workspace_size, time as u32);
    }
    let end = claim.steps.len().saturating_sub(1) as u32;
    for (_, range) in claim.outputs.iter().filter(|(_, range)| range.space == Space::Arena) {
        touch(&held, &mut touched, range.offset, range.size, end);
    }
    for (i, (buffer, touched)) in claim.buffers.iter().zip(&touched).enumerate().filter(|(_, (buffer, _))| buffer.3 > Bytes::ZERO) {
        let what = match touched {
            None => "nothing ever uses it".to_string(),
            Some((first, last, _)) if (*first, *last) != (buffer.4, buffer.5) => {
                format!("it is held from step {} to {}, but used from {first} to {last}", buffer.4, buffer.5)
            }
            Some((.., end)) if Bytes(*end).align_up(certificate.alignment.0).0 != buffer.2.0 + buffer.3.0 => {
                format!("it has {} bytes where what is in it takes {}", buffer.3.0, end - buffer.2.0)
            }
            Some(_) => match contents(claim, i, graph) {
                Some((owner, kind)) if owner != buffer.0 || kind != buffer.1 => {
                    format!("it is stated as {:?}, but has {kind:?} of `{owner}`", buffer.1)
                }
                _ => continue,
            },
        };
        if fail_at.as_ref().is_none_or(|(first, _)| i < *first) {
            fail_at = Some((i, what));
        }
        break;
    }
    match fail_at {
        Some((i, what)) => Err(CheckError { at: format!("{} buffer {i} (of `{}`)", claim.role.name(), claim.buffers[i].0), what }),
        None => Ok(()),
    }
}

/// The layer and the kind of what a buffer holds first: the workspace or an output of the step at which it becomes
/// live.
fn contents<'a>(claim: &'a Claim, buffer: usize, graph: &Graph) -> Option<(&'a str, BufferKind)> {
    let (_, _, offset, size, first, _) = &claim.buffers[buffer];
    let step = claim.steps.get(*first as usize)?;
    let within = |at: Bytes| *offset <= at && at.0 < offset.0 + size.0;
    if step.workspace_size > Bytes::ZERO && within(step.workspace_offset) {
        return Some((&step.scope, BufferKind::Workspace));
    }
    let node: &Node = graph.node(NodeId(step.node));
    let kind = match node.op {
        Op::Load(_) => BufferKind::Loaded,
        _ if node.phase == Phase::Forward => BufferKind::Activation,
        _ => BufferKind::Gradient,
    };
    step.writes.iter().any(|write| write.space == Space::Arena && within(write.offset)).then_some((step.scope.as_str(), kind))
}
