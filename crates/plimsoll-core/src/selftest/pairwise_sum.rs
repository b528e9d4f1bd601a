//! Cases for partial sums over micro-batches: stacks of several heights, of which some, all or none are added.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use crate::DType;
use crate::base::pairwise::PairwiseTree;
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::GraphError;
use crate::ir::op::Op;
use crate::ir::ops::PairwiseSum;

pub(super) fn cases(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    // Numbers of partial sums beyond the stack are taken as its end, and fractions are cut off.
    let places = [(0.0, 0.0), (1.0, 0.0), (2.0, 1.0), (3.0, 3.0), (2.5, 1.5), (9.0, 2.0), (-1.0, 4.0)];
    for (rank, last) in [(0, false), (1, true), (2, false), (3, true)] {
        for (before, merged) in places {
            let mut s = Stage::new(draw);
            let shape = Shape::fixed(s.draw.extents(rank));
            let levels = PairwiseSum::stack(PairwiseTree::new(8), &shape).shape.dims()[0];
            let tensor = s.operand_in(DType::F32, shape.clone(), Domain::Any)?;
            let sums = s.operand_in(DType::F32, Shape::new([levels].into_iter().chain(shape.dims().iter().copied())), Domain::Any)?;
            assert_eq!(levels, Dim::fixed(3));
            let [before, merged] = [before, merged].map(|number| s.number(number));
            let result = s.graph.add_one(Op::PairwiseSum(PairwiseSum { last }), &[tensor, sums, before?, merged?])?;
            cases.push(s.finish_forward(format!("a tensor of {rank} axes{}", if last { ", the last" } else { "" }), &[result])?);
        }
    }
    Ok(cases)
}
