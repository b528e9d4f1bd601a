//! The op that makes a part, writing between the results of others.

use super::SliceWrite;
use crate::base::shape::TensorType;
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// What `maker` makes of its inputs, written where [`SliceWrite`] would put it, and never held by itself. Its first input is the whole so far, if one is `begun`; it is
/// written in place where nobody reads the whole so far again. Only the planner writes this, for a maker that the device can
/// ([`Device::fuses_slice_write`](crate::Device::fuses_slice_write)).
///
/// What it computes, apart from where that goes, is [`Graph::effective_op`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FusedSliceWrite {
    /// What makes the part: an expression with one result, a product, a convolution, or the gradient of one by its input.
    pub producer: Box<Op>,
    /// Where the part goes.
    pub slice: SliceWrite,
    /// Whether the first input is the whole so far. If not, nothing of it is there yet.
    pub has_base: bool,
}

impl FusedSliceWrite {
    /// Whether an op makes parts that can be inlays at all.
    pub fn can_fuse(maker: &Op) -> bool {
        match maker {
            Op::Pointwise(op) => op.dtypes.len() == 1,
            Op::MatMul(op) => !op.onto,
            Op::Conv2d(_) | Op::Conv2dGradInput(_) => true,
            _ => false,
        }
    }

    /// How many inputs stand before those of the maker.
    pub(crate) fn before(&self) -> usize {
        usize::from(self.has_base)
    }

    /// The type of the part.
    pub(crate) fn part(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<TensorType, String> {
        if !FusedSliceWrite::can_fuse(&self.producer) {
            return Err(format!("what {} makes cannot be written between other results", self.producer.rules().name()));
        }
        let own = inputs.get(self.before()..).ok_or("goes on from a whole that is not there")?;
        Ok(self.producer.rules().infer(graph, own)?.remove(0))
    }
}

impl OpRules for FusedSliceWrite {
    fn name(&self) -> &'static str {
        "fused_slice_write"
    }

    fn precision(&self) -> Precision {
        Precision::Movement
    }

    fn split_rows(&self, _: &RowContext<'_>) -> Option<RowRule> {
        None
    }

    fn attributes(&self) -> String {
        let maker = self.producer.rules();
        let what = [maker.name().to_string(), maker.attributes()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ");
        format!("{what}, along {}", self.slice.attributes())
    }

    fn infer(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let part = self.part(graph, inputs)?;
        let put: Vec<&TensorType> = [&part].into_iter().chain(inputs[..self.before()].iter().copied()).collect();
        self.slice.infer(graph, &put)
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("gradients are taken before the planner makes parts in their places"))
    }

    /// What making the part takes.
    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        // None of the makers looks at the graph for its type.
        let part = self.part(&Graph::new(), inputs).expect("checked when the node was added");
        self.producer.rules().flops(&inputs[self.before()..], &[&part], rows)
    }

    /// The whole may grow where it is.
    fn in_place(&self, input: usize, _: usize) -> bool {
        self.has_base && input == 0
    }
}
