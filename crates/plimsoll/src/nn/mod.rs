//! Layers and the two ways to put them together: one after another ([`Sequential`]) or as a graph ([`Functional`]).

mod activation;
mod conv;
mod dense;
mod dropout;
mod init;
mod merge;
mod model;
mod pool;
mod shape;

use plimsoll_core::{Graph, GraphError, ValueId};

pub use activation::Activation;
pub use conv::{Conv2D, Padding};
pub use dense::Dense;
pub use dropout::Dropout;
pub use init::Initializer;
pub use merge::{Add, Concatenate};
pub use model::{Functional, Model, Sequential, Tensor};
pub use pool::{AveragePool2D, GlobalAveragePool, MaxPool2D};
pub use shape::Flatten;

/// Where a layer writes itself.
pub struct Lowering<'a> {
    /// The graph being written; the scope is the layer's name.
    pub graph: &'a mut Graph,
    /// Whether the graph is for learning; dropout is only then there.
    pub training: bool,
}

/// A layer: how it writes itself into a graph, given the values it reads.
pub trait Layer: std::fmt::Debug + Send + Sync {
    /// The name it gets if it is given none, such as `dense`.
    fn kind(&self) -> &'static str;

    /// Adds its nodes and gives its result.
    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError>;

    /// The activation its result went through last, so that a loss may go back to before it.
    fn last_activation(&self) -> Option<Activation> {
        None
    }
}

/// The single value a layer reads.
fn only(lowering: &Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
    match inputs {
        [input] => Ok(*input),
        _ => Err(lowering.graph.error(format!("reads one tensor, but is connected to {}", inputs.len()))),
    }
}
