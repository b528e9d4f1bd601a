//! The planner: every plan is sound, and close to the smallest there is.

use crate::support::{PAPER, assert_sound};
use plimsoll_core::expr::Unary;
use plimsoll_core::plan::layout;
use plimsoll_core::step::Role;
use plimsoll_core::{Graph, GraphError, Shape, TensorType};

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
