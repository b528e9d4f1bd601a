//! The step and its variants: a batch cut into pieces changes the parameters as the whole batch does, whatever the
//! pieces.

use crate::support::{PAPER, assert_sound, numbers, parameter};
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::loss_scale::LossScaling;
use plimsoll_core::plan::plan;
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::{Role, Training, accumulators_resume, training_programs, training_programs_with};
use plimsoll_core::{Graph, GraphError, Shape, TensorType, ValueId, reference};

const ROWS: usize = 7;

/// Two layers with dropout between them; the loss is the rows' share of the batch's mean squared error.
fn model() -> Result<(Graph, ValueId), GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32(Shape::batch_of([4])));
    let target = graph.input("target", TensorType::f32(Shape::batch_of([2])));
    let batch = graph.scalar("rows in the batch");
    let stream = graph.stream();
    let (w1, w2) = (parameter(&mut graph, "w1", Shape::fixed([4, 5]))?, parameter(&mut graph, "w2", Shape::fixed([5, 2]))?);
    let bias = parameter(&mut graph, "bias", Shape::fixed([2]))?;
    let hidden = graph.matmul(x, w1)?;
    let dropped = graph.map(hidden, |e, x| {
        let kept = e.binary(Binary::Less, e.random(stream), e.constant(0.6));
        e.mul(e.select(kept, x, e.constant(0.0)), e.constant(1.0 / 0.6))
    })?;
    let product = graph.matmul(dropped, w2)?;
    let prediction = graph.plus(product, bias)?;
    let squared = Expr::build(|e| {
        let difference = e.sub(e.input(0), e.input(1));
        e.div(e.mul(difference, difference), e.input(2))
    });
    let errors = graph.pointwise(squared, &[prediction, target, batch])?;
    let loss = graph.sum(errors)?;
    graph.output("loss", loss);
    Ok((graph, loss))
}

/// Momentum, so that the optimizer has states of its own.
fn momentum(graph: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
    let ty = graph.states()[parameter.0 as usize].ty.clone();
    let velocity = graph.state("velocity", StateKind::Optimizer, ty, Init::Constant(0.0))?;
    let faster = Expr::build(|e| e.add(e.mul(e.input(0), e.constant(0.9)), e.input(1)));
    let faster = graph.pointwise(faster, &[velocity, gradient])?;
    let value = graph.state_value(parameter).expect("parameters are read");
    let moved = graph.pointwise(Expr::build(|e| e.sub(e.input(0), e.mul(e.input(1), e.constant(0.1)))), &[value, faster])?;
    graph.update(graph.as_state(velocity).expect("just declared"), faster);
    graph.update(parameter, moved);
    Ok(())
}

fn programs() -> Vec<(Role, Graph)> {
    let (forward, loss) = model().unwrap();
    training_programs(&forward, loss, true, &momentum).unwrap()
}

fn first_states(programs: &[(Role, Graph)]) -> Vec<Vec<f64>> {
    let longest = programs.iter().map(|(_, graph)| graph.states()).max_by_key(|states| states.len()).unwrap();
    longest.iter().enumerate().map(|(i, state)| numbers(state.ty.shape.elements().factor(), i as u32)).collect()
}

/// Runs one batch in the given pieces and gives the states afterwards, the sums of gradients left out.
fn after_one_batch(programs: &[(Role, Graph)], pieces: &[(Role, usize)]) -> Vec<Vec<f64>> {
    after_one_batch_from(programs, pieces, first_states(programs))
}

fn after_one_batch_from(programs: &[(Role, Graph)], pieces: &[(Role, usize)], mut states: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let (x, target) = (numbers(ROWS * 4, 100), numbers(ROWS * 2, 101));
    let mut from = 0;
    for (role, rows) in pieces {
        let graph = &programs.iter().find(|(own, _)| own == role).unwrap().1;
        let columns = [x[from * 4..(from + rows) * 4].to_vec(), target[from * 2..(from + rows) * 2].to_vec()];
        let random = StepRandom { seed: 5, step: 1, first_row: from as u64 };
        states = reference::run(graph, *rows, &columns, &states, &[ROWS as f64], &random).states().to_vec();
        from += rows;
    }
    assert_eq!(from, ROWS, "the pieces are the batch");
    let named = programs[0].1.states().iter().zip(states);
    named.filter(|(state, _)| state.kind != StateKind::Accumulator).map(|(_, elements)| elements).collect()
}

#[test]
fn pieces_of_any_size_change_the_parameters_as_the_whole_batch_does() {
    let programs = programs();
    let whole = after_one_batch(&programs, &[(Role::Step, 7)]);
    assert_ne!(whole[0], first_states(&programs)[0], "the step changes something");
    let cuts: [&[(Role, usize)]; 4] = [
        &[(Role::First, 3), (Role::Middle, 2), (Role::Last, 2)],
        &[(Role::First, 1), (Role::Last, 6)],
        &[(Role::First, 6), (Role::Last, 1)],
        &[(Role::First, 2), (Role::Middle, 2), (Role::Middle, 2), (Role::Last, 1)],
    ];
    for cut in cuts {
        for (state, (got, want)) in after_one_batch(&programs, cut).iter().zip(&whole).enumerate() {
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 1e-12, "{cut:?}: state {state} has {got} instead of {want}");
            }
        }
    }
}

#[test]
fn all_variants_are_planned_into_one_arena() {
    let plan = plan(programs(), ROWS, &PAPER).unwrap();
    assert_sound(&plan);
    let names: Vec<&str> = plan.states.iter().map(|state| state.name.as_str()).collect();
    assert_eq!(
        names,
        ["w1", "w2", "bias", "w1/gradient_sum", "w2/gradient_sum", "bias/gradient_sum", "w1/velocity", "w2/velocity", "bias/velocity"]
    );
}

#[test]
fn without_accumulation_there_are_no_sums() {
    let (forward, loss) = model().unwrap();
    let programs = training_programs(&forward, loss, false, &momentum).unwrap();
    assert_eq!(programs.len(), 1);
    assert!(programs[0].1.states().iter().all(|state| state.kind != StateKind::Accumulator));
}

#[test]
fn the_loss_is_known_before_any_parameter_changes() -> Result<(), GraphError> {
    let (graph, loss) = model()?;
    let plan = plan(training_programs(&graph, loss, true, &momentum)?, ROWS, &PAPER)?;
    for program in &plan.programs {
        let place = |value: ValueId| program.order.iter().position(|id| program.graph.node(*id).outputs.contains(&value));
        let (_, loss) = program.graph.outputs()[0];
        let made = place(loss).or_else(|| place(program.graph.producer(loss).inputs[0])).expect("the loss is made by a step");
        let first_change = program.graph.updates().iter().filter_map(|(_, value)| place(*value)).min().expect("something changes");
        assert!(made < first_change, "{}: the loss is made at {made}, a state changes at {first_change}", program.role.name());
    }
    Ok(())
}

/// Without accumulation every parameter changes as soon as its gradient is complete: of many layers, hardly two
/// gradients live together.
#[test]
fn parameters_change_inside_backward() -> Result<(), GraphError> {
    const LAYERS: usize = 8;
    let mut graph = Graph::new();
    let mut x = graph.input("x", TensorType::f32(Shape::batch_of([16])));
    for layer in 0..LAYERS {
        let w = parameter(&mut graph, &format!("w{layer}"), Shape::fixed([16, 16]))?;
        x = graph.matmul(x, w)?;
        x = graph.unary(plimsoll_core::expr::Unary::Tanh, x)?;
    }
    let loss = graph.sum(x)?;
    graph.output("loss", loss);
    let plan = plan(training_programs(&graph, loss, false, &momentum)?, ROWS, &PAPER)?;
    let program = &plan.programs[0];
    let weight = TensorType::f32(Shape::fixed([16, 16]));
    let gradients: Vec<_> = program.buffers.iter().filter(|b| b.values.iter().any(|value| *program.graph.ty(*value) == weight)).collect();
    let most = (0..program.order.len() as u32).map(|step| gradients.iter().filter(|b| b.first <= step && step <= b.last).count()).max();
    assert_eq!((gradients.len(), most), (LAYERS, Some(1)), "{LAYERS} gradients are made, and never two of them are there at once");
    Ok(())
}

/// A rule that sees all gradients, a divisor known only at the end of a batch and a scaled loss: pieces still add up to
/// the whole.
#[test]
fn what_looks_at_all_gradients_looks_at_the_completed_sums() {
    let (mut forward, loss) = model().unwrap();
    let (target, batch) = (ValueId(1), ValueId(2));
    assert_eq!((forward.inputs()[1].name.as_str(), forward.scalars()[0].as_str()), ("target", "rows in the batch"));
    let positive = Expr::build(|e| e.div(e.binary(Binary::Less, e.constant(0.0), e.input(0)), e.input(1)));
    let positive = forward.pointwise(positive, &[target, batch]).unwrap();
    let counted = forward.sum(positive).unwrap();
    // Every gradient is divided by the largest number of them all.
    let normalise = |g: &mut Graph, all: &[ValueId]| -> Result<Vec<ValueId>, GraphError> {
        let mut largest: Option<ValueId> = None;
        for gradient in all {
            let sizes = g.unary(plimsoll_core::expr::Unary::Abs, *gradient)?;
            let axes: Vec<usize> = (0..g.shape(sizes).rank()).collect();
            let most = g.reduce(plimsoll_core::ops::Reduction::Max, sizes, &axes)?;
            let most = g.reshape(most, Shape::scalar())?;
            largest = Some(largest.map_or(Ok(most), |known| g.binary(Binary::Max, known, most))?);
        }
        all.iter().map(|gradient| g.binary(Binary::Div, *gradient, largest.expect("there are parameters"))).collect()
    };
    let seen = |normalised: bool, scaled: bool, resumes: bool| {
        let training = Training {
            rule: &momentum,
            gradients: normalised.then_some(&normalise),
            divisor: Some(counted),
            scaling: scaled.then_some(LossScaling { start: 8.0, growth_steps: 2000 }),
            resumes,
            data_parallel: None,
            order: None,
            sharding: None,
        };
        training_programs_with(&forward, loss, true, &training).unwrap()
    };
    let mut results = Vec::new();
    for (normalised, scaled, resumes) in (0..8).map(|i| (i & 1 > 0, i & 2 > 0, i & 4 > 0)) {
        let programs = seen(normalised, scaled, resumes);
        assert_sound(&plan(programs.clone(), ROWS, &PAPER).unwrap());
        let mut states = first_states(&programs);
        for (state, first) in programs[0].1.states().iter().zip(&mut states) {
            if let (StateKind::Optimizer, Init::Constant(number)) = (state.kind, state.init) {
                first.fill(f64::from(number));
            }
        }
        let whole = after_one_batch_from(&programs, &[(Role::Step, 7)], states.clone());
        for cut in [&[(Role::First, 3), (Role::Middle, 2), (Role::Last, 2)][..], &[(Role::First, 1), (Role::Last, 6)]] {
            let pieces = after_one_batch_from(&programs, cut, states.clone());
            for (got, want) in pieces.iter().flatten().zip(whole.iter().flatten()) {
                assert!((got - want).abs() < 1e-12, "{cut:?}: {got} instead of {want}");
            }
        }
        results.push(whole);
    }
    assert_ne!(results[0][0], results[1][0], "the rule for all gradients is heard");
    for (plain, scaled) in [(&results[0], &results[2]), (&results[1], &results[3])] {
        let worst = plain[0].iter().zip(&scaled[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-12, "the scale of the loss leaves no trace: {worst}");
    }
}

/// The middle program of a graph whose sums over rows resume.
fn middle(forward: &Graph, loss: ValueId) -> Graph {
    let training = Training { resumes: true, ..Training::new(&momentum) };
    let programs = training_programs_with(forward, loss, true, &training).unwrap();
    assert_sound(&plan(programs.clone(), ROWS, &PAPER).unwrap());
    programs.into_iter().find(|(role, _)| *role == Role::Middle).unwrap().1
}

#[test]
fn every_sum_over_rows_has_an_accumulator_that_it_resumes_from() {
    let (forward, loss) = model().unwrap();
    let graph = middle(&forward, loss);
    assert!(accumulators_resume(&graph));
    let names: Vec<&str> = graph.states().iter().map(|state| state.name.as_str()).filter(|name| name.contains("sum")).collect();
    assert_eq!(names, ["w1/gradient_sum", "w2/gradient_sum", "bias/gradient_sum"]);

    // A weight that is used twice has two sums over rows.
    let mut twice = Graph::new();
    let x = twice.input("x", TensorType::f32(Shape::batch_of([4])));
    let w = parameter(&mut twice, "w", Shape::fixed([4, 4])).unwrap();
    let once = twice.matmul(x, w).unwrap();
    let again = twice.matmul(once, w).unwrap();
    let loss = twice.sum(again).unwrap();
    twice.output("loss", loss);
    let graph = middle(&twice, loss);
    assert!(accumulators_resume(&graph));
    let sums: Vec<&str> = graph.states().iter().map(|state| state.name.as_str()).filter(|name| name.contains("sum")).collect();
    assert_eq!(sums, ["w/gradient_sum", "w/gradient_sum_2"]);
}

/// A gradient that is not a linear function of sums over rows is that of each micro-batch, added as a whole.
#[test]
fn other_gradients_are_added_as_a_whole() {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32(Shape::batch_of([4])));
    let w = parameter(&mut graph, "w", Shape::scalar()).unwrap();
    let total = graph.sum(x).unwrap();
    let square = graph.times(total, total).unwrap();
    let loss = graph.times(square, w).unwrap();
    graph.output("loss", loss);
    let graph = middle(&graph, loss);
    assert!(!accumulators_resume(&graph));
    assert_eq!(graph.states().iter().filter(|state| state.kind == StateKind::Accumulator).count(), 1);
}
