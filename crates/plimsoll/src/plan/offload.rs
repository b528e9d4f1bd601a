//! Candidates with offloading: optimizer state first, then forward values, to pinned host memory or, on a device that
//! shares host memory, to a file.

use super::candidate::{Candidate, candidate, finish, weighed};
use super::recomputation::with_recomputation;
use super::{Budgets, Request};
use crate::allow::Permission;
use crate::error::Result;
use crate::graphs::SMALLEST_OFFLOADED;
use crate::spec::Count;
use plimsoll_core::Bytes;
use plimsoll_core::graph::{StateId, StateKind, ValueId};
use plimsoll_core::plan::offload::{Offloaded, ahead, candidates, renewed_in_place};
use plimsoll_core::step::Role;
use std::cmp::Reverse;
use std::sync::Arc;

/// Number of steps in which the share of offloaded values is varied.
const SHARES: usize = 16;

/// A file is not considered for plans that take at most this many times as long as the run as specified.
const SLOW_WITHOUT: f64 = 1.1;

/// Whether to consider offloading, given how many times as long the fastest plan without it takes. A disk is slow and
/// not always available, so a file is used only if nothing else fits or if everything else is slow.
pub(super) fn considered(request: &Request<'_>, without: Option<f64>) -> bool {
    let possible = request.allow.has(Permission::Offload) && request.spec.count == Count::Everything;
    possible && !(request.device().capabilities().shares_host_memory && without.is_some_and(|times| times <= SLOW_WITHOUT))
}

/// Tensors that may be offloaded.
struct Leaving {
    /// States by priority: optimizer state, then gradient accumulators, each largest first.
    states: Vec<StateId>,
    /// Values per program, largest first.
    values: Vec<Vec<ValueId>>,
}

impl Leaving {
    fn of(request: &Request<'_>, plain: &Candidate) -> Result<Leaving> {
        let known = plain.memory.states.iter().enumerate();
        let rank = |kind: StateKind| match kind {
            StateKind::Optimizer => Some(0),
            StateKind::Accumulator => Some(1),
            _ => None,
        };
        let mut ranked: Vec<_> = known.filter_map(|(i, state)| Some((rank(state.kind)?, Reverse(state.size), StateId(i as u32)))).collect();
        ranked.retain(|(_, Reverse(size), _)| *size >= SMALLEST_OFFLOADED);
        ranked.sort_unstable();
        let states = ranked.into_iter().map(|(.., state)| state).collect();
        let learns = |role: Role| !matches!(role, Role::Evaluate | Role::Predict);
        let values = plain.graphs(request)?.iter().map(|(role, graph)| {
            let large = |(_, size): &(ValueId, Bytes)| *size >= SMALLEST_OFFLOADED && learns(*role);
            candidates(graph, plain.micro_batch).into_iter().filter(large).map(|(value, _)| value).collect()
        });
        let mut leaving = Leaving { values: values.collect(), states };
        if !request.device().capabilities().shares_host_memory {
            leaving.keep_what_is_made_elsewhere(request, plain)?;
        }
        Ok(leaving)
    }

    /// If a step with a non-finite loss cannot be aborted, a state may be offloaded only if its new value reuses the
    /// loaded buffer.
    fn keep_what_is_made_elsewhere(&mut self, request: &Request<'_>, plain: &Candidate) -> Result<()> {
        loop {
            // Which buffer a new value is written to follows from the liveness, however the arena is laid out.
            let memory = self.plan(request, plain, self.states.len(), 0, Some(Budgets::NONE))?.memory;
            let broken = memory.programs.iter().find_map(|program| renewed_in_place(&memory, program).err());
            let Some(name) = broken else { return Ok(()) };
            self.states.retain(|state| memory.states[state.0 as usize].name != name);
        }
    }

    /// Number of states that together have this many bytes.
    fn states_of(&self, plain: &Candidate, bytes: Bytes) -> usize {
        let sizes = self.states.iter().map(|state| plain.memory.states[state.0 as usize].size);
        1 + reaching(sizes, bytes)
    }

    /// Share of the values that has this many bytes in the program with the most.
    fn share_of(&self, request: &Request<'_>, plain: &Candidate, bytes: Bytes) -> Result<usize> {
        let largest = plain.memory.programs.iter().enumerate().max_by_key(|(_, program)| program.arena).map_or(0, |(i, _)| i);
        let graph = &plain.graphs(request)?[largest].1;
        let values = &self.values[largest];
        let count = 1 + reaching(values.iter().map(|value| graph.ty(*value).bytes(plain.micro_batch)), bytes);
        Ok((count * SHARES).div_ceil(values.len().max(1)))
    }

    /// The same micro-batch with the first `states` states and a share of the values offloaded.
    fn plan(&self, request: &Request<'_>, plain: &Candidate, states: usize, share: usize, budgets: Option<Budgets>) -> Result<Candidate> {
        let some = |values: &Vec<ValueId>| values[..(values.len() * share).div_ceil(SHARES)].to_vec();
        let choice = Offloaded { states: self.states[..states].to_vec(), values: self.values.iter().map(some).collect() };
        let written = choice.write(plain.graphs(request)?)?;
        let sketch = choice.sketch(&written, plain.micro_batch, request.device())?;
        Ok(weighed(request, plain.micro_batch, sketch, budgets)?.from(Some(Arc::new(written))))
    }
}

/// Number of sizes before their running sum reaches `bytes`.
fn reaching(sizes: impl Iterator<Item = Bytes>, bytes: Bytes) -> usize {
    let mut sum = Bytes::ZERO;
    sizes
        .take_while(|size| {
            sum += *size;
            sum < bytes
        })
        .count()
}

/// The fastest candidate among the largest micro-batches that fit with offloading: the first on a device with its own
/// memory, otherwise the best of two.
pub(super) fn fastest(request: &Request<'_>, too_large: &[usize], budgets: Budgets) -> Result<Option<Candidate>> {
    let compared = if request.device().capabilities().shares_host_memory { 2 } else { 1 };
    let mut found: Vec<Candidate> = Vec::new();
    for rows in too_large {
        found.extend(fitted(request, &candidate(request, *rows, Some(budgets))?, budgets)?);
        if found.len() == compared {
            break;
        }
    }
    Ok(found.into_iter().min_by(|a, b| a.seconds(request).total_cmp(&b.seconds(request))))
}

/// The same micro-batch with as little offloading as possible, and recomputation if that is allowed and faster. None if
/// it does not fit with everything offloaded.
fn fitted(request: &Request<'_>, plain: &Candidate, budgets: Budgets) -> Result<Option<Candidate>> {
    let leaving = Leaving::of(request, plain)?;
    let all = leaving.states.len();
    let excess = plain.excess(budgets);
    let by_states =
        fewest(all, leaving.states_of(plain, excess), budgets, |states| leaving.plan(request, plain, states, 0, Some(budgets)))?;
    let mut found: Vec<Candidate> = Vec::new();
    if by_states.is_none() {
        let more = excess.saturating_sub(leaving.states.iter().map(|state| plain.memory.states[state.0 as usize].size).sum());
        let guess = leaving.share_of(request, plain, more)?;
        found.extend(fewest(SHARES, guess, budgets, |share| leaving.plan(request, plain, all, share, Some(budgets)))?);
    }
    if !request.device().capabilities().shares_host_memory {
        let guess = leaving.share_of(request, plain, excess)?;
        found.extend(fewest(SHARES, guess, budgets, |share| leaving.plan(request, plain, 0, share, Some(budgets)))?);
    }
    if by_states.is_none() && request.allow.has(Permission::Recompute) {
        let shares: &[usize] = if found.is_empty() { &[0, SHARES] } else { &[0] };
        for share in shares {
            let large = leaving.plan(request, plain, all, *share, Some(budgets))?;
            if let Ok(again) = with_recomputation(request, &large, budgets, request.effort, None)? {
                found.push(again);
                break;
            }
        }
    }
    found.extend(by_states);
    let mut best: Option<(f64, Candidate)> = None;
    for candidate in found {
        let candidate = early(request, candidate, budgets)?;
        let seconds = candidate.seconds(request);
        if best.as_ref().is_none_or(|(least, _)| seconds < *least) {
            best = Some((seconds, candidate));
        }
    }
    Ok(best.map(|(_, candidate)| candidate))
}

/// The candidate with prefetched loads and delayed stores, where there is space.
fn early(request: &Request<'_>, candidate: Candidate, budgets: Budgets) -> Result<Candidate> {
    let Some(limit) = candidate.arena_limit(budgets) else { return Ok(candidate) };
    let memory = ahead(&candidate.memory, request.device(), limit, request.cost_model, request.machine.copy_rate)?;
    let moved = finish(request, candidate.micro_batch, memory)?.from(candidate.written.clone());
    Ok(if moved.fits(budgets) { moved } else { candidate })
}

/// The plan with the smallest number up to `most` that fits, starting from an estimate by bytes.
fn fewest(most: usize, guess: usize, budgets: Budgets, plan: impl Fn(usize) -> Result<Candidate>) -> Result<Option<Candidate>> {
    let guess = guess.clamp(1.min(most), most);
    let mut tried = 0;
    for quarters in [0, 1, 2, 4] {
        let number = guess + (most - guess) * quarters / 4;
        if number > tried {
            let candidate = plan(number)?;
            if candidate.fits(budgets) {
                return Ok(Some(candidate));
            }
            tried = number;
        }
    }
    Ok(None)
}

/// How much of a plan is offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Nothing,
    States,
    StatesAndValues,
}

impl Extent {
    /// All that a request allows, the smallest plans first.
    pub fn allowed(request: &Request<'_>) -> &'static [Extent] {
        if considered(request, None) { &[Extent::StatesAndValues, Extent::States, Extent::Nothing] } else { &[Extent::Nothing] }
    }
}

/// Passes sketches with these extents to `look`, one after the other, and at last the plain one if nothing may be
/// offloaded too.
pub(super) fn sketches(
    request: &Request<'_>,
    plain: Candidate,
    extents: &[Extent],
    mut look: impl FnMut(Candidate) -> Result<()>,
) -> Result<()> {
    if extents != [Extent::Nothing] {
        let leaving = Leaving::of(request, &plain)?;
        let shares = extents.iter().filter_map(|extent| match extent {
            Extent::Nothing => None,
            Extent::States => Some(0),
            Extent::StatesAndValues => Some(SHARES),
        });
        for share in shares {
            look(leaving.plan(request, &plain, leaving.states.len(), share, Some(Budgets::NONE))?)?;
        }
    }
    if extents.contains(&Extent::Nothing) { look(plain) } else { Ok(()) }
}
