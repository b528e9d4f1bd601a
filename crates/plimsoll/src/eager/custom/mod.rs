//! Layers, losses, metrics and optimizers of a [`Trainer`](crate::Trainer) from closures over eager tensors.
//!
//! Each closure is traced into the graph of the model, and then planned and differentiated as any other part of it.

mod layer;
mod optimizer;
mod rows;

use super::error::{Error, Result};
use super::tensor::Tensor;
use super::trace::{self, Gradients};
use plimsoll_core::{Graph, GraphError, ValueId};

pub use layer::{CustomLayer, LayerCall};
pub use optimizer::{CustomOptimizer, UpdateCall};

/// Adds the ops of a closure to a graph, applied to these values. Returns the values of its results.
fn add_to_graph(
    graph: &mut Graph,
    inputs: &[ValueId],
    body: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<ValueId>, GraphError> {
    let scope = graph.error(String::new()).scope;
    let refused = |error: Error| match error {
        Error::Graph(error) => error,
        other => GraphError { scope: scope.clone(), what: other.to_string() },
    };
    let first = graph.nodes().len();
    let mut values = Vec::new();
    let captured = trace::trace(
        graph,
        Gradients::OfTheGraph,
        |_| Ok(inputs.to_vec()),
        body,
        |_, results, value_of| {
            for result in &results {
                values.push(value_of(result).ok_or_else(|| outside(result))?);
            }
            Ok(())
        },
    )
    .map_err(refused)?;
    match captured.first() {
        Some(tensor) => Err(refused(outside(tensor))),
        None => rows_are_independent(graph, first).map(|()| values),
    }
}

/// A tensor of the program in a closure that is traced.
fn outside(tensor: &Tensor) -> Error {
    let what = format!(
        "the closure uses a tensor {} made at {}, outside of it; compute it inside from numbers, or declare it as a weight",
        tensor.ty(),
        tensor.made_at()
    );
    Error::Invalid { op: "custom", what }
}

/// Refuses nodes that mix the rows of a batch: micro-batches would change their results.
fn rows_are_independent(graph: &Graph, first: usize) -> Result<(), GraphError> {
    for (_, node) in graph.nodes().skip(first) {
        let has_batch = |value: &ValueId| graph.shape(*value).has_batch();
        if node.inputs.iter().any(has_batch) && !node.outputs.iter().all(has_batch) {
            let what = format!(
                "{} reduces the rows of a batch to one value, which would depend on the size of micro-batches; \
                 compute one value per row",
                node.op.rules().name()
            );
            return Err(graph.error(what));
        }
    }
    Ok(())
}
