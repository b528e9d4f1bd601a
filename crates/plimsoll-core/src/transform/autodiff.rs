//! Reverse-mode autodiff as a graph pass: traverses the graph backwards and applies each op's gradient rule.

use crate::base::expr::Expr;
use crate::base::shape::Shape;
pub use crate::ir::adjoint::Adjoint;
use crate::ir::adjoint::zeros;
use crate::ir::graph::{Graph, GraphError, NodeId, Phase, ValueId};

/// Adds the nodes that compute the gradient of the scalar `loss` with respect to each value of `wrt`. A value that the
/// loss does not depend on has a zero gradient.
pub fn gradients(graph: &mut Graph, loss: ValueId, wrt: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
    if *graph.shape(loss) != Shape::scalar() {
        return Err(graph.error(format!("gradients are taken of a single number, but the loss has the shape {}", graph.shape(loss))));
    }
    let scope = graph.producer(loss).scope.clone();
    let one = graph.within(&scope, Phase::Backward, |g| g.full(1.0, Shape::scalar()))?;
    let found = vector_jacobian(graph, &[(loss, one)], wrt)?;
    wrt.iter()
        .zip(found)
        .map(|(value, found)| match found {
            Some(gradient) => Ok(gradient),
            None => {
                let scope = graph.producer(*value).scope.clone();
                graph.within(&scope, Phase::Backward, |g| zeros(g, *value))
            }
        })
        .collect()
}

/// Adds the nodes that compute the vector-Jacobian product: from the gradient of each of some values, the gradient of
/// each value of `wrt`. None for a value that none of them depends on.
pub fn vector_jacobian(graph: &mut Graph, seeds: &[(ValueId, ValueId)], wrt: &[ValueId]) -> Result<Vec<Option<ValueId>>, GraphError> {
    let wanted = depends_on(graph, wrt);
    let mut gradient: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    seeds.iter().for_each(|(value, seed)| gradient[value.index()] = Some(*seed));
    let end = seeds.iter().map(|(value, _)| graph.values[value.index()].producer.0 + 1).max().unwrap_or(0);

    for id in (0..end).rev().map(NodeId) {
        let node = graph.node(id);
        let gradients: Vec<Option<ValueId>> = node.outputs.iter().map(|output| gradient[output.index()]).collect();
        let wants: Vec<bool> = node.inputs.iter().map(|input| wanted[input.index()]).collect();
        if gradients.iter().all(Option::is_none) || !wants.contains(&true) {
            continue;
        }
        let (op, scope, inputs, outputs) = (node.op.clone(), node.scope.clone(), node.inputs.clone(), node.outputs.clone());
        graph.within(&scope, Phase::Backward, |g| {
            let mut adjoint = Adjoint { graph: g, inputs: inputs.clone(), outputs, gradients, wants: wants.clone() };
            let found = op.rules().gradient(&mut adjoint)?;
            for ((input, found), wanted) in inputs.iter().zip(found).zip(wants) {
                let (true, Some(found)) = (wanted, found) else { continue };
                // A gradient has its value's type. Sums over several uses are expressions, which fuse into one without
                // intermediate storage.
                let dtype = g.ty(*input).dtype;
                let total = match gradient[input.index()] {
                    Some(before) => {
                        let sum = Expr::build(|e| e.add(e.input(0), e.input(1)));
                        g.pointwise_many(sum, &[before, found], g.shape(*input).clone(), vec![dtype])?[0]
                    }
                    None => g.cast(found, dtype)?,
                };
                gradient[input.index()] = Some(total);
            }
            Ok(())
        })?;
    }
    Ok(wrt.iter().map(|value| gradient[value.index()]).collect())
}

/// Which values depend on one of the roots through real-valued ops.
fn depends_on(graph: &Graph, roots: &[ValueId]) -> Vec<bool> {
    let mut depends = vec![false; graph.values.len()];
    roots.iter().for_each(|root| depends[root.index()] = true);
    for node in graph.nodes.iter() {
        if node.inputs.iter().any(|input| depends[input.index()]) {
            let passes = |output: &&ValueId| graph.ty(**output).dtype.is_float() && !graph.stopped.contains(output);
            for output in node.outputs.iter().filter(passes) {
                depends[output.index()] = true;
            }
        }
    }
    depends
}
