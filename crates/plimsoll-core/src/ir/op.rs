//! The closed list of ops that devices write kernels for, and the trait with the rules of each.

use crate::DType;
use crate::base::shape::{Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, InputId, ScalarId, StateId, ValueId};
use crate::ir::ops::{
    Attention, AttentionGrad, AvgPool, AvgPoolGrad, Concat, Conv2d, Conv2dGradFilter, Conv2dGradInput, MatMul, MaxPool, MaxPoolGrad,
};
use crate::ir::ops::{
    BatchSlice, ChannelView, FusedSliceWrite, Gather, Load, Pad, Pointwise, Recurrent, RecurrentGrad, Reduce, Reshape, ScatterAdd, Slice,
    SliceWrite, Store, Transpose,
};
pub use crate::ir::rules::{Precision, RowContext, RowRule};

/// The rules of an op, in one place. Devices add kernels and nothing else.
pub trait OpRules {
    /// The name in print-outs.
    fn name(&self) -> &'static str;

    /// How mixed precision treats the op.
    fn precision(&self) -> Precision;

    /// What splitting the rows of a node does to it; none if they cannot be split.
    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule>;

    /// The op over some of its rows, where `part` gives the shape of those from a shape of all, and a sum starts from the one before if `onto`. None for an op
    /// that is the same for any rows.
    fn with_rows(&self, part: &dyn Fn(&Shape) -> Shape, onto: bool) -> Option<Op> {
        let _ = (part, onto);
        None
    }

    /// What distinguishes this use of the op, for print-outs; empty if nothing does.
    fn attributes(&self) -> String {
        String::new()
    }

    /// The outputs' types, or why there can be none.
    fn infer(&self, graph: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String>;

    /// Adds the nodes that give the gradient of each wanted input from those of the outputs.
    /// What the rule reads (inputs, outputs or neither) is what backward needs to keep.
    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError>;

    /// Floating-point operations over `rows` rows.
    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType], rows: usize) -> u64;

    /// Whether output `output` may be written over input `input`, if both have the same size and the input is not read later.
    fn in_place(&self, input: usize, output: usize) -> bool {
        let _ = (input, output);
        false
    }

    /// Whether the output is the input's bytes under another shape, or some of them where they are.
    fn is_view(&self) -> bool {
        false
    }
}

/// An operation of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A column of the batch.
    Input(InputId),
    /// A tensor that lives from step to step, as the step finds it.
    State(StateId),
    /// A number the host gives to every step.
    Scalar(ScalarId),
    /// An expression over every element.
    Pointwise(Pointwise),
    /// An expression over every element, reduced along axes.
    Reduce(Reduce),
    /// Matrix product.
    MatMul(MatMul),
    /// Convolution.
    Conv2d(Conv2d),
    /// Gradient of a convolution with respect to its input.
    Conv2dGradInput(Conv2dGradInput),
    /// Gradient of a convolution with respect to its filter.
    Conv2dGradFilter(Conv2dGradFilter),
    /// Maximum over windows, and where it was found.
    MaxPool(MaxPool),
    /// Its gradient.
    MaxPoolGrad(MaxPoolGrad),
    /// Mean over windows.
    AvgPool(AvgPool),
    /// Its gradient.
    AvgPoolGrad(AvgPoolGrad),
    /// A recurrent layer, step by step.
    Recurrent(Recurrent),
    /// Its gradient.
    RecurrentGrad(RecurrentGrad),
    /// The same elements under another shape.
    Reshape(Reshape),
    /// Axes in another order.
    Transpose(Transpose),
    /// A part along one axis.
    Slice(Slice),
    /// Some rows of the batch.
    BatchSlice(BatchSlice),
    /// Tensors one after another along an axis.
    Concat(Concat),
    /// A tensor written into a slice of another.
    SliceWrite(SliceWrite),
    /// An op whose result is written straight into a slice of another tensor.
    FusedSliceWrite(FusedSliceWrite),
    /// Some channels of a tensor, read without a copy.
    ChannelView(ChannelView),
    /// Zeros around a tensor along one axis.
    Pad(Pad),
    /// Rows of a table by their numbers.
    Gather(Gather),
    /// Rows added up into a table by their numbers.
    ScatterAdd(ScatterAdd),
    /// Attention of several heads.
    Attention(Attention),
    /// Its gradient.
    AttentionGrad(AttentionGrad),
    /// A copy into the backing store.
    Store(Store),
    /// A copy back from the backing store.
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
            Op::Store(op) => op,
            Op::Load(op) => op,
        }
    }

    /// Whether it reads no values: inputs, state and scalars.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Op::Input(_) | Op::State(_) | Op::Scalar(_))
    }
}

/// Checks that there are `N` inputs and hands them over by name.
pub(crate) fn expect<'a, const N: usize>(inputs: &[&'a TensorType]) -> Result<[&'a TensorType; N], String> {
    <[&TensorType; N]>::try_from(inputs).map_err(|_| format!("takes {N} tensors, but got {}", inputs.len()))
}

/// Checks that tensors whose bytes a kernel reads as real numbers are that.
pub(crate) fn expect_real(inputs: &[&TensorType]) -> Result<(), String> {
    match inputs.iter().find(|input| !input.dtype.is_float()) {
        Some(input) => Err(format!("takes real numbers, but got {input}; cast it first")),
        None => Ok(()),
    }
}

/// Checks that a result computed in real numbers is stored as such.
pub(crate) fn expect_real_result(dtype: DType) -> Result<(), String> {
    if dtype.is_float() { Ok(()) } else { Err(format!("computes real numbers, which cannot be stored as {dtype}; cast the result")) }
}
