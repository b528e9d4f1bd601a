//! Gradients as a graph pass. That every op's rule is right is checked in `op_table`; here stands what the walk itself promises.

use plimsoll_core::autodiff::gradients;
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::{Init, StateKind};
use plimsoll_core::ops::{Reduce, Reduction};
use plimsoll_core::random::StepRandom;
use plimsoll_core::{Graph, GraphError, Op, Shape, TensorType, ValueId, reference};

fn parameter(graph: &mut Graph, name: &str, shape: Shape) -> ValueId {
    graph.state(name, StateKind::Parameter, TensorType::f32(shape), Init::Constant(0.0)).unwrap()
}

/// The gradients of `loss` by `wrt`, run in the reference over two rows.
fn gradients_of(graph: &mut Graph, loss: ValueId, wrt: &[ValueId], states: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let found = gradients(graph, loss, wrt).unwrap();
    let outcome = reference::run(graph, 2, &[], states, &[], &StepRandom::default());
    found.iter().map(|value| outcome.value(*value).to_vec()).collect()
}

#[test]
fn the_maximum_of_a_stretched_tensor_shares_its_gradient_among_all_copies() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let w = parameter(&mut graph, "w", Shape::fixed([3]));
    let op = Reduce { expr: Expr::identity(), shape: Shape::batch_of([3]), kind: Reduction::Max, axes: vec![0, 1] };
    let largest = graph.add_one(Op::Reduce(op), &[w])?;
    let loss = graph.sum(largest)?;
    assert_eq!(gradients_of(&mut graph, loss, &[w], &[vec![1.0, 3.0, 2.0]]), [[0.0, 1.0, 0.0]]);
    Ok(())
}
