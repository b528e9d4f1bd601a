//! Building blocks that several networks share.

use crate::nn::{Activation, BatchNorm, Conv2D, Functional, Initializer, Padding, SymbolicTensor};

/// A block of a convolution without bias, PyTorch's batch normalization, and an activation.
pub(super) fn conv_norm(net: &mut Functional, name: &str, x: SymbolicTensor, conv: Conv2D, activation: Activation) -> SymbolicTensor {
    conv_norm_by(net, name, x, conv, BatchNorm::torch(), activation)
}

/// The same with any batch normalization.
pub(super) fn conv_norm_by(
    net: &mut Functional,
    name: &str,
    x: SymbolicTensor,
    conv: Conv2D,
    norm: BatchNorm,
    activation: Activation,
) -> SymbolicTensor {
    net.block(name, |net| {
        let x = net.named("conv", conv.bias(false).initializer(Initializer::HeNormal), [x]);
        let x = net.named("norm", norm, [x]);
        if activation == Activation::Linear { x } else { net.add(activation, [x]) }
    })
}

/// A convolution of `size`×`size` padded by half its size.
pub(super) fn centred(filters: usize, size: usize, stride: usize) -> Conv2D {
    Conv2D::new(filters, size).stride(stride, stride).padding(Padding::all(size / 2))
}
