//! Which graphs are legal. Run after every pass; a pass that breaks a rule is found at once.

use crate::graph::{Graph, GraphError, Node};
use crate::op::Op;
use crate::shape::TensorType;
use std::collections::HashSet;

/// Checks every rule a graph must keep:
/// every value is made once, before it is read; types are what the ops say; shapes have at most one batch dimension;
/// outputs exist; a state is changed at most once, by a value of its own type.
pub fn verify(graph: &Graph) -> Result<(), GraphError> {
    let mut made = vec![false; graph.values.len()];
    for (id, node) in graph.nodes() {
        let error = |what: String| {
            Err(GraphError { scope: node.scope.clone(), what: format!("{} (node {}): {what}", node.op.define().name(), id.0) })
        };
        if let Some(input) = node.inputs.iter().find(|input| !made.get(input.index()).copied().unwrap_or(false)) {
            return error(format!("reads {input} before it is made"));
        }
        if let Err(what) = check_types(graph, node) {
            return error(what);
        }
        if matches!(node.op, Op::Rows(_)) && graph.pieces() == 1 {
            return error("cuts the batch, which is for the planner alone: it would change what micro-batches compute".to_string());
        }
        for output in &node.outputs {
            if std::mem::replace(&mut made[output.index()], true) {
                return error(format!("makes {output} a second time"));
            }
            if graph.values[output.index()].producer != id {
                return error(format!("{output} does not know its producer"));
            }
            if graph.shape(*output).dims().iter().filter(|dim| dim.is_batch()).count() > 1 {
                return error(format!("the shape {} has the batch in it twice", graph.shape(*output)));
            }
        }
    }
    let error = |what: String| Err(GraphError { scope: String::new(), what });
    if let Some((name, value)) = graph.outputs.iter().find(|(_, value)| !made.get(value.index()).copied().unwrap_or(false)) {
        return error(format!("output {name} is {value}, which nothing makes"));
    }
    let mut changed = HashSet::new();
    for (state, value) in &graph.updates {
        let Some(target) = graph.states.get(state.0 as usize) else {
            return error(format!("state {} was never declared", state.0));
        };
        if !changed.insert(state) {
            return error(format!("`{}` is changed twice in one step", target.name));
        }
        if !made.get(value.index()).copied().unwrap_or(false) || *graph.ty(*value) != target.ty {
            return error(format!("`{}` is {} and cannot become {value}", target.name, target.ty));
        }
    }
    Ok(())
}

fn check_types(graph: &Graph, node: &Node) -> Result<(), String> {
    let inputs: Vec<&TensorType> = node.inputs.iter().map(|input| graph.ty(*input)).collect();
    let expected = node.op.define().infer(graph, &inputs)?;
    let actual: Vec<&TensorType> = node.outputs.iter().map(|output| graph.ty(*output)).collect();
    if expected.iter().collect::<Vec<_>>() == actual { Ok(()) } else { Err("its outputs have other types than its rule gives".to_string()) }
}
