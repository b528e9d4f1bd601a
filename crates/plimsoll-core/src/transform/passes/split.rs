//! Splits convolutions over concatenated channels into a sum of convolutions per concat input. The concat is never
//! materialized, and the gradients of its inputs are computed separately instead of sliced.

use super::rewrite::{Rewrite, rewrite};
use crate::ir::graph::{Graph, GraphError, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Conv2d, Slice};

/// The channel axis of images is the last one, that of filters the last but one.
const IMAGE_CHANNELS: usize = 3;
const FILTER_CHANNELS: usize = 2;

/// Splits convolutions that are the only consumer of a channel concat. Applies to forward graphs; gradients follow from
/// it.
pub fn split_concats(old: &Graph) -> Graph {
    let uses = old.use_counts();
    rewrite(old, |new, node, inputs| {
        let Op::Conv2d(conv) = &node.op else { return Rewrite::Keep };
        let joined = new.producer(inputs[0]);
        let apart = conv.groups == 1 && conv.epilogue.is_none() && uses[node.inputs[0].index()] == 1;
        match &joined.op {
            Op::Concat(concat) if apart && concat.axis == IMAGE_CHANNELS => {
                let parts = joined.inputs.clone();
                let sum = sum_of_parts(new, node, conv, &parts, inputs[1]);
                Rewrite::Replace(vec![sum.expect("every part is an image of its own")])
            }
            _ => Rewrite::Keep,
        }
    })
}

fn sum_of_parts(new: &mut Graph, node: &Node, conv: &Conv2d, parts: &[ValueId], filter: ValueId) -> Result<ValueId, GraphError> {
    new.within(&node.scope, node.phase, |g| {
        let (mut start, mut sum) = (0, None);
        for part in parts {
            let length = g.shape(*part).dims()[IMAGE_CHANNELS].factor();
            let own = g.add_one(Op::Slice(Slice { axis: FILTER_CHANNELS, start, length }), &[filter])?;
            let convolved = g.add_one(Op::Conv2d(conv.clone()), &[*part, own])?;
            sum = Some(match sum {
                Some(sum) => g.plus(sum, convolved)?,
                None => convolved,
            });
            start += length;
        }
        Ok(sum.expect("a concat joins something"))
    })
}
