//! Layers that only change shapes.

use super::{Layer, Lowering, only};
use plimsoll_core::{GraphError, ValueId};

/// Everything behind the batch in one axis: `[batch, h, w, c]` becomes `[batch, h·w·c]`. Costs nothing.
#[derive(Clone, Debug, Default)]
pub struct Flatten;

impl Layer for Flatten {
    fn kind(&self) -> &'static str {
        "flatten"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        lowering.graph.flatten(x)
    }
}
