//! Proves from the document alone that a certificate is an unmodified plan of the given graphs on a device.
//!
//! [`check`] verifies that a plan is sound. An edited plan may still be sound, for example with a lifetime that is too
//! long. Here every number must be exactly the one that follows from the steps.

use super::certificate::{Certificate, Claim, Space};
use super::check::{CheckError, check};
use super::concat::{fuse_slice_writes, rewrite_concats};
use super::equivalence::check_equivalence;
use super::offload::offload;
use super::recompute::write::write;
use super::split::split;
use super::updates::{legalise, root};
use crate::ir::graph::{ConcatStrategy, Graph, GraphError, NodeId, StateId, ValueId};
use crate::plan::Target;
use crate::transform::step::Role;
use crate::{Bytes, verify};
use std::collections::BTreeMap;

/// Proves that a certificate is an exact plan of these graphs (optimized, one per program, in order) on this device.
pub fn prove(certificate: &Certificate, graphs: &[(Role, Graph)], device: &dyn Target) -> Result<(), CheckError> {
    let fail = |at: String, what: String| Err(CheckError { at, what });
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
    let mut planned = Vec::with_capacity(graphs.len());
    for (claim, (role, graph)) in certificate.programs.iter().zip(graphs) {
        let replayed = replay(graph, certificate, claim, device)?;
        check_equivalence(graph, &replayed, device, certificate.rows)
            .map_err(|error| CheckError { at: role.name().to_string(), ..error })?;
        planned.push(replayed);
    }
    check(certificate, &planned.iter().collect::<Vec<_>>())?;
    for (claim, graph) in certificate.programs.iter().zip(&planned) {
        scratch_is_enough(certificate, claim, graph, device)?;
        lifetimes_are_exact(certificate, claim)?;
        stored_is_exact(certificate, claim)?;
    }
    let end = |ends: &mut dyn Iterator<Item = u64>| Bytes(ends.max().unwrap_or(0)).align_up(certificate.alignment.0);
    let arena = end(&mut certificate.programs.iter().flat_map(|claim| &claim.buffers).map(|b| b.2.0 + b.3.0));
    if arena != certificate.arena {
        return fail(String::new(), format!("it states an arena of {} where its buffers end at {}", certificate.arena.0, arena.0));
    }
    let (there, here): (Vec<_>, Vec<_>) = (0..).zip(&certificate.states).partition(|(i, _)| certificate.stored.contains(i));
    let resident = end(&mut here.iter().map(|(_, state)| state.2.0 + state.3.0));
    if resident != certificate.resident {
        return fail(String::new(), format!("it states {} of states where they end at {}", certificate.resident.0, resident.0));
    }
    let stored = certificate.programs.iter().flat_map(|claim| &claim.stored).map(|b| b.1.0 + b.2.0);
    let backing = end(&mut there.iter().map(|(_, state)| state.2.0 + state.3.0).chain(stored));
    if backing != certificate.backing {
        return fail(
            String::new(),
            format!("it states a backing store of {} where what is in it ends at {}", certificate.backing.0, backing.0),
        );
    }
    Ok(())
}

/// The graph that a claim refers to: the model's graph with the claimed recomputation, splits and offloading applied.
fn replay(graph: &Graph, certificate: &Certificate, claim: &Claim, device: &dyn Target) -> Result<Graph, CheckError> {
    let fail = |what: String| CheckError { at: claim.role.name().to_string(), what };
    let wrong = |error: GraphError| fail(error.to_string());
    let states: Vec<StateId> = certificate.stored.iter().copied().map(StateId).collect();
    let values: Vec<ValueId> = claim.offloaded.iter().copied().map(ValueId).collect();
    let graph = match claim.pieces {
        1 => graph.clone(),
        pieces => {
            let cut = split(graph, certificate.rows, device, pieces);
            cut.ok_or_else(|| fail(format!("it states layers computed in {pieces} pieces, but this graph cannot be cut so")))?
        }
    };
    let graph = if states.is_empty() && values.is_empty() { graph } else { offload(&graph, &states, &values).map_err(wrong)? };
    let joined: Vec<ValueId> = claim.joined.iter().copied().map(ValueId).collect();
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
        return Ok(graph);
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
    Ok(write(&graph, &claim.sequence).graph)
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
    let mut pieces: Vec<(Bytes, Bytes, u32, u32)> = Vec::new();
    for (time, step) in (0..).zip(&claim.steps) {
        for range in step.reads.iter().filter(|range| range.space == Space::Backing) {
            if let Some(piece) = pieces.iter_mut().rev().find(|piece| piece.0 == range.offset) {
                piece.3 = time;
            }
        }
        let writes = step.writes.iter().filter(|range| range.space == Space::Backing && !kept.contains(&range.offset));
        pieces.extend(writes.map(|range| (range.offset, range.size.align_up(certificate.alignment.0), time, time)));
    }
    let stated: Vec<(Bytes, Bytes, u32, u32)> = claim.stored.iter().map(|piece| (piece.1, piece.2, piece.3, piece.4)).collect();
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
/// it, and has the size of its contents.
fn lifetimes_are_exact(certificate: &Certificate, claim: &Claim) -> Result<(), CheckError> {
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
            Some(_) => continue,
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
