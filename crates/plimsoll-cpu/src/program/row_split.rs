//! Which nodes are bit-identical when their rows are split.

use super::lower::conv_shape;
use crate::kernels::{conv, gemm, reduce};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::plan::RowSplit;
use plimsoll_core::{DType, Op, Shape, ValueId};

/// Whether a node is bit-identical when its rows are split; see [`plimsoll_core::Device::can_split_rows`].
pub(crate) fn can_split_rows(graph: &Graph, node: &Node, piece: RowSplit, rows: usize) -> bool {
    let dims = |value: ValueId| graph.shape(value).bind(rows);
    let single = |value: ValueId| graph.ty(value).dtype == DType::F32;
    // For a tensor's rows: the divisor of the length of all pieces but the last, and the minimum length.
    let of = |shape: &Shape| match piece {
        RowSplit::Multiple(count) => (count, count),
        RowSplit::Rows(count) => (count * shape.dims()[0].factor(), shape.dims()[0].factor()),
    };
    let of_input = |i: usize| of(graph.shape(node.inputs[i]));
    match &node.op {
        Op::Pointwise(_) | Op::MaxPool(_) | Op::MaxPoolGrad(_) | Op::AvgPool(_) | Op::AvgPoolGrad(_) => true,
        Op::Reduce(op) => {
            let extents = op.shape.bind(rows);
            let (all, least) = of(&op.shape);
            if op.axes.contains(&0) {
                // Only leading axes: the rows of a batch are then contiguous.
                let leading = op.axes.iter().copied().eq(0..op.axes.len());
                let (row, columns) = (extents[1..op.axes.len()].iter().product(), extents[op.axes.len()..].iter().product());
                return leading && reduce::sums_resume(row, columns, all);
            }
            let behind = op.axes.last().map_or(0, |axis| axis + 1);
            reduce::results_alone(least, op.axes.iter().map(|axis| extents[*axis]).product(), extents[behind..].iter().product())
        }
        Op::MatMul(op) => {
            let (m, n, k) = op.dims(graph.shape(node.inputs[0]), graph.shape(node.inputs[1])).expect("checked when the node was added");
            let (m, n, k) = (m.bind(rows), n.bind(rows), k.bind(rows));
            let (all, least) = of_input(0);
            let alone = if op.transpose_a { gemm::sums_resume(m, n, k, all) } else { gemm::rows_are_independent(least, n, k) };
            !graph.ty(node.outputs[0]).dtype.is_half() && alone
        }
        Op::Conv2d(op) => {
            let shape = conv_shape(&op.window, op.groups, &dims(node.inputs[0]), &dims(node.outputs[0]));
            single(node.inputs[0]) && single(node.outputs[0]) && conv::images_are_independent(&shape, of_input(0).1)
        }
        Op::Conv2dGradInput(op) => {
            let shape = conv_shape(&op.window, op.groups, &dims(node.outputs[0]), &dims(node.inputs[1]));
            single(node.inputs[1]) && single(node.outputs[0]) && conv::input_gradients_are_independent(&shape, of_input(1).1)
        }
        Op::Conv2dGradFilter(op) => {
            let shape = conv_shape(&op.window, op.groups, &dims(node.inputs[0]), &dims(node.inputs[1]));
            single(node.inputs[0]) && single(node.inputs[1]) && conv::sums_resume(&shape, of_input(0).0)
        }
        // The planner does not split the rows of these ops.
        Op::Input(_) | Op::State(_) | Op::Scalar(_) | Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::BatchSlice(_) => false,
        Op::Concat(_) | Op::SliceWrite(_) | Op::FusedSliceWrite(_) | Op::ChannelView(_) | Op::Pad(_) | Op::Store(_) | Op::Load(_) => false,
        Op::Gather(_) | Op::ScatterAdd(_) | Op::Attention(_) | Op::AttentionGrad(_) | Op::Recurrent(_) | Op::RecurrentGrad(_) => false,
    }
}
