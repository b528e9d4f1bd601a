//! Optimizer states and gradients that are divided over ranks: these change the parameters as one process does.

use crate::data_parallel::{COLUMNS, ROWS, first_states, model, momentum, of};
use crate::support::{PAPER, assert_sound, numbers, parameter};
use plimsoll_core::data_parallel::DataParallel;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::loss_scale::LossScaling;
use plimsoll_core::ops::{AllGather, ReduceScatter, Reduction, Shard};
use plimsoll_core::passes::optimize;
use plimsoll_core::plan::recompute::{Effort, fit};
use plimsoll_core::plan::{Rates, check, check_equivalence, layout, layout_sequenced, plan};
use plimsoll_core::random::StepRandom;
use plimsoll_core::reference::{self, RankInputs};
use plimsoll_core::sharding::Sharding;
use plimsoll_core::step::{Role, Training, training_programs_with};
use plimsoll_core::{Bytes, Graph, GraphError, Op, Shape, TensorType, ValueId, verify};
use std::collections::BTreeMap;

/// All gradients, scaled so that the norm of all of them together is at most one.
fn clip(g: &mut Graph, all: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
    let mut total: Option<ValueId> = None;
    for gradient in all {
        let squares = g.times(*gradient, *gradient)?;
        let square = g.sum(squares)?;
        total = Some(total.map_or(Ok(square), |known| g.plus(known, square))?);
    }
    let total = g.sum_of_shards(total.expect("there are parameters"))?;
    let norm = g.unary(Unary::Sqrt, total)?;
    let shorter = Expr::build(|e| e.div(e.input(0), e.binary(Binary::Max, e.input(1), e.constant(1.0))));
    all.iter().map(|gradient| g.pointwise(shorter.clone(), &[*gradient, norm])).collect()
}

#[derive(Clone, Copy, Debug, Default)]
struct Extras {
    clips: bool,
    divides: bool,
    scales: bool,
}

/// The programs of one process, or of ranks with shards.
fn programs(extras: Extras, ranks: Option<(u32, Bytes, Sharding)>) -> Vec<(Role, Graph)> {
    let (forward, loss, counted) = model().unwrap();
    let training = Training {
        gradients: extras.clips.then_some(&clip),
        divisor: extras.divides.then_some(counted),
        scaling: extras.scales.then_some(LossScaling { start: 8.0, growth_steps: 2 }),
        resumes: true,
        data_parallel: ranks.map(|(ranks, bucket, _)| DataParallel { ranks, bucket }),
        sharding: ranks.map(|(_, _, sharding)| sharding),
        ..Training::new(&momentum)
    };
    training_programs_with(&forward, loss, true, &training).unwrap()
}

/// The states of every rank after three batches. Each rank has equally many micro-batches of the rows of a batch, of
/// these sizes.
fn after_batches(programs: &[(Role, Graph)], ranks: &[&[usize]]) -> Vec<Vec<Vec<f64>>> {
    let full = first_states(programs);
    let longest = programs.iter().map(|(_, graph)| graph.states()).max_by_key(|states| states.len()).unwrap();
    assert_eq!(full.len(), longest.len());
    let mut states = vec![full; ranks.len()];
    for batch in 0..3 {
        let x = numbers(ROWS * COLUMNS, 100 + batch);
        let mut from: Vec<usize> = (0..ranks.len()).map(|rank| ranks[..rank].iter().flat_map(|pieces| pieces.iter()).sum()).collect();
        let turns = ranks[0].len();
        for turn in 0..turns {
            let role = match (turn == 0, turn + 1 == turns) {
                (true, true) => Role::Step,
                (true, false) => Role::First,
                (false, false) => Role::Middle,
                (false, true) => Role::Last,
            };
            let columns: Vec<[Vec<f64>; 1]> =
                (0..ranks.len()).map(|rank| [x[from[rank] * COLUMNS..(from[rank] + ranks[rank][turn]) * COLUMNS].to_vec()]).collect();
            let input = |rank: usize| RankInputs {
                rows: ranks[rank][turn],
                inputs: &columns[rank],
                states: &states[rank],
                scalars: &[1.0 / ROWS as f64],
                random: StepRandom { seed: 5, step: 1, first_row: from[rank] as u64 },
            };
            let inputs: Vec<RankInputs<'_>> = (0..ranks.len()).map(input).collect();
            let after: Vec<Vec<Vec<f64>>> =
                reference::run_on_ranks(of(programs, role), &inputs).iter().map(|outcome| outcome.states().to_vec()).collect();
            states = after;
            (0..ranks.len()).for_each(|rank| from[rank] += ranks[rank][turn]);
        }
    }
    // Accumulators are of no interest.
    let kept = |states: Vec<Vec<f64>>| {
        let all = longest.iter().zip(states);
        all.filter(|(state, _)| state.kind != StateKind::Accumulator).map(|(_, elements)| elements).collect()
    };
    states.into_iter().map(kept).collect()
}

/// The states of one process by name: those that are shards put together.
fn gathered(programs: &[(Role, Graph)], ranks: &[Vec<Vec<f64>>]) -> BTreeMap<String, Vec<f64>> {
    let longest = programs.iter().map(|(_, graph)| graph.states()).max_by_key(|states| states.len()).unwrap();
    let kept = longest.iter().filter(|state| state.kind != StateKind::Accumulator);
    let whole = |(i, state): (usize, &plimsoll_core::graph::State)| {
        let Some(of) = &state.shard else {
            ranks.iter().for_each(|states| assert_eq!(states[i], ranks[0][i], "{}", state.name));
            return (state.name.clone(), ranks[0][i].clone());
        };
        assert_eq!(of.ranks as usize, ranks.len());
        let mut all: Vec<f64> = ranks.iter().flat_map(|states| states[i].iter().copied()).collect();
        all.truncate(of.shape.elements().factor());
        (state.name.clone(), all)
    };
    kept.enumerate().map(whole).collect()
}

#[test]
fn ranks_with_shards_change_the_parameters_as_one_process_does() {
    for choice in 0..8 {
        let extras = Extras { clips: choice & 1 > 0, divides: choice & 2 > 0, scales: choice & 4 > 0 };
        let one_process = programs(extras, None);
        let alone = gathered(&one_process, &after_batches(&one_process, &[&[ROWS]]));
        let layouts: [&[&[usize]]; 4] = [&[&[3], &[4]], &[&[1], &[5], &[1]], &[&[2, 2], &[1, 2]], &[&[1, 1, 1], &[1, 1, 2]]];
        for ranks in layouts {
            for (bucket, sharding) in [1, 100, 1 << 20].into_iter().flat_map(|b| [(b, Sharding::Optimizer), (b, Sharding::Gradients)]) {
                let programs = programs(extras, Some((ranks.len() as u32, Bytes(bucket), sharding)));
                programs.iter().for_each(|(_, graph)| verify(graph).unwrap());
                let optimized: Vec<(Role, Graph)> = programs.iter().map(|(role, graph)| (*role, optimize(graph).unwrap())).collect();
                for programs in [&programs, &optimized] {
                    let together = gathered(programs, &after_batches(programs, ranks));
                    assert!(together.keys().eq(alone.keys()));
                    for (got, want) in together.values().flatten().zip(alone.values().flatten()) {
                        assert!((got - want).abs() < 1e-12, "{extras:?}, {ranks:?}, {bucket}, {sharding:?}: {got} instead of {want}");
                    }
                }
            }
        }
    }
}

/// A parameter's states have a part of its elements, and so have accumulated gradients in the second stage.
#[test]
fn states_are_shards() {
    for (sharding, summed) in [(Sharding::Optimizer, [16, 4]), (Sharding::Gradients, [6, 2])] {
        let programs = programs(Extras::default(), Some((3, Bytes(1), sharding)));
        let last = of(&programs, Role::Last);
        let sizes = |name: &str| {
            let named = last.states().iter().filter(|state| state.name.ends_with(name));
            named.map(|state| state.ty.shape.elements().factor()).collect::<Vec<_>>()
        };
        // Updates begin with the last layer.
        assert_eq!(sizes("/velocity"), [[2, 6]; 3].concat());
        assert_eq!(sizes("/gradient_sum"), [summed; 3].concat());
    }
}

/// The names of the collectives of a program, in its order.
fn collectives(graph: &Graph, order: impl Iterator<Item = plimsoll_core::NodeId>) -> Vec<String> {
    order.map(|id| graph.node(id)).filter(|node| node.op.is_collective()).map(|node| node.scope.to_string()).collect()
}

#[test]
fn plans_alternate_sums_and_updates_and_are_sound() {
    let expected = |extras: Extras| -> Vec<String> {
        let (scatter, gather) = ("reduce_scatter", "all_gather");
        let each = |names: &[&str]| (0..3).flat_map(|i| names.iter().map(move |name| format!("{name}/{i}"))).collect::<Vec<_>>();
        if extras.clips { [each(&[scatter]), vec!["step".to_string()], each(&[gather])].concat() } else { each(&[scatter, gather]) }
    };
    for clips in [false, true] {
        let extras = Extras { clips, ..Extras::default() };
        for sharding in [Sharding::Optimizer, Sharding::Gradients] {
            let programs = programs(extras, Some((3, Bytes(80), sharding)));
            let planned = plan(programs, ROWS, &PAPER).unwrap();
            assert_sound(&planned);
            for program in &planned.programs {
                let found = collectives(&program.graph, program.order.iter().copied());
                let early = sharding == Sharding::Gradients;
                match program.role {
                    Role::Step => assert_eq!(found, expected(extras)),
                    Role::Last if !early => assert_eq!(found, expected(extras)),
                    Role::Last => assert_eq!(found.len(), expected(extras).len()),
                    _ => assert_eq!(found.len(), if early { 3 } else { 0 }),
                }
            }
        }
    }
}

/// With buckets that are updated one after the other, neither gradients nor new values are all live together.
#[test]
fn the_checker_refuses_other_orders_and_other_shards() {
    let step = |ranks, bucket| vec![programs(Extras::default(), Some((ranks, Bytes(bucket), Sharding::Optimizer))).remove(0)];
    let planned = plan(step(2, 1), ROWS, &PAPER).unwrap();
    let graph = &planned.programs[0].graph;
    let mut certificate = planned.certificate();
    let steps = &mut certificate.programs[0].steps;
    let found: Vec<usize> = (0..steps.len()).filter(|at| steps[*at].op == "all_gather").collect();
    steps.swap(found[0], found[1]);
    check(&certificate, &[graph]).unwrap_err();

    let optimized = |ranks, bucket| optimize(&step(ranks, bucket)[0].1).unwrap();
    let original = optimized(2, 1);
    check_equivalence(&original, &optimized(2, 1), &PAPER, ROWS).unwrap();
    for other in [optimized(2, 80), optimized(3, 1)] {
        check_equivalence(&original, &other, &PAPER, ROWS).unwrap_err();
    }
}

/// Under tight limits, forward nodes are recomputed, collectives never.
#[test]
fn recomputation_repeats_no_collective() {
    let rates = Rates { flops_per_s: 1e9, bytes_per_s: 1e9, step_s: 1e-9 };
    let programs = programs(Extras::default(), Some((2, Bytes(80), Sharding::Optimizer)));
    let graph = optimize(of(&programs, Role::Step)).unwrap();
    let rows = 200;
    let free = layout(&[(Role::Step, graph.clone())], rows, &PAPER).unwrap();
    let mut recomputed = 0;
    for percent in [95, 85, 75, 65] {
        let limit = Bytes(free.arena.0 * percent / 100);
        let Ok(found) = fit(&graph, rows, &PAPER, limit, &rates, Effort(30_000)) else { continue };
        let plan = layout_sequenced(vec![(Role::Step, found)], rows, &PAPER).unwrap();
        assert_sound(&plan);
        let graph_now = &plan.programs[0].graph;
        assert_eq!(collectives(graph_now, graph_now.nodes().map(|(id, _)| id)).len(), 6, "at {percent} %");
        recomputed += graph_now.nodes().count().saturating_sub(graph.nodes().count());
    }
    assert!(recomputed > 0, "some limit is met by recomputing");
}

#[test]
fn updates_that_need_whole_tensors_are_refused() {
    let refused = |rule: &dyn Fn(&mut Graph, StateId, ValueId) -> Result<(), GraphError>| {
        let (forward, loss, _) = model().unwrap();
        let data_parallel = Some(DataParallel { ranks: 2, bucket: Bytes(1) });
        let training = Training { data_parallel, sharding: Some(Sharding::Optimizer), ..Training::new(rule) };
        training_programs_with(&forward, loss, false, &training).unwrap_err().to_string()
    };
    let moved = |g: &mut Graph, parameter: StateId, by: ValueId| {
        let value = g.updated_value(parameter).expect("parameters are read");
        let new = g.pointwise(Expr::build(|e| e.sub(e.input(0), e.input(1))), &[value, by])?;
        g.update(parameter, new);
        Ok(())
    };
    let advice = "which the shard of a rank does not give, so its optimizer state cannot be divided over ranks; choose another optimizer, \
                  or leave `parallel.shard` out";
    let largest = refused(&|g, parameter, gradient| {
        let most = g.reduce(Reduction::Max, gradient, &[0])?;
        let most = g.reshape(most, Shape::scalar())?;
        let by = g.times(gradient, most)?;
        moved(g, parameter, by)
    });
    assert_eq!(largest, format!("layer `bias2`: its update has the op max, {advice}"));
    let drawn = refused(&|g, parameter, gradient| {
        let stream = g.stream();
        let by = g.map(gradient, |e, x| e.mul(x, e.random(stream)))?;
        moved(g, parameter, by)
    });
    assert_eq!(drawn, format!("layer `bias2`: its update has numbers that depend on the place of an element, {advice}"));
    let state = refused(&|g, parameter, gradient| {
        g.state("rows", StateKind::Optimizer, TensorType::f32(Shape::fixed([3])), Init::Constant(0.0))?;
        moved(g, parameter, gradient)
    });
    assert_eq!(state, format!("layer `bias2`: its update has a state `bias2/rows` of the shape [3], {advice}"));
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let message = |op: Op, inputs: &dyn Fn(&mut Graph) -> Vec<ValueId>| {
        let mut graph = Graph::new();
        let inputs = inputs(&mut graph);
        graph.in_scope("dense", |g| g.add(op, &inputs)).unwrap_err().to_string()
    };
    let weight = |g: &mut Graph| vec![parameter(g, "w", Shape::fixed([3])).unwrap()];
    let rows = message(Op::Shard(Shard { ranks: 2 }), &|g| vec![g.input("x", TensorType::f32(Shape::batch_of([3])))]);
    assert_eq!(rows, "layer `dense`: divides tensors in single precision without rows of the batch, but got f32[B, 3]");
    let none = message(Op::ReduceScatter(ReduceScatter { ranks: 2, has_token: false }), &|_| vec![]);
    assert_eq!(none, "layer `dense`: takes one or more tensors");
    let ranks = message(Op::ReduceScatter(ReduceScatter { ranks: 0, has_token: false }), &weight);
    assert_eq!(ranks, "layer `dense`: divides tensors over one or more ranks, not 0");
    let token = message(Op::ReduceScatter(ReduceScatter { ranks: 2, has_token: true }), &|g| [weight(g), weight_again(g)].concat());
    assert_eq!(token, "layer `dense`: its last input is the token of the previous collective, not f32[3]");
    let gather = |shapes: Vec<Shape>| Op::AllGather(AllGather { ranks: 2, has_token: false, shapes });
    let count = message(gather(vec![]), &weight);
    assert_eq!(count, "layer `dense`: gathers 0 tensors, but got 1 shards");
    let length = message(gather(vec![Shape::fixed([2, 4])]), &weight);
    assert_eq!(length, "layer `dense`: a shard of [2, 4] over 2 ranks is f32[4], not f32[3]");
}

fn weight_again(g: &mut Graph) -> Vec<ValueId> {
    vec![parameter(g, "v", Shape::fixed([3])).unwrap()]
}
