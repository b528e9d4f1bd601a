//! Random steps under random limits: a plan that passes the checker or an infeasibility error, and bit-identical
//! training.

use plimsoll_core::device::StepInputs;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::ops::{Reduction, Slice};
use plimsoll_core::passes::{mixed, optimize};
use plimsoll_core::plan::Rates;
use plimsoll_core::plan::recompute::{Effort, FitError, fit};
use plimsoll_core::plan::split::{pieces, split};
use plimsoll_core::plan::{Capabilities, CheckedPlan, Target};
use plimsoll_core::plan::{ScheduledGraph, check, check_equivalence, layout, layout_sequenced, prove, schedule};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::{Role, training_programs};
use plimsoll_core::{Bytes, DType, Device, Executor, Graph, GraphError, Ledger, Op, Plan, Shape, TensorType, ValueId};
use plimsoll_cpu::CpuDevice;
use std::sync::Arc;

/// Wide enough, with some rows, that values weigh more than the scratch of products.
const WIDTH: usize = 64;
const EFFORT: Effort = Effort(8_000);
const RATES: Rates = Rates { flops_per_s: 1e9, bytes_per_s: 1e9, step_s: 1e-9 };

pub(crate) struct Draw {
    random: StepRandom,
    at: u64,
}

impl Draw {
    pub fn new(seed: u32) -> Draw {
        Draw { random: StepRandom { seed: 23, step: seed, first_row: 0 }, at: 0 }
    }

    pub fn below(&mut self, count: usize) -> usize {
        self.at += 1;
        self.random.words(0, self.at)[0] as usize % count
    }
}

fn parameter(g: &mut Graph, name: &str, dims: [usize; 2]) -> Result<ValueId, GraphError> {
    g.state(name, StateKind::Parameter, TensorType::f32(Shape::fixed(dims)), Init::Uniform { limit: 0.2 })
}

/// One of the things layers do to `[rows, width]`, from the latest value and any earlier one.
fn layer(g: &mut Graph, draw: &mut Draw, values: &[ValueId], weights: &[ValueId], random: bool) -> Result<ValueId, GraphError> {
    let recent = values[values.len() - 1];
    let any = values[draw.below(values.len())];
    match draw.below(if random { 9 } else { 8 }) {
        0 | 1 => g.matmul(recent, weights[draw.below(weights.len())]),
        2 => g.map(recent, |e, x| e.binary(Binary::Max, x, e.constant(0.0))),
        3 => g.unary(Unary::Tanh, recent),
        4 => g.plus(recent, any),
        5 => g.pointwise(Expr::build(|e| e.unary(Unary::Tanh, e.mul(e.input(0), e.input(1)))), &[recent, any]),
        6 => {
            let product = g.matmul(any, weights[draw.below(weights.len())])?;
            g.plus(product, recent)
        }
        7 => {
            let sum = g.reduce(Reduction::Sum, recent, &[1])?;
            g.pointwise(Expr::build(|e| e.sub(e.input(0), e.mul(e.input(1), e.constant(0.125)))), &[recent, sum])
        }
        _ => {
            let stream = g.stream();
            g.map(recent, |e, x| e.select(e.binary(Binary::Less, e.random(stream), e.constant(0.7)), x, e.constant(0.0)))
        }
    }
}

fn momentum(g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
    let ty = g.states()[parameter.0 as usize].ty.clone();
    let velocity = g.state("velocity", StateKind::Optimizer, ty, Init::Constant(0.0))?;
    let faster = g.pointwise(Expr::build(|e| e.add(e.mul(e.input(0), e.constant(0.5)), e.input(1))), &[velocity, gradient])?;
    let value = g.state_value(parameter).expect("parameters are read");
    let moved = g.pointwise(Expr::build(|e| e.sub(e.input(0), e.mul(e.input(1), e.constant(0.01)))), &[value, faster])?;
    g.update(g.as_state(velocity).expect("just declared"), faster);
    g.update(parameter, moved);
    Ok(())
}

/// The mean square of every row, summed over the rows, as a step that learns.
pub(crate) fn learning(g: Graph, last: ValueId) -> Result<Graph, GraphError> {
    learning_in(None, g, last)
}

/// [`learning`] with activations stored in a type of two bytes.
pub(crate) fn learning_in(dtype: Option<DType>, mut g: Graph, last: ValueId) -> Result<Graph, GraphError> {
    let last = g.unary(Unary::Tanh, last)?;
    let squares = g.times(last, last)?;
    let rows = g.reduce(Reduction::Sum, squares, &[1])?;
    let loss = g.sum(rows)?;
    let share = g.scalar("share");
    let loss = g.times(loss, share)?;
    g.output("loss", loss);
    if let Some(dtype) = dtype {
        g = mixed(&g, dtype)?;
    }
    let loss = g.outputs()[0].1;
    optimize(&training_programs(&g, loss, false, &momentum)?.remove(0).1)
}

/// Branches, residuals, shared weights, long skips, joined and taken apart values, dropout, and an optimizer with a
/// memory.
fn step_graph(seed: u32) -> Graph {
    let build = || -> Result<Graph, GraphError> {
        let mut draw = Draw::new(seed);
        let mut g = Graph::new();
        let x = g.input("x", TensorType::f32(Shape::batch_of([WIDTH])));
        let weights = [parameter(&mut g, "a", [WIDTH; 2])?, parameter(&mut g, "b", [WIDTH; 2])?];
        let wide = parameter(&mut g, "c", [2 * WIDTH, WIDTH])?;
        let mut values = vec![x];
        for i in 0..2 + draw.below(12) {
            let next = g.in_scope(&format!("layer{i}"), |g| {
                if draw.below(8) > 0 {
                    return layer(g, &mut draw, &values, &weights, true);
                }
                let joined = [values[values.len() - 1], values[draw.below(values.len())]];
                let joined = g.add_one(Op::Concat(plimsoll_core::ops::Concat { axis: 1 }), &joined)?;
                match draw.below(2) {
                    0 => g.matmul(joined, wide),
                    _ => g.add_one(Op::Slice(Slice { axis: 1, start: WIDTH / 2, length: WIDTH }), &[joined]),
                }
            })?;
            values.push(next);
        }
        let last = values[values.len() - 1];
        learning(g, last)
    };
    build().expect("every draw gives a legal graph")
}

/// Layers over the places of a sequence, which can be computed some places at a time.
fn sequence_graph(seed: u32) -> Graph {
    let build = || -> Result<Graph, GraphError> {
        let mut draw = Draw::new(seed);
        let mut g = Graph::new();
        let x = g.input("x", TensorType::f32(Shape::batch_of([512, 20])));
        let x = g.reshape(x, Shape::new([plimsoll_core::Dim::times_batch(512), 20.into()]))?;
        let narrow = [parameter(&mut g, "a", [20, 20])?, parameter(&mut g, "b", [20, 20])?];
        let wide = [parameter(&mut g, "c", [24, 24])?];
        let head = parameter(&mut g, "d", [20, 24])?;
        let mut values = vec![x];
        for i in 0..draw.below(3) {
            let next = g.in_scope(&format!("layer{i}"), |g| layer(g, &mut draw, &values, &narrow, true))?;
            values.push(next);
        }
        let scores = g.in_scope("head", |g| g.matmul(values[values.len() - 1], head))?;
        let mut values = vec![scores];
        for i in 0..draw.below(4) {
            let next = g.in_scope(&format!("after{i}"), |g| layer(g, &mut draw, &values, &wide, false))?;
            values.push(next);
        }
        let last = values[values.len() - 1];
        learning(g, last)
    };
    build().expect("every draw gives a legal graph")
}

pub(crate) fn assert_sound(plan: &Plan, graph: &Graph, device: &dyn Device) {
    let planned: Vec<&Graph> = plan.programs.iter().map(|program| &program.graph).collect();
    check(&plan.certificate(), &planned).unwrap();
    check_equivalence(graph, planned[0], device, plan.rows).unwrap();
    prove(&plan.certificate(), &[(Role::Step, graph.clone())], device).unwrap();
}

pub(crate) fn placed(found: ScheduledGraph, rows: usize, device: &dyn Device) -> Plan {
    layout_sequenced(vec![(Role::Step, found)], rows, device).unwrap()
}

/// What steps leave: the loss and every state.
pub(crate) type Left = (Vec<u8>, Vec<Vec<u8>>);

/// The bytes of the loss and of all states after two steps with the whole batch and one with less.
pub(crate) fn after_steps(device: &Arc<dyn Device>, plan: Plan) -> Left {
    let ledger = Ledger::new("host", None);
    let rows = plan.rows;
    let mut executor = Executor::new(device.clone(), CheckedPlan::new(plan).unwrap(), &ledger).unwrap();
    executor.initialize(3).unwrap();
    let length = executor.plan().programs[0].graph.inputs()[0].ty.bytes(1).0 as usize / 4;
    let mut losses = Vec::new();
    for (step, rows) in [rows, rows, (rows / 2).max(1)].into_iter().enumerate() {
        let draw = StepRandom { seed: 9, step: step as u32, first_row: 0 };
        let column: Vec<u8> = (0..(length * rows) as u64).flat_map(|i| (2.0 * draw.uniform(0, i) - 1.0).to_ne_bytes()).collect();
        let inputs = StepInputs { columns: &[&column], scalars: &[1e-5], random: StepRandom { seed: 1, step: step as u32, first_row: 0 } };
        let ticket = executor.run(Role::Step, rows, &inputs).unwrap();
        let mut loss = [0.0f32];
        executor.outcome(ticket, &mut loss).unwrap();
        losses.extend(loss[0].to_bits().to_ne_bytes());
    }
    let states: Vec<Bytes> = executor.plan().states.iter().map(|state| state.size).collect();
    let read = |(i, size): (usize, &Bytes)| {
        let mut bytes = vec![0; size.get()];
        executor.read_state(StateId(i as u32), &mut bytes).unwrap();
        bytes
    };
    (losses, states.iter().enumerate().map(read).collect())
}

/// A graph in pieces leaves what the whole one leaves. Gives its arena, whether that is the smaller one, and what both
/// leave.
pub(crate) fn alike(graph: &Graph, in_pieces: &Graph, rows: usize, device: &Arc<dyn Device>, seed: u32) -> (u64, bool, Left) {
    let free = layout(&[(Role::Step, graph.clone())], rows, &**device).unwrap();
    let parts = placed(schedule(in_pieces, rows, &**device).unwrap(), rows, &**device);
    assert_sound(&parts, graph, &**device);
    let (arena, less) = (parts.arena.0, parts.arena < free.arena);
    let wanted = after_steps(device, free);
    assert_eq!(after_steps(device, parts), wanted, "seed {seed}");
    (arena, less, wanted)
}

/// Fits a graph into a limit, and looks at all that must hold of the answer. Gives the plan, if there is one.
pub(crate) fn answer(graph: &Graph, original: &Graph, rows: usize, device: &Arc<dyn Device>, limit: Bytes) -> Option<Plan> {
    match fit(graph, rows, &**device, limit, &RATES, EFFORT) {
        Ok(found) => {
            let plan = placed(found, rows, &**device);
            assert!(plan.arena <= limit, "{} where {limit} was asked for", plan.arena);
            assert_sound(&plan, original, &**device);
            Some(plan)
        }
        Err(FitError::TooSmall { least, .. }) => {
            assert!(least > limit, "{least} was said to be needed where there were {limit}");
            let plan =
                placed(fit(graph, rows, &**device, least, &RATES, EFFORT).expect("the minimum that was reported works"), rows, &**device);
            assert!(plan.arena <= least);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn whatever_the_limit_a_step_learns_the_same_bits() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1).unwrap());
    let (mut met, mut again, mut refused) = (0, 0, 0);
    for seed in 0..700 {
        let graph = step_graph(seed);
        let mut draw = Draw::new(seed + 1_000_000);
        let rows = 1 + draw.below(400);
        let free = layout(&[(Role::Step, graph.clone())], rows, &*device).unwrap();
        assert_sound(&free, &graph, &*device);
        let arena = free.arena.0;
        let wanted = after_steps(&device, free);
        for _ in 0..3 {
            let limit = Bytes(arena * (65 + draw.below(36) as u64) / 100);
            match answer(&graph, &graph, rows, &device, limit) {
                Some(plan) => {
                    again += usize::from(!plan.programs[0].recomputation.nodes.is_empty());
                    assert_eq!(after_steps(&device, plan), wanted, "seed {seed}");
                    met += 1;
                }
                None => refused += 1,
            }
        }
    }
    assert!(met > 500 && again > 400 && refused > 300, "{met} met, {again} by recomputation, {refused} refused");
}

#[test]
fn pieces_of_the_rows_learn_the_same_bits_in_fewer_bytes() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1).unwrap());
    let (mut cut, mut smaller, mut met) = (0, 0, 0);
    for seed in 0..60 {
        let graph = sequence_graph(seed);
        let mut draw = Draw::new(seed + 2_000_000);
        let rows = 1 + draw.below(2);
        let Some(most) = pieces(&graph, rows, &*device, 16) else { continue };
        assert_eq!(most, 2, "pieces have at least 256 rows");
        let in_pieces = split(&graph, rows, &*device, most).unwrap();
        check_equivalence(&graph, &in_pieces, &*device, rows).unwrap();
        assert!(split(&graph, rows, &*device, 3).is_none(), "512 rows do not fall into 3 pieces");
        cut += 1;
        let (arena, less, wanted) = alike(&graph, &in_pieces, rows, &device, seed);
        smaller += usize::from(less);
        let limit = Bytes(arena * (40 + draw.below(60) as u64) / 100);
        if let Some(plan) = answer(&in_pieces, &graph, rows, &device, limit) {
            assert_eq!(plan.certificate().programs[0].pieces, most);
            assert_eq!(after_steps(&device, plan), wanted, "seed {seed}, with recomputed values");
            met += 1;
        }
    }
    assert!(cut > 20 && smaller * 10 > cut * 8 && met > 2, "{cut} were cut, {smaller} are smaller, {met} met a lower limit");
}

#[test]
fn a_graph_that_is_cut_wrongly_is_found_out() {
    let device = CpuDevice::new(1).unwrap();
    let graph = (0..).map(sequence_graph).find(|graph| pieces(graph, 1, &device, 16).is_some()).expect("most can be cut");
    let good = split(&graph, 1, &device, 2).unwrap();
    check_equivalence(&graph, &good, &device, 1).unwrap();
    // A device that vouches for nothing.
    struct Strict(CpuDevice);
    impl Target for Strict {
        fn name(&self) -> String {
            self.0.name()
        }
        fn description(&self) -> String {
            self.0.description()
        }
        fn capabilities(&self) -> Capabilities {
            Capabilities::host(self.0.capabilities().alignment)
        }
        fn workspace(&self, graph: &Graph, node: &plimsoll_core::graph::Node, rows: usize) -> Bytes {
            self.0.workspace(graph, node, rows)
        }
    }
    let strict = Strict(CpuDevice::new(1).unwrap());
    assert!(pieces(&graph, 1, &strict, 16).is_none());
    assert!(check_equivalence(&graph, &good, &strict, 1).is_err());
    // Another number of pieces than the plan was made with.
    let mut certificate = placed(schedule(&good, 1, &device).unwrap(), 1, &device).certificate();
    prove(&certificate, &[(Role::Step, graph.clone())], &device).unwrap();
    certificate.programs[0].pieces = 4;
    let error = prove(&certificate, &[(Role::Step, graph.clone())], &device).unwrap_err();
    assert!(error.to_string().contains("in 4 pieces"), "{error}");
    certificate.programs[0].pieces = 1;
    assert!(prove(&certificate, &[(Role::Step, graph)], &device).is_err());
}
