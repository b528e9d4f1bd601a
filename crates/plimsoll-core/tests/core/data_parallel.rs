//! Data-parallel training: ranks with any rows of a batch change the parameters as one process does with all of them.

use crate::support::{PAPER, Paper, assert_sound, numbers, parameter};
use plimsoll_core::data_parallel::DataParallel;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::fixed_order::{FixedOrder, HELD_SUMS, MERGED_SUMS, MICRO_BATCHES};
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::loss_scale::LossScaling;
use plimsoll_core::ops::{AllReduce, Reduction};
use plimsoll_core::pairwise::PairwiseTree;
use plimsoll_core::passes::optimize;
use plimsoll_core::plan::recompute::{Effort, fit};
use plimsoll_core::plan::{Rates, check, check_equivalence, layout, layout_sequenced, plan};
use plimsoll_core::random::StepRandom;
use plimsoll_core::reference::{self, RankInputs};
use plimsoll_core::step::{Role, Training, training_programs_with};
use plimsoll_core::{Bytes, DType, Graph, GraphError, Op, Shape, TensorType, ValueId, verify};

pub const ROWS: usize = 7;
pub const COLUMNS: usize = 4;

/// Three layers with dropout; the loss is the rows' share of the sum of squares, over the divisor of the batch.
pub fn model() -> Result<(Graph, ValueId, ValueId), GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32(Shape::batch_of([COLUMNS])));
    let share = graph.scalar("share");
    let stream = graph.stream();
    let mut hidden = x;
    for layer in 0..3 {
        let w = parameter(&mut graph, &format!("w{layer}"), Shape::fixed([COLUMNS, COLUMNS]))?;
        let bias = parameter(&mut graph, &format!("bias{layer}"), Shape::fixed([COLUMNS]))?;
        let product = graph.matmul(hidden, w)?;
        let sum = graph.plus(product, bias)?;
        hidden = graph.unary(Unary::Tanh, sum)?;
    }
    let kept = graph.map(hidden, |e, x| e.select(e.binary(Binary::Less, e.random(stream), e.constant(0.7)), x, e.constant(0.0)))?;
    let squares = graph.pointwise(Expr::build(|e| e.mul(e.input(1), e.mul(e.input(0), e.input(0)))), &[kept, share])?;
    let loss = graph.sum(squares)?;
    graph.output("loss", loss);
    // Rows with a positive first column count.
    let counted = graph.pointwise(Expr::build(|e| e.mul(e.input(1), e.binary(Binary::Less, e.constant(0.0), e.input(0)))), &[x, share])?;
    let counted = graph.sum(counted)?;
    Ok((graph, loss, counted))
}

/// Momentum, so that the optimizer has states of its own.
pub fn momentum(graph: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
    let value = graph.updated_value(parameter).expect("parameters are read");
    let velocity = graph.state("velocity", StateKind::Optimizer, graph.ty(value).clone(), Init::Constant(0.0))?;
    let faster = graph.pointwise(Expr::build(|e| e.add(e.mul(e.input(0), e.constant(0.9)), e.input(1))), &[velocity, gradient])?;
    let moved = graph.pointwise(Expr::build(|e| e.sub(e.input(0), e.mul(e.input(1), e.constant(0.1)))), &[value, faster])?;
    graph.update(graph.as_state(velocity).expect("just declared"), faster);
    graph.update(parameter, moved);
    Ok(())
}

/// Every gradient divided by the largest number of them all.
fn normalize(g: &mut Graph, all: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
    let mut largest: Option<ValueId> = None;
    for gradient in all {
        let sizes = g.unary(Unary::Abs, *gradient)?;
        let axes: Vec<usize> = (0..g.shape(sizes).rank()).collect();
        let most = g.reduce(Reduction::Max, sizes, &axes)?;
        let most = g.reshape(most, Shape::scalar())?;
        largest = Some(largest.map_or(Ok(most), |known| g.binary(Binary::Max, known, most))?);
    }
    all.iter().map(|gradient| g.binary(Binary::Div, *gradient, largest.expect("there are parameters"))).collect()
}

/// What training does beside plain updates.
#[derive(Clone, Copy, Debug, Default)]
struct Extras {
    normalizes: bool,
    divides: bool,
    scales: bool,
    resumes: bool,
}

fn programs(extras: Extras, data_parallel: Option<DataParallel>) -> Vec<(Role, Graph)> {
    programs_in(None, extras, data_parallel)
}

fn programs_in(order: Option<FixedOrder>, extras: Extras, data_parallel: Option<DataParallel>) -> Vec<(Role, Graph)> {
    let (forward, loss, counted) = model().unwrap();
    let training = Training {
        rule: &momentum,
        gradients: extras.normalizes.then_some(&normalize),
        divisor: extras.divides.then_some(counted),
        scaling: extras.scales.then_some(LossScaling { start: 8.0, growth_steps: 2000 }),
        resumes: extras.resumes,
        data_parallel,
        order,
        sharding: None,
    };
    training_programs_with(&forward, loss, true, &training).unwrap()
}

pub fn first_states(programs: &[(Role, Graph)]) -> Vec<Vec<f64>> {
    let longest = programs.iter().map(|(_, graph)| graph.states()).max_by_key(|states| states.len()).unwrap();
    let first = |(i, state): (usize, &plimsoll_core::graph::State)| {
        let count = state.ty.shape.elements().factor();
        match (state.kind, state.init) {
            (StateKind::Optimizer, Init::Constant(number)) => vec![f64::from(number); count],
            _ => numbers(count, i as u32),
        }
    };
    longest.iter().enumerate().map(first).collect()
}

/// The states of every rank after one batch, of which each rank has consecutive micro-batches of these sizes.
fn after_one_batch(programs: &[(Role, Graph)], ranks: &[&[usize]]) -> Vec<Vec<Vec<f64>>> {
    let x = numbers(ROWS * COLUMNS, 100);
    let mut states = vec![first_states(programs); ranks.len()];
    let most = ranks.iter().map(|pieces| pieces.len()).max().unwrap();
    let mut from: Vec<usize> = (0..ranks.len()).map(|rank| ranks[..rank].iter().flat_map(|pieces| pieces.iter()).sum()).collect();
    for turn in 0..most {
        // Ranks meet in their last micro-batch; until then each goes its own way.
        for (rank, pieces) in ranks.iter().enumerate() {
            if turn + 1 < pieces.len() {
                let (role, rows) = (if turn == 0 { Role::First } else { Role::Middle }, pieces[turn]);
                let columns = [x[from[rank] * COLUMNS..(from[rank] + rows) * COLUMNS].to_vec()];
                let random = StepRandom { seed: 5, step: 1, first_row: from[rank] as u64 };
                let scalars = [1.0 / ROWS as f64];
                states[rank] = reference::run(of(programs, role), rows, &columns, &states[rank], &scalars, &random).states().to_vec();
                from[rank] += rows;
            }
        }
    }
    let roles: Vec<Role> = ranks.iter().map(|pieces| if pieces.len() == 1 { Role::Step } else { Role::Last }).collect();
    let columns: Vec<[Vec<f64>; 1]> =
        ranks.iter().zip(&from).map(|(pieces, from)| [x[from * COLUMNS..(from + pieces.last().unwrap()) * COLUMNS].to_vec()]).collect();
    let scalars = [1.0 / ROWS as f64];
    let inputs: Vec<RankInputs<'_>> = (0..ranks.len())
        .map(|rank| RankInputs {
            rows: *ranks[rank].last().unwrap(),
            inputs: &columns[rank],
            states: &states[rank],
            scalars: &scalars,
            random: StepRandom { seed: 5, step: 1, first_row: from[rank] as u64 },
        })
        .collect();
    assert!(roles.iter().all(|role| *role == roles[0]), "the ranks of one reference run have one program");
    let outcomes = reference::run_on_ranks(of(programs, roles[0]), &inputs);
    let named = |states: &[Vec<f64>]| -> Vec<Vec<f64>> {
        let all = programs[0].1.states().iter().zip(states);
        all.filter(|(state, _)| state.kind != StateKind::Accumulator).map(|(_, elements)| elements.clone()).collect()
    };
    outcomes.iter().map(|outcome| named(outcome.states())).collect()
}

pub fn of(programs: &[(Role, Graph)], role: Role) -> &Graph {
    &programs.iter().find(|(own, _)| *own == role).unwrap().1
}

fn collectives(graph: &Graph) -> Vec<usize> {
    graph.nodes().filter(|(_, node)| matches!(node.op, Op::AllReduce(_))).map(|(_, node)| node.outputs.len() - 1).collect()
}

#[test]
fn ranks_with_any_rows_change_the_parameters_as_one_process_does() {
    for choice in 0..16 {
        let extras = Extras { normalizes: choice & 1 > 0, divides: choice & 2 > 0, scales: choice & 4 > 0, resumes: choice & 8 > 0 };
        let alone = after_one_batch(&programs(extras, None), &[&[ROWS]]).remove(0);
        let layouts: [&[&[usize]]; 4] = [&[&[3], &[4]], &[&[1], &[5], &[1]], &[&[2, 2], &[1, 2]], &[&[1, 1, 1], &[1, 1], &[1, 1]]];
        for ranks in layouts {
            for bucket in [Bytes(1), Bytes(100), Bytes::mib(1)] {
                let programs = programs(extras, Some(DataParallel { ranks: ranks.len() as u32, bucket }));
                let optimized: Vec<(Role, Graph)> = programs.iter().map(|(role, graph)| (*role, optimize(graph).unwrap())).collect();
                for programs in [&programs, &optimized] {
                    let together = after_one_batch(programs, ranks);
                    for (rank, states) in together.iter().enumerate() {
                        assert_eq!(states, &together[0], "rank {rank} of {ranks:?} has the states of rank 0: {extras:?}");
                        for (got, want) in states.iter().flatten().zip(alone.iter().flatten()) {
                            assert!((got - want).abs() < 1e-12, "{extras:?}, {ranks:?}, {bucket}: {got} instead of {want}");
                        }
                    }
                }
            }
        }
    }
}

/// The states of every rank after a batch whose micro-batches are added in order.
fn after_micro_batches(programs: &[(Role, Graph)], tree: PairwiseTree, ranks: u32) -> Vec<Vec<Vec<f64>>> {
    let x = numbers(ROWS * COLUMNS, 100);
    let rows = |number: u32| (number as usize * 2).min(ROWS)..(number as usize * 2 + 2).min(ROWS);
    let mut states = vec![first_states(programs); ranks as usize];
    let shares = tree.shares(ranks);
    let (mut last_rows, mut columns, mut scalars, mut role) = (Vec::new(), Vec::new(), Vec::new(), Role::Step);
    for (rank, share) in shares.iter().enumerate() {
        let own = PairwiseTree::new(share.len() as u32);
        for number in share.clone() {
            let place = own.place(number - share.start);
            role = match (number == share.start, number + 1 == share.end) {
                (true, true) => Role::Step,
                (true, false) => Role::First,
                (false, false) => Role::Middle,
                (false, true) => Role::Last,
            };
            let graph = of(programs, role);
            let scalar = |name: &String| match name.as_str() {
                HELD_SUMS => f64::from(place.before),
                MERGED_SUMS => f64::from(place.merged),
                MICRO_BATCHES => f64::from(tree.micro_batches()),
                _ => 1.0 / ROWS as f64,
            };
            let given: Vec<f64> = graph.scalars().iter().map(scalar).collect();
            let column = [x[rows(number).start * COLUMNS..rows(number).end * COLUMNS].to_vec()];
            let random = StepRandom { seed: 5, step: 1, first_row: rows(number).start as u64 };
            if matches!(role, Role::First | Role::Middle) {
                states[rank] = reference::run(graph, rows(number).len(), &column, &states[rank], &given, &random).states().to_vec();
                continue;
            }
            last_rows.push(rows(number));
            columns.push(column);
            scalars.push(given);
        }
    }
    let input = |rank: usize| RankInputs {
        rows: last_rows[rank].len(),
        inputs: &columns[rank],
        states: &states[rank],
        scalars: &scalars[rank],
        random: StepRandom { seed: 5, step: 1, first_row: last_rows[rank].start as u64 },
    };
    let inputs: Vec<RankInputs<'_>> = (0..ranks as usize).map(input).collect();
    let outcomes = reference::run_on_ranks(of(programs, role), &inputs);
    let named = |states: &[Vec<f64>]| -> Vec<Vec<f64>> {
        let all = programs[0].1.states().iter().zip(states);
        all.filter(|(state, _)| state.kind != StateKind::Accumulator).map(|(_, elements)| elements.clone()).collect()
    };
    outcomes.iter().map(|outcome| named(outcome.states())).collect()
}

/// The statistics of all rows, in the forward pass, and their gradient.
#[test]
fn a_sum_within_the_forward_pass_has_the_gradient_of_one_process() {
    let programs = |ranks: u32| {
        let mut graph = Graph::new();
        let x = graph.input("x", TensorType::f32(Shape::batch_of([COLUMNS])));
        let w = parameter(&mut graph, "w", Shape::fixed([COLUMNS, COLUMNS])).unwrap();
        let mut hidden = graph.matmul(x, w).unwrap();
        for _ in 0..2 {
            // Rows minus the mean of all rows, and then a nonlinear function.
            let mut sum = graph.reduce(Reduction::Sum, hidden, &[0]).unwrap();
            if ranks > 0 {
                let token = graph.collective_token();
                let op = AllReduce { ranks, has_token: token.is_some(), order: None };
                let inputs: Vec<ValueId> = [sum].into_iter().chain(token).collect();
                sum = graph.add(Op::AllReduce(op), &inputs).unwrap()[0];
            }
            let centred = Expr::build(|e| e.sub(e.input(0), e.mul(e.input(1), e.constant(1.0 / ROWS as f32))));
            let centred = graph.pointwise(centred, &[hidden, sum]).unwrap();
            hidden = graph.unary(Unary::Tanh, centred).unwrap();
        }
        let squares = graph.times(hidden, hidden).unwrap();
        let loss = graph.sum(squares).unwrap();
        let data_parallel = (ranks > 0).then_some(DataParallel { ranks, bucket: Bytes(1) });
        training_programs_with(&graph, loss, false, &Training { data_parallel, ..Training::new(&momentum) }).unwrap()
    };
    let x = numbers(ROWS * COLUMNS, 100);
    let after = |programs: &[(Role, Graph)], rows: &[std::ops::Range<usize>]| {
        let states = first_states(programs);
        let columns: Vec<[Vec<f64>; 1]> = rows.iter().map(|rows| [x[rows.start * COLUMNS..rows.end * COLUMNS].to_vec()]).collect();
        let input = |(rows, inputs)| RankInputs { rows, inputs, states: &states, scalars: &[], random: StepRandom::default() };
        let inputs: Vec<RankInputs<'_>> =
            rows.iter().map(|rows| rows.len()).zip(columns.iter().map(|columns| &columns[..])).map(input).collect();
        reference::run_on_ranks(&programs[0].1, &inputs).iter().map(|outcome| outcome.states().to_vec()).collect::<Vec<_>>()
    };
    let alone = after(&programs(0), std::slice::from_ref(&(0..ROWS))).remove(0);
    let graph = programs(3);
    // Two in the forward pass, two in the backward pass, one of the parameter's gradient, in one order.
    assert_eq!(collectives(&graph[0].1), [1; 5]);
    assert_sound(&plan(graph.clone(), ROWS, &PAPER).unwrap());
    let optimized = vec![(Role::Step, optimize(&graph[0].1).unwrap())];
    for programs in [&graph, &optimized] {
        for states in after(programs, &[0..3, 3..4, 4..ROWS]) {
            for (got, want) in states.iter().flatten().zip(alone.iter().flatten()) {
                assert!((got - want).abs() < 1e-12, "{got} instead of {want}");
            }
        }
    }
}

/// In the order of one tree, any ranks have the same bits in double precision too.
#[test]
fn fixed_micro_batches_change_the_parameters_alike_on_any_ranks() {
    let tree = PairwiseTree::new(4);
    for choice in 0..8 {
        let extras = Extras { normalizes: choice & 1 > 0, divides: choice & 2 > 0, scales: choice & 4 > 0, resumes: true };
        let whole = after_one_batch(&programs(extras, None), &[&[ROWS]]).remove(0);
        let mut alone: Option<Vec<Vec<f64>>> = None;
        for ranks in [1, 2, 4] {
            let own = PairwiseTree::new(tree.shares(ranks)[0].len() as u32);
            let data_parallel = (ranks > 1).then_some(DataParallel { ranks, bucket: Bytes(100) });
            let programs = programs_in(Some(FixedOrder { tree, own }), extras, data_parallel);
            let optimized: Vec<(Role, Graph)> = programs.iter().map(|(role, graph)| (*role, optimize(graph).unwrap())).collect();
            for programs in [&programs, &optimized] {
                for states in after_micro_batches(programs, tree, ranks) {
                    assert_eq!(&states, alone.get_or_insert_with(|| states.clone()), "{ranks} ranks: {extras:?}");
                    for (got, want) in states.iter().flatten().zip(whole.iter().flatten()) {
                        assert!((got - want).abs() < 1e-12, "{extras:?}, {ranks} ranks: {got} instead of {want}");
                    }
                }
            }
            let planned = plan(programs, ROWS, &PAPER).unwrap();
            assert_sound(&planned);
        }
    }
}

#[test]
fn only_the_last_micro_batch_meets_other_ranks() {
    let programs = programs(Extras::default(), Some(DataParallel { ranks: 2, bucket: Bytes(1) }));
    let found: Vec<(Role, usize)> = programs.iter().map(|(role, graph)| (*role, collectives(graph).len())).collect();
    assert_eq!(found, [(Role::Step, 6), (Role::First, 0), (Role::Middle, 0), (Role::Last, 6)]);
}

#[test]
fn buckets_begin_with_the_last_layer_and_the_divisor_is_first() {
    // A kernel has 64 bytes, a bias 16.
    let tensors = |bucket: u64, divides: bool| {
        let extras = Extras { divides, ..Extras::default() };
        collectives(of(&programs(extras, Some(DataParallel { ranks: 2, bucket: Bytes(bucket) })), Role::Step))
    };
    assert_eq!(tensors(1, false), [1; 6]);
    assert_eq!(tensors(80, false), [2; 3]);
    assert_eq!(tensors(81, false), [3, 3]);
    assert_eq!(tensors(1 << 20, true), [1, 6]);
    let programs = programs(Extras::default(), Some(DataParallel { ranks: 2, bucket: Bytes(80) }));
    let graph = of(&programs, Role::Step);
    let first = graph.nodes().find(|(_, node)| matches!(node.op, Op::AllReduce(_))).unwrap().1;
    let names: Vec<&str> = first.inputs.iter().map(|value| &*graph.producer(*value).scope).collect();
    assert_eq!(first.scope.to_string(), "all_reduce/0");
    assert_eq!(graph.shape(first.inputs[0]), &Shape::fixed([COLUMNS]), "the bias of the last layer: {names:?}");
}

/// Every order that the planner chooses has the collectives in the order of the graph, and none is repeated.
#[test]
fn plans_run_collectives_once_and_in_order() {
    for resumes in [false, true] {
        let data_parallel = Some(DataParallel { ranks: 3, bucket: Bytes(1) });
        let programs = programs(Extras { resumes, ..Extras::default() }, data_parallel);
        let planned = plan(programs.clone(), ROWS, &PAPER).unwrap();
        assert_sound(&planned);
        for program in &planned.programs {
            let scopes = program.order.iter().map(|id| program.graph.node(*id));
            let scopes: Vec<&str> = scopes.filter(|node| matches!(node.op, Op::AllReduce(_))).map(|node| &*node.scope).collect();
            let count = if matches!(program.role, Role::Step | Role::Last) { 6 } else { 0 };
            assert_eq!(scopes, (0..count).map(|i| format!("all_reduce/{i}")).collect::<Vec<_>>(), "{}", program.role.name());
        }
    }
}

/// A certificate with collectives in another order is refused, and so is a graph that sums other tensors together, or
/// over other ranks.
#[test]
fn the_checker_refuses_other_orders_and_other_sums() {
    let step = |ranks, bucket| vec![programs(Extras::default(), Some(DataParallel { ranks, bucket: Bytes(bucket) })).remove(0)];
    let planned = plan(step(2, 1), ROWS, &PAPER).unwrap();
    let graph = &planned.programs[0].graph;
    let mut certificate = planned.certificate();
    let steps = &mut certificate.programs[0].steps;
    let collectives: Vec<usize> = (0..steps.len()).filter(|at| steps[*at].op == "all_reduce").collect();
    // The first sum runs where the second did, and the other way round.
    steps.swap(collectives[0], collectives[1]);
    let error = check(&certificate, &[graph]).unwrap_err().to_string();
    assert!(error.contains("(all_reduce of `all_reduce/1`)") && error.contains("is read where"), "{error}");

    let optimized = |ranks, bucket| optimize(&step(ranks, bucket)[0].1).unwrap();
    let original = optimized(2, 1);
    check_equivalence(&original, &optimized(2, 1), &PAPER, ROWS).unwrap();
    for other in [optimized(2, 80), optimized(3, 1)] {
        let error = check_equivalence(&original, &other, &PAPER, ROWS).unwrap_err().to_string();
        assert!(error.contains("the planned graph changes `") && error.contains("to something else"), "{error}");
    }
}

/// Under tight limits, forward nodes are recomputed, collectives never.
#[test]
fn recomputation_repeats_no_collective() {
    let rates = Rates { flops_per_s: 1e9, bytes_per_s: 1e9, step_s: 1e-9 };
    let graph = optimize(of(&programs(Extras::default(), Some(DataParallel { ranks: 2, bucket: Bytes::mib(1) })), Role::Step)).unwrap();
    let rows = 200;
    let free = layout(&[(Role::Step, graph.clone())], rows, &PAPER).unwrap();
    let mut recomputed = 0;
    for percent in [95, 85, 75, 65] {
        let limit = Bytes(free.arena.0 * percent / 100);
        let Ok(found) = fit(&graph, rows, &PAPER, limit, &rates, Effort(30_000)) else { continue };
        let plan = layout_sequenced(vec![(Role::Step, found)], rows, &PAPER).unwrap();
        assert_sound(&plan);
        assert_eq!(collectives(&plan.programs[0].graph), [6], "at {percent} %");
        recomputed += plan.programs[0].graph.nodes().count().saturating_sub(graph.nodes().count());
    }
    assert!(recomputed > 0, "some limit is met by recomputing");
}

/// Also without a workspace, sums take the place of gradients.
#[test]
fn sums_take_the_place_of_gradients() {
    let device = Paper { alignment: 4, scratch: false };
    let arena = |data_parallel| plan(vec![programs(Extras::default(), data_parallel).remove(0)], ROWS, &device).unwrap().arena;
    // All gradients are live together in one bucket, and once only: 3·(64 + 16) bytes and a token.
    let together = arena(Some(DataParallel { ranks: 2, bucket: Bytes::mib(1) }));
    assert!(together <= arena(None) + Bytes(3 * 80 + 4), "{together} against {}", arena(None));
}

#[test]
fn what_cannot_be_summed_over_ranks_is_refused() {
    let message = |build: &dyn Fn(&mut Graph) -> Result<(), GraphError>| {
        let mut graph = Graph::new();
        graph.in_scope("dense", |g| build(g)).unwrap_err().to_string()
    };
    let all_reduce = |ranks, has_token| Op::AllReduce(AllReduce { ranks, has_token, order: None });
    let rows = message(&|g| {
        let x = g.input("x", TensorType::f32(Shape::batch_of([3])));
        g.add(all_reduce(2, false), &[x]).map(drop)
    });
    assert_eq!(rows, "layer `dense`: sums tensors without rows of the batch, but got f32[B, 3]; reduce it first");
    let half = message(&|g| {
        let x = parameter(g, "w", Shape::fixed([3]))?;
        let half = g.cast(x, DType::BF16)?;
        g.add(all_reduce(2, false), &[half]).map(drop)
    });
    assert_eq!(half, "layer `dense`: sums in single precision, but got bf16[3]; cast it first");
    let token = message(&|g| {
        let x = parameter(g, "w", Shape::fixed([3]))?;
        g.add(all_reduce(2, true), &[x, x]).map(drop)
    });
    assert_eq!(token, "layer `dense`: its last input is the token of the previous collective, not f32[3]");
    let none = message(&|g| g.add(all_reduce(2, false), &[]).map(drop));
    assert_eq!(none, "layer `dense`: takes one or more tensors");
    let ranks = message(&|g| {
        let x = parameter(g, "w", Shape::fixed([3]))?;
        g.add(all_reduce(0, false), &[x]).map(drop)
    });
    assert_eq!(ranks, "layer `dense`: sums over one or more ranks, not 0");
    for (_, graph) in programs(Extras::default(), Some(DataParallel { ranks: 2, bucket: Bytes(1) })) {
        verify(&graph).unwrap();
    }
}
