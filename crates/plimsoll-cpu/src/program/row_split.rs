//! Which nodes are bit-identical when their rows are split.

use crate::kernels::gemm::panel::DEPTH;
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::plan::RowSplit;
use plimsoll_core::{DType, Op, ValueId};

/// Whether a node is bit-identical when its rows are split; see [`plimsoll_core::Device::can_split_rows`].
/// Rows are computed in the same way beside any others, and sums over rows resume at any row. Of the positions within
/// rows, pieces have at least [`DEPTH`]: shorter ones would spend their time reading and writing weight gradients.
pub(crate) fn can_split_rows(graph: &Graph, node: &Node, piece: RowSplit) -> bool {
    let long = !matches!(piece, RowSplit::Multiple(count) if count < DEPTH);
    let single = |value: ValueId| graph.ty(value).dtype == DType::F32;
    match &node.op {
        Op::Pointwise(_) | Op::MaxPool(_) | Op::MaxPoolGrad(_) | Op::AvgPool(_) | Op::AvgPoolGrad(_) => true,
        // Of sums over rows, only those along leading axes: the rows of a batch are then contiguous.
        Op::Reduce(op) => !op.axes.contains(&0) || op.axes.iter().copied().eq(0..op.axes.len()),
        Op::MatMul(op) => !graph.ty(node.outputs[0]).dtype.is_half() && (long || !op.transpose_a),
        Op::Conv2d(_) => single(node.inputs[0]) && single(node.outputs[0]),
        Op::Conv2dGradInput(_) => single(node.inputs[1]) && single(node.outputs[0]),
        Op::Conv2dGradFilter(_) => single(node.inputs[0]) && single(node.inputs[1]),
        // The planner does not split the rows of these ops.
        Op::Input(_) | Op::State(_) | Op::Scalar(_) | Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::BatchSlice(_) => false,
        Op::Concat(_) | Op::SliceWrite(_) | Op::FusedSliceWrite(_) | Op::ChannelView(_) | Op::Pad(_) | Op::Store(_) | Op::Load(_) => false,
        Op::Gather(_) | Op::ScatterAdd(_) | Op::Attention(_) | Op::AttentionGrad(_) | Op::Recurrent(_) | Op::RecurrentGrad(_) => false,
        Op::AllReduce(_) | Op::PairwiseSum(_) | Op::ReduceScatter(_) | Op::Shard(_) | Op::AllGather(_) => false,
    }
}
