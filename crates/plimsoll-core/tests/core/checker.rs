//! The independent checker refuses every way in which a certificate can be damaged, and says what is wrong.

use crate::support::{PAPER, parameter};
use plimsoll_core::expr::{Expr, Unary};
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::passes::remove_dead;
use plimsoll_core::plan::{BufferKind, Certificate, CheckedPlan, Claim, Place, Plan, Range, Space, Step, check, layout};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Dim, Graph, GraphError, Shape, TensorType};

/// Two layers, a residual, a changed state and one that only another program knows.
fn network() -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32(Shape::batch_of([16])));
    let w = parameter(&mut graph, "w", Shape::fixed([16, 16]))?;
    let rate = graph.scalar("rate");
    graph.state("momentum", StateKind::Optimizer, TensorType::f32(Shape::fixed([16, 16])), Init::Constant(0.0))?;
    let hidden = graph.in_scope("first", |g| {
        let product = g.matmul(x, w)?;
        g.unary(Unary::Tanh, product)
    })?;
    let second = graph.in_scope("second", |g| g.matmul(hidden, w))?;
    let sum = graph.plus(second, hidden)?;
    let shrunk = Expr::build(|e| e.sub(e.input(0), e.mul(e.input(0), e.input(1))));
    let change = graph.in_scope("w", |g| g.pointwise(shrunk, &[w, rate]))?;
    graph.update(StateId(0), change);
    graph.output("hidden", hidden);
    graph.output("sum", sum);
    Ok(remove_dead(&graph))
}

fn certificate() -> (Certificate, Graph) {
    let plan = layout(&[(Role::Step, network().unwrap())], 4, &PAPER).unwrap();
    (plan.certificate(), plan.programs[0].graph.clone())
}

/// What the checker says about a damaged certificate.
fn refused(damage: impl FnOnce(&mut Certificate)) -> String {
    let (mut certificate, graph) = certificate();
    damage(&mut certificate);
    check(&certificate, &[&graph]).expect_err("the damage went unnoticed").to_string()
}

fn claim(certificate: &mut Certificate) -> &mut Claim {
    &mut certificate.programs[0]
}

fn step_of<'a>(certificate: &'a mut Certificate, op: &str, scope: &str) -> &'a mut Step {
    claim(certificate).steps.iter_mut().find(|step| step.op == op && step.scope == scope).expect("the network has such a step")
}

/// Moves a value, and the buffer it is in, everywhere in the certificate.
fn relocate(certificate: &mut Certificate, value: u32, to: Bytes) {
    let claim = claim(certificate);
    let steps = claim.steps.iter_mut().flat_map(|step| step.reads.iter_mut().chain(&mut step.writes));
    let mut from = Bytes::ZERO;
    for range in steps.chain(claim.outputs.iter_mut().map(|(_, range)| range)).filter(|range| range.value == value) {
        from = std::mem::replace(&mut range.offset, to);
    }
    for buffer in claim.buffers.iter_mut().filter(|buffer| buffer.2 == from && buffer.1 == BufferKind::Activation) {
        buffer.2 = to;
    }
}

#[test]
fn a_sound_certificate_holds_and_survives_being_written_down() {
    let (certificate, graph) = certificate();
    assert_eq!(check(&certificate, &[&graph]), Ok(()));
    let text = serde_json::to_string(&certificate).unwrap();
    assert_eq!(serde_json::from_str::<Certificate>(&text).unwrap(), certificate);
}

#[test]
fn steps_must_all_run_once_and_in_order() {
    insta::assert_snapshot!(refused(|c| claim(c).steps.swap(0, 1)), @"the plan does not hold at step step 0 (pointwise of `first`): %3 is read where nothing was written");
    insta::assert_snapshot!(refused(|c| { claim(c).steps.pop(); }), @"the plan does not hold at step step 4: a pointwise of layer `w` never runs");
    insta::assert_snapshot!(refused(|c| { let last = claim(c).steps.last().unwrap().clone(); claim(c).steps.push(last) }), @"the plan does not hold at step step 5 (pointwise of `w`): node 7 runs twice");
    insta::assert_snapshot!(refused(|c| claim(c).steps[0].node = 99), @"the plan does not hold at step step 0 (matmul of `first`): there is no node 99");
    insta::assert_snapshot!(refused(|c| { claim(c).steps[0].reads.pop(); }), @"the plan does not hold at step step 0 (matmul of `first`): it reads or writes other values than the graph");
    insta::assert_snapshot!(refused(|c| { c.programs.clear(); }), @"the plan does not hold: it has 0 programs for 1 graphs");
}

#[test]
fn values_must_lie_where_they_are_read() {
    insta::assert_snapshot!(refused(|c| step_of(c, "matmul", "second").reads[0].offset += Bytes(64)), @"the plan does not hold at step step 2 (matmul of `second`): %4 is read where nothing was written");
    insta::assert_snapshot!(refused(|c| step_of(c, "matmul", "second").writes[0].offset += Bytes(4)), @"the plan does not hold at step step 2 (matmul of `second`): %5 lies outside its memory, is not aligned or has another size than 256 B");
    insta::assert_snapshot!(refused(|c| step_of(c, "matmul", "second").writes[0].size = Bytes(64)), @"the plan does not hold at step step 2 (matmul of `second`): %5 lies outside its memory, is not aligned or has another size than 256 B");
    insta::assert_snapshot!(refused(|c| step_of(c, "matmul", "first").writes[0].space = Space::Input(0)), @"the plan does not hold at step step 0 (matmul of `first`): %3 is written to where only the host writes");
    insta::assert_snapshot!(refused(|c| step_of(c, "matmul", "first").reads[0].offset = Bytes(u64::MAX - 63)), @"the plan does not hold at step step 0 (matmul of `first`): %0 is read outside what the host supplies");
}

#[test]
fn numbers_that_overflow_and_names_that_differ_are_refused() {
    insta::assert_snapshot!(refused(|c| step_of(c, "matmul", "first").reads[0].offset = Bytes(u64::MAX)), @"the plan does not hold at step step 0 (matmul of `first`): %0 is read outside what the host supplies");
    insta::assert_snapshot!(refused(|c| step_of(c, "pointwise", "w").reads[1].offset = Bytes(u64::MAX)), @"the plan does not hold at step step 4 (pointwise of `w`): %2 is read outside what the host supplies");
    insta::assert_snapshot!(refused(|c| claim(c).steps[0].op = "conv2d".to_string()), @"the plan does not hold at step step 0 (conv2d of `first`): node 3 is a matmul of `first`");
    insta::assert_snapshot!(refused(|c| claim(c).steps[0].scope = "third".to_string()), @"the plan does not hold at step step 0 (matmul of `third`): node 3 is a matmul of `first`");
    for refusal in [
        refused(|c| claim(c).buffers.iter_mut().for_each(|buffer| buffer.2 = Bytes(u64::MAX))),
        refused(|c| claim(c).buffers.iter_mut().for_each(|buffer| buffer.3 = Bytes(u64::MAX))),
        refused(|c| claim(c).buffers.iter_mut().for_each(|buffer| buffer.4 = u32::MAX)),
        refused(|c| claim(c).buffers.iter_mut().for_each(|buffer| buffer.5 = u32::MAX)),
        refused(|c| c.states.iter_mut().for_each(|state| state.2 = Bytes(u64::MAX))),
        refused(|c| c.states.iter_mut().for_each(|state| state.3 = Bytes(u64::MAX))),
        refused(|c| claim(c).steps.iter_mut().for_each(|step| step.workspace_offset = Bytes(u64::MAX))),
        refused(|c| claim(c).steps.iter_mut().for_each(|step| step.workspace_size = Bytes(u64::MAX))),
        refused(|c| claim(c).stored.push((String::new(), Bytes(u64::MAX), Bytes(u64::MAX), 0, 0))),
        refused(|c| c.stored.push(u32::MAX)),
        refused(|c| c.rows = usize::MAX),
    ] {
        assert!(refusal.starts_with("the plan does not hold"), "{refusal}");
    }
}

#[test]
fn the_arena_must_hold_what_is_held_at_once() {
    insta::assert_snapshot!(refused(|c| c.arena = Bytes(c.arena.0 - 64)), @"the plan does not hold at step step 2 (matmul of `second`): %5 lies outside its memory, is not aligned or has another size than 256 B");
    insta::assert_snapshot!(refused(|c| c.lower_bound = Bytes(c.lower_bound.0 - 64)), @"the plan does not hold: it states a bound of 1.69 KiB where 1.75 KiB are held at once");
    insta::assert_snapshot!(refused(|c| c.alignment = Bytes(0)), @"the plan does not hold: its alignment of 0 B is not a power of two");
    insta::assert_snapshot!(refused(|c| step_of(c, "matmul", "first").writes[0].offset = Bytes(u64::MAX - 63)), @"the plan does not hold at step step 0 (matmul of `first`): %3 lies outside its memory, is not aligned or has another size than 256 B");
}

#[test]
fn live_buffers_must_not_share_bytes() {
    let hidden = |c: &mut Certificate| claim(c).outputs[0].1;
    insta::assert_snapshot!(refused(|c| {
        let place = hidden(c).offset;
        let second = step_of(c, "matmul", "second").writes[0].value;
        relocate(c, second, place);
    }), @"the plan does not hold at step step 2 (matmul of `second`): %5 is written over %4 while that is read");
    insta::assert_snapshot!(refused(|c| {
        claim(c).buffers.retain(|buffer| buffer.1 != BufferKind::Activation);
    }), @"the plan does not hold at step step 0 (matmul of `first`): %3 is used while no buffer is held for it");
    insta::assert_snapshot!(refused(|c| {
        let place = hidden(c).offset;
        let clash = claim(c).buffers.iter_mut().find(|buffer| buffer.2 != place).expect("there is more than one buffer");
        (clash.2, clash.4, clash.5) = (place, 0, 3);
    }), @"the plan does not hold at step step 0 (matmul of `first`): two buffers that are held at once overlap");
}

#[test]
fn scratch_must_not_touch_anything_that_is_needed() {
    insta::assert_snapshot!(refused(|c| {
        let read = step_of(c, "matmul", "second").reads[0].offset;
        let second = step_of(c, "matmul", "second");
        (second.workspace_offset, second.workspace_size) = (read, Bytes(64));
    }), @"the plan does not hold at step step 2 (matmul of `second`): its scratch overlaps %4");
    insta::assert_snapshot!(refused(|c| step_of(c, "matmul", "second").workspace_offset = c.arena), @"the plan does not hold at step step 2 (matmul of `second`): its scratch lies outside the arena or is not aligned");
    insta::assert_snapshot!(refused(|c| {
        // A step that has nothing to do with `hidden`, which the host still wants.
        let place = claim(c).outputs[0].1;
        let other = step_of(c, "pointwise", "w");
        (other.workspace_offset, other.workspace_size) = (place.offset, place.size);
    }), @"the plan does not hold at step step 5: %4 is read where nothing was written");
    insta::assert_snapshot!(refused(|c| {
        let end = c.arena;
        c.arena += Bytes(64);
        let other = step_of(c, "pointwise", "w");
        (other.workspace_offset, other.workspace_size) = (end, Bytes(64));
    }), @"the plan does not hold at step step 4 (pointwise of `w`): its scratch is used while no buffer is held for it");
}

#[test]
fn the_host_must_find_what_it_asks_for() {
    insta::assert_snapshot!(refused(|c| claim(c).outputs.swap(0, 1)), @"the plan does not hold at step step 5: output hidden is not where it says");
    insta::assert_snapshot!(refused(|c| { claim(c).outputs.pop(); }), @"the plan does not hold at step step 5: an output is missing");
    insta::assert_snapshot!(refused(|c| {
        let other = claim(c).outputs[0].1;
        claim(c).outputs[1].1 = Range { value: claim(c).outputs[1].1.value, ..other };
    }), @"the plan does not hold at step step 5: %6 is read where %4 is");
}

#[test]
fn states_must_end_with_their_values_and_keep_them_otherwise() {
    insta::assert_snapshot!(refused(|c| c.states.truncate(1)), @"the plan does not hold: it has no state 1 named `momentum` of 1.00 KiB");
    insta::assert_snapshot!(refused(|c| c.states[1].2 = Bytes(64)), @"the plan does not hold: the states `momentum` and `w` overlap");
    insta::assert_snapshot!(refused(|c| c.states[0].3 = Bytes(4)), @"the plan does not hold: it has no state 0 named `w` of 1.00 KiB");
    insta::assert_snapshot!(refused(|c| c.resident = Bytes(64)), @"the plan does not hold: the state `w` lies outside the resident memory or is not aligned");
    insta::assert_snapshot!(refused(|c| {
        // The new value goes to the arena, and the state stays as it was.
        let end = c.arena;
        let write = claim(c).steps.iter_mut().flat_map(|step| &mut step.writes).find(|write| write.space == Space::Resident).unwrap();
        (write.space, write.offset) = (Space::Arena, end);
        let size = write.size;
        c.arena += size;
        c.lower_bound += size;
        let steps = claim(c).steps.len() as u32;
        claim(c).buffers.push(("w".to_string(), BufferKind::Gradient, end, size, 0, steps - 1));
    }), @"the plan does not hold at step step 5: `w` does not end with its value");
    insta::assert_snapshot!(refused(|c| {
        // A value that happens to fit is parked in a state this program never reads.
        let momentum = c.states[1].2;
        let write = &mut step_of(c, "pointwise", "first").writes[0];
        (write.space, write.offset) = (Space::Resident, momentum);
    }), @"the plan does not hold at step step 1 (pointwise of `first`): %4 is written over the state `momentum`");
}

#[test]
fn a_state_must_be_read_before_it_changes() {
    insta::assert_snapshot!(refused(|c| {
        let steps = &mut claim(c).steps;
        let second = steps.iter().position(|step| step.scope == "second").expect("the network has a second layer");
        steps[second..].rotate_right(1);
        assert_eq!(steps[second].scope, "w", "the change now comes before the second reader");
    }), @"the plan does not hold at step step 3 (matmul of `second`): %1 is read where %7 is");
}

/// Devices read more of a plan than its certificate states, and compute addresses from it.
#[test]
fn a_plan_must_not_say_more_than_its_certificate() {
    let refused = |damage: fn(&mut Plan)| {
        let mut graph = Graph::new();
        let x = graph.input("x", TensorType::f32(Shape::batch_of([6])));
        let doubled = graph.map(x, |e, x| e.add(x, x)).unwrap();
        let turned = graph.reshape(doubled, Shape::batch_of([3, 2])).unwrap();
        let back = graph.reshape(turned, Shape::batch_of([6])).unwrap();
        let sum = graph.plus(back, x).unwrap();
        graph.output("sum", sum);
        let mut plan = layout(&[(Role::Step, graph)], 4, &PAPER).unwrap();
        CheckedPlan::new(plan.clone()).unwrap();
        damage(&mut plan);
        CheckedPlan::new(plan).expect_err("the damage went unnoticed").to_string()
    };
    insta::assert_snapshot!(refused(|plan| { plan.programs[0].workspaces.pop(); }), @"the plan does not hold at program `step`: it has 2 steps, but workspaces for 1");
    insta::assert_snapshot!(refused(|plan| plan.programs[0].places.push(None)), @"the plan does not hold at program `step`: it has 5 values, but places for 6");
    // Only another view reads this one, and no step.
    insta::assert_snapshot!(refused(|plan| plan.programs[0].places[2] = Some(Place::Arena(Bytes(1 << 20)))), @"the plan does not hold at program `step`: %2 is a view of %1, but has another place");
    // Its size is computed for one batch dimension, its elements for two.
    insta::assert_snapshot!(refused(|plan| {
        let mut graph = Graph::new();
        graph.input("x", TensorType::f32(Shape::new([Dim::BATCH, Dim::BATCH])));
        plan.programs[0].graph = graph;
    }), @"the plan does not hold at program `step`: input (node 0): the shape [B, B] has the batch in it twice");
}
