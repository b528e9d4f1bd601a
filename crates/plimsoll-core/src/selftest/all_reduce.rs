//! Cases for sums over the ranks of a job, on the one rank that a device without a job is.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use crate::DType;
use crate::base::shape::Shape;
use crate::ir::graph::{GraphError, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::AllReduce;
use std::num::NonZeroU32;

pub(super) fn cases(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for (buckets, order) in [(&[1][..], None), (&[3], None), (&[1, 2, 4], None), (&[2], NonZeroU32::new(4)), (&[1, 3], NonZeroU32::new(7))]
    {
        let mut s = Stage::new(draw);
        let (mut sums, mut token): (Vec<ValueId>, Option<ValueId>) = (Vec::new(), None);
        for tensors in buckets {
            let mut inputs = Vec::new();
            let present = order.map(|micro_batches| s.number(micro_batches.get() as f32));
            for rank in 0..*tensors {
                let shape = Shape::fixed(s.draw.extents(rank));
                inputs.push(s.operand_in(DType::F32, shape, Domain::Any)?);
            }
            inputs.extend(present.transpose()?);
            inputs.extend(token);
            let outputs = s.graph.add(Op::AllReduce(AllReduce { ranks: 1, has_token: token.is_some(), order }), &inputs)?;
            token = outputs.last().copied();
            sums.extend(&outputs[..*tensors]);
        }
        // The number of collectives is a result too.
        sums.extend(token);
        cases.push(s.finish_forward(format!("buckets of {buckets:?} tensors{}", if order.is_some() { ", in order" } else { "" }), &sums)?);
    }
    Ok(cases)
}
