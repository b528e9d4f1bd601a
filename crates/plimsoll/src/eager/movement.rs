//! Ops that move elements: reshape, transpose, slices, concat, padding, indexing.

use super::call::Call;
use super::composite::Composite;
use super::dispatch::apply;
use super::error::{Result, invalid};
use super::tensor::Tensor;
use plimsoll_core::ops::{Concat, Gather, Pad, Slice, Transpose};
use plimsoll_core::{DType, Dim, Op, Shape};
use std::ops::Range;

impl Tensor {
    /// The same elements in the same order under another shape, without a copy.
    ///
    /// # Errors
    /// If the number of elements differs.
    #[track_caller]
    pub fn reshape(&self, dims: impl IntoIterator<Item = usize>) -> Result<Tensor> {
        let shape = Shape::fixed(dims);
        if shape.elements() != self.shape().elements() {
            return invalid("reshape", format!("{} has {} elements and cannot become {shape}", self.shape(), self.shape().elements()));
        }
        apply(Call::Reshape(shape), &[self])
    }

    /// All dimensions after the first merged into one.
    ///
    /// # Errors
    /// For a scalar.
    #[track_caller]
    pub fn flatten(&self) -> Result<Tensor> {
        let [first, rest @ ..] = self.shape().dims() else { return invalid("flatten", "a scalar has no dimensions") };
        let rest = rest.iter().map(|dim| dim.factor()).product();
        apply(Call::Reshape(Shape::new([*first, Dim::fixed(rest)])), &[self])
    }

    /// A dimension of 1 inserted before this axis.
    ///
    /// # Errors
    /// If there are fewer axes.
    #[track_caller]
    pub fn unsqueeze(&self, axis: usize) -> Result<Tensor> {
        if axis > self.rank() {
            return invalid("unsqueeze", format!("there is no place {axis} in the shape {}", self.shape()));
        }
        let (before, after) = self.shape().dims().split_at(axis);
        apply(Call::Reshape(Shape::new(before.iter().copied().chain([1.into()]).chain(after.iter().copied()))), &[self])
    }

    /// The dimension of this axis, which is 1, removed.
    ///
    /// # Errors
    /// If the axis has another extent.
    #[track_caller]
    pub fn squeeze(&self, axis: usize) -> Result<Tensor> {
        if self.shape().dims().get(axis) != Some(&Dim::fixed(1)) {
            return invalid("squeeze", format!("axis {axis} of {} is not 1", self.shape()));
        }
        let kept = self.shape().dims().iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, dim)| *dim);
        apply(Call::Reshape(Shape::new(kept)), &[self])
    }

    /// The axes in another order: axis `i` of the result is axis `order[i]`.
    ///
    /// # Errors
    /// If that is no order of the axes.
    #[track_caller]
    pub fn permute(&self, order: &[usize]) -> Result<Tensor> {
        apply(Call::Node(Op::Transpose(Transpose { order: order.to_vec() })), &[self])
    }

    /// The last two axes exchanged.
    ///
    /// # Errors
    /// If there are fewer.
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        let rank = self.rank();
        if rank < 2 {
            return invalid("transpose", format!("takes at least two axes, but got the shape {}", self.shape()));
        }
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 1, rank - 2);
        self.permute(&order)
    }

    /// A range of an axis.
    ///
    /// ```
    /// use plimsoll::eager::Tensor;
    /// let x = Tensor::arange(6)?.reshape([2, 3])?;
    /// assert_eq!(x.slice(1, 1..3)?.to_vec::<f32>()?, [1.0, 2.0, 4.0, 5.0]);
    /// # Ok::<(), plimsoll::eager::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the range is not inside of the axis.
    #[track_caller]
    pub fn slice(&self, axis: usize, range: Range<usize>) -> Result<Tensor> {
        let Some(length) = range.end.checked_sub(range.start) else {
            return invalid("slice", format!("{}..{} ends before it starts", range.start, range.end));
        };
        apply(Call::Node(Op::Slice(Slice { axis, start: range.start, length })), &[self])
    }

    /// The part at one index of the first axis, which is removed.
    ///
    /// # Errors
    /// If there is no such index.
    #[track_caller]
    pub fn get(&self, index: usize) -> Result<Tensor> {
        self.slice(0, index..index.saturating_add(1))?.squeeze(0)
    }

    /// Tensors joined along an axis.
    ///
    /// # Errors
    /// If there is none, or they differ in another dimension or in type.
    #[track_caller]
    pub fn concat(tensors: &[&Tensor], axis: usize) -> Result<Tensor> {
        if tensors.is_empty() {
            return invalid("concat", "needs at least one tensor");
        }
        apply(Call::Node(Op::Concat(Concat { axis })), tensors)
    }

    /// Tensors of the same shape joined along a new axis.
    ///
    /// # Errors
    /// As [`Tensor::concat`].
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: usize) -> Result<Tensor> {
        // Not a closure over `map`: the line that calls this is the one that the tensors are made at.
        let mut rows = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            rows.push(tensor.unsqueeze(axis)?);
        }
        Tensor::concat(&rows.iter().collect::<Vec<_>>(), axis)
    }

    /// Zeros added before and after an axis.
    ///
    /// # Errors
    /// If there is no such axis.
    #[track_caller]
    pub fn pad(&self, axis: usize, before: usize, after: usize) -> Result<Tensor> {
        apply(Call::Node(Op::Pad(Pad { axis, before, after })), &[self])
    }

    /// Rows of a table by index, in `i32` or `u8`; zeros where an index is out of range.
    ///
    /// # Errors
    /// If the indices are no integers, or the table is a scalar.
    #[track_caller]
    pub fn gather(&self, indices: &Tensor) -> Result<Tensor> {
        apply(Call::Node(Op::Gather(Gather { dtype: self.dtype() })), &[self, indices])
    }

    /// Class IDs as rows of zeros and a one.
    ///
    /// # Errors
    /// If these are no integers.
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> Result<Tensor> {
        if !matches!(self.dtype(), DType::I32 | DType::U8 | DType::Bool) {
            return invalid("one_hot", format!("takes class IDs in i32, u8 or bool, but got {}", self.ty()));
        }
        apply(Call::Composite(Composite::OneHot(classes)), &[self])
    }
}
