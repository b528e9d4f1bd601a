//! States that change: whatever depends on what, there is a plan, and the step ends with the right values in place.

use crate::support::{PAPER, assert_sound, parameter};
use plimsoll_core::expr::Binary;
use plimsoll_core::graph::StateId;
use plimsoll_core::plan::{Place, layout};
use plimsoll_core::step::Role;
use plimsoll_core::{DType, Graph, GraphError, Plan, Shape, TensorType};

fn planned(graph: &Graph) -> Plan {
    let plan = layout(&[(Role::Step, graph.clone())], 4, &PAPER).unwrap();
    assert_sound(&plan);
    plan
}

#[test]
fn two_states_may_change_with_each_other() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let (a, b) = (parameter(&mut graph, "a", Shape::fixed([8]))?, parameter(&mut graph, "b", Shape::fixed([8]))?);
    let (new_a, new_b) = (graph.binary(Binary::Sub, a, b)?, graph.binary(Binary::Sub, b, a)?);
    graph.update(StateId(0), new_a);
    graph.update(StateId(1), new_b);
    assert_eq!(planned(&graph).programs[0].order.len(), 3, "one copy is enough");
    Ok(())
}

#[test]
fn three_states_may_change_in_a_ring() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let states: Vec<_> = ["a", "b", "c"].iter().map(|name| parameter(&mut graph, name, Shape::fixed([8]))).collect::<Result<_, _>>()?;
    for i in 0..3 {
        let new = graph.plus(states[i], states[(i + 1) % 3])?;
        graph.update(StateId(i as u32), new);
    }
    planned(&graph);
    Ok(())
}

#[test]
fn two_states_may_change_places() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let (a, b) = (parameter(&mut graph, "a", Shape::fixed([8]))?, parameter(&mut graph, "b", Shape::fixed([8]))?);
    graph.update(StateId(0), b);
    graph.update(StateId(1), a);
    planned(&graph);
    Ok(())
}

#[test]
fn the_host_reads_a_state_as_the_step_found_it() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let w = parameter(&mut graph, "w", Shape::fixed([8]))?;
    let new = graph.plus(w, w)?;
    graph.update(StateId(0), new);
    graph.output("before", w);
    graph.output("after", new);
    planned(&graph);
    Ok(())
}

#[test]
fn what_the_host_reads_is_never_a_column_or_a_scalar() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::new(DType::U8, Shape::batch_of([2, 3])));
    let rate = graph.scalar("rate");
    let flat = graph.flatten(x)?;
    graph.output("flat", flat);
    graph.output("rate", rate);
    let plan = planned(&graph);
    let program = &plan.programs[0];
    for (name, value) in program.graph.outputs() {
        assert!(matches!(program.places[value.0 as usize], Some(Place::Arena(_))), "{name}");
    }
    Ok(())
}
