//! Gradients as a graph pass. That every op's rule is right is checked in `op_table`; here stands what the walk itself
//! promises.

use plimsoll_core::autodiff::gradients;
use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::graph::{Init, Phase, StateKind};
use plimsoll_core::ops::{Reduce, Reduction};
use plimsoll_core::random::StepRandom;
use plimsoll_core::{DType, Graph, GraphError, Op, Shape, TensorType, ValueId, reference};

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
    let op = Reduce { expr: Expr::identity(), shape: Shape::batch_of([3]), kind: Reduction::Max, axes: vec![0, 1], onto: false };
    let largest = graph.add_one(Op::Reduce(op), &[w])?;
    let loss = graph.sum(largest)?;
    assert_eq!(gradients_of(&mut graph, loss, &[w], &[vec![1.0, 3.0, 2.0]]), [[0.0, 1.0, 0.0]]);
    Ok(())
}

#[test]
fn powers_of_zero_and_zeroth_powers_have_slopes() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let (base, exponent) = (parameter(&mut graph, "base", Shape::fixed([2])), parameter(&mut graph, "exponent", Shape::fixed([2])));
    let power = graph.binary(Binary::Pow, base, exponent)?;
    let flat = graph.map(base, |e, x| e.binary(Binary::Pow, x, e.constant(0.0)))?;
    let both = graph.plus(power, flat)?;
    let loss = graph.sum(both)?;
    let found = gradients_of(&mut graph, loss, &[base, exponent], &[vec![0.0, 0.0], vec![3.0, 0.0]]);
    assert_eq!(found, [[0.0, 0.0], [0.0, 0.0]]);
    Ok(())
}

#[test]
fn a_result_that_was_rounded_when_stored_is_not_read_as_if_it_were_exact() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let w = parameter(&mut graph, "w", Shape::fixed([1]));
    let expr = Expr::build_many(|e| {
        let tripled = e.mul(e.input(0), e.constant(3.0));
        vec![tripled, e.mul(tripled, tripled)]
    });
    let results = graph.pointwise_many(expr, &[w], Shape::fixed([1]), vec![DType::U8, DType::F32])?;
    let loss = graph.sum(results[1])?;
    assert_eq!(gradients_of(&mut graph, loss, &[w], &[vec![0.5]]), [[9.0]], "18 w, and not six times what a byte holds of 3 w");
    Ok(())
}

#[test]
fn shared_values_add_their_gradients() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let w = parameter(&mut graph, "w", Shape::fixed([2]));
    let squared = graph.times(w, w)?;
    let cubed = graph.times(squared, w)?;
    let both = graph.plus(cubed, squared)?;
    let loss = graph.sum(both)?;
    let found = gradients_of(&mut graph, loss, &[w, squared, loss], &[vec![1.0, 2.0]]);
    assert_eq!(found[0], [3.0 + 2.0, 12.0 + 4.0]);
    assert_eq!(found[1], [1.0 + 1.0, 2.0 + 1.0], "by a value on the way, all that depends on it counts");
    assert_eq!(found[2], [1.0], "the loss by itself");
    Ok(())
}

#[test]
fn parameters_without_influence_have_gradients_of_zero() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let (used, unused) = (parameter(&mut graph, "used", Shape::fixed([2])), parameter(&mut graph, "unused", Shape::fixed([3])));
    let flat = parameter(&mut graph, "flat", Shape::fixed([2]));
    let floor = graph.unary(plimsoll_core::expr::Unary::Floor, flat)?;
    let sum = graph.plus(used, floor)?;
    let loss = graph.sum(sum)?;
    let found = gradients_of(&mut graph, loss, &[used, unused, flat], &[vec![1.0; 2], vec![1.0; 3], vec![0.5; 2]]);
    assert_eq!(found, [vec![1.0; 2], vec![0.0; 3], vec![0.0; 2]]);
    let forward = graph.nodes().filter(|(_, node)| node.phase == Phase::Forward).count();
    assert_eq!(forward, 7, "zeros belong to the backward part like other gradients");
    Ok(())
}

#[test]
fn the_gradient_of_a_tensor_is_refused() {
    let mut graph = Graph::new();
    let w = parameter(&mut graph, "w", Shape::fixed([2]));
    let error = graph.in_scope("head", |g| gradients(g, w, &[w])).unwrap_err();
    insta::assert_snapshot!(error, @"layer `head`: gradients are taken of a single number, but the loss has the shape [2]");
}
