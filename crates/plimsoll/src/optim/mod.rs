//! Optimisers: how a parameter changes with its gradient.

mod adam;
mod sgd;

use plimsoll_core::ValueId;
use plimsoll_core::graph::{Graph, GraphError, Init, StateId, StateKind};

pub use adam::{Adam, AdamW};
pub use sgd::Sgd;

/// How a parameter changes with its gradient.
pub trait Optimizer: std::fmt::Debug + Send + Sync {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// The numbers it gives to every step, by name.
    fn scalar_names(&self) -> &'static [&'static str];

    /// Those numbers for step `step`, counted from 1.
    fn scalars(&self, step: u64, numbers: &mut [f32]);

    /// Adds the change of one parameter to a graph. The graph's scope is the parameter's name.
    fn update(&self, graph: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError>;
}

/// A tensor of the parameter's type that the optimiser keeps about it, starting at zero.
fn remember(graph: &mut Graph, name: &str, parameter: StateId) -> Result<(StateId, ValueId), GraphError> {
    let ty = graph.states()[parameter.0 as usize].ty.clone();
    let value = graph.state(name, StateKind::Optimizer, ty, Init::Constant(0.0))?;
    Ok((graph.as_state(value).expect("just declared"), value))
}

/// The parameter as the step finds it.
fn current(graph: &Graph, parameter: StateId) -> ValueId {
    graph.state_value(parameter).expect("a parameter with a gradient is read by the step")
}
