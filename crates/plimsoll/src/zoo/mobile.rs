//! Networks for small devices: MobileNet (Howard and others, 2017) as in Keras, and MobileNetV2 (Sandler and others,
//! 2018) as in torchvision.

use super::blocks::{centred, conv_norm, conv_norm_by};
use super::entry::{Entry, IMAGENET};
use super::options::Setup;
use crate::nn::{Activation, Add, BatchNorm, Conv2D, Dense, DepthwiseConv2D, Dropout, Functional, GlobalAveragePool, Initializer};
use crate::nn::{Model, Padding, SymbolicTensor};

pub(super) const MOBILENET_V1: Entry =
    Entry::image_classifier("mobilenet-v1", "depthwise convolutions of 2017, as in Keras", IMAGENET, 1000, make_v1);

/// MobileNet.
pub fn mobilenet_v1(classes: usize) -> Model {
    MOBILENET_V1.for_classes(classes)
}

pub(super) const MOBILENET_V2: Entry = Entry::image_classifier("mobilenet-v2", "inverted residuals of 2018", IMAGENET, 1000, make_v2);

/// MobileNetV2.
pub fn mobilenet_v2(classes: usize) -> Model {
    MOBILENET_V2.for_classes(classes)
}

/// A depthwise convolution without bias, with normalization.
pub(super) fn depthwise(
    net: &mut Functional,
    x: SymbolicTensor,
    conv: DepthwiseConv2D,
    norm: BatchNorm,
    activation: Activation,
) -> SymbolicTensor {
    net.block("depthwise", |net| {
        let x = net.named("conv", conv.bias(false).initializer(Initializer::HeNormal), [x]);
        let x = net.named("norm", norm, [x]);
        net.add(activation, [x])
    })
}

fn make_v1(setup: &Setup) -> Model {
    let mut net = Functional::new("mobilenet-v1");
    let x = net.input();
    let conv = |filters: usize, size: usize, stride: usize| Conv2D::new(filters, size).stride(stride, stride).padding(Padding::Same);
    let relu6 = Activation::Relu6;
    let mut x = conv_norm_by(&mut net, "stem", x, conv(setup.wide(32), 3, 2), BatchNorm::new(), relu6);
    let middle = [(512, 1); 5];
    let blocks = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)].into_iter().chain(middle).chain([(1024, 2), (1024, 1)]);
    for (i, (channels, stride)) in blocks.enumerate() {
        x = net.block(&format!("block{}", i + 1), |net| {
            let each = DepthwiseConv2D::new(3).stride(stride, stride).padding(Padding::Same);
            let x = depthwise(net, x, each, BatchNorm::new(), relu6);
            conv_norm_by(net, "pointwise", x, conv(setup.wide(channels), 1, 1), BatchNorm::new(), relu6)
        });
    }
    let x = net.add(GlobalAveragePool, [x]);
    let x = net.add(Dropout::new(1e-3), [x]);
    let scores = net.named("scores", Dense::new(setup.classes), [x]);
    net.build(scores)
}

/// Expansion, channels, repetitions and first stride of MobileNetV2's stages.
const V2: [(usize, usize, usize, usize); 7] =
    [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];

fn make_v2(setup: &Setup) -> Model {
    let mut net = Functional::new("mobilenet-v2");
    let relu6 = Activation::Relu6;
    let x = net.input();
    let mut channels = setup.wide_by_eight(32);
    let mut x = conv_norm(&mut net, "stem", x, centred(channels, 3, 2), relu6);
    let mut count = 0;
    for (expansion, out, repeats, first) in V2 {
        let out = setup.wide_by_eight(out);
        for i in 0..repeats {
            count += 1;
            let stride = if i == 0 { first } else { 1 };
            x = net.block(&format!("block{count}"), |net| {
                let mut y = x;
                if expansion > 1 {
                    y = conv_norm(net, "expand", y, centred(channels * expansion, 1, 1), relu6);
                }
                let conv = DepthwiseConv2D::new(3).stride(stride, stride).padding(Padding::all(1));
                y = depthwise(net, y, conv, BatchNorm::torch(), relu6);
                y = conv_norm(net, "project", y, centred(out, 1, 1), Activation::Linear);
                if stride == 1 && channels == out { net.add(Add, [x, y]) } else { y }
            });
            channels = out;
        }
    }
    // The last layer is widened but never narrowed.
    let last = setup.wide_by_eight(1280).max(1280);
    let x = conv_norm(&mut net, "last", x, centred(last, 1, 1), relu6);
    let x = net.add(GlobalAveragePool, [x]);
    let x = net.add(Dropout::new(0.2), [x]);
    let scores = net.named("scores", Dense::new(setup.classes), [x]);
    net.build(scores)
}
