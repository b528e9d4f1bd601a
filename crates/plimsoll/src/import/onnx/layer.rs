//! A node of an ONNX graph as a layer.

use crate::nn::{Layer, Lowering};
use plimsoll_core::{GraphError, ValueId};
use std::fmt;

type Lower = dyn Fn(&mut Lowering<'_>, &[ValueId]) -> Result<ValueId, GraphError> + Send + Sync;

/// A layer that adds the nodes of one operator.
pub(super) struct NodeLayer {
    pub kind: &'static str,
    pub lower: Box<Lower>,
    /// Whether it reads integers as stored.
    pub integers: bool,
    /// The rows of the table that it looks integers up in.
    pub bound: Option<usize>,
    /// Whether it works on every element by itself.
    pub elementwise: bool,
}

impl NodeLayer {
    pub fn new(
        kind: &'static str,
        lower: impl Fn(&mut Lowering<'_>, &[ValueId]) -> Result<ValueId, GraphError> + Send + Sync + 'static,
    ) -> NodeLayer {
        NodeLayer { kind, lower: Box::new(lower), integers: false, bound: None, elementwise: false }
    }
}

impl fmt::Debug for NodeLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLayer").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Layer for NodeLayer {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        (self.lower)(lowering, inputs)
    }

    fn reads_integers(&self) -> bool {
        self.integers
    }

    fn input_bound(&self) -> Option<usize> {
        self.bound
    }

    fn keeps_channels(&self) -> bool {
        self.elementwise
    }
}
