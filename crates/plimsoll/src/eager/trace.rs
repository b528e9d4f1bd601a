//! Tracing: while a closure is traced, ops add nodes to a graph instead of running.

use super::call::Call;
use super::error::{Error, Result};
use super::tensor::{Data, Tensor};
use plimsoll_core::{Graph, Shape, TensorType, ValueId};
use std::cell::RefCell;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Who differentiates a trace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Gradients {
    /// Tapes, inside of the closure.
    OfTapes,
    /// The graph that it becomes part of, later.
    OfTheGraph,
}

/// A graph under construction.
struct Trace {
    id: u64,
    graph: Graph,
    gradients: Gradients,
    /// Tensors from outside of the closure, each an argument of the graph.
    captured: Vec<(Tensor, ValueId)>,
}

thread_local! {
    static CURRENT: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

static IDS: AtomicU64 = AtomicU64::new(0);

/// Whether a closure is traced on this thread.
pub(super) fn is_active() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// Whether the graph differentiates what is traced on this thread, so that tapes do not see the whole function.
pub(super) fn is_differentiated_later() -> bool {
    CURRENT.with_borrow(|trace| trace.as_ref().is_some_and(|trace| trace.gradients == Gradients::OfTheGraph))
}

/// Runs a closure whose ops are added to a graph. It gets the values that `declare` adds as tensors. Returns the
/// tensors from outside of the closure, in the order of the graph's last columns.
pub(super) fn trace<R>(
    graph: &mut Graph,
    gradients: Gradients,
    declare: impl FnOnce(&mut Graph) -> Result<Vec<ValueId>>,
    body: impl FnOnce(&[Tensor]) -> Result<R>,
    finish: impl FnOnce(&mut Graph, R, &dyn Fn(&Tensor) -> Option<ValueId>) -> Result<()>,
) -> Result<Vec<Tensor>> {
    /// Ends the trace and puts the graph back, also when the closure fails or panics.
    struct StopTracing<'a>(&'a mut Graph);
    impl Drop for StopTracing<'_> {
        fn drop(&mut self) {
            if let Some(trace) = CURRENT.take() {
                *self.0 = trace.graph;
            }
        }
    }
    if is_active() {
        return Err(Error::Invalid {
            op: "compile",
            what: "a closure that is traced cannot compile another one, or contain a model; compile it before".to_string(),
        });
    }
    let values = declare(graph)?;
    let id = IDS.fetch_add(1, Relaxed);
    let made = Location::caller();
    let arguments: Vec<Tensor> = values.iter().map(|value| Tensor::new(graph.ty(*value).clone(), Data::Traced(id, *value), made)).collect();
    CURRENT.set(Some(Trace { id, graph: std::mem::take(graph), gradients, captured: Vec::new() }));
    let _end = StopTracing(graph);
    let result = body(&arguments)?;
    // A result may be a tensor from outside.
    CURRENT.with_borrow_mut(|trace| {
        let trace = trace.as_mut().expect("set above");
        let mut graph = std::mem::take(&mut trace.graph);
        let value_of = |tensor: &Tensor| match tensor.traced() {
            Some((own, value)) => (own == id).then_some(value),
            None => trace
                .captured
                .iter()
                .find(|(known, _)| known.memory_id() == tensor.memory_id() && known.ty() == tensor.ty())
                .map(|(_, value)| *value),
        };
        let finished = finish(&mut graph, result, &value_of);
        trace.graph = graph;
        finished?;
        Ok(std::mem::take(&mut trace.captured).into_iter().map(|(tensor, _)| tensor).collect())
    })
}

/// Adds a call to the graph, and returns its results. Tensors from outside of the closure become arguments.
pub(super) fn add(call: &Call, inputs: &[&Tensor], scalars: &[f32], made: &'static Location<'static>) -> Result<Vec<Tensor>> {
    CURRENT.with_borrow_mut(|trace| {
        let Trace { id, graph, captured, .. } = trace.as_mut().expect("asked before");
        let values: Vec<ValueId> = inputs.iter().map(|input| value(*id, graph, captured, input, call.name())).collect::<Result<_>>()?;
        let scalars: Vec<ValueId> = scalars.iter().map(|scalar| graph.full(*scalar, Shape::scalar())).collect::<Result<_, _>>()?;
        let outputs = graph.in_scope(call.name(), |g| call.build(g, &values, &scalars))?;
        let tensor = |output: ValueId| {
            let ty: TensorType = graph.ty(output).clone();
            Tensor::new(ty, Data::Traced(*id, output), made)
        };
        Ok(outputs.into_iter().map(tensor).collect())
    })
}

/// The tensor as a constant for the gradients of the graph.
pub(super) fn stopped(tensor: &Tensor, made: &'static Location<'static>) -> Option<Tensor> {
    CURRENT.with_borrow_mut(|trace| {
        let Trace { id, graph, .. } = trace.as_mut()?;
        let (own, value) = tensor.traced()?;
        let stopped = (own == *id).then(|| graph.stop_gradient(value).ok())??;
        Some(Tensor::new(tensor.ty().clone(), Data::Traced(*id, stopped), made))
    })
}

/// The tensor as a value of the trace, captured if it is from outside.
pub(super) fn captured(tensor: &Tensor, made: &'static Location<'static>) -> Result<Tensor> {
    CURRENT.with_borrow_mut(|trace| {
        let Trace { id, graph, captured, .. } = trace.as_mut().expect("asked before");
        let value = value(*id, graph, captured, tensor, "capture")?;
        Ok(Tensor::new(tensor.ty().clone(), Data::Traced(*id, value), made))
    })
}

fn value(id: u64, graph: &mut Graph, captured: &mut Vec<(Tensor, ValueId)>, tensor: &Tensor, op: &'static str) -> Result<ValueId> {
    match tensor.traced() {
        Some((own, value)) if own == id => return Ok(value),
        Some(_) => return Err(Error::Escaped(op)),
        None => {}
    }
    if let Some((_, value)) = captured.iter().find(|(known, _)| known.memory_id() == tensor.memory_id() && known.ty() == tensor.ty()) {
        return Ok(*value);
    }
    let value = graph.input(&format!("captured {}", captured.len()), tensor.ty().clone());
    captured.push((tensor.clone(), value));
    Ok(value)
}
