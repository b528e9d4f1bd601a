//! Cases for shards and their collectives, on the one rank that a device without a job is: its shard is the whole
//! tensor.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use crate::DType;
use crate::base::shape::Shape;
use crate::ir::graph::{GraphError, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{AllGather, ReduceScatter, Shard};

pub(super) fn reduce_scatter(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    collectives(draw, |_, has_token| Op::ReduceScatter(ReduceScatter { ranks: 1, has_token }))
}

pub(super) fn all_gather(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    collectives(draw, |shapes, has_token| Op::AllGather(AllGather { ranks: 1, has_token, shapes }))
}

pub(super) fn shard(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for rank in 0..4 {
        let mut s = Stage::new(draw);
        let shape = Shape::fixed(s.draw.extents(rank));
        let tensor = s.operand_in(DType::F32, shape, Domain::Any)?;
        let shard = s.graph.add_one(Op::Shard(Shard { ranks: 1 }), &[tensor])?;
        cases.push(s.finish_forward(format!("of a tensor with {rank} dimensions"), &[shard])?);
    }
    Ok(cases)
}

/// Two collectives in a row, of several tensors each. Shards that are gathered are flat.
fn collectives(draw: &mut Draw, op: impl Fn(Vec<Shape>, bool) -> Op) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for buckets in [&[1][..], &[3], &[1, 2, 4]] {
        let mut s = Stage::new(draw);
        let (mut results, mut token): (Vec<ValueId>, Option<ValueId>) = (Vec::new(), None);
        for tensors in buckets {
            let (mut inputs, mut shapes) = (Vec::new(), Vec::new());
            for rank in 0..*tensors {
                let shape = Shape::fixed(s.draw.extents(rank));
                let flat = Shape::fixed([shape.elements().factor()]);
                shapes.push(shape.clone());
                let gathers = matches!(op(Vec::new(), false), Op::AllGather(_));
                inputs.push(s.operand_in(DType::F32, if gathers { flat } else { shape }, Domain::Any)?);
            }
            inputs.extend(token);
            let outputs = s.graph.add(op(shapes, token.is_some()), &inputs)?;
            token = outputs.last().copied();
            results.extend(&outputs[..*tensors]);
        }
        // The number of collectives is a result too.
        results.extend(token);
        cases.push(s.finish_forward(format!("buckets of {buckets:?} tensors"), &results)?);
    }
    Ok(cases)
}
