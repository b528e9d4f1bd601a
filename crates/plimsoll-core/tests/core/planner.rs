//! The planner: every plan is sound for every number of rows, its bound is a bound, and small plans are close to the
//! smallest there is.

use crate::arena::optimum;
use crate::support::{PAPER, Paper, assert_sound, graph_from, recipes};
use plimsoll_core::expr::Unary;
use plimsoll_core::graph::{Node, NodeId};
use plimsoll_core::passes::{optimize, remove_dead};
use plimsoll_core::plan::{BufferInterval, Program, Target, layout};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Graph, GraphError, Op, Plan, Shape, TensorType, ValueId};
use std::collections::{BTreeSet, HashMap};

const ROWS: usize = 5;

#[test]
fn every_plan_is_sound_for_its_rows_and_all_fewer() {
    for recipe in recipes(400, 12) {
        let graph = graph_from(&recipe);
        for graph in [optimize(&graph).unwrap(), graph] {
            let plan = layout(&[(Role::Step, graph)], ROWS, &PAPER).unwrap();
            (1..=ROWS).for_each(|rows| assert_sound(&Plan { rows, ..plan.clone() }));
        }
    }
}

#[test]
fn programs_share_one_arena_and_one_set_of_states() {
    let graphs: Vec<(Role, Graph)> = [Role::Step, Role::Evaluate, Role::Predict]
        .into_iter()
        .zip(recipes(3, 12))
        .map(|(role, recipe)| (role, graph_from(&recipe)))
        .collect();
    let plan = layout(&graphs, ROWS, &PAPER).unwrap();
    assert_sound(&plan);
    assert_eq!(plan.arena, plan.programs.iter().map(|program| program.arena).max().unwrap());
    assert_eq!(plan.by_owner().into_iter().map(|(_, size)| size).sum::<Bytes>(), plan.total(), "every byte has an owner");
}

#[test]
fn the_last_step_does_not_write_over_what_the_host_reads() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32(Shape::batch_of([3])));
    let hidden = graph.unary(Unary::Tanh, x)?;
    let last = graph.unary(Unary::Exp, hidden)?;
    graph.output("hidden", hidden);
    graph.output("last", last);
    assert_sound(&layout(&[(Role::Step, graph)], 4, &PAPER)?);
    Ok(())
}

/// Small graphs against all their orders, and the chosen order against all its layouts.
#[test]
fn small_plans_are_close_to_the_smallest_there_is() {
    let device = Paper { alignment: 4, scratch: true };
    let (mut seen, mut best_orders, mut best_layouts) = (0, 0, 0);
    for recipe in recipes(400, 7) {
        let graph = remove_dead(&graph_from(&recipe));
        let plan = layout(&[(Role::Step, graph)], ROWS, &device).unwrap();
        let program = &plan.programs[0];
        if !(3..=8).contains(&program.order.len()) {
            continue;
        }
        let oracle = Oracle::of(program, &device);
        assert!(oracle.is_legal(&program.order));
        assert_eq!(program.lower_bound, oracle.peak(&program.order), "the bound is what the chosen order holds at once\n{}", program.graph);
        let smallest = oracle.smallest_peak();
        assert!(smallest <= program.lower_bound && program.lower_bound <= program.arena);
        seen += 1;
        best_orders += usize::from(program.lower_bound == smallest);
        if program.buffers.len() <= 7 {
            let blocks: Vec<BufferInterval> =
                program.buffers.iter().map(|b| BufferInterval { first: b.first, last: b.last, size: b.size }).collect();
            let optimum = optimum(&blocks);
            assert!(optimum <= program.arena && program.arena.0 * 4 <= optimum.0 * 5);
        }
        best_layouts += usize::from(program.arena == program.lower_bound);
    }
    assert!(seen >= 150, "{seen} graphs were small enough");
    assert!(best_orders == seen, "{best_orders} of {seen} orders are the best there are");
    assert!(best_layouts * 100 >= seen * 95, "{best_layouts} of {seen} layouts reach the bound");
}

/// What a program's graph allows, worked out from the graph alone.
struct Oracle<'a> {
    graph: &'a Graph,
    nodes: Vec<NodeId>,
    scratch: HashMap<NodeId, Bytes>,
    /// The nodes that must run before each node.
    before: HashMap<NodeId, BTreeSet<NodeId>>,
}

impl<'a> Oracle<'a> {
    fn of(program: &'a Program, device: &Paper) -> Oracle<'a> {
        let graph = &program.graph;
        let nodes: Vec<NodeId> = graph.nodes().filter(|(_, node)| runs(node)).map(|(id, _)| id).collect();
        let maker = |value: ValueId| nodes.iter().copied().find(|id| graph.node(*id).outputs.contains(&value));
        let mut before: HashMap<NodeId, BTreeSet<NodeId>> =
            nodes.iter().map(|id| (*id, sources(graph, *id).into_iter().filter_map(maker).collect())).collect();
        for (state, new) in graph.updates() {
            let writer = maker(*new).expect("every update is made by a step");
            let reads = |id: &NodeId| sources(graph, *id).iter().any(|value| graph.as_state(*value) == Some(*state));
            let readers = nodes.iter().copied().filter(|id| *id != writer && reads(id));
            before.get_mut(&writer).expect("every step is listed").extend(readers);
        }
        let scratch = nodes.iter().map(|id| (*id, device.workspace(graph, graph.node(*id), ROWS))).collect();
        Oracle { graph, nodes, scratch, before }
    }

    fn is_legal(&self, order: &[NodeId]) -> bool {
        order.iter().enumerate().all(|(time, id)| self.before[id].iter().all(|earlier| order[..time].contains(earlier)))
    }

    /// The most bytes any step of the order holds: what is alive around it, what it makes, less what it may write over,
    /// and scratch.
    fn peak(&self, order: &[NodeId]) -> Bytes {
        let in_state = |value: &ValueId| self.graph.updates().iter().any(|(_, new)| new == value);
        let size = |value: &ValueId| self.graph.ty(*value).bytes(ROWS);
        let outputs: BTreeSet<ValueId> = self.graph.outputs().iter().map(|(_, value)| source(self.graph, *value)).collect();
        let mut held: BTreeSet<ValueId> = BTreeSet::new();
        let mut peak = Bytes::ZERO;
        for (time, id) in order.iter().enumerate() {
            let node = self.graph.node(*id);
            let made: Vec<ValueId> = node.outputs.iter().copied().filter(|value| !in_state(value)).collect();
            let later =
                |value: &ValueId| outputs.contains(value) || order[time + 1..].iter().any(|id| sources(self.graph, *id).contains(value));
            let mut dying: Vec<ValueId> = held.iter().copied().filter(|value| !later(value)).collect();
            let mut saved = Bytes::ZERO;
            for output in &made {
                let fits =
                    |value: &ValueId| matches!(node.op, Op::Pointwise(_)) && self.graph.ty(*value).same_bytes(self.graph.ty(*output));
                if let Some(place) = dying.iter().position(fits) {
                    dying.remove(place);
                    saved += size(output);
                }
            }
            held.extend(&made);
            let now: Bytes = held.iter().map(size).sum();
            peak = peak.max(Bytes(now.0 - saved.0) + self.scratch[id]);
            held.retain(later);
        }
        peak
    }

    fn smallest_peak(&self) -> Bytes {
        let mut smallest = Bytes(u64::MAX);
        self.extend(&mut Vec::new(), &mut smallest);
        smallest
    }

    fn extend(&self, order: &mut Vec<NodeId>, smallest: &mut Bytes) {
        if order.len() == self.nodes.len() {
            *smallest = (*smallest).min(self.peak(order));
        }
        for id in &self.nodes {
            if !order.contains(id) && self.before[id].iter().all(|earlier| order.contains(earlier)) {
                order.push(*id);
                self.extend(order, smallest);
                order.pop();
            }
        }
    }
}

fn runs(node: &Node) -> bool {
    !node.op.is_leaf() && !matches!(node.op, Op::Reshape(_))
}

/// The value whose bytes this one is.
fn source(graph: &Graph, value: ValueId) -> ValueId {
    match graph.producer(value).op {
        Op::Reshape(_) => source(graph, graph.producer(value).inputs[0]),
        _ => value,
    }
}

fn sources(graph: &Graph, id: NodeId) -> BTreeSet<ValueId> {
    graph.node(id).inputs.iter().map(|input| source(graph, *input)).collect()
}
