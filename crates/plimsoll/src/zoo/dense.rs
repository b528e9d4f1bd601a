//! Densely connected networks (Huang and others, 2016), as in torchvision.

use super::blocks::{centred, conv_norm};
use super::entry::{Entry, IMAGENET};
use super::options::Setup;
use crate::nn::{Activation, AveragePool2D, BatchNorm, Concatenate, Conv2D, Dense, Functional, GlobalAveragePool, Initializer, MaxPool2D};
use crate::nn::{Model, Padding, SymbolicTensor};

pub(super) const DENSENET121: Entry =
    Entry::image_classifier("densenet121", "densely connected convolutions, 2016", IMAGENET, 1000, make121);

/// DenseNet with 121 layers.
pub fn densenet121(classes: usize) -> Model {
    DENSENET121.for_classes(classes)
}

/// Normalization, ReLU, then a convolution.
fn norm_conv(net: &mut Functional, name: &str, x: SymbolicTensor, conv: Conv2D) -> SymbolicTensor {
    net.block(name, |net| {
        let x = net.named("norm", BatchNorm::torch(), [x]);
        let x = net.add(Activation::Relu, [x]);
        net.named("conv", conv.bias(false).initializer(Initializer::HeNormal), [x])
    })
}

fn make121(setup: &Setup) -> Model {
    let growth = setup.wide(32);
    let mut net = Functional::new("densenet121");
    let x = net.input();
    let mut channels = 2 * growth;
    let x = conv_norm(&mut net, "stem", x, centred(channels, 7, 2), Activation::Relu);
    let mut x = net.named("pool", MaxPool2D::new(3).stride(2, 2).padding(Padding::all(1)), [x]);
    for (i, layers) in [6, 12, 24, 16].into_iter().enumerate() {
        for layer in 1..=layers {
            x = net.block(&format!("block{}/layer{layer}", i + 1), |net| {
                let y = norm_conv(net, "reduce", x, centred(4 * growth, 1, 1));
                let y = norm_conv(net, "grow", y, centred(growth, 3, 1));
                net.add(Concatenate, [x, y])
            });
        }
        channels += layers * growth;
        if i < 3 {
            channels /= 2;
            x = net.block(&format!("transition{}", i + 1), |net| {
                let x = norm_conv(net, "halve", x, centred(channels, 1, 1));
                net.named("pool", AveragePool2D::new(2), [x])
            });
        }
    }
    let x = net.named("norm", BatchNorm::torch(), [x]);
    let x = net.add(Activation::Relu, [x]);
    let x = net.add(GlobalAveragePool, [x]);
    let scores = net.named("scores", Dense::new(setup.classes), [x]);
    net.build(scores)
}
