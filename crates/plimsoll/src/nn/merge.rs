//! Layers that bring branches together.

use super::{Layer, Lowering};
use plimsoll_core::ops::Concat;
use plimsoll_core::{GraphError, Op, ValueId};

/// The sum of its inputs: residual connections.
#[derive(Clone, Debug, Default)]
pub struct Add;

/// Its inputs one after another along the last axis.
#[derive(Clone, Debug, Default)]
pub struct Concatenate;

impl Layer for Add {
    fn kind(&self) -> &'static str {
        "add"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let g = &mut *lowering.graph;
        let [first, rest @ ..] = inputs else { return Err(g.error("adds at least one tensor")) };
        let mut sum = *first;
        for other in rest {
            if g.shape(sum) != g.shape(*other) {
                return Err(g.error(format!("shapes {} and {} do not go together", g.shape(sum), g.shape(*other))));
            }
            sum = g.plus(sum, *other)?;
        }
        Ok(sum)
    }
}

impl Layer for Concatenate {
    fn kind(&self) -> &'static str {
        "concatenate"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let g = &mut *lowering.graph;
        let rank = inputs.first().map_or(0, |input| g.shape(*input).rank());
        g.add_one(Op::Concat(Concat { axis: rank.saturating_sub(1) }), inputs)
    }
}
