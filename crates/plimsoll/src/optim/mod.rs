//! Optimizers.

mod adafactor;
mod adagrad;
mod adam;
mod adam8;
mod clip;
mod continued;
mod ema;
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
pub use clip::Clip;
pub(crate) use continued::Continued;
pub use ema::Ema;
pub(crate) use ema::{MOMENTUM as EMA_MOMENTUM, NAME as EMA_NAME};
pub use lion::Lion;
pub use nadam::Nadam;
pub use rmsprop::RmsProp;
pub use sgd::Sgd;

/// An optimizer: updates a parameter from its gradient.
pub trait Optimizer: std::fmt::Debug + Send + Sync {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// The base learning rate, which a schedule multiplies.
    fn learning_rate(&self) -> f32;

    /// The scalars it sets at every step, by name; the first is the learning rate.
    fn scalar_names(&self) -> &'static [&'static str] {
        &["lr"]
    }

    /// The scalars of step `step`, counted from 1, at the learning rate `lr`.
    fn scalars(&self, step: u64, lr: f64, numbers: &mut [f32]) {
        let _ = step;
        numbers[0] = lr as f32;
    }

    /// The same optimizer with 8-bit state, if there is one.
    fn eight_bit_state(&self) -> Option<Arc<dyn Optimizer>> {
        None
    }

    /// Why its states cannot be divided over ranks, if they cannot. Where they are, an [`update`](Optimizer::update)
    /// sees [the shard](Graph::updated_value) of a rank, and every node that it adds has to be element-wise, apart from
    /// sums that are [added up](Graph::sum_of_shards).
    fn undivided(&self) -> Option<&'static str> {
        None
    }

    /// Adds the update of one parameter to a graph. The graph's scope is the parameter's name.
    fn update(&self, graph: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError>;
}

/// How a configuration writes an optimizer. The list of types, their keys and hints and the table in `docs/training.md`
/// follow from it.
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
    &[sgd::SGD, adam::ADAM, adam::ADAMW, rmsprop::RMSPROP, adagrad::ADAGRAD, adafactor::ADAFACTOR, lion::LION, nadam::NADAM];

/// A slot variable of the type of what is updated, initialized with zeros.
fn slot(graph: &mut Graph, name: &str, parameter: StateId) -> Result<(StateId, ValueId), GraphError> {
    let shape = graph.shape(value_of(graph, parameter)).clone();
    slot_of_type(graph, name, TensorType::f32(shape), 0.0)
}

/// A slot variable of any type, initialized with a constant.
fn slot_of_type(graph: &mut Graph, name: &str, ty: TensorType, first: f32) -> Result<(StateId, ValueId), GraphError> {
    let value = graph.state(name, StateKind::Optimizer, ty, Init::Constant(first))?;
    Ok((graph.as_state(value).expect("just declared"), value))
}

/// The parameter before the update, or the shard of it that is updated.
fn value_of(graph: &Graph, parameter: StateId) -> ValueId {
    graph.updated_value(parameter).expect("a parameter with a gradient is read by the step")
}

/// The number of elements of a value without a batch axis.
fn elements(graph: &Graph, value: ValueId) -> usize {
    graph.shape(value).elements().factor()
}

/// The root mean square, as a scalar.
fn root_mean_square(graph: &mut Graph, value: ValueId) -> Result<ValueId, GraphError> {
    let share = 1.0 / elements(graph, value).max(1) as f32;
    let squares = graph.map(value, |e, x| e.mul(e.mul(x, x), e.constant(share)))?;
    let mean = graph.sum(squares)?;
    graph.unary(plimsoll_core::expr::Unary::Sqrt, mean)
}

/// The step as an exponent.
fn exponent(step: u64) -> i32 {
    step.min(i32::MAX as u64) as i32
}

/// A shape with one axis reduced to 1.
fn shrunk(shape: &Shape, axis: usize) -> Shape {
    Shape::fixed(shape.dims().iter().enumerate().map(|(i, dim)| if i == axis { 1 } else { dim.factor() }))
}
