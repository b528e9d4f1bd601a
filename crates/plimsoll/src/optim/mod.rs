//! Optimisers: how a parameter changes with its gradient.

mod adafactor;
mod adagrad;
mod adam;
mod adam8;
mod average;
mod clip;
mod lion;
mod nadam;
mod rmsprop;
mod sgd;

use crate::reader::Reader;
use plimsoll_core::graph::{Graph, GraphError, Init, StateId, StateKind};
use plimsoll_core::{Shape, TensorType, ValueId};
use std::sync::Arc;

pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use adam8::Adam8bit;
pub use average::Average;
pub(crate) use average::{KEEP as AVERAGE_KEEP, NAME as AVERAGE_NAME};
pub use clip::Clip;
pub use lion::Lion;
pub use nadam::Nadam;
pub use rmsprop::RmsProp;
pub use sgd::Sgd;

/// How a parameter changes with its gradient.
pub trait Optimizer: std::fmt::Debug + Send + Sync {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// The learning rate it was made with, which a schedule varies.
    fn learning_rate(&self) -> f32;

    /// The numbers it gives to every step, by name. The first is the learning rate, and for most it is the only one.
    fn scalar_names(&self) -> &'static [&'static str] {
        &["lr"]
    }

    /// Those numbers for step `step`, counted from 1, at the learning rate `lr`.
    fn scalars(&self, step: u64, lr: f64, numbers: &mut [f32]) {
        let _ = step;
        numbers[0] = lr as f32;
    }

    /// The same optimiser with what it knows about parameters in 8 bits, if there is such a one.
    fn eight_bit_state(&self) -> Option<Arc<dyn Optimizer>> {
        None
    }

    /// Adds the change of one parameter to a graph. The graph's scope is the parameter's name.
    fn update(&self, graph: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError>;
}

/// How a configuration writes an optimizer. The list of types, their keys and hints and the table in `docs/training.md` follow from it.
#[derive(Clone, Copy)]
pub(crate) struct OptimizerDef {
    /// The `type`.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Its state per parameter.
    pub state: &'static str,
    /// Builds the optimizer from its table.
    pub from_config: fn(&Reader<'_>) -> crate::error::Result<Arc<dyn Optimizer>>,
}

/// Every optimizer that a configuration can name, in the order of the docs.
pub(crate) const OPTIMIZERS: &[OptimizerDef] =
    &[sgd::SGD, adam::ADAM, adam::ADAMW, nadam::NADAM, rmsprop::RMSPROP, adagrad::ADAGRAD, adafactor::ADAFACTOR, lion::LION];

/// A tensor of the parameter's type that the optimiser keeps about it, starting at zero.
fn remember(graph: &mut Graph, name: &str, parameter: StateId) -> Result<(StateId, ValueId), GraphError> {
    let shape = graph.states()[parameter.0 as usize].ty.shape.clone();
    remember_as(graph, name, TensorType::f32(shape), 0.0)
}

/// A tensor of any type that the optimiser keeps, starting at one number.
fn remember_as(graph: &mut Graph, name: &str, ty: TensorType, first: f32) -> Result<(StateId, ValueId), GraphError> {
    let value = graph.state(name, StateKind::Optimizer, ty, Init::Constant(first))?;
    Ok((graph.as_state(value).expect("just declared"), value))
}

/// The parameter as the step finds it.
fn current(graph: &Graph, parameter: StateId) -> ValueId {
    graph.state_value(parameter).expect("a parameter with a gradient is read by the step")
}

/// How many numbers a value without rows has.
fn elements(graph: &Graph, value: ValueId) -> usize {
    graph.shape(value).elements().factor()
}

/// The square root of the mean of squares, as a single number.
fn root_mean_square(graph: &mut Graph, value: ValueId) -> Result<ValueId, GraphError> {
    let share = 1.0 / elements(graph, value).max(1) as f32;
    let squares = graph.map(value, |e, x| e.mul(e.mul(x, x), e.constant(share)))?;
    let mean = graph.sum(squares)?;
    graph.unary(plimsoll_core::expr::Unary::Sqrt, mean)
}

/// Steps as an exponent.
fn exponent(step: u64) -> i32 {
    step.min(i32::MAX as u64) as i32
}

/// A shape without rows, with one axis shrunk to 1.
fn shrunk(shape: &Shape, axis: usize) -> Shape {
    Shape::fixed(shape.dims().iter().enumerate().map(|(i, dim)| if i == axis { 1 } else { dim.factor() }))
}
