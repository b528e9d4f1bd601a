//! An op fused with the slice write of its result.

use super::SliceWrite;
use crate::base::shape::TensorType;
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// The output of `producer`, written straight into the slice to which a [`SliceWrite`] would copy it; it never exists
/// as a separate tensor. With `has_base` the first input is the concat output so far, which is updated in place unless
/// it is read later. Only the planner creates this op, for producers that the device supports
/// ([`Target::fuses_slice_write`](crate::plan::Target::fuses_slice_write)).
///
/// [`Graph::effective_op`] returns the computation without the slice write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FusedSliceWrite {
    /// A pointwise op with one output, a matrix product, a convolution, or the input gradient of one.
    pub producer: Box<Op>,
    /// The slice it writes.
    pub slice: SliceWrite,
    /// Whether the first input is the output so far. Otherwise this op writes the first slice.
    pub has_base: bool,
}

impl FusedSliceWrite {
    /// Whether an op supports fusion with a slice write.
    pub fn can_fuse(producer: &Op) -> bool {
        match producer {
            Op::Pointwise(op) => op.dtypes.len() == 1,
            Op::MatMul(op) => !op.onto,
            Op::Conv2d(_) | Op::Conv2dGradInput(_) => true,
            _ => false,
        }
    }

    /// Number of inputs before those of the producer.
    pub(crate) fn before(&self) -> usize {
        usize::from(self.has_base)
    }

    /// The type of the slice.
    pub(crate) fn part(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<TensorType, String> {
        if !FusedSliceWrite::can_fuse(&self.producer) {
            return Err(format!("{} cannot be fused with a slice write", self.producer.rules().name()));
        }
        let own = inputs.get(self.before()..).ok_or("is missing the tensor it writes into")?;
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
        let producer = self.producer.rules();
        let what =
            [producer.name().to_string(), producer.attributes()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ");
        format!("{what}, along {}", self.slice.attributes())
    }

    fn infer(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let part = self.part(graph, inputs)?;
        let put: Vec<&TensorType> = [&part].into_iter().chain(inputs[..self.before()].iter().copied()).collect();
        self.slice.infer(graph, &put)
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("gradients are taken before the planner fuses slice writes"))
    }

    /// Those of the producer.
    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        // No producer needs the graph to infer its type.
        let part = self.part(&Graph::new(), inputs).expect("checked when the node was added");
        self.producer.rules().flops(&inputs[self.before()..], &[&part], rows)
    }

    /// The output may be updated in place.
    fn in_place(&self, input: usize, _: usize) -> bool {
        self.has_base && input == 0
    }
}
