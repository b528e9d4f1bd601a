//! Graph verification. It runs after every pass, so that a pass that breaks an invariant is found immediately.

use crate::base::shape::{Shape, TensorType};
use crate::ir::graph::{Graph, GraphError, Node, ValueId};
use crate::ir::op::Op;
use std::collections::{HashMap, HashSet};

/// Checks the invariants of a graph. Every value is defined once, before it is read; types match the ops' inference;
/// shapes have at most one batch dimension; outputs exist; a state is updated at most once, by a value of its own type.
/// No slice is read before it is written, and only supported ops read channel views.
pub fn verify(graph: &Graph) -> Result<(), GraphError> {
    let mut made = vec![false; graph.values.len()];
    let mut begun = Begun::default();
    for (id, node) in graph.nodes() {
        let error = |what: String| {
            Err(GraphError { scope: node.scope.to_string(), what: format!("{} (node {}): {what}", node.op.rules().name(), id.0) })
        };
        if let Some(input) = node.inputs.iter().find(|input| !made.get(input.index()).copied().unwrap_or(false)) {
            return error(format!("reads {input} before it is made"));
        }
        if let Err(what) = check_types(graph, node) {
            return error(what);
        }
        if let Err(what) =
            begun.check(graph, node).and_then(|()| check_fused_writes(graph, node)).and_then(|()| check_channel_views(graph, node))
        {
            return error(what);
        }
        if matches!(node.op, Op::BatchSlice(_)) && graph.pieces() == 1 {
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
    let handed_over = graph.outputs.iter().map(|(_, value)| value).chain(graph.updates.iter().map(|(_, value)| value));
    if let Some(value) = handed_over.into_iter().find(|value| begun.0.contains_key(value) || is_channel_view(graph, **value)) {
        return error(format!("{value} is handed over, but is a channel view or not completely written"));
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
    let expected = node.op.rules().infer(graph, &inputs)?;
    let actual: Vec<&TensorType> = node.outputs.iter().map(|output| graph.ty(*output)).collect();
    if expected.iter().collect::<Vec<_>>() == actual { Ok(()) } else { Err("its outputs have other types than its rule gives".to_string()) }
}

/// Partially written concat outputs: the axis and the ranges written so far, in order.
#[derive(Default)]
struct Begun(HashMap<ValueId, (usize, Vec<(usize, usize)>)>);

impl Begun {
    fn check(&mut self, graph: &Graph, node: &Node) -> Result<(), String> {
        for (i, input) in node.inputs.iter().enumerate() {
            let Some((axis, there)) = self.0.get(input) else { continue };
            match &node.op {
                Op::SliceWrite(op) if i == 1 && op.axis == *axis => {}
                Op::FusedSliceWrite(op) if op.has_base && i == 0 && op.slice.axis == *axis => {}
                Op::ChannelView(op) if axis + 1 == graph.shape(*input).rank() && covers(there, op.start, op.start + op.length) => {}
                _ => return Err(format!("reads {input}, which is not completely written")),
            }
        }
        let Some((base, op, part)) = graph.slice_write(node) else { return Ok(()) };
        let known = base.map(|base| self.0.get(&base).map(|(_, there)| there.clone()));
        // A complete buffer stays complete when a slice is overwritten.
        let mut there = match known {
            Some(None) => return Ok(()),
            Some(Some(there)) => there,
            None => Vec::new(),
        };
        let (from, to) = op.span(part);
        if there.iter().any(|(start, end)| from < *end && *start < to) {
            return Err(format!("writes at {from}, which is written already"));
        }
        there.push((from, to));
        there.sort_unstable();
        if !covers(&there, 0, op.extent) {
            self.0.insert(node.outputs[0], (op.axis, there));
        }
        Ok(())
    }
}

/// Whether sorted ranges cover `from..to` without a gap.
fn covers(spans: &[(usize, usize)], from: usize, to: usize) -> bool {
    let reached = spans.iter().fold(from, |reached, (start, end)| if *start <= reached { reached.max(*end) } else { reached });
    reached >= to
}

fn is_channel_view(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.producer(value).op, Op::ChannelView(_))
}

/// A fused slice write must not read the buffer it writes into, which would change during the read.
fn check_fused_writes(graph: &Graph, node: &Node) -> Result<(), String> {
    let Op::FusedSliceWrite(op) = &node.op else { return Ok(()) };
    let seen = |mut value: ValueId| {
        while graph.producer(value).op.rules().is_view() {
            value = graph.producer(value).inputs[0];
        }
        value
    };
    let (base, read) = node.inputs.split_at(usize::from(op.has_base));
    match read.iter().find(|input| base.first().is_some_and(|base| seen(*base) == seen(**input))) {
        Some(input) => Err(format!("reads {input}, which it writes into")),
        None => Ok(()),
    }
}

/// Channel views are read by pointwise ops and reductions over exactly their shape that do not reduce the channels.
fn check_channel_views(graph: &Graph, node: &Node) -> Result<(), String> {
    let effective_op = graph.effective_op(node);
    let read: Vec<&Shape> = node.inputs.iter().filter(|input| is_channel_view(graph, **input)).map(|input| graph.shape(*input)).collect();
    let legal = |shape: &Shape| match effective_op.op {
        Op::Pointwise(op) => op.shape == *shape,
        Op::Reduce(op) => op.shape == *shape && !op.axes.contains(&(shape.rank() - 1)),
        _ => false,
    };
    if read.into_iter().all(legal) { Ok(()) } else { Err("reads a channel view, which it cannot".to_string()) }
}
