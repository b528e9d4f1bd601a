//! The closed list of ops that devices implement, and the trait with the rules of each.

use crate::DType;
use crate::base::shape::{Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, InputId, ScalarId, StateId, ValueId};
use crate::ir::ops::{
    AllGather, AllReduce, Attention, AttentionGrad, AvgPool, AvgPoolGrad, Concat, Conv2d, Conv2dGradFilter, Conv2dGradInput, MatMul,
    MaxPool, MaxPoolGrad,
};
use crate::ir::ops::{
    BatchSlice, ChannelView, FusedSliceWrite, Gather, Load, Pad, PairwiseSum, Pointwise, Recurrent, RecurrentGrad, Reduce, ReduceScatter,
    Reshape, ScatterAdd, Shard, Slice, SliceWrite, Store, Transpose,
};
pub use crate::ir::rules::{Precision, RowContext, RowRule};

/// The rules of an op. Devices only add kernels.
pub trait OpRules {
    /// The name in print-outs.
    fn name(&self) -> &'static str;

    /// Treatment in mixed precision.
    fn precision(&self) -> Precision;

    /// The effect of splitting a node's rows; none if they cannot be split.
    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule>;

    /// The op over some of its rows. `part` maps a full shape to that of the rows; with `onto`, a sum accumulates onto
    /// the previous one. None if the op is the same for any rows.
    fn with_rows(&self, part: &dyn Fn(&Shape) -> Shape, onto: bool) -> Option<Op> {
        let _ = (part, onto);
        None
    }

    /// The attributes of the op for print-outs; empty if there are none.
    fn attributes(&self) -> String {
        String::new()
    }

    /// The output types, or why the inputs are invalid.
    fn infer(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String>;

    /// Adds the nodes that compute the gradient of each wanted input. The values that the rule reads (inputs, outputs
    /// or neither) stay live until the backward pass.
    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError>;

    /// Floating-point operations over `rows` rows.
    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType], rows: usize) -> u64;

    /// Whether output `output` may reuse the buffer of input `input`, if both have the same size and the input dies
    /// there.
    fn in_place(&self, input: usize, output: usize) -> bool {
        let _ = (input, output);
        false
    }

    /// Whether the output is a view of the input: the same bytes under another shape, or some of them in place.
    fn is_view(&self) -> bool {
        false
    }
}

/// An operation of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A column of the batch.
    Input(InputId),
    /// The initial value of a state.
    State(StateId),
    /// A scalar from the host.
    Scalar(ScalarId),
    /// An elementwise expression.
    Pointwise(Pointwise),
    /// An elementwise expression, reduced along axes.
    Reduce(Reduce),
    /// Matrix product.
    MatMul(MatMul),
    /// Convolution.
    Conv2d(Conv2d),
    /// Gradient of a convolution with respect to its input.
    Conv2dGradInput(Conv2dGradInput),
    /// Gradient of a convolution with respect to its filter.
    Conv2dGradFilter(Conv2dGradFilter),
    /// Max pooling, with argmax positions.
    MaxPool(MaxPool),
    /// Its gradient.
    MaxPoolGrad(MaxPoolGrad),
    /// Average pooling.
    AvgPool(AvgPool),
    /// Its gradient.
    AvgPoolGrad(AvgPoolGrad),
    /// A recurrent layer over a sequence.
    Recurrent(Recurrent),
    /// Its gradient.
    RecurrentGrad(RecurrentGrad),
    /// Reshape.
    Reshape(Reshape),
    /// Permutation of axes.
    Transpose(Transpose),
    /// A slice along one axis.
    Slice(Slice),
    /// A slice of the batch.
    BatchSlice(BatchSlice),
    /// Concatenation along an axis.
    Concat(Concat),
    /// A tensor written into a slice of another.
    SliceWrite(SliceWrite),
    /// An op whose result is written straight into a slice of another tensor.
    FusedSliceWrite(FusedSliceWrite),
    /// A strided view of some channels.
    ChannelView(ChannelView),
    /// Zero padding along one axis.
    Pad(Pad),
    /// Rows of a table by index.
    Gather(Gather),
    /// Sums rows into a table by index.
    ScatterAdd(ScatterAdd),
    /// Multi-head attention.
    Attention(Attention),
    /// Its gradient.
    AttentionGrad(AttentionGrad),
    /// Sums over the ranks of a job.
    AllReduce(AllReduce),
    /// Sums over the ranks of a job, of which each rank has a shard.
    ReduceScatter(ReduceScatter),
    /// This rank's shard of a tensor.
    Shard(Shard),
    /// Tensors of which each rank has a shard, complete on all ranks.
    AllGather(AllGather),
    /// Partial sums over micro-batches.
    PairwiseSum(PairwiseSum),
    /// A copy to the backing store.
    Store(Store),
    /// A copy from the backing store.
    Load(Load),
}

impl Op {
    /// The rules of the op.
    pub fn rules(&self) -> &dyn OpRules {
        match self {
            Op::Input(id) => id,
            Op::State(id) => id,
            Op::Scalar(id) => id,
            Op::Pointwise(op) => op,
            Op::Reduce(op) => op,
            Op::MatMul(op) => op,
            Op::Conv2d(op) => op,
            Op::Conv2dGradInput(op) => op,
            Op::Conv2dGradFilter(op) => op,
            Op::MaxPool(op) => op,
            Op::MaxPoolGrad(op) => op,
            Op::AvgPool(op) => op,
            Op::AvgPoolGrad(op) => op,
            Op::Recurrent(op) => op,
            Op::RecurrentGrad(op) => op,
            Op::Reshape(op) => op,
            Op::Transpose(op) => op,
            Op::Slice(op) => op,
            Op::BatchSlice(op) => op,
            Op::Concat(op) => op,
            Op::SliceWrite(op) => op,
            Op::FusedSliceWrite(op) => op,
            Op::ChannelView(op) => op,
            Op::Pad(op) => op,
            Op::Gather(op) => op,
            Op::ScatterAdd(op) => op,
            Op::Attention(op) => op,
            Op::AttentionGrad(op) => op,
            Op::AllReduce(op) => op,
            Op::ReduceScatter(op) => op,
            Op::Shard(op) => op,
            Op::AllGather(op) => op,
            Op::PairwiseSum(op) => op,
            Op::Store(op) => op,
            Op::Load(op) => op,
        }
    }

    /// Whether it reads no values: inputs, states and scalars.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Op::Input(_) | Op::State(_) | Op::Scalar(_))
    }

    /// Whether it exchanges numbers with other ranks: all of them run it, once and in the same order.
    pub fn is_collective(&self) -> bool {
        matches!(self, Op::AllReduce(_) | Op::ReduceScatter(_) | Op::AllGather(_))
    }

    /// Whether it is a sum over rows that resumes from its last input, the sum over earlier rows.
    pub fn is_onto(&self) -> bool {
        match self {
            Op::MatMul(op) => op.onto,
            Op::Reduce(op) => op.onto,
            Op::Conv2dGradFilter(op) => op.onto,
            Op::ScatterAdd(op) => op.onto,
            _ => false,
        }
    }
}

/// Checks that there are `N` inputs and returns them as an array.
pub(crate) fn expect<'a, const N: usize>(inputs: &[&'a TensorType]) -> Result<[&'a TensorType; N], String> {
    <[&TensorType; N]>::try_from(inputs).map_err(|_| format!("takes {N} tensors, but got {}", inputs.len()))
}

/// Checks that tensors that a kernel reads as real numbers have a real type.
pub(crate) fn expect_real(inputs: &[&TensorType]) -> Result<(), String> {
    match inputs.iter().find(|input| !input.dtype.is_float()) {
        Some(input) => Err(format!("takes real numbers, but got {input}; cast it first")),
        None => Ok(()),
    }
}

/// Checks that a real result has a real type.
pub(crate) fn expect_real_result(dtype: DType) -> Result<(), String> {
    if dtype.is_float() { Ok(()) } else { Err(format!("computes real numbers, which cannot be stored as {dtype}; cast the result")) }
}
