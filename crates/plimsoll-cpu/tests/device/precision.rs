//! Networks with activations in half precision train as well as in single precision, in about half the memory.

use crate::model::bytes;
use plimsoll_core::budget::Owner;
use plimsoll_core::device::StepInputs;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError, Init, StateId, StateKind, ValueId};
use plimsoll_core::ops::{AvgPool, Conv2d, MaxPool, Reduction, Window};
use plimsoll_core::passes::mixed;
use plimsoll_core::plan::{CheckedPlan, plan};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::{Role, training_programs};
use plimsoll_core::{Bytes, DType, Dim, Executor, Ledger, Op, Shape, TensorType};
use plimsoll_cpu::CpuDevice;
use std::sync::Arc;

type Built = Result<ValueId, GraphError>;
/// A forward graph and the bytes of its columns.
type Network = Result<(Graph, Vec<Vec<u8>>), GraphError>;

fn parameter(g: &mut Graph, name: &str, shape: Shape, limit: f32) -> Built {
    let init = if limit == 0.0 { Init::Constant(0.0) } else { Init::Uniform { limit } };
    g.state(name, StateKind::Parameter, TensorType::f32(shape), init)
}

fn relu(g: &mut Graph, x: ValueId) -> Built {
    g.map(x, |e, x| e.binary(Binary::Max, x, e.constant(0.0)))
}

fn convolve(g: &mut Graph, name: &str, x: ValueId, (from, to): (usize, usize)) -> Built {
    g.in_scope(name, |g| {
        let dims = g.shape(x).dims().to_vec();
        let filter = parameter(g, "filter", Shape::fixed([3, 3, from, to]), (6.0 / from as f32).sqrt() / 3.0)?;
        let bias = parameter(g, "bias", Shape::fixed([to]), 0.0)?;
        let window = Window::same((3, 3), (1, 1), (1, 1), (dims[1].factor(), dims[2].factor()));
        let y = g.add_one(Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype: DType::F32 }), &[x, filter])?;
        let y = g.plus(y, bias)?;
        relu(g, y)
    })
}

fn dense(g: &mut Graph, name: &str, x: ValueId, to: usize) -> Built {
    g.in_scope(name, |g| {
        let from = g.shape(x).dims()[1].factor();
        let kernel = parameter(g, "kernel", Shape::fixed([from, to]), (3.0 / from as f32).sqrt())?;
        let bias = parameter(g, "bias", Shape::fixed([to]), 0.0)?;
        let y = g.matmul(x, kernel)?;
        g.plus(y, bias)
    })
}

/// Every row less its mean, divided by its deviation.
fn normalise(g: &mut Graph, x: ValueId) -> Built {
    let share = 1.0 / g.shape(x).dims()[1].factor() as f32;
    let sum = g.reduce(Reduction::Sum, x, &[1])?;
    let mean = g.map(sum, |e, x| e.mul(x, e.constant(share)))?;
    let squares = Expr::build(|e| {
        let off = e.sub(e.input(0), e.input(1));
        e.mul(off, off)
    });
    let squares = g.pointwise(squares, &[x, mean])?;
    let variance = g.reduce(Reduction::Sum, squares, &[1])?;
    let scaled = Expr::build(|e| {
        let deviation = e.unary(Unary::Sqrt, e.add(e.mul(e.input(2), e.constant(share)), e.constant(1e-3)));
        e.div(e.sub(e.input(0), e.input(1)), deviation)
    });
    g.pointwise(scaled, &[x, mean, variance])
}

const ROWS: usize = 16;

/// Convolutions and pools over pixels in bytes, and the cross-entropy of class numbers.
fn images() -> Network {
    const CLASSES: usize = 5;
    let mut g = Graph::new();
    let x = g.input("x", TensorType::new(DType::U8, Shape::batch_of([16, 16, 3])));
    let labels = g.input("labels", TensorType::new(DType::I32, Shape::batch_of([1])));
    let scaled = g.map(x, |e, x| e.sub(e.mul(x, e.constant(1.0 / 100.0)), e.constant(1.0)))?;
    let y = convolve(&mut g, "first", scaled, (3, 16))?;
    let y = convolve(&mut g, "second", y, (16, 16))?;
    let window = Window::valid((2, 2), (2, 2));
    let y = g.add(Op::MaxPool(MaxPool { window }), &[y])?[0];
    let y = convolve(&mut g, "third", y, (16, 32))?;
    let y = convolve(&mut g, "fourth", y, (32, 32))?;
    let y = g.add_one(Op::AvgPool(AvgPool { window }), &[y])?;
    let y = g.flatten(y)?;
    let scores = dense(&mut g, "scores", y, CLASSES)?;
    let log_sum = g.reduce(Reduction::LogSumExp, scores, &[1])?;
    let entropy = Expr::build(|e| {
        let chosen = e.binary(Binary::Equal, e.input(1), e.coordinate(1));
        e.mul(e.mul(chosen, e.sub(e.input(2), e.input(0))), e.constant(1.0 / ROWS as f32))
    });
    let entropy = g.pointwise(entropy, &[scores, labels, log_sum])?;
    let loss = g.sum(entropy)?;
    g.output("loss", loss);
    let pixels = (0..ROWS * 16 * 16 * 3).map(|i| (100.0 + 100.0 * (i as f32 * 0.37 + (i / 768) as f32).sin()) as u8).collect();
    let labels = (0..ROWS).flat_map(|i| ((i * 7 % CLASSES) as i32).to_ne_bytes()).collect();
    Ok((g, vec![pixels, labels]))
}

/// Dense layers with a normalisation between them, and the squared error.
fn rows() -> Network {
    const OUTPUTS: usize = 3;
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([20])));
    let target = g.input("target", TensorType::f32(Shape::batch_of([OUTPUTS])));
    let y = dense(&mut g, "first", x, 48)?;
    let y = relu(&mut g, y)?;
    let y = normalise(&mut g, y)?;
    let y = dense(&mut g, "second", y, 32)?;
    let y = g.unary(Unary::Tanh, y)?;
    let y = dense(&mut g, "third", y, OUTPUTS)?;
    let square = Expr::build(|e| {
        let off = e.sub(e.input(0), e.input(1));
        e.mul(e.mul(off, off), e.constant(1.0 / (ROWS * OUTPUTS) as f32))
    });
    let squares = g.pointwise(square, &[y, target])?;
    let loss = g.sum(squares)?;
    g.output("loss", loss);
    let x: Vec<f32> = (0..ROWS * 20).map(|i| (i as f32 * 0.7).sin()).collect();
    let target: Vec<f32> = (0..ROWS * OUTPUTS).map(|i| x[i / OUTPUTS * 20 + i % OUTPUTS] - 0.5 * x[i / OUTPUTS * 20 + 9]).collect();
    Ok((g, vec![bytes(&x).to_vec(), bytes(&target).to_vec()]))
}

fn loss_of(graph: &Graph) -> ValueId {
    graph.outputs().iter().find(|(name, _)| name == "loss").expect("there is a loss").1
}

fn descend(g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
    assert_eq!(g.ty(gradient).dtype, DType::F32, "gradients of parameters are single precision");
    let value = g.state_value(parameter).expect("parameters are read");
    let step = Expr::build(|e| e.sub(e.input(0), e.mul(e.constant(0.1), e.input(1))));
    let new = g.pointwise(step, &[value, gradient])?;
    g.update(parameter, new);
    Ok(())
}

fn planned(graph: &Graph, device: &CpuDevice) -> CheckedPlan {
    let programs = training_programs(graph, loss_of(graph), false, &descend).unwrap();
    CheckedPlan::new(plan(programs, ROWS, device).unwrap()).unwrap()
}

/// The losses of a few steps, and the states after them.
fn train(graph: &Graph, columns: &[Vec<u8>], threads: usize) -> (Vec<f32>, Vec<Vec<u8>>) {
    let device = CpuDevice::new(threads).unwrap();
    let plan = planned(graph, &device);
    let mut executor = Executor::new(Arc::new(device), plan.clone(), &Ledger::new("host", None)).unwrap();
    executor.initialize(7).unwrap();
    let columns: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
    let losses = (0..20)
        .map(|step| {
            let random = StepRandom { seed: 1, step, first_row: 0 };
            let ticket = executor.run(Role::Step, ROWS, &StepInputs { columns: &columns, scalars: &[], random }).unwrap();
            let mut loss = [0.0];
            executor.outcome(ticket, &mut loss).unwrap();
            loss[0]
        })
        .collect();
    let states = plan.states.iter().enumerate().map(|(i, state)| {
        let mut bytes = vec![0; state.size.get()];
        executor.read_state(StateId(i as u32), &mut bytes).unwrap();
        bytes
    });
    (losses, states.collect())
}

fn check_learning(build: fn() -> Network) {
    let (graph, columns) = build().unwrap();
    let (single, _) = train(&graph, &columns, 2);
    assert!(single[19] < 0.8 * single[0], "{single:?}");
    // Small gradients round coarsely in f16 where the loss is not scaled up.
    for (dtype, near) in [(DType::BF16, 0.05), (DType::F16, 0.03)] {
        let narrow = mixed(&graph, dtype).unwrap();
        let (losses, states) = train(&narrow, &columns, 2);
        for (step, (wide, narrow)) in single.iter().zip(&losses).enumerate() {
            assert!((wide - narrow).abs() <= near * single[0], "{dtype}, step {step}: {narrow} for {wide}");
        }
        assert_ne!(single, losses, "{dtype} rounds something");
        for threads in [1, 3] {
            assert!(train(&narrow, &columns, threads) == (losses.clone(), states.clone()), "{dtype} on {threads} threads");
        }
    }
}

#[test]
fn a_network_of_dense_layers_learns_the_same() {
    check_learning(rows);
}

#[test]
fn a_network_of_convolutions_learns_the_same() {
    check_learning(images);
}

#[test]
fn activations_take_half_the_memory() {
    let (graph, _) = images().unwrap();
    let device = CpuDevice::new(2).unwrap();
    let activations = |graph: &Graph| {
        let plan = planned(graph, &device);
        let owner = plan.by_owner().into_iter().find(|(owner, _)| *owner == Owner::Activations);
        owner.expect("a network has activations").1
    };
    let (single, narrow) = (activations(&graph), activations(&mixed(&graph, DType::BF16).unwrap()));
    assert!(narrow.0 as f64 <= 0.55 * single.0 as f64, "{narrow} instead of {single}");
}

/// What is large is in two bytes: nothing that grows with the batch is stored in four but statistics, and the batch
/// itself.
#[test]
fn nothing_large_is_left_in_four_bytes() {
    let (graph, _) = images().unwrap();
    let plan = planned(&mixed(&graph, DType::BF16).unwrap(), &CpuDevice::new(2).unwrap());
    let graph = &plan.programs[0].graph;
    let large: Vec<String> = graph
        .nodes()
        .filter(|(_, node)| !node.op.is_leaf())
        .flat_map(|(_, node)| &node.outputs)
        .map(|value| graph.ty(*value))
        .filter(|ty| ty.dtype == DType::F32 && ty.shape.has_batch() && ty.shape.elements() > Dim::times_batch(5))
        .map(|ty| ty.to_string())
        .collect();
    assert!(large.is_empty(), "{large:?}\n{graph}");
    assert!(plan.arena > Bytes::ZERO);
}
