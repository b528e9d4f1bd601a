//! Data-parallel training: gradients are summed over ranks when they are complete, in buckets.

use crate::ir::graph::{Graph, GraphError, Phase, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::AllReduce;
use crate::transform::fixed_order::{FixedOrder, MICRO_BATCHES};
use crate::{Bytes, DType};
use std::num::NonZeroU32;

/// The ranks that train together, each on its own rows of every batch.
///
/// The loss of a rank is its rows' share of the loss of the whole batch, as that of a micro-batch is. The sums over
/// ranks are then the gradients of the whole batch, whatever the number of rows of each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataParallel {
    /// The number of ranks.
    pub ranks: u32,
    /// The bytes of gradients that are summed together, at least, unless they are the last: many small sums take longer
    /// than a large one. A larger bucket holds more gradients at the same time.
    pub bucket: Bytes,
}

impl DataParallel {
    /// Replaces complete gradients of a step, in the order of parameters, and the divisor of its loss, by their sums
    /// over all ranks.
    ///
    /// Buckets begin with the last parameters, whose gradients are complete first. The divisor, which every update
    /// reads, is summed before all of them.
    /// With `order`, sums are in the order of its micro-batches.
    pub(super) fn sum(
        &self,
        graph: &mut Graph,
        gradients: &mut [ValueId],
        divisor: Option<&mut ValueId>,
        order: Option<FixedOrder>,
    ) -> Result<(), GraphError> {
        let buckets = self.buckets(graph, gradients);
        let mut values: Vec<Option<&mut ValueId>> = gradients.iter_mut().map(Some).collect();
        let mut taken = |i: usize| values[i].take().expect("a gradient is in one bucket");
        let buckets: Vec<Vec<&mut ValueId>> = buckets.into_iter().map(|bucket| bucket.into_iter().map(&mut taken).collect()).collect();
        let buckets = divisor.map(|divisor| vec![divisor]).into_iter().chain(buckets);
        // After those of the forward and backward pass.
        let mut token = graph.collective_token();
        for (number, bucket) in buckets.enumerate() {
            graph.within(format!("all_reduce/{number}"), Phase::Update, |g| -> Result<(), GraphError> {
                let mut inputs = bucket.iter().map(|value| g.cast(**value, DType::F32)).collect::<Result<Vec<_>, _>>()?;
                inputs.extend(order.map(|_| g.scalar(MICRO_BATCHES)));
                inputs.extend(token);
                let order = order.and_then(|order| NonZeroU32::new(order.tree.micro_batches()));
                let op = AllReduce { ranks: self.ranks, has_token: token.is_some(), order };
                let sums = g.add(Op::AllReduce(op), &inputs)?;
                for (value, sum) in bucket.into_iter().zip(&sums) {
                    *value = g.cast(*sum, g.ty(*value).dtype)?;
                }
                token = sums.last().copied();
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The gradients of each bucket, by their numbers.
    pub(super) fn buckets(&self, graph: &Graph, gradients: &[ValueId]) -> Vec<Vec<usize>> {
        // Every step of a run has the same buckets, whatever its micro-batch: they follow from the parameters alone.
        let (mut buckets, mut bytes) = (vec![Vec::new()], Bytes::ZERO);
        for (i, gradient) in gradients.iter().enumerate().rev() {
            if bytes >= self.bucket {
                buckets.push(Vec::new());
                bytes = Bytes::ZERO;
            }
            bytes += graph.ty(*gradient).bytes(1);
            buckets.last_mut().expect("begun above").push(i);
        }
        buckets.retain(|bucket| !bucket.is_empty());
        buckets
    }
}
