//! Reductions. Sums are in single precision, and so is their result.

use super::call::Call;
use super::composite::Composite;
use super::dispatch::apply;
use super::error::{Result, invalid};
use super::tensor::Tensor;
use plimsoll_core::ops::Reduction;
use plimsoll_core::{DType, Dim, Shape};

impl Tensor {
    /// Sorted axes that exist.
    fn axes(&self, op: &'static str, axes: &[usize]) -> Result<Vec<usize>> {
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        match sorted.last() {
            Some(last) if *last >= self.rank() => invalid(op, format!("there is no axis {last} in the shape {}", self.shape())),
            _ if !self.dtype().is_float() => {
                invalid(op, format!("takes real numbers, but got {}; convert it with `to_dtype` first", self.ty()))
            }
            _ => Ok(sorted),
        }
    }

    /// The shape without some axes.
    fn without(&self, axes: &[usize]) -> Shape {
        Shape::new(self.shape().dims().iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, dim)| *dim))
    }

    #[track_caller]
    fn reduced(&self, op: &'static str, call: impl FnOnce(Vec<usize>) -> Call, axes: &[usize], keep: bool) -> Result<Tensor> {
        let axes = self.axes(op, axes)?;
        if axes.is_empty() {
            return if self.dtype() == DType::F32 { Ok(self.clone()) } else { self.to_dtype(DType::F32) };
        }
        let shape = self.without(&axes);
        let result = apply(call(axes), &[self])?;
        if keep { Ok(result) } else { apply(Call::Reshape(shape), &[&result]) }
    }

    fn all_axes(&self) -> Vec<usize> {
        (0..self.rank()).collect()
    }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $all:ident, $some:ident, $kept:ident: $call:expr;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            /// of all elements, as a scalar.
            ///
            /// # Errors
            /// If the elements are no real numbers, or the memory does not suffice.
            #[track_caller]
            pub fn $all(&self) -> Result<Tensor> {
                self.reduced(stringify!($all), $call, &self.all_axes(), false)
            }

            $(#[$doc])*
            /// along axes, which are removed.
            ///
            /// # Errors
            /// If there is no such axis, or as for all elements.
            #[track_caller]
            pub fn $some(&self, axes: &[usize]) -> Result<Tensor> {
                self.reduced(stringify!($all), $call, axes, false)
            }

            $(#[$doc])*
            /// along axes, which remain with extent 1.
            ///
            /// # Errors
            /// If there is no such axis, or as for all elements.
            #[track_caller]
            pub fn $kept(&self, axes: &[usize]) -> Result<Tensor> {
                self.reduced(stringify!($all), $call, axes, true)
            }
        )*}
    };
}

reductions! {
    /// The sum
    sum, sum_axes, sum_keepdim: |axes| Call::Reduce(Reduction::Sum, axes);
    /// The largest
    max, max_axes, max_keepdim: |axes| Call::Reduce(Reduction::Max, axes);
    /// The numerically stable `ln Σ eˣ`
    logsumexp, logsumexp_axes, logsumexp_keepdim: |axes| Call::Reduce(Reduction::LogSumExp, axes);
    /// The mean
    mean, mean_axes, mean_keepdim: |axes| Call::Composite(Composite::Mean(axes));
    /// The variance, divided by the number of elements,
    var, var_axes, var_keepdim: |axes| Call::Composite(Composite::Variance(axes));
}

impl Tensor {
    /// The smallest of all elements, as a scalar.
    ///
    /// # Errors
    /// As [`Tensor::max`].
    #[track_caller]
    pub fn min(&self) -> Result<Tensor> {
        self.neg()?.max()?.neg()
    }

    /// The index of the first largest element along an axis, which is removed.
    ///
    /// # Errors
    /// If there is no such axis.
    #[track_caller]
    pub fn argmax(&self, axis: usize) -> Result<Tensor> {
        let axes = self.axes("argmax", &[axis])?;
        let shape = self.without(&axes);
        let result = apply(Call::Reduce(Reduction::ArgMax, axes), &[self])?;
        apply(Call::Reshape(shape), &[&result])
    }

    /// The extent of an axis.
    ///
    /// # Errors
    /// If there is no such axis, or it is the batch.
    pub fn dim(&self, axis: usize) -> Result<usize> {
        match self.shape().dims().get(axis).copied().and_then(Dim::as_fixed) {
            Some(extent) => Ok(extent),
            None => invalid("dim", format!("axis {axis} of {} has no fixed extent", self.shape())),
        }
    }
}
