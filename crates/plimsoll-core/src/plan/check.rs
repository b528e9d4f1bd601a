//! The independent checker. It shares no code with the planner. It simulates a certificate step by step with a map from
//! bytes to values, and verifies that each read finds the value the graph specifies.

use super::certificate::{Certificate, Claim, Range, Space, Step};
use super::{Plan, Program};
use crate::Bytes;
use crate::ir::graph::{Graph, NodeId, ValueId};
use crate::ir::op::Op;
use crate::ir::verify::verify;
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::Arc;

/// A certificate that failed verification, and the step at which it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan does not hold{}: {what}", if .at.is_empty() { String::new() } else { format!(" at {at}") })]
pub struct CheckError {
    /// Program, step and layer.
    pub at: String,
    /// The violation.
    pub what: String,
}

/// A plan whose certificate was verified. Only the checker constructs one, and only a checked plan can be loaded and
/// run.
///
/// Devices compute addresses from it without further checks, so it guarantees what they rely on, whatever the public
/// fields of the plan hold: its graphs are [verified](crate::verify), every step accesses only ranges inside its
/// memories, and no step overwrites what it or a later step reads.
///
/// Cheap to clone; derefs to [`Plan`].
#[derive(Clone, Debug)]
pub struct CheckedPlan(Arc<Plan>);

impl CheckedPlan {
    /// Checks the plan's certificate against the graphs of its programs.
    pub fn new(plan: Plan) -> Result<CheckedPlan, CheckError> {
        for program in &plan.programs {
            check_certified(program).map_err(|what| CheckError { at: format!("program `{}`", program.role.name()), what })?;
        }
        let graphs: Vec<&Graph> = plan.programs.iter().map(|program| &program.graph).collect();
        check(&plan.certificate(), &graphs)?;
        Ok(CheckedPlan(Arc::new(plan)))
    }

    /// The plan, for modification; it must be checked again before it runs.
    pub fn into_plan(self) -> Plan {
        Arc::unwrap_or_clone(self.0)
    }
}

impl Deref for CheckedPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.0
    }
}

/// Checks that the program's certificate says all that a device reads from the program: a step or a place that the
/// certificate leaves out would not be checked.
fn check_certified(program: &Program) -> Result<(), String> {
    let Program { graph, order, places, workspaces, .. } = program;
    verify(graph).map_err(|error| error.to_string())?;
    if order.len() != workspaces.len() {
        return Err(format!("it has {} steps, but workspaces for {}", order.len(), workspaces.len()));
    }
    if places.len() != graph.value_count() {
        return Err(format!("it has {} values, but places for {}", graph.value_count(), places.len()));
    }
    // A certificate names a view only where a step reads it, and a view of a view not even there.
    for (_, node) in graph.nodes().filter(|(_, node)| node.op.rules().is_view()) {
        let (view, of) = (node.outputs[0], node.inputs[0]);
        if places[view.index()] != places[of.index()] {
            return Err(format!("{view} is a view of {of}, but has another place"));
        }
    }
    Ok(())
}

/// Verifies that a certificate correctly executes `graphs`: one graph per program, in the same order.
pub fn check(certificate: &Certificate, graphs: &[&Graph]) -> Result<(), CheckError> {
    let fail = |what: String| Err(CheckError { at: String::new(), what });
    if graphs.len() != certificate.programs.len() {
        return fail(format!("it has {} programs for {} graphs", certificate.programs.len(), graphs.len()));
    }
    if !certificate.alignment.0.is_power_of_two() {
        return fail(format!("its alignment of {} is not a power of two", certificate.alignment));
    }
    for (i, (name, _, offset, size)) in certificate.states.iter().enumerate() {
        let (limit, memory) = match home(certificate, i) {
            Space::Backing => (certificate.backing, "backing store"),
            _ => (certificate.resident, "resident memory"),
        };
        if !fits(*offset, *size, limit, certificate.alignment) {
            return fail(format!("the state `{name}` lies outside the {memory} or is not aligned"));
        }
    }
    let mut by_offset: Vec<_> = certificate.states.iter().enumerate().map(|(i, state)| (home(certificate, i), state)).collect();
    by_offset.sort_by_key(|(space, (_, _, offset, size))| (*space, *offset, *size));
    for pair in by_offset.windows(2) {
        let ((space, a), (other, b)) = (pair[0], pair[1]);
        if space == other && meet((a.2, a.3), (b.2, b.3)) {
            return fail(format!("the states `{}` and `{}` overlap", b.0, a.0));
        }
    }
    if let Some(wrong) = certificate.stored.iter().find(|state| **state as usize >= certificate.states.len()) {
        return fail(format!("it keeps a state {wrong} in the backing store, but there is none"));
    }
    let mut peak = Bytes::ZERO;
    for (claim, graph) in certificate.programs.iter().zip(graphs) {
        for (i, state) in graph.states().iter().enumerate() {
            let size = state.ty.bytes(certificate.rows);
            if !certificate.states.get(i).is_some_and(|(name, _, _, stated)| *name == state.name && *stated == size) {
                return fail(format!("it has no state {i} named `{}` of {size}", state.name));
            }
        }
        Player::new(certificate, claim, graph).play()?;
        buffers_fit(certificate, claim)?;
        peak = peak.max(most_held(claim));
    }
    if certificate.lower_bound != peak || certificate.arena < peak {
        return fail(format!("it states a bound of {} where {} are held at once", certificate.lower_bound, peak));
    }
    Ok(())
}

/// Every buffer is within its memory and lives for steps that exist, so that no later sum overflows.
fn buffers_fit(certificate: &Certificate, claim: &Claim) -> Result<(), CheckError> {
    let steps = claim.steps.len();
    let in_arena = claim.buffers.iter().map(|(owner, _, offset, size, first, last)| (owner, offset, size, first, last, certificate.arena));
    let stored = claim.stored.iter().map(|(owner, offset, size, first, last)| (owner, offset, size, first, last, certificate.backing));
    for (i, (owner, offset, size, first, last, limit)) in in_arena.chain(stored).enumerate() {
        let what = if !fits(*offset, *size, limit, certificate.alignment) {
            "it lies outside its memory or is not aligned".to_string()
        } else if first > last || *last as usize >= steps {
            format!("it lives from step {first} to {last} of {steps}")
        } else {
            continue;
        };
        return Err(CheckError { at: format!("{} buffer {i} (of `{owner}`)", claim.role.name()), what });
    }
    Ok(())
}

/// The memory space of a state.
pub(super) fn home(certificate: &Certificate, state: usize) -> Space {
    if certificate.stored.contains(&(state as u32)) { Space::Backing } else { Space::Resident }
}

/// The largest sum of simultaneously live claimed buffers.
pub(super) fn most_held(claim: &Claim) -> Bytes {
    let steps = claim.steps.len();
    let mut change = vec![0i128; steps + 1];
    for (_, _, _, size, first, last) in claim.buffers.iter().filter(|b| b.4 <= b.5 && (b.4 as usize) < steps) {
        change[*first as usize] += i128::from(size.0);
        change[(*last as usize + 1).min(steps)] -= i128::from(size.0);
    }
    let mut held = 0;
    let most = change.iter().map(|change| {
        held += change;
        held
    });
    Bytes(u64::try_from(most.max().unwrap_or(0)).unwrap_or(u64::MAX))
}

struct Player<'a> {
    certificate: &'a Certificate,
    claim: &'a Claim,
    graph: &'a Graph,
    /// For each memory space, disjoint byte ranges with their values: start → (end, value).
    contents: BTreeMap<Space, BTreeMap<u64, (u64, u32)>>,
    /// The base of each value (itself, unless it is a view).
    origin: Vec<u32>,
    /// For each step, the buffers whose lifetime starts there.
    claimed: Vec<Vec<usize>>,
    /// For each step, the buffers whose lifetime ended at the step before.
    released: Vec<Vec<usize>>,
    /// The live buffers of the current step, which are disjoint: start → end.
    held: BTreeMap<u64, u64>,
    /// Locations of the states that each value updates.
    becomes: HashMap<u32, Vec<(Space, Bytes)>>,
}

impl<'a> Player<'a> {
    /// Initially memory contains only the batch, the scalars and the states.
    fn new(certificate: &'a Certificate, claim: &'a Claim, graph: &'a Graph) -> Player<'a> {
        let steps = claim.steps.len();
        let (mut claimed, mut released) = (vec![Vec::new(); steps], vec![Vec::new(); steps]);
        for (i, (_, _, _, size, first, last)) in claim.buffers.iter().enumerate() {
            if *size > Bytes::ZERO && first <= last && (*first as usize) < steps {
                claimed[*first as usize].push(i);
                if let Some(released) = released.get_mut((*last as usize).saturating_add(1)) {
                    released.push(i);
                }
            }
        }
        let mut becomes: HashMap<u32, Vec<(Space, Bytes)>> = HashMap::new();
        for (state, value) in graph.updates() {
            if let Some((_, _, offset, _)) = certificate.states.get(state.0 as usize) {
                becomes.entry(value.0).or_default().push((home(certificate, state.0 as usize), *offset));
            }
        }
        let origin = (0..graph.value_count() as u32).collect();
        let mut player =
            Player { certificate, claim, graph, contents: BTreeMap::new(), origin, claimed, released, held: BTreeMap::new(), becomes };
        for (_, node) in graph.nodes() {
            let value = node.outputs[0];
            let size = graph.ty(value).bytes(certificate.rows);
            match node.op {
                Op::Input(id) => player.put(Range { value: value.0, space: Space::Input(id.0), offset: Bytes::ZERO, size }),
                Op::Scalar(id) => player.put(Range { value: value.0, space: Space::Scalars, offset: Bytes(4 * u64::from(id.0)), size }),
                Op::State(id) => {
                    let offset = certificate.states[id.0 as usize].2;
                    player.put(Range { value: value.0, space: home(certificate, id.0 as usize), offset, size });
                }
                _ if node.op.rules().is_view() => player.origin[value.0 as usize] = player.origin[node.inputs[0].0 as usize],
                _ => {}
            }
        }
        player
    }

    fn play(mut self) -> Result<(), CheckError> {
        let mut ran = vec![false; self.graph.nodes().len()];
        for (time, step) in self.claim.steps.iter().enumerate() {
            self.check_step(step, &mut ran).map_err(|what| self.fail(time, what))?;
            self.check_buffers(step, time).map_err(|what| self.fail(time, what))?;
            // Workspace clobbers its bytes.
            self.clear(Space::Arena, step.workspace_offset, step.workspace_size);
            step.writes.iter().for_each(|range| self.put(*range));
        }
        let end = self.claim.steps.len();
        let missing = self
            .graph
            .nodes()
            .find(|(id, node)| !ran[id.0 as usize] && !node.op.is_leaf() && !matches!(node.op, Op::Reshape(_) | Op::ChannelView(_)));
        if let Some((_, node)) = missing {
            return Err(self.fail(end, format!("a {} of layer `{}` never runs", node.op.rules().name(), node.scope)));
        }
        for ((name, range), (wanted, value)) in self.claim.outputs.iter().zip(self.graph.outputs()) {
            if name != wanted || range.value != value.0 {
                return Err(self.fail(end, format!("output {wanted} is not where it says")));
            }
            if !matches!(range.space, Space::Arena | Space::Resident) {
                return Err(self.fail(end, format!("output {wanted} is not in the device's memory")));
            }
            self.holds(range).map_err(|what| self.fail(end, what))?;
        }
        if self.claim.outputs.len() != self.graph.outputs().len() {
            return Err(self.fail(end, "an output is missing".to_string()));
        }
        self.check_states().map_err(|what| self.fail(end, what))
    }

    fn check_step(&self, step: &Step, ran: &mut [bool]) -> Result<(), String> {
        if step.node as usize >= self.graph.nodes().len() {
            return Err(format!("there is no node {}", step.node));
        }
        let node = self.graph.node(NodeId(step.node));
        if step.op != node.op.rules().name() || node.scope != step.scope {
            return Err(format!("node {} is a {} of `{}`", step.node, node.op.rules().name(), node.scope));
        }
        if std::mem::replace(&mut ran[step.node as usize], true) {
            return Err(format!("node {} runs twice", step.node));
        }
        let same = |ranges: &[Range], values: &[ValueId]| ranges.iter().map(|range| range.value).eq(values.iter().map(|value| value.0));
        if !same(&step.reads, &node.inputs) || !same(&step.writes, &node.outputs) {
            return Err("it reads or writes other values than the graph".to_string());
        }
        for range in &step.reads {
            self.holds(range)?;
            if (range.space == Space::Backing) != matches!(node.op, Op::Load(_)) {
                return Err(format!("%{} is read in the backing store by what is no load, or the other way round", range.value));
            }
        }
        for (output, write) in step.writes.iter().enumerate() {
            if matches!(write.space, Space::Input(_) | Space::Scalars) {
                return Err(format!("%{} is written to where only the host writes", write.value));
            }
            self.check_extent(write)?;
            if write.space != Space::Arena {
                self.check_state_write(write)?;
            }
            if (write.space == Space::Backing) != matches!(node.op, Op::Store(_)) {
                return Err(format!("%{} is written to the backing store by what is no store, or the other way round", write.value));
            }
            for (input, read) in step.reads.iter().enumerate().filter(|(_, read)| overlap(write, read)) {
                // A channel view is strided, unless it covers all channels.
                let dense = self.graph.ty(ValueId(read.value)).bytes(self.certificate.rows) == read.size;
                let exact = read.offset == write.offset && read.size == write.size && dense;
                if !exact || !node.op.rules().in_place(input, output) {
                    return Err(format!("%{} is written over %{} while that is read", write.value, read.value));
                }
            }
            if let Some(other) = step.writes[..output].iter().find(|other| overlap(write, other)) {
                return Err(format!("%{} and %{} are written to the same bytes", write.value, other.value));
            }
        }
        let scratch = Range { value: u32::MAX, space: Space::Arena, offset: step.workspace_offset, size: step.workspace_size };
        if scratch.size > Bytes::ZERO {
            if !fits(scratch.offset, scratch.size, self.certificate.arena, self.certificate.alignment) {
                return Err("its scratch lies outside the arena or is not aligned".to_string());
            }
            if let Some(range) = step.reads.iter().chain(&step.writes).find(|range| overlap(range, &scratch)) {
                return Err(format!("its scratch overlaps %{}", range.value));
            }
        } else if scratch.offset > Bytes::ZERO {
            return Err("it has no scratch, but an offset for it".to_string());
        }
        Ok(())
    }

    /// Arena accesses of the step must fall into live buffers, and live buffers must not overlap.
    fn check_buffers(&mut self, step: &Step, time: usize) -> Result<(), String> {
        for buffer in &self.released[time] {
            self.held.remove(&self.claim.buffers[*buffer].2.0);
        }
        for buffer in &self.claimed[time] {
            let (offset, size) = (self.claim.buffers[*buffer].2.0, self.claim.buffers[*buffer].3.0);
            let end = offset.saturating_add(size);
            if self.held.range(..end).next_back().is_some_and(|(_, other)| *other > offset) {
                return Err("two buffers that are held at once overlap".to_string());
            }
            self.held.insert(offset, end);
        }
        let covered = |from: u64, to: u64| self.held.range(..=from).next_back().is_some_and(|(_, end)| to <= *end);
        for range in step.reads.iter().chain(&step.writes).filter(|range| range.space == Space::Arena && range.size > Bytes::ZERO) {
            if !covered(range.offset.0, end(range.offset, range.size)) {
                return Err(format!("%{} is used while no buffer is held for it", range.value));
            }
        }
        if step.workspace_size > Bytes::ZERO && !covered(step.workspace_offset.0, end(step.workspace_offset, step.workspace_size)) {
            return Err("its scratch is used while no buffer is held for it".to_string());
        }
        Ok(())
    }

    /// Resident memory may only be written by the new value of the state stored there. A program could otherwise
    /// corrupt a state that it does not read.
    fn check_state_write(&self, write: &Range) -> Result<(), String> {
        if self.becomes.get(&write.value).is_some_and(|places| places.contains(&(write.space, write.offset))) {
            return Ok(());
        }
        let mut states = self.certificate.states.iter().enumerate();
        let met = |(i, state): &(usize, &(String, String, Bytes, Bytes))| {
            home(self.certificate, *i) == write.space && meet((state.2, state.3), (write.offset, write.size))
        };
        match states.find(met).map(|(_, state)| state) {
            None if write.space == Space::Backing => Ok(()),
            Some((name, ..)) => Err(format!("%{} is written over the state `{name}`", write.value)),
            None => Err(format!("%{} is written to kept memory where no state begins", write.value)),
        }
    }

    /// After the last step, every updated state has its new value and every other state its old one.
    fn check_states(&self) -> Result<(), String> {
        let mut ends: Vec<Option<u32>> = vec![None; self.certificate.states.len()];
        let reads = self.graph.nodes().filter_map(|(_, node)| match node.op {
            Op::State(id) => Some((id, node.outputs[0])),
            _ => None,
        });
        reads.for_each(|(state, value)| {
            ends[state.0 as usize].get_or_insert(value.0);
        });
        for (state, value) in self.graph.updates() {
            ends[state.0 as usize] = Some(value.0);
        }
        for (i, ((name, _, offset, size), value)) in self.certificate.states.iter().zip(ends).enumerate() {
            if let Some(value) = value {
                let range = Range { value, space: home(self.certificate, i), offset: *offset, size: *size };
                self.holds(&range).map_err(|_| format!("`{name}` does not end with its value"))?;
            }
        }
        Ok(())
    }

    /// The value that contains this one's bytes: itself, except for a channel view.
    fn spread(&self, value: u32) -> u32 {
        let producer = self.graph.producer(ValueId(value));
        if let Op::ChannelView(_) = producer.op { producer.inputs[0].0 } else { value }
    }

    /// The size must match the graph; the range must be in bounds and aligned.
    fn check_extent(&self, range: &Range) -> Result<(), String> {
        let size = self.graph.ty(ValueId(self.spread(range.value))).bytes(self.certificate.rows);
        let limit = match range.space {
            Space::Arena => self.certificate.arena,
            Space::Resident => self.certificate.resident,
            Space::Backing => self.certificate.backing,
            Space::Input(_) | Space::Scalars if range.size != size => return Err(format!("%{} has another size", range.value)),
            // A column is read from its start, and a scalar at its own place.
            Space::Input(_) if range.offset == Bytes::ZERO => return Ok(()),
            Space::Scalars if fits(range.offset, range.size, Bytes(4 * self.graph.scalars().len() as u64), Bytes(4)) => return Ok(()),
            Space::Input(_) | Space::Scalars => return Err(format!("%{} is read outside what the host supplies", range.value)),
        };
        if range.size != size || !fits(range.offset, range.size, limit, self.certificate.alignment) {
            return Err(format!("%{} lies outside its memory, is not aligned or has another size than {size}", range.value));
        }
        Ok(())
    }

    /// The whole range must contain the value.
    fn holds(&self, range: &Range) -> Result<(), String> {
        self.check_extent(range)?;
        let value = self.origin[range.value as usize];
        let (mut at, end) = (range.offset.0, end(range.offset, range.size));
        let memory = self.contents.get(&range.space);
        while at < end {
            match memory.and_then(|memory| memory.range(..=at).next_back()) {
                Some((_, (until, held))) if *until > at && *held == value => at = *until,
                Some((_, (until, held))) if *until > at => return Err(format!("%{} is read where %{held} is", range.value)),
                _ => return Err(format!("%{} is read where nothing was written", range.value)),
            }
        }
        Ok(())
    }

    /// Records the value in the range and invalidates previous contents.
    fn put(&mut self, range: Range) {
        self.clear(range.space, range.offset, range.size);
        if range.size > Bytes::ZERO {
            self.contents.entry(range.space).or_default().insert(range.offset.0, (end(range.offset, range.size), range.value));
        }
    }

    fn clear(&mut self, space: Space, offset: Bytes, size: Bytes) {
        let (from, to) = (offset.0, end(offset, size));
        let memory = self.contents.entry(space).or_default();
        // Ranges are disjoint, so a range that starts lower also ends lower.
        let touched: Vec<(u64, (u64, u32))> =
            memory.range(..to).rev().take_while(|(_, (end, _))| *end > from).map(|(start, held)| (*start, *held)).collect();
        for (start, (end, value)) in touched {
            memory.remove(&start);
            if start < from {
                memory.insert(start, (from, value));
            }
            if end > to {
                memory.insert(to, (end, value));
            }
        }
    }

    fn fail(&self, time: usize, what: String) -> CheckError {
        let scope = self.claim.steps.get(time).map_or(String::new(), |step| format!(" ({} of `{}`)", step.op, step.scope));
        CheckError { at: format!("{} step {time}{scope}", self.claim.role.name()), what }
    }
}

/// The end of a range. Numbers in a certificate may overflow; a range that does is outside every memory.
fn end(offset: Bytes, size: Bytes) -> u64 {
    offset.0.saturating_add(size.0)
}

fn overlap(a: &Range, b: &Range) -> bool {
    a.space == b.space && meet((a.offset, a.size), (b.offset, b.size))
}

/// Whether two ranges (offset and size) intersect.
fn meet(a: (Bytes, Bytes), b: (Bytes, Bytes)) -> bool {
    a.0.0 < end(b.0, b.1) && b.0.0 < end(a.0, a.1)
}

fn fits(offset: Bytes, size: Bytes, limit: Bytes, alignment: Bytes) -> bool {
    offset.0.checked_add(size.0).is_some_and(|end| end <= limit.0) && offset.0.is_multiple_of(alignment.0)
}
