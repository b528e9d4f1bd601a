//! Sums over micro-batches in a fixed order, whatever the number of ranks: the weights then have the same bits.

use crate::DType;
use crate::base::pairwise::PairwiseTree;
use crate::base::shape::TensorType;
use crate::ir::graph::{Graph, GraphError, Init, Phase, StateId, StateKind, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::PairwiseSum;

/// The scalar with the number of micro-batches of the batch.
pub const MICRO_BATCHES: &str = "micro_batches";

/// The scalar with the number of partial sums that are held before a micro-batch.
pub const HELD_SUMS: &str = "held_sums";

/// The scalar with the number of partial sums that a micro-batch is added to.
pub const MERGED_SUMS: &str = "merged_sums";

/// The order in which the complete gradients of fixed micro-batches are added.
///
/// The host gives [`HELD_SUMS`] and [`MERGED_SUMS`] for every micro-batch, as
/// [`PairwiseTree::place`] of the rank's own micro-batches says, and [`MICRO_BATCHES`] for every batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedOrder {
    /// The micro-batches of a whole batch.
    pub tree: PairwiseTree,
    /// Those of a rank, at most.
    pub own: PairwiseTree,
}

impl FixedOrder {
    /// Declares the partial sums of a value, in the scope of the graph.
    pub(super) fn declare(self, graph: &mut Graph, name: &str, ty: &TensorType) -> Result<(StateId, ValueId), GraphError> {
        let value = graph.state(name, StateKind::Accumulator, PairwiseSum::stack(self.own, &ty.shape), Init::Constant(0.0))?;
        Ok((StateId(graph.states.len() as u32 - 1), value))
    }

    /// Adds a complete value of a micro-batch to its partial sums: the new partial sums, or the sum after the `last`
    /// one.
    pub(super) fn add(graph: &mut Graph, value: ValueId, sums: ValueId, last: bool) -> Result<ValueId, GraphError> {
        let scope = graph.producer(sums).scope.clone();
        graph.within(&scope, Phase::Update, |g| {
            let value = g.cast(value, DType::F32)?;
            let (held, merged) = (g.scalar(HELD_SUMS), g.scalar(MERGED_SUMS));
            g.add_one(Op::PairwiseSum(PairwiseSum { last }), &[value, sums, held, merged])
        })
    }
}
