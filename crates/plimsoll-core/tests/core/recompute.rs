//! Recomputation: every limit that can be met is met, by plans that are sound, compute the same bits, and cost little
//! more than they must.

use crate::device::Slow;
use crate::support::{assert_sound, numbers, parameter};
use plimsoll_core::device::StepInputs;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::ops::Reduction;
use plimsoll_core::passes::optimize;
use plimsoll_core::plan::CheckedPlan;
use plimsoll_core::plan::Rates;
use plimsoll_core::plan::recompute::{Effort, FitError, fit};
use plimsoll_core::plan::{ScheduledGraph, check_equivalence, layout, layout_sequenced, schedule};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::{Role, training_programs};
use plimsoll_core::{Bytes, Device, Executor, Graph, GraphError, Ledger, Op, Plan, Shape, TensorType, ValueId};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

const ROWS: usize = 6;
const EFFORT: Effort = Effort(30_000);
const RATES: Rates = Rates { flops_per_s: 1e9, bytes_per_s: 1e9, step_s: 1e-9 };

/// A training step drawn at random: branches, residuals, shared weights, long skips, dropout, and an optimizer with a
/// memory.
pub fn step_graph(seed: u32, layers: usize) -> Graph {
    let build = || -> Result<Graph, GraphError> {
        let mut draw = Draw { random: StepRandom { seed: 5, step: seed, first_row: 0 }, at: 0 };
        let mut g = Graph::new();
        let x = g.input("x", TensorType::f32(Shape::batch_of([8])));
        let weights = [parameter(&mut g, "a", Shape::fixed([8, 8]))?, parameter(&mut g, "b", Shape::fixed([8, 8]))?];
        let bias = parameter(&mut g, "c", Shape::fixed([8]))?;
        let mut values = vec![x];
        for layer in 0..layers {
            let recent = values[values.len() - 1];
            let any = values[draw.below(values.len())];
            let next = g.in_scope(&format!("layer{layer}"), |g| match draw.below(8) {
                0 | 1 => {
                    let product = g.matmul(recent, weights[draw.below(2)])?;
                    g.plus(product, bias)
                }
                2 => g.map(recent, |e, x| e.binary(Binary::Max, x, e.constant(0.0))),
                3 => g.unary(Unary::Tanh, recent),
                4 => g.plus(recent, any),
                5 => g.times(recent, any),
                6 => {
                    let stream = g.stream();
                    g.map(recent, |e, x| e.select(e.binary(Binary::Less, e.random(stream), e.constant(0.7)), x, e.constant(0.0)))
                }
                _ => {
                    let sum = g.reduce(Reduction::Sum, recent, &[1])?;
                    g.pointwise(Expr::build(|e| e.sub(e.input(0), e.mul(e.input(1), e.constant(0.125)))), &[recent, sum])
                }
            })?;
            values.push(next);
        }
        let last = values[values.len() - 1];
        let squares = g.times(last, last)?;
        let loss = g.sum(squares)?;
        let share = g.scalar("share");
        let loss = g.times(loss, share)?;
        g.output("loss", loss);
        let graph = training_programs(&g, loss, false, &momentum)?.remove(0).1;
        optimize(&graph)
    };
    build().expect("every draw gives a legal graph")
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

struct Draw {
    random: StepRandom,
    at: u64,
}

impl Draw {
    fn below(&mut self, count: usize) -> usize {
        self.at += 1;
        self.random.words(0, self.at)[0] as usize % count
    }
}

fn fitted(graph: &Graph, device: &dyn Device, limit: Bytes) -> Result<(ScheduledGraph, Plan), FitError> {
    let found = fit(graph, ROWS, device, limit, &RATES, EFFORT)?;
    let plan = layout_sequenced(vec![(Role::Step, found.clone())], ROWS, device)?;
    Ok((found, plan))
}

#[test]
fn every_limit_is_met_soundly_or_refused_with_the_least_that_works() {
    let device = Slow { broken: None };
    let (mut met, mut repeated, mut refused) = (0, 0, 0);
    for seed in 0..120 {
        let graph = step_graph(seed, 3 + seed as usize % 12);
        let free = layout(&[(Role::Step, graph.clone())], ROWS, &device).unwrap();
        for percent in [100, 90, 80, 65, 50] {
            let limit = Bytes(free.arena.0 * percent / 100);
            match fitted(&graph, &device, limit) {
                Ok((found, plan)) => {
                    assert!(plan.arena <= limit, "{} where {limit} was asked for", plan.arena);
                    assert_sound(&plan);
                    check_equivalence(&graph, &plan.programs[0].graph, &device, ROWS).unwrap();
                    assert!(percent < 100 || found.recomputation.nodes.is_empty(), "nothing is repeated where nothing must be");
                    met += 1;
                    repeated += usize::from(!found.recomputation.nodes.is_empty());
                }
                Err(FitError::TooSmall { least, .. }) => {
                    assert!(least > limit);
                    let (_, plan) = fitted(&graph, &device, least).expect("the minimum works");
                    assert!(plan.arena <= least);
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(met > 200 && repeated > 50 && refused > 50, "{met} met, {repeated} by repetition, {refused} refused");
}

/// A small graph has few sequences: once nothing faster is found for a long time, the rest of the effort is not spent.
#[test]
fn the_search_over_a_small_graph_ends_whatever_the_effort() {
    let device = Slow { broken: None };
    let mut repeated = 0;
    for seed in 0..12 {
        let graph = step_graph(seed, 9);
        let free = layout(&[(Role::Step, graph.clone())], ROWS, &device).unwrap();
        let limit = Bytes(free.arena.0 * 80 / 100);
        if let Ok(found) = fit(&graph, ROWS, &device, limit, &RATES, Effort(1 << 50)) {
            repeated += usize::from(!found.recomputation.nodes.is_empty());
        }
    }
    assert!(repeated > 0, "some recompute");
}

#[test]
fn recomputation_changes_no_bit() {
    let device: Arc<dyn Device> = Arc::new(Slow { broken: None });
    let mut repeated = 0;
    for seed in 0..40 {
        let graph = step_graph(seed, 4 + seed as usize % 10);
        let free = layout(&[(Role::Step, graph.clone())], ROWS, &*device).unwrap();
        let limit = match fit(&graph, ROWS, &*device, Bytes::ZERO, &RATES, EFFORT) {
            Err(FitError::TooSmall { least, .. }) => least,
            other => panic!("nothing fits into nothing: {other:?}"),
        };
        let (found, plan) = fitted(&graph, &*device, limit).unwrap();
        repeated += usize::from(!found.recomputation.nodes.is_empty());
        assert_eq!(after_steps(&device, free), after_steps(&device, plan), "seed {seed}");
    }
    assert!(repeated > 25, "{repeated} of 40 repeat something");
}

/// The bytes of all states after three steps.
fn after_steps(device: &Arc<dyn Device>, plan: Plan) -> Vec<Vec<u8>> {
    let ledger = Ledger::new("host", None);
    let mut executor = Executor::new(device.clone(), CheckedPlan::new(plan).unwrap(), &ledger).unwrap();
    executor.initialize(3).unwrap();
    let column: Vec<u8> = numbers(8 * ROWS, 1).iter().flat_map(|x| (*x as f32).to_ne_bytes()).collect();
    for step in 0..3 {
        let inputs = StepInputs { columns: &[&column], scalars: &[0.01], random: StepRandom { seed: 1, step, first_row: 0 } };
        executor.run(Role::Step, ROWS, &inputs).unwrap();
    }
    let states: Vec<Bytes> = executor.plan().states.iter().map(|state| state.size).collect();
    let read = |(i, size): (usize, &Bytes)| {
        let mut bytes = vec![0; size.get()];
        executor.read_state(StateId(i as u32), &mut bytes).unwrap();
        bytes
    };
    states.iter().enumerate().map(read).collect()
}

/// Small steps against every way to run them in their order.
#[test]
fn small_plans_cost_little_more_than_the_cheapest_there_is() {
    let device = Slow { broken: None };
    let (mut seen, mut cheapest, mut found_sum, mut best_sum) = (0, 0, 0.0, 0.0);
    for seed in 0..900 {
        let graph = step_graph(seed, 2 + seed as usize % 3);
        let plain = schedule(&graph, ROWS, &device).unwrap();
        let oracle = Oracle::of(&plain, &device);
        if oracle.sizes.len() > 14 {
            continue;
        }
        let free = layout_sequenced(vec![(Role::Step, plain.clone())], ROWS, &device).unwrap();
        for percent in [92, 84, 76, 68, 60] {
            let limit = free.lower_bound.0 * percent / 100;
            let Some(best) = oracle.cheapest(limit) else { continue };
            // Where offsets cannot be packed without gaps, the search is for a smaller limit than the oracle's.
            let Ok((found, plan)) = fitted(&graph, &device, Bytes(limit)) else { continue };
            if plan.arena > plan.lower_bound {
                continue;
            }
            let cost = found.recomputation.seconds + found.recomputation.extra_seconds;
            seen += 1;
            cheapest += usize::from(cost <= best * (1.0 + 1e-9));
            (found_sum, best_sum) = (found_sum + cost, best_sum + best);
        }
    }
    assert!(seen >= 60, "{seen} cases were small enough");
    assert!(cheapest * 100 >= seen * 90, "{cheapest} of {seen} are as cheap as can be");
    assert!(found_sum <= best_sum * 1.02, "{found_sum} seconds where {best_sum} would do");
}

/// Every way to run a step: which node runs next, and what is in memory. Knows only the graph.
struct Oracle {
    /// For each node that runs, in order: what it reads and makes (as bits), scratch, seconds, whether it may run
    /// again, and which pairs of output and input can share bytes.
    nodes: Vec<Step>,
    /// For each value that takes arena, its bytes.
    sizes: Vec<u64>,
    wanted: u32,
}

struct Step {
    reads: u32,
    makes: u32,
    scratch: u64,
    seconds: f64,
    repeats: bool,
    /// Where the state it changes is read by others: those may not run any more.
    spoils: u32,
    states: u32,
    pointwise: bool,
}

impl Oracle {
    fn of(plain: &ScheduledGraph, device: &dyn Device) -> Oracle {
        use plimsoll_core::plan::CostModel;
        let graph = &plain.graph;
        let mut root: Vec<u32> = (0..graph.value_count() as u32).collect();
        for (_, node) in graph.nodes().filter(|(_, node)| matches!(node.op, Op::Reshape(_))) {
            root[node.outputs[0].0 as usize] = root[node.inputs[0].0 as usize];
        }
        let in_state = |value: u32| graph.updates().iter().any(|(_, new)| new.0 == value);
        let mut bits: HashMap<u32, usize> = HashMap::new();
        let mut sizes = Vec::new();
        for id in &plain.order {
            for output in graph.node(*id).outputs.iter().filter(|output| !in_state(output.0)) {
                bits.insert(output.0, sizes.len());
                sizes.push(graph.ty(*output).bytes(ROWS).align_up(device.capabilities().alignment.0).0);
            }
        }
        let bit = |value: &ValueId| bits.get(&root[value.0 as usize]).map_or(0, |bit| 1u32 << (bit % 32));
        let wanted = graph.outputs().iter().map(|(_, value)| bit(value)).fold(0, |a, b| a | b);
        let nodes = plain.order.iter().map(|id| {
            let node = graph.node(*id);
            let makes = node.outputs.iter().map(&bit).fold(0, |a, b| a | b);
            let states = node.inputs.iter().filter_map(|input| graph.as_state(ValueId(root[input.0 as usize])));
            let spoils = graph.updates().iter().filter(|(_, new)| node.outputs.contains(new)).fold(0, |all, (state, _)| all | 1 << state.0);
            Step {
                reads: node.inputs.iter().map(&bit).fold(0, |a, b| a | b),
                makes,
                scratch: device.workspace(graph, node, ROWS).align_up(device.capabilities().alignment.0).0,
                seconds: RATES.seconds(graph, node, ROWS),
                repeats: spoils == 0 && makes & wanted == 0,
                spoils,
                states: states.fold(0, |all, state| all | 1 << state.0),
                pointwise: matches!(node.op, Op::Pointwise(_)),
            }
        });
        Oracle { nodes: nodes.collect(), sizes, wanted }
    }

    fn bytes(&self, held: u32) -> u64 {
        self.sizes.iter().enumerate().filter(|(bit, _)| held >> bit & 1 == 1).map(|(_, size)| size).sum()
    }

    /// The shortest time in which the nodes run in their order within the limit, with any repetitions in between.
    fn cheapest(&self, limit: u64) -> Option<f64> {
        let mut best: HashMap<(usize, u32), u64> = HashMap::new();
        let mut open = BinaryHeap::from([Reverse((0u64, 0usize, 0u32))]);
        while let Some(Reverse((cost, done, held))) = open.pop() {
            if best.get(&(done, held)).is_some_and(|known| *known < cost) {
                continue;
            }
            if done == self.nodes.len() {
                return Some(cost as f64 * 1e-12);
            }
            let spoiled = self.nodes[..done].iter().fold(0, |all, node| all | node.spoils);
            for (i, node) in self.nodes[..=done].iter().enumerate() {
                let allowed = i == done || (node.repeats && node.states & spoiled == 0);
                if !allowed || node.reads & !held != 0 {
                    continue;
                }
                let all = held | node.makes;
                // What dies at this step may be any of what is held; only what it reads can be written over, by one
                // output each.
                let kept_bits: Vec<u32> = (0..32).map(|bit| 1 << bit).filter(|bit| all & bit != 0).collect();
                for choice in 0..1u32 << kept_bits.len() {
                    let after = kept_bits.iter().enumerate().filter(|(k, _)| choice >> k & 1 == 1).fold(0, |all, (_, bit)| all | bit);
                    if self.wanted & all & !after != 0 {
                        continue;
                    }
                    let dying = node.reads & !after & !node.makes;
                    // Values that are given up without being read here could have been given up before.
                    let here = (held & (after | node.reads)) | node.makes;
                    let saved = if node.pointwise && node.makes.count_ones() == 1 {
                        let made = self.bytes(node.makes);
                        let reused = (0..32).any(|bit| dying >> bit & 1 == 1 && self.sizes[bit] == made);
                        if reused { made } else { 0 }
                    } else {
                        0
                    };
                    if self.bytes(here) - saved + node.scratch > limit {
                        continue;
                    }
                    let next = (done + usize::from(i == done), after);
                    let cost = cost + (node.seconds * 1e12).round() as u64;
                    if best.get(&next).is_none_or(|known| cost < *known) {
                        best.insert(next, cost);
                        open.push(Reverse((cost, next.0, next.1)));
                    }
                }
            }
        }
        None
    }
}
