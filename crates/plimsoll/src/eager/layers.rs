//! Products, convolutions, pooling, normalization and losses.

use super::call::{Call, promoted};
use super::composite::Composite;
use super::dispatch::{apply, apply_many};
use super::error::{Result, invalid};
use super::tensor::Tensor;
use crate::nn::Padding;
use plimsoll_core::ops::{Attention, AvgPool, Conv2d, MatMul, MaxPool, Packing, Window};
use plimsoll_core::{DType, Op};
use std::panic::Location;

/// The window of an op on images.
fn window(op: &'static str, image: &Tensor, padding: Padding, size: (usize, usize), stride: (usize, usize)) -> Result<Window> {
    let [_, height, width, _] = image.shape().dims() else {
        return invalid(op, format!("takes images [n, height, width, channels], but got {}", image.ty()));
    };
    Ok(padding.window(size, stride, (1, 1), (height.factor(), width.factor())))
}

impl Tensor {
    /// The matrix product. The first operand may have more than two dimensions, whose last is multiplied.
    ///
    /// # Errors
    /// If the shapes do not go together.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        if self.rank() < 2 || other.rank() != 2 {
            let what = format!(
                "multiplies matrices, but got the shapes {} and {}; for batches of matrices use `attention`",
                self.shape(),
                other.shape()
            );
            return invalid("matmul", what);
        }
        if self.rank() > 2 {
            return apply(Call::Composite(Composite::MatMulRows), &[self, other]);
        }
        let dtype = promoted(&[self.dtype(), other.dtype()]);
        apply(Call::Node(Op::MatMul(MatMul { dtype, ..MatMul::default() })), &[self, other])
    }

    /// A two-dimensional convolution of images `[n, height, width, channels]` with filters `[height, width, channels,
    /// out]`.
    ///
    /// # Errors
    /// If the shapes do not go together.
    #[track_caller]
    pub fn conv2d(&self, filter: &Tensor, stride: usize, padding: Padding) -> Result<Tensor> {
        let [height, width, channels, _] = filter.shape().dims() else {
            return invalid("conv2d", format!("takes filters [height, width, channels, out], but got {}", filter.ty()));
        };
        let window = window("conv2d", self, padding, (height.factor(), width.factor()), (stride, stride))?;
        let own = self.shape().dims()[3].factor();
        if channels.factor() == 0 || !own.is_multiple_of(channels.factor()) {
            return invalid("conv2d", format!("filters of {channels} channels do not divide the {own} channels of the image"));
        }
        let op = Conv2d { window, groups: own / channels.factor(), epilogue: None, dtype: promoted(&[self.dtype(), filter.dtype()]) };
        apply(Call::Node(Op::Conv2d(op)), &[self, filter])
    }

    /// The largest element of every window.
    ///
    /// # Errors
    /// If the window does not fit.
    #[track_caller]
    pub fn max_pool2d(&self, size: usize, stride: usize, padding: Padding) -> Result<Tensor> {
        let window = window("max_pool2d", self, padding, (size, size), (stride, stride))?;
        apply(Call::Node(Op::MaxPool(MaxPool { window })), &[self])
    }

    /// The mean of every window, over elements inside of the image.
    ///
    /// # Errors
    /// If the window does not fit.
    #[track_caller]
    pub fn avg_pool2d(&self, size: usize, stride: usize, padding: Padding) -> Result<Tensor> {
        let window = window("avg_pool2d", self, padding, (size, size), (stride, stride))?;
        apply(Call::Node(Op::AvgPool(AvgPool { window })), &[self])
    }

    /// `eˣ / Σ eˣ` along an axis.
    ///
    /// # Errors
    /// If there is no such axis.
    #[track_caller]
    pub fn softmax(&self, axis: usize) -> Result<Tensor> {
        apply(Call::Composite(Composite::Softmax(axis)), &[self])
    }

    /// The logarithm of softmax along an axis.
    ///
    /// # Errors
    /// If there is no such axis.
    #[track_caller]
    pub fn log_softmax(&self, axis: usize) -> Result<Tensor> {
        apply(Call::Composite(Composite::LogSoftmax(axis)), &[self])
    }

    /// Normalized along the last axis to mean 0 and variance 1, then multiplied by a gain and shifted by a bias.
    ///
    /// # Errors
    /// If the shapes do not go together.
    #[track_caller]
    pub fn layer_norm(&self, gain: &Tensor, bias: &Tensor, epsilon: f32) -> Result<Tensor> {
        apply(Call::Composite(Composite::LayerNorm(epsilon.to_bits())), &[self, gain, bias])
    }

    /// Normalized over all axes but the last, as batch normalization of images is in training, then multiplied by a
    /// gain and shifted by a bias of one number per channel.
    ///
    /// # Errors
    /// If the shapes do not go together.
    #[track_caller]
    pub fn batch_norm(&self, gain: &Tensor, bias: &Tensor, epsilon: f32) -> Result<Tensor> {
        apply(Call::Composite(Composite::BatchNorm(epsilon.to_bits())), &[self, gain, bias])
    }

    /// Multi-head attention of queries (the receiver), keys and values `[batch, length, heads · depth]`.
    ///
    /// # Errors
    /// If the shapes do not go together.
    #[track_caller]
    pub fn attention(&self, keys: &Tensor, values: &Tensor, heads: usize, causal: bool) -> Result<Tensor> {
        let depth = self.shape().last().map_or(0, |width| width.factor()) / heads.max(1);
        let op = Attention { causal, ..Attention::new(Packing::Separate, heads, depth) };
        let call = Call::Node(Op::Attention(op));
        Ok(apply_many(&call, &[self, keys, values], &[], Location::caller())?.swap_remove(0))
    }

    /// The mean cross-entropy of logits `[rows, classes]` (the receiver) and class IDs in `i32`, `u8` or `bool`.
    ///
    /// # Errors
    /// If the shapes do not go together.
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Tensor) -> Result<Tensor> {
        expect_class_ids("cross_entropy", labels)?;
        apply(Call::Composite(Composite::CrossEntropy), &[self, labels])
    }

    /// The cross-entropy of each row, as PyTorch's with `reduction="none"`.
    ///
    /// # Errors
    /// If the shapes do not go together.
    #[track_caller]
    pub fn cross_entropy_rows(&self, labels: &Tensor) -> Result<Tensor> {
        expect_class_ids("cross_entropy_rows", labels)?;
        apply(Call::Composite(Composite::CrossEntropyRows), &[self, labels])
    }

    /// The mean squared error.
    ///
    /// # Errors
    /// If the shapes do not go together.
    #[track_caller]
    pub fn mse_loss(&self, target: &Tensor) -> Result<Tensor> {
        self.sub(target)?.square()?.mean()
    }

    /// The mean binary cross-entropy of logits (the receiver) and labels from 0 to 1.
    ///
    /// # Errors
    /// If the shapes do not go together.
    #[track_caller]
    pub fn binary_cross_entropy(&self, labels: &Tensor) -> Result<Tensor> {
        self.softplus()?.sub(&self.mul(labels)?)?.mean()
    }
}

fn expect_class_ids(op: &'static str, labels: &Tensor) -> Result<()> {
    match labels.dtype() {
        DType::I32 | DType::U8 | DType::Bool => Ok(()),
        _ => invalid(op, format!("takes class IDs in i32, u8 or bool, but got {}", labels.ty())),
    }
}
