//! Offload: what leaves the device's memory comes back in time, changes no bit, takes the bytes it says, and damaged
//! plans are refused.

use crate::device::{Late, Slow};
use crate::recompute::step_graph;
use crate::support::{PAPER, assert_sound, numbers};
use plimsoll_core::device::StepInputs;
use plimsoll_core::graph::{NodeId, StateId, StateKind};
use plimsoll_core::plan::CopyRate;
use plimsoll_core::plan::Rates;
use plimsoll_core::plan::offload::{Direction, Offloaded, Overlap, ahead, candidates, offload};
use plimsoll_core::plan::recompute::{Effort, FitError, refit};
use plimsoll_core::plan::{Certificate, Place, Program, Space, Step, check, check_equivalence, layout, prove};
use plimsoll_core::plan::{CheckedPlan, Target};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Device, Executor, Graph, Ledger, Op, Plan, ValueId};
use std::sync::Arc;

const ROWS: usize = 6;
const RATES: Rates = Rates { flops_per_s: 1e9, bytes_per_s: 1e9, step_s: 1e-9 };

/// A choice drawn at random: some states of any kind, some values.
fn draw(graph: &Graph, seed: u32) -> Offloaded {
    let random = StepRandom { seed: 23, step: seed, first_row: 0 };
    let take = |stream: u32, i: usize| random.uniform(stream, i as u64) < 0.6;
    let states = (0..graph.states().len()).filter(|i| take(0, *i)).map(|i| StateId(i as u32)).collect();
    let values = candidates(graph, ROWS).into_iter().enumerate().filter(|(i, _)| take(1, *i)).map(|(_, (value, _))| value).collect();
    Offloaded { states, values: vec![values] }
}

fn planned(graph: &Graph, choice: &Offloaded, device: &dyn Target) -> Plan {
    let written = choice.write(&[(Role::Step, graph.clone())]).unwrap();
    choice.layout(&written, ROWS, device).unwrap()
}

/// The bytes of all states after three steps that start from numbers other than zero.
fn after_steps(device: Arc<dyn Device>, plan: Plan) -> Vec<Vec<u8>> {
    let ledger = Ledger::new("host", Some(plan.total()));
    let mut executor = Executor::new(device, CheckedPlan::new(plan).unwrap(), &ledger).unwrap();
    let sizes: Vec<usize> = executor.plan().states.iter().map(|state| state.size.get()).collect();
    for (i, size) in sizes.iter().enumerate() {
        let bytes: Vec<u8> = numbers(size / 4, 40 + i as u32).iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect();
        executor.write_state(StateId(i as u32), &bytes).unwrap();
    }
    let column: Vec<u8> = numbers(8 * ROWS, 1).iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect();
    for step in 0..3 {
        let inputs = StepInputs { columns: &[&column], scalars: &[0.01], random: StepRandom { seed: 1, step, first_row: 0 } };
        executor.run(Role::Step, ROWS, &inputs).unwrap();
    }
    let read = |(i, size): (usize, &usize)| {
        let mut bytes = vec![0; *size];
        executor.read_state(StateId(i as u32), &mut bytes).unwrap();
        bytes
    };
    sizes.iter().enumerate().map(read).collect()
}

#[test]
fn any_choice_is_planned_soundly_and_changes_no_bit() {
    let (mut states, mut values) = (0, 0);
    for seed in 0..60 {
        let graph = step_graph(seed, 3 + seed as usize % 12);
        let choice = draw(&graph, seed);
        let plan = planned(&graph, &choice, &Slow { broken: None });
        assert_sound(&plan);
        check_equivalence(&graph, &plan.programs[0].graph, &Slow { broken: None }, plan.rows).unwrap();
        prove(&plan.certificate(), &[(Role::Step, graph.clone())], &Slow { broken: None }).unwrap();
        let stored: Vec<bool> = plan.states.iter().map(|state| state.stored).collect();
        let read = |state: &StateId| graph.state_value(*state).is_some() || graph.updates().iter().any(|(changed, _)| changed == state);
        assert!(choice.states.iter().filter(|state| read(state)).all(|state| stored[state.0 as usize]), "{stored:?}");
        let kept: Bytes = plan.states.iter().filter(|state| !state.stored).map(|state| state.size.align_up(16)).sum();
        assert_eq!(plan.resident, kept);
        states += choice.states.len();
        values += choice.values[0].len();
        let free = after_steps(Arc::new(Slow { broken: None }), layout(&[(Role::Step, graph)], ROWS, &Slow { broken: None }).unwrap());
        assert!(free == after_steps(Arc::new(Slow { broken: None }), plan.clone()), "copies as early as can be, seed {seed}");
        assert!(free == after_steps(Arc::new(Late), plan), "copies as late as can be, seed {seed}");
    }
    assert!(states > 100 && values > 60, "{states} states and {values} values");
}

#[test]
fn copies_are_moved_ahead_only_where_there_is_room_and_change_no_bit() {
    let device = Slow { broken: None };
    let (mut moved, mut still) = (0, 0);
    for seed in 0..40 {
        let graph = step_graph(seed, 4 + seed as usize % 10);
        let plan = planned(&graph, &draw(&graph, seed), &device);
        for room in [0, 25, 400] {
            let limit = Bytes(plan.arena.0 + plan.arena.0 * room / 100);
            let better = ahead(&plan, &device, limit, &RATES, device.capabilities().copy_rate).unwrap();
            assert!(better.arena <= limit);
            assert_sound(&better);
            prove(&better.certificate(), &[(Role::Step, graph.clone())], &device).unwrap();
            let seconds = |plan: &Plan| {
                let program = &plan.programs[0];
                Overlap::of(program, ROWS, 0).seconds(program, ROWS, &RATES, device.capabilities().copy_rate)
            };
            assert!(seconds(&better) <= seconds(&plan));
            if better.programs[0].order == plan.programs[0].order {
                still += 1;
            } else {
                moved += 1;
                let same = after_steps(Arc::new(Late), plan.clone()) == after_steps(Arc::new(Late), better);
                assert!(same, "seed {seed}");
            }
        }
    }
    assert!(moved > 20 && still > 0, "{moved} moved, {still} not");
}

/// A plan under which this leaves, and one in so many per cent of its arena, if there is one: sound, proven, and the
/// same to the last bit.
fn fitted(graph: &Graph, choice: &Offloaded, per_cent: u64) -> Option<(Plan, Plan)> {
    let device = Slow { broken: None };
    let plan = planned(graph, choice, &device);
    let written = choice.write(&[(Role::Step, graph.clone())]).unwrap();
    let limit = Bytes(plan.arena.0 * per_cent / 100);
    let fitted = match refit(&plan, &written, &device, limit, &RATES, Effort(30_000), None) {
        Ok(fitted) => fitted,
        Err(FitError::TooSmall { .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    assert_sound(&fitted);
    assert!(fitted.arena <= limit);
    check_equivalence(graph, &fitted.programs[0].graph, &device, fitted.rows).unwrap();
    prove(&fitted.certificate(), &[(Role::Step, graph.clone())], &device).unwrap();
    assert!(after_steps(Arc::new(Late), plan.clone()) == after_steps(Arc::new(Late), fitted.clone()));
    Some((plan, fitted))
}

#[test]
fn what_leaves_can_be_computed_again_beside_it() {
    let mut both = 0;
    for seed in 0..30 {
        let graph = step_graph(seed, 6 + seed as usize % 8);
        let mut choice = draw(&graph, seed);
        choice.values[0].truncate(1);
        both += usize::from(fitted(&graph, &choice, 85).is_some_and(|(_, fitted)| !fitted.programs[0].recomputation.nodes.is_empty()));
    }
    assert!(both > 5, "{both} plans do both");
}

#[test]
fn what_left_is_loaded_again_where_it_would_be_in_the_way() {
    let (mut twice, mut lower) = (0, 0);
    for seed in 0..60 {
        let graph = step_graph(seed, 6 + seed as usize % 8);
        let values = candidates(&graph, ROWS).into_iter().map(|(value, _)| value).collect();
        let choice = Offloaded { states: draw(&graph, seed).states, values: vec![values] };
        let Some((plan, fitted)) = fitted(&graph, &choice, 90) else { continue };
        let (before, after) = (&plan.programs[0], &fitted.programs[0]);
        let is_load = |program: &Program, id: NodeId| matches!(program.graph.node(id).op, Op::Load(_));
        assert!(after.recomputation.nodes.iter().all(|id| !is_load(after, *id)), "what is loaded is not computed");
        let loads = |program: &Program| program.order.iter().filter(|id| is_load(program, **id)).count();
        lower += 1;
        twice += usize::from(loads(after) > loads(before));
    }
    assert!(twice > 5, "{twice} of {lower} plans load something again");
}

/// The steps of a plan for which all optimizer state and the largest value leave.
fn example() -> (Graph, Plan) {
    let graph = step_graph(3, 9);
    let states = graph.states().iter().enumerate().filter(|(_, state)| state.kind == StateKind::Optimizer);
    let states = states.map(|(i, _)| StateId(i as u32)).collect();
    let values = candidates(&graph, ROWS).into_iter().take(1).map(|(value, _)| value).collect();
    let plan = planned(&graph, &Offloaded { states, values: vec![values] }, &PAPER);
    (graph, plan)
}

fn refused(damage: impl FnOnce(&mut Certificate)) -> String {
    let (_, plan) = example();
    let mut certificate = plan.certificate();
    damage(&mut certificate);
    check(&certificate, &[&plan.programs[0].graph]).expect_err("the damage went unnoticed").to_string()
}

fn steps(certificate: &mut Certificate) -> &mut Vec<Step> {
    &mut certificate.programs[0].steps
}

fn at(certificate: &mut Certificate, op: &str, state: bool) -> usize {
    let place = |step: &Step| step.op == op && step.scope.contains("velocity") == state;
    steps(certificate).iter().position(place).expect("the plan has such a step")
}

#[test]
fn damaged_plans_are_refused() {
    let (graph, plan) = example();
    let certificate = plan.certificate();
    check(&certificate, &[&plan.programs[0].graph]).unwrap();
    let text = serde_json::to_string(&certificate).unwrap();
    assert_eq!(serde_json::from_str::<Certificate>(&text).unwrap(), certificate);
    prove(&certificate, &[(Role::Step, graph)], &PAPER).unwrap();

    let without_load = refused(|c| {
        let load = at(c, "load", true);
        steps(c).remove(load);
    });
    assert!(without_load.contains("is read where"), "{without_load}");
    let without_store = refused(|c| {
        let store = at(c, "store", true);
        steps(c).remove(store);
    });
    assert!(without_store.contains("never runs") || without_store.contains("no buffer is held"), "{without_store}");
    // The activation is stored after its bytes belong to somebody else.
    let late = refused(|c| {
        let (store, load) = (at(c, "store", false), at(c, "load", false));
        let step = steps(c).remove(store);
        steps(c).insert(load - 1, step);
    });
    assert!(late.contains("is read where") || late.contains("no buffer is held"), "{late}");
    let early = refused(|c| {
        let (store, load) = (at(c, "store", false), at(c, "load", false));
        let step = steps(c).remove(load);
        steps(c).insert(store, step);
    });
    assert!(early.contains("is read where nothing was written"), "{early}");
    // An activation is stored over a state that is kept there.
    let over = refused(|c| {
        let (store, load) = (at(c, "store", false), at(c, "load", false));
        steps(c)[store].writes[0].offset = Bytes::ZERO;
        steps(c)[load].reads[0].offset = Bytes::ZERO;
    });
    assert!(over.contains("is written over the state `"), "{over}");
    let outside = refused(|c| c.backing = Bytes(c.backing.0 - 64));
    assert!(outside.contains("outside"), "{outside}");
    let direct = refused(|c| {
        let load = at(c, "load", true);
        let (value, from) = (steps(c)[load].writes[0].value, steps(c)[load].reads[0]);
        let reader = steps(c).iter().position(|step| step.reads.iter().any(|read| read.value == value)).unwrap();
        let read = steps(c)[reader].reads.iter_mut().find(|read| read.value == value).unwrap();
        (read.space, read.offset) = (Space::Backing, from.offset);
    });
    assert!(direct.contains("backing store by what is no load") || direct.contains("is read where"), "{direct}");
    let shared = refused(|c| {
        let stored = c.stored.clone();
        c.states[stored[1] as usize].2 = c.states[stored[0] as usize].2;
    });
    assert!(shared.contains("overlap"), "{shared}");
    let nowhere = refused(|c| c.stored.push(99));
    assert!(nowhere.contains("keeps a state 99"), "{nowhere}");
}

#[test]
fn an_edited_plan_is_not_proven() {
    let (graph, plan) = example();
    let graphs = [(Role::Step, graph)];
    let unproven = |damage: &dyn Fn(&mut Certificate)| {
        let mut certificate = plan.certificate();
        damage(&mut certificate);
        prove(&certificate, &graphs, &PAPER).unwrap_err().to_string()
    };
    let longer = unproven(&|c| c.programs[0].stored[0].4 += 1);
    assert!(longer.contains("piece 0 of what it stores"), "{longer}");
    let larger = unproven(&|c| c.backing += Bytes(64));
    assert!(larger.contains("it states a backing store of"), "{larger}");
    let kept = unproven(&|c| c.stored.clear());
    assert!(!kept.is_empty());
    let wrong = unproven(&|c| c.programs[0].offloaded[0] = 0);
    assert!(wrong.contains("nothing that a step makes"), "{wrong}");
}

#[test]
fn a_state_in_the_backing_store_is_renewed_where_it_was_loaded() {
    let (_, plan) = example();
    let program = &plan.programs[0];
    let graph = &program.graph;
    let place = |value: ValueId| program.places[value.0 as usize].unwrap();
    let mut seen = 0;
    for (state, value) in graph.updates().iter().filter(|(state, _)| plan.states[state.0 as usize].stored) {
        let old = graph.nodes().find(|(_, node)| matches!(node.op, Op::Load(_)) && graph.as_state(node.inputs[0]) == Some(*state));
        let loaded = old.expect("momentum reads what it remembers").1.outputs[0];
        assert_eq!(place(loaded), place(graph.producer(*value).inputs[0]), "a step that is broken stores what was there");
        seen += 1;
    }
    assert!(seen > 1);
}

#[test]
fn time_is_the_larger_of_computing_and_copying_where_they_overlap() {
    let (_, plan) = example();
    let program = &plan.programs[0];
    let overlap = Overlap::of(program, ROWS, 0);
    let computing = overlap.seconds(program, ROWS, &RATES, CopyRate { bytes_per_s: 1e30, both_ways: true, compute_s_per_byte: 0.0 });
    let slow = CopyRate { bytes_per_s: 1e3, both_ways: false, compute_s_per_byte: 0.0 };
    let copying = program.copied(ROWS).0 as f64 / slow.bytes_per_s;
    let both = overlap.seconds(program, ROWS, &RATES, slow);
    assert!(both >= copying && both <= copying + computing, "{both} of {copying} and {computing}");
    let two_ways = overlap.seconds(program, ROWS, &RATES, CopyRate { both_ways: true, ..slow });
    assert!(two_ways <= both && two_ways >= copying / 2.0);
    // However fast a copy is, what it takes of the processors is not there to compute with.
    let taking = CopyRate { bytes_per_s: 1e30, both_ways: true, compute_s_per_byte: 1e-3 };
    let held_up = overlap.seconds(program, ROWS, &RATES, taking);
    let expected = computing + 1e-3 * program.copied(ROWS).0 as f64;
    assert!((held_up - expected).abs() < 1e-9 * expected, "{held_up} where {expected} are expected");
}

#[test]
fn a_copy_waits_for_whoever_touches_the_same_bytes() {
    for seed in 0..20 {
        let graph = step_graph(seed, 8);
        let plan = planned(&graph, &draw(&graph, seed), &PAPER);
        let program = &plan.programs[0];
        let overlap = Overlap::of(program, ROWS, 5);
        for (i, copy) in overlap.copies.iter().enumerate() {
            assert!(copy.begin <= copy.step && copy.step < copy.needed);
            assert!(matches!(copy.place, Place::Arena(_) | Place::Resident(_)));
            let node = program.graph.node(program.order[copy.step]);
            let state = program.graph.updates().iter().any(|(_, value)| node.outputs.contains(value));
            assert!(!state || copy.direction == Direction::In || copy.begin >= 5.min(copy.step));
            if let Some(after) = copy.after {
                assert!(after < i && overlap.copies[after].direction != copy.direction && overlap.copies[after].begin <= copy.begin);
            }
        }
    }
}

#[test]
fn nothing_that_is_not_made_can_be_stored() {
    let graph = step_graph(0, 4);
    let error = offload(&graph, &[], &[ValueId(0)]).unwrap_err().to_string();
    assert_eq!(error, "%0 is nothing that a step makes and could store");
}
